"""One of two regions is lost, or cut off, the other is told to decide alone and fails over, and the lost one comes back
at a bad moment: two regions never confirm under overlapping leases, and the lost one takes the leadership again.

The configuration's nodes, and the brokers' leases, are the real ones; a forced quorum is let through at once, so that
nothing but the rules of leases stands between the two regions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from geo_tests.sim.leadership import Confirmed, DriftingClock
from geo_tests.sim.simulation import Simulation
from global_config.node import ConfigNodeSettings
from global_config.voters.forced_quorum import STOPPED
from heliograph.kv.server.leases import LeaseDeadlines
from heliograph.model.configuration.leadership import FENCED, Leadership, leadership
from heliograph.model.errors import HeliographError, NotAllowed, RegionPassive
from region_node.dr.leadership.effective_leaderships import EffectiveLeaderships
from region_node.dr.leadership.leadership_changes import Switching, closing
from region_node.dr.leadership.write_leases import WriteLeases
from tests.broken_rules import BrokenRules
from tests.global_config.config_instance import Instance, simulate

TWO = ("eu", "us")
THREE = ("eu", "oslo", "us")
LEASE_S = 7.0
"""After so long without a renewal nobody confirms, whatever its clock does."""
NAMESPACE = "t/orders"


class Broker:
    """A broker of a region, with the real leases, by its region's configuration node."""

    def __init__(self, world: World, region: str) -> None:
        self.world, self.region = world, region
        client = world.instance.clients[region]
        clock = DriftingClock(world.rng.uniform(0.95, 1.05))
        name = f"{region}-0"
        self.leases = WriteLeases(
            client, region=region, broker=name, clock=clock, url_of=lambda found: found, beside=lambda: [name]
        )
        self.effective = EffectiveLeaderships(self.leases.core, client, lambda _: TWO, clock)

    def publish(self) -> None:
        gate = self.leases.gate(NAMESPACE)
        if gate is None:
            return
        entered = gate.enter(lambda _: self.world.confirmed(self.region), lambda _: None)
        if isinstance(entered, RegionPassive):
            self.world.seen[f"refused in {self.region}"] += 1
        else:
            later = self.world.rng.choice((0.0, 0.05, 1.0, 5.0))
            asyncio.get_running_loop().call_later(later, lambda: entered.done([(1, 1, 1)]))

    async def stop(self) -> None:
        await self.effective.stop()
        await self.leases.stop()

    def open(self) -> bool:
        gate = self.leases.gate(NAMESPACE)
        return gate is not None and gate.open


