"""A partition's log of very many ledgers, whose oldest are told only once they were read: its ends, offsets, and times
are found all the same.
"""

from __future__ import annotations

from typing import Any, cast

from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.log.time_search import at_time, newest
from tests.region_node.faces.kafka.harness import Client, Face, KafkaLedger, with_face
from tests.region_node.faces.kafka.topic_requests import create

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
