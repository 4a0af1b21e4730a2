"""LeadershipWorld: brokers of several regions with the real `WriteLeases`, a store of the configuration, and every
reason to confirm what they should not.

Is: cuts, late and lost answers, brokers that stop and go on (with what they had waiting), brokers that are started anew
beside their earlier life, clocks that run fast and slow, switchovers, failovers, cancellations; and the one rule, asked
at each confirmation. Isn't: messages or regions' other parts.
The rule: who confirms is in the region that the configuration calls the active one *at that moment*. So no two regions
confirm under overlapping leases.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, WatchCallback
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.configuration.leadership import (
    DRAINING,
    FENCED,
    OPEN,
    Leadership,
    leadership,
    name_of,
    subscription_name,
    writer,
)
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, OutcomeUnknown, RegionPassive
from region_node.dr.leadership.effective_leaderships import EffectiveLeaderships
from region_node.dr.leadership.leadership_changes import Switching, closing, reopened
from region_node.dr.leadership.write_leases import LeaseSettings, WriteLeases

T = TypeVar("T")
NAMESPACES = ("t/orders", "t/bills")
SUBSCRIPTIONS = (subscription_name("persistent://t/n/orders", "s"), subscription_name("persistent://t/n/bills", "s"))
TIMEOUT_S = 3.0


class Confirmed(AssertionError):
    """A broker confirmed what it must not."""


class DriftingClock:
    """rate: seconds that it counts in a true one."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * self._rate

    def wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


