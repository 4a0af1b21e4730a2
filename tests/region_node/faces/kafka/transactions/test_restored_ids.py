"""A transactional id of a restored metadata goes on as another producer."""

from __future__ import annotations

import pytest

from heliograph.kv.metadata_store import Put, pages_under
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.transactions.kafka_transactions import IDS, KafkaTransactions
from region_node.faces.kafka.transactions.restored_ids import with_new_producers
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Face
from tests.region_node.faces.kafka.transactions.harness import with_transactions

TIMEOUT_MS = 60_000


@pytest.mark.parametrize("is_open", [False, True], ids=["between transactions", "in a transaction"])
def test_whoever_begins_after_a_restore_is_no_producer_that_published_since_the_backup(is_open: bool) -> None:
    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        before = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        if is_open:
            await transactions.add_offsets("id", *before)
        backup = [row async for rows in pages_under(face.meta, IDS) for row in rows]
        if not is_open:
            assert await transactions.begin_producer("id", TIMEOUT_MS, -1, -1) == (before[0], before[1] + 1)
        for key, value in with_new_producers((key, value) for key, value, _ in backup):
            await face.meta.txn([Put(key, value)])
        with pytest.raises(Refused) as refused:
            await transactions.add_offsets("id", *before)
        assert refused.value.code == Code.PRODUCER_FENCED
        producer, epoch = await transactions.begin_producer("id", TIMEOUT_MS, -1, -1)
        assert producer != before[0] and epoch == 0
        await transactions.add_offsets("id", producer, epoch)
        await transactions.end("id", producer, epoch, commit=True)

    with_transactions(run)


def test_what_is_no_readable_record_of_an_id_is_left_as_it_is() -> None:
    rows = [(IDS + "damaged", b"?"), ("/kafka/producers/7", b"x")]
    assert list(with_new_producers(rows)) == rows
