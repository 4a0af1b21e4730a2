"""Runs of transactions, and what a reader sees of them."""

from __future__ import annotations

from heliograph.wire.run import FLAG_HIDDEN, FLAG_MARKER, Run, TxnId
from replicator.log.transaction_buffer import (
    TransactionBuffer,
    below,
)

ORIGIN = (2, 1, 77)


def run(txn: TxnId | None, *entries: bytes, origin: tuple[int, int, int] | None = None) -> Run:
    return Run(
        list(entries),
        [len(e) for e in entries],
        transaction=txn,
        origin=origin,
        spans=((9, 0, len(entries)),) if origin else (),
    )


def seen(buffer: TransactionBuffer, pieces: list[tuple[int, int, Run]]) -> list[bytes]:
    end = buffer.undecided_from()
    kept = pieces if end is None else below(pieces, end)
    shown = buffer.committed_view(kept)
    return [
        bytes(p)
        for _, _, r in shown
        for i, p in enumerate(r.parts)
        if r.flags is None or not r.flags[i] & (FLAG_HIDDEN | FLAG_MARKER)
    ]
