"""Dispatcher: reads a subscription's backlog and tail, and hands it out by ranges. The part that all subscription types
share.

Is: the read position, one pass of bounded work, waiting for a read of backlog or for the tail. Isn't: who gets what
(`_next_limit`, `_give`).
Invariants: at most one read is under way for a subscription; entries go to `_give` in order, each once between two
rewinds; what clients must not see is acknowledged here when it is passed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from heliograph.model.errors import EntriesLost, HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.runtime.cursor_ports import CursorPort, LeadershipPort, LedgerPort, Piece, visible
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.filters import ACCEPT, REJECT, Filtering
from region_node.subscriptions.rate_limits import NO_LIMIT, DispatchThrottle

log = logging.getLogger("region_node.topics")

PASS_ENTRIES = 1024
PASS_BYTES = 1 << 18
"""What one subscription's pass gives to the socket holds up everybody else on the loop for as long as its copy takes:
publishers at the tail as well.
"""
READ_ENTRIES = 512
_CATCHES_UP_BYTES = 1 << 20
"""Who has read so much from bookies, and nothing at the tail meanwhile, gives way to publishers."""


class Dispatcher(ABC):
    """One for the time that a subscription has consumers of one type. `position`: the first entry not handed out
    yet.
    """

    kind: SubscriptionType

    def __init__(
        self,
        ledger: LedgerPort,
        cursor: CursorPort,
        ready: ReadyQueue,
        reads: BoundedReads,
        *,
        on_end: Callable[[], bool],
    ) -> None:
        self.ledger, self.cursor = ledger, cursor
        self._ready, self._reads, self._on_end = ready, reads, on_end
        self.consumers: list[Consumer] = []
        self.queued = False
        self.position = after(cursor.mark_delete)
        self.volatile = False
        """Nothing is stored: what cannot go out at once is dropped, and nobody acknowledges."""
        self.touched: Callable[[], None] = _nobody
        """Called when it works, and when it stalls: the owner's tick is to look at it."""
        self._stalled = False
        self._fetched: list[Piece] = []
        self._reading = False
        self._behind_bytes = 0
        """Read from bookies since something came from the cache."""
        self._generation = 0
        self._messages_per_entry = 1
        self._end_told = False
        self.throttle: DispatchThrottle | None = None
        """What the rates of the topic and of the subscription let go out."""
        self.pausing = False
        """Nothing new goes out while more is acknowledged above the mark-delete position than can be stored."""
        self.leadership: LeadershipPort | None = None
        """Of a subscription that is active in one region at a time: asked before each pass."""
        self.filtering: Filtering | None = None
        """What decides who gets what, beside the type."""
        self.skips_lost = False
        """Entries that are lost count as acknowledged; else it waits before them."""
        self.lost: EntriesLost | None = None
        """What the last read has found to be lost, where it waits before that."""
        self._judged: tuple[Position, Sequence[int]] | None = None
        """What filters said of entries that could not go out: the first of them, and the verdicts."""

    @property
    def stalled(self) -> bool:
        """A read failed, or something else is waited for that tells nobody; the owner's tick wakes it."""
        return self._stalled

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        self._stalled = stalled
        if stalled:
            self.touched()

    # -- what types decide

    @abstractmethod
    def add(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def remove(self, *consumers: Consumer) -> None:
        """They leave at once: what each of them would cost the others is paid once."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: list[Position] | None) -> None:
        """positions None: all that the consumer holds."""

    def acked(self, consumer: Consumer, positions: list[Position]) -> None:  # noqa: B027 - most types need not know
        """Hears of entries that are wholly acknowledged, so that it forgets what it keeps of them."""

    # most types need not know
    def acked_partly(self, consumer: Consumer, position: Position, left: int) -> None:  # noqa: B027
        """`left` messages of that batch are not acknowledged yet."""

    def again(self, positions: list[Position]) -> None:
        """What a transaction had acknowledged goes out again: it was aborted."""
        self.rewind()
        self.wake()

    def read_through(self, ledger: LedgerPort) -> None:
        """From now on entries are read there."""
        self.ledger = ledger

    @abstractmethod
    def _limit(self) -> int:
        """Messages that may go out now; 0: nothing moves before a permit or an acknowledgement comes."""

    @abstractmethod
    def _give(self, piece: Piece) -> int:
        """Hands out entries from the start of `piece`, all visible and unacknowledged; returns how many."""

    def _found_nothing(self) -> None:  # noqa: B027 - only where positions may be passed over
        """A read brought nothing, at a position that the log has confirmed."""

    def _before_new(self) -> bool:
        """Work that goes ahead of new entries. True: it is stuck (permits, a read), and new entries must wait."""
        return False

    # -- what all share

    def _let(self) -> int:
        """Messages that the rates let go out now."""
        return NO_LIMIT if self.throttle is None else self.throttle.messages()

    def _bytes_max(self) -> int:
        return PASS_BYTES if self.throttle is None else max(1, min(PASS_BYTES, self.throttle.bytes_left()))

    def _spend(self, messages: int, run: Run) -> None:
        if self.throttle is not None:
            self.throttle.spend(messages, run.size_bytes)

    def _ack_sets(self, ledger: int, first: int, run: Run) -> dict[int, int] | None:
        """Index in the run -> bits of the messages that are not acknowledged, of the batches that are partly."""
        partly = self.cursor.partly_acked
        if not partly:
            return None
        return {i: partly[ledger, first + i] for i in range(run.count) if (ledger, first + i) in partly} or None

    def wake(self) -> None:
        self._ready.push(self)

    def rewind(self) -> None:
        """Everything behind the mark-delete position goes out again."""
        self.position = after(self.cursor.mark_delete)
        self._fetched, self._judged = [], None
        self._generation += 1

    def drop_rest(self) -> int:
        """Gives up what did not go out; returns how many messages. Only where nothing is stored."""
        dropped = sum(run.messages for _, _, run in self.ledger.cached(self.position, READ_ENTRIES, PASS_BYTES))
        self.position = after(self.ledger.last_confirmed)
        return dropped

    def run_ready(self) -> None:
        """One pass: hands out up to TURN_ENTRIES entries or TURN_BYTES bytes."""
        self.touched()
        if self.leadership is not None and not self.leadership.open:
            self.stalled = True  # the owner's tick looks again
            return
        if self.throttle is not None:
            self.throttle.refill()  # once a pass: one that waits for nothing would go on for what comes meanwhile
        entries = size_bytes = 0
        while (limit := self._limit()) > 0 and not self._before_new():
            if entries >= PASS_ENTRIES or size_bytes >= PASS_BYTES:
                self.wake()
                return
            if self.pausing and not self.cursor.fits:
                self.stalled = True  # the owner's tick looks again
                return
            fetched = bool(self._fetched)
            pieces = self._next(limit)
            if not pieces:
                return
            for index, piece in enumerate(pieces):
                given = self._pass(piece)
                entries += given
                size_bytes += piece[2].size_bytes
                if given < piece[2].count:
                    if fetched:
                        rest = (piece[0], piece[1] + given, piece[2].cut(given, piece[2].count))
                        self._fetched = [rest, *pieces[index + 1 :]]
                    if self.stalled:
                        return
                    break
        if self.throttle is not None and not self.throttle.messages():
            self.throttle.wake_later(self)

    def _next(self, limit: int) -> list[Piece]:
        if self._fetched:
            fetched, self._fetched = self._fetched, []
            return fetched
        if self._reading:
            return []
        if self.position > self.ledger.last_confirmed:
            if not self._end_told and self._on_end() and self.cursor.mark_delete >= self.ledger.last_confirmed:
                self._end_told = True
                for consumer in self.consumers:
                    consumer.sink.reached_end(consumer)
            return []
        entries_max = min(limit // self._messages_per_entry + 1, READ_ENTRIES)
        pieces = self.ledger.cached(self.position, entries_max, self._bytes_max())
        if pieces:
            self._behind_bytes = 0
            self._messages_per_entry = max(1, pieces[0][2].messages // pieces[0][2].count)
            return pieces
        self._reading = True
        read = partial(self._read, self._generation, self.position, entries_max)
        if self._behind_bytes < _CATCHES_UP_BYTES:
            self._reads.start(read)
        else:
            self._reads.start_bulk(self, read, self._bytes_max(), self.cursor.backlog_bytes)
        return []

    async def _read(self, generation: int, position: Position, entries_max: int) -> None:
        if not self.consumers:  # they have gone while this waited for its turn
            self._reading = False
            return
        pieces: list[Piece] = []
        skipped = False
        try:
            pieces = await self.ledger.read(position, entries_max, self._bytes_max())
        except HeliographError as error:
            skipped = self._failed(position, error)
        finally:
            self._reading = False
        if generation != self._generation or skipped:
            self.wake()
        elif pieces:
            self._behind_bytes += sum(run.size_bytes for *_, run in pieces)
            self._fetched = pieces
            self._messages_per_entry = max(1, pieces[0][2].messages // pieces[0][2].count)
            self.wake()
        elif not self.stalled:
            self._found_nothing()

    def _failed(self, position: Position, error: HeliographError) -> bool:
        """A read has failed. True: what is not there any more is passed over, and it goes on at once."""
        log.warning("dispatch.read_failed", extra={"position": position, "error": str(error)})
        if not isinstance(error, EntriesLost) or not self.skips_lost:
            self.lost, self.stalled = error if isinstance(error, EntriesLost) else None, True
            return False
        log.warning("dispatch.lost_skipped", extra={"ledger": error.ledger, "first": error.first, "last": error.last})
        self.cursor.ack_ranges([(error.ledger, error.first, error.last)])
        self._pass_over(position, error)
        return True

    def _pass_over(self, position: Position, lost: EntriesLost) -> None:
        """None of these entries is waited for; they are the first ones at or behind `position`."""
        if position <= self.position <= (lost.ledger, lost.last):
            self.position = lost.ledger, lost.last + 1

    def _pass(self, piece: Piece) -> int:
        """Hands out a piece as far as it goes; returns the entries that are behind the read position then."""
        ledger, first, run = piece
        shown, hidden = visible(piece)
        if hidden:
            self.cursor.ack_ranges(hidden)
        for part in self.cursor.unacked_runs(shown):
            given = self._give(part) if self.filtering is None else self._give_filtered(part)
            if given < part[2].count:
                self.position = (ledger, part[1] + given)
                return part[1] + given - first
        self.position = (ledger, first + run.count)
        return run.count

    def _give_filtered(self, piece: Piece) -> int:
        """As `_give`, of what the entry filters accept; what they reject counts as acknowledged."""
        ledger, first, run = piece
        verdicts = self._verdicts(piece)
        at = 0
        while at < run.count:
            verdict, stop = verdicts[at], at + 1
            while stop < run.count and verdicts[stop] == verdict:
                stop += 1
            if verdict == REJECT:
                self.cursor.ack_ranges([(ledger, first + at, first + stop - 1)])
                at = stop
                continue
            give = self._give if verdict == ACCEPT else self._reschedule
            given = give((ledger, first + at, run.cut(at, stop)))
            if given < stop - at:
                if verdict == ACCEPT:  # they are not asked again
                    self._judged = (
                        (ledger, first + at + given),
                        [*verdicts[at + given :], *(self._judged[1] if self._judged is not None else ())],
                    )
                return at + given
            at = stop
        return run.count

    def filter_by(self, filtering: Filtering | None) -> None:
        """From now on; what other filters said counts no more."""
        self.filtering, self._judged = filtering, None

    def _verdicts(self, piece: Piece) -> Sequence[int]:
        ledger, first, run = piece
        judged, self._judged = self._judged, None
        known = list(judged[1][: run.count]) if judged is not None and judged[0] == (ledger, first) else []
        if known and judged is not None and len(judged[1]) > run.count:
            self._judged = (ledger, first + run.count), judged[1][run.count :]
        if len(known) < run.count:
            assert self.filtering is not None
            rest = run.cut(len(known), run.count)
            known += self.filtering.verdicts(ledger, first + len(known), rest) or [ACCEPT] * rest.count
        return known

    def _reschedule(self, piece: Piece) -> int:
        """A filter wants it later: here it, and all behind it, waits for the owner's tick. Returns how many entries of
        it are taken care of.
        """
        self.stalled = True
        return 0


def _nobody() -> None: ...


def after(position: Position) -> Position:
    return position[0], position[1] + 1
