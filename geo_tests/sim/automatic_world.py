"""AutomaticWorld: regions whose namespace fails over by itself, and every reason to move it wrongly, twice, or never.

Is: brokers with the real `WriteLeases`, `AutomaticFailover`, and `Conductor`, over a store of the configuration; links
between regions that are cut and flap, regions that fall silent, alone or two of them, brokers that stand still and go
on, or are started anew, monotonic clocks that run fast and slow, wall clocks of one region that are wrong, an operator
who moves the namespace, too. Isn't: messages, or a whole instance (`conducted_world`).
Rules: who confirms is in the active region (`LeadershipWorld`). An operation begins by itself only where the active
region had no lease for as long as was wanted, and most of the others heard nothing of it for as long. Between a move,
of whatever kind, and the next one by itself lies the hold. In the end a region that falls silent is failed over from,
once, and by one operation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from geo_tests.sim.leadership import Broker, DriftingClock, LeadershipWorld
from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.leadership import LEADERSHIP, OPEN, WRITERS, Leadership
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.leadership.write_leases import LeaseSettings
from region_node.dr.operations.automatic_failover import AutomaticFailover
from region_node.dr.operations.automatic_policy import BY, Automatic, automatic
from region_node.dr.operations.operation import FAILOVER, Operation, StepAges, operation_key
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.silent_regions import SilentRegions
from replicator.health.incoming_stats import Heard, IncomingStats

NS = "t/orders"
AFTER_S, HOLD_S = 10.0, 150.0
FAST, SLOW = 1.08, 0.92
_LATE_S = 14.0
"""A vote stands for so long after its broker was cut off, or stood still; what was read was true so long ago."""
_BEAT_S = 0.5
_WRONG_MS = (0, 86_400_000, -86_400_000, 3_600_000)


class Moved(AssertionError):
    """A namespace was moved that should have stayed, or stayed where it should have been moved."""


class WrongClock(DriftingClock):
    """Its wall clock is wrong, by what a test says."""

    wrong_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.wrong_ms


class Span:
    """Since when something is so, and when it was so last for how long."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._before = (0.0, float("-inf"))

    def set(self, so: bool) -> None:
        now = asyncio.get_running_loop().time()
        if so and self.since is None:
            self.since = now
        elif not so and self.since is not None:
            self._before, self.since = (now - self.since, now), None

    def lasted_s(self) -> float:
        """Now, or until shortly before."""
        now = asyncio.get_running_loop().time()
        long_s, ended = self._before
        return max(0.0 if self.since is None else now - self.since, long_s if now - ended < _LATE_S else 0.0)


class Deciding(Broker):
    """One life of a broker that fails namespaces over by itself."""

    def __init__(self, world: AutomaticWorld, region: str, name: str, settings: LeaseSettings) -> None:
        super().__init__(world, region, name, settings)
        self.clock = WrongClock(world.rng.uniform(SLOW, FAST))
        self.clock.wrong_ms = world.wrong_ms if region == world.wrong else 0
        self.leases._clock, self.leases.core.now = self.clock, self.clock.monotonic
        self.incoming = IncomingStats()
        for other in world.regions:
            if other != region:
                self.incoming.region(other).on.append(Heard(self.clock.monotonic))
        ages = StepAges(self.clock.monotonic)

        async def facts_of(asked: str, _: str) -> dict[str, Any]:
            if asked != region and world.is_cut(region, asked):
                raise MetadataUnavailable(f"{asked} does not answer")
            return world.facts(asked)

        async def nobody(*_: Any) -> dict[str, Any]:
            raise NotAllowed("nobody counts here")

        def conductor(store: MetadataStore) -> Conductor:
            return Conductor(store, world, facts_of=facts_of, counts_of=nobody, wall_ms=self.clock.wall_ms, ages=ages)

        self.conductor = lambda: conductor(self.far)
        self.silent = SilentRegions(self.leases, self.incoming, region=region, clock=self.clock)
        self.automatic = AutomaticFailover(
            self.leases,
            self.silent,
            conductor,
            region=region,
            regions_of=lambda _: world.regions,
            clock=self.clock,
            told=world.told,
        )

    def beat(self, source: str) -> None:
        """Something of that region came."""
        if self.far.running.is_set() and not self.dead:
            for heard in self.incoming.region(source).on:
                heard.bytes()