class FarStore:
    """A store beyond a network: late, and while `cut` out of reach. While `stopped` nothing that comes back is
    handled.
    """

    def __init__(self, inner: EmbeddedStore, rng: random.Random) -> None:
        self._inner, self._rng = inner, rng
        self._heard: dict[str, asyncio.Queue[tuple[str, bytes | None, int]]] = {}
        self._begun: set[str] = set()
        """Prefixes whose first copy was given out: it is the region's own, and there at once."""
        self.cut = False
        self.running = asyncio.Event()
        self.running.set()

    async def _far(self, act: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        if self.cut:
            await asyncio.sleep(TIMEOUT_S)
            raise MetadataUnavailable("cut off")
        answer = await act()
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 0.5, 2.0)))
        lost = self.cut
        await self.running.wait()
        if lost:
            raise OutcomeUnknown("the answer was lost")
        return answer

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return await self._far(lambda: self._inner.get(key))

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self._far(lambda: self._inner.put(key, value, expected=expected, lease=lease))

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        return await self._far(lambda: self._inner.delete(key, expected=expected))

    async def txn(self, ops: Sequence[Op]) -> int:
        return await self._far(lambda: self._inner.txn(ops))

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        return await self._far(lambda: self._inner.range(start, end, limit=limit))

    @property
    def range_limit(self) -> int:
        return self._inner.range_limit

    async def next_ids(self, counter: str, count: int = 1, *, at_least: int = 0) -> int:
        return await self._far(lambda: self._inner.next_ids(counter, count, at_least=at_least))

    async def grant(self, ttl_ms: int) -> int:
        return await self._far(lambda: self._inner.grant(ttl_ms))

    async def renew(self, lease: int) -> None:
        await self._far(lambda: self._inner.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._far(lambda: self._inner.revoke(lease))

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        """Changes come in order, late, and not at all while it is cut off or stopped; then all of them."""
        heard = self._heard[prefix] = asyncio.Queue()
        task = asyncio.get_running_loop().create_task(self._deliver(prefix, callback))
        stop = self._inner.watch(prefix, lambda *change: heard.put_nowait(change))

        def end() -> None:
            stop()
            task.cancel()

        return end

    async def _deliver(self, prefix: str, callback: WatchCallback) -> None:
        heard = self._heard[prefix]
        while True:
            change = await heard.get()
            if prefix in self._begun:
                await asyncio.sleep(self._rng.choice((0.0, 0.2, 1.0, 4.0)))
            while self.cut or not self.running.is_set():
                await self.running.wait()
                await asyncio.sleep(0.1)
            callback(*change)
            heard.task_done()

    async def synced(self, prefix: str) -> None:
        await self._inner.synced(prefix)
        await self._heard[prefix].join()
        self._begun.add(prefix)

    def stale_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._inner.close()


class Broker:
    """One life of one broker."""

    def __init__(self, world: LeadershipWorld, region: str, name: str, settings: LeaseSettings) -> None:
        self.world, self.region, self.name = world, region, name
        rng = world.rng
        self.far = FarStore(world.store, rng)
        self.clock = DriftingClock(rng.uniform(0.92, 1.08))
        self.dead = self.started = self.stopped = False
        self.leases = WriteLeases(
            self.far,
            region=region,
            broker=name,
            clock=self.clock,
            url_of=lambda found: f"pulsar://{found}",
            beside=lambda: world.names_in(region),
            settings=settings,
        )
        self.leases.on_change(self.changed)
        self.effective = EffectiveLeaderships(self.leases.core, self.far, lambda _: world.regions, self.clock)

    def changed(self, namespace: str) -> None:
        """The leadership is another one."""

    def publish(self, namespace: str) -> None:
        gate = self.leases.gate(namespace)
        if self.dead or not self.started:
            return
        if gate is None:
            self.unaware(namespace)
            return
        entered = gate.enter(lambda _: self.world.confirmed(self, namespace), lambda _: self.world.count("failed"))
        if isinstance(entered, RegionPassive):
            self.world.count("refused")
            return
        self.world.count("taken")
        delay = self.world.rng.choice((0.0, 0.05, 1.0, 5.0))
        asyncio.get_running_loop().call_later(delay, lambda: self.world.spawn(self._durable(entered)))

    def open(self, namespace: str) -> bool:
        gate = self.leases.gate(namespace)
        return gate is not None and gate.open

    def unaware(self, namespace: str) -> None:
        """It has not heard of any leadership, and does as if there were none. (The topics of an earlier life are taken
        by the next one, and fenced.)
        """
        last = [other for other in self.world.brokers if other.name == self.name and other.started][-1]
        if self.far.running.is_set() and last is self and not self.stopped:
            self.world.confirmed_unaware(self, namespace)

    async def _durable(self, entered: Any) -> None:
        """The ack quorum is reached; a broker that was stopped sees that when it goes on."""
        await self.far.running.wait()
        if not self.dead:
            entered.done([(1, 1, 1)])


class LeadershipWorld:
    names = NAMESPACES

    def __init__(self, seed: int, settings: LeaseSettings | None = None) -> None:
        self.rng = random.Random(seed)
        self.settings = settings or LeaseSettings()
        self.counts: Counter[str] = Counter()
        self.by_region: Counter[str] = Counter()
        self.store: EmbeddedStore
        self.brokers: list[Broker] = []
        self.regions = ("us", "eu", "ap")[: self.rng.choice((2, 3))]
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self.healing = False

    def run(self, seconds: float = 150.0) -> None:
        """Raises Confirmed, or AssertionError where nothing goes on once everything is healed."""
        run_alone(self._main(seconds), limit_s=seconds + 300.0)

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error

    def watch(self) -> None:
        """Before anything happens: what is to be heard of the store itself."""

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def confirmed(self, broker: Broker, namespace: str) -> None:
        truth = self.truth(namespace)
        if truth.active != broker.region:
            raise Confirmed(
                f"{broker.name} of {broker.region} confirms in {namespace}, which is active in {truth.active} under "
                f"epoch {truth.epoch}"
            )
        self.count("confirmed")
        self.by_region[broker.region] += 1

    def confirmed_unaware(self, broker: Broker, namespace: str) -> None:
        """Before the first flip that is no fault: the leadership is not effective yet."""
        found = self.store.machine.get(leadership(namespace))
        if found is not None and (record := Leadership.decode(found[0])).epoch > 1 and record.active != broker.region:
            raise Confirmed(
                f"{broker.name} of {broker.region} has never heard of {namespace}, and confirms, though it was flipped "
                f"to {record.active} under epoch {record.epoch}"
            )
        self.count("confirmed unaware" if found is not None else "confirmed before it was made")

    def names_in(self, region: str) -> list[str]:
        """As the region's own metadata says it, which is no part of this world."""
        return sorted({broker.name for broker in self.brokers if broker.region == region})

    def truth(self, namespace: str) -> Leadership:
        found = self.store.machine.get(leadership(namespace))
        assert found is not None
        return Leadership.decode(found[0])

    async def _main(self, seconds: float) -> None:
        self.store = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        self.watch()
        switching = Switching(self.store, lambda: 0)
        first, late = self.names
        await switching.begin(first, self.rng.choice(self.regions), {})
        for region in self.regions:
            for index in range(2):
                await self._start(region, f"{region}-{index}")
        self.spawn(self._begin_late(switching, late, seconds / 3))
        far = Switching(FarStore(self.store, self.rng), lambda: 0)
        for _ in range(2):
            self.spawn(self._operate(far))
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and self._failure is None:
            await asyncio.sleep(self.rng.uniform(0.02, 0.4))
            for broker in self.brokers:
                broker.publish(self.rng.choice(self.names))
            if self.rng.random() < 0.06:
                await self._disturb()
        await self._heal(switching)
        for task in [*self._tasks]:
            task.cancel()
        for broker in self.brokers:
            broker.dead = True
            broker.far.running.set()
            await broker.effective.stop()
            await broker.leases.stop()
        if self._failure is not None:
            raise self._failure

    async def _begin_late(self, switching: Switching, name: str, within_s: float) -> None:
        """In the middle of everything, so that somebody who is cut off does not hear of it."""
        await asyncio.sleep(self.rng.uniform(0, within_s))
        await switching.begin(name, self.rng.choice(self.regions), {})

    def broker(self, region: str, name: str) -> Broker:
        return Broker(self, region, name, self.settings)

    async def _start(self, region: str, name: str) -> None:
        broker = self.broker(region, name)
        self.brokers.append(broker)
        await broker.leases.start()
        broker.started = True
        await broker.effective.start()

    async def _disturb(self) -> None:
        broker = self.rng.choice(self.brokers)
        match self.rng.randrange(6):
            case 0:
                broker.far.cut = not broker.far.cut
            case 1:
                for other in self.brokers:
                    if other.region == broker.region:
                        other.far.cut = True
            case 2:
                for other in self.brokers:
                    other.far.cut = False
            case 3:
                broker.far.running.clear()
                asyncio.get_running_loop().call_later(self.rng.choice((1.0, 4.0, 12.0)), broker.far.running.set)
            case 4 if len(self.brokers) < 10:  # started anew, while its earlier life may still be about
                broker.far.running.clear()
                asyncio.get_running_loop().call_later(self.rng.choice((2.0, 9.0)), broker.far.running.set)
                await self._start(broker.region, broker.name)
            case _:
                if self.rng.random() < 0.1:
                    broker.stopped = True
                    self.spawn(broker.leases.stop())

    async def _operate(self, switching: Switching) -> None:
        """An operator who does things by halves."""
        while True:
            namespace, to = self.rng.choice(self.names), self.rng.choice(self.regions)
            state = self.rng.choice((DRAINING, FENCED))
            try:
                match self.rng.randrange(4):
                    case 0:
                        await switching.change(namespace, lambda old, to=to, state=state: closing(old, to, state, 0))  # type: ignore[misc]
                    case 1 if self.rng.random() < 0.3:
                        await switching.change(namespace, lambda old: reopened(old, 0))
                    case _:
                        to = (await switching.get(namespace))[0].to
                        new, _ = await switching.flip(namespace, to, regions=self.regions)
                        self.count("flips" if new is not None else "waited")
            except NotAllowed:
                pass
            except HeliographError:
                self.count("unlucky")
            await asyncio.sleep(self.rng.uniform(0.05, 2.0))

    async def _heal(self, switching: Switching) -> None:
        """Once everything is back, each namespace confirms again."""
        if self._failure is not None:
            return
        self.healing = True
        for task in [*self._tasks]:
            task.cancel()
        for broker in self.brokers:
            broker.far.cut = False
            broker.far.running.set()
        await asyncio.sleep(20)
        for region in self.regions:
            await self._start(region, f"{region}-new")
        for namespace in self.names:
            await switching.change(namespace, lambda old: replace(old, state=OPEN, to=""))
        await asyncio.sleep(20)
        for namespace in self.names:
            open_in = {broker.region for broker in self.brokers if broker.open(namespace)}
            assert open_in == {self.truth(namespace).active}, (
                f"{namespace}: open in {open_in}, active in {self.truth(namespace)}"
            )


class Consuming(Broker):
    """One life of a broker with consumers: messages go out one by one, and are acknowledged late, or never."""

    def __init__(self, world: LeadershipWorld, region: str, name: str, settings: LeaseSettings) -> None:
        self.held: Counter[str] = Counter()
        super().__init__(world, region, name, settings)

    def publish(self, namespace: str) -> None:
        """A message is there: it is handed out, if this region may."""
        gate = self.leases.subscription_gate(namespace)
        if gate is None or self.dead or not self.far.running.is_set():
            return
        gate.outstanding = lambda: self.held[namespace]
        if not gate.open:
            self.world.count("waited for its leadership")
            return
        self.world.confirmed(self, namespace)
        self.held[namespace] += 1
        if self.world.rng.random() < 0.9:
            asyncio.get_running_loop().call_later(
                self.world.rng.choice((0.05, 0.5, 3.0)), lambda: self._acked(namespace)
            )

    def changed(self, namespace: str) -> None:
        gate = self.leases.subscription_gate(namespace)
        if gate is None or not gate.leads:
            self.held[namespace] = 0  # its consumers were closed

    def _acked(self, namespace: str) -> None:
        self.held[namespace] = max(0, self.held[namespace] - 1)
        self.leases.tell()

    def open(self, namespace: str) -> bool:
        gate = self.leases.subscription_gate(namespace)
        return gate is not None and gate.open

    @property
    def registered(self) -> bool:
        """Whether the configuration has a lease of this life."""
        lease = self.leases._lease
        return bool(lease) and self.world.store.machine.get(writer(self.region, self.name, lease)) is not None


class SubscriptionWorld(LeadershipWorld):
    """The same for subscriptions: who hands out is in the region that is active at that moment; and a planned move
    takes nothing from a consumer.
    """

    names = SUBSCRIPTIONS

    def broker(self, region: str, name: str) -> Broker:
        return Consuming(self, region, name, self.settings)

    def watch(self) -> None:
        known: dict[str, Leadership] = {}

        def heard(key: str, value: bytes | None, _version: int) -> None:
            assert value is not None
            new, name = Leadership.decode(value), name_of(key)
            old = known.get(name)
            known[name] = new
            if old is not None and old.active != new.active and old.state == DRAINING and not self.healing:
                self.count("drained")
                for broker in self.brokers:
                    if (
                        isinstance(broker, Consuming)
                        and broker.region == old.active
                        and broker.registered
                        and broker.held[name]
                    ):
                        self._failure = self._failure or Confirmed(
                            f"{broker.name} has {broker.held[name]} messages out in {name}, which was moved by a drain"
                        )

        self.store.watch("/subscription-leadership/", heard)
