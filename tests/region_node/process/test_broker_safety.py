"""When the newest thing was made that has the name of what was deleted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.tombstones import Tombstone
from heliograph.model.errors import NotAllowed
from region_node.process.broker_safety import BrokerDeletions


def deletions(stored: dict[str, int], parted: dict[str, int]) -> BrokerDeletions:
    """Name of a topic -> when it was made, in ms."""

    async def names(namespace: str) -> list[str]:
        return sorted(stored)

    async def created_ms(name: str) -> int:
        return stored.get(name, 0)

    view = SimpleNamespace(partitioned=lambda namespace: sorted(parted), created_ms=lambda name: parted.get(name, 0))
    broker: Any = SimpleNamespace(topics=SimpleNamespace(stored=names, created_ms=created_ms), view=view)
    return BrokerDeletions(broker)


@pytest.mark.parametrize(
    ("stored", "parted", "newest"),
    [({}, {}, 0), ({"t": 5}, {}, 5), ({}, {"p": 7}, 7), ({"t": 5, "u": 9}, {"p": 7}, 9)],
)
def test_a_namespace_of_which_nothing_is_left_was_never_made_again(
    stored: dict[str, int], parted: dict[str, int], newest: int
) -> None:
    found = Tombstone(topic="t/n", regions=("us",), since_ms=6, until_ms=8)
    assert asyncio.run(deletions(stored, parted).made_ms(found)) == newest


def owned_by(owner: object, record: object, *, served: bool = True) -> SimpleNamespace:
    return SimpleNamespace(owner=owner, record=record, bundles=lambda namespace: object() if served else None)


@pytest.mark.parametrize(("topic", "partitions"), [("t/n", 0), ("persistent://t/n/x", 2), ("persistent://t/n/x", 0)])
def test_schemas_go_once_the_region_has_nothing_else_of_it(topic: str, partitions: int) -> None:
    stored, gone = dict.fromkeys(("persistent://t/n/x-partition-0", "persistent://t/n/x-partition-1")), list[str]()
    record = object()

    async def names(namespace: str) -> list[str]:
        return sorted(stored)

    async def exists(name: str) -> bool:
        return name in stored

    async def purge(name: str, *, owned: bool) -> None:
        assert owned
        del stored[name]

    async def owner(name: str) -> object:
        return record if name != "persistent://t/n/x-partition-1" else None

    async def delete(name: object) -> None:
        gone.append(str(name))

    topics = SimpleNamespace(
        stored=names, exists=exists, purge=purge, schemas=SimpleNamespace(delete=delete, delete_namespace=delete)
    )
    broker: Any = SimpleNamespace(topics=topics, ownership=owned_by(owner, record))
    found = Tombstone(topic=topic, partitions=partitions, regions=("us",), since_ms=6, until_ms=8)

    async def test() -> None:
        if partitions or topic == "t/n":
            assert not await BrokerDeletions(broker).purge(found) and not gone, "another broker's are left"
        stored.clear()
        assert await BrokerDeletions(broker).purge(found) and gone == [topic]

    asyncio.run(test())


def test_a_topic_that_is_gone_was_never_made_again() -> None:
    found = Tombstone(topic="persistent://t/n/x", regions=("us",), since_ms=6, until_ms=8)
    assert asyncio.run(deletions({}, {}).made_ms(found)) == 0


@pytest.mark.parametrize("topic", ["t/n", "persistent://t/n/x"])
def test_a_region_that_has_left_the_namespace_purges_its_copy_though_nobody_owns_it(topic: str) -> None:
    stored, schemas = ["persistent://t/n/x"], list[object]()

    async def names(namespace: str) -> list[str]:
        return list(stored)

    async def exists(name: str) -> bool:
        return name in stored

    async def purge(name: str, *, owned: bool) -> None:
        assert not owned
        stored.remove(name)

    async def owner(name: str) -> object:
        raise NotAllowed("namespace t/n is not served in region us, but in eu")

    async def delete(name: object) -> None:
        schemas.append(name)

    topics = SimpleNamespace(
        stored=names, exists=exists, purge=purge, schemas=SimpleNamespace(delete=delete, delete_namespace=delete)
    )
    broker: Any = SimpleNamespace(topics=topics, ownership=owned_by(owner, object(), served=False))
    found = Tombstone(topic=topic, regions=("us",), since_ms=6, until_ms=8)
    assert asyncio.run(BrokerDeletions(broker).purge(found))
    assert not stored and schemas
