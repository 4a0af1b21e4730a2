"""PendingAcks: what open transactions have acknowledged of one subscription, and what happens to it when they end.

Is: who holds which entry, or which messages of a batch; conflicts; the form in which it is stored. Isn't: the cursor,
which hears of an acknowledgement only when its transaction is committed, or who decides that.
Invariants: an entry (a message of a batch) is held by one transaction at most; what is held is not delivered to
anybody; a commit moves what is held to the cursor and out of here in one change, which is stored in one write with it;
an abort gives it back.

Stored as a property of the cursor, base64 of msgpack: [1, [transaction ...], [[coordinator, low watermark] ...]]
    transaction: coordinator, number, cumulative (list or nil), [[ledger, first, stop, first, stop ...] ...],
                 [[ledger, entry, bits, messages] ...]
bits (bytes, little endian): message i of the batch is acknowledged by it.
Bounds: POSITIONS_MAX entries and BYTES_MAX bytes in all transactions of a subscription, so that a cursor can always be
stored with them.
Source: docs/protocols/transactions.md, "Acknowledgements".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence

import msgpack

from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.positions import Position
from heliograph.wire.run import TxnId
from region_node.transactions.participants.transaction_errors import TransactionConflict

PROPERTY = "heliograph.transactions"
VERSION = 1
POSITIONS_MAX = 20_000
BYTES_MAX = 250 << 10
"""What is held takes so many bytes at most, before base64, estimated: the cursor's properties have room for a third
more, beside those that users give.
"""
_TRANSACTION_BYTES = 16
_WHOLE_BYTES = 12
_PART_BYTES = 20
"""Each takes so many, beside the bits."""
_READ_MAX = 10 * POSITIONS_MAX
"""More entries than that were never stored."""
ENDED_MAX = 1000
Part = tuple[Position, int, int]
"""(a batch, bits of the messages that are acknowledged, messages in it)."""


class HeldAcks:
    """What one transaction has acknowledged. `whole`: entries; `partly`: batches -> (bits of the messages it
    acknowledges, messages in it); `cumulative`: up to here.
    """

    __slots__ = ("cumulative", "partly", "whole")

    def __init__(self) -> None:
        self.whole: dict[Position, None] = {}
        self.partly: dict[Position, tuple[int, int]] = {}
        self.cumulative: Position | None = None


def part_of(position: Position, left: int, size: int) -> Part:
    """Turns an acknowledgement round, as clients send it: `left`: bits of the messages that are not acknowledged; size:
    messages in the batch, 0: not told.
    """
    size = size or left.bit_length() + 1  # whoever leaves nothing out at the end has acknowledged the last message
    return position, ~left & (1 << size) - 1, size


def left_of(acked: int, size: int) -> int:
    """Returns bits of the messages that are not acknowledged, of `size` in the batch: what `part_of` turned round."""
    return ~acked & (1 << size) - 1


class PendingAcks:
    """Keeps what open transactions hold of one subscription."""

    __slots__ = ("_bytes", "_cumulative", "_ended", "_forgotten", "_low", "_partly", "_whole", "held")

    def __init__(self) -> None:
        self.held: dict[TxnId, HeldAcks] = {}
        self._whole: dict[Position, TxnId] = {}
        self._partly: dict[Position, dict[TxnId, int]] = {}
        self._low: dict[int, int] = {}
        self._ended: dict[TxnId, None] = {}
        self._forgotten: dict[int, int] = {}
        """Coordinator -> the highest number of those of its transactions that have gone from `_ended`."""
        self._cumulative: TxnId | None = None
        """Who has acknowledged cumulatively last, while it holds that: one does at most."""
        self._bytes = 0
        """Of entries and batches, as they are stored, estimated."""

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def check(
        self,
        txn: TxnId,
        whole: Iterable[Position],
        partly: Iterable[Part],
        positions_max: int = POSITIONS_MAX,
    ) -> None:
        """Raises TransactionConflict where another transaction holds one of them, NotAllowed where all transactions
        would hold more than `positions_max` entries, or more than can be stored.
        """
        self._check_open(txn)
        count = more = 0
        for position in whole:
            count += 1
            more += _WHOLE_BYTES
            if self._whole.get(position, txn) != txn or any(other != txn for other in self._partly.get(position, ())):
                raise TransactionConflict(
                    f"{position[0]}:{position[1]} is acknowledged by another transaction that has not ended"
                )
        for position, acked, size in partly:
            count += 1
            more += _part_bytes(size)
            overlap = any(other != txn and acked & theirs for other, theirs in self._partly.get(position, {}).items())
            if self._whole.get(position, txn) != txn or overlap:
                raise TransactionConflict(
                    f"a message of {position[0]}:{position[1]} is acknowledged by another transaction that has not "
                    "ended"
                )
        if len(self._whole) + len(self._partly) + count > positions_max:
            raise NotAllowed(
                f"more than {positions_max} entries are acknowledged by transactions that have not ended: commit, or "
                "acknowledge cumulatively"
            )
        if self._bytes + more + _TRANSACTION_BYTES * (len(self.held) + 1) > BYTES_MAX:
            raise NotAllowed(
                f"what is acknowledged by transactions that have not ended takes more than {BYTES_MAX} bytes: commit, "
                "or acknowledge whole batches"
            )

    def add(self, txn: TxnId, whole: Iterable[Position], partly: Iterable[Part]) -> None:
        """Has the transaction hold these too. `check` was called with the same ones, and did not raise."""
        held = self.held.setdefault(txn, HeldAcks())
        for position in whole:
            if position in held.whole:
                continue
            held.whole[position] = None
            self._whole[position] = txn
            self._bytes += _WHOLE_BYTES
            if (part := held.partly.pop(position, None)) is not None:
                self._drop_partly(position, txn, part[1])
        for position, acked, size in partly:
            if position in held.whole:
                continue
            before, known = held.partly.get(position, (0, 0))
            held.partly[position] = (before | acked, max(known, size))
            self._bytes += _part_bytes(max(known, size)) - (_part_bytes(known) if known else 0)
            self._partly.setdefault(position, {})[txn] = before | acked

    def add_cumulative(self, txn: TxnId, position: Position, mark_delete: Position, *, in_batch: bool = False) -> None:
        """Raises TransactionConflict where another transaction has acknowledged cumulatively, or this much is
        acknowledged already. in_batch: it ends within the next batch, so all before that may be.
        """
        self._check_open(txn)
        other, upto = self._cumulative, self.cumulative
        if other is not None and other != txn and upto is not None:
            raise TransactionConflict(
                f"transaction {other[0]}:{other[1]} has acknowledged up to {upto}, and has not ended"
            )
        if in_batch and position <= mark_delete:
            return
        mine = self.held.get(txn)
        if position <= mark_delete or (mine is not None and mine.cumulative is not None and position < mine.cumulative):
            raise TransactionConflict(f"everything up to {position[0]}:{position[1]} is acknowledged already")
        self._hold_through(txn, position)

    def _hold_through(self, txn: TxnId, position: Position) -> None:
        self.held.setdefault(txn, HeldAcks()).cumulative = position
        self._cumulative = txn

    def _check_open(self, txn: TxnId) -> None:
        if txn in self._ended or (txn[1] < self._low.get(txn[0], 0) and txn not in self.held):
            raise TransactionConflict(f"transaction {txn[0]}:{txn[1]} has ended: begin another one")

    # -- ending -------------------------------------------------------------------------------------------------------

    def take(self, txn: TxnId, low: int = 0) -> HeldAcks | None:
        """The transaction ends: what it held is held no more. None: it held nothing. `low`: everything of its
        coordinator below has ended.
        """
        self._low[txn[0]] = max(low, self._low.get(txn[0], 0))
        self._ended[txn] = None
        if len(self._ended) > ENDED_MAX:
            coordinator, number = next(iter(self._ended))
            del self._ended[coordinator, number]
            self._forgotten[coordinator] = max(number, self._forgotten.get(coordinator, 0))
        return self._remove(txn)

    def may_have_ended(self, txn: TxnId) -> bool:
        """Says whether its end may have been told here and is forgotten: its coordinator knows then."""
        return txn not in self.held and txn[1] <= self._forgotten.get(txn[0], -1)

    def put_back(self, txn: TxnId, held: HeldAcks | None) -> None:
        """What `take` returned: its end could not be stored, and will be told again."""
        self._ended.pop(txn, None)
        if held is not None:
            self.add(txn, held.whole, [(position, *part) for position, part in held.partly.items()])
            if held.cumulative is not None:
                self._hold_through(txn, held.cumulative)

    def stale(self, coordinator: int, low: int) -> list[TxnId]:
        """Transactions that hold something, and have ended elsewhere without this subscription: they were never told of
        it.
        """
        return [txn for txn in self.held if txn[0] == coordinator and txn[1] < low]

    def _remove(self, txn: TxnId) -> HeldAcks | None:
        held = self.held.pop(txn, None)
        if held is not None:
            for position in held.whole:
                self._whole.pop(position, None)
            self._bytes -= _WHOLE_BYTES * len(held.whole)
            for position, (_, size) in held.partly.items():
                self._drop_partly(position, txn, size)
        return held

    def _drop_partly(self, position: Position, txn: TxnId, size: int) -> None:
        self._bytes -= _part_bytes(size)
        found = self._partly.get(position)
        if found is not None:
            found.pop(txn, None)
            if not found:
                del self._partly[position]

    def name_each(self, positions: Sequence[Position]) -> None:
        """What is acknowledged cumulatively is `positions` from now on, without what other transactions hold of them;
        too many: it goes out again.
        """
        for txn, held in self.held.items():
            if held.cumulative is not None:
                held.cumulative = None
                if (
                    len(self._whole) + len(self._partly) + len(positions) <= POSITIONS_MAX
                    and self._bytes + _WHOLE_BYTES * len(positions) <= BYTES_MAX
                ):
                    self.add(
                        txn,
                        [
                            p
                            for p in positions
                            if self._whole.get(p, txn) == txn and all(other == txn for other in self._partly.get(p, ()))
                        ],
                        (),
                    )

    def clear(self) -> None:
        """The cursor was moved: what transactions held of it is forgotten, and goes out again."""
        self.held, self._whole, self._partly, self._bytes = {}, {}, {}, 0

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def low_watermarks(self) -> Mapping[int, int]:
        """Coordinator -> every transaction below that has ended."""
        return self._low

    @property
    def cumulative(self) -> Position | None:
        held = None if self._cumulative is None else self.held.get(self._cumulative)
        return None if held is None else held.cumulative

    def holds(self, position: Position) -> bool:
        """Whether all of that entry is held: it is not to be delivered."""
        upto = self.cumulative
        return position in self._whole or (upto is not None and position <= upto)

    def within(self, ledger: int, first: int, last: int) -> list[int]:
        """Entries of [first, last] that are held wholly, ascending."""
        if last - first < len(self._whole):
            return [entry for entry in range(first, last + 1) if (ledger, entry) in self._whole]
        return sorted(entry for number, entry in self._whole if number == ledger and first <= entry <= last)

    @property
    def partly(self) -> Mapping[Position, Mapping[TxnId, int]]:
        """Batches of which transactions hold single messages -> by transaction, bits of the messages."""
        return self._partly

    def __bool__(self) -> bool:
        return bool(self.held)

    # -- storing ------------------------------------------------------------------------------------------------------

    def encode(self) -> str:
        held = [
            [
                *txn,
                _listed(h.cumulative),
                _ranges(h.whole),
                [[*p, _bytes(acked), n] for p, (acked, n) in h.partly.items()],
            ]
            for txn, h in self.held.items()
        ]
        return base64.b64encode(msgpack.packb([VERSION, held, [[tc, low] for tc, low in self._low.items()]])).decode()

    @classmethod
    def decode(cls, text: str) -> PendingAcks:
        """Reads the property that `encode` wrote. Raises CorruptData, also of another format."""
        made = cls()
        try:
            version, held, low = msgpack.unpackb(base64.b64decode(text, validate=True))
            if version != VERSION:
                raise CorruptData(
                    f"pending acknowledgements: format {version} is not known here (this version reads format "
                    f"{VERSION})"
                )
            entries = sum(r[i + 1] - r[i] for *_, ranges, _ in held for r in ranges for i in range(1, len(r), 2))
            if entries > _READ_MAX:
                raise CorruptData(f"pending acknowledgements: {entries} entries")
            for coordinator, number, cumulative, ranges, partly in held:
                txn = (int(coordinator), int(number))
                whole = [(r[0], entry) for r in ranges for i in range(1, len(r), 2) for entry in range(r[i], r[i + 1])]
                made.add(
                    txn, whole, [((int(a), int(b)), int.from_bytes(bits, "little"), int(n)) for a, b, bits, n in partly]
                )
                if cumulative is not None:
                    made._hold_through(txn, (int(cumulative[0]), int(cumulative[1])))
            made._low = {int(tc): int(number) for tc, number in low}
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            OverflowError,
            binascii.Error,
            msgpack.UnpackException,
        ) as error:
            raise CorruptData(f"pending acknowledgements: {error}") from error
        return made


def _listed(position: Position | None) -> list[int] | None:
    return None if position is None else list(position)


def _part_bytes(size: int) -> int:
    return _PART_BYTES + (size + 7) // 8


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _ranges(positions: Iterable[Position]) -> list[list[int]]:
    """[ledger, first, stop, first, stop ...] each."""
    out: list[list[int]] = []
    for ledger, entry in sorted(positions):
        if out and out[-1][0] == ledger:
            if out[-1][-1] == entry:
                out[-1][-1] = entry + 1
            else:
                out[-1] += [entry, entry + 1]
        else:
            out.append([ledger, entry, entry + 1])
    return out
