"""How many topics and partitions a namespace, and its tenant, may have."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantQuota
from heliograph.model.configuration.drill_shadows import mark
from heliograph.model.topic_names import TopicName
from region_node.topics.policies.auto_creation import PARTITIONS_OF_NAMESPACE_MAX, TooManyTopics
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, settle, with_broker

NAME = TopicName.parse(TOPIC)
PARTED = TopicName.parse("persistent://public/default/parted")


@pytest.mark.parametrize("of", ["tenant", "namespace"])
def test_partitions_count_from_when_they_are_declared_on(of: str) -> None:
    async def test(broker: Broker) -> None:
        room = broker.topics.creation.check_room
        if of == "tenant":
            broker.view.quotas["public"] = TenantQuota(max_topics=4)
        else:
            limited = NamespacePolicies(regions=("us",), policies={"maxTopics": 4})
            broker.view.set("public/default", limited)
        await room(PARTED, 4)
        with pytest.raises(TooManyTopics):
            await room(PARTED, 5)
        broker.view.counts[str(PARTED)] = 4
        with pytest.raises(TooManyTopics):
            await room(NAME)
        with pytest.raises(TooManyTopics):
            await room(PARTED, 1)
        for index in range(4):
            await broker.topics.get(str(PARTED.with_partition(index)), create=True)
        del broker.view.counts[str(PARTED)]
        with pytest.raises(TooManyTopics):
            await room(PARTED, 1)

    with_broker(test)


def test_what_is_stored_in_one_namespace_and_declared_in_another_counts_together_for_a_tenant() -> None:
    async def test(broker: Broker) -> None:
        broker.view.set("public/other", NamespacePolicies(regions=("us",)))
        broker.view.counts["persistent://public/other/parted"] = 2
        for number in range(2):
            await broker.topics.get(f"{TOPIC}{number}", create=True)
        broker.view.quotas["public"] = TenantQuota(max_topics=5)
        await broker.topics.creation.check_room(NAME)
        broker.view.quotas["public"] = TenantQuota(max_topics=4)
        with pytest.raises(TooManyTopics, match="public has 4 topics"):
            await broker.topics.creation.check_room(NAME)

    with_broker(test)


def test_a_client_declares_no_more_partitions_than_there_is_room_for() -> None:
    made = list[tuple[str, int]]()

    async def noted(topic: str, count: int) -> None:
        made.append((topic, count))

    async def test(broker: Broker) -> None:
        creation = broker.topics.creation
        creation._partition = noted
        wanted = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"autoTopicCreation": wanted}))
        assert await creation.make_partitions(TOPIC) == 3 and made == [(TOPIC, 3)]
        broker.view.quotas["public"] = TenantQuota(max_topics=2)
        with pytest.raises(TooManyTopics):
            await creation.make_partitions(TOPIC)
        assert len(made) == 1

    with_broker(test)


def test_a_namespace_has_a_bound_of_partitions_without_any_quota() -> None:
    async def test(broker: Broker) -> None:
        for domain in ("persistent", "non-persistent"):
            broker.view.counts[f"{domain}://public/default/parted"] = PARTITIONS_OF_NAMESPACE_MAX // 2 - 1
        await broker.topics.creation.check_room(NAME, 2)
        with pytest.raises(TooManyTopics, match="delete partitioned topics"):
            await broker.topics.creation.check_room(NAME, 3)

    with_broker(test)


@pytest.mark.parametrize("of", ["tenant", "namespace", "nobody"])
def test_who_declares_partitions_at_once_finds_the_room_that_others_have_taken(of: str) -> None:
    async def test(broker: Broker) -> None:
        if of == "tenant":
            broker.view.quotas["public"] = TenantQuota(max_topics=10)
        elif of == "namespace":
            broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"maxTopics": 10}))
        else:
            broker.view.counts["persistent://public/default/many"] = PARTITIONS_OF_NAMESPACE_MAX - 10
        creation, stored = broker.topics.creation, asyncio.Event()
        broker.view.counts[TOPIC] = 2

        async def make(name: TopicName, more: int) -> None:
            async with creation.making(name, more):
                await stored.wait()
                broker.view.counts[str(name)] = broker.view.counts.get(str(name), 0) + more

        others = [PARTED, *(TopicName.parse(f"{TOPIC}{number}") for number in range(3))]
        together = [asyncio.ensure_future(make(name, 3)) for name in others]
        twice = asyncio.ensure_future(make(PARTED, 3))
        await settle()
        assert [each.done() for each in together] == [False, False, True, True] and not twice.done()
        twice.cancel()
        await settle()
        with pytest.raises(TooManyTopics):
            await make(NAME, 3)
        stored.set()
        found = await asyncio.gather(*together, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), type(None), TooManyTopics, TooManyTopics]
        await creation.check_room(NAME, 2)
        assert not creation._coming

    with_broker(test)


def test_the_shadow_of_a_drill_takes_no_room_of_its_tenant_and_is_refused_by_no_quota() -> None:
    async def test(broker: Broker) -> None:
        room, shadow = broker.topics.creation.check_room, "public/default-drill-7"
        broker.view.set(shadow, NamespacePolicies(regions=("us",), policies={"properties": mark(shadow)}))
        broker.view.set("public/default-drill-8", NamespacePolicies(regions=("us",)))
        for number in range(4):
            await broker.topics.get(f"persistent://{shadow}/of-0-{number}", create=True)
        broker.view.quotas["public"] = TenantQuota(max_topics=2)
        await room(PARTED, 2)
        await room(TopicName.parse(f"persistent://{shadow}/of-3-0"), 3)
        for named_alone in (NAME, TopicName.parse("persistent://public/default-drill-8/x")):
            await room(named_alone, 2)
            with pytest.raises(TooManyTopics):
                await room(named_alone, 3)

    with_broker(test)
