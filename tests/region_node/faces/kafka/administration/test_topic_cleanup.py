"""What is kept beside a partition's records goes with them, and only with them: its topic's id, committed offsets, and
sequences; and nothing that is used by Kafka's clients goes because nobody is connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from global_config.backup import restored_rows
from global_config.keys import PARTITIONED, namespace
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import RANGE_LIMIT, Delete, Put, pages_under
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TopicPolicies
from heliograph.model.errors import MetadataUnavailable, StorageError
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups.committed_offsets import Committed, Row
from region_node.faces.kafka.log.sequence_store import key_of
from region_node.schemas.schema_definition import Schema
from region_node.topics.serving.loaded_topics import Loaded
from tests.region_node.faces.kafka.cluster.leaderships import Leaderships
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import ORDERS, create, fetch, metadata, produce
from tests.region_node.faces.pulsar.harness import settle

NO_GENERATION = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}


async def commit(client: Client, topic: str, **offsets: int) -> None:
    """offsets: p0=7 is offset 7 of partition 0."""
    parts = [
        {"partition_index": int(name[1:]), "committed_offset": at, "committed_metadata": ""}
        for name, at in offsets.items()
    ]
    answer = await client.ask(
        "offset_commit", 7, {"group_id": "g", **NO_GENERATION, "topics": [{"name": topic, "partitions": parts}]}
    )
    assert all(part["error_code"] == 0 for row in answer["topics"] for part in row["partitions"]), answer


async def committed(client: Client, topic: str, *partitions: int) -> list[int]:
    answer = await client.ask(
        "offset_fetch", 5, {"group_id": "g", "topics": [{"name": topic, "partition_indexes": list(partitions)}]}
    )
    return [part["committed_offset"] for row in answer["topics"] for part in row["partitions"]]


async def filled(face: Face, client: Client) -> bytes:
    """`orders` of two partitions, one of them with a record, both with offsets of a group; returns its id."""
    (number,) = await create(client, "orders", partitions=2)
    assert (await client.ask("produce", 13, produce(number)))["responses"][0]["partition_responses"][0][
        "error_code"
    ] == 0
    await commit(client, "orders", p0=1, p1=5)
    await face.meta.put(key_of(str(ORDERS.with_partition(0))), b"of its producers")
    return number


def test_a_partition_that_is_deleted_alone_begins_anew_for_everybody() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        before = await filled(face, client)
        await face.topics.delete_topic(str(ORDERS.with_partition(0)), force=True)
        await settle(20)
        answer = await client.ask("fetch", 13, fetch(before))
        assert answer["responses"][0]["partitions"][0]["error_code"] == Code.UNKNOWN_TOPIC_ID, (
            "offsets under this id speak of records that are gone"
        )
        (row,) = await metadata(client, {"topic_id": bytes(16), "name": "orders"})
        assert row["topic_id"] not in (before, bytes(16)) and row["error_code"] == 0
        assert await committed(client, "orders", 0, 1) == [-1, 5]
        assert await face.meta.get(key_of(str(ORDERS.with_partition(0)))) is None
        answer = await client.ask("produce", 13, produce(row["topic_id"]))
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0

    with_face(run)


def test_many_topics_that_go_at_once_are_forgotten_a_few_at_a_time() -> None:
    async def run(face: Face) -> None:
        forget, now, most, done = face.broker.ids.forget, 0, 0, list[TopicName]()

        async def counted(topic: TopicName) -> None:
            nonlocal now, most
            now, most = now + 1, max(most, now + 1)
            await settle(3)
            await forget(topic)
            now -= 1
            done.append(topic)

        face.broker.ids.forget = counted  # type: ignore[method-assign]
        names = [f"persistent://public/default/many-{number}" for number in range(40)]
        for name in names:
            await face.admin.create_partitioned(name, 1)
        await asyncio.gather(*map(face.admin.delete_partitioned, names))
        while len(done) < len(names):
            await settle()
        assert 1 < most < 10

    with_face(run)


def test_what_speaks_of_records_goes_before_they_do() -> None:
    """A broker that dies while it deletes leaves records without an id, and never an id, or an offset, for other
    records.
    """

    async def run(face: Face) -> None:
        client = Client(face.listener)
        before = await filled(face, client)

        async def dies(topic: str, claimed: Callable[[], Awaitable[object]], *, owner: int) -> None:
            await claimed()
            raise StorageError("the broker is gone")

        face.factory.delete = dies  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await face.topics.delete_topic(str(ORDERS.with_partition(0)), force=True)
        await settle(20)
        assert face.ids.named(before) is None and await committed(client, "orders", 0, 1) == [-1, 5]

    with_face(run)


def test_a_topic_without_partitions_takes_its_offsets_along_whoever_deletes_it() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await settle(20)
        await face.topics.create_topic(str(ORDERS))
        await commit(client, "orders", p0=3)
        await create(client, "others")
        await commit(client, "others", p0=4)
        await face.topics.delete_topic(str(ORDERS), force=True)
        await face.topics.create_topic(str(ORDERS))
        assert await committed(client, "orders", 0) == [-1] and await committed(client, "others", 0) == [4]

    with_face(run)


@pytest.mark.parametrize("partitions", [0, 2])
def test_grants_policies_and_schemas_end_with_a_topic_that_a_client_deletes(partitions: int) -> None:
    """Before its name is free: a deletion that fails at them can be given again."""

    async def run(face: Face) -> None:
        client, name = Client(face.listener), str(ORDERS)
        await settle(20)
        if partitions:
            await create(client, "orders", partitions=partitions)
        else:
            await face.topics.create_topic(name)
        await face.admin.update_namespace(
            "public/default", lambda found: replace(found, topic_permissions={name: {"ann": ["consume"]}})
        )
        await face.admin.change_topic_policies(name, lambda _: TopicPolicies(policies={"maxConsumers": 3}))
        await face.topics.schemas.get_or_create(ORDERS, Schema(1, "orders", b""), "FULL")
        txn, face.config.txn = face.config.txn, _away  # type: ignore[method-assign]
        await settle(20)

        async def delete() -> int:
            asked = {"topic_names": ["orders"], "timeout_ms": 1000}
            code: int = (await client.ask("delete_topics", 4, asked))["responses"][0]["error_code"]
            return code

        assert await delete() != 0
        face.config.txn = txn  # type: ignore[method-assign]
        await settle(20)
        assert await delete() == 0, "it is still there"
        await settle(20)
        found = face.view.namespace("public/default")
        assert found is not None and found.topic_permissions == {} and face.view.topic_policies(name) is None
        assert await face.topics.schemas.versions(ORDERS) == []

    with_face(run)


async def _away(*_: Any) -> Any:
    raise MetadataUnavailable("no majority")


def test_a_topic_that_a_restored_configuration_does_not_know_keeps_what_groups_have_committed() -> None:
    """It was made after the backup, and nobody deleted it: its partitions have their data, too."""

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await settle(20)
        await filled(face, client)
        rows = await face.config.range("/", "0")
        kept = [(key, (value, 1, 0)) for key, value, _ in rows if not key.startswith(PARTITIONED)]
        made = next(row for row in rows if row[0].startswith(PARTITIONED))
        restored = [Put(key, value) for key, value in restored_rows(kept, 5)]
        await face.config.txn([Delete(made[0]), *restored])  # as one listing: what is gone comes first
        await settle(20)
        assert not face.view.partitions(str(ORDERS)), "nobody has made it again yet"
        await face.config.put(made[0], made[1])
        await settle(20)
        assert await committed(client, "orders", 0, 1) == [1, 5]
        await face.admin.delete_partitioned(str(ORDERS))
        await settle(20)
        await face.config.put(made[0], made[1])
        await settle(20)
        assert await committed(client, "orders", 0, 1) == [-1, -1], "what is deleted afterwards is deleted"

    with_face(run)


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "not in a restored configuration"])
def test_leader_epochs_go_with_their_namespace_where_somebody_deletes_it(deleted: bool) -> None:
    heard, name = Leaderships(), "public/default"

    async def run(face: Face) -> None:
        await settle(20)
        heard.say("us", 1)
        led = face.leading.epoch(name)
        await settle(20)
        rows = await face.config.range("/", "0")
        restored = restored_rows([(key, (value, 1, 0)) for key, value, _ in rows if key != namespace(name)], 5)
        await face.config.txn([Delete(namespace(name)), *([] if deleted else [Put(*row) for row in restored])])
        del heard.records[name]
        heard.gone[name] = None
        await settle(20)
        assert face.view.namespace(name) is None
        assert face.leading.led(name, led) is not deleted

    with_face(run, leading=heard)


def test_a_topic_that_kafkas_clients_use_is_not_inactive_when_none_is_connected() -> None:
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "deleteWhileInactive": True,
        "maxInactiveDurationSeconds": 60,
    }

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await client.ask(
            "metadata", 4, {"topics": [{"name": "asked-for"}], "allow_auto_topic_creation": True}
        )  # it has no retention policy of its own
        rows = produce(b"")["topic_data"][0]["partition_data"]
        await client.ask(
            "produce",
            7,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": 1000,
                "topic_data": [{"name": "asked-for", "partition_data": rows}],
            },
        )
        await face.admin.update_namespace(
            "public/default",
            lambda found: NamespacePolicies(regions=found.regions, policies={"inactiveTopics": inactive}),
        )
        plain = "persistent://public/default/of-pulsar"
        await face.topics.get(plain, create=True)
        for _ in range(120):
            face.clock.now += 1
            face.topics._visit(face.clock.now)
            await settle(5)
        assert list(face.topics.loaded) == ["persistent://public/default/asked-for-partition-0"]

    with_face(run)


def test_what_was_deleted_does_not_come_back_with_another_coordinators_commit() -> None:
    async def run() -> None:
        store = EmbeddedStore()
        one, other = Committed(store, "g"), Committed(store, "g")
        await one.put({("t", 0): Row(10, -1, "", 1), ("t", 1): Row(11, -1, "", 1), ("u", 0): Row(12, -1, "", 1)})
        await other.load()
        await one.delete([("t", 0), ("u", 0)])
        await other.put({("t", 1): Row(21, -1, "", 2)})
        await other.put({("u", 1): Row(22, -1, "", 2)})
        await one.load()
        assert one.rows == other.rows == {("t", 1): Row(21, -1, "", 2), ("u", 1): Row(22, -1, "", 2)}
        await one.put({("t", 1): Row(31, -1, "", 3)})
        await other.delete([("t", 1), ("u", 1)])
        await one.load()
        assert one.rows == {("t", 1): Row(31, -1, "", 3)}, "what was committed since is not what was to go"

    asyncio.run(run())


def test_everything_under_a_prefix_is_read_however_much_there_is() -> None:
    async def run() -> None:
        store, count = EmbeddedStore(), 2 * RANGE_LIMIT + 3
        for first in range(0, count, 1000):
            await store.txn([Put(f"/a/{i:06}", b"") for i in range(first, min(count, first + 1000))])
        await store.put("/b", b"")
        pages = [rows async for rows in pages_under(store, "/a/")]
        assert [key for rows in pages for key, _, _ in rows] == [f"/a/{i:06}" for i in range(count)] and len(pages) == 3
        assert [rows async for rows in pages_under(store, "/c/")] == []

    asyncio.run(run())


class Unlisted(Loaded):
    """A table that nobody walks through."""

    def values(self) -> Any:
        raise AssertionError("all topics were looked at")

    items = values


def test_groups_positions_are_followed_without_a_look_at_all_topics() -> None:
    async def run(face: Face) -> None:
        client, kafka = Client(face.listener), "public/both/t"
        await face.admin.create_region("eu")
        await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us", "eu")))
        await face.admin.create_namespace("public/both", NamespacePolicies(regions=("us", "eu")))
        await settle(20)
        topic: Any = await face.topics.get(f"persistent://{kafka}", create=True)
        rows = produce(b"")["topic_data"][0]["partition_data"]
        for _ in range(3):
            await client.ask(
                "produce",
                7,
                {
                    "transactional_id": None,
                    "acks": -1,
                    "timeout": 1000,
                    "topic_data": [{"name": kafka, "partition_data": rows}],
                },
            )
        found: Any = await topic.subscription("kafka.g", initial=(-1, -1))
        face.topics._visit(face.clock.now)
        loaded, all_of_them = face.topics.loaded, Unlisted()
        all_of_them.update(loaded)
        face.topics.loaded = all_of_them
        found.cursor.ack_cumulative(topic.ledger.positions()[1])
        try:
            await face.broker.positions.look()
        finally:
            face.topics.loaded = loaded
        assert await committed(client, kafka, 0) == [2]
        await topic.delete_subscription("kafka.g", force=True)
        await face.broker.positions.look()
        assert not face.broker.positions._followed and not face.broker.positions._known

    with_face(run)


def test_partitions_that_are_other_brokers_by_now_are_not_counted_and_not_kept() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)

        def loaded() -> list[float]:
            return [
                value for name, _, _, value in face.listener.samples() if name == "heliograph_kafka_partitions_loaded"
            ]

        assert loaded() == [1]
        await face.topics.unload(str(ORDERS.with_partition(0)))
        assert loaded() == [0] and not face.broker._logs and not face.broker._at_once

    with_face(run)


@pytest.mark.parametrize("told", ["orders", "persistent://orders", "public/default/orders", str(ORDERS)])
def test_offsets_go_with_their_topic_however_its_name_was_written(told: str) -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        await commit(client, told, p0=3, p1=4)
        for name in ("orders", "public/default/orders", told):
            assert await committed(client, name, 0, 1) == [3, 4], "it is one topic"
        held = await face.broker.coordinator.held("old")  # as earlier versions wrote them
        await held.offsets.put({(told, 0): Row(7, -1, "", 1)})
        fields = {"group_id": "old", "topics": [{"name": told, "partition_indexes": [0]}]}
        assert (await client.ask("offset_fetch", 5, fields))["topics"][0] == {
            "name": told,
            "partitions": [
                {
                    "partition_index": 0,
                    "committed_offset": 7,
                    "committed_leader_epoch": -1,
                    "metadata": "",
                    "error_code": 0,
                }
            ],
        }
        await client.ask("delete_topics", 4, {"topic_names": [told], "timeout": 1000})
        await settle(50)
        await create(client, "orders", partitions=2)
        assert await committed(client, told, 0, 1) == await committed(client, "orders", 0, 1) == [-1, -1]
        assert (await client.ask("offset_fetch", 5, fields))["topics"][0]["partitions"][0]["committed_offset"] == -1

    with_face(run)


def test_offsets_are_deleted_however_the_topics_name_is_written() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        fields = {"group_id": "g", "topics": [{"name": str(ORDERS), "partitions": [{"partition_index": 0}]}]}
        answer = await client.ask("offset_delete", 0, fields)
        assert answer["topics"] == [{"name": str(ORDERS), "partitions": [{"partition_index": 0, "error_code": 0}]}]
        assert await committed(client, "orders", 0, 1) == [-1, 5]

    with_face(run)
