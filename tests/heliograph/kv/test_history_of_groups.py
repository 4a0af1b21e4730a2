"""Groups with followers that apply late, drawn at random: no client takes them for another history, whatever server it
moves to; and where their disks are put back, each client does that had heard of something that is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.client_history import AnotherHistory
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.errors import MetadataError
from tests.heliograph.kv.group import Group, simulate

NODES = ("m0", "m1", "m2", "m3")


class Told:
    """One client: what its watch told, the newest value of that, and how often it found another history."""

    def __init__(self, group: Group, name: str) -> None:
        self.name, self.client = name, group.client(name, self._on_another)
        self.shown: dict[str, tuple[bytes, int]] = {}
        self.heard, self.found = -1, 0
        self.client.watch("/k/", self._on_change)

    def _on_change(self, key: str, value: bytes | None, version: int) -> None:
        if value is None:  # whose version a listing of a table that came as a snapshot does not tell
            del self.shown[key]
        else:
            self.heard = max(self.heard, version)
            self.shown[key] = (value, version)

    def _on_another(self, _: AnotherHistory) -> None:
        self.found += 1


class World:
    """A group of which every node passes requests on, and its clients."""

    def __init__(self, sim: Simulation, group: Group) -> None:
        self.sim, self.group, self.rng = sim, group, sim.rng("test")
        self.clients: list[Told] = []
        self.writes: list[asyncio.Task[None]] = []
        self.down: list[str] = []
        for name in NODES:
            group.pass_on(name)

    async def begin(self) -> None:
        for name in ("a", "b", "c"):
            self.clients.append(Told(self.group, name))
            await asyncio.sleep(0.01)  # a session's numbers begin by the clock

    @property
    def up(self) -> list[str]:
        return [name for name in NODES if name not in self.down]

    async def write(self, client: MetaClient) -> None:
        key, value = f"/k/{self.rng.randrange(8)}", self.rng.randbytes(4)
        with suppress(MetadataError):
            match self.rng.randrange(6):
                case 0:
                    await client.delete(key)
                case 1:
                    await client.grant(60_000)
                case 2:
                    await client.put("/beside", value)
                case _:
                    await client.put(key, value)

    def spawn_write(self) -> None:
        told = self.rng.choice(self.clients)
        self.writes.append(asyncio.ensure_future(self.write(told.client)))

    def lead(self, name: str) -> None:
        """It has everything, and its first entry is a leader's own."""
        self.follow(name)
        self.group.elect(name)
        if self.rng.random() < 0.5:
            self.group.log.entries.append(b"")
            self.follow(name)

    def follow(self, name: str) -> None:
        replica = self.group.replica(name)
        replica.lag = False
        self.sim.machine(name).run(replica.catch_up)

    def stop(self, name: str) -> None:
        """A voter or a learner goes; the leader leaves others to stand."""
        if self.group.log.leader == name:
            self.group.log.elect(None)
        self.sim.machine(name).kill()
        self.down.append(name)

    async def start(self, name: str) -> None:
        leader = self.group.log.leader
        self.group.start(name)
        await asyncio.sleep(0.1)
        self.down.remove(name)
        self.group.pass_on(name)
        if self.group.log.leader != leader:  # the first one takes the lead by itself
            self.lead(name)

    async def move(self, told: Told) -> None:
        """It has one server for a while, and may stay there."""
        chosen = self.rng.choice(NODES)
        others = [name for name in NODES if name != chosen]
        for name in others:
            self.sim.network.cut(told.name, name)
            self.sim.network.reset(told.name, name)
        await asyncio.sleep(self.rng.uniform(0, 10))
        for name in others:
            self.sim.network.heal(told.name, name)

    async def step(self) -> None:
        rng, group = self.rng, self.group
        for _ in range(rng.randrange(4)):
            self.spawn_write()
        node = rng.choice(self.up)
        replica = group.replica(node)
        match rng.randrange(9):
            case 0 | 1 if not replica.is_leader:
                replica.lag = True
            case 2:
                self.follow(node)
            case 3 if not replica.is_leader and replica.machine.index < len(group.log.entries) and group.log.leader:
                image = group.replica(group.log.leader).machine.snapshot()
                self.sim.machine(node).run(replica.machine.restore, image)
            case 4:
                group.log.elect(None)
                await asyncio.sleep(rng.uniform(0, 6))
                self.lead(rng.choice(self.up))
            case 5:
                self.lead(node)
            case 6 if len(self.down) < 2:
                self.stop(node)
            case 7 if self.down:
                await self.start(rng.choice(self.down))
            case _:
                await self.move(rng.choice(self.clients))
        if group.log.leader is None and rng.random() < 0.7:
            self.lead(rng.choice(self.up))
        await asyncio.sleep(rng.choice((0, 0.01, 0.1, 2, 6)))

    async def stop_all(self) -> None:
        """Returns when all that they said has come, or is lost."""
        for name in self.up:
            self.stop(name)
        await asyncio.sleep(1)

    async def settle(self) -> None:
        """All follow, something is written, and every client has heard of it."""
        for name in list(self.down):
            await self.start(name)
        await asyncio.gather(*self.writes)
        self.writes.clear()
        self.lead(self.rng.choice(NODES))
        for name in NODES:
            self.follow(name)
        writer = self.group.client("writer")
        await writer.put("/k/last", self.rng.randbytes(4))
        await asyncio.sleep(20)
        there = {key: (value, version) for key, value, version in await writer.range("/k/", "/k0")}
        for told in self.clients:
            assert told.shown == there, told.name
        writer.close()


