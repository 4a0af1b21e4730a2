"""Whom a loaded topic lets in: at its bounds, over its quota, as a shadow, and where another region leads."""

from __future__ import annotations

import pytest

from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaHold,
    ConsumerBusy,
    EncryptionRequired,
    NotAllowed,
    ProducerBusy,
    RegionPassive,
)
from region_node.dr.leadership.write_gates import Writing
from region_node.subscriptions.consumer import SubscriptionType
from region_node.topics.admission import (
    check_backlog,
    check_consumers,
    check_producer,
    check_region,
    check_source,
    check_type,
)
from region_node.topics.producers import AccessMode
from region_node.topics.topic import Topic
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, obey, with_broker
from tests.region_node.topics.made_producers import made


async def loaded(broker: Broker) -> Topic:
    return await broker.topics.get(TOPIC, create=True)


def admit(topic: Topic, name: str = "new", *, encrypted: bool = False) -> None:
    check_producer(topic, name, encrypted=encrypted)


def test_a_topic_has_as_many_producers_as_it_may_have_and_those_that_wait_count() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        for name in ("a", "b", "c"):
            admit(topic, name)
            topic.producers.add(made(name))
        obey(broker, maxProducers=4)
        admit(topic)
        obey(broker, maxProducers=3)
        with pytest.raises(ProducerBusy, match="max producers limit 3"):
            admit(topic)
        admit(topic, "b")  # it connects again, in its own place
        obey(broker, maxProducers=2)
        assert len(topic.producers.producers) == 3, "a limit that is lowered throws nobody out"
        topic.producers.remove(topic.producers.producers["a"])
        with pytest.raises(ProducerBusy):
            admit(topic)

    with_broker(test)


def test_who_waits_for_exclusive_access_counts() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        topic.producers.add(made("a", mode=AccessMode.EXCLUSIVE))
        topic.producers.add(made("b", mode=AccessMode.WAIT_FOR_EXCLUSIVE))
        obey(broker, maxProducers=3)
        admit(topic)
        obey(broker, maxProducers=2)
        with pytest.raises(ProducerBusy):
            admit(topic)

    with_broker(test)


def test_who_does_not_encrypt_is_kept_out_where_it_must() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        admit(topic)
        obey(broker, encryptionRequired=True)
        with pytest.raises(EncryptionRequired):
            admit(topic)
        admit(topic, encrypted=True)

    with_broker(test)


def test_a_producers_name_is_bounded() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        admit(topic, "n" * 1000)
        with pytest.raises(NotAllowed, match="name of the producer"):
            admit(topic, "n" * 1001)

    with_broker(test)


def test_nobody_publishes_to_a_shadow() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        check_source(topic)
        topic.ledger.shadow_of = "persistent://public/default/source"  # type: ignore[union-attr]
        for check in (check_source, admit):
            with pytest.raises(NotAllowed, match=r"publish to persistent://public/default/source"):
                check(topic)

    with_broker(test)


def test_a_topic_over_its_quota_takes_no_producer_or_lets_it_wait_as_its_policy_says() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        kept_out = {"producer_exception": BacklogQuotaExceeded, "producer_request_hold": BacklogQuotaHold}
        for policy in ("", "consumer_backlog_eviction", *kept_out):
            topic.over_quota = policy
            for check in (check_backlog, admit):
                if policy in kept_out:
                    with pytest.raises(kept_out[policy], match="backlog quota exceeded"):
                        check(topic)
                else:
                    check(topic)
        for policy in ("", *kept_out):
            topic.over_quota = policy
            obey(broker, storageFull=True)
            with pytest.raises(BacklogQuotaExceeded, match="tenant public stores as much as it may"):
                check_backlog(topic)

    with_broker(test)


def test_it_is_refused_where_another_region_leads_and_taken_where_every_region_does() -> None:
    async def test(broker: Broker) -> None:
        topic, now = await loaded(broker), 10.0
        assert topic.gate is None
        check_region(topic)
        writing = Writing("us", ttl_s=6.0, drift=0.1, now=lambda: now)
        writing.on_record("public/default", Leadership(active="eu"), 3)
        topic.gate = writing.gate("public/default")
        with pytest.raises(RegionPassive, match="active in region eu"):
            check_region(topic)
        writing.on_record("public/default", Leadership(active="us", epoch=2), 4)
        with pytest.raises(RegionPassive, match="lease"):
            check_region(topic)
        writing.on_renewed(now)
        writing.on_registered(4, ["public/default"])
        check_region(topic)

    with_broker(test)


def test_a_topic_has_subscriptions_of_the_types_that_it_names_and_of_every_one_where_it_names_none() -> None:
    async def test(broker: Broker) -> None:
        topic = await loaded(broker)
        for kind in SubscriptionType:
            check_type(topic, kind)
        obey(broker, subscriptionTypes=["Shared", "Key_Shared"])
        for kind in SubscriptionType:
            if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
                check_type(topic, kind)
            else:
                with pytest.raises(NotAllowed, match=f"doesn't support {kind.label} sub type"):
                    check_type(topic, kind)

    with_broker(test)


def test_a_topic_and_each_of_its_subscriptions_have_as_many_consumers_as_they_may_have() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        for number, name in enumerate(("s", "s", "t"), 1):
            await client.subscribe(number, name=name, kind=1)
        topic = await loaded(broker)
        check_consumers(topic, "s")
        obey(broker, maxConsumers=4)
        check_consumers(topic, "s")
        obey(broker, maxConsumers=3)
        for name in ("s", "t", "new"):
            with pytest.raises(ConsumerBusy, match="Topic reached max consumers limit 3"):
                check_consumers(topic, name)
        obey(broker, maxConsumersPerSubscription=2)
        with pytest.raises(ConsumerBusy, match="Subscription reached max consumers limit 2"):
            check_consumers(topic, "s")
        for name in ("t", "new"):
            check_consumers(topic, name)
        obey(broker, maxConsumersPerSubscription=3)
        check_consumers(topic, "s")

    with_broker(test)
