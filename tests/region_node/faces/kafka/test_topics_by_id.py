"""Topics by their ids: one for each incarnation, in Metadata, Produce, Fetch and its sessions, CreateTopics,
DeleteTopics, and DescribeTopicPartitions.
"""

from __future__ import annotations

import asyncio
import random

from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.ledger_metadata import pack
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.topics.serving.topic_ids import IDS, NO_ID, TopicIds
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import ORDERS, create, fetch, metadata, produce
from tests.region_node.faces.pulsar.harness import settle


def test_what_is_written_by_id_is_read_by_id_and_by_name() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        (number,) = await create(client, "orders")
        assert number != NO_ID
        (row,) = await metadata(client, {"topic_id": NO_ID, "name": "orders"})
        assert row["topic_id"] == number
        (row,) = await metadata(client, {"topic_id": number, "name": None})
        assert (row["name"], row["error_code"], len(row["partitions"])) == ("orders", 0, 1)
        answer = await client.ask("produce", 13, produce(number))
        (topic,) = answer["responses"]
        assert topic["topic_id"] == number and topic["partition_responses"][0]["base_offset"] == 0
        by_id = await client.ask("fetch", 17, fetch(number))
        by_name = await client.ask("fetch", 12, fetch("orders", how="topic"))  # type: ignore[arg-type]
        assert by_id["responses"][0]["topic_id"] == number
        assert (
            by_id["responses"][0]["partitions"][0]["high_watermark"]
            == by_name["responses"][0]["partitions"][0]["high_watermark"]
            == 1
        )

    with_face(run)


def test_a_topic_made_again_has_another_id_and_the_old_one_is_nobodys() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        (before,) = await create(client, "orders")
        session = await client.ask("fetch", 13, fetch(before, epoch=0))
        assert session["session_id"] and session["responses"][0]["partitions"][0]["error_code"] == 0
        gone = await client.ask("delete_topics", 6, {"topics": [{"name": None, "topic_id": before}], "timeout": 1000})
        assert [(row["name"], row["topic_id"], row["error_code"]) for row in gone["responses"]] == [
            ("orders", before, 0)
        ]
        answer = await client.ask("fetch", 13, fetch(before))
        assert answer["responses"][0]["partitions"][0]["error_code"] == Code.UNKNOWN_TOPIC_ID
        (after,) = await create(client, "orders")
        assert after not in (before, NO_ID)
        answer = await client.ask("produce", 13, produce(before))
        assert answer["responses"][0]["topic_id"] == before
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == Code.UNKNOWN_TOPIC_ID
        answer = await client.ask("fetch", 13, fetch(session=session["session_id"], epoch=1))
        assert [part["error_code"] for row in answer["responses"] for part in row["partitions"]] == [
            Code.UNKNOWN_TOPIC_ID
        ]
        (row,) = await metadata(client, {"topic_id": before, "name": None})
        assert (row["error_code"], row["name"], row["topic_id"]) == (Code.UNKNOWN_TOPIC_ID, None, before)
        gone = await client.ask("delete_topics", 6, {"topics": [{"name": None, "topic_id": before}], "timeout": 1000})
        assert gone["responses"][0]["error_code"] == Code.UNKNOWN_TOPIC_ID
        assert (await client.ask("produce", 13, produce(after)))["responses"][0]["partition_responses"][0][
            "error_code"
        ] == 0

    with_face(run)


def test_a_topic_deleted_by_the_other_protocol_loses_its_id() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await settle(20)
        await face.topics.create_topic(str(ORDERS))
        (row,) = await metadata(client, {"topic_id": NO_ID, "name": "orders"})
        before = row["topic_id"]
        assert before != NO_ID
        await face.topics.delete_topic(str(ORDERS), force=True)
        await face.topics.create_topic(str(ORDERS))
        await settle(20)
        (row,) = await metadata(client, {"topic_id": NO_ID, "name": "orders"})
        assert row["topic_id"] not in (before, NO_ID)

    with_face(run)


