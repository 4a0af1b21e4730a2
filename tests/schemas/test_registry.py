"""SchemaRegistry: numbers that are never given twice, deletions, two brokers at once, regions apart."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.names import TopicName
from heliograph.raft.embedded import EmbeddedStore
from heliograph.raft.machine import KvMachine
from heliograph.runtime.clock import SystemClock
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.registry import SchemaRegistry
from tests.schemas.test_compatibility import INT, LONG, OPTIONAL, avro, plain

TOPIC = TopicName.parse("persistent://public/default/t-partition-3")
BASE = TopicName.parse("persistent://public/default/t")
LIKE = TopicName.parse("persistent://public/default/t2")


def registry(machine: KvMachine, region: int = 1) -> SchemaRegistry:
    return SchemaRegistry(EmbeddedStore(machine), lambda: region, SystemClock())


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_numbers_count_up_and_the_same_schema_keeps_its_own() -> None:
    async def test() -> None:
        schemas = registry(KvMachine())
        first, second = avro(INT), avro(INT, OPTIONAL)
        assert [await schemas.get_or_create(TOPIC, each, "FULL") for each in (first, second, first)] == [0, 1, 0]
        assert await schemas.find(BASE, second) == 1 and await schemas.find(BASE, avro(LONG)) is None
        assert [version.number for version, _ in await schemas.versions(BASE)] == [0, 1]
        assert await schemas.versions(LIKE) == []
        with pytest.raises(IncompatibleSchema):
            await schemas.get_or_create(BASE, avro(LONG), "FULL")
        with pytest.raises(IncompatibleSchema, match="isAllowAutoUpdateSchema"):
            await schemas.get_or_create(BASE, avro(INT, {**OPTIONAL, "name": "d"}), "FULL", may_create=False)
        assert await schemas.get_or_create(BASE, first, "FULL", may_create=False) == 0

    run(test())


def test_what_is_counted_of_it() -> None:
    async def test() -> None:
        schemas = registry(KvMachine())
        counts = schemas.counts
        for each in (avro(INT), avro(INT, OPTIONAL), avro(INT)):
            await schemas.get_or_create(BASE, each, "FULL")
        with pytest.raises(IncompatibleSchema):
            await schemas.get_or_create(BASE, avro(LONG), "FULL")
        await schemas.mark_deleted(BASE)
        await schemas.versions(BASE)
        assert (counts.compatible, counts.incompatible) == (2, 1)
        assert {name: took.count for name, took in counts.took_ms.items()} == {"get": 1, "put": 4, "del": 1}
        assert set(counts.failed.values()) == {0}, "a schema that is refused is an answer"

        async def away(*_: object) -> Any:
            raise MetadataUnavailable("away")

        schemas._meta.range = away  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable):
            await schemas.versions(BASE)
        assert counts.failed == {"get": 1, "put": 0, "del": 0} and counts.took_ms["get"].count == 2

    run(test())


def test_a_deletion_hides_what_was_and_no_number_comes_again() -> None:
    async def test() -> None:
        schemas = registry(KvMachine())
        assert await schemas.get_or_create(BASE, avro(INT), "FULL") == 0
        assert await schemas.mark_deleted(BASE) == 1
        assert await schemas.versions(BASE) == [] and await schemas.find(BASE, avro(INT)) is None
        assert await schemas.get_or_create(BASE, plain("STRING"), "FULL") == 2
        assert [schema.type_name for _, schema in await schemas.versions(BASE)] == ["STRING"]
        assert await schemas.mark_deleted(BASE) == 3 and await schemas.mark_deleted(BASE) == 4
        await schemas.delete(BASE)
        assert await schemas.get_or_create(BASE, avro(INT), "FULL") == 0

    run(test())


def test_two_brokers_at_once_agree() -> None:
    async def test() -> None:
        machine = KvMachine()
        one, other = registry(machine), registry(machine)
        same = await asyncio.gather(*(each.get_or_create(BASE, avro(INT), "ALWAYS_COMPATIBLE") for each in (one, other) * 4))
        assert same == [0] * 8
        kinds = [plain(kind) for kind in ("STRING", "INT8", "INT16", "INT32", "INT64", "FLOAT")]
        numbers = await asyncio.gather(*(each.get_or_create(BASE, kind, "ALWAYS_COMPATIBLE") for kind in kinds for each in (one, other)))
        assert numbers[::2] == numbers[1::2] and sorted(numbers[::2]) == [1, 2, 3, 4, 5, 6]

    run(test())


def test_regions_give_numbers_of_their_own() -> None:
    async def test() -> None:
        machine = KvMachine()
        assert await registry(machine, 1).get_or_create(BASE, avro(INT), "FULL") == 0
        assert await registry(machine, 3).get_or_create(BASE, avro(INT, OPTIONAL), "FULL") == 2 << 40
        assert await registry(machine, 1).get_or_create(BASE, avro(INT, {**OPTIONAL, "name": "z"}), "ALWAYS_COMPATIBLE") == 1

    run(test())
