"""A partition's log of very many ledgers, whose oldest are told only once they were read: its ends, offsets, and times
are found all the same.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from heliograph.model.errors import EntriesLost
from heliograph.wire.kafka.entry_conversion import entry_of
from heliograph.wire.kafka.record_batches import build_batch, peek_batch, records_of, sealed
from heliograph.wire.run import FLAG_KAFKA, Run
from region_node.faces.kafka.error_codes import Code, code_of
from region_node.faces.kafka.log.partition_log import KafkaLog
from region_node.faces.kafka.log.time_search import at_time, newest
from tests.region_node.faces.kafka.harness import Client, Face, KafkaLedger, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.faces.pulsar.harness import settle

STEP_MS = 1000


async def filled(face: Face, client: Client, ledgers: int) -> KafkaLedger:
    """A topic `orders` of ledgers that hold two batches of two records each; the time of the record at offset n is n *
    STEP_MS.
    """
    await create(client, "orders")
    ledger: Any = None
    for at in range(0, 4 * ledgers, 2):
        batch = build_batch([((at + i) * STEP_MS, b"k", b"v", ()) for i in range(2)])
        rows = [{"name": "orders", "partition_data": [{"index": 0, "records": batch}]}]
        answer = await client.ask(
            "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": rows}
        )
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == Code.NONE
        (ledger,) = face.factory.ledgers.values()
        if at % 4 == 2:
            ledger.rollover()
    ledger.unread = True
    return cast(KafkaLedger, ledger)


def test_a_time_is_found_by_few_reads_however_many_ledgers_there_are() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        ledger = await filled(face, client, 120)
        log = await face.broker.log("orders", 0)
        for offset in (0, 1, 239, 240, 477, 479):
            before = ledger.reads
            assert await at_time(log, offset * STEP_MS) == (offset, offset * STEP_MS)
            assert ledger.reads - before <= 10, "seven ledgers of 120, two entries, and the one that holds it"
        before = ledger.reads
        assert await at_time(log, 480 * STEP_MS) == (-1, -1) and ledger.reads - before <= 7

    with_face(run)


def test_ends_offsets_and_times_of_very_many_ledgers() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        ledger = await filled(face, client, 6)
        log = await face.broker.log("orders", 0)
        first = ledger.runs[0][0]
        assert (log.log_offset, log.high_watermark, await newest(log)) == (0, 24, (23, 23 * STEP_MS))
        for offset in range(24):
            ledger.unread = True
            assert await log.position_of(offset) == (first + offset // 4, offset % 4 // 2)
            ledger.unread = True
            assert await at_time(log, offset * STEP_MS) == (offset, offset * STEP_MS)
        ledger.unread = True
        assert await at_time(log, 99 * STEP_MS) == (-1, -1)
        ledger.unread = True
        assert await log.delete_before(9) == 9 and log.low_cursor.mark_delete == (first + 1, 1)

    with_face(run)


async def one_ledger(face: Face, client: Client, entries: int) -> KafkaLedger:
    """A topic `orders` of one ledger, of so many entries of two records each."""
    await filled(face, client, entries // 2)
    (ledger,) = face.factory.ledgers.values()
    ledger.unread = False
    ledger.runs = [(10, number, run) for number, (_, _, run) in enumerate(ledger.runs)]
    ledger.ledger, ledger.next = 10, len(ledger.runs)
    return cast(KafkaLedger, ledger)


def test_every_offset_is_found_whatever_is_lost_around_it() -> None:
    async def run(face: Face) -> None:
        ledger = await one_ledger(face, Client(face.listener), 12)
        log = await face.broker.log("orders", 0)
        for first in range(12):
            for last in range(first, 12):
                ledger.lost = EntriesLost(10, first, last)
                for offset in range(24):
                    entry = offset // 2
                    wanted = entry if not first <= entry <= last else None
                    found = await log.position_of(offset)
                    if wanted is None:
                        assert found[0] == 10 and first <= found[1] <= last, (first, last, offset, found)
                    else:
                        assert found == (10, wanted), (first, last, offset)

    with_face(run)


def test_a_fetch_of_what_is_lost_fails_by_a_name_or_goes_on_behind_it() -> None:
    async def run(face: Face) -> None:
        ledger = await one_ledger(face, Client(face.listener), 12)
        ledger.cache = False
        log = await face.broker.log("orders", 0)
        log._ends.clear()
        ledger.lost = EntriesLost(10, 4, 6)
        pieces = await log.fetch(0, 1 << 20)
        assert sum(len(run.parts) for *_, run in pieces) == 4
        log.batches(pieces, 0, 1 << 20)
        for offset in (8, 9, 13):
            with pytest.raises(EntriesLost) as told:
                await log.fetch(offset, 1 << 20)
            assert code_of(told.value) == Code.CORRUPT_MESSAGE
        assert (await log.fetch(14, 1 << 20))[0][1] == 7, "who seeks behind it reads on"
        log.topic.policies.values["autoSkipNonRecoverableData"] = True
        pieces = await log.fetch(8, 1 << 20)
        assert pieces[0][1] == 7
        (first, *_) = log.batches(pieces, 8, 1)
        assert int.from_bytes(bytes(first)[:8], "big") == 14
        ledger.lost = EntriesLost(10, 9, 11)
        log.batches(await log.fetch(14, 1 << 20), 14, 1 << 20)
        assert await log.fetch(18, 1 << 20) == []
        (gap,) = await log.passed_over(18, 2)
        batch = peek_batch(gap)
        assert int.from_bytes(bytes(gap)[:8], "big") == 18 and batch.offsets == 6 and await log.passed_over(24, 2) == []

    with_face(run)


def test_a_partition_whose_beginning_or_end_is_lost_opens_and_takes_records() -> None:
    async def run(face: Face, lost: EntriesLost) -> None:
        ledger = await one_ledger(face, Client(face.listener), 12)
        ledger.lost = lost
        log = await face.broker.log("orders", 0)
        await log.open()
        assert (log.start_offset, log.high_watermark) == (0, 24)

    for lost in (EntriesLost(10, 0, 3), EntriesLost(10, 8, 11), EntriesLost(10, 0, 11)):
        with_face(lambda face, lost=lost: run(face, lost))


async def published(log: KafkaLog, *stored: tuple[bytes, int, int]) -> None:
    """(entry, messages in it, its flags) each."""
    parts, counts, flags = zip(*stored, strict=True)
    run = Run(parts, [len(part) for part in parts], counts=counts, flags=flags)
    log.topic.publish(run, lambda _: None, lambda error: None)
    await settle(20)


GOOD = (entry_of(build_batch([(7, None, b"v", ())]), 1, 1), 1, FLAG_KAFKA)


@pytest.mark.parametrize("magic", [1, 2])
def test_an_entry_that_has_no_form_for_a_reader_is_passed_over(magic: int) -> None:
    """What a Pulsar client wrote, for every reader; what a Kafka client wrote, for one that wants an older format."""

    async def run(face: Face) -> None:
        await create(Client(face.listener), "orders")
        log = await face.broker.log("orders", 0)
        poison = (entry(b"", batch=300_000), 2, 0)  # published before such counts were refused
        if magic < 2:
            poison = (entry_of(sealed(b"no gzip at all", 1, 1, 1, 1, 2), 2, 1), 2, FLAG_KAFKA)
        await published(log, GOOD, poison, GOOD)
        both = b"".join(log.batches(await log.fetch(0, 1 << 20), 0, 1 << 20, magic))
        assert both.count(b"v") == 2
        behind = b"".join(log.batches(await log.fetch(1, 1 << 20), 1, 1 << 20, magic))
        assert int.from_bytes(behind[:8], "big") == 3 and behind.count(b"v") == 1
        assert log.topic.unreadable_out == 2

    with_face(run)


def test_a_reader_comes_past_what_it_cannot_read_at_the_end() -> None:
    async def run(face: Face) -> None:
        await create(Client(face.listener), "orders")
        log = await face.broker.log("orders", 0)
        await published(log, (entry(b"", batch=300_000), 4, 0))
        (made,) = log.batches(await log.fetch(0, 1 << 20), 0, 1 << 20)
        assert peek_batch(made).offsets == 4 and not records_of(made)

    with_face(run)