def test_a_name_that_has_partitions_later_stands_for_those() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await settle(20)
        await face.topics.create_topic(str(ORDERS))
        rows = produce(b"")["topic_data"][0]["partition_data"]
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 1000,
            "topic_data": [{"name": "orders", "partition_data": rows}],
        }

        async def offset() -> int:
            found: int = (await client.ask("produce", 7, fields))["responses"][0]["partition_responses"][0][
                "base_offset"
            ]
            return found

        assert [await offset(), await offset()] == [0, 1]
        await face.admin.create_partitioned(str(ORDERS), 2)
        await settle(50)
        assert await offset() == 0, "of partition 0, which is another topic"

    with_face(run)


def test_a_session_speaks_of_topics_in_one_way() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        (number,) = await create(client, "orders")
        begun = await client.ask("fetch", 13, fetch(number, epoch=0))
        answer = await client.ask("fetch", 12, fetch(session=begun["session_id"], epoch=1))
        assert answer["error_code"] == Code.FETCH_SESSION_TOPIC_ID_ERROR
        begun = await client.ask("fetch", 12, fetch("orders", epoch=0, how="topic"))  # type: ignore[arg-type]
        answer = await client.ask("fetch", 13, fetch(session=begun["session_id"], epoch=1))
        assert answer["error_code"] == Code.FETCH_SESSION_TOPIC_ID_ERROR

    with_face(run)


