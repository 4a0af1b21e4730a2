"""Acknowledgements in transactions: who holds what, what conflicts, what a commit brings, what is stored."""

from __future__ import annotations

import random
from typing import Any

import pytest

from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.run import TxnId
from region_node.transactions.participants.pending_acks import (
    BYTES_MAX,
    POSITIONS_MAX,
    HeldAcks,
    Part,
    PendingAcks,
    left_of,
    part_of,
)
from region_node.transactions.participants.transaction_errors import TransactionConflict

A, B = (0, 1), (0, 2)


def ack(pending: PendingAcks, txn: TxnId, *whole: Position, parts: tuple[Part, ...] = ()) -> None:
    pending.check(txn, whole, parts)
    pending.add(txn, whole, parts)


def test_an_entry_is_held_by_one_transaction() -> None:
    pending = PendingAcks()
    ack(pending, A, (1, 0), (1, 1))
    ack(pending, A, (1, 1))  # the same once more
    with pytest.raises(TransactionConflict):
        ack(pending, B, (1, 1), (1, 2))
    assert not pending.holds((1, 2)) and pending.holds((1, 0))
    with pytest.raises(TransactionConflict):
        ack(pending, B, parts=(part_of((1, 0), 0b10, 2),))
    pending.take(A)
    ack(pending, B, (1, 1), (1, 2))


def test_messages_of_a_batch_are_held_one_by_one() -> None:
    pending = PendingAcks()
    ack(pending, A, parts=(part_of((1, 0), 0b1110, 4),))
    ack(pending, B, parts=(part_of((1, 0), 0b1101, 4),))
    for left in (0b1110, 0b1000):
        with pytest.raises(TransactionConflict):
            ack(pending, B, parts=(part_of((1, 0), left, 4),))
    with pytest.raises(TransactionConflict):
        ack(pending, B, (1, 0))
    assert not pending.holds((1, 0)) and set(pending.partly[1, 0]) == {A, B}
    ack(pending, A, parts=(part_of((1, 0), 0b1011, 4),))
    held = pending.take(A)
    assert held is not None and held.partly == {(1, 0): (0b0101, 4)} and left_of(0b0101, 4) == 0b1010
    assert set(pending.partly[1, 0]) == {B}


def test_the_last_message_of_a_batch_whose_size_is_not_told() -> None:
    """Bits end where the last unacknowledged message is."""
    pending = PendingAcks()
    ack(pending, A, parts=(part_of((1, 0), 0b0111, 0),))
    with pytest.raises(TransactionConflict):
        ack(pending, B, parts=(part_of((1, 0), 0b0111, 0),))


def test_one_transaction_acknowledges_cumulatively() -> None:
    pending = PendingAcks()
    pending.add_cumulative(A, (1, 5), (1, 2))
    pending.add_cumulative(A, (1, 7), (1, 2))
    for txn, position in ((B, (1, 9)), (A, (1, 6)), (A, (1, 2))):
        with pytest.raises(TransactionConflict):
            pending.add_cumulative(txn, position, (1, 2))
    assert pending.holds((1, 7)) and not pending.holds((1, 8))
    held = pending.take(A)
    assert held is not None and held.cumulative == (1, 7) and pending.cumulative is None
    pending.add_cumulative(B, (1, 9), (1, 7))


class CountedTransactions(dict[TxnId, HeldAcks]):
    looks = 0

    def values(self) -> Any:
        CountedTransactions.looks += len(self)
        return super().values()

    def items(self) -> Any:
        CountedTransactions.looks += len(self)
        return super().items()


def test_whether_an_entry_is_held_is_not_asked_of_each_transaction() -> None:
    pending = PendingAcks()
    for number in range(1_000):
        ack(pending, (0, 10 + number), (1, 100 + number))
    pending.add_cumulative(A, (1, 7), (1, 2))
    pending = PendingAcks.decode(pending.encode())
    pending.held = CountedTransactions(pending.held)
    assert sum(pending.holds((1, entry)) for entry in range(3, 100)) == 5
    pending.put_back(A, pending.take(A))
    assert pending.cumulative == (1, 7)
    pending.take(A)
    assert pending.cumulative is None
    pending.add_cumulative(B, (1, 9), (1, 2))
    assert pending.holds((1, 9)) and CountedTransactions.looks == 0


