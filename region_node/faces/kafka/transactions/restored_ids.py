"""Transactional ids of a metadata that is restored: each goes on as another producer.

Is: what a restore changes in their records. Isn't: a record's meaning (`kafka_transactions`), or the counter of
producers (`local_meta.backup`).
Invariants: no producer that is given out after a restore has the epoch of one that published between the backup and the
restore. Partitions know those by what lies in their logs, and would answer the other one's batches as repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from heliograph.model.errors import CorruptData
from region_node.faces.kafka.transactions.kafka_transactions import EPOCH_MAX, IDS, TransactionRecord


def with_new_producers(rows: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """rows: (key, value). What a transactional id has left of its producer is used up, so that whoever begins next with
    it ends what was open, and gets another producer. Who runs is fenced. A record that cannot be read stays as it is.
    """
    for key, value in rows:
        if key.startswith(IDS):
            try:
                yield key, replace(TransactionRecord.decode(value, 0), epoch=EPOCH_MAX).encode()
                continue
            except CorruptData:
                pass
        yield key, value
