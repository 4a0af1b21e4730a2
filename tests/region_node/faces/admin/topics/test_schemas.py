"""A topic's schemas by admin calls, over fake storage."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.topics import schemas
from region_node.faces.admin.topics.schemas import PostSchema
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker
from tests.region_node.schemas.definitions import INT, LONG, avro

CLOSED = NamespacePolicies(regions=("us",), policies={"autoTopicCreation": {"allowAutoTopicCreation": False}})
REQUEST, NAME = cast(Any, None), TopicName.parse(TOPIC)


def admin_of(broker: Broker) -> Any:
    return SimpleNamespace(
        topics=broker.topics,
        topic=lambda request: TopicName.parse(TOPIC),
        policies=lambda namespace: None,
        changed=lambda *_: None,
    )


def test_a_topic_that_nobody_could_make_gets_no_schema() -> None:
    async def test(broker: Broker) -> None:
        admin, given = admin_of(broker), PostSchema(type="AVRO", schema=avro(INT).data.decode())
        broker.view.set("public/default", CLOSED)
        with pytest.raises(NotFound, match="create the topic first"):
            await schemas.upload(admin, REQUEST, NAME, given)
        await broker.topics.get(TOPIC, create=True)
        assert await schemas.upload(admin, REQUEST, NAME, given) == {"version": {"version": 0}}
        for kind, fits in ((INT, True), (LONG, False)):
            answer = await schemas.compatibility(admin, NAME, PostSchema(type="AVRO", schema=avro(kind).data.decode()))
            assert (b'"compatibility": true' in answer.body) == fits

    with_broker(test)


def test_others_go_on_while_all_versions_are_shown() -> None:
    async def test(broker: Broker) -> None:
        for number in range(20):
            schema = avro(INT, name=f"R{number}")
            await broker.topics.schemas.get_or_create(TopicName.parse(TOPIC), schema, "ALWAYS_COMPATIBLE")
        asking, turns = asyncio.ensure_future(schemas.every(admin_of(broker), NAME)), 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert [row["version"] for row in asking.result()["getSchemaResponses"]] == list(range(20)) and turns > 20

    with_broker(test)
