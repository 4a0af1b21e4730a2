"""Dispatcher: reads a subscription's backlog and tail, and hands it out by ranges. The part that all subscription types share.

Is: the read position, one turn of bounded work, waiting for a read of backlog or for the tail. Isn't: who gets what (`_next_limit`, `_give`).
Invariants: at most one read is under way for a subscription; entries go to `_give` in order, each once between two rewinds; what clients
must not see is acknowledged here when it is passed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from heliograph.model.errors import HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.port import CursorPort, LedgerPort, Piece, visible
from region_node.subscriptions.ready import BoundedReads, ReadyQueue
from region_node.subscriptions.throttle import NO_LIMIT, Throttle

log = logging.getLogger("region_node.topics")

TURN_ENTRIES = 1024
TURN_BYTES = 1 << 20
READ_ENTRIES = 512


class Dispatcher(ABC):
    """One for the time that a subscription has consumers of one type. `position`: the first entry not handed out yet."""

    kind: SubscriptionType

    def __init__(self, ledger: LedgerPort, cursor: CursorPort, ready: ReadyQueue, reads: BoundedReads, *, on_end: Callable[[], bool]) -> None:
        self.ledger, self.cursor = ledger, cursor
        self._ready, self._reads, self._on_end = ready, reads, on_end
        self.consumers: list[Consumer] = []
        self.queued = False
        self.position = after(cursor.mark_delete)
        self.volatile = False
        """Nothing is stored: what cannot go out at once is dropped, and nobody acknowledges."""
        self.stalled = False
        """A read failed; the owner's tick wakes it."""
        self._fetched: list[Piece] = []
        self._reading = False
        self._generation = 0
        self._messages_per_entry = 1
        self._end_told = False
        self.throttle: Throttle | None = None
        """What the rates of the topic and of the subscription let go out."""

    # -- what types decide

    @abstractmethod
    def add(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def remove(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: list[Position] | None) -> None:
        """positions None: all that the consumer holds."""

    def acked(self, consumer: Consumer, positions: list[Position]) -> None:  # noqa: B027 - most types need not know
        """Forgets what is acknowledged."""

    def acked_partly(self, consumer: Consumer, position: Position, left: int) -> None:  # noqa: B027 - most types need not know
        """`left` messages of that batch are not acknowledged yet."""

    @abstractmethod
    def _limit(self) -> int:
        """Messages that may go out now; 0: nothing moves before a permit or an acknowledgement comes."""

    @abstractmethod
    def _give(self, piece: Piece) -> int:
        """Hands out entries from the start of `piece`, all visible and unacknowledged; returns how many."""

    def _before_new(self) -> bool:
        """Work that goes ahead of new entries. True: it is stuck (permits, a read), and new entries must wait."""
        return False

    # -- what all share

    def _let(self) -> int:
        """Messages that the rates let go out now."""
        return NO_LIMIT if self.throttle is None else self.throttle.messages()

    def _bytes_max(self) -> int:
        return TURN_BYTES if self.throttle is None else max(1, min(TURN_BYTES, self.throttle.bytes_left()))

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
        self._fetched = []
        self._generation += 1

    def drop_rest(self) -> int:
        """Gives up what did not go out; returns how many messages. Only where nothing is stored."""
        dropped = sum(run.messages for _, _, run in self.ledger.cached(self.position, READ_ENTRIES, TURN_BYTES))
        self.position = after(self.ledger.last_confirmed)
        return dropped

    def run_ready(self) -> None:
        """One turn: hands out up to TURN_ENTRIES entries or TURN_BYTES bytes."""
        entries = size_bytes = 0
        while (limit := self._limit()) > 0 and not self._before_new():
            if entries >= TURN_ENTRIES or size_bytes >= TURN_BYTES:
                self.wake()
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
            if not self._end_told and self._on_end():
                self._end_told = True
                for consumer in self.consumers:
                    consumer.sink.reached_end(consumer)
            return []
        entries_max = min(limit // self._messages_per_entry + 1, READ_ENTRIES)
        pieces = self.ledger.cached(self.position, entries_max, self._bytes_max())
        if pieces:
            self._messages_per_entry = max(1, pieces[0][2].messages // pieces[0][2].count)
        else:
            self._reading = True
            generation, position = self._generation, self.position
            self._reads.start(lambda: self._read(generation, position, entries_max))
        return pieces

    async def _read(self, generation: int, position: Position, entries_max: int) -> None:
        pieces: list[Piece] = []
        try:
            pieces = await self.ledger.read(position, entries_max, self._bytes_max())
        except HeliographError as error:
            self.stalled = True
            log.warning("dispatch.read_failed", extra={"position": position, "error": str(error)})
        finally:
            self._reading = False
        if generation != self._generation:
            self.wake()
        elif pieces:
            self._fetched = pieces
            self._messages_per_entry = max(1, pieces[0][2].messages // pieces[0][2].count)
            self.wake()

    def _pass(self, piece: Piece) -> int:
        """Hands out a piece as far as it goes; returns the entries that are behind the read position then."""
        ledger, first, run = piece
        shown, hidden = visible(piece)
        if hidden:
            self.cursor.ack_ranges(hidden)
        for part in self.cursor.unacked_runs(shown):
            given = self._give(part)
            if given < part[2].count:
                self.position = (ledger, part[1] + given)
                return part[1] + given - first
        self.position = (ledger, first + run.count)
        return run.count


def after(position: Position) -> Position:
    return position[0], position[1] + 1
