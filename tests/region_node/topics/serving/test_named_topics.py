"""What topics are asked by their names: which there are, and which of them may have a schema."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantQuota
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.schemas import schema_registry
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker
from tests.region_node.schemas.definitions import INT, OPTIONAL, avro

NAME = TopicName.parse(TOPIC)
CLOSED = NamespacePolicies(regions=("us",), policies={"autoTopicCreation": {"allowAutoTopicCreation": False}})


def test_a_topic_that_nobody_could_make_gets_no_schema() -> None:
    async def test(broker: Broker) -> None:
        topics = broker.topics
        assert await topics.new_schema(NAME, avro(INT)) == 0, "a client may make it"
        broker.view.set("public/default", CLOSED)
        with pytest.raises(NotFound, match="create the topic first"):
            await topics.new_schema(NAME, avro(INT, OPTIONAL))
        await topics.get(TOPIC, create=True)
        assert await topics.new_schema(NAME, avro(INT, OPTIONAL)) == 1
        await topics.unload(TOPIC)
        assert await topics.new_schema(NAME, avro(INT)) == 0, "it is stored"
        parted = TopicName.parse("persistent://public/default/p")
        broker.view.counts[str(parted)] = 2
        assert await topics.new_schema(parted.with_partition(1), avro(INT)) == 0

    with_broker(test)


def test_schemas_ahead_of_their_topics_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "AHEAD_MAX", 2)

    async def test(broker: Broker) -> None:
        topics = broker.topics
        for number in range(2):
            await topics.new_schema(TopicName.parse(f"{TOPIC}{number}"), avro(INT))
        with pytest.raises(NotAllowed, match="create the topic first"):
            await topics.new_schema(NAME, avro(INT))
        await topics.get(TOPIC, create=True)
        assert await topics.new_schema(NAME, avro(INT)) == 0
        broker.view.quotas["public"] = TenantQuota(max_topics=1)
        with pytest.raises(NotAllowed, match="may have 1"):
            await topics.new_schema(TopicName.parse(f"{TOPIC}0"), avro(INT, OPTIONAL))

    with_broker(test)


def test_a_list_of_very_many_partitions_lets_others_go_on() -> None:
    async def test(broker: Broker) -> None:
        broker.view.counts |= {f"{TOPIC}{index}": 1000 for index in range(4)} | {f"{TOPIC}-one": 2}
        await broker.topics.get(f"{TOPIC}0-partition-7", create=True)
        turns, listing = 0, asyncio.ensure_future(broker.topics.listed("public/default"))
        while not listing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 4
        assert listing.result() == sorted(set(listing.result())) and len(listing.result()) == 4002

    with_broker(test)
