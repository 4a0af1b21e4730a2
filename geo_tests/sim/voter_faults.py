"""Voter faults: what befalls one of several metadata voters of a region, and its disk, and what an operator does.

Is: kinds of faults that `faults` draws beside its own, and the operator's part in them, by docs/operating/disks.md:
a voter that lost its folder is started with an empty one; one whose disk comes back after it ran without it, or comes
back as it was some time ago, has its folder emptied first, where that is known. Isn't: what must hold of the voters
(`group_checks`), or a region with one voter.
Invariants, which an operator keeps: a fault of a voter begins only while all of its region run; of a region one disk
at a time is lost, the next only once `heliograph meta members` shows nobody behind; of the instance one disk at a time
that a voter of the global configuration lies on, too. A copy is put back unnoticed only where the others know of a
later start, or while a leader and all that was committed are with them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.disk_faults import MADE_GOOD_S, Image, image_of, put_back
from geo_tests.sim.region import CONFIG_PORT, META_PORT
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import HeliographError

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults
    from geo_tests.sim.region import Node, Region
    from geo_tests.sim.world import World

Undo = Callable[[], None]
_OPERATOR = "operator-of-voters"
_LOOK_S = 0.5
_SILENT_S = 1.0
"""Who was heard within this is there."""
_HEARD_S = 3.0
"""Within this a leader hears of a voter's new life."""


