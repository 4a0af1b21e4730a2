"""GroupChecks: what must hold of each region's metadata voters, and of the configuration's, whatever befalls them.

Is: eyes on the members of the groups of one world: who led in which term, what each applied at which index, how their
tables look in the end. Isn't: a fault (`voter_faults`), or the rules of Raft by themselves (`raft_world`).
Invariants: one leader a term; what one member applied at an index, no other applies otherwise, in any of its lives; in
the end all are voters that count, and hold the same table.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation

if TYPE_CHECKING:
    from geo_tests.sim.region import Node, Region
    from geo_tests.sim.world import World

_GROUPS = {"meta": "the region", "config": "the instance"}


class GroupChecks:
    """Those of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[tuple[str, int], tuple[str, int]] = {}
        """(group, term) -> who led in it, and in which life."""
        self._applied: dict[tuple[str, int], int] = {}
        """(group, index) -> checksum of the command that was applied there first."""

    def watch(self, region: Region) -> None:
        """From each start of one of its voters on."""
        for voter in region.voters:
            voter.on_started = self._started

    def _started(self, node: Node) -> None:
        for role, member in _members(node):
            self._look_at(node.name, node.region.name if role == "meta" else _GROUPS[role], member)

    def _look_at(self, name: str, group: str, member: Any) -> None:
        raft, life = member.raft, id(member)
        shown, apply = raft.on_role_change, raft._machine.apply

        def on_role_change(leads: bool) -> None:
            if leads:
                self._leads(group, raft.term, name, life)
            shown(leads)

        def applied(index: int, command: bytes) -> Any:
            checksum = zlib.crc32(command)
            if self._applied.setdefault((group, index), checksum) != checksum:
                self._fail(f"{name} applies another command at {index} than a voter of {group} did before")
            return apply(index, command)

        raft.on_role_change, raft._machine.apply = on_role_change, applied
        if raft.is_leader:
            self._leads(group, raft.term, name, life)

    def _leads(self, group: str, term: int, name: str, life: int) -> None:
        self._world.trace(f"{name} leads the metadata of {group} in term {term}")
        first = self._leaders.setdefault((group, term), (name, life))
        if first != (name, life):
            self._fail(f"two leaders of {group} in term {term}: {first[0]}, and {name}")

    def doubtful(self, node: Node) -> str:
        """In which of its groups it may not vote, stand, and acknowledge now; "": it is a voter that counts."""
        if not node.is_ready():
            return f"{node.name} does not run"
        for role, member in _members(node):
            core = member.raft._core
            if core.unproven or core.owed is not None or member.raft.node_id not in core.config.voters:
                return f"{node.name} does not count in the metadata of {_GROUPS[role]}"
        return ""

    def is_known(self, node: Node) -> bool:
        """Whether all others of its groups have written down with which start it came."""
        cores = [member.raft._core for _, member in _members(node)] if node.is_ready() else []
        return bool(cores) and all(
            core.starts.told.issuperset(voter for voter in core.config.voters if voter != core.node_id)
            for core in cores
        )

    def can_do_without(self, node: Node) -> bool:
        """Whether the others of its groups have a leader, and each of them all that was ever committed."""
        regions = self._world.regions.values()
        groups = {"meta": node.region.voters, "config": [region.metadata for region in regions]}
        for role in node.role_names:
            others = [other for other in groups[role] if other is not node]
            if any(map(self.doubtful, others)):
                return False
            rafts = [dict(_members(other))[role].raft for other in others]
            committed = [raft.commit_index for raft in rafts if raft.is_leader]
            if not committed or any(raft._core.durable < max(committed) for raft in rafts):
                return False
        return True

    def _differing(self, nodes: list[Node], role: str) -> str:
        """Why they are not all of one mind now; "": they are. Raises Violation where it is too late for that."""
        if doubts := ", ".join(filter(None, map(self.doubtful, nodes))):
            return doubts
        machines = [dict(_members(node))[role].machine for node in nodes]
        indexes = [machine.index for machine in machines]
        if len(set(indexes)) > 1:
            return f"they stand at {indexes}"
        if len({machine.snapshot() for machine in machines}) > 1:
            raise Violation(f"{', '.join(node.name for node in nodes)} hold different tables at {indexes[0]}")
        return ""

    async def final(self) -> None:
        """Raises Violation."""
        regions = list(self._world.regions.values())
        if self._world.settings.voters > 1:
            groups = [(region.voters, "meta") for region in regions]
            for nodes, role in [*groups, ([region.metadata for region in regions], "config")]:
                names = ", ".join(node.name for node in nodes)
                await self._world._until(f"{names} hold the same {role}", partial(self._differing, nodes, role))

    def _fail(self, text: str) -> None:
        self._world.sim.loop.fail(text, Violation(text))


def _members(node: Node) -> Iterator[tuple[str, Any]]:
    """(role, the member of its group) of what its process has."""
    for name, role in zip(node.role_names, node.roles, strict=True):
        yield name, role.node  # type: ignore[attr-defined]
