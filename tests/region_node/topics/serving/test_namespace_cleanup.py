"""What is left of a namespace that is deleted, here or in another region."""

from __future__ import annotations

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.topic_names import TopicName
from region_node.topics.serving.namespace_cleanup import NamespaceCleanup
from storage.managed_ledger.append_counts import Appends
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, settle, with_broker
from tests.region_node.schemas.definitions import INT, avro

NAME = TopicName.parse(TOPIC)


def delete(broker: Broker, namespace: str) -> None:
    del broker.view.known[namespace]
    for callback in list(broker.view.callbacks):
        callback(f"/namespaces/{namespace}")


def test_the_schemas_of_a_namespace_go_where_it_is_deleted_elsewhere() -> None:
    async def test(broker: Broker) -> None:
        broker.view.set("public/other", NamespacePolicies(regions=("us",)))
        cleanup, other = NamespaceCleanup(broker.topics, Appends()), TopicName.parse("persistent://public/other/t")
        for name in (NAME, other):
            await broker.topics.schemas.get_or_create(name, avro(INT), "FULL")
        delete(broker, "public/default")
        await settle()
        assert not await broker.topics.schemas.versions(NAME) and await broker.topics.schemas.versions(other)
        cleanup.close()
        delete(broker, "public/other")
        await settle()
        assert await broker.topics.schemas.versions(other)

    with_broker(test)


def test_a_namespace_that_comes_back_meanwhile_keeps_what_is_not_deleted_yet() -> None:
    async def test(broker: Broker) -> None:
        schemas, asked = broker.topics.schemas, list[bool]()
        await schemas.get_or_create(NAME, avro(INT), "FULL")

        def still() -> bool:
            asked.append(False)
            return False

        await schemas.delete_namespace("public/default", still)
        assert asked and await schemas.versions(NAME)

    with_broker(test)


@pytest.mark.parametrize("why", ["a topic is stored", "it is there again", "a backup was restored"])
def test_the_schemas_of_a_namespace_stay_while_something_may_need_them(why: str) -> None:
    async def test(broker: Broker) -> None:
        cleanup, policies = NamespaceCleanup(broker.topics, Appends()), broker.view.known["public/default"]
        await broker.topics.schemas.get_or_create(NAME, avro(INT), "FULL")
        if why == "a topic is stored":
            await broker.topics.get(TOPIC, create=True)
            await broker.topics.unload(TOPIC)
        delete(broker, "public/default")
        if why == "it is there again":
            broker.view.set("public/default", policies)
        elif why == "a backup was restored":
            broker.view.restored = b"another"
        await settle()
        assert await broker.topics.schemas.versions(NAME)
        cleanup.close()

    with_broker(test)


def test_what_was_counted_of_a_namespace_makes_room_for_another_once_it_is_gone() -> None:
    async def test(broker: Broker) -> None:
        appends = Appends()
        cleanup = NamespaceCleanup(broker.topics, appends)
        broker.view.set("public/other", NamespacePolicies(regions=("us",)))
        for topic in (TOPIC, "persistent://public/other/t"):
            appends.of(topic).confirmed(1, 1, 1, 0.0)
        delete(broker, "public/default")
        await settle()
        assert list(appends.namespaces) == ["public/other"]
        cleanup.close()

    with_broker(test)
