"""SyncedCursor: the cursor of a replicated subscription, read in coordinates, and moved by what other regions claim.

Is: noticing a reset, what the cursor says as claims, what others claim as positions here. Isn't: a rule
(`replicator.subscriptions.subscription_state`), or when anything is done, and who is told
(`replicator.subscriptions.subscription_sync`).
Invariants: a reset by a client is noticed before anything that others claimed is applied; it is stored in one piece
with the epoch that it makes.
Bounds: `ROUND_BYTES` read for claiming, and as much for applying, in a round; a read counts as at least
`ROUND_BYTES / ClaimSettings.round_reads`. Of batches acknowledged in part, `ClaimSettings.round_lookups` are looked up
for claiming, and as many for applying; what is left comes in the next round.
Source: docs/protocols/links.md, "Replicated subscriptions".
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from heliograph.model.coordinates import Coordinate, Origin, Range
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.log.coordinate_lookup import Found, LookupStatus, coordinate_of, entries_until, position_of, vector_at
from replicator.log.replicated_entries import addressed_to
from replicator.subscriptions.ack_claims import Base, Claims, Epoch, insert, subtract
from replicator.subscriptions.redelivery_counts import Redeliveries
from replicator.subscriptions.subscription_state import HERE, PROPERTY, SubscriptionState, Todo
from storage.managed_ledger.cursors.cursor_expiry import GIVEN_UP, given_up_of

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog

events = logging.getLogger("replicator")

ROUND_BYTES = 16 << 20
_LOOK_BYTES = 1024
"""What it counts to look at a run that was read before."""
_READ_ENTRIES = 512
_READ_BYTES = 1 << 20


class SyncCursor(Protocol):
    """The part of the managed ledger's cursor that is used here."""

    durable: bool
    mark_delete: Position
    changes: int
    properties: dict[str, str]
    partly_acked: dict[Position, int]

    @property
    def acked_ranges(self) -> list[tuple[int, int, int]]: ...

    def is_acked(self, position: Position) -> bool: ...

    def ack_ranges(self, ranges: Sequence[tuple[int, int, int]]) -> None: ...

    def ack_batch(self, position: Position, given: int) -> int: ...

    def reset(self, mark_delete: Position) -> None: ...

    def begin_earlier(self, mark_delete: Position, start: Position, never: Sequence[tuple[int, int, int]]) -> None: ...

    def set_properties(self, properties: dict[str, str]) -> None: ...


class RoundReads:
    """What one round reads of the log. Holes and claims are many, and lie close: what was read for one of them is kept
    for the next. left: bytes that the round may still read.
    """

    __slots__ = ("_begin", "_end", "_least", "_log", "_runs", "left")

    def __init__(self, log: ReplicatedLog, reads_max: int) -> None:
        self._log, self.left, self._least = log, ROUND_BYTES, ROUND_BYTES // reads_max
        self._begin = self._end = BEFORE_ALL
        self._runs: list[tuple[int, int, Run]] = []

    async def read(self, at: Position, through: Position) -> list[tuple[int, int, Run]]:
        """Runs from `at` on that begin at or before `through`, some of them; [] where nothing is there."""
        if not self._begin <= at < self._end:
            runs = await self._log.ledger.read(at, _READ_ENTRIES, _READ_BYTES)
            if not runs:
                return []
            if at == self._end:
                self._runs += runs
            else:
                self._runs, self._begin = runs, at
            self._end = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            self.left -= max(self._least, sum(run.size_bytes for *_, run in runs))
        begin = max(0, bisect_right(self._runs, at, key=_start) - 1)
        ledger, first, run = self._runs[begin]
        begin += (ledger, first + run.count) <= at  # a ledger ends there
        found = self._runs[begin : bisect_right(self._runs, through, begin, key=_start)]
        if found and _start(found[0]) < at:
            ledger, first, run = found[0]
            found[0] = ledger, at[1], run.cut(at[1] - first, run.count)
        self.left -= _LOOK_BYTES * len(found)
        return found


