"""Positions of groups between rows of committed offsets and cursors that other regions move."""

from __future__ import annotations

from dataclasses import replace

from heliograph.model.configuration.configuration_records import TenantInfo
from region_node.faces.kafka.groups.committed_offsets import OFFSETS, Committed, Row
from region_node.faces.kafka.log.partition_log import KafkaLog
from tests.region_node.faces.kafka.cluster.leaderships import Leaderships
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create, produce
from tests.region_node.faces.pulsar.harness import settle

N = "public/default"


async def offset(face: Face, log: KafkaLog) -> int:
    return await face.broker.positions.offset_of(log, log.topic.subscriptions["kafka.g"].cursor)


async def in_two_regions(face: Face) -> None:
    await face.admin.create_region("eu")
    await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us", "eu")))
    await face.admin.update_namespace(N, lambda old: replace(old, regions=("us", "eu")))
    await settle(10)


def test_a_row_that_only_comes_along_with_another_partitions_sets_no_cursor_back() -> None:
    """All partitions of a topic have one value: what another region has moved stands there late."""

    async def run(face: Face) -> None:
        await in_two_regions(face)
        client = Client(face.listener)
        (topic,) = await create(client, "t")
        for _ in range(9):
            await client.ask("produce", 13, produce(topic))
        log = await face.broker.log("t", 0)
        committed = Committed(face.meta, "g")
        await committed.put({("t", 0): Row(2, -1, "", 1)})
        await settle(100)
        assert await offset(face, log) == 2
        ((key, late, version),) = face.meta.machine.range(OFFSETS, OFFSETS[:-1] + "0")[0]
        log.topic.subscriptions["kafka.g"].cursor.ack_cumulative(await log.position_of(5))
        face.broker.positions._visited([log.topic])
        await face.broker.positions.look()
        await settle(100)
        await committed.load()
        assert committed.rows["t", 0].offset == 6
        face.broker.positions._on_row(key, late, version)
        await settle(100)
        assert await offset(face, log) == 6, "it is told of late"
        await committed.put({("t", 0): Row(1, -1, "", 3)})
        await settle(100)
        assert await offset(face, log) == 1, "and this is the group's own will"

    with_face(run)


def test_an_offset_beyond_the_end_moves_no_position_where_one_region_leads() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        await in_two_regions(face)
        client = Client(face.listener)
        (topic,) = await create(client, "t")
        for _ in range(3):
            await client.ask("produce", 13, produce(topic))
        heard.say("us", 1)
        log, committed = await face.broker.log("t", 0), Committed(face.meta, "g")
        for number, place in ((1, 1), (90, 1), (2, 2), (3, 3)):
            await committed.put({("t", 0): Row(number, -1, "", 1)})
            await settle(100)
            assert await offset(face, log) == place

    with_face(run, leading=heard)