class VoterFaults:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self._faults = world, faults
        self.rng: random.Random = world.sim.rng("voter faults")
        self.kinds: list[tuple[int, Callable[[], tuple[str, Undo] | None]]] = [
            (2, self._kill_voter),
            (2, self._power_cut_voter),
            (2, self._stop_voter),
            (2, self._cut_voter_off),
            (3, self._wipe_voter),
            (2, self._unmount_voter),
            (2, self._roll_voter_back),
        ]
        self._away: set[str] = set()
        """Regions of which a voter is away; no other of these is hurt meanwhile."""
        self._ill: dict[str, str] = {}
        """Voter -> what its disk lacks, until it is made good."""
        self._coming: set[str] = set()
        """Voters whose disk is about to be lost, or that are not started yet."""
        self._waiting = 0

    async def made_good(self) -> None:
        """Returns once every voter that lost its disk is one again. Raises Violation."""
        deadline = self.world.sim.now() + MADE_GOOD_S
        while self._ill or self._waiting:
            if self.world.sim.now() > deadline:
                raise Violation(f"{MADE_GOOD_S:.0f} s after everything was well: {self._ill or 'power goes again'}")
            await asyncio.sleep(0.1)

    # -- processes ------------------------------------------------------------------------------------------------

    def _kill_voter(self) -> tuple[str, Undo] | None:
        if (node := self._voter()) is None:
            return None
        node.kill()
        return self._gone(node, "kill", node.revive)

    def _power_cut_voter(self) -> tuple[str, Undo] | None:
        if (node := self._voter()) is None:
            return None
        node.power_cut()
        return self._gone(node, "power cut of", node.revive)

    def _stop_voter(self) -> tuple[str, Undo] | None:
        """SIGSTOP, and on again: it believes what it believed, that it leads as well."""
        if (node := self._voter()) is None:
            return None
        life = node.machine.stop()
        return self._gone(node, "stop", lambda: self.world.sim.loop.go_on(life) if life is not None else None)

    def _cut_voter_off(self) -> tuple[str, Undo] | None:
        """From the other voters; clients still hear it."""
        if (node := self._voter()) is None:
            return None
        return self._gone(node, "cut off", self._cut_off(node))

    def _cut_off(self, node: Node) -> Undo:
        network, others = self.world.sim.network, [other.name for other in node.region.voters if other is not node]
        for other in others:
            network.cut(node.name, other)

        def undo() -> None:
            for other in others:
                network.heal(node.name, other)

        return undo

    # -- disks ----------------------------------------------------------------------------------------------------

    def _wipe_voter(self) -> tuple[str, Undo] | None:
        """Its disk is gone for good, and an empty one in its place, with which it is started."""
        if (node := self._whole_voter()) is None:
            return None
        self._emptied(node)
        return self._begins(node, "wiped"), lambda: self._operate(node)

    def _unmount_voter(self) -> tuple[str, Undo] | None:
        """Its disk does not mount. It is started over the empty folder beneath; or nobody starts it before the disk is
        there again. Then the disk is as it was, and either counts as an older copy, or has all.
        """
        if (node := self._whole_voter()) is None:
            return None
        if self.rng.random() < 0.3:
            self._down(node)

            def mounted() -> None:
                node.revive()
                self._operate(node)

            return self._begins(node, "not mounted, and not started"), mounted
        self._emptied(node)

        def undo() -> None:
            self._down(node)
            put_back(node, {})  # its own disk is mounted again, and emptied
            node.revive()
            self._operate(node)

        return self._begins(node, "not mounted"), undo

    def _roll_voter_back(self) -> tuple[str, Undo] | None:
        """A copy of its volume is put back. Who did it empties it before it is started; or it is started as it is, also
        while nobody leads.
        """
        if (node := self._whole_voter()) is None:
            return None
        self._down(node)
        old = image_of(node)
        node.revive()

        def undo() -> None:
            chance, known = self.rng.random(), self.world.groups.is_known(node)
            if chance < 0.3 or (chance < 0.7 and known):
                self._emptied(node, None if chance < 0.3 else old)
                self._operate(node)
                return
            self._down(node)
            if known:
                put_back(node, old)
                self._comes(node)
                self._operate(node)
                return
            put_back(node, old)
            self._later(_LOOK_S, _LOOK_S, self._start_as_it_is, node)

        return self._begins(node, "rolled back"), undo

    def _start_as_it_is(self, node: Node) -> None:
        """Once nothing hangs on what it has forgotten."""
        if not self.world.groups.can_do_without(node):
            self._later(_LOOK_S, _LOOK_S, self._start_as_it_is, node)
            return
        node.revive()
        self._operate(node)

    def _emptied(self, node: Node, older: Image | None = None) -> None:
        """It goes down, and comes back with an empty disk, or an older copy: by itself; or while all voters lose power,
        behind a moment in which another one lagged. Then that one is there again first, and who had everything last.
        """
        self._coming.add(node.name)
        if self.rng.random() < 0.4:
            self._down(node)
            put_back(node, older or {})
            self._later(0.1, 2.0, self._comes, node)
            return
        lags, has_all = self._shuffled([voter for voter in node.region.voters if voter is not node])
        heal = self._cut_off(lags)
        self.world.trace(f"{lags.name} lags")

        def power_goes() -> None:
            heal()
            self.world.trace(
                f"the power of all voters goes; {node.name} {'has an older copy' if older else 'has lost its disk'}"
            )
            for voter in node.region.voters:
                voter.power_cut()
            put_back(node, older or {})
            self._later(0.1, 0.5, lags.revive)
            self._later(0.1, 1.0, self._comes, node)
            self._later(1.5, 4.0, has_all.revive)

        self._faults.disturbed(node.region.name, 20.0)
        self._later(0.3, 1.5, power_goes)

    def _comes(self, node: Node) -> None:
        """It is started; in half of the cases its power goes again while it learns."""
        self._coming.discard(node.name)
        node.revive()
        if self.rng.random() < 0.5:
            self._later(0.05, 1.0, self._power_goes_again, node)

    def _power_goes_again(self, node: Node) -> None:
        self.world.trace(f"the power of {node.name} goes again")
        node.power_cut()
        self._later(0.1, 0.5, node.revive)

    # -- the operator ---------------------------------------------------------------------------------------------

    def _operate(self, node: Node) -> None:
        self._later(0.3, 2.0, self._look, node)

    def _look(self, node: Node) -> None:
        if node.name in self._coming or not node.is_ready():
            self._operate(node)
            return
        task = asyncio.ensure_future(self.world.sim.call(_OPERATOR, self._members, node, limit_s=10.0))
        task.add_done_callback(lambda done: self._looked(node, done))

    async def _members(self, node: Node) -> str:
        """`heliograph meta members`, of the configuration too where it has a voter there. Returns who is not well."""
        addresses = [f"{voter.name}:{META_PORT}" for voter in node.region.voters]
        found = await self._behind(addresses)
        if node is node.region.metadata:
            found += await self._behind([f"{region.metadata.name}:{CONFIG_PORT}" for region in self._regions()])
        return ", ".join(found)

    async def _behind(self, addresses: list[str]) -> list[str]:
        machine = self.world.sim.machine(_OPERATOR)
        store = MetaClient(addresses, clock=machine.clock, rng=self.rng)
        try:
            report, _ = await store.members()
        finally:
            store.close()
        return [
            f"{row['member']} is {row['behind']} behind, silent for {row['silent_s']}"
            for row in report["members"]
            if row["role"] != "voter" or row["behind"] != 0 or row["silent_s"] > _SILENT_S
        ]

    def _looked(self, node: Node, done: asyncio.Task[str]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, (HeliographError, TimeoutError)):
            self.world.sim.report(done)
            return
        state = repr(error) if error is not None else done.result()
        if state:
            self._ill[node.name] = state
            self._later(_LOOK_S, _LOOK_S, self._look, node)
            return
        self.world.trace(f"nobody is behind in {node.name}'s groups")
        if doubt := self.world.groups.doubtful(node):
            if self._ill[node.name] == doubt:  # a leader that has not heard of its new life yet soon does
                text = f"`heliograph meta members` shows nobody behind, and goes on to: {doubt}"
                self.world.sim.loop.fail(text, Violation(text))
            self._ill[node.name] = doubt
            self._later(_HEARD_S, _HEARD_S, self._look, node)
            return
        del self._ill[node.name]

    # -- what they share ------------------------------------------------------------------------------------------

    def _regions(self) -> list[Region]:
        return list(self.world.regions.values())

    def _voter(self) -> Node | None:
        """One that can be away: all of its region are there."""
        region = self.rng.choice(self._regions())
        able = len(region.voters) > 2 and all(node.is_ready() for node in region.voters)
        ill = any(node.name in self._ill for node in region.voters)
        return None if not able or ill or region.name in self._away else self.rng.choice(region.voters)

    def _whole_voter(self) -> Node | None:
        """One that can lose its disk now."""
        node = self._voter()
        if node is None or any(self.world.groups.doubtful(voter) for voter in node.region.voters):
            return None
        keeps_configuration = {region.metadata.name for region in self._regions()}
        return None if node.name in keeps_configuration and keeps_configuration & set(self._ill) else node

    def _gone(self, node: Node, what: str, back: Undo) -> tuple[str, Undo]:
        """The region goes on: nothing is forgiven it."""
        self._away.add(node.region.name)

        def undo() -> None:
            self._away.discard(node.region.name)
            back()

        return f"{what} {node.name}", undo

    def _begins(self, node: Node, what: str) -> str:
        self._ill[node.name] = what
        return f"{node.name} {what}"

    def _shuffled(self, nodes: list[Node]) -> list[Node]:
        return self.rng.sample(nodes, len(nodes))

    def _down(self, node: Node) -> None:
        if self.rng.random() < 0.5:
            node.kill()
        else:
            node.power_cut()

    def _later(self, low_s: float, high_s: float, call: Callable[..., Any], *args: Any) -> None:
        """Within that time; nothing counts as made good before."""
        self._waiting += 1

        def due() -> None:
            self._waiting -= 1
            call(*args)

        self.world.sim.loop.call_later(self.rng.uniform(low_s, high_s), due)