def test_topics_are_described_in_pages() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        first, second = await create(client, "a", "b", partitions=3)
        seen: list[tuple[str, bytes, int]] = []
        cursor, pages = None, 0
        while True:
            fields = {
                "topics": [{"name": "b"}, {"name": "a"}, {"name": "none"}],
                "response_partition_limit": 2,
                "cursor": cursor,
            }
            answer = await client.ask("describe_topic_partitions", 0, fields)
            for row in answer["topics"]:
                if row["name"] == "none":
                    assert row["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
                seen += [(row["name"], row["topic_id"], part["partition_index"]) for part in row["partitions"]]
                assert all(
                    part["eligible_leader_replicas"] == part["last_known_elr"] == [] for part in row["partitions"]
                ), "Java's tools take no null"
            cursor, pages = answer["next_cursor"], pages + 1
            if cursor is None:
                break
        assert seen == [("a", first, i) for i in range(3)] + [("b", second, i) for i in range(3)]
        assert pages == 4

    with_face(run)


def test_brokers_agree_on_an_id_however_they_ask() -> None:
    """Two tables over one store, topics that come and go: whoever asks hears the same, and no id comes twice."""

    async def run(seed: int) -> None:
        store, rng = EmbeddedStore(), random.Random(seed)
        tables = [TopicIds(store, rng) for _ in range(2)]
        names = [TopicName.parse(f"persistent://public/default/t{i}") for i in range(130)]
        given: set[bytes] = set()
        for _ in range(6):
            wanted = [rng.sample(names, rng.randrange(1, 130)) for _ in tables]
            await asyncio.gather(*(table.ensure(some) for table, some in zip(tables, wanted, strict=True)))
            await settle(50)
            for name in {*wanted[0], *wanted[1]}:
                number = tables[0].known(name)
                assert number != NO_ID and number == tables[1].known(name) and tables[1].names[number] == name
                given.add(number)
            for name in rng.sample(names, 20):
                number = tables[0].known(name)
                await tables[0].forget(name)
                await tables[1].forget(name)  # who hears of it later takes nothing away
                await tables[1].ensure([name])
                assert tables[1].known(name) not in given
                await tables[0].forget(name)
                await settle(50)
                assert number not in tables[0].names and tables[0].known(name) == tables[1].known(name)
        for table in tables:
            table.close()

    for seed in range(5):
        asyncio.run(run(seed))


def test_a_broker_that_hears_late_neither_takes_an_id_away_nor_gives_another() -> None:
    async def run() -> None:
        store, rng = EmbeddedStore(), random.Random(1)
        late, late_too, table = (TopicIds(store, rng) for _ in range(3))
        late_too.close()  # it hears of nothing at all
        await late.ensure([ORDERS])
        await settle(20)
        late.close()  # and this one of nothing more
        await table.forget(ORDERS)
        await table.ensure([ORDERS])
        after = table.known(ORDERS)
        assert after != late.known(ORDERS)
        await late.forget(ORDERS)
        await late_too.ensure([ORDERS])
        await settle(20)
        assert table.known(ORDERS) == late_too.known(ORDERS) == after
        table.close()

    asyncio.run(run())


def test_a_partitioned_topic_made_again_while_no_broker_looked_has_another_id() -> None:
    async def run() -> None:
        config, meta, rng = EmbeddedStore(), EmbeddedStore(), random.Random(1)
        admin = ConfigAdmin(config)
        await admin.create_region("us")
        await admin.create_tenant("public", TenantInfo(allowed_regions=("us",)))
        await admin.create_namespace("public/default", NamespacePolicies(regions=("us",)))

        async def starts() -> tuple[ConfigView, TopicIds]:
            view = ConfigView(config)
            table = TopicIds(meta, rng, view.incarnation)
            await settle(20)
            return view, table

        async def stops(view: ConfigView, table: TopicIds) -> None:
            view.close()
            table.close()

        await admin.create_partitioned(str(ORDERS), 1)
        former = await starts()
        await former[1].ensure([ORDERS])
        before = former[1].known(ORDERS)
        await stops(*former)
        await admin.update_partitioned(str(ORDERS), 3)
        grown = await starts()
        assert grown[1].known(ORDERS) == before and grown[1].named(before) == ORDERS, "it has only more partitions"
        await stops(*grown)
        await admin.delete_partitioned(str(ORDERS))
        await admin.create_partitioned(str(ORDERS), 1)
        (late_view, late), (view, table), (other_view, other) = await starts(), await starts(), await starts()
        assert late.known(ORDERS) == NO_ID and late.named(before) is None
        late.close()  # it hears of no id any more
        await asyncio.gather(table.ensure([ORDERS]), other.ensure([ORDERS]))
        await late.ensure([ORDERS])
        after = table.known(ORDERS)
        assert after not in (before, NO_ID) and after == other.known(ORDERS) == late.known(ORDERS)
        assert table.named(after) == ORDERS and table.named(before) is None
        late_view.close()
        for pair in ((view, table), (other_view, other)):
            await stops(*pair)
        await meta.put(f"{IDS}{ORDERS}", pack([before]))  # of a version that knew of no incarnations
        last = await starts()
        assert last[1].known(ORDERS) == NO_ID
        await last[1].ensure([ORDERS])
        assert last[1].known(ORDERS) not in (before, after, NO_ID)
        await stops(*last)

    asyncio.run(run())


def test_a_broker_whose_configuration_is_old_takes_no_newer_id_away() -> None:
    async def run() -> None:
        store, rng = EmbeddedStore(), random.Random(1)
        ahead, behind, unknowing = (TopicIds(store, rng, lambda _, of=of: of) for of in (2, 1, 0))  # type: ignore[misc]
        for table in (behind, ahead):
            await table.ensure([ORDERS])
            await settle(20)
        assert ahead.known(ORDERS) == behind.known(ORDERS) == unknowing.known(ORDERS) != NO_ID
        for table in (behind, unknowing, ahead):
            await table.ensure([ORDERS])
            await settle(20)
            assert table.known(ORDERS) == ahead.known(ORDERS) and len(table.names) == 1
        for table in (ahead, behind, unknowing):
            table.close()

    asyncio.run(run())


def test_an_id_that_cannot_be_read_is_none() -> None:
    async def run() -> None:
        store = EmbeddedStore()
        table = TopicIds(store, random.Random(1))
        await table.ensure([ORDERS])
        for bad in (b"", b"\x09", b"\x01\x91\x01", b"\x01\xc4", pack([bytes(range(16)), "x"])):
            await store.put(f"{IDS}{ORDERS}", bad)
            await settle(20)
            assert table.known(ORDERS) == NO_ID and not table.names
        table.close()

    asyncio.run(run())
