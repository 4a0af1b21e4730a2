"""The buffer of a topic: what readers see of open, committed, and aborted transactions, however the log is cut and
wherever it is read again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.model.positions import Position
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import Run, TxnId
from replicator.log.transaction_buffer import (
    ABORT,
    COMMIT,
    ENDED_MAX,
    TransactionBuffer,
    below,
    is_marker,
    marker_run,
    read_marker,
)
from tests.replicator.log.transaction_runs import ORIGIN, run, seen


@dataclass
class Log:
    """A topic's log as the truth: what was appended, and how each transaction ended."""

    pieces: list[tuple[int, int, Run]] = field(default_factory=list)
    ended: dict[TxnId, int] = field(default_factory=dict)
    ledger: int = 3

    def append(self, made: Run) -> None:
        first = sum(r.count for ledger, _, r in self.pieces if ledger == self.ledger)
        self.pieces.append((self.ledger, first, made))

    def visible(self) -> list[bytes]:
        """By the definition: committed ones and those of no transaction, up to the first entry of an open one."""
        out: list[bytes] = []
        for _, _, made in self.pieces:
            if is_marker(made):
                continue
            if made.transaction is not None and made.transaction not in self.ended:
                return out
            if made.transaction is None or self.ended[made.transaction] == COMMIT:
                out += [bytes(part) for part in made.parts]
        return out


def play(seed: int, make: type[TransactionBuffer] = TransactionBuffer) -> None:
    """A random history; after each step readers see what they must, also from a snapshot with the rest replayed in
    other cuts.
    """
    rng, log, live = random.Random(seed), Log(), make()
    snapshots: list[tuple[int, list[object]]] = [(0, make().dump())]
    opened: list[TxnId] = []
    number = 0
    for _ in range(rng.randrange(10, 40)):
        before = len(log.pieces)
        match rng.randrange(8):
            case 0:
                number += 1
                opened.append((rng.randrange(2), number))
            case 1 if opened:
                txn = opened.pop(rng.randrange(len(opened)))
                action = rng.choice((COMMIT, ABORT))
                low = min((n for tc, n in opened if tc == txn[0]), default=txn[1] + 1)
                log.ended[txn] = action
                log.append(marker_run(txn, action, min(low, txn[1])))
            case 2:
                log.ledger += 1
            case _:
                txn = rng.choice(opened) if opened and rng.random() < 0.7 else None
                log.append(run(txn, *(rng.randbytes(3) for _ in range(rng.randrange(1, 5)))))
        for ledger, first, made in log.pieces[before:]:
            if made.transaction is not None:
                live.confirm(ledger, first, made)
        assert seen(live, log.pieces) == log.visible()
        if rng.random() < 0.3:
            snapshots.append((len(log.pieces), live.dump()))
        at, dumped = rng.choice(snapshots)
        again = make()
        again.load(dumped)
        for ledger, first, made in log.pieces[at:]:
            if made.transaction is None:
                continue
            cut = rng.randrange(made.count + 1)
            for start, stop in ((0, cut), (cut, made.count)):
                if start < stop:
                    again.confirm(ledger, first + start, made.cut(start, stop))
        assert seen(again, log.pieces) == log.visible()
        assert set(again.open) == set(live.open) and set(again.aborted) == set(live.aborted)


@pytest.mark.parametrize("seed", range(200))
def test_readers_see_whole_transactions_and_nothing_else(seed: int) -> None:
    play(seed)


def test_nothing_is_published_into_what_has_ended() -> None:
    buffer = TransactionBuffer()
    buffer.confirm(1, 0, run((0, 5), b"a"))
    buffer.confirm(1, 1, marker_run((0, 5), COMMIT, 3))
    buffer.confirm(1, 2, marker_run((0, 6), ABORT, 3))
    assert buffer.refuses((0, 5)) and buffer.refuses((0, 6)) and buffer.refuses((0, 2))
    assert not buffer.refuses((0, 3)) and not buffer.refuses((1, 2))
    assert (buffer.ended((0, 5)), buffer.ended((0, 6)), buffer.ended((0, 7))) == (COMMIT, ABORT, None)
    assert (buffer.commits, buffer.aborts) == (1, 1)
    buffer.confirm(1, 1, marker_run((0, 5), COMMIT, 3))
    assert buffer.commits == 1


def test_two_regions_transactions_of_one_name_are_two() -> None:
    buffer = TransactionBuffer()
    buffer.confirm(1, 0, run((0, 5), b"here"))
    buffer.confirm(1, 1, run((0, 5), b"there", origin=ORIGIN))
    buffer.confirm(1, 2, marker_run((0, 5), ABORT, 0))
    there = marker_run((0, 5), COMMIT, 0).as_replicated(ORIGIN, 9, 5, [1])
    assert buffer.undecided_from() == (1, 1)
    buffer.confirm(1, 3, there)
    pieces = [(1, 0, run((0, 5), b"here")), (1, 1, run((0, 5), b"there", origin=ORIGIN))]
    assert buffer.undecided_from() is None and seen(buffer, pieces) == [b"there"]


def test_what_was_trimmed_is_forgotten_once_nothing_of_it_can_come() -> None:
    buffer = TransactionBuffer()
    buffer.confirm(1, 0, run((0, 5), b"a", b"b"))
    buffer.confirm(1, 2, marker_run((0, 5), ABORT, 5))
    for first, low, left in (((1, 1), 9, 1), ((1, 3), 5, 1), ((1, 3), 9, 0)):
        again = TransactionBuffer()
        again.load(buffer.dump())
        again.confirm(1, 3, marker_run((0, 8), COMMIT, low))
        again.trimmed(first)
        assert len(again.aborted) == left


