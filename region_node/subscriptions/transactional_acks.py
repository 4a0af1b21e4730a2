"""SubscriptionTransactions: a subscription as a participant of transactions; and its cursor as dispatchers see it
meanwhile.

Is: acknowledging in a transaction, ending one, what is stored with the cursor. Isn't: the rules of who holds what
(`pending_acks`), or a wait: whoever answers a client awaits `stored`.
Invariants: a commit and the acknowledgements it brings are one change of the cursor, stored in one write; nothing that
a transaction holds goes out again before it is aborted. A subscription without transactions has none of this.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from heliograph.model.errors import NotAllowed
from heliograph.model.positions import AFTER_ALL, Position
from heliograph.wire.run import TxnId
from region_node.runtime.cursor_ports import CursorPort, LedgerPort, Piece
from region_node.subscriptions.dispatcher import Dispatcher
from region_node.transactions.participants.pending_acks import (
    POSITIONS_MAX,
    PROPERTY,
    HeldAcks,
    Part,
    PendingAcks,
    left_of,
)
from region_node.transactions.participants.transaction_errors import TransactionConflict

if TYPE_CHECKING:
    from region_node.runtime.topic_ports import ReadablePort


class AckedSubscription(Protocol):
    """The subscription whose acknowledgements these are."""

    @property
    def ledger(self) -> LedgerPort: ...

    @property
    def cursor(self) -> CursorPort:
        """Without what open transactions have acknowledged."""
        ...

    @property
    def dispatcher(self) -> Dispatcher | None:
        """None while nobody is connected."""
        ...

    @property
    def shared(self) -> bool:
        """Messages are acknowledged one by one, by whoever got them."""
        ...


class SubscriptionTransactions:
    """Made when the first transaction acknowledges something, or when its cursor was stored with one."""

    __slots__ = ("_subscription", "_unstored", "aborts", "commits", "pending")

    def __init__(self, subscription: AckedSubscription, pending: PendingAcks) -> None:
        self._subscription, self.pending = subscription, pending
        self.commits = self.aborts = 0
        self._unstored = False

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def ack(self, txn: TxnId, whole: list[Position], partly: list[Part]) -> None:
        """Raises TransactionConflict (another transaction holds one of them, or one is acknowledged already),
        NotAllowed. Then nothing was taken.
        """
        self._check(txn, whole, partly)
        self.pending.add(txn, whole, partly)
        self._unstored = True

    def _check(self, txn: TxnId, whole: list[Position], partly: Sequence[Part]) -> None:
        subscription, cursor = self._subscription, self._subscription.cursor
        last = subscription.ledger.last_confirmed
        for position in [*whole, *(part[0] for part in partly)]:
            if position > last or position[1] > AFTER_ALL[1]:
                raise NotAllowed(
                    f"{position[0]}:{position[1]} is not there, or not decided yet: it cannot be acknowledged"
                )
            if cursor.is_acked(position):
                raise TransactionConflict(f"{position[0]}:{position[1]} is acknowledged already")
        for position, acked, size in partly:
            known = cursor.partly_acked.get(position)
            if known is not None and acked & left_of(known, size):
                raise TransactionConflict(f"a message of {position[0]}:{position[1]} is acknowledged already")
        self.pending.check(txn, whole, partly)

    def ack_cumulative(
        self, txn: TxnId, position: Position, partly: Sequence[Part] = (), *, in_batch: bool = False
    ) -> None:
        """Everything up to `position`, and parts of the batch behind it. in_batch: a message of that batch was named,
        also where no parts are counted. Raises TransactionConflict, NotAllowed (as a shared subscription). Then nothing
        was taken.
        """
        if self._subscription.shared:
            raise NotAllowed("cumulative acknowledgement is not possible on a shared subscription")
        cursor, parts = self._subscription.cursor, list[Part]()
        for batch, acked, size in partly:
            known = cursor.partly_acked.get(batch)
            if known is not None and not (acked := acked & known):
                raise TransactionConflict(f"these messages of {batch[0]}:{batch[1]} are acknowledged already")
            parts.append((batch, acked, size))
        if parts:
            self._check(txn, [], parts)
        upto = min(position, self._subscription.ledger.last_confirmed)
        self.pending.add_cumulative(txn, upto, cursor.mark_delete, in_batch=in_batch)
        if parts:
            self.pending.add(txn, [], parts)
        self._unstored = True

    # -- ending -------------------------------------------------------------------------------------------------------

    def end(self, txn: TxnId, *, commit: bool, low: int) -> None:
        """What it held is acknowledged, or goes out again. Again, or of one that held nothing: nothing happens. Durable
        after `stored`. Raises NotAllowed where it cannot be stored: then it has not ended.
        """
        for stale in self.pending.stale(txn[0], low):
            if stale != txn:
                self._give_back(self.pending.take(stale))
        held = self.pending.take(txn, low)
        self._unstored = True
        try:
            self._keep()  # before the acknowledgements: whoever stores the cursor finds both
        except NotAllowed:
            self.pending.put_back(txn, held)
            raise
        if held is None:
            return
        if not commit:
            self.aborts += 1
            self._give_back(held)
            return
        self.commits += 1
        cursor, dispatcher = self._subscription.cursor, self._subscription.dispatcher
        if held.cumulative is not None:
            cursor.ack_cumulative(held.cumulative)
        cursor.ack(list(held.whole))
        left = {
            position: cursor.ack_batch(position, left_of(acked, size))
            for position, (acked, size) in held.partly.items()
        }
        if dispatcher is not None and dispatcher.consumers:
            anyone = dispatcher.consumers[0]
            dispatcher.acked(anyone, [*held.whole, *(position for position, bits in left.items() if not bits)])
            for position, bits in left.items():
                if bits:
                    dispatcher.acked_partly(anyone, position, bits.bit_count())
            dispatcher.wake()

    def _give_back(self, held: HeldAcks | None) -> None:
        dispatcher = self._subscription.dispatcher
        if held is not None and dispatcher is not None:
            dispatcher.again([*held.whole, *held.partly])

    def forget(self) -> None:
        """The cursor was moved by somebody: what transactions held is not held any more."""
        if self.pending:
            self.pending.clear()
            self._unstored = True
            self._keep()

    def begin_earlier(self, never: Sequence[tuple[int, int, int]]) -> None:
        """Before the cursor does: what a transaction acknowledged cumulatively was behind the old beginning, and does
        not take in what comes before it.
        """
        through, after = self.pending.cumulative, self._subscription.cursor.mark_delete
        if through is None:
            return
        positions: list[Position] = []
        for info in cast("ReadablePort", self._subscription.ledger).ledgers_from(after[0]):
            first = after[1] + 1 if info.ledger == after[0] else 0
            stop = through[1] + 1 if info.ledger == through[0] else info.entries
            if after[0] <= info.ledger <= through[0] and len(positions) <= POSITIONS_MAX:
                positions += [(info.ledger, entry) for entry in range(first, min(stop, first + POSITIONS_MAX + 1))]
        ranges = sorted(never)
        starts = [(ledger, first) for ledger, first, _ in ranges]

        def given(position: Position) -> bool:
            at = bisect_right(starts, position) - 1
            return at < 0 or position > (ranges[at][0], ranges[at][2])

        self.pending.name_each(list(filter(given, positions)))
        self._unstored = True
        self._keep()

    # -- storing ------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._unstored:
            cursor = self._subscription.cursor
            cursor.set_properties({**cursor.properties, PROPERTY: self.pending.encode()})
            self._unstored = False

    async def stored(self) -> None:
        """Until everything that was acknowledged or ended so far is durable. Raises what closed the topic."""
        self._keep()
        await self._subscription.cursor.flushed()


class PartsLeft(Mapping[Position, int]):
    """Batches of which messages are acknowledged, or held by transactions -> bits of those that go out. A batch is
    looked at when it is asked for: thousands may be held, and this is asked for each run that goes out.
    """

    __slots__ = ("_cursor", "_pending")

    def __init__(self, cursor: CursorPort, pending: PendingAcks) -> None:
        self._cursor, self._pending = cursor, pending

    def __getitem__(self, position: Position) -> int:
        by_transaction = self._pending.partly.get(position)
        if by_transaction is None:
            return self._cursor.partly_acked[position]
        acked = size = 0
        for txn, bits in by_transaction.items():
            acked |= bits
            size = max(size, self._pending.held[txn].partly[position][1])
        return self._cursor.partly_acked.get(position, (1 << size) - 1) & ~acked

    def __contains__(self, position: object) -> bool:
        return position in self._pending.partly or position in self._cursor.partly_acked

    def __iter__(self) -> Iterator[Position]:
        return iter({**self._pending.partly, **self._cursor.partly_acked})

    def __len__(self) -> int:
        return len({**self._pending.partly, **self._cursor.partly_acked})

    def __bool__(self) -> bool:
        return bool(self._pending.partly or self._cursor.partly_acked)


class DeliveryCursor(CursorPort):
    """A cursor whose held entries are not to be delivered. Implements CursorPort."""

    __slots__ = ("_cursor", "_partly", "_pending")

    def __init__(self, cursor: CursorPort, pending: PendingAcks) -> None:
        self._cursor, self._pending = cursor, pending
        self._partly = PartsLeft(cursor, pending)

    @property
    def reading(self) -> Callable[[], Position] | None:
        return self._cursor.reading

    @reading.setter
    def reading(self, reading: Callable[[], Position] | None) -> None:
        self._cursor.reading = reading

    @property
    def on_moved(self) -> Callable[[], None] | None:
        return self._cursor.on_moved

    @on_moved.setter
    def on_moved(self, on_moved: Callable[[], None] | None) -> None:
        self._cursor.on_moved = on_moved

    @property
    def fits(self) -> bool:
        return self._cursor.fits

    @property
    def mark_delete(self) -> Position:
        return self._cursor.mark_delete

    @property
    def backlog_entries(self) -> int:
        return self._cursor.backlog_entries

    @property
    def backlog_bytes(self) -> int:
        return self._cursor.backlog_bytes

    @property
    def properties(self) -> dict[str, str]:
        return self._cursor.properties

    @property
    def partly_acked(self) -> Mapping[Position, int]:
        return self._partly if self._pending.partly else self._cursor.partly_acked

    def is_acked(self, position: Position) -> bool:
        return self._cursor.is_acked(position) or self._pending.holds(position)

    def unacked_runs(self, runs: list[Piece]) -> list[Piece]:
        found = self._cursor.unacked_runs(runs)
        if not self._pending:
            return found
        upto, out = self._pending.cumulative, []
        for ledger, first, run in found:
            start, last = first, first + run.count - 1
            if upto is not None and upto >= (ledger, first):
                start = last + 1 if upto >= (ledger, last) else upto[1] + 1
            for entry in [*self._pending.within(ledger, start, last), last + 1]:
                if start < entry:
                    out.append((ledger, start, run.cut(start - first, entry - first)))
                start = entry + 1
        return out

    def ack(self, positions: Sequence[Position]) -> None:
        self._cursor.ack(positions)

    def ack_ranges(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        self._cursor.ack_ranges(ranges)

    def ack_batch(self, position: Position, given: int) -> int:
        return self._cursor.ack_batch(position, given)

    def ack_cumulative(self, position: Position) -> None:
        self._cursor.ack_cumulative(position)

    def reset(self, mark_delete: Position) -> None:
        self._cursor.reset(mark_delete)

    def read_at(self, now: float) -> None:
        self._cursor.read_at(now)

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None:
        self._cursor.begin_earlier(mark_delete, start, never)

    def set_properties(self, properties: dict[str, str]) -> None:
        self._cursor.set_properties(properties)

    async def flushed(self) -> None:
        await self._cursor.flushed()