def test_nothing_is_acknowledged_for_what_has_ended() -> None:
    pending = PendingAcks()
    assert pending.take(A, low=1) is None
    with pytest.raises(TransactionConflict):
        ack(pending, A, (1, 0))
    ack(pending, B, (1, 0))
    assert pending.stale(0, 2) == [] and pending.stale(0, 3) == [B] and pending.stale(1, 3) == []
    pending.take((0, 9), low=9)
    again = PendingAcks.decode(pending.encode())
    with pytest.raises(TransactionConflict):
        ack(again, (0, 8), (1, 3))
    with pytest.raises(TransactionConflict):
        pending.add_cumulative((0, 8), (1, 3), (0, 0))


def test_a_bound() -> None:
    pending = PendingAcks()
    ack(pending, A, *((1, n) for n in range(8)))
    more = [(1, n) for n in range(8, 11)]
    pending.check(A, more[:2], (), positions_max=10)
    with pytest.raises(NotAllowed, match="more than 10 entries"):
        pending.check(A, more, (), positions_max=10)


def test_what_is_held_takes_no_more_bytes_than_are_allowed() -> None:
    """Single entries of old and large ledgers, and small batches."""
    pending, number = PendingAcks(), 0
    ack(pending, A, *((1 << 20, (1 << 20) + 2 * n) for n in range(POSITIONS_MAX)))
    assert len(pending.encode()) <= BYTES_MAX * 4 // 3 + 4
    pending.take(A)
    with pytest.raises(NotAllowed, match="bytes"):
        while True:
            number += 1
            ack(pending, (0, 9 + number), parts=(((1 << 31, (1 << 31) + number), (1 << 64) - 1, 64),))
    assert len(pending.encode()) <= BYTES_MAX * 4 // 3 + 4 and number > 3000
    again = PendingAcks.decode(pending.encode())
    with pytest.raises(NotAllowed, match="bytes"):
        ack(again, B, parts=(((2, 2), (1 << 640) - 1, 640),))
    for txn in list(again.held):
        again.take(txn)
    ack(again, B, parts=(((2, 2), (1 << 64_000) - 1, 64_000),))


@pytest.mark.parametrize("seed", range(30))
def test_what_is_stored_comes_back(seed: int) -> None:
    rng, pending = random.Random(seed), PendingAcks()
    for _ in range(60):
        txn = (rng.randrange(2), rng.randrange(1, 6))
        whole = [(rng.randrange(2), rng.randrange(30)) for _ in range(rng.randrange(3))]
        parts = tuple(part_of((2, rng.randrange(5)), rng.randrange(1, 255), 8) for _ in range(rng.randrange(2)))
        try:
            if rng.random() < 0.1:
                pending.add_cumulative(txn, (rng.randrange(3), rng.randrange(30)), (0, 0))
            elif rng.random() < 0.1:
                pending.take(txn, rng.randrange(3))
            else:
                ack(pending, txn, *whole, parts=parts)
        except TransactionConflict:
            continue
        again = PendingAcks.decode(pending.encode())
        assert again.encode() == pending.encode() and again.cumulative == pending.cumulative
        assert all(again.holds((ledger, n)) == pending.holds((ledger, n)) for ledger in range(3) for n in range(30))
        assert {p: dict(by) for p, by in again.partly.items()} == {p: dict(by) for p, by in pending.partly.items()}
        for ledger in range(2):
            assert pending.within(ledger, 3, 20) == [
                n for n in range(3, 21) if any((ledger, n) in h.whole for h in pending.held.values())
            ]


@pytest.mark.parametrize("text", ["", "x", "kQE=", "lAGQkJA="])
def test_bytes_that_make_no_sense(text: str) -> None:
    with pytest.raises(CorruptData):
        PendingAcks.decode(text)
