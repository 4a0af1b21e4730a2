"""Replicated subscriptions on the simulated loop: real links between three regions, real cursors, cuts, moves, resets,
messages for some regions only.

What always holds: nothing is acknowledged anywhere that no consumer acknowledged. What holds once the links are well:
all regions agree.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import CorruptData
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import Run
from replicator.coordinates.late_entries import LateMap
from replicator.log.coordinate_lookup import Found, LookupStatus
from replicator.log.routing_trees import is_skip
from replicator.manager.link_manager import LinkSettings
from replicator.subscriptions import subscription_cursor, subscription_sync
from replicator.subscriptions.ack_claims import RANGES_MAX, Claims, ClaimSettings
from replicator.subscriptions.subscription_cursor import SyncedCursor
from replicator.subscriptions.subscription_state import BEGAN, OFF, PROPERTY, SubscriptionState, began
from replicator.subscriptions.subscription_sync import SubscriptionSync
from storage.managed_ledger.cursors import cursor_expiry
from storage.managed_ledger.cursors.cursor import Cursor
from tests.broken_rules import BrokenRules
from tests.replicator.fake_ledger import FakeLedger
from tests.replicator.link_instance import Instance, TestRegion

SUBSCRIPTION = "orders"
PAIRS = (("us", "eu"), ("us", "ap"), ("eu", "ap"))
IN_STEP_S = 1.6
"""Two rounds, the way there, and the links' batching."""


class Consumer:
    """Acknowledges in one region, and remembers what was ever acknowledged anywhere."""

    def __init__(self, region: TestRegion, acked: set[int]) -> None:
        self.region, self.acked = region, acked
        self.expired: set[int] = set()

    @property
    def sync(self) -> SubscriptionSync:
        return self.region.log.subscriptions

    @property
    def cursor(self) -> Cursor:
        found: Cursor = self.region.log.ledger.cursors[SUBSCRIPTION]  # type: ignore[assignment]
        return found

    async def subscribe(self) -> None:
        await self.region.log.ledger.open_cursor(SUBSCRIPTION, BEFORE_ALL)
        self.sync.enable(SUBSCRIPTION)

    def messages(self) -> dict[int, Position]:
        """Body -> where it lies."""
        return {
            int.from_bytes(bytes(part)[-8:], "big"): (ledger, first + i)
            for ledger, first, run in self.region.store.runs()
            if not run.flags
            for i, part in enumerate(run.parts)
        }

    def done(self) -> set[int]:
        if SUBSCRIPTION not in self.region.log.ledger.cursors:
            return set()
        return {body for body, position in self.messages().items() if self.cursor.is_acked(position)}

    async def expire(self, upto: Position) -> None:
        """Time to live, or a bound on the backlog, in this region: nobody acknowledged it."""
        self.expired |= {
            body
            for body, position in self.messages().items()
            if position <= upto and not self.cursor.is_acked(position)
        }
        await cursor_expiry.move(self.region.log.ledger, upto, [SUBSCRIPTION], noted=True)  # type: ignore[arg-type]

    def consume(self, rng: random.Random, count: int) -> None:
        """Some in order, some at random, as Shared consumers do; or everything up to somewhere."""
        left = [
            (position, body)
            for body, position in sorted(self.messages().items(), key=lambda m: m[1])
            if not self.cursor.is_acked(position)
        ]
        if not left:
            return
        if rng.random() < 0.3:
            chosen = left[: rng.randrange(1, count + 1)]
            self.acked |= {body for _, body in chosen}
            self.cursor.ack_cumulative(chosen[-1][0])
        else:
            chosen = rng.sample(left, min(len(left), rng.randrange(1, count + 1)))
            self.acked |= {body for _, body in chosen}
            self.cursor.ack([position for position, _ in chosen])


Scenario = Callable[[Instance, Simulation, dict[str, Consumer], set[int]], Coroutine[Any, Any, None]]


def play(scenario: Scenario, *, seed: int = 1, brokers: int = 1, settings: LinkSettings | None = None) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu", "ap"), brokers, settings or LinkSettings())
            for a, b in PAIRS:
                sim.network.latency(a, b, 0.03, 0.08)
            await instance.load()
            acked: set[int] = set()
            for region in instance.regions.values():
                region.store.read_s = 0.03
            consumers = {name: Consumer(region, acked) for name, region in instance.regions.items()}
            await scenario(instance, sim, consumers, acked)
            assert all(not region.faults for region in instance.regions.values()), [
                r.faults for r in instance.regions.values()
            ]

        sim.run(main(), limit_s=300)


def heal(sim: Simulation) -> None:
    for a, b in PAIRS:
        sim.network.heal(a, b)


def check_nothing_is_lost(consumers: dict[str, Consumer], acked: set[int]) -> None:
    for name, consumer in consumers.items():
        lost = consumer.done() - acked - consumer.expired
        assert not lost, f"{name}: acknowledged, and no consumer ever saw them: {sorted(lost)[:5]}"


