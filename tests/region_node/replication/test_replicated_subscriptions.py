"""Subscriptions of a broker, as their replication asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import TopicClosed
from heliograph.model.positions import BEFORE_ALL
from heliograph.wire.run import Run
from region_node.replication.replicated_subscriptions import ReplicatedSubscriptions, replicate, replicate_by_policy
from region_node.subscriptions.subscription import Subscription
from replicator.subscriptions.subscription_state import PROPERTY, SubscriptionState
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker
from tests.region_node.topics.fake_storage import FIRST_LEDGER


class Log:
    def __init__(self, replicate_all: bool) -> None:
        self.replicate_all = replicate_all
        self.made = self.enabled = 0

    @property
    def subscriptions(self) -> Log:
        self.made += 1
        return self

    def enable_all(self) -> None:
        self.enabled += 1


class Topic:
    def __init__(self, log: object) -> None:
        self.log = log


@pytest.mark.parametrize("policy", [True, False])
def test_nothing_is_kept_in_step_where_nobody_asked(policy: bool) -> None:
    log = Log(policy)
    topic: Any = Topic(log)
    replicate_by_policy(topic)
    assert (log.made, log.enabled) == (policy, policy)
    volatile: Any = Topic(object())
    replicate_by_policy(volatile)


NAME, PART = "s", entry(b"x")


async def made(broker: Broker, count: int = 10) -> Subscription:
    topic = await broker.topics.get(TOPIC, create=True)
    for _ in range(count):
        topic.publish(Run([PART], [len(PART)]), lambda _: None, lambda _: None)
    return await topic.subscription(NAME, initial=BEFORE_ALL)


def host(broker: Broker) -> ReplicatedSubscriptions:
    return ReplicatedSubscriptions(broker.topics.loaded)


def test_one_that_is_there_is_moved() -> None:
    async def test(broker: Broker) -> None:
        subscription, here = await made(broker), host(broker)
        subscription.cursor.ack_cumulative((FIRST_LEDGER, 7))
        assert here.reset(TOPIC, NAME, (FIRST_LEDGER, 3))
        assert subscription.cursor.mark_delete == (FIRST_LEDGER, 3)
        subscription.cursor.ack_cumulative((FIRST_LEDGER, 8))
        assert here.begin_earlier(TOPIC, NAME, (FIRST_LEDGER, 1), (FIRST_LEDGER, 3), ())
        acked = [entry for entry in range(10) if subscription.cursor.is_acked((FIRST_LEDGER, entry))]
        assert acked == [0, 1, 4, 5, 6, 7, 8], "what lies behind its start stays"

    with_broker(test)


@pytest.mark.parametrize("again", [False, True], ids=["switched on", "loaded"])
def test_a_seek_counts_though_what_it_gave_is_acknowledged_before_any_round(again: bool) -> None:
    async def test(broker: Broker) -> None:
        subscription, topic = await made(broker), broker.topics.loaded[TOPIC]
        subscription.cursor.ack_cumulative((FIRST_LEDGER, 7))
        replicate(topic, subscription)
        if again:
            await broker.topics.unload(TOPIC)
            topic = await broker.topics.get(TOPIC, create=False)
            subscription = topic.subscriptions[NAME]
        assert subscription.replicated
        await topic.seek(subscription, (FIRST_LEDGER, 3))
        subscription.cursor.ack_cumulative((FIRST_LEDGER, 8))
        stored = SubscriptionState.load(1, subscription.cursor.properties[PROPERTY])
        assert stored.epoch[0] == 1 and stored.start == (FIRST_LEDGER, 3)

    with_broker(test)


def test_one_that_is_not_there_is_nobodys_and_the_caller_hears_of_it() -> None:
    async def test(broker: Broker) -> None:
        here = host(broker)

        def nobodys(topic: str, name: str) -> None:
            assert not here.reset(topic, name, BEFORE_ALL)
            assert not here.begin_earlier(topic, name, BEFORE_ALL, BEFORE_ALL, ())
            here.count(topic, name, {(FIRST_LEDGER, 1): 3})
            assert here.redelivered(topic, name) == 0 and here.redeliveries(topic, name, 9) == {}

        nobodys(TOPIC, NAME)
        with pytest.raises(TopicClosed):
            await here.ensure(TOPIC, NAME, BEFORE_ALL)
        subscription = await made(broker)
        nobodys(TOPIC, "other")
        assert not subscription.replicated
        await here.ensure(TOPIC, "other", (FIRST_LEDGER, 4))
        topic = broker.topics.loaded[TOPIC]
        assert topic.subscriptions["other"].cursor.mark_delete == (FIRST_LEDGER, 4)
        await here.ensure(TOPIC, "other", (FIRST_LEDGER, 2))
        assert topic.subscriptions["other"].cursor.mark_delete == (FIRST_LEDGER, 4), "it was there"
        await broker.topics.unload(TOPIC)
        nobodys(TOPIC, NAME)
        with pytest.raises(TopicClosed):
            await here.ensure(TOPIC, NAME, BEFORE_ALL)

    with_broker(test)


def test_what_came_again_is_counted_of_who_is_here_and_who_has_gone() -> None:
    async def test(broker: Broker) -> None:
        subscription, here = await made(broker, 4), host(broker)
        one, other = await broker.client(), await broker.client()
        await one.subscribe(1, kind=1, name=NAME)
        assert len(await one.flow(10)) == 4 and here.redelivered(TOPIC, NAME) == 0
        await other.subscribe(1, kind=1, name=NAME)
        one.transport.abort()
        assert len(await other.flow(10)) == 4 and here.redelivered(TOPIC, NAME) == 4
        again = {(FIRST_LEDGER, entry): 1 for entry in range(4)}
        assert here.redeliveries(TOPIC, NAME, 9) == again
        assert here.redeliveries(TOPIC, NAME, 2) == {at: again[at] for at in sorted(again)[:2]}
        here.count(TOPIC, NAME, {(FIRST_LEDGER, 1): 5})
        assert here.redeliveries(TOPIC, NAME, 9)[FIRST_LEDGER, 1] == 5
        other.transport.abort()
        assert here.redelivered(TOPIC, NAME) == 8 and subscription.consumers == []

    with_broker(test)


def test_a_topic_that_is_not_stored_and_a_reader_are_left_alone() -> None:
    async def test(broker: Broker) -> None:
        subscription, topic = await made(broker), broker.topics.loaded[TOPIC]
        sync = topic.log.subscriptions  # type: ignore[union-attr]
        replicate(topic, subscription)
        assert subscription.replicated and sync.enabled(NAME)
        replicate(topic, subscription, on=False)
        assert not subscription.replicated and not sync.enabled(NAME)
        reader = await topic.subscription("reader", initial=BEFORE_ALL, durable=False)
        replicate(topic, reader)
        assert not reader.replicated and not sync.enabled("reader")
        volatile = await broker.topics.get(f"non-{TOPIC}", create=True)
        there = await volatile.subscription(NAME, initial=BEFORE_ALL)
        replicate(volatile, there)
        assert not there.replicated

    with_broker(test)