class World:
    def __init__(self, sim: Simulation, instance: Instance) -> None:
        self.sim, self.instance, self.rng = sim, instance, sim.rng("forced")
        self.seen: Counter[str] = Counter()
        self.brokers: list[Broker] = []
        self.apart = False
        """The others go on in a history of their own, since an operator was wrong."""
        self._wrong: Confirmed | None = None

    def confirmed(self, region: str) -> None:
        if self.apart and region == "us":
            self.seen["confirmed beside eu"] += 1
            return
        found = self.instance.nodes["eu"].machine.get(leadership(NAMESPACE))
        assert found is not None
        if (active := Leadership.decode(found[0]).active) != region:
            self._wrong = Confirmed(f"{region} confirms, and {active} is the active region")
        self.seen[f"confirmed in {region}"] += 1

    def check(self) -> None:
        if self._wrong is not None:
            raise self._wrong

    async def until(self, what: str, done: Any, limit_s: float = 90.0) -> None:
        for _ in range(int(limit_s / 0.1)):
            self.check()
            if done():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"never: {what}")

    async def publish(self) -> None:
        while True:
            for broker in self.brokers:
                broker.publish()
            await asyncio.sleep(self.rng.uniform(0.05, 0.5))

    async def again(self, work: Any) -> Any:
        """Until it is not refused, and does not fail."""
        for _ in range(400):
            self.check()
            try:
                if (found := await work()) is not None:
                    return found
            except (HeliographError, TimeoutError):
                pass
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))
        raise AssertionError("it is refused for ever")

    async def run(self, story: str) -> None:
        instance = self.instance
        await self.again(lambda: Switching(instance.clients["us"], lambda: 0).begin(NAMESPACE, "us", {}))
        for region in TWO:
            await self._start(region)
        publishing = asyncio.get_running_loop().create_task(self.publish())
        try:
            await self.until("us is active", lambda: self.brokers[1].open())
            await asyncio.sleep(self.rng.uniform(5, 12))
            await (self._lost() if story == "lost" else self._not_lost())
            self.check()
        finally:
            publishing.cancel()
            for broker in self.brokers:
                await broker.stop()

    async def _start(self, region: str) -> None:
        broker = Broker(self, region)
        self.brokers.append(broker)
        await broker.leases.start()
        await broker.effective.start()

    async def _not_lost(self) -> None:
        """The lost ones were a majority, and were not stopped: eu alone is cut off. They end once they meet."""
        self.instance.mesh.isolate("eu")
        await asyncio.sleep(self.rng.uniform(1, 4))
        self.apart = True
        assert await self._forced("oslo,us", STOPPED)
        eu = Switching(self.instance.clients["eu"], lambda: 0)
        await self.again(lambda: eu.begin(NAMESPACE, "eu", {}))
        await self.until("eu is active", lambda: self.brokers[0].open())
        await asyncio.sleep(self.rng.uniform(1, 10))
        self.instance.mesh.heal()
        await asyncio.sleep(LEASE_S + 5)
        self.apart = False
        await asyncio.sleep(10)
        for member in ("us", "oslo"):
            await self.again(lambda member=member: self._rejoined(member))
        old = self.brokers.pop()
        await old.stop()  # what it has heard is of the other history
        self.instance.clients["us"] = self.instance.client("us")
        await self._start("us")
        await self._moved("us")

    async def _moved(self, to: str) -> None:
        switching = Switching(self.instance.clients["eu"], lambda: 0)
        await self.again(lambda: switching.change(NAMESPACE, lambda old: closing(old, to, FENCED, 0)))

        async def flipped() -> Leadership | None:
            return (await switching.flip(NAMESPACE, to, regions=()))[0]

        await self.again(flipped)
        await self.until(f"{to} is active", lambda: self.brokers[TWO.index(to)].open())

    async def _lost(self) -> None:
        back = self._lose()
        await asyncio.sleep(self.rng.uniform(0.2, 3))
        asyncio.get_running_loop().call_later(self.rng.choice((0.5, 3.0, 6.0, 9.0, 20.0)), back)
        if not await self._forced("us"):
            self.seen["came back first"] += 1
            back()
            return
        self.seen["forced"] += 1
        await self._moved("eu")
        await asyncio.sleep(21)
        self.check()
        us = self.instance.nodes["us"].raft
        assert us.holds_nothing if self.seen["emptied"] else us.standing.superseded
        await self.again(lambda: self._rejoined("us"))
        await self._moved("us")
        await asyncio.sleep(5)

    def _lose(self) -> Any:
        """Returns what brings it back."""
        sim, instance = self.sim, self.instance
        match self.rng.randrange(4):
            case 0 | 1 as kind:
                sim.machine("us").power_cut()
                if kind:
                    sim.machine("us").platters().clear()
                    self.seen["emptied"] += 1
                return lambda: None if sim.machine("us").running else instance.start("us")
            case 2:
                instance.mesh.isolate("us")
            case _:
                instance.mesh.cut.add(("us", "eu"))
                instance.mesh.cut.add(("eu", "us")) if self.rng.random() < 0.5 else None
        return instance.mesh.heal

    async def _forced(self, lost: str, said: str = "") -> bool:
        eu = self.instance.clients["eu"]
        for _ in range(60):
            self.check()
            try:
                await eu.members("force", lost, said)
                return True
            except (HeliographError, TimeoutError):
                await asyncio.sleep(self.rng.uniform(0.05, 0.4))
        return False

    async def _rejoined(self, member: str) -> bool | None:
        machine, eu = self.sim.machine(member), self.instance.clients["eu"]
        if machine.running and self.instance.nodes[member].raft.failed is not None:
            machine.power_cut()
            self.instance.start(member)
        try:
            await eu.members("rejoin", member)
        except NotAllowed:
            return None
        return True


def run(seed: int, story: str = "lost") -> Counter[str]:
    """What was seen how often. Raises Confirmed, or AssertionError where something never happens."""
    seen: Counter[str] = Counter()

    def main(sim: Simulation, instance: Instance) -> Coroutine[Any, Any, None]:
        world = World(sim, instance)
        world.seen = seen
        return world.run(story)

    regions = TWO if story == "lost" else THREE
    simulate(main, seed, regions, ConfigNodeSettings(forced_heard_s=0.5))
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_a_lost_region_that_comes_back_at_a_bad_moment_confirms_nothing_beside_the_forced_one(
    seed: int,
) -> None:
    seen = run(seed)
    assert seen["confirmed in us"] > 20 and (seen["came back first"] or seen["confirmed in eu"] > 20), seen


@pytest.mark.parametrize("seed", range(3))
def test_a_majority_that_was_not_stopped_ends_once_the_two_histories_meet(seed: int) -> None:
    seen = run(seed, "not lost")
    assert seen["confirmed beside eu"] > 10 and seen["confirmed in eu"] > 20 and seen["refused in us"] > 20, seen


def test_it_is_needed_that_leases_are_waited_for(broken: BrokenRules) -> None:
    def lead(self: LeaseDeadlines, leases: Any, now: float) -> None:
        original(self, leases, now)
        self._deadlines = dict.fromkeys(self._deadlines, now)

    original = LeaseDeadlines.lead
    broken.setattr(LeaseDeadlines, "lead", lead)
    broken.look(lambda seed: run(seed), range(12), Confirmed)
