"""Offsets by time, in whatever order times come: the first record of that time or later, as in Kafka; also when another
broker has taken the partition over.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.kafka.record_batches import build_batch
from heliograph.wire.run import Run
from region_node.faces.kafka.log.time_index import Times, times_key
from region_node.faces.kafka.log.time_search import at_time
from region_node.faces.kafka.produce_fetch.offset_requests import LATEST, MAX_TIMESTAMP
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import ORDERS, create
from tests.region_node.faces.pulsar.codec import entry

NAME = str(ORDERS.with_partition(0))
NEVER = 10_000


def first(stamps: list[int], time_ms: int, start: int = 0) -> tuple[int, int]:
    return next(
        ((offset, stamp) for offset, stamp in enumerate(stamps) if offset >= start and stamp >= time_ms), (-1, -1)
    )


@pytest.mark.parametrize("seed", range(50))
def test_the_first_block_that_reaches_a_time_holds_the_first_record_that_does(seed: int) -> None:
    rng, known, stamps, start = random.Random(seed), Times(0, block_bytes=100_000), list[int](), 0
    for _ in range(300):
        fresh = [rng.randrange(1000) for _ in range(rng.randrange(4))]
        known.add(len(stamps), len(fresh), max(fresh, default=-1), rng.randrange(50_000), blocks_max=8)
        known.add(len(stamps) + 7, 1, NEVER, 1)  # nothing is known of what lies before it
        stamps += fresh
        known.add(len(stamps) - 1, 1, NEVER, 1)  # and this is known already
        if rng.random() < 0.05:
            _, known = Times.load(known.dump(1))
        if rng.random() < 0.03:
            start = rng.randrange(start, len(stamps) + 1)
            known.forget_before(start)
        blocks = known.blocks(start)
        assert known.end == len(stamps) and len(blocks) <= 8
        wanted = rng.randrange(1100)
        offset, _ = first(stamps, wanted, start)
        if offset >= 0:
            found = next(
                block
                for block in blocks
                if block[2] >= wanted and any(s >= wanted for s in stamps[block[0] : block[1]])
            )
            assert found[0] <= offset < found[1]
    assert known.begin <= start


def test_blocks_that_cannot_be_are_refused() -> None:
    known = Times(3)
    known.add(3, 2, 7, 1)
    good = known.dump(1)
    assert Times.load(good)[1].blocks(0) == [(3, 5, 7)]
    for bad in (
        b"",
        b"\xc1",
        good[:-1],
        good.replace(b"\x97\x01", b"\x97\x02"),
        Times(5).dump(1)[:-2] + b"\x91\x09\x91\x00",
        b"\x91\x01",
    ):
        with pytest.raises(CorruptData):
            Times.load(bad)


async def publish(client: Client, *stamps: int) -> None:
    batch = build_batch([(stamp, b"k", b"v", ()) for stamp in stamps])
    rows = [{"name": "orders", "partition_data": [{"index": 0, "records": batch}]}]
    answer = await client.ask("produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows})
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


async def asked(client: Client, time_ms: int, isolation_level: int = 0) -> tuple[int, int]:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time_ms}
    fields = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": "orders", "partitions": [part]}],
    }
    row = (await client.ask("list_offsets", 7, fields))["topics"][0]["partitions"][0]
    assert row["error_code"] == 0
    return row["offset"], row["timestamp"]


async def check(client: Client, stamps: list[int], rng: random.Random, start: int = 0) -> None:
    for wanted in {0, max(stamps), max(stamps) + 1, *(rng.choice(stamps) + rng.choice((0, 1)) for _ in range(15))}:
        assert await asked(client, wanted) == first(stamps, wanted, start), wanted
    assert await asked(client, MAX_TIMESTAMP) == first(stamps, max(stamps[start:]), start)


@pytest.mark.parametrize("seed", range(6))
def test_times_in_any_order_by_clients_of_both_protocols_and_after_a_takeover(seed: int) -> None:
    async def run(face: Face) -> None:
        rng, client, stamps = random.Random(seed), Client(face.listener), list[int]()
        await create(client, "orders")
        (await face.broker.log("orders", 0)).times = Times(0, block_bytes=60_000)
        for step in range(60):
            fresh = [rng.randrange(1, 5000) for _ in range(rng.randrange(1, 4))]
            await publish(client, *fresh)
            stamps += fresh
            (ledger,) = face.factory.ledgers.values()
            if rng.random() < 0.1:
                ledger.rollover()
            if step == 20:
                log = await face.broker.log("orders", 0)
                assert log.sequences is not None
                await log.store._save(log.sequences, log.times)
            if step == 30:
                await check(client, stamps, rng)
            if step == 40:
                face.broker._logs.clear()  # another broker loads it: what was stored, and what came since
                face.broker._at_once.clear()
        log = await face.broker.log("orders", 0)
        assert (log.times.begin, log.times.end) == (0, len(stamps))
        await check(client, stamps, rng)
        assert await asked(client, LATEST) == (len(stamps), -1)
        await log.delete_before(50)
        await check(client, stamps, rng, start=50)

    with_face(run)


def test_what_the_blocks_do_not_know_is_read_when_somebody_asks() -> None:
    async def run(face: Face) -> None:
        client, rng = Client(face.listener), random.Random(1)
        await create(client, "orders")
        await publish(client, 500, 900)
        log = await face.broker.log("orders", 0)
        published: list[Any] = []
        for stamp in (700, 100):
            part = entry(b"of pulsar", event_time=stamp)
            log.topic.publish(Run([part], [len(part)]), published.append, published.append)
        await publish(client, 300, 950)
        stamps = [500, 900, 700, 100, 300, 950]
        assert log.times.end == 2, "Pulsar's entries are not looked into as they come"
        await check(client, stamps, rng)
        assert log.times.end == 6
        await publish(client, 10)
        assert log.times.end == 7, "and from there on it goes by itself"
        await check(client, [*stamps, 10], rng)

    with_face(run)


def test_more_than_one_request_reads_is_halved_until_it_is_known() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")
        for stamp in range(100, 200, 10):
            await publish(client, stamp)
        log = await face.broker.log("orders", 0)
        log.times = Times(0)
        assert await at_time(log, 155, catch_up_bytes=1) == (6, 160)
        assert log.times.end == 1, "one entry a request"
        for _ in range(9):
            assert await at_time(log, 101, catch_up_bytes=1) == (1, 110)
        assert log.times.end == 10 and await asked(client, MAX_TIMESTAMP) == (9, 190)

    with_face(run)


def test_times_of_another_log_count_for_nothing() -> None:
    """A broker of an earlier version has deleted the partition, and knew nothing of them."""

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")
        await publish(client, 5)
        other = Times(0)
        other.add(0, 1, NEVER, 1)
        for stored in (other.dump(ledger=77), b"no such bytes"):
            await face.meta.put(times_key(NAME), stored)
            face.broker._logs.clear()
            face.broker._at_once.clear()
            assert (await face.broker.log("orders", 0)).times.blocks(0) == [(0, 1, 5)]
        await face.topics.delete_topic(NAME, force=True)
        assert await face.meta.get(times_key(NAME)) is None

    with_face(run)