class AutomaticWorld(LeadershipWorld):
    names = (NS,)

    def __init__(self, seed: int, regions: Sequence[str] = ("us", "eu", "ap"), **wanted: Any) -> None:
        """wanted: of `Automatic`."""
        super().__init__(seed)
        self.regions = tuple(regions)
        self.wanted = Automatic(**{"after_s": AFTER_S, "hold_s": HOLD_S, **wanted})
        self.wrong, self.wrong_ms = self.rng.choice(self.regions), self.rng.choice(_WRONG_MS)
        self.cut: set[tuple[str, str]] = set()
        """(one, the other) by name: nothing goes between these regions."""
        self.events: list[dict[str, Any]] = []
        self._flips: list[tuple[float, int]] = []
        self._begun: dict[int, None] = {}
        self._silence = {(to, source): Span() for to in self.regions for source in self.regions if to != source}
        self._without = {region: Span() for region in self.regions}

    def run(self, seconds: float = 300.0) -> None:
        """Raises Confirmed, Moved."""
        run_alone(self._main(seconds), limit_s=seconds + 900.0)

    # -- what a conductor asks -----------------------------------------------------------------------------------------

    def region(self, name: str) -> RegionInfo | None:
        return RegionInfo(name=name, number=1 + self.regions.index(name))

    def namespace(self, name: str) -> NamespacePolicies | None:
        return NamespacePolicies(regions=self.regions) if name == NS else None

    def facts(self, region: str) -> dict[str, Any]:
        others = [other for other in self.regions if other != region]
        lack = {"connected": True, "messages": 0, "bytes": 0, "age_s": 0.0, "age_s_max": 0.0, "silent_s": 0.0}
        topic = {"vector": {}, "links": {}, "lacks": dict.fromkeys(others, lack), "subscriptions": {}, "producers": 0}
        return {"region": region, "missing": [], "topics": {f"persistent://{NS}/x": topic}}

    def told(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.count(str(event["event"]))

    # -- links ---------------------------------------------------------------------------------------------------------

    def is_cut(self, one: str, other: str) -> bool:
        return (min(one, other), max(one, other)) in self.cut

    def set_cut(self, one: str, other: str, cut: bool) -> None:
        (self.cut.add if cut else self.cut.discard)((min(one, other), max(one, other)))

    def silence(self, region: str, silent: bool) -> None:
        """Neither other regions nor the configuration are in its reach."""
        for other in self.regions:
            if other != region:
                self.set_cut(region, other, silent)
        for broker in self.brokers:
            if broker.region == region:
                broker.far.cut = silent

    async def _beat(self) -> None:
        while True:
            for (to, source), span in self._silence.items():
                span.set(self.is_cut(to, source))
                if not self.is_cut(to, source):
                    for broker in self.brokers:
                        if broker.region == to:
                            broker.beat(source)  # type: ignore[attr-defined]
            await asyncio.sleep(_BEAT_S)

    # -- the rules -----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        self.store.watch(LEADERSHIP, self._on_leadership)
        self.store.watch(WRITERS, self._on_writer)
        self.store.watch(operation_key(NS), self._on_operation)

    def _on_writer(self, key: str, value: bytes | None, version: int) -> None:
        region = key.removeprefix(WRITERS).partition("/")[0]
        self._without[region].set(not self.store.machine.under(f"{WRITERS}{region}/"))

    def _on_operation(self, _key: str, value: bytes | None, _version: int) -> None:
        op = None if value is None else Operation.decode(value)
        if op is None or op.by != BY or op.id in self._begun:
            return
        self._begun[op.id] = None
        self.count("begun")
        least_s = self.wanted.after_s / FAST - 3.0
        if self._without[op.source].lasted_s() < least_s:
            self._fail(f"{op.source} has had leases, and is failed away from")
        others = [region for region in self.regions if region != op.source]
        silent = [region for region in others if self._silence[region, op.source].lasted_s() >= least_s]
        if 2 * len(silent) <= len(others):
            self._fail(f"{op.source} is failed away from, and of {others} only {silent} have heard nothing of it")

    def _on_leadership(self, _key: str, value: bytes | None, _version: int) -> None:
        record, now = None if value is None else Leadership.decode(value), asyncio.get_running_loop().time()
        if record is None or (self._flips and record.epoch == self._flips[-1][1]):
            return
        found = self.store.machine.get(operation_key(NS))
        op = None if found is None else Operation.decode(found[0])
        if op is not None and op.by == BY and len(self._flips) > 1 and now - self._flips[-1][0] < self.wanted.hold_s:
            self._fail(f"moved by itself {now - self._flips[-1][0]:.1f} s after it was moved, and is to stay")
        self._flips.append((now, record.epoch))
        self.count("moved by itself" if op is not None and op.by == BY else "moved")

    def _fail(self, text: str) -> None:
        self._failure = self._failure or Moved(text)

    # -- the run -------------------------------------------------------------------------------------------------------

    def broker(self, region: str, name: str) -> Broker:
        return Deciding(self, region, name, self.settings)

    async def _start(self, region: str, name: str) -> None:
        await super()._start(region, name)
        broker = self.brokers[-1]
        assert isinstance(broker, Deciding)
        await broker.automatic.start()

    async def _main(self, seconds: float) -> None:
        self.store = EmbeddedStore()
        self.watch()
        switching = Switching(self.store, lambda: 0)
        await switching.begin(NS, self.regions[0], {})
        await self.store.put(automatic(NS), self.wanted.encode())
        for region in self.regions:
            for index in range(2):
                await self._start(region, f"{region}-{index}")
        beats = asyncio.get_running_loop().create_task(self._beat())
        self.spawn(self._operator())
        loop = asyncio.get_running_loop()
        next_trouble = loop.time() + 10.0
        end = loop.time() + seconds
        while loop.time() < end and self._failure is None:
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))
            for broker in self.brokers:
                broker.publish(NS)
            if loop.time() >= next_trouble:
                next_trouble = loop.time() + self.rng.choice((2.0, 15.0, 45.0))
                await self._trouble()
        if self._failure is None:
            await self._last()
        beats.cancel()
        for task in [*self._tasks]:
            task.cancel()
        for broker in self.brokers:
            broker.dead = True
            broker.far.running.set()
            await broker.automatic.stop()  # type: ignore[attr-defined]
            await broker.effective.stop()
            await broker.leases.stop()
        if self._failure is not None:
            raise self._failure

    async def _trouble(self) -> None:
        rng, loop = self.rng, asyncio.get_running_loop()
        region, broker = rng.choice((self.truth(NS).active, *self.regions)), rng.choice(self.brokers)
        other = rng.choice([name for name in self.regions if name != region])
        lasts_s = rng.choice((2.0, 8.0, 30.0, 60.0))
        match rng.randrange(10):
            case 0 | 1 | 8 | 9:
                self.silence(region, True)
                loop.call_later(lasts_s, self.silence, region, False)
            case 2:  # two of three: the configuration has no majority without them
                self.store.unavailable = "no majority"
                for name in (region, other):
                    self.silence(name, True)
                    loop.call_later(lasts_s, self.silence, name, False)
                loop.call_later(lasts_s, setattr, self.store, "unavailable", None)
            case 3:
                self.spawn(self._flap(region, other))
            case 4:
                self.set_cut(region, other, True)
                loop.call_later(lasts_s, self.set_cut, region, other, False)
            case 5:  # it is heard, and does not reach the configuration
                for one in self.brokers:
                    if one.region == region:
                        one.far.cut = True
                        loop.call_later(lasts_s, setattr, one.far, "cut", False)
            case 6:
                broker.far.running.clear()
                loop.call_later(rng.choice((1.0, 4.0, 20.0)), broker.far.running.set)
            case _ if len(self.brokers) < 14:
                broker.dead = True
                await broker.automatic.stop()  # type: ignore[attr-defined]
                await broker.effective.stop()
                self.spawn(broker.leases.stop())
                await self._start(broker.region, f"{broker.name}n")
                self.brokers.remove(broker)

    async def _flap(self, one: str, other: str) -> None:
        for _ in range(self.rng.randrange(4, 20)):
            self.set_cut(one, other, not self.is_cut(one, other))
            await asyncio.sleep(self.rng.uniform(0.5, 6.0))
        self.set_cut(one, other, False)

    async def _operator(self) -> None:
        """Fails over now and then, and leaves what does not go."""
        while True:
            await asyncio.sleep(self.rng.uniform(60.0, 300.0))
            conductor = self.rng.choice(self.brokers).conductor()  # type: ignore[attr-defined]
            with contextlib.suppress(HeliographError):
                op = await conductor.begin(FAILOVER, NS, self.rng.choice(self.regions), "operator")
                for _ in range(30):
                    op = await conductor.advance(NS)
                    await asyncio.sleep(0.5)
                if op.running and op.by == "operator":
                    await conductor.cancel(NS)

    async def _last(self) -> None:
        """Everything is well, and nothing holds the namespace any more; then the active region falls silent: another
        one is the active one, by one operation; and it stays that while the hold lasts, also where it falls silent.
        """
        for task in [*self._tasks]:
            task.cancel()
        self.cut.clear()
        self.store.unavailable = None
        for broker in self.brokers:
            broker.far.cut = False
            broker.far.running.set()
        await asyncio.sleep(20)
        for region in self.regions:
            await self._start(region, f"{region}-new")
        await self._settled()
        await asyncio.sleep(self.wanted.hold_s + 20)
        before, lost = self.counts["moved by itself"], self.truth(NS).active
        self.silence(lost, True)
        for _ in range(100):
            await asyncio.sleep(2.0)
            truth, found = self.truth(NS), self.store.machine.get(operation_key(NS))
            if truth.active != lost and found is not None and not Operation.decode(found[0]).running:
                break
        if truth.active == lost or truth.state != OPEN or self.counts["moved by itself"] != before + 1:
            said = {one.name: one.automatic.said for one in self.brokers}  # type: ignore[attr-defined]
            raise Moved(f"{lost} is lost, and {truth}: {self.counts}, {said}")
        assert found is not None
        op = Operation.decode(found[0])
        if op.running or op.by != BY or not op.report["automatic"]["said_by"] or "after" not in op.report:
            raise Moved(f"it does not say who did what, and why: {op}")
        if not any(broker.open(NS) for broker in self.brokers if broker.region == truth.active):
            raise Moved(f"nobody takes messages in {truth.active}")
        self.silence(lost, False)
        await asyncio.sleep(20)
        self.silence(truth.active, True)
        await asyncio.sleep(self.wanted.after_s + 45)
        if self.truth(NS) != truth:
            raise Moved(f"it is held, and was moved all the same: {self.truth(NS)}")

    async def _settled(self) -> None:
        """What is under way ends, as an operator would end it."""
        conductor = self.brokers[-1].conductor()  # type: ignore[attr-defined]
        for _ in range(100):
            op, _ = await conductor.operation(NS)
            if op is None or not op.running:
                return
            with contextlib.suppress(HeliographError):
                await conductor.advance(NS)
            await asyncio.sleep(0.5)
        raise Moved(f"an operation does not end: {op}")


def run_automatic(seed: int, regions: Sequence[str] = ("us", "eu", "ap"), seconds: float = 300.0) -> AutomaticWorld:
    """Raises Moved, Confirmed."""
    world = AutomaticWorld(seed, regions)
    world.run(seconds)
    return world
