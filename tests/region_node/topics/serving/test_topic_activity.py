"""The broker's tick visits topics on which something happens, and no others; nothing that happens is missed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.placement.balance.broker_gauge import BrokerGauge
from region_node.placement.balance.load_shedding import Bundle
from region_node.topics.topic import Topic
from replicator.subscriptions.subscription_state import OFF, PROPERTY, SubscriptionState
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import Broker, Client, K, settle, with_broker

NAMES = [f"{domain}://public/default/t{number}" for number in range(6) for domain in ("persistent", "non-persistent")]
Counted = tuple[int, ...]


def counted(topic: Topic) -> Counted:
    """Messages and bytes in, then out, redelivered, and acknowledged of all subscriptions."""
    found = [topic.messages_in, topic.bytes_in, 0, 0, 0, 0]
    for subscription in topic.subscriptions.values():
        for one in (subscription, *subscription.consumers):
            for at, number in enumerate(
                (one.messages_out, one.bytes_out, one.messages_redelivered, one.messages_acked)
            ):
                found[2 + at] += number
    return tuple(found)


def rates(topic: Topic) -> list[float]:
    found = [*topic.meter.rates, 0.0, 0.0, 0.0, 0.0]
    for subscription in topic.subscriptions.values():
        for at, rate in enumerate(subscription.meter.rates[:4]):
            found[2 + at] += rate
    return found


class World:
    """Two clients on twelve topics; what each topic had counted at the last tick, and at the last report."""

    def __init__(self, broker: Broker, rng: random.Random) -> None:
        self.broker, self.rng = broker, rng
        self.clients: list[Client] = []
        self.ticked: dict[Topic, Counted] = {}
        self.reported: dict[Topic, Counted] = {}
        self.table = BundleTable.equal(4)
        self.gauge = BrokerGauge(broker.topics.loaded, broker.topics.activity, lambda _: self.table, broker.clock)
        self.reported_at = broker.clock.now
        self.sequence = 0

    async def step(self) -> None:
        rng, at = self.rng, self.rng.randrange(len(NAMES))
        client, name = rng.choice(self.clients), NAMES[at]
        number = at + 1
        match rng.randrange(8):
            case 0:
                await client.do(frame(K.PRODUCER, topic=name, producer_id=number, request_id=number))
            case 1:
                fields = {"subscription": "s", "subType": number // 2 % 2, "consumer_id": number, "initialPosition": 1}
                await client.do(frame(K.SUBSCRIBE, topic=name, request_id=100 + number, **fields))
            case 2:
                await client.do(frame(K.FLOW, consumer_id=number, messagePermits=rng.randrange(1, 9)))
            case 3 | 4:
                self.sequence += 1
                await client.do(send(number, self.sequence, entry(b"%d" % self.sequence, sequence=self.sequence)))
            case 5:
                loaded = self.broker.topics.loaded.get(name)
                ledger_of = self.broker.factory.ledgers.get(name)
                held = ledger_of.positions() if loaded is not None and ledger_of is not None else []
                if held and rng.random() < 0.7:
                    ledger, one = rng.choice(held)
                    place = pb.MessageIdData(ledgerId=ledger, entryId=one)
                    await client.do(frame(K.ACK, consumer_id=number, ack_type=0, message_id=[place]))
                else:
                    await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=number))
            case 6:
                kind, key = rng.choice([(K.CLOSE_PRODUCER, "producer_id"), (K.CLOSE_CONSUMER, "consumer_id")])
                await client.do(frame(kind, **{key: number}, request_id=200 + number))
            case _:
                if rng.random() < 0.3:
                    await self.broker.topics.unload(name)
                elif (
                    ledger_of := self.broker.factory.ledgers.get(name)
                ) is not None:  # what was taken is not confirmed for a while
                    ledger_of.hold = not ledger_of.hold
                    ledger_of.release()
        client.got.clear()

    async def tick(self) -> None:
        self.broker.clock.now += (elapsed := self.rng.choice([1.0, 1.0, 3.5]))
        self.broker.topics._visit(self.broker.clock.now)
        loaded = list(self.broker.topics.loaded.values())
        for topic in loaded:
            now, before = counted(topic), self.ticked.get(topic, (0,) * 6)
            assert rates(topic) == pytest.approx([(n - b) / elapsed for n, b in zip(now, before, strict=True)]), (
                topic.text
            )
        self.ticked = {topic: counted(topic) for topic in loaded}
        await settle()

    async def report(self) -> None:
        elapsed = max(1e-3, self.broker.clock.now - self.reported_at)
        self.reported_at = self.broker.clock.now
        if self.rng.random() < 0.2:
            self.table = self.table.split(0, [(self.table.range(0)[0] + self.table.range(0)[1]) // 2])
        found, _ = await self.gauge.traffic()
        wanted: dict[Bundle, list[float]] = {}
        for topic in self.broker.topics.loaded.values():
            row = wanted.setdefault(("public/default", self.table.of(topic.text)), [0.0, 0, 0])
            now, before = counted(topic), self.reported.get(topic, (0,) * 6)
            row[0] += (now[0] + now[2] - before[0] - before[2]) / elapsed
            row[1] += 1
            row[2] += len(topic.producers.producers) + sum(len(s.consumers) for s in topic.subscriptions.values())
        assert {bundle: pytest.approx(row) for bundle, row in wanted.items()} == {
            b: [t.messages_s, t.topics, t.sessions] for b, t in found.items()
        }
        self.reported = {topic: counted(topic) for topic in self.broker.topics.loaded.values()}


@pytest.mark.parametrize("seed", range(6))
def test_rates_and_load_reports_are_as_if_every_topic_was_looked_at(seed: int) -> None:
    async def test(broker: Broker) -> None:
        broker.topics._timer.cancel()
        broker.view.set("public/default", NamespacePolicies(regions=("us",)))
        world = World(broker, random.Random(seed))
        world.clients = [await broker.client(), await broker.client()]
        for _ in range(60):
            for _ in range(world.rng.randrange(8)):
                await world.step()
            await world.tick()
            if world.rng.random() < 0.3:
                await world.report()

    with_broker(test)


def visits(patch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    real = Topic.tick

    def tick(topic: Topic, *args: Any) -> bool:
        seen.append(topic.text)
        return real(topic, *args)

    patch.setattr(Topic, "tick", tick)
    return seen


def test_a_topic_on_which_nothing_happens_is_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker) -> None:
        broker.topics._timer.cancel()
        policies = {
            "messageTTL": 60,
            "inactiveTopics": {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "deleteWhileInactive": False},
        }
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies=policies))
        seen = visits(monkeypatch)
        client = await broker.client()
        for number, name in enumerate(NAMES, 1):
            await client.producer(number, name)
            await client.subscribe(number, name, kind=1)
        gauge = BrokerGauge(broker.topics.loaded, broker.topics.activity, lambda _: BundleTable.equal(1), broker.clock)
        for _ in range(3):
            broker.clock.now += 1
            broker.topics._visit(broker.clock.now)
            await settle()
        assert sorted(set(seen)) == sorted(NAMES)
        await gauge.traffic()
        seen.clear()
        for _ in range(30):
            broker.clock.now += 1
            broker.topics._visit(broker.clock.now)
            await settle()
        assert seen == [] and dict(broker.topics.activity.since_report()) == {}
        assert not broker.topics._maintenance._due, "a time to live waits for nothing where there is no backlog"
        await client.do(send(1, 1, entry(b"x", sequence=1)))
        for _ in range(5):
            broker.clock.now += 1
            broker.topics._visit(broker.clock.now)
        assert seen == [NAMES[0]] * 2, "once for the rate, and once more until it is nothing again"

    with_broker(test)


AGE = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}


@pytest.mark.parametrize("policy", [{"messageTTL": 60}, {"backlogQuota": {"message_age": AGE}}])
def test_what_is_due_by_time_alone_is_done_when_its_time_comes(policy: dict[str, Any]) -> None:
    async def test(broker: Broker) -> None:
        async def tick(seconds: float) -> int:
            broker.clock.now += seconds
            broker.topics._visit(broker.clock.now)
            await settle()
            return cursor.backlog_entries

        broker.topics._timer.cancel()
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies=policy))
        client = await broker.client()
        await client.producer(1, NAMES[0])
        topic = broker.topics.loaded[NAMES[0]]
        cursor = (await topic.subscription("s", initial=(-1, -1))).cursor
        await client.do(*(send(1, n, entry(b"%d" % n, sequence=n)) for n in range(3)))
        stored_ms = broker.clock.wall_ms()
        for _, _, run in topic.ledger.runs:
            run.time_ms = stored_ms
        assert [await tick(1) for _ in range(3)] == [3, 3, 3] and topic not in broker.topics.activity.busy
        looked = len(broker.topics._maintenance._due)
        assert [await tick(1) for _ in range(20)] == [3] * 20 and len(broker.topics._maintenance._due) == looked, (
            "nobody looks meanwhile"
        )
        assert await tick(59.5 - (broker.clock.wall_ms() - stored_ms) / 1000) == 3
        assert await tick(1) == 0

    with_broker(test)


INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "deleteWhileInactive": True,
    "maxInactiveDurationSeconds": 60,
}


def test_a_topic_is_inactive_from_when_its_last_subscription_is_deleted() -> None:
    async def test(broker: Broker) -> None:
        async def tick(seconds: float) -> bool:
            broker.clock.now += seconds
            broker.topics._visit(broker.clock.now)
            await settle()
            return NAMES[0] in broker.topics.loaded

        broker.topics._timer.cancel()
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"inactiveTopics": INACTIVE}))
        topic = await broker.topics.get(NAMES[0], create=True)
        await topic.subscription("s", initial=(-1, -1))
        assert all([await tick(1) for _ in range(300)]) and topic not in broker.topics.activity.busy
        await topic.delete_subscription("s")
        assert all([await tick(1) for _ in range(60)])
        assert not await tick(2)

    with_broker(test)


def test_who_comes_and_goes_between_two_ticks_has_used_a_topic_and_a_subscription() -> None:
    async def test(broker: Broker) -> None:
        async def tick(seconds: float) -> None:
            broker.clock.now += seconds
            broker.topics._visit(broker.clock.now)
            await settle()

        broker.topics._timer.cancel()
        unused = INACTIVE | {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}
        broker.view.set(
            "public/default",
            NamespacePolicies(regions=("us",), policies={"inactiveTopics": unused, "subscriptionExpiration": 4}),
        )
        client = await broker.client()
        await broker.topics.get(NAMES[0], create=True)
        for minute in range(10):
            if minute % 3:
                await client.producer(1, NAMES[0])
                await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=901))
            else:
                await client.subscribe(1, NAMES[0])
                await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=902))
            for _ in range(50):
                await tick(1)
            assert NAMES[0] in broker.topics.loaded and "s" in broker.topics.loaded[NAMES[0]].subscriptions, minute

    with_broker(test)


def test_a_replicated_subscription_does_not_expire_where_nobody_reads_it() -> None:
    """In a region that stands by nobody is connected, and one that was deleted there would not come back."""

    async def test(broker: Broker) -> None:
        broker.topics._timer.cancel()
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"subscriptionExpiration": 1}))
        topic = await broker.topics.get(NAMES[0], create=True)
        for name in ("here", "everywhere"):
            await topic.subscription(name, initial=(-1, -1))
        kept = topic.subscriptions["everywhere"]
        for replicated, found in ((True, ["everywhere"]), (False, [])):
            kept.cursor.set_properties({PROPERTY: SubscriptionState(1).stored() if replicated else OFF})
            topic.touch()
            for _ in range(100):
                broker.clock.now += 1
                broker.topics._visit(broker.clock.now)
                await settle()
            assert list(topic.subscriptions) == found

    with_broker(test)


def test_what_is_waited_for_takes_no_more_room_however_often_a_busy_topic_names_another_time() -> None:
    async def test(broker: Broker) -> None:
        broker.topics._timer.cancel()
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"messageTTL": 10_000}))
        topic = await broker.topics.get(NAMES[0], create=True)
        keeper = broker.topics._maintenance
        for second in range(5000):
            keeper._look_at(topic, broker.clock.now + 600 + second)
        assert len(keeper._due) < 1100 and (broker.clock.now + 5599) in [at for at, _, _ in keeper._due]

    with_broker(test)
