"""Partitions and properties of topics by admin calls, over fake storage: what there is room for, and what goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import TenantQuota
from heliograph.model.configuration.policy_table import TOPIC_PROPERTIES_BYTES_MAX
from heliograph.model.errors import NotAllowed
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.tenancy import permissions
from region_node.faces.admin.topics import topics
from region_node.security.authorization import deleted_topic_grants
from region_node.topics.policies.auto_creation import TooManyTopics
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, settle, with_broker
from tests.region_node.schemas.definitions import INT, avro

NAME = TopicName.parse(TOPIC)
REQUEST: Any = SimpleNamespace(query={})


async def _nothing(*_: Any) -> None: ...


def admin_of(broker: Broker) -> Any:
    async def create(topic: str, count: int) -> None:
        broker.view.counts[topic] = count

    async def delete(topic: str) -> None:
        del broker.view.counts[topic]

    async def at_owner(part: TopicName, method: str, path: str, here: Any) -> Any:
        return await here(part) if await broker.topics.exists(str(part)) else None

    config = SimpleNamespace(
        create_partitioned=create, update_partitioned=create, delete_partitioned=delete, change_topic_policies=_nothing
    )
    return SimpleNamespace(
        view=broker.view,
        topics=broker.topics,
        config=config,
        topic=lambda request: NAME,
        policies=lambda namespace: None,
        at_owner=at_owner,
        seen=_nothing,
        changed=lambda *_: None,
    )


def test_partitions_are_created_and_grow_while_there_is_room() -> None:
    async def test(broker: Broker) -> None:
        admin = admin_of(broker)
        broker.view.quotas["public"] = TenantQuota(max_topics=4)
        with pytest.raises(TooManyTopics):
            await topics.create_partitioned(admin, REQUEST, NAME, 5)
        await topics.create_partitioned(admin, REQUEST, NAME, 3)
        with pytest.raises(TooManyTopics):
            await topics.grow(admin, REQUEST, NAME, 5)
        await topics.grow(admin, REQUEST, NAME, 4)
        await topics.grow(admin, REQUEST, NAME, 4)
        assert broker.view.counts == {TOPIC: 4}

    with_broker(test)


def test_what_the_partitions_of_a_topic_share_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((permissions, "gone"), (deleted_topic_grants, "forget")):
        monkeypatch.setattr(module, name, _nothing)

    async def test(broker: Broker) -> None:
        admin = admin_of(broker)
        await topics.create_partitioned(admin, REQUEST, NAME, 2)
        part = NAME.with_partition(1)
        await broker.topics.get(str(part), create=True)
        await broker.topics.new_schema(part, avro(INT))
        await topics.delete_partitioned(admin, REQUEST, NAME)
        assert not await broker.topics.exists(str(part)) and not await broker.topics.schemas.versions(NAME)

    with_broker(test)


def test_the_properties_of_a_topic_have_a_bound_of_bytes() -> None:
    async def test(broker: Broker) -> None:
        admin = admin_of(broker)
        admin.exists = lambda name: broker.topics.exists(str(name))
        await broker.topics.get(TOPIC, create=True)
        most = {f"{number:02}": "x" * 4094 for number in range(TOPIC_PROPERTIES_BYTES_MAX // 4096)}
        await topics.set_properties(admin, REQUEST, NAME, most)
        for more in ({"b": ""}, {"00": "x" * 4095}):
            with pytest.raises(NotAllowed, match="bytes of properties"):
                await topics.set_properties(admin, REQUEST, NAME, more)
        await topics.set_properties(admin, REQUEST, NAME, {"00": "x", "b": ""})
        await settle()
        assert await topics.get_properties(admin, NAME) == most | {"00": "x", "b": ""}

    with_broker(test)
