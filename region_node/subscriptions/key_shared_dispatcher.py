"""KeySharedDispatcher: each message goes to the consumer that its key belongs to, and the messages of a key keep their
order.

Is: hashes to consumers, what waits for its consumer or for an older message of its key. Isn't: the division of hashes
(`sticky_keys`).
Invariants: at most one consumer holds unacknowledged messages of a hash, whoever joins or goes meanwhile; a message
goes out only behind the older ones of its hash that wait; at most LOOK_AHEAD_MAX entries wait, and then nothing new is
read. With `out_of_order` only the last.
Nothing of an entry is kept while it waits but its position and hash: it is read again, mostly from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from heliograph.model.errors import ConsumerBusy, EntriesLost, HeliographError
from heliograph.model.positions import Position
from heliograph.wire.run import Buffer, Run
from region_node.runtime.cursor_ports import CursorPort, LedgerPort, Piece
from region_node.runtime.ready_queue import BoundedReads, ReadyQueue
from region_node.subscriptions.consumer import Consumer, SubscriptionType
from region_node.subscriptions.delayed_delivery import Wheel
from region_node.subscriptions.dispatcher import PASS_BYTES, PASS_ENTRIES, READ_ENTRIES
from region_node.subscriptions.filters import ACCEPT, REJECT, RESCHEDULE
from region_node.subscriptions.shared_dispatcher import SharedDispatcher
from region_node.subscriptions.sticky_keys import (
    KEY_HASHED_MAX,
    AutoSplit,
    ConsistentHash,
    HashRanges,
    Sticky,
    key_digest,
    key_hash,
    sticky_key,
)

LOOK_AHEAD_MAX = 20_000
_KEYS_MAX = 65_536
HASHED_BYTES_MAX = 64 << 10
"""Of new keys that one pass hashes, about: Murmur3 takes 0.4 µs a byte, and all else waits meanwhile."""


class KeySharedDispatcher(SharedDispatcher):
    """`sticky`, `out_of_order`: as its first consumer asked; all others must ask for the same."""

    kind = SubscriptionType.KEY_SHARED

    def __init__(
        self,
        ledger: LedgerPort,
        cursor: CursorPort,
        ready: ReadyQueue,
        reads: BoundedReads,
        *,
        on_end: Callable[[], bool],
        sticky: bool,
        out_of_order: bool,
        wheel: Wheel | None = None,
    ) -> None:
        super().__init__(ledger, cursor, ready, reads, on_end=on_end, wheel=wheel)
        self.sticky, self.out_of_order = sticky, out_of_order
        self.ranges: HashRanges = Sticky() if sticky else AutoSplit()
        self._hashes: dict[Position, int] = {}
        """Of what is held or waits."""
        self._held: dict[int, tuple[Consumer, int]] = {}
        """Hash -> who holds messages of it, and how many entries; not kept with `out_of_order`."""
        self._waiting: dict[int, list[Position]] = {}
        """Hash -> heap of what waits; `_replaying` says which of them still do."""
        self._at_hand: dict[Position, Run] = {}
        self._known: dict[bytes, int] = {}
        """Digest of a key -> hash: the hash of a large one costs more than the digest."""
        self._hashed_bytes = 0
        """Of the keys that were hashed in this pass."""
        self._unhashed: list[Position] = []
        """Entries that transactions gave back, whose keys are not known any more."""
        self._hashing = False
        self._again = True
        """Something has changed for what waits: a permit, an acknowledgement, a consumer."""

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy where it wants another division than the others, ConsumerAssignError where its ranges are
        taken.
        """
        if (consumer.hash_ranges is not None, consumer.out_of_order) != (self.sticky, self.out_of_order):
            raise ConsumerBusy("the subscription has consumers of another Key_Shared policy")
        if isinstance(self.ranges, Sticky):
            self.ranges.check(consumer.hash_ranges or ())

    def divide(self, *, consistent: bool) -> None:
        """How hashes are divided from now on, where consumers do not say it themselves. Whoever holds messages of a
        hash keeps them until they are acknowledged; the next owner waits for that, as at any change.
        """
        if self.sticky or isinstance(self.ranges, ConsistentHash) is consistent:
            return
        self.ranges = ConsistentHash() if consistent else AutoSplit()
        for consumer in self.consumers:
            self.ranges.add(consumer)
        self.wake()

    def draining(self) -> dict[Consumer, dict[int, int]]:
        """Who holds messages of hashes that belong to another now -> hash -> how many messages: they hold the next
        owner up.
        """
        out: dict[Consumer, dict[int, int]] = {}
        for hashed, (holder, _) in self._held.items():
            if self.ranges.owner(hashed) is not holder:
                out.setdefault(holder, {})[hashed] = 0
        for holder, hashes in out.items():
            for position, messages in holder.pending.items():
                if (hashed := self._hashes.get(position, -1)) in hashes:
                    hashes[hashed] += messages
        return out

    def add(self, consumer: Consumer) -> None:
        self.ranges.add(consumer)
        super().add(consumer)
        self.wake()

    def remove(self, *consumers: Consumer) -> None:
        super().remove(*consumers)
        if self.consumers:  # else nobody asks any more
            self.ranges.remove(*consumers)

    def wake(self) -> None:
        self._again = True
        super().wake()

    def rewind(self) -> None:
        super().rewind()
        self._hashes, self._held, self._waiting, self._at_hand = {}, {}, {}, {}
        self._unhashed = []

    def acked(self, consumer: Consumer, positions: list[Position]) -> None:
        for position in dict.fromkeys(positions):
            holder = consumer if position in consumer.pending else self._holder(position)
            if holder is not None:
                self._release(position)
            self._hashes.pop(position, None)
        super().acked(consumer, positions)

    def _put_back(self, position: Position) -> None:
        self._release(position)
        self._wait(position, self._hashes[position])

    def _nobody_has(self, position: Position) -> None:
        self._unhashed.append(position)

    async def _hash_again(self, generation: int) -> None:
        """Reads the keys of what was passed over, so that it goes out in its key's order."""
        try:
            while self._unhashed and generation == self._generation:
                position = self._unhashed[-1]
                pieces = await self.ledger.read(position, 1, PASS_BYTES)
                if generation != self._generation:
                    return
                self._unhashed.pop()
                if (
                    pieces
                    and pieces[0][:2] == position
                    and position not in self._hashes
                    and not self.cursor.is_acked(position)
                ):
                    self._wait(position, self._hash(pieces[0][2].parts[0]))
        except HeliographError as error:
            self._failed(self._unhashed[-1], error)
        finally:
            self._hashing = False
        if not self.stalled:
            self.wake()

    # -- keys

    def _hash(self, entry: Buffer) -> int:
        key = sticky_key(entry)
        name = key_digest(key)
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _KEYS_MAX:
                self._known.clear()
            found = self._known[name] = key_hash(key)
            self._hashed_bytes += min(len(key), KEY_HASHED_MAX)
            if self._spent():
                self.wake()
        return found

    def _spent(self) -> bool:
        return not self.volatile and self._hashed_bytes >= HASHED_BYTES_MAX  # what a volatile one leaves is dropped

    def run_ready(self) -> None:
        self._hashed_bytes = 0
        super().run_ready()

    def _limit(self) -> int:
        return 0 if self._spent() else super()._limit()

    def _free(self, hashed: int, owner: Consumer) -> bool:
        """Whether no other consumer still holds messages of that hash."""
        held = self._held.get(hashed)
        return held is None or held[0] is owner

    def _release(self, position: Position) -> None:
        hashed = self._hashes[position]
        held = self._held.get(hashed)
        if held is not None:
            if held[1] > 1:
                self._held[hashed] = held[0], held[1] - 1
            else:
                del self._held[hashed]

    def _wait(self, position: Position, hashed: int) -> None:
        self._hashes[position] = hashed
        self._replaying[position] = None
        heappush(self._waiting.setdefault(hashed, []), position)

    # -- handing out

    def _give_now(self, piece: Piece) -> int:
        ledger, first, run = piece
        hashes: list[int] = []
        for part in run.parts:
            hashes.append(self._hash(part))
            if self._spent():
                break
        at, end = 0, len(hashes)
        while at < end and not self.blocked and len(self._replaying) < LOOK_AHEAD_MAX:
            owner = self.ranges.owner(hashes[at])
            if owner is None or not self._room(owner) or not self._next_of_its_hash(hashes[at], owner):
                if not self._anybody_has_room():
                    break
                self._wait((ledger, first + at), hashes[at])
                at += 1
                continue
            stop, left = at, min(owner.permits, self._let())
            while (
                stop < end
                and left > 0
                and self.ranges.owner(hashes[stop]) is owner
                and self._next_of_its_hash(hashes[stop], owner)
            ):
                left -= 1 if run.counts is None else run.counts[stop]
                stop += 1
            self._hand_to(owner, ledger, first + at, run.cut(at, stop), hashes[at:stop])
            at = stop
        return at

    def _next_of_its_hash(self, hashed: int, owner: Consumer) -> bool:
        return self.out_of_order or (hashed not in self._waiting and self._free(hashed, owner))

    def drop_rest(self) -> int:
        self._hashes, self._waiting = {}, {}
        return super().drop_rest()

    def _hand_to(self, owner: Consumer, ledger: int, first: int, run: Run, hashes: list[int]) -> None:
        if self.volatile:
            self._hand(owner, ledger, first, run)
            return
        for index, hashed in enumerate(hashes):
            self._hashes[ledger, first + index] = hashed
            if not self.out_of_order:
                held = self._held.get(hashed)
                self._held[hashed] = owner, 1 if held is None else held[1] + 1
        self._hand(owner, ledger, first, run)

    # -- what waits

    def _room_for_due(self) -> int:
        return LOOK_AHEAD_MAX

    def _now_due(self, position: Position, hashed: int) -> None:
        self._again = True
        self._wait(position, hashed)

    def _before_new(self) -> bool:
        self._take_due()
        if self._unhashed and not self._hashing:
            self._hashing = True
            generation = self._generation
            self._reads.start(lambda: self._hash_again(generation))
        if self._again and self._replaying:
            self._again = False
            if self._give_waiting():
                self.wake()
                return True
        return len(self._replaying) >= LOOK_AHEAD_MAX or self._limit() <= 0

    def _give_waiting(self) -> bool:
        """True: a pass does no more, and more may be able to go."""
        missing: Position | None = None
        done = 0
        for hashed in list(self._waiting):
            if self.blocked or done >= PASS_ENTRIES:
                break
            owner = self.ranges.owner(hashed)
            if owner is None or not self._room(owner) or not (self.out_of_order or self._free(hashed, owner)):
                continue
            heap = self._waiting[hashed]
            while heap and done < PASS_ENTRIES and self._room(owner):
                position = heap[0]
                if position in self._replaying and not self.cursor.is_acked(position):
                    run = self._find(position)
                    if run is None:
                        missing = position if missing is None else min(missing, position)
                        break
                    verdict = ACCEPT if self.filtering is None else self._verdicts((*position, run))[0]
                    if verdict == ACCEPT:
                        self._hand_to(owner, *position, run, [hashed])
                    else:
                        if verdict == RESCHEDULE and not self._reschedule((*position, run)):
                            break
                        if verdict == REJECT:
                            self.cursor.ack([position])
                        self._hashes.pop(position, None)
                elif position in self._replaying:
                    self._hashes.pop(position, None)
                self._replaying.pop(position, None)
                self._at_hand.pop(position, None)
                heappop(heap)
                done += 1
            if not heap:
                del self._waiting[hashed]
        if missing is not None and not self._reading:
            self._reading = True
            generation, start = self._generation, missing
            self._reads.start(lambda: self._read_waiting(generation, start))
        return done >= PASS_ENTRIES

    def _find(self, position: Position) -> Run | None:
        """The entry, where it is at hand or cached."""
        found = self._at_hand.get(position)
        if found is None:
            cached = self.ledger.cached(position, 1, PASS_BYTES)
            found = cached[0][2].cut(0, 1) if cached and cached[0][:2] == position else None
        return found

    def _pass_over(self, position: Position, lost: EntriesLost) -> None:
        super()._pass_over(position, lost)
        for entry in [p for p in self._hashes if p[0] == lost.ledger and lost.first <= p[1] <= lost.last]:
            if self.cursor.is_acked(entry) and self._holder(entry) is None:
                del self._hashes[entry]
        self._unhashed = [p for p in self._unhashed if p[0] != lost.ledger or not lost.first <= p[1] <= lost.last]

    async def _read_waiting(self, generation: int, start: Position) -> None:
        try:
            pieces = await self.ledger.read(start, READ_ENTRIES, PASS_BYTES)
            if generation == self._generation:
                self._at_hand = {
                    (ledger, first + i): run.cut(i, i + 1)
                    for ledger, first, run in pieces
                    for i in range(run.count)
                    if (ledger, first + i) in self._replaying
                }
                if start in self._replaying and start not in self._at_hand:  # trimmed meanwhile
                    del self._replaying[start]
                    self._hashes.pop(start, None)
        except HeliographError as error:
            self._failed(start, error)
        finally:
            self._reading = False
        if not self.stalled:
            self.wake()