@pytest.mark.parametrize("seed", range(12))
def test_regions_agree_and_nothing_is_lost(seed: int) -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        rng = random.Random(seed)
        for name in rng.sample(sorted(consumers), rng.randrange(1, 4)):
            await consumers[name].subscribe()
        active = [c for c in consumers.values() if SUBSCRIPTION in c.region.log.ledger.cursors]
        for turn in range(40):
            match rng.randrange(9):
                case 0:
                    a, b = rng.sample(("us", "eu", "ap"), 2)
                    sim.network.cut(a, b)
                case 1 | 2:
                    heal(sim)
                case 3 if turn % 3 == 0:
                    region = rng.choice(list(instance.regions.values()))
                    await region.move(1 - region.owner)
                case 4:
                    to = tuple(rng.sample(("us", "eu", "ap"), rng.randrange(1, 3)))
                    rng.choice(list(instance.regions.values())).publish(rng.randrange(1, 4), to)
                case 5 | 6:
                    rng.choice(list(instance.regions.values())).publish(rng.randrange(1, 9))
                case _:
                    rng.choice(active).consume(rng, 12)
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.2, 0.7)))
            check_nothing_is_lost(consumers, acked)
        heal(sim)
        await asyncio.sleep(12)
        check_nothing_is_lost(consumers, acked)
        for name, consumer in consumers.items():
            left = {body for body in consumer.messages() if body in acked} - consumer.done()
            assert not left, f"{name}: acknowledged elsewhere, and not here: {sorted(left)[:5]}"
            assert not consumer.sync.due(), f"{name}: there is an end to it"
            assert all(is_skip(run) for _, _, run in consumer.region.store.runs() if run.flags), (
                f"{name}: nothing of it lies in the data"
            )

    play(scenario, seed=seed, brokers=2)


def test_what_had_no_room_is_told_once_holes_have_closed() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu = consumers["us"], consumers["eu"]
        for consumer in (us, eu):
            await consumer.subscribe()
        for _ in range(60):
            us.region.publish(1)
        await asyncio.sleep(2)
        in_order = sorted(us.messages().values())
        us.cursor.ack(in_order[1::2])
        await asyncio.sleep(2)
        assert len(eu.done()) == 10, "the lowest"
        us.cursor.ack(in_order[2::2])  # all but the first
        await asyncio.sleep(20)
        assert len(eu.done()) == 59 and not us.sync.due(), "there is an end to it"

    play(scenario, settings=LinkSettings(claims=ClaimSettings(ranges_max=10)))


