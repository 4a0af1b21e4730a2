"""SchemaRegistry: numbers that are never given twice, deletions, two brokers at once, regions apart."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import CorruptData, LinkError, MetadataUnavailable, NotAllowed
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import SystemClock
from region_node.replication.replicated_schemas import ReplicatedSchemas
from region_node.schemas import schema_registry
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_diff import differences
from region_node.schemas.schema_registry import SchemaRegistry, conflicting
from replicator.health.link_causes import Cause
from replicator.links.schema_feed import SchemaConflict
from tests.region_node.schemas.definitions import INT, LONG, OPTIONAL, avro, plain

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


@pytest.mark.parametrize("versions", [2, 3, 4, 7])
def test_no_version_is_left_out_where_a_page_of_the_metadata_ends(versions: int) -> None:
    async def test() -> None:
        schemas = registry(KvMachine(settings=MachineSettings(range_limit=3)))
        every = [avro(INT, name=f"R{number}") for number in range(versions)]
        for number, each in enumerate(every):
            assert await schemas.get_or_create(TOPIC, each, "ALWAYS_COMPATIBLE") == number
        assert [await schemas.find(TOPIC, each) for each in every] == list(range(versions))
        assert len(await schemas.dump(TOPIC, 1 << 20)) == versions
        await schemas.delete(TOPIC)
        assert await schemas.dump(TOPIC, 1 << 20) == []

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


def test_the_versions_of_a_topic_have_a_bound_of_bytes() -> None:
    async def test() -> None:
        first, second = avro(INT), avro(INT, name="S")
        most = first.size_bytes + second.size_bytes - 1
        schemas = SchemaRegistry(EmbeddedStore(KvMachine()), lambda: 1, SystemClock(), bytes_max=most)
        await schemas.get_or_create(BASE, first, "ALWAYS_COMPATIBLE")
        with pytest.raises(NotAllowed, match=r"would have .* bytes of schemas"):
            await schemas.get_or_create(BASE, second, "ALWAYS_COMPATIBLE")
        assert await schemas.get_or_create(BASE, first, "ALWAYS_COMPATIBLE") == 0, "what is there may be used"
        await schemas.mark_deleted(BASE)
        await schemas.get_or_create(BASE, second, "ALWAYS_COMPATIBLE")

    run(test())


def test_a_namespace_takes_the_schemas_of_its_topics_along() -> None:
    async def test() -> None:
        schemas = registry(KvMachine(settings=MachineSettings(range_limit=3)))
        other = TopicName.parse("persistent://public/default2/t")
        for number in range(8):
            await schemas.get_or_create(TopicName.parse(f"persistent://public/default/{number}"), avro(INT), "FULL")
        await schemas.get_or_create(other, avro(INT), "FULL")
        await schemas.delete_namespace("public/default")
        assert await schemas._meta.count("/schemas/public/default/") == 0
        assert len(await schemas.versions(other)) == 1

    run(test())


def test_a_topic_whose_versions_are_gone_is_not_remembered() -> None:
    async def test() -> None:
        store = EmbeddedStore(KvMachine())
        schemas = SchemaRegistry(store, lambda: 1, SystemClock())
        host = ReplicatedSchemas(
            store,
            schemas,
            region_number=lambda: 1,
            partitions=lambda _: 0,
        )
        for each in (avro(INT), avro(INT, OPTIONAL)):
            await schemas.get_or_create(BASE, each, "FULL")
        await asyncio.sleep(0.01)
        assert host.has(str(BASE))
        await store.delete(schema_registry._key(BASE, 0))
        await asyncio.sleep(0.01)
        assert host.has(str(BASE)), "one is left"
        await schemas.delete(BASE)
        await asyncio.sleep(0.01)
        assert not host.has(str(BASE)) and not host._topics
        host.close()

    run(test())


def test_two_brokers_at_once_agree() -> None:
    async def test() -> None:
        machine = KvMachine()
        one, other = registry(machine), registry(machine)
        same = await asyncio.gather(
            *(each.get_or_create(BASE, avro(INT), "ALWAYS_COMPATIBLE") for each in (one, other) * 4)
        )
        assert same == [0] * 8
        kinds = [plain(kind) for kind in ("STRING", "INT8", "INT16", "INT32", "INT64", "FLOAT")]
        numbers = await asyncio.gather(
            *(each.get_or_create(BASE, kind, "ALWAYS_COMPATIBLE") for kind in kinds for each in (one, other))
        )
        assert numbers[::2] == numbers[1::2] and sorted(numbers[::2]) == [1, 2, 3, 4, 5, 6]

    run(test())


def test_regions_give_numbers_of_their_own() -> None:
    async def test() -> None:
        machine = KvMachine()
        assert await registry(machine, 1).get_or_create(BASE, avro(INT), "FULL") == 0
        assert await registry(machine, 3).get_or_create(BASE, avro(INT, OPTIONAL), "FULL") == 2 << 40
        assert (
            await registry(machine, 1).get_or_create(BASE, avro(INT, {**OPTIONAL, "name": "z"}), "ALWAYS_COMPATIBLE")
            == 1
        )

    run(test())


def test_versions_conflict_only_where_they_say_different_things() -> None:
    async def test() -> None:
        here, there, newer = registry(KvMachine()), registry(KvMachine()), registry(KvMachine())
        await here.get_or_create(TOPIC, avro(INT), "FULL")
        await there.get_or_create(TOPIC, avro(INT), "FULL")
        await newer.get_or_create(TOPIC, avro(LONG), "FULL")
        (mine,), (same,), (other,) = [await each.dump(TOPIC, 1 << 20) for each in (here, there, newer)]
        later = (mine[0], pack([*unpack("schema", mine[1])[:4], 1]))
        assert later != mine and conflicting([mine], [later]) == conflicting([mine], [same]) == [], (
            "when it was stored does not matter"
        )
        assert conflicting([mine], [other]) == [0] and conflicting([], [other]) == []
        deleted = await newer.mark_deleted(TOPIC)
        (gone,) = await newer.dump(TOPIC, 1 << 20)
        assert conflicting([(deleted, mine[1])], [gone]) == [deleted], "a deletion is another thing"
        for bad in (b"\xff\x00", pack([1, 2]), b""):
            with pytest.raises(CorruptData):
                conflicting([mine], [(0, bad)])

    run(test())


def test_a_replaced_version_goes_on_under_a_new_number() -> None:
    async def test() -> None:
        here, there = registry(KvMachine()), registry(KvMachine())
        for schema in (avro(INT), avro(INT, OPTIONAL)):
            await here.get_or_create(TOPIC, schema, "ALWAYS_COMPATIBLE")
        await there.get_or_create(TOPIC, avro(LONG), "FULL")
        taken = await there.dump(TOPIC, 1 << 20)
        await here.replace(TOPIC, taken)
        assert {version.number: schema for version, schema in await here.versions(TOPIC)} == {
            0: avro(LONG),
            1: avro(INT, OPTIONAL),
            2: avro(INT),
        }
        await here.replace(TOPIC, taken)
        assert len(await here.versions(TOPIC)) == 3, "a second time changes nothing"
        assert await here.get_or_create(TOPIC, avro(INT), "ALWAYS_COMPATIBLE") == 2, (
            "who brings it again is told its new number"
        )

    run(test())


def test_what_arrives_and_conflicts_changes_nothing_until_it_is_decided() -> None:
    async def test() -> None:
        store, unparked = EmbeddedStore(KvMachine()), list[str]()
        restored, there = registry(KvMachine()), SchemaRegistry(store, lambda: 2, SystemClock())
        host = ReplicatedSchemas(
            store,
            there,
            region_number=lambda: 2,
            partitions=lambda topic: 0,
        )
        host.follow(SimpleNamespace(schemas_changed=lambda topic: None, unpark=unparked.append))
        for schema in (
            avro(INT),
            avro(INT, OPTIONAL),
        ):  # region 1 gave two numbers, region 2 has them; then region 1 forgot, and began anew
            await restored.get_or_create(BASE, schema, "ALWAYS_COMPATIBLE")
        await host.adopt(str(BASE), await restored.dump(BASE, 1 << 20))
        await restored.delete(BASE)
        await restored.get_or_create(BASE, avro(LONG), "FULL")
        rows, before = await restored.dump(BASE, 1 << 20), await there.dump(BASE, 1 << 20)
        with pytest.raises(SchemaConflict) as raised:
            await host.adopt(str(BASE), [*rows, (7, rows[0][1])])
        assert raised.value.rows == tuple(before), "what parts both, and what else is here"
        assert await there.dump(BASE, 1 << 20) == before, "not even what fits is taken"
        parted, only_there = differences(dict(rows), dict(before), ("us", "eu"))
        assert (
            parted["number"] == 0
            and parted["diff"].startswith("--- eu/0\n+++ us/0\n")
            and (only_there["here"], only_there["number"]) == (None, 1)
        )
        for call in (host.adopt, host.overrule):
            with pytest.raises(LinkError) as refused:
                await call(str(BASE), [(9, b"\xff")])
            assert Cause.of(refused.value) is Cause.SCHEMA_REFUSED and await there.dump(BASE, 1 << 20) == before
        await restored.replace(BASE, raised.value.rows)
        unparked.clear()
        await host.adopt(str(BASE), await restored.dump(BASE, 1 << 20))
        assert str(BASE) in unparked, "the other direction looks again"
        assert {version.number: schema for version, schema in await there.versions(BASE)} == {
            0: avro(INT),
            1: avro(INT, OPTIONAL),
            2: avro(LONG),
        }
        await host.overrule(str(BASE), rows)
        assert avro(INT) in [schema for _, schema in await there.versions(BASE)], "what was overruled is still there"
        host.close()

    run(test())


def test_many_questions_about_one_topic_are_few_reads() -> None:
    async def test() -> None:
        machine, reads = KvMachine(), list[str]()
        schemas, read = registry(machine), machine.range

        def counted(start: str, end: str, *more: Any) -> Any:
            reads.append(start)
            return read(start, end, *more)

        machine.range = counted  # type: ignore[method-assign]
        every = avro(INT)
        await schemas.get_or_create(TOPIC, every, "FULL")
        reads.clear()
        found = await asyncio.gather(*(schemas.versions(TOPIC) for _ in range(500)))
        assert [[version.number for version, _ in each] for each in found] == [[0]] * 500
        assert set(await asyncio.gather(*(schemas.get_or_create(BASE, every, "FULL") for _ in range(500)))) == {0}
        assert len(reads) == 2

    run(test())
