"""Policies on loaded topics: rates, limits, what is kept, and where each value comes from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    ResourceGroup,
    TenantInfo,
    TopicPolicies,
)
from heliograph.model.errors import BacklogQuotaExceeded, BacklogQuotaHold, BookieUnavailable, NotAllowed
from heliograph.model.topic_names import TopicName
from heliograph.wire.run import Run
from region_node.subscriptions.delayed_delivery import DelayWheel
from region_node.subscriptions.rate_limits import Bucket, DispatchThrottle, PublishGate, bucket
from region_node.topics.admission import check_producer
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.topic import Topic
from tests.region_node.faces.pulsar.codec import entry, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, messages, obey, settle, tick, with_broker
from tests.region_node.subscriptions.dispatch_world import SetClock
from tests.region_node.topics.fake_storage import FakeClock, FakeView

NAME = TopicName.parse(TOPIC)


# -- rates


@pytest.mark.parametrize("seed", range(60))
def test_a_bucket_never_lets_more_through_than_its_rate(seed: int) -> None:
    rng = random.Random(seed)
    messages, size_bytes, period_s = rng.choice([0, 5, 50, 500]), rng.choice([-1, 1000, 10_000]), rng.choice([1, 3])
    tokens, now, start = Bucket(messages, size_bytes, 100.0, period_s), 100.0, 100.0
    spent = spent_bytes = largest = largest_bytes = 0
    history = [(start, 0, 0)]
    for _ in range(200):
        now += rng.choice([0.0, 0.0, 0.001, 0.05, 0.7, 20.0 if rng.random() < 0.1 else 0.0])
        tokens.refill(now)
        if not tokens.messages_left:
            assert tokens.wait_s > 0
            continue
        count, size = rng.randrange(1, 20), rng.randrange(1, 3000)
        tokens.spend(count, size)
        spent, spent_bytes, largest, largest_bytes = (
            spent + count,
            spent_bytes + size,
            max(largest, count),
            max(largest_bytes, size),
        )
        for at, before, bytes_before in history:  # in any window, however quiet it was before
            elapsed = now - at + period_s
            assert messages <= 0 or spent - before <= messages * elapsed + 2 * largest
            assert size_bytes <= 0 or spent_bytes - bytes_before <= size_bytes * elapsed + 2 * largest_bytes
        history.append((now, spent, spent_bytes))
    assert messages > 0 or size_bytes > 0 or tokens.messages_left > 1 << 50
    now += tokens.wait_s
    tokens.refill(now + 1e-9)
    assert tokens.messages_left  # what it says to wait is enough


def test_a_relative_rate_is_had_beyond_what_is_published() -> None:
    for relative, wanted in ((False, 10), (True, 10 + 25)):
        rate = {
            "dispatchThrottlingRateInMsg": 10,
            "dispatchThrottlingRateInByte": -1,
            "relativeToPublishRate": relative,
        }
        made = bucket(rate, 0.0)
        assert made is not None
        made.spend(10, 1)
        made.follow(25.0, 1000.0)
        made.refill(1.0)
        assert made.messages_left == wanted and made.bytes_left > 1 << 50


class Reader:
    def __init__(self) -> None:
        self.reasons: dict[object, None] = {}

    def hold_reading(self, hold: bool, reason: object = None) -> None:
        if hold:
            self.reasons[reason] = None
        else:
            del self.reasons[reason]


def test_publishers_wait_at_the_gate_until_the_bucket_has_recovered() -> None:
    clock, timers, readers = FakeClock(), [], [Reader(), Reader()]

    class Timer:
        def cancel(self) -> None: ...

    def later(delay_s: float, call: Callable[[], None]) -> Timer:
        timers.append((clock.now + delay_s, call))
        return Timer()

    gate = PublishGate([Bucket(10, -1, clock.now)], clock, DelayWheel(later, clock), lambda: readers[:1])
    gate.spend(10, 1)
    assert len(readers[0].reasons) == 1 and not readers[1].reasons and gate.closed_times == 1
    gate.spend(30, 1)
    while readers[0].reasons:
        at, call = timers.pop(0)
        clock.now = max(clock.now, at)
        call()
        assert clock.now < 1010
    assert 1002.9 < clock.now < 1003.6
    gate.spend(100, 1)
    gate.open()
    assert not readers[0].reasons


def test_who_waits_for_a_rate_goes_on_also_where_the_wall_clock_is_set_back() -> None:
    clock, timers, reader, woken = SetClock(), [], Reader(), []

    class Timer:
        def cancel(self) -> None: ...

    class Sleeper:
        def wake(self) -> None:
            woken.append(clock.now)

    def later(delay_s: float, call: Callable[[], None]) -> Timer:
        timers.append((clock.now + delay_s, call))
        return Timer()

    wheel = DelayWheel(later, clock)
    gate = PublishGate([Bucket(10, -1, clock.now)], clock, wheel, lambda: [reader])
    gate.spend(15, 1)
    throttle = DispatchThrottle([Bucket(10, -1, clock.now)], clock, wheel)
    throttle.spend(15, 1)
    throttle.wake_later(Sleeper())
    clock.ahead_s = -3600.0
    while timers:
        at, call = timers.pop(0)
        clock.now = max(clock.now, at)
        call()
    assert not reader.reasons and len(woken) == 1 and clock.now < 1002


def test_topics_of_a_resource_group_share_its_rate() -> None:
    async def test(broker: Broker) -> None:
        broker.view.groups["g"] = ResourceGroup(publish_messages=10)
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"resourceGroup": "g"}))
        client, other = await broker.client(), await broker.client()
        await client.producer(1, TOPIC)
        await other.producer(1, TOPIC + "-2")
        for topic in (TOPIC, TOPIC + "-2"):
            broker.topics.loaded[topic].publish(Run([b"x"] * 6, [1] * 6), lambda _: None, lambda _: None)
        assert client.transport.reading and not other.transport.reading
        broker.view.groups["g"] = ResourceGroup()
        for callback in broker.view.callbacks:
            callback("/resource-groups/g")
        assert other.transport.reading

    with_broker(test)


# -- where a value comes from


def test_levels_and_compare_and_set() -> None:
    async def main() -> None:
        store, view = EmbeddedStore(KvMachine()), FakeView()
        book, other = PolicyBook(store, view, {"maxProducers": 1, "messageTTL": 9}), PolicyBook(store, view, {})
        await book.ready()
        told: list[tuple[str, str]] = []
        stop = book.on_change(lambda namespace, topic: told.append((namespace, topic)))
        part = NAME.with_partition(3)

        def limit() -> int:
            return book.of(part).limit("maxProducers")

        assert limit() == 1
        await book.change_brokers(lambda b: replace(b, policies={"maxProducers": 2}))
        await settle()
        assert limit() == 2 and told == [("", "")]
        view.set("public/default", NamespacePolicies(policies={"maxProducers": 3}))
        assert limit() == 3 and told[-1] == ("public/default", "")
        view.topics[TOPIC] = TopicPolicies(policies={"maxProducers": 4})
        assert limit() == 4
        await book.change_topic(TOPIC, lambda t: replace(t, policies=t.policies | {"maxProducers": 0}))
        await settle()
        assert limit() == 0 and told[-1] == ("public/default", TOPIC) and book.of(part).limit("messageTTL") == 9

        async def add(which: PolicyBook, name: str) -> None:
            await which.change_topic(
                TOPIC, lambda t: replace(t, policies=t.policies | {name: t.policies.get(name, 0) + 1})
            )

        await asyncio.gather(*(add((book, other)[n % 2], ("maxConsumers", "messageTTL")[n % 2]) for n in range(8)))
        await settle()
        for each in (book, other):
            assert each.topic(TOPIC).policies == {"maxProducers": 0, "maxConsumers": 4, "messageTTL": 4}
        with pytest.raises(NotAllowed):
            await book.change_topic(TOPIC, lambda t: replace(t, policies={"maxProducers": -1}))
        stop()
        count = len(told)
        await book.forget(TOPIC)
        await settle()
        assert limit() == 4 and len(told) == count
        book.close()
        other.close()

    asyncio.run(main())


def test_what_a_tenant_has_to_encrypt_nobody_below_it_switches_off() -> None:
    async def main() -> None:
        store, view = EmbeddedStore(KvMachine()), FakeView()
        book = PolicyBook(store, view, {})
        await book.ready()
        told: list[tuple[str, str]] = []
        book.on_change(lambda namespace, topic: told.append((namespace, topic)))
        other = TopicName.parse("persistent://public/default/another")
        view.set("public/default", NamespacePolicies(regions=("us",), policies={"encryptionAtRest": False}))
        await book.change_topic(TOPIC, lambda t: replace(t, policies={"encryptionAtRest": False}))
        await settle()

        def sealed() -> list[bool]:
            return [
                book.of(NAME).on("encryptionAtRest"),
                book.of(other).on("encryptionAtRest"),
                book.of_namespace("public/default").on("encryptionAtRest"),
            ]

        def change(**fields: Any) -> None:
            view.tenants["public"] = TenantInfo(**fields)
            for callback in list(view.callbacks):
                callback("/tenants/public")

        assert sealed() == [False, False, False]
        told.clear()
        change(encryption_at_rest=True)
        assert sealed() == [True, True, True] and told == [("", "")]
        change(encryption_at_rest=True, admin_roles=("somebody",))
        assert sealed() == [True, True, True] and told == [("", "")], "who administers it is nothing to topics"
        change(admin_roles=("somebody",))
        assert sealed() == [False, False, False] and told == [("", ""), ("", "")]
        book.close()

    asyncio.run(main())


def test_nothing_is_kept_of_namespaces_that_nobody_made() -> None:
    """Whoever asks may have invented their names, a thousand in one request."""

    async def main() -> None:
        view = FakeView()
        book = PolicyBook(EmbeddedStore(KvMachine()), view, {"maxProducers": 1})
        for number in range(100):
            name = TopicName.parse(f"persistent://t{number}/n/x")
            assert book.of(name).limit("maxProducers") == 1
        assert not book._namespaces and not book._duties
        view.set("t1/n", NamespacePolicies(regions=("us",), policies={"maxProducers": 2}))
        assert book.of(TopicName.parse("persistent://t1/n/x")).limit("maxProducers") == 2
        assert list(book._namespaces) == ["t1/n"]
        book.close()

    asyncio.run(main())


# -- what is kept

AGE_QUOTA = {"message_age": {"limitSize": -1, "limitTime": 6, "policy": "consumer_backlog_eviction"}}


async def topic_with_backlog(broker: Broker, names: tuple[str, ...] = ("a", "b")) -> Topic:
    topic = await broker.topics.get(TOPIC, create=True)
    for name in names:
        await topic.subscription(name, initial=(-1, -1))
    await topic.ledger.open_cursor("pulsar.repl.eu", (-1, -1))
    for _ in range(10):
        topic.publish(Run([b"x" * 100], [100], time_ms=broker.clock.wall_ms()), lambda _: None, lambda _: None)
        await settle(3)
        broker.clock.now += 1
    return topic


def test_subscriptions_may_come_while_the_age_of_others_is_read() -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        ledger, read = broker.ledger(), asyncio.Event()
        oldest = ledger.oldest_unacked_ms

        async def slow(name: str) -> int:
            await read.wait()
            return await oldest(name)

        ledger.oldest_unacked_ms = slow  # type: ignore[method-assign]
        obey(broker, messageTTL=6)
        await tick(broker, 0)
        await topic.subscription("c", initial=(-1, -1))
        read.set()
        await settle()
        assert topic.subscriptions["a"].expired == 4, "it was looked at to the end"

    with_broker(test)


@pytest.mark.parametrize("policies", [{"messageTTL": 6}, {"backlogQuota": AGE_QUOTA}])
def test_a_backlog_that_cannot_be_read_keeps_nothing_else_from_being_done(
    policies: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted: list[Topic] = []

    async def compact_if_due(topic: Topic) -> None:
        compacted.append(topic)

    monkeypatch.setattr(Topic, "compact_if_due", compact_if_due)

    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        topic.subscriptions["a"].cursor.ack_cumulative((10, 0))
        ledger = broker.ledger()
        oldest = ledger.oldest_unacked_ms

        async def unread(name: str) -> int:
            if name == "a":
                raise BookieUnavailable("away")
            return await oldest(name)

        ledger.oldest_unacked_ms = unread  # type: ignore[method-assign]
        obey(broker, subscriptionExpiration=1, **policies)
        await tick(broker, 0)
        assert topic.subscriptions["b"].expired == 4 and compacted, "and the others go on"
        await tick(broker, 61)
        assert list(topic.subscriptions) == [], "also what nobody uses is found"

    with_broker(test)


def test_a_backlog_that_cannot_be_read_lets_nobody_in_whom_its_age_kept_out() -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        obey(broker, backlogQuota={"message_age": {"limitTime": 6, "policy": "producer_exception"}})
        await tick(broker, 0)
        assert topic.over_quota == "producer_exception"

        async def unread(name: str) -> int:
            raise BookieUnavailable("away")

        broker.ledger().oldest_unacked_ms = unread  # type: ignore[method-assign]
        topic.subscriptions["a"].cursor.ack_cumulative((10, 0))
        topic.subscriptions["b"].cursor.ack_cumulative((10, 0))
        await tick(broker, 0)
        assert topic.over_quota == "producer_exception"

    with_broker(test)


def test_a_change_is_heard_while_the_configuration_lacks_this_region() -> None:
    """It was restored from a backup that is older than the region. What raises here ends the copy of the configuration
    in the middle of what it is told.
    """

    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        broker.region.lost = True
        obey(broker, messageTTL=6)
        for callback in list(broker.view.callbacks):
            callback("/migrations/us")
        assert list(broker.topics.group_samples()) == []
        await tick(broker, 0)
        assert topic.subscriptions["a"].expired == 4

    with_broker(test)


def test_time_to_live_moves_subscriptions_and_no_link() -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        ledger = broker.ledger()
        topic.subscriptions["b"].cursor.ack_cumulative((10, 7))
        obey(broker, messageTTL=6)
        await tick(broker, 0)
        assert [topic.subscriptions[n].cursor.backlog_entries for n in "ab"] == [6, 2], "what is as old is not older"
        assert topic.subscriptions["a"].expired == 4 and topic.subscriptions["b"].expired == 0
        assert ledger.cursors["pulsar.repl.eu"].backlog_entries == 10
        obey(broker)
        await tick(broker, 1000)
        assert topic.subscriptions["a"].cursor.backlog_entries == 6

    with_broker(test)


@pytest.mark.parametrize(
    ("policy", "error"), [("producer_exception", BacklogQuotaExceeded), ("producer_request_hold", BacklogQuotaHold)]
)
def test_quotas_close_producers_once_and_let_them_in_again(policy: str, error: type[Exception]) -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        client = await broker.client()
        await client.producer(1, TOPIC, producer_name="p")
        obey(broker, backlogQuota={"destination_storage": {"limitSize": 950, "limitTime": -1, "policy": policy}})
        await tick(broker)
        assert topic.producers.producers == {}
        with pytest.raises(error):
            check_producer(topic, "q", encrypted=False)
        topic.subscriptions["a"].cursor.ack_cumulative((10, 5))
        await tick(broker)
        with pytest.raises(error):  # the slowest subscription counts
            check_producer(topic, "q", encrypted=False)
        topic.subscriptions["b"].cursor.ack_cumulative((10, 5))
        await tick(broker)
        check_producer(topic, "q", encrypted=False)
        obey(broker, backlogQuota={"message_age": {"limitSize": -1, "limitTime": 6, "policy": policy}})
        await tick(broker)
        with pytest.raises(error):
            check_producer(topic, "q", encrypted=False)
        obey(broker)
        check_producer(topic, "q", encrypted=False)

    with_broker(test)


def test_eviction_takes_from_who_is_above_the_quota_only() -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        topic.subscriptions["b"].cursor.ack_cumulative((10, 7))
        obey(
            broker,
            backlogQuota={
                "destination_storage": {"limitSize": 500, "limitTime": -1, "policy": "consumer_backlog_eviction"}
            },
        )
        await tick(broker)
        assert [topic.subscriptions[n].cursor.backlog_entries for n in "ab"] == [4, 2] and topic.over_quota == ""
        assert broker.ledger().cursors["pulsar.repl.eu"].backlog_entries == 10
        obey(
            broker,
            backlogQuota={"message_age": {"limitSize": -1, "limitTime": 6, "policy": "consumer_backlog_eviction"}},
        )
        await tick(broker, 3)
        assert [topic.subscriptions[n].cursor.backlog_entries for n in "ab"] == [2, 2]

    with_broker(test)


INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": True,
}


def test_topics_that_nobody_uses_go_and_others_stay() -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker, ("a",))
        obey(broker, inactiveTopics=INACTIVE)
        await tick(broker)
        await tick(broker, 1000)
        assert TOPIC in broker.topics.loaded  # it has a subscription
        await topic.delete_subscription("a")
        client = await broker.client()
        await client.producer(1, TOPIC)
        await tick(broker, 1000)
        await tick(broker, 1000)
        assert TOPIC in broker.topics.loaded  # it has a producer
        client.transport.close()
        await settle()
        await tick(broker)
        await tick(broker, 59)
        assert TOPIC in broker.topics.loaded
        obey(broker, inactiveTopics=INACTIVE, retention={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        await tick(broker, 10)
        assert TOPIC in broker.topics.loaded  # what it holds is to be kept
        obey(broker, inactiveTopics=INACTIVE)
        broker.links.stats = lambda topic=None: ["a link"]  # type: ignore[method-assign]
        await tick(broker, 100)
        await tick(broker, 100)
        assert TOPIC in broker.topics.loaded  # other regions hold it too
        broker.links.stats = lambda topic=None: []  # type: ignore[method-assign]
        obey(broker, inactiveTopics=INACTIVE)
        await tick(broker)
        await tick(broker, 61)
        assert TOPIC not in broker.topics.loaded and TOPIC not in broker.factory.ledgers

    with_broker(test)


def test_subscriptions_without_consumers_expire() -> None:
    async def test(broker: Broker) -> None:
        topic = await topic_with_backlog(broker)
        client = await broker.client()
        await client.subscribe(1, TOPIC, "a")
        obey(broker, subscriptionExpiration=2)
        await tick(broker)
        await tick(broker, 119)
        assert sorted(topic.subscriptions) == ["a", "b"]
        await tick(broker, 2)
        assert sorted(topic.subscriptions) == ["a"]

    with_broker(test)


# -- on connections


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_subscription_gets_no_more_than_its_rate(kind: int) -> None:
    async def test(broker: Broker) -> None:
        rate = {
            "dispatchThrottlingRateInMsg": 5,
            "dispatchThrottlingRateInByte": -1,
            "relativeToPublishRate": False,
            "ratePeriodInSecond": 1,
        }
        obey(broker, dispatchRate=rate)
        client = await broker.client()
        await client.producer(1, TOPIC)
        for n in range(20):
            await client.do(send(1, n, entry(b"%d" % n, sequence=n, partition_key=str(n))))
        await client.subscribe(1, TOPIC, kind=kind, initialPosition=1)
        got = len(await client.flow(100))
        assert got == 5
        for seconds in (0.2, 0.4, 10.0):
            broker.clock.now += seconds
            broker.topics._wheel._pauses._fire()
            came = len(messages(await client.news()))
            assert came == min(5, int(seconds * 5 + 1e-6))
            got += came
        obey(broker)
        assert got + len(messages(await client.news())) == 20

    with_broker(test)


def test_reading_goes_on_when_nobody_holds_it_any_more() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        first, second = object(), object()
        for hold, reason, reading in (
            (True, first, False),
            (True, second, False),
            (False, first, False),
            (False, first, False),
            (False, second, True),
        ):
            client.protocol.hold_reading(hold, reason)
            assert client.transport.reading is reading

    with_broker(test)


def test_a_change_reaches_every_topic_of_a_large_namespace_and_holds_the_loop_for_none() -> None:
    async def test(broker: Broker) -> None:
        topics = [await broker.topics.get(f"non-{TOPIC}-{n}", create=True) for n in range(700)]
        part = await broker.topics.get(f"{TOPIC}-partition-1", create=True)
        obey(broker, maxProducers=3)
        reached = sum(topic.policies.limit("maxProducers") == 3 for topic in topics)
        assert 0 < reached < 700
        obey(broker, maxProducers=4)  # a second change meanwhile
        await settle()
        assert all(topic.policies.limit("maxProducers") == 4 for topic in [*topics, part])
        broker.view.counts[TOPIC] = 2
        await broker.topics.policies.change_topic(TOPIC, lambda t: replace(t, policies={"maxProducers": 9}))
        await settle()
        assert part.policies.limit("maxProducers") == 9 and topics[0].policies.limit("maxProducers") == 4

    with_broker(test)