@pytest.mark.parametrize(("holes", "every", "most"), [(10_001, 2, 64), (150, 700, 5)])
def test_ten_thousand_holes_are_few_reads_and_a_round_makes_no_more_than_it_may(
    holes: int, every: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[object, int] = {}
    rounds: list[int] = []
    read = FakeLedger.read

    async def counted(ledger: FakeLedger, *asked: Any) -> Any:
        task = asyncio.current_task()
        made[task] = made.get(task, 0) + 1
        return await read(ledger, *asked)

    def watched(work: Any) -> Any:
        async def of_a_round(*given: Any) -> Any:
            task = asyncio.current_task()
            before = made.get(task, 0)
            try:
                return await work(*given)
            finally:
                rounds.append(made.get(task, 0) - before)

        return of_a_round

    monkeypatch.setattr(FakeLedger, "read", counted)
    for name in ("claim", "apply_all"):
        monkeypatch.setattr(SyncedCursor, name, watched(getattr(SyncedCursor, name)))

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu = consumers["us"], consumers["eu"]
        for consumer in (us, eu):
            await consumer.subscribe()
        for _ in range(holes * every // 100 + 1):
            us.region.publish(100)
        await asyncio.sleep(20)
        in_order = sorted(us.messages().values())
        rounds.clear()
        us.cursor.ack(in_order[1 : 1 + holes * every : every])
        await asyncio.sleep(200)
        assert len(eu.done()) == min(holes, RANGES_MAX)
        assert max(rounds) <= most + 2
        assert not us.sync.due() and not eu.sync.due(), "there is an end to it"

    play(scenario, settings=LinkSettings(claims=ClaimSettings(round_reads=most)))


async def expiry_and_consumers(
    seed: int, instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]
) -> None:
    rng = random.Random(seed)
    await consumers["us"].subscribe()
    await asyncio.sleep(2)
    for _ in range(50):
        consumer = rng.choice(list(consumers.values()))
        match rng.randrange(9):
            case 0:
                sim.network.cut(*rng.choice(PAIRS))
            case 1:
                heal(sim)
            case 2 if rng.random() < 0.5:
                await consumer.region.move(1 - consumer.region.owner)
            case 3 | 4:
                consumer.region.publish(rng.randrange(1, 9))
            case 5 | 6 if behind := sorted(p for p in consumer.messages().values() if p > consumer.cursor.mark_delete):
                await consumer.expire(rng.choice(behind[:12]))
            case _:
                consumer.consume(rng, 12)
        await asyncio.sleep(rng.choice((0.0, 0.1, 0.6)))
        check_nothing_is_lost(consumers, acked)
    heal(sim)
    await asyncio.sleep(12)
    check_nothing_is_lost(consumers, acked)
    assert any(consumer.expired for consumer in consumers.values())
    for name, consumer in consumers.items():
        left = {body for body in consumer.messages() if body in acked} - consumer.done()
        assert not left, f"{name}: acknowledged elsewhere, and not here: {sorted(left)[:5]}"


@pytest.mark.parametrize("seed", range(16))
def test_what_expires_in_one_region_is_still_to_be_had_in_the_others(seed: int) -> None:
    play(lambda *given: expiry_and_consumers(seed, *given), seed=seed, brokers=2)


def test_mutant_what_expires_counts_as_acknowledged(broken: BrokenRules) -> None:
    broken.setattr(subscription_cursor, "given_up_of", lambda _: [])
    with broken.found(match="no consumer ever saw them"):
        for seed in range(4):
            play(lambda *given, seed=seed: expiry_and_consumers(seed, *given), seed=seed, brokers=2)


def test_what_comes_late_behind_what_expired_is_given_out() -> None:
    """us has a time to live and no consumers; eu, cut off, has consumers and none."""

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu = consumers["us"], consumers["eu"]
        await us.subscribe()
        await eu.subscribe()
        us.region.publish(5)
        await asyncio.sleep(3)
        eu.consume(random.Random(1), 5)
        await asyncio.sleep(3)
        taken = set(acked)
        sim.network.cut("us", "eu")
        sim.network.cut("us", "ap")
        us.region.publish(40)
        await asyncio.sleep(1)
        for _ in range(3):  # what expires one after the other is one range
            await us.expire(sorted(p for p in us.messages().values() if p > us.cursor.mark_delete)[9])
        assert len(cursor_expiry.read_given_up(us.cursor.properties)) <= 2 and len(us.expired) >= 30
        await us.region.move(0)
        heal(sim)
        await asyncio.sleep(8)
        assert eu.done() == taken and len(eu.messages()) == 45
        eu.consume(random.Random(2), 40)
        us.cursor.reset(BEFORE_ALL)
        await asyncio.sleep(3)
        assert cursor_expiry.read_given_up(us.cursor.properties) == [] and not eu.done()
        us.cursor.ack_cumulative(max(us.messages().values()))
        acked |= set(us.messages())
        await asyncio.sleep(3)
        assert eu.done() == set(eu.messages()), "what was given out since, and acknowledged, counts"

    play(scenario)


@pytest.mark.parametrize("seed", range(16))
def test_resets_in_several_regions_end_in_one_truth(seed: int) -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        rng = random.Random(seed)
        await consumers["us"].subscribe()
        await asyncio.sleep(2)
        for _ in range(40):
            consumer = rng.choice(list(consumers.values()))
            match rng.randrange(8):
                case 0:
                    sim.network.cut(*rng.choice(PAIRS))
                case 1 | 2:
                    heal(sim)
                case 3:
                    below = [p for p in consumer.messages().values() if p <= consumer.cursor.mark_delete]
                    consumer.cursor.reset(rng.choice([BEFORE_ALL, *below]))
                    if rng.random() < 0.5:  # and what is read again at once hides it from a look at the cursor alone
                        consumer.sync.moved(SUBSCRIPTION)
                        consumer.consume(rng, 40)
                case 4:
                    if rng.random() < 0.3:
                        await consumer.region.move(1 - consumer.region.owner)
                case 5:
                    consumer.region.publish(rng.randrange(1, 6))
                case _:
                    consumer.consume(rng, 12)
            await asyncio.sleep(rng.choice((0.0, 0.1, 0.6)))
            check_nothing_is_lost(consumers, acked)
        heal(sim)
        await asyncio.sleep(12)
        us, eu, ap = consumers.values()
        assert us.done() == eu.done() == ap.done() <= acked
        epochs = {str(c.sync.status(SUBSCRIPTION, 0)["epoch"]) for c in consumers.values()}
        assert len(epochs) == 1

    play(scenario, seed=seed, brokers=2)


@pytest.mark.parametrize("seed", range(6))
def test_after_a_failover_only_what_was_acknowledged_since_the_last_sync_comes_again(seed: int) -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        rng = random.Random(seed)
        us, eu = consumers["us"], consumers["eu"]
        await us.subscribe()
        times: dict[int, float] = {}
        for _ in range(30):
            us.region.publish(rng.randrange(1, 9))
            before = set(acked)
            us.consume(rng, 9)
            times.update(dict.fromkeys(acked - before, sim.now()))
            await asyncio.sleep(0.1)
        if rng.random() < 0.5:
            sim.network.cut("us", "ap")  # a third region that is away changes nothing
        for machine in us.region.brokers:
            machine.machine.kill()
        killed = sim.now()
        await asyncio.sleep(2)
        held, done = eu.messages(), eu.done()
        assert done and not done - acked
        again = [body for body in held if body in acked and body not in done]
        assert all(times[body] > killed - IN_STEP_S for body in again), "only young acknowledgements are forgotten"
        assert len([b for b in acked if times[b] < killed - IN_STEP_S]) > 20

    play(scenario, seed=seed)


def test_one_way_data_and_a_region_that_is_down() -> None:
    """Nothing is published in eu and ap, ap is away: acknowledgements of eu come to us nevertheless."""

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        await consumers["us"].subscribe()
        consumers["us"].region.publish(40)
        await asyncio.sleep(2)
        sim.network.cut("ap", "us")
        sim.network.cut("ap", "eu")
        consumers["us"].region.publish(10)
        await asyncio.sleep(2)
        consumers["eu"].consume(random.Random(3), 30)
        await asyncio.sleep(IN_STEP_S)
        assert consumers["us"].done() == consumers["eu"].done() == acked
        heal(sim)
        await asyncio.sleep(8)
        assert consumers["ap"].done() == acked

    play(scenario)


def test_claims_for_what_has_not_arrived_wait() -> None:
    """The data of us goes to eu over a link that is down, what us acknowledged goes round: the claims wait for the
    data.
    """

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        await consumers["us"].subscribe()
        us, eu = consumers["us"], consumers["eu"]
        us.region.publish(5)
        await asyncio.sleep(2)
        link = next(
            link
            for links in us.region.brokers[0].links._links.values()
            for link in links.values()
            if link.target == "eu"
        )
        assert link.core is not None
        window, link.core._window = link.core._window, 0  # heartbeats and claims go on, runs do not
        us.region.publish(5)
        await asyncio.sleep(0.2)
        us.acked |= set(us.messages())
        us.cursor.ack_cumulative(us.region.log.ledger.last_confirmed)
        await asyncio.sleep(2)
        assert len(eu.messages()) == 5 and eu.sync.status(SUBSCRIPTION, 0)["waiting_ranges"] >= 1
        link.core._window = window
        link.pump()
        await asyncio.sleep(2)
        assert len(eu.messages()) == 10 and eu.done() == set(us.messages()) == acked

    play(scenario)


def test_a_reset_counts_everywhere_and_what_was_acknowledged_before_it_does_not_come_back() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, ap = consumers.values()
        await us.subscribe()
        us.region.publish(20)
        eu.region.publish(10)
        await asyncio.sleep(2)
        us.acked |= set(us.messages())
        us.cursor.ack_cumulative(us.region.log.ledger.last_confirmed)
        await asyncio.sleep(2)
        assert us.done() == eu.done() == ap.done() == acked and len(acked) == 30
        sim.network.cut("us", "eu")
        sim.network.cut("us", "ap")
        us.cursor.reset(us.messages()[min(us.messages())])  # one message stays acknowledged in us
        us.sync.moved(SUBSCRIPTION)  # as a seek says
        await us.region.move(1)  # the epoch survives another owner, before anybody else has heard of it
        await asyncio.sleep(7)
        kept = us.done()
        assert 0 < len(kept) < 30 and eu.done() == acked
        us.region.publish(3)
        heal(sim)
        await asyncio.sleep(8)
        assert us.done() == eu.done() == ap.done() == kept, "the old acknowledgements of eu and ap do not come back"
        eu.cursor.ack([eu.messages()[max(eu.messages())]])
        await asyncio.sleep(2)
        assert us.done() == eu.done() == ap.done() == kept | {max(eu.messages())}

    play(scenario, brokers=2)


def test_skipping_everything_in_the_other_region() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        await us.subscribe()
        us.region.publish(20)
        await asyncio.sleep(2)
        eu.cursor.reset(eu.region.log.ledger.last_confirmed)
        us.region.publish(5)
        await asyncio.sleep(2.5)
        assert us.done() == eu.done() and len(us.done()) == 20

    play(scenario)


def test_the_status_says_who_is_in_step() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        await us.subscribe()
        us.region.publish(20)
        await asyncio.sleep(2)
        assert us.sync.status(SUBSCRIPTION, 0)["in_step"]
        us.consume(random.Random(2), 9)
        assert not us.sync.status(SUBSCRIPTION, 0)["in_step"], (
            "what it says of itself is older than what was acknowledged: nobody may be switched over now"
        )
        await asyncio.sleep(2)
        here, there = us.sync.status(SUBSCRIPTION, 0), eu.sync.status(SUBSCRIPTION, 0)
        assert here["told"] == {"eu": True, "ap": True} and here["in_step"] and there["in_step"]
        assert there["heard"]["us"] == here["claims"] and here["claims"]["origins"], "what us says is what eu has heard"  # type: ignore[index]

    play(scenario)


def test_a_new_stream_tells_everything_again() -> None:
    """What went into a stream that died in silence is lost; the next one brings it."""

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us = consumers["us"]
        await us.subscribe()
        us.region.publish(5)
        heard: list[tuple[str, str]] = []
        us.sync.channel("mars", lambda name, _: not heard.append(("dead", name)))
        await asyncio.sleep(1)
        us.sync.channel("mars", lambda name, _: not heard.append(("new", name)))
        await asyncio.sleep(1)
        assert heard == [("dead", SUBSCRIPTION), ("new", SUBSCRIPTION)]

    play(scenario)


def test_a_subscription_is_made_where_it_is_not_there_with_all_that_was_acknowledged() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, ap = consumers.values()
        for region in (us.region, eu.region):
            region.publish(30)
        await asyncio.sleep(2)
        await us.subscribe()
        us.consume(random.Random(4), 25)  # within one round: everything is told once, in one piece
        us.consume(random.Random(5), 25)
        await asyncio.sleep(3)
        assert eu.done() == ap.done() == us.done() == acked and len(acked) > 10
        assert eu.sync.status(SUBSCRIPTION, 0)["heard"]["us"] == us.sync.status(SUBSCRIPTION, 0)["claims"]  # type: ignore[index]

    play(scenario)


def test_what_never_reached_a_region_is_not_acknowledged_by_it() -> None:
    """us trims ten messages that ap has, and eu has not: eu goes past them without having seen one."""

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, ap = consumers.values()
        await us.subscribe()
        us.region.publish(5)
        await asyncio.sleep(2)
        before = set(us.messages())
        link = next(
            link
            for links in us.region.brokers[0].links._links.values()
            for link in links.values()
            if link.target == "eu"
        )
        assert link.core is not None
        window, link.core._window = link.core._window, 0  # it sends nothing
        us.region.publish(10)
        await asyncio.sleep(2)
        unseen = set(ap.messages()) - before
        us.region.ledger.save()
        us.region.ledger.trim(us.region.log.ledger.last_confirmed)
        us.region.publish(5)
        link.core._window = window
        link.pump()
        await asyncio.sleep(2)
        assert len(unseen) == 10 and not unseen & set(eu.messages()) and len(eu.messages()) == 10
        eu.acked |= set(eu.messages())
        eu.cursor.ack_cumulative(eu.region.log.ledger.last_confirmed)
        await asyncio.sleep(2)
        assert ap.done() == set(eu.messages()) and not ap.done() & unseen
        ap.acked |= unseen
        ap.cursor.ack_cumulative(ap.region.log.ledger.last_confirmed)
        await asyncio.sleep(2)
        assert ap.done() == set(ap.messages())

    play(scenario)


def test_cursors_that_are_no_subscriptions_are_out_of_reach() -> None:
    """A link's cursor would be a silent loss in somebody else's hands; a reader's is its own. Who speaks of one is not
    cut off: that connection is everybody's.
    """

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us = consumers["us"]
        us.region.publish(5)
        await asyncio.sleep(1)
        for name in ("pulsar.repl.ap", "__x"):
            us.sync.heard("eu", name, Claims((9, 2), {}))
            us.sync.enable(name)
            assert not us.sync.enabled(name)
        await us.subscribe()
        us.cursor.durable = False
        us.sync.disable(SUBSCRIPTION)
        us.sync.enable(SUBSCRIPTION)
        assert not us.sync.enabled(SUBSCRIPTION)

    play(scenario)


def test_what_another_region_tells_of_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Names are durable cursors, and claims that come between two rounds are joined."""

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us = consumers["us"]
        await us.subscribe()
        for name in ("a", "n" * 1000, "n" * 1001, "b", SUBSCRIPTION, "a", "b", "c"):
            us.sync.heard("eu", name, Claims((0, 0), {}))
        await us.region.log.ledger.open_cursor("here", BEFORE_ALL)
        us.sync.enable("here")
        us.sync.heard("eu", "here", Claims((0, 0), {}))
        await asyncio.sleep(1)
        assert {name for name in us.region.store.cursors if not name.startswith("pulsar.")} == {
            SUBSCRIPTION,
            "a",
            "n" * 1000,
            "here",
        }
        for first in (0, RANGES_MAX):
            claims = Claims((0, 0), {})
            for entry in range(first, first + RANGES_MAX):
                claims.add((9, 1, 1), (7, 2 * entry), (7, 2 * entry + 1))
            us.sync.heard("eu", "a", claims)
        kept = us.sync._subscriptions["a"].inbox["eu"].ranges[9, 1, 1]
        assert len(kept) == RANGES_MAX and kept[0] == ((7, 0), (7, 1))

    play(scenario, settings=LinkSettings(claims=ClaimSettings(told_max=3)))
    refused = [record.__dict__["subscription"] for record in caplog.records if record.msg == "subscription.too_many"]
    assert refused.count("b") == 1 and "c" not in refused, "once a topic"


def test_a_subscription_of_an_internal_name_closes_no_link() -> None:
    """Also one that an earlier version has stored as replicated, or that it speaks of."""

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        stored = SubscriptionState(1, start=BEFORE_ALL).stored()
        for name, properties in (("__x", {}), ("__y", {PROPERTY: stored})):
            await us.region.log.ledger.open_cursor(name, BEFORE_ALL, properties=properties)
        us.sync.enable("__x")
        us.sync.enable_all()
        await us.region.move(0)
        eu.sync.heard("us", "__z", Claims((0, 0), {}))
        await us.subscribe()
        us.region.publish(3)
        await asyncio.sleep(3)
        assert [us.sync.enabled(name) for name in (SUBSCRIPTION, "__x", "__y")] == [True, False, False]
        assert [name for name in eu.region.store.cursors if name.startswith("__")] == []
        us.consume(random.Random(1), 3)
        await asyncio.sleep(2)
        assert eu.done() == acked

    play(scenario)


def test_one_subscription_that_cannot_be_told_of_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Exception] = []
    monkeypatch.setattr(subscription_sync, "report_error", lambda error, _: reported.append(error), raising=False)

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us = consumers["us"]
        for name in ("a", "b"):
            await us.region.log.ledger.open_cursor(name, BEFORE_ALL)
            us.sync.enable(name)
        told: list[str] = []

        def send(name: str, claims: Claims) -> bool:
            if name == "a":
                raise OverflowError("too large")
            told.append(name)
            return True

        us.sync.channel("mars", send)
        await us.sync.round(0)
        assert told == ["b"] and [type(error) for error in reported] == [OverflowError]
        us.sync.disable("a")

    play(scenario)


_STATE = '{"version":1,"epoch":[%s,1],"base":[[1,1,1,%s,0]],"start":[1,1]}'


@pytest.mark.parametrize(
    "text",
    ["[" * 60_000, "[]", "7", _STATE % (0, -5), _STATE % (-1, 1), _STATE % (1 << 64, 1), _STATE % (0, 0.5)],
    ids=["nested", "list", "number", "below", "negative", "large", "broken"],
)
def test_a_state_that_nobody_stored_is_refused(text: str) -> None:
    with pytest.raises(CorruptData):
        SubscriptionState.load(1, text)


def test_a_seek_before_the_first_round_counts() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        us.region.publish(10)
        await asyncio.sleep(1)
        await us.region.log.ledger.open_cursor(SUBSCRIPTION, us.region.log.ledger.last_confirmed)
        us.sync.enable(SUBSCRIPTION)
        us.cursor.reset(BEFORE_ALL)
        await asyncio.sleep(3)
        assert us.done() == eu.done() == set() and len(eu.messages()) == 10
        assert us.sync.status(SUBSCRIPTION, 0)["epoch"] == [1, us.region.log.state.origin[0]]

    play(scenario)


@pytest.mark.parametrize("again", [True, False], ids=["replicated", "not"])
@pytest.mark.parametrize("earliest", [True, False], ids=["earliest", "latest"])
def test_deleted_and_made_again_between_two_rounds_it_is_another(earliest: bool, again: bool) -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        await us.subscribe()
        us.region.publish(10)
        await asyncio.sleep(2)
        us.consume(random.Random(1), 5)
        await asyncio.sleep(2)
        del us.region.store.cursors[SUBSCRIPTION]
        at = BEFORE_ALL if earliest else us.region.log.ledger.last_confirmed
        await us.region.log.ledger.open_cursor(SUBSCRIPTION, at)
        if again:
            us.sync.enable(SUBSCRIPTION)
        await asyncio.sleep(3)
        assert eu.done() == acked and 0 < len(acked) < 10, "nobody acknowledged the others, and nobody moved it"
        assert eu.sync.status(SUBSCRIPTION, 0)["epoch"] == [0, 0] and us.sync.enabled(SUBSCRIPTION) == again

    play(scenario)


def test_it_begins_before_what_follows_a_late_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object) -> Found:
        return Found(LookupStatus.HERE, (9, 5), (2, 3))

    monkeypatch.setattr(subscription_cursor, "position_of", found)
    log: Any = SimpleNamespace(vector=[(1, 1, 1)], ledger=SimpleNamespace(last_confirmed=(9, 9), cursors={}))
    assert asyncio.run(SyncedCursor(log, "s", SubscriptionState(1), lambda _: 0).before_first({})) == (2, 2)


def test_what_lies_late_behind_the_cursor_or_expired_there_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    origin, late = (2, 1, 7), LateMap()
    late.add(Run([b"x"], [1], origin=origin, spans=((3, 5, 1),)), 9, 0)

    async def at(*_: object) -> dict[Origin, Position]:
        return {origin: (3, 9)}

    async def nowhere(*_: object) -> Found:
        return Found(LookupStatus.AWAITED)

    monkeypatch.setattr(subscription_cursor, "vector_at", at)
    monkeypatch.setattr(subscription_cursor, "position_of", nowhere)
    cursor = SimpleNamespace(durable=True, changes=1, properties={}, partly_acked={}, acked_ranges=[])
    log: Any = SimpleNamespace(
        vector=Vector(),
        state=SimpleNamespace(late=late, past=[]),
        ledger=SimpleNamespace(cursors={"s": cursor}, first_position=lambda: (0, 0)),
    )
    log.vector.advance(origin, (3, 9))
    for mark, claimed in (
        ((8, 4), [(BEFORE_ALL, (3, 4)), ((3, 5), (3, 9))]),
        ((9, 0), [(BEFORE_ALL, (3, 9))]),
    ):
        cursor.mark_delete = mark
        found = SyncedCursor(log, "s", SubscriptionState(1, base={}), lambda _: 0)
        assert asyncio.run(found.claim(cursor))
        assert found.state.mine.ranges == {origin: claimed}
    assert asyncio.run(found._coordinates([((8, 9), (9, 4))])) == {origin: [((3, 4), (3, 5))]}


def test_a_late_copy_that_the_cursor_has_passed_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    origin, places = (2, 1, 7), {(9, 0): (3, 5), (2, 3): (3, 6)}

    async def vector_at(_: object, at: Position, *__: object) -> dict[Origin, Position]:
        return {origin: (3, 4) if at == (2, 2) else (3, 9)}

    async def position_of(*_: object) -> Found:
        return Found(LookupStatus.HERE, (9, 0), (2, 3))  # of the first behind the start: an audit appended it late

    async def coordinate_of(_: object, at: Position) -> Any:
        return SimpleNamespace(coordinate=(origin, places[at]))

    for look_up in (vector_at, position_of, coordinate_of):
        monkeypatch.setattr(subscription_cursor, look_up.__name__, look_up)
    cursor = SimpleNamespace(
        durable=True, changes=1, properties={}, partly_acked={}, acked_ranges=[], mark_delete=(9, 0)
    )
    log: Any = SimpleNamespace(
        vector=Vector(),
        state=SimpleNamespace(late=LateMap(), past=[]),
        ledger=SimpleNamespace(cursors={"s": cursor}, first_position=lambda: (0, 0)),
    )
    log.vector.advance(origin, (3, 9))
    found = SyncedCursor(log, "s", SubscriptionState(1, base={origin: (3, 4)}, start=(2, 2)), lambda _: 0)
    assert asyncio.run(found.claim(cursor))
    assert found.state.mine.ranges == {origin: [((3, 4), (3, 9))]}


def test_batches_acknowledged_in_part() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        await us.subscribe()
        us.region.publish(4)
        await asyncio.sleep(2)
        second = sorted(us.messages().items())[1]
        us.cursor.ack_batch(second[1], 0b1011)
        await asyncio.sleep(2)
        assert eu.cursor.partly_acked == {eu.messages()[second[0]]: 0b1011}
        eu.cursor.ack_batch(eu.messages()[second[0]], 0b0110)
        await asyncio.sleep(2)
        assert us.cursor.partly_acked[second[1]] == 0b0010
        us.cursor.ack_batch(second[1], 0b1101)
        await asyncio.sleep(2)
        assert us.done() == eu.done() == {second[0]}

    play(scenario)


def test_many_batches_acknowledged_in_part_are_looked_up_over_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, object]] = []
    most: dict[str, int] = {}

    def watched(name: str, look_up: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            looked.append((name, asyncio.current_task()))
            return look_up(*given, **named)

        return counted

    def of_a_round(name: str, work: Any) -> Any:
        async def counted(*given: Any) -> Any:
            which = (name, asyncio.current_task())
            before = looked.count(which)
            try:
                return await work(*given)
            finally:
                most[name] = max(most.get(name, 0), looked.count(which) - before)

        return counted

    for name, work in (("coordinate_of", "claim"), ("position_of", "apply_all")):
        monkeypatch.setattr(subscription_cursor, name, watched(name, getattr(subscription_cursor, name)))
        monkeypatch.setattr(SyncedCursor, work, of_a_round(name, getattr(SyncedCursor, work)))

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        await us.subscribe()
        us.region.publish(70)
        await asyncio.sleep(2)
        for position in us.messages().values():
            us.cursor.ack_batch(position, 0b10)
        await asyncio.sleep(12)
        assert len(eu.cursor.partly_acked) == 70 and not us.sync.due() and not eu.sync.due(), "there is an end to it"
        us.region.publish(1)
        await asyncio.sleep(2)
        us.cursor.ack_batch(max(us.messages().values()), 0b10)
        looked.clear()
        await asyncio.sleep(2)
        assert len(eu.cursor.partly_acked) == 71
        assert [name for name, _ in looked].count("coordinate_of") == 3, "each once in each region"
        assert most == {"coordinate_of": 20, "position_of": 20}

    play(scenario, settings=LinkSettings(claims=ClaimSettings(round_lookups=20)))


def test_switched_off_or_deleted_here_it_stays_so() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, ap = consumers.values()
        await us.subscribe()
        us.region.publish(4)
        await asyncio.sleep(2)
        eu.sync.disable(SUBSCRIPTION)
        del ap.region.store.cursors[SUBSCRIPTION]
        await asyncio.sleep(1)
        us.cursor.ack_cumulative(us.region.log.ledger.last_confirmed)
        await asyncio.sleep(2)
        assert len(us.done()) == 4 and not eu.done() and SUBSCRIPTION not in ap.region.store.cursors
        eu.sync.enable(SUBSCRIPTION)
        sim.network.cut("us", "eu")
        await asyncio.sleep(7)
        heal(sim)
        await asyncio.sleep(7)
        assert len(eu.done()) == len(us.done())

    play(scenario)


def test_switched_off_while_a_round_is_under_way_it_stays_so() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        for region in (us.region, eu.region):
            region.publish(10)
        await asyncio.sleep(1)
        await us.region.log.ledger.open_cursor(SUBSCRIPTION, us.region.log.ledger.position_before((1, 8)))
        us.sync.enable(SUBSCRIPTION)
        under_way = asyncio.ensure_future(us.sync.round(0))
        await asyncio.sleep(0.01)
        assert not under_way.done()
        us.sync.disable(SUBSCRIPTION)
        await under_way
        assert us.cursor.properties[PROPERTY] == OFF and not us.sync.enabled(SUBSCRIPTION)

    play(scenario)


def test_by_policy_every_subscription_is_replicated_but_what_was_switched_off_by_hand() -> None:
    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, ap = consumers.values()
        us.region.publish(20)
        await us.region.log.ledger.open_cursor(SUBSCRIPTION, BEFORE_ALL)
        await us.region.log.ledger.open_cursor("local", BEFORE_ALL)
        us.sync.disable("local")
        await asyncio.sleep(2)
        assert SUBSCRIPTION not in eu.region.store.cursors
        broker = us.region.brokers[0]
        broker.machine.run(broker.links.obey, us.region.log, {"replicatedSubscriptions": True})
        us.consume(random.Random(4), 12)
        await asyncio.sleep(3)
        assert us.done() == eu.done() == ap.done() == acked and acked
        assert "local" not in eu.region.store.cursors and not us.sync.enabled("pulsar.repl.eu")
        await us.region.log.ledger.open_cursor("later", BEFORE_ALL)
        await asyncio.sleep(2)
        assert "later" in eu.region.store.cursors and "later" in ap.region.store.cursors

    play(scenario)


@pytest.mark.parametrize(
    ("seed", "used"), [*((seed, False) for seed in range(24)), *((seed, True) for seed in range(24, 40))]
)
def test_made_in_several_regions_at_once_it_is_one_and_takes_nothing_back(seed: int, used: bool) -> None:
    """Each region makes it where it likes, consumes at once, and hears of the others later, or after a crash, or once a
    cut is over.

    used: it is replicated only after all of them have used it for a while, each on its own.
    """

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        rng = random.Random(seed)
        regions = list(instance.regions.values())
        for region in regions:
            region.publish(rng.randrange(1, 12))
        await asyncio.sleep(rng.choice((0.0, 0.05, 1.0)))
        for a, b in rng.sample(PAIRS, rng.randrange(3)):
            sim.network.cut(a, b)
        outside: dict[str, set[int]] = {}
        stored: dict[str, set[int]] = {}
        for name in rng.sample(sorted(consumers), rng.randrange(2, 4)):
            consumer = consumers[name]
            held = sorted(consumer.messages().values())
            at = rng.choice([BEFORE_ALL, BEFORE_ALL, *held, held[-1]])
            await consumer.region.log.ledger.open_cursor(
                SUBSCRIPTION, at, properties={BEGAN: began(at)} if used else None
            )
            if not used:
                consumer.sync.enable(SUBSCRIPTION)
            outside[name], stored[name] = consumer.done(), set()
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.03)))
        for _ in range(12 if used else 0):
            rng.choice(regions).publish(rng.randrange(1, 6))
            name = rng.choice(sorted(outside))
            consumers[name].consume(rng, 9)
            stored[name] |= consumers[name].done() & acked - outside[name]
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.3)))
        for name in rng.sample(sorted(outside), len(outside) if used else 0):
            consumers[name].sync.enable(SUBSCRIPTION)
            await asyncio.sleep(rng.choice((0.0, 0.03, 1.0)))

        def check() -> None:
            for name, below in outside.items():
                done = consumers[name].done()
                assert stored[name] <= done, (
                    f"{name}: acknowledgements were taken back: {sorted(stored[name] - done)[:5]}"
                )
                assert done <= acked | below, (
                    f"{name}: acknowledged, and no consumer ever saw them: {sorted(done - acked - below)[:5]}"
                )
                stored[name] |= done & acked - below

        for turn in range(24):
            match rng.randrange(8):
                case 0:
                    sim.network.cut(*rng.choice(PAIRS))
                case 1:
                    heal(sim)
                case 2 if turn % 3 == 0:
                    region = rng.choice(regions)
                    await region.move(1 - region.owner)
                case 3 | 4:
                    rng.choice(regions).publish(rng.randrange(1, 6))
                case _:
                    consumers[rng.choice(sorted(outside))].consume(rng, 9)
                    check()
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.3)))
            check()
        heal(sim)
        await asyncio.sleep(12)
        check()
        before_all = set.intersection(*outside.values())
        for name, consumer in consumers.items():
            assert consumer.done() == acked | before_all, (
                f"{name}: {sorted(consumer.done() ^ (acked | before_all))[:5]}"
            )
            assert consumer.sync.status(SUBSCRIPTION, 0)["epoch"] == [0, 0], "nobody moved it"
            assert not consumer.sync.due()

    play(scenario, seed=seed, brokers=2)


def test_what_is_trimmed_where_it_is_made_is_not_acknowledged_elsewhere() -> None:
    """eu has what us trimmed; both make the subscription, or eu seeks back to the beginning: us, where nobody can be
    given it, says nothing of it.
    """

    async def scenario(instance: Instance, sim: Simulation, consumers: dict[str, Consumer], acked: set[int]) -> None:
        us, eu, _ = consumers.values()
        us.region.publish(10)
        await asyncio.sleep(2)
        us.region.ledger.save()
        us.region.ledger.trim(us.region.log.ledger.last_confirmed)
        us.region.publish(5)
        await asyncio.sleep(1)
        await us.subscribe()
        await eu.subscribe()
        us.acked |= set(us.messages())
        us.cursor.ack_cumulative(us.region.log.ledger.last_confirmed)
        await asyncio.sleep(3)
        assert len(acked) == 5 and len(eu.messages()) == 15 and eu.done() == acked
        eu.cursor.reset(BEFORE_ALL)
        eu.sync.moved(SUBSCRIPTION)
        await asyncio.sleep(3)
        assert not us.done() and not eu.done()
        us.cursor.ack_cumulative(us.region.log.ledger.last_confirmed)
        await asyncio.sleep(3)
        assert eu.done() == us.done() == acked

    play(scenario)