class SyncedCursor:
    """One replicated subscription and its cursor here: the one that is there when this is made, or else the first that
    is looked at. Another one of that name is another subscription.
    """

    def __init__(
        self, log: ReplicatedLog, name: str, state: SubscriptionState, region_number: Callable[[str], int]
    ) -> None:
        self._log, self.name, self.state = log, name, state
        self._region_number = region_number
        self.inbox: dict[str, Claims] = {}
        self.told: dict[str, int] = {}
        self.over = False
        self.seen: SyncCursor | None = None
        self.seen_changes = -1
        self.seen_mark = BEFORE_ALL
        self.seen_ranges: list[Range] = []
        self.translated: list[Range] = []
        self.left_out = 0
        """The most ranges that the cursor had since there was no room to claim some of what was translated; 0: there
        was.
        """
        self.below: tuple[Position, dict[Origin, Position]] = (BEFORE_ALL, {})
        """A mark-delete position, and the coordinates below it."""
        self.floor: tuple[Position | None, dict[Origin, Position]] = (None, {})
        """`state.start`, and the coordinates that lie before everything behind it."""
        self.given_up: tuple[list[Range], dict[Origin, list[Range]]] = ([], {})
        """What expired here, or was evicted: by position, and by coordinate."""
        self._batches: dict[Position, Coordinate | None] = {}
        """What was looked up of batches that are acknowledged in part."""
        self.redeliveries: Redeliveries | None = None
        """None: as far as is known nothing was handed out twice, anywhere."""
        self.synced_ms = 0
        self.unfinished = True
        if (cursor := self.current()) is not None:  # from now on whoever moves it back is noticed
            self.see(cursor)

    def end(self) -> None:
        """It was switched off, or deleted: what is still under way for it changes nothing any more."""
        self.over = True

    def start_over(self) -> None:
        """After a change of the epoch or of the cursor."""
        self.translated, self.left_out = [], 0
        self.below = (BEFORE_ALL, {})

    async def before_first(self, base: Base) -> Position:
        """The position before the first entry here that lies behind `base`."""
        first: Position | None = None
        end = self._log.ledger.last_confirmed
        for origin in self._log.vector:
            ledger, entry = base.get(origin, BEFORE_ALL)
            looked = await position_of(self._log, origin, (ledger, entry + 1))
            following = _first_of(looked)
            if following is not None and (first is None or following < first):
                first = following
        return end if first is None else (first[0], first[1] - 1)

    def current(self) -> SyncCursor | None:
        """None: the subscription is not there (yet, or any more), or is kept in step no more."""
        found: SyncCursor | None = self._log.ledger.cursors.get(self.name)
        if found is None or not found.durable or self.over:
            return None
        return found if self.seen is None or self.seen is found else None

    # -- what this region says -----------------------------------------------------------------------------------------

    def observe(self, cursor: SyncCursor) -> None:
        """Everything that was acknowledged is still acknowledged; else somebody reset it, and the epoch rises, stored
        with the reset itself.
        """
        if cursor.changes == self.seen_changes or self.current() is not cursor:
            return
        mark, ranges = cursor.mark_delete, _ranges(cursor)
        known = [(after, through) for after, through in self.seen_ranges if through > mark]
        back = mark < self.seen_mark or bool(subtract(known, [(BEFORE_ALL, mark), *ranges]))
        self.see(cursor)
        if back:
            self.state.reset(mark)
            self.start_over()
            self.nothing_given_up(cursor)
            events.info(
                "subscription.reset",
                extra={"topic": self._log.topic, "subscription": self.name, "epoch": self.state.epoch},
            )
            self.store(cursor)

    def see(self, cursor: SyncCursor) -> None:
        self.seen = cursor
        self.seen_changes, self.seen_mark, self.seen_ranges = cursor.changes, cursor.mark_delete, _ranges(cursor)

    def counting(self) -> Redeliveries:
        if self.redeliveries is None:
            self.redeliveries = Redeliveries(self._log, self.state.settings.round_lookups)
        return self.redeliveries

    def _round_reads(self) -> RoundReads:
        return RoundReads(self._log, self.state.settings.round_reads)

    async def claim(self, cursor: SyncCursor, counts: Mapping[Position, int] | None = None) -> bool:
        """Puts what the cursor says into coordinates. counts: entries that are not acknowledged, and how often they
        were handed out again.
        """
        state, epoch = self.state, self.state.epoch
        mark, ranges, partly, given_up = (
            cursor.mark_delete,
            _ranges(cursor),
            dict(cursor.partly_acked),
            given_up_of(cursor),
        )
        claims, translated = Claims(epoch, {}), list(self.translated)
        fresh = subtract([(BEFORE_ALL, mark), *ranges], translated)
        below: dict[Origin, Position] | None = None
        if fresh and fresh[0][1] == mark:
            if state.start is not None and self.floor[0] != state.start:
                self.floor = (start := state.start, await self._floor(start))
            below = await vector_at(self._log, mark, self.below)
            if self.given_up[0] != given_up:
                self.given_up = given_up, await self._coordinates(given_up)
            if state.base is None or state.epoch != epoch:
                return False
            self._claim_below(state, claims, below, mark)
            insert(translated, BEFORE_ALL, mark)
            fresh = fresh[1:]
        for after, through in given_up:
            insert(translated, after, through)
        whole = await self._claim_ranges(claims, subtract(fresh, given_up), translated)
        whole = await self._claim_partly(cursor, partly, claims) and whole
        counted = not counts or await self.counting().claim(counts, claims)
        self.observe(cursor)
        if state.epoch != epoch or state.base is None:
            return False
        self.translated = translated
        if below is not None:
            self.below = (mark, below)
        if state.claim(claims):
            self.left_out = max(1, self.left_out, len(ranges))
        if (
            self.left_out and len(ranges) <= self.left_out * 9 // 10
        ):  # holes have closed: there may be room for what had none
            self.translated, self.left_out = [], 0
            return False
        return whole and counted

    async def _claim_ranges(self, claims: Claims, fresh: Sequence[Range], translated: list[Range]) -> bool:
        """As many of these ranges, in order, as a round may read; notes how far in `translated`. Returns whether that
        was all.
        """
        reads = self._round_reads()
        for after, through in fresh:
            at = (after[0], after[1] + 1)
            while at <= through:
                if reads.left <= 0:
                    insert(translated, after, (at[0], at[1] - 1))
                    return False
                runs = await reads.read(at, through)
                if not runs:
                    break
                for ledger, first, run in runs:
                    self._claim_run(claims, ledger, first, run, through)
                at = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            insert(translated, after, through)
        return True

    async def _claim_partly(self, cursor: SyncCursor, partly: Mapping[Position, int], claims: Claims) -> bool:
        """Returns whether that was all."""
        known, whole = {at: found for at, found in self._batches.items() if at in partly}, True
        reads = self.state.settings.round_lookups
        for position, left in partly.items():
            if cursor.is_acked(position):
                continue
            if position not in known:
                if not reads:
                    whole = False
                    continue
                reads -= 1
                known[position] = (await coordinate_of(self._log, position)).coordinate
            if (coordinate := known[position]) is not None:
                claims.add_partly(coordinate, left)
        self._batches = known
        return whole

    async def _floor(self, start: Position) -> dict[Origin, Position]:
        """By origin, everything that comes before the first entry here behind `start`: at or below it, or trimmed."""
        floor, past = await vector_at(self._log, start), [origin for origin, _ in self._log.state.past]
        for origin in list(self._log.vector):
            ledger, entry = floor.get(origin, BEFORE_ALL)
            looked = await position_of(self._log, origin, (ledger, entry + 1))
            following = looked.position or looked.following
            if following is not None and (first := (await coordinate_of(self._log, following)).coordinate) is not None:
                floor[origin] = (first[1][0], first[1][1] - 1)
            elif looked.status in (LookupStatus.TRIMMED, LookupStatus.DELETED) and origin in past:
                floor[origin] = self._log.vector.prefix(origin)  # nothing of that epoch is left
        return floor

    async def _coordinates(self, ranges: Sequence[Range]) -> dict[Origin, list[Range]]:
        """By origin what lies in these ranges of positions, and of what is trimmed rather too much."""
        found: dict[Origin, list[Range]] = {}
        first = self._log.ledger.first_position()
        for after, through in ranges:
            low = await vector_at(self._log, after) if after >= (first[0], first[1] - 1) else {}
            for origin, at in (await self._floor(through)).items():
                if low.get(origin, BEFORE_ALL) < at:
                    insert(found.setdefault(origin, []), low.get(origin, BEFORE_ALL), at)
                for late in self._log.state.late.coordinates(origin, after, through):
                    insert(found.setdefault(origin, []), *late)
        return found

    def nothing_given_up(self, cursor: SyncCursor) -> None:
        """It was moved back: what expired is to be had again."""
        if GIVEN_UP in cursor.properties:
            cursor.set_properties({key: value for key, value in cursor.properties.items() if key != GIVEN_UP})
            self.see(cursor)

    def _claim_below(
        self, state: SubscriptionState, claims: Claims, below: dict[Origin, Position], mark: Position
    ) -> None:
        """Everything from the start to the mark-delete position: by origin one range, without what never reached this
        region, or expired in it, or may lie behind that position: an audit has appended it late.

        What lies below the start is left out even where it is part of the subscription: here it is trimmed, or was
        before it was made.
        """
        assert state.base is not None
        base, floor, vector = state.base, self.floor[1], self._log.vector
        for origin, through in below.items():
            left = subtract(
                [(max(base.get(origin, BEFORE_ALL), floor.get(origin, BEFORE_ALL)), through)], vector.missing(origin)
            )
            open_still = list(self.given_up[1].get(origin, ()))
            for late in self._log.state.late.coordinates(origin, mark):
                insert(open_still, *late)
            for after, upto in subtract(left, open_still):
                claims.add(origin, after, upto)

    def _claim_run(self, claims: Claims, ledger: int, first: int, run: Run, through: Position) -> None:
        count = min(run.count, through[1] - first + 1) if ledger == through[0] else run.count
        if run.flags is not None and run.flags[0] & FLAG_HIDDEN:
            return
        if run.origin is None:
            self._claim_behind(
                claims, self._log.state.origin_at((ledger, first)), (ledger, first - 1), (ledger, first + count - 1)
            )
            return
        for number, start, length in run.spans:
            if count <= 0:
                return
            self._claim_behind(claims, run.origin, (number, start - 1), (number, start + min(count, length) - 1))
            count -= length

    def _claim_behind(self, claims: Claims, origin: Origin, after: Position, through: Position) -> None:
        """What lies before the beginning is acknowledged here, and nobody did that: another region may know of an
        earlier one.
        """
        base = self.state.base or {}
        claims.add(origin, max(after, base.get(origin, BEFORE_ALL)), through)

    # -- what others say -----------------------------------------------------------------------------------------------

    async def apply_all(self, cursor: SyncCursor) -> bool:
        state = self.state
        if not await self._apply(cursor, state.todo(self._log.vector.prefix)):
            return False
        reads = self.state.settings.round_lookups
        for region, (origin, at), bits in state.todo_partly():
            if at > self._log.vector.prefix(origin):
                continue  # it waits until the message has arrived
            if not reads:
                return False
            reads -= 1
            looked = await position_of(self._log, origin, at)
            if not self._still(cursor, state.epoch):
                return False
            if looked.status is LookupStatus.HERE and looked.position is not None:
                cursor.ack_batch(looked.position, bits)
                self.see(cursor)
            state.applied_partly(region, (origin, at), bits)
        return True

    def _still(self, cursor: SyncCursor, epoch: Epoch) -> bool:
        self.observe(cursor)
        return self.state.epoch == epoch and self.state.base is not None and self.current() is cursor

    async def _apply(self, cursor: SyncCursor, todos: Sequence[Todo]) -> bool:
        """Acknowledges here what is claimed there, as much as a round may read, in one go: the cursor's holes are
        looked at once. Returns whether it was all.
        """
        state, epoch, reads = self.state, self.state.epoch, self._round_reads()
        found: list[tuple[int, int, int]] = []
        done: list[Todo] = []
        for todo in todos:
            if reads.left <= 0:
                break
            whole, through = True, BEFORE_ALL
            async for acked, reached, more in self._places(todo, cursor.mark_delete, reads):
                found += acked
                through = max(through, reached)
                if reads.left <= 0 and more and (done or through > todo.after):  # each round gets somewhere
                    whole = False
                    break
            if whole:
                done.append(todo)
            elif through > todo.after:
                done.append(todo._replace(through=min(through, todo.through)))
        if not self._still(cursor, epoch):
            return False
        cursor.ack_ranges(found)
        self.see(cursor)
        for todo in done:
            state.applied(todo)
        return done == list(todos)

    async def _places(
        self, todo: Todo, above: Position, reads: RoundReads
    ) -> AsyncIterator[tuple[list[tuple[int, int, int]], Position, bool]]:
        """Where behind `above` what `todo` names lies, read by read.

        (ranges, highest coordinate of them, whether more is to be read). Hidden entries between count too.
        """
        log = self._log
        low, high = self._between(todo)
        at = max(low, log.ledger.first_position(), (above[0], above[1] + 1))
        checked = todo.claimer != HERE and self._region_number(todo.claimer) != todo.origin[0]
        while high is not None and at <= high:
            runs = await reads.read(at, high)
            if not runs:
                break
            ranges: list[tuple[int, int, int]] = []
            reached = BEFORE_ALL
            for ledger, first, run in runs:
                if run.flags is not None and run.flags[0] & FLAG_HIDDEN:
                    ranges.append((ledger, first, first + run.count - 1))
                    continue
                start, stop, last = entries_until(log.state, ledger, first, run, todo.origin, todo.after, todo.through)
                reached = max(reached, last)
                if start < stop:
                    keep = addressed_to(run, frozenset((todo.claimer,))) if checked else None
                    if keep is None:
                        ranges.append((ledger, first + start, first + stop - 1))
                    else:
                        ranges += [(ledger, first + i, first + i) for i in keep if start <= i < stop]
            at = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            yield ranges, reached, at <= high

    async def never_given(self, start: Position) -> list[tuple[int, int, int]]:
        """What is acknowledged here behind `start` only because it lay before the beginning that was believed in until
        now, in order.
        """
        state = self.state
        base, before = state.base or {}, state.before
        named, claimed, reads = [], [], self._round_reads()  # all of it, whatever it takes: once an earlier beginning
        for origin, through in before.items():
            after = base.get(origin, BEFORE_ALL)
            async for ranges, *_ in self._places(Todo(HERE, origin, after, through), start, reads):
                named += ranges
            for region, claims in list(state.others.items()):
                for low, high in subtract(
                    [(after, through)], subtract([(after, through)], claims.ranges.get(origin, ()))
                ):
                    async for ranges, *_ in self._places(Todo(region, origin, low, high), start, reads):
                        claimed += ranges
        wanted: list[Range] = []
        kept: list[Range] = []
        for side, into in ((named, wanted), (claimed, kept)):
            for ledger, first, last in side:
                insert(into, (ledger, first - 1), (ledger, last))
        return [(low[0], low[1] + 1, high[1]) for low, high in subtract(wanted, kept)]

    def _between(self, todo: Todo) -> tuple[Position, Position | None]:
        """(low, high): what `todo` names lies in [low, high] here."""
        return self._log.state.between(todo.origin, todo.after, todo.through)

    def store(self, cursor: SyncCursor) -> None:
        text = self.state.stored()
        if self.current() is cursor and cursor.properties.get(PROPERTY) != text:
            cursor.set_properties({**cursor.properties, PROPERTY: text})
            self.seen_changes = cursor.changes if self.seen_changes == cursor.changes - 1 else self.seen_changes


def _first_of(looked: Found) -> Position | None:
    """Where what lies at or behind a coordinate begins here: an audit may have appended that one behind what follows
    it.
    """
    return min((at for at in (looked.position, looked.following) if at is not None), default=None)


def _start(found: tuple[int, int, Run]) -> Position:
    return found[:2]


def _ranges(cursor: SyncCursor) -> list[Range]:
    return [((ledger, first - 1), (ledger, last)) for ledger, first, last in cursor.acked_ranges]
