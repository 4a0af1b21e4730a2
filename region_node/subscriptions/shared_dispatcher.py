"""SharedDispatcher: entries go round the consumers that have permits; what comes back goes out again first.

Is: round robin by entry within the first priority level that has room, redelivery with counts, limits on what is
unacknowledged.
Isn't: ordering by key. Invariants: an entry is held by one consumer at a time; one that is acknowledged is never handed
out again.
Where only one consumer has room it gets whole ranges: nothing is decided an entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush, nsmallest

from heliograph.model.errors import EntriesLost, HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Buffer, Run
from region_node.runtime.cursor_ports import CursorPort, LedgerPort, Piece, entries_for
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.chunked_messages import Chunk, ChunkHolders, chunked_entries
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.delayed_delivery import LATEST_MS, Delayed, Wheel, delayed_entries
from region_node.subscriptions.dispatcher import PASS_BYTES, PASS_ENTRIES, READ_ENTRIES, Dispatcher
from region_node.subscriptions.filters import RESCHEDULE_MS

UNACKED_CONSUMER_MAX = 50_000
UNACKED_SUBSCRIPTION_MAX = 200_000
DUE_MAX = 1000
FEW_CONSUMERS = 16
"""Among so many who holds an entry is found by asking each."""
_NO_CHUNKS: dict[int, Chunk] = {}


class SharedDispatcher(Dispatcher):
    """`unacked`: messages that all consumers hold together."""

    kind = SubscriptionType.SHARED

    def __init__(
        self,
        ledger: LedgerPort,
        cursor: CursorPort,
        ready: ReadyQueue,
        reads: BoundedReads,
        *,
        on_end: Callable[[], bool],
        wheel: Wheel | None = None,
    ) -> None:
        self._wheel = wheel
        self.delayed = Delayed(wheel, self) if wheel is not None else None
        """Entries that are held back until their time; None: delivery is not delayed here."""
        self.put_off = Delayed(wheel.pauses, self) if wheel is not None else None
        """Those that a filter wants later."""
        super().__init__(ledger, cursor, ready, reads, on_end=on_end)
        self.unacked = 0
        self._blocked = False
        self.unacked_max, self.unacked_consumer_max = UNACKED_SUBSCRIPTION_MAX, UNACKED_CONSUMER_MAX
        self.delaying = True
        """False: what is to be delivered later goes out at once."""
        self._dealt = 0
        self._level: list[Consumer] = []
        """Those of one priority level that have room, as far as is known: of this pass."""
        self._next_levels: list[Consumer] | None = None
        """Those behind them; None: nobody was asked yet in this pass."""
        self._chunks: ChunkHolders | None = None
        self._replay: list[Position] = []
        self._replaying: dict[Position, None] = {}
        self._counts: dict[Position, int] = {}
        self._replay_fetched: list[Piece] = []
        self._holders: dict[Position, Consumer] | None = None
        """Entry -> who holds it; None: the consumers are few."""

    @property
    def blocked(self) -> bool:
        """From the limit on, until half of it."""
        self._blocked = self.unacked >= (self.unacked_max // 2 + 1 if self._blocked else self.unacked_max)
        return self._blocked

    @property
    def waiting(self) -> int:
        """Entries that are held back until their time, or put off."""
        return sum(held.count for held in (self.delayed, self.put_off) if held is not None)

    @property
    def redelivering(self) -> int:
        """Entries that wait to go out again."""
        return len(self._replaying)

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority)
        self._end_told = False
        if self._holders is None and len(self.consumers) > FEW_CONSUMERS:
            self._holders = {position: holder for holder in self.consumers for position in holder.pending}

    def remove(self, *consumers: Consumer) -> None:
        gone = set(consumers)
        self.consumers = [consumer for consumer in self.consumers if consumer not in gone]
        for consumer in consumers:
            self.redeliver(consumer, None)
        if len(self.consumers) <= FEW_CONSUMERS // 2:
            self._holders = None

    def acked(self, consumer: Consumer, positions: list[Position]) -> None:
        for position in positions:
            holder = consumer if position in consumer.pending else self._holder(position)
            if holder is not None:
                messages = holder.pending.pop(position)
                if self._holders is not None:
                    self._holders.pop(position, None)
                holder.unacked -= messages
                holder.messages_acked += messages
                self.unacked -= messages
            if self._counts:
                self._counts.pop(position, None)
            if self._replaying:
                self._replaying.pop(position, None)
        self.wake()

    def acked_partly(self, consumer: Consumer, position: Position, left: int) -> None:
        holder = consumer if position in consumer.pending else self._holder(position)
        if holder is not None and (done := holder.pending[position] - left) > 0:
            holder.pending[position] = left
            holder.unacked -= done
            holder.messages_acked += done
            self.unacked -= done
            self.wake()

    def _holder(self, position: Position) -> Consumer | None:
        if self._holders is not None:
            return self._holders.get(position)
        return next((c for c in self.consumers if position in c.pending), None)

    def redeliver(self, consumer: Consumer, positions: list[Position] | None) -> None:
        back = (
            list(consumer.pending)
            if positions is None
            else [p for p in dict.fromkeys(positions) if p in consumer.pending]
        )
        for position in back:
            messages = consumer.pending.pop(position)
            if self._holders is not None:
                self._holders.pop(position, None)
            consumer.unacked -= messages
            consumer.messages_redelivered += messages
            self.unacked -= messages
            self._counts[position] = self._counts.get(position, 0) + 1
            self._put_back(position)
        self.wake()

    def redeliveries(self, most: int) -> dict[Position, int]:
        """Returns how often the `most` oldest entries were handed out again, of those that are not acknowledged."""
        counts = self._counts
        for position in [p for p in counts if self.cursor.is_acked(p)]:  # by another region, or by expiry
            del counts[position]
        return (
            dict(counts)
            if len(counts) <= most
            else {position: counts[position] for position in nsmallest(most, counts)}
        )

    def count_at_least(self, counts: Mapping[Position, int]) -> None:
        """They were handed out so often already, elsewhere."""
        own = self._counts
        for position, count in counts.items():
            if count > own.get(position, 0):
                own[position] = count

    def again(self, positions: list[Position]) -> None:
        for position in positions:
            holder = self._holder(position)
            if holder is not None:
                self.redeliver(holder, [position])
            elif position < self.position:
                self._nobody_has(position)
        self.wake()

    def _nobody_has(self, position: Position) -> None:
        """It was passed over while a transaction held it, and is to go out again."""
        self._put_back(position)

    def _put_back(self, position: Position) -> None:
        """It is to go out again."""
        if position not in self._replaying:
            self._replaying[position] = None
            heappush(self._replay, position)

    def rewind(self) -> None:
        super().rewind()
        for held in (self.delayed, self.put_off):
            if held is not None:
                held.clear()
        self._replay, self._replaying, self._counts, self._replay_fetched = [], {}, {}, []
        self._chunks = None

    def drop_rest(self) -> int:
        dropped = len(self._replaying)
        self._replay, self._replaying, self._replay_fetched = [], {}, []
        return dropped + super().drop_rest()

    # -- handing out

    def _room(self, consumer: Consumer) -> bool:
        consumer.blocked = consumer.unacked >= (
            self.unacked_consumer_max // 2 + 1 if consumer.blocked else self.unacked_consumer_max
        )
        return (
            consumer.permits > 0
            and not consumer.blocked
            and not consumer.busy
            and consumer.sink.writable
            and (self.throttle is None or self.throttle.messages() > 0)
        )

    def run_ready(self) -> None:
        try:
            super().run_ready()
        finally:
            self._level, self._next_levels = [], None

    def _to_next_level(self) -> list[Consumer]:
        """Those with room in the first priority level that has any: each consumer is asked once a pass, as nobody gets
        room in it.
        """
        if self._next_levels is None:
            self._next_levels = [c for c in self.consumers if self._room(c)]
        ready = self._next_levels
        size = bisect_right(ready, ready[0].priority, key=lambda c: c.priority) if ready else 0
        self._level, self._next_levels = ready[:size], ready[size:]
        return self._level

    def _anybody_has_room(self) -> bool:
        while ready := self._level or self._to_next_level():
            if self._room(ready[-1]):
                return True
            ready.pop()
        return False

    def _limit(self) -> int:
        if self.blocked:
            return 0
        most, permits = min(self._let(), READ_ENTRIES * self._messages_per_entry), 0
        for consumer in self.consumers:
            if permits >= most:  # no read brings more
                break
            permits += consumer.permits if self._room(consumer) else 0
        return min(permits, most)

    def _give(self, piece: Piece) -> int:
        """Holds back what is delayed, and hands out the rest."""
        if (
            self.delayed is None
            or self._wheel is None
            or not self.delaying
            or not (late := delayed_entries(piece[2], self._wheel.now_ms))
        ):
            return self._give_now(piece)
        ledger, first, run = piece
        at = 0
        for index, due_ms in [*late, (run.count, 0)]:
            if at < index:
                given = self._give_now((ledger, first + at, run.cut(at, index)))
                if given < index - at:
                    return at + given
            if index < run.count:
                if self._spent():
                    return index
                if self._wheel.full(self.waiting):
                    self.stalled = True  # the owner's tick tries again
                    return index
                self.delayed.add((ledger, first + index), due_ms, self._hash(run.parts[index]))
            at = index + 1
        return run.count

    def _hash(self, entry: Buffer) -> int:
        """What must be known of an entry to hand it out later."""
        return 0

    def _spent(self) -> bool:
        """Whether a pass has done as much as it may; the next one is queued."""
        return False

    def _give_now(self, piece: Piece) -> int:
        ledger, first, run = piece
        chunks = chunked_entries(run) if len(self.consumers) > 1 and not self.volatile else _NO_CHUNKS
        given = 0
        while given < run.count and not self.blocked and (ready := self._level or self._to_next_level()):
            self._dealt += len(ready) > 1
            index = self._dealt % len(ready)
            consumer = ready[index]
            if not self._room(consumer):  # others are asked when it is their turn
                del ready[index]
                continue
            if given in chunks:
                if not self._give_chunk(chunks[given], ledger, first + given, run.cut(given, given + 1), consumer):
                    break
                given += 1
                continue
            count = 1
            if len(ready) == 1:
                rest = run.cut(given, min((index for index in chunks if index > given), default=run.count))
                count = entries_for(rest, min(consumer.permits, self._let()))
            self._hand(consumer, ledger, first + given, run.cut(given, given + count))
            given += count
        return given

    def _give_chunk(self, chunk: Chunk, ledger: int, entry: int, run: Run, consumer: Consumer) -> bool:
        """A piece of a message goes where its first piece went (a first one: to `consumer`), or waits for it. False:
        too many wait.
        """
        if self._chunks is None:
            self._chunks = ChunkHolders()
        holder = self._chunks.holder(chunk, self.consumers, lambda: consumer)
        if self._room(holder):
            self._hand(holder, ledger, entry, run)
            return True
        self._chunks.keep(chunk, holder)
        if not self._chunks.put_aside((ledger, entry), holder):
            self.stalled = True  # the owner's tick tries again
            return False
        return True

    def _free_chunks(self) -> None:
        if self._chunks is not None:
            for position in self._chunks.free(lambda c: c not in self.consumers or self._room(c)):
                if position not in self._replaying and not self.cursor.is_acked(position):
                    self._replaying[position] = None
                    heappush(self._replay, position)

    def _hand(self, consumer: Consumer, ledger: int, first: int, run: Run) -> None:
        redeliveries = None
        if self._counts:
            redeliveries = [self._counts.get((ledger, first + i), 0) for i in range(run.count)]
        ack_sets = self._ack_sets(ledger, first, run)
        messages = consumer.send(ledger, first, run, redeliveries, ack_sets)
        self._spend(messages, run)
        if self.volatile:
            return
        if ack_sets is not None:
            for index in range(run.count):
                count = run.counts[index] if run.counts is not None else 1
                consumer.pending[ledger, first + index] = ack_sets[index].bit_count() if index in ack_sets else count
        elif run.counts is None:
            consumer.pending.update(dict.fromkeys([(ledger, e) for e in range(first, first + run.count)], 1))
        else:
            for index, count in enumerate(run.counts):
                consumer.pending[ledger, first + index] = count
        if self._holders is not None:
            self._holders.update(dict.fromkeys([(ledger, e) for e in range(first, first + run.count)], consumer))
        consumer.unacked += messages
        self.unacked += messages

    # -- what goes out again

    def _take_due(self) -> None:
        """Delayed messages whose time has come, and what was put off for long enough, go out as what goes out again."""
        for held, now_ms in self._waits():
            if not held.count or len(self._replaying) >= self._room_for_due():
                continue
            due = held.due(now_ms, DUE_MAX)
            for position, hashed in due:
                if not self.cursor.is_acked(position):
                    self._now_due(position, hashed)
            if len(due) == DUE_MAX:
                self.wake()

    def _waits(self) -> Iterator[tuple[Delayed, int]]:
        """With the time by which each is due."""
        if self._wheel is not None and self.delayed is not None and self.put_off is not None:
            yield self.delayed, self._wheel.now_ms if self.delaying else LATEST_MS
            yield self.put_off, self._wheel.pauses.now_ms if self.filtering is not None else LATEST_MS

    def _room_for_due(self) -> int:
        """How many may wait to go out and more become due all the same."""
        return DUE_MAX

    def _now_due(self, position: Position, hashed: int) -> None:
        self._replaying[position] = None
        heappush(self._replay, position)

    def _before_new(self) -> bool:
        self._take_due()
        self._free_chunks()
        entries = size_bytes = 0
        while self._replaying:
            if entries >= PASS_ENTRIES or size_bytes >= PASS_BYTES:
                self.wake()
                return True
            self._older_first()
            if not self._replay_fetched and not self._fetch_replay():
                return True
            piece = self._replay_fetched.pop(0)
            ledger, first, run = piece
            entries += run.count
            size_bytes += run.size_bytes
            for index in range(run.count):
                position = (ledger, first + index)
                if position not in self._replaying:
                    continue
                if self.cursor.is_acked(position) or self._give_again(
                    (ledger, first + index, run.cut(index, index + 1))
                ):
                    del self._replaying[position]
                else:
                    self._replay_fetched.insert(0, (ledger, first + index, run.cut(index, run.count)))
                    return True
        return self._limit() <= 0

    def _older_first(self) -> None:
        """What was fetched goes back where something older has come meanwhile: the pieces of a message go out in their
        order.
        """
        if self._replay_fetched:
            while self._replay and self._replay[0] not in self._replaying:
                heappop(self._replay)
            if self._replay and self._replay[0] < self._replay_fetched[0][:2]:
                fetched, self._replay_fetched = self._replay_fetched, []
                for ledger, first, run in fetched:
                    for position in [(ledger, first + i) for i in range(run.count)]:
                        if position in self._replaying:
                            heappush(self._replay, position)

    def _give_again(self, piece: Piece) -> int:
        return self._give(piece) if self.filtering is None else self._give_filtered(piece)

    def _reschedule(self, piece: Piece) -> int:
        """It goes out later, others go on. What is not stored cannot wait, and is dropped."""
        ledger, first, run = piece
        if self.put_off is None or self._wheel is None:
            return run.count
        for index in range(run.count):
            if self._spent():
                return index
            if self._wheel.full(self.waiting):
                self.stalled = True
                return index
            until_ms = self._wheel.pauses.now_ms + RESCHEDULE_MS
            self.put_off.add((ledger, first + index), until_ms, self._hash(run.parts[index]))
        return run.count

    def _fetch_replay(self) -> bool:
        """True: the first entries that go out again are at hand. False: they are being read."""
        if self._reading:
            return False
        while self._replay and self._replay[0] not in self._replaying:
            heappop(self._replay)
        ledger, entry = heappop(self._replay)
        last = entry
        while self._replay and self._replay[0] <= (ledger, last + 1) and last - entry < READ_ENTRIES:
            last = heappop(self._replay)[1]
        self._replay_fetched = _within(
            self.ledger.cached((ledger, entry), last - entry + 1, PASS_BYTES), ledger, entry, last
        )
        if self._replay_fetched:
            self._push_missing(ledger, entry, last)
            return True
        self._reading = True
        generation = self._generation
        self._reads.start(lambda: self._read_replay(generation, ledger, entry, last))
        return False

    def _push_missing(self, ledger: int, entry: int, last: int) -> None:
        """What a read did not bring goes back into the queue, or is given up where it exists no more."""
        behind = self._replay_fetched[-1][1] + self._replay_fetched[-1][2].count if self._replay_fetched else entry
        for position in [(ledger, e) for e in range(behind, last + 1)]:
            if position in self._replaying:
                heappush(self._replay, position)

    async def _read_replay(self, generation: int, ledger: int, entry: int, last: int) -> None:
        pieces: list[Piece] | None = None
        try:
            pieces = await self.ledger.read((ledger, entry), last - entry + 1, PASS_BYTES)
        except HeliographError as error:
            if self._failed((ledger, entry), error):  # else the owner's tick tries again
                self.wake()
        finally:
            self._reading = False
            if generation == self._generation:
                self._replay_fetched = _within(pieces or [], ledger, entry, last)
                if pieces is not None and not self._replay_fetched:  # trimmed meanwhile
                    for e in range(entry, last + 1):
                        self._replaying.pop((ledger, e), None)
                else:
                    self._push_missing(ledger, entry, last)
            if pieces is not None or generation != self._generation:
                self.wake()

    def _pass_over(self, position: Position, lost: EntriesLost) -> None:
        super()._pass_over(position, lost)
        for entry in [p for p in self._replaying if p[0] == lost.ledger and lost.first <= p[1] <= lost.last]:
            del self._replaying[entry]


def _within(pieces: list[Piece], ledger: int, first: int, last: int) -> list[Piece]:
    """The part of `pieces` that lies in (ledger, first..last)."""
    out: list[Piece] = []
    for piece_ledger, piece_first, run in pieces:
        if piece_ledger != ledger:
            continue
        low, high = max(first, piece_first), min(last, piece_first + run.count - 1)
        if low <= high:
            out.append((ledger, low, run.cut(low - piece_first, high + 1 - piece_first)))
    return out
