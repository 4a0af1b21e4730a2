"""A state machine and a group of members on one simulation, for the tests of the Raft shell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from geo_tests.sim.raft_transport import RaftNetwork
from geo_tests.sim.simulation import Machine, Simulation
from heliograph.raft.core import CoreSettings
from heliograph.raft.member.raft_node import RaftNode, RaftSettings
from heliograph.raft.ports import Done

SMALL = RaftSettings(
    core=CoreSettings(chunk_bytes=300), segment_bytes=64 << 10, snapshot_entries=1_000_000, keep_entries=5
)


@dataclass
class Journal:
    """Keeps every command with its index; answers with how many there are."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)

    def apply(self, index: int, command: bytes) -> bytes:
        self.lines.append((index, command))
        return b"%d" % len(self.lines)

    def snapshot(self) -> bytes:
        return b"\n".join(b"%d %s" % (index, command.hex().encode()) for index, command in self.lines)

    def parts(self) -> Iterator[bytes]:
        blob = self.snapshot()
        return iter([blob[at : at + 100] for at in range(0, len(blob), 100)])

    @property
    def kept(self) -> None:
        return None

    def begin_restore(self, done: Done) -> JournalRestore:
        done(None)
        return JournalRestore(self)

    def restore(self, blob: bytes) -> None:
        pairs = [line.split(b" ") for line in blob.split(b"\n") if line]
        self.lines = [(int(index), bytes.fromhex(command.decode())) for index, command in pairs]

    def commands(self) -> list[bytes]:
        return [command for _, command in self.lines]


class JournalRestore:
    def __init__(self, journal: Journal) -> None:
        self._journal, self._blob = journal, b""

    def add(self, data: bytes, done: Done) -> None:
        self._blob += data
        done(None)

    def finish(self, description: bytes, done: Done) -> None:
        self._journal.restore(self._blob)
        done(None)

    def abandon(self) -> None: ...


class Group:
    """Members n0, n1, … of one group, each on a machine of its own."""

    def __init__(self, sim: Simulation, count: int, settings: RaftSettings = SMALL) -> None:
        self.sim, self.settings = sim, settings
        self.names = [f"n{i}" for i in range(count)]
        self.network = RaftNetwork(sim.loop, sim.rng("raft network"))
        self.nodes: dict[str, RaftNode] = {}
        self.machines: dict[str, Journal] = {}
        self.roles: dict[str, list[bool]] = {name: [] for name in self.names}

    def start(self, *names: str) -> None:
        for name in names or self.names:
            self.nodes.pop(name, None)
            self.sim.machine(name).start(self._serve)

    async def _serve(self, machine: Machine) -> None:
        name = machine.host
        journal = self.machines[name] = Journal()
        node = self.nodes[name] = RaftNode(
            node_id=name,
            peers=self.names,
            machine=journal,
            disk=machine.disk("raft"),
            transport=self.network.transport(name),
            settings=self.settings,
            clock=machine.clock,
            rng=machine.rng,
        )
        node.on_role_change = self.roles[name].append
        await node.start()

    async def propose(self, name: str, command: bytes, timeout_s: float = 5.0) -> bytes:
        return await self.sim.machine(name).ask(lambda: self.nodes[name].propose(command, timeout_s=timeout_s))

    async def barrier(self, name: str, timeout_s: float = 5.0) -> None:
        await self.sim.machine(name).ask(lambda: self.nodes[name].read_barrier(timeout_s=timeout_s))

    def leaders(self) -> list[str]:
        return [
            name
            for name in self.names
            if self.sim.machine(name).running and name in self.nodes and self.nodes[name].is_leader
        ]

    async def leader(self, limit_s: float = 20.0) -> str:
        """Waits until somebody leads and is ready."""
        for _ in range(int(limit_s / 0.05)):
            leaders = self.leaders()
            if leaders:
                return max(leaders, key=lambda name: self.nodes[name].term)
            await asyncio.sleep(0.05)
        raise AssertionError(f"nobody leads after {limit_s} s")

    async def caught_up(self, limit_s: float = 20.0) -> None:
        """Waits until all running members have applied the same."""
        for _ in range(int(limit_s / 0.05)):
            running = [name for name in self.names if self.sim.machine(name).running]
            lines = [self.machines[name].lines if name in self.nodes else None for name in running]
            if all(each == lines[0] for each in lines) and self.leaders():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(
            "the members do not catch up: "
            + ", ".join(f"{name} {len(self.machines[name].lines)}" for name in self.names)
        )


def with_core(settings: RaftSettings, core: CoreSettings) -> RaftSettings:
    return replace(settings, core=core)