def test_a_topic_with_very_many_aborted_transactions() -> None:
    buffer = TransactionBuffer()
    for number in range(1, 20_001):
        buffer.confirm(1, 2 * number, run((number % 2, number), b"a"))
        buffer.confirm(1, 2 * number + 1, marker_run((number % 2, number), ABORT, 1))
    blob = pack(buffer.dump())
    assert len(blob) < 100_000
    again = TransactionBuffer()
    again.load(unpack("buffer", blob))
    assert set(again.aborted) == set(buffer.aborted)
    assert all(0 <= again.aborted[key][1] - last[1] <= 4 * 512 for key, last in buffer.aborted.items())
    assert not buffer.refuses((0, 99_999))
    assert "retention" in buffer.refuses((0, 99_999), aborted_max=20_000)
    assert "open" in TransactionBuffer().refuses((0, 1), open_max=0)


def test_of_what_is_forgotten_before_its_time_the_highest_number_stays() -> None:
    buffer, last = TransactionBuffer(), ENDED_MAX + 6
    for number in range(5, last + 1):  # transaction 5 has not ended for its coordinator: the watermark stands still
        buffer.confirm(1, number, marker_run((0, number), COMMIT, 5))
    again = TransactionBuffer()
    again.load(unpack("buffer", pack(buffer.dump())))
    for one in (buffer, again):
        assert [one.ended((0, n)) for n in (5, 6, 7)] == [None, None, COMMIT]
        assert [one.may_have_committed((0, n)) for n in (4, 5, 6, last + 1)] == [
            True,
            True,
            True,
            False,
        ] and not one.may_have_committed((1, 5))
    earlier = TransactionBuffer()
    earlier.load(buffer.dump()[:8])  # as versions before this one wrote it
    assert earlier.ended((0, last)) == COMMIT and not earlier.may_have_committed((0, 5))
    low, end = last + 1, last + 1 + ENDED_MAX
    for number in range(low, end + 1):
        again.confirm(1, number, marker_run((0, number), COMMIT, low))
    assert again.may_have_committed((0, low)) and not again.dump()[8][1:], "one number of each coordinator"
    again.confirm(1, end + 1, marker_run((0, end + 1), COMMIT, end + 1))
    assert again.dump()[8] == [] and again.ended((0, end + 1)) == COMMIT, "everything below the watermark has ended"


def test_an_entry_that_comes_late_opens_no_transaction_that_has_ended() -> None:
    """An audit finds it lost, and appends it when its transaction is forgotten."""
    buffer = TransactionBuffer()
    for number in range(5, ENDED_MAX + 9):
        buffer.confirm(1, number, marker_run((0, number), COMMIT, number + 1).as_replicated(ORIGIN, 9, number, [1]))
    late = (9, 0, run((0, 5), b"late", origin=ORIGIN))
    buffer.confirm(*late)
    assert not buffer.open and seen(buffer, [late]) == [b"late"]


def test_what_is_held_has_ended_however_many_ended_since() -> None:
    buffer = TransactionBuffer()
    buffer.confirm(1, 0, run((0, 5), b"there", origin=ORIGIN))
    buffer.confirm(1, 1, marker_run((0, 5), COMMIT, 5, ["persistent://t/n/other"]).as_replicated(ORIGIN, 9, 5, [1]))
    for number in range(6, ENDED_MAX + 9):
        buffer.confirm(1, number, marker_run((0, number), COMMIT, 5).as_replicated(ORIGIN, 9, number, [1]))
    assert list(buffer.held) == [(ORIGIN, 0, 5)] and buffer.has_ended_abroad(*ORIGIN[:2], 0, 5)
    buffer.release((ORIGIN, 0, 5))
    assert not buffer.has_ended_abroad(*ORIGIN[:2], 0, 5), "which nothing but the log tells any more"


@pytest.mark.parametrize("end", [(3, 4), (3, 0), (2, 9), (4, 0), (3, 5)])
def test_pieces_end_before_an_open_transaction(end: Position) -> None:
    pieces = [(3, 0, run(None, b"0", b"1", b"2")), (3, 3, run(None, b"3", b"4"))]
    kept = below(pieces, end)
    assert [(ledger, first + i) for ledger, first, r in kept for i in range(r.count)] == [
        (3, n) for n in range(5) if (3, n) < end
    ]


def test_a_block_keeps_the_transaction() -> None:
    made = run((7, 1 << 40), b"abc", b"de")
    _, _, read = decode_block(b"".join(encode_block(made, 4, 2)))
    assert (
        read.transaction == (7, 1 << 40)
        and read.cut(1, 2).transaction == (7, 1 << 40)
        and read.flagged(None).transaction is None
    )
    assert decode_block(b"".join(encode_block(run(None, b"x"), 4, 2)))[2].transaction is None


def test_markers_that_make_no_sense() -> None:
    assert read_marker(marker_run((0, 1), ABORT, 9).parts[0]) == (ABORT, 9)
    for blob in (b"", b"\x02" + bytes(9), b"\x01\x07" + bytes(8)):
        with pytest.raises(CorruptData):
            read_marker(blob)


def test_of_an_own_transaction_only_a_commit_comes_back() -> None:
    buffer, ends = TransactionBuffer(), (3, 0)
    buffer.confirm(3, 0, run((0, 1), b"a"))
    for action, still in ((ABORT, 1), (COMMIT, 0)):
        marker = marker_run((0, 1), action, 1)
        marker.origin, marker.spans = ORIGIN, ((9, 0, 1),)
        buffer.end_own(marker, ends)
        assert len(buffer.open) == still
    assert (buffer.commits, buffer.aborts) == (1, 0)