@pytest.mark.parametrize("seed", range(30))
def test_slow_followers_are_no_other_history(seed: int) -> None:
    async def main(sim: Simulation, group: Group) -> None:
        world = World(sim, group)
        await world.begin()
        for _ in range(40):
            await world.step()
            assert [told.found for told in world.clients] == [0, 0, 0]
        await world.settle()
        assert [told.found for told in world.clients] == [0, 0, 0]

    simulate(main, NODES, seed, stamps=True, limit_s=3000)


@pytest.mark.parametrize("seed", range(30))
def test_whoever_heard_of_what_is_gone_finds_another_history(seed: int) -> None:
    async def main(sim: Simulation, group: Group) -> None:
        world = World(sim, group)
        await world.begin()
        await world.settle()
        for _ in range(3):
            for _ in range(world.rng.randrange(12)):
                await world.step()
            await world.stop_all()
            end = len(group.log.entries)
            kept = world.rng.randrange(max(2, end - 12), end + 1)
            before = [(told.heard, told.client.history.index, told.found) for told in world.clients]
            for told in world.clients:
                told.heard = -1
            del group.log.entries[kept:]
            await world.settle()
            for told, (heard, index, found) in zip(world.clients, before, strict=True):
                assert heard <= index <= end
                assert told.found - found == (index > kept), (told.name, heard, index, kept)

    simulate(main, NODES, seed, stamps=True, limit_s=3000)


@pytest.mark.parametrize("seed", range(30))
def test_a_watch_shows_what_is_there_however_late_its_node_follows_what_was_put_back(seed: int) -> None:
    """Nodes that apply late know of no other history yet, and list what is of the one of before, or begin to."""

    async def main(sim: Simulation, group: Group) -> None:
        world = World(sim, group)
        await world.begin()
        await world.settle()
        for _ in range(world.rng.randrange(12)):
            await world.step()
        await world.stop_all()
        end = len(group.log.entries)
        del group.log.entries[world.rng.randrange(max(2, end - 20), end + 1) :]
        for name in NODES:
            await world.start(name)
            group.replica(name).lag = not group.replica(name).is_leader and world.rng.random() < 0.7
        for _ in range(world.rng.randrange(20)):
            await world.step()
            world.rng.choice(world.clients).client.watch("/k/", lambda key, value, version: None)
        await world.settle()
        assert [told.client.stale_s() for told in world.clients] == [0, 0, 0]

    simulate(main, NODES, seed, stamps=True, limit_s=3000)
