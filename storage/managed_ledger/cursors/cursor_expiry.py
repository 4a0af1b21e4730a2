"""Expiry: moves cursors over entries that nobody will acknowledge any more.

Is: time to live, a bound on a backlog, and truncation, as moves of mark-delete positions; each says how many
unacknowledged entries it gave up.
Isn't: a decision that entries may be given up (that is a policy's, or an operator's), or the deletion: trimming follows
the cursors.
Invariants: a cursor moves forward only, and is durable where it stands when the call returns. An entry's age is the
broker time of its run: ledgers go whole, the oldest first, up to the first that holds something younger, and of that
one what is found by halving, a few small reads however long it is. A ledger has one writer: where clocks of brokers
disagree, what another one wrote is no older for it. One that is lost, or that no copy can be read of, is no older than
its ledger's end. What time to live and a bound give up is noted with the cursor (`GIVEN_UP`), in the write that moves
it: nobody acknowledged that.
A cursor that a link reads by is one like the others here: what it is moved over goes to its region as a SKIP, and is
counted there as lost.
Source: docs/protocols/ledger.md, "Expiry".
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from heliograph.model.errors import CorruptData, EntriesLost, NotFound, StoreRefused
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.run import Run
from storage.managed_ledger.cursors.cursor import Cursor

GIVEN_UP = "heliograph.given_up"
"""Names the property of a cursor that holds, as JSON, ranges (after, through] at or below its mark-delete position that
nobody acknowledged.
"""
GIVEN_UP_MAX = 32
"""Beyond it the two oldest become one: it names too much, never too little."""
_OPEN_END = 1 << 62
_UNREADABLE = (CorruptData, EntriesLost, StoreRefused)
"""What stays so: another try brings no answer."""
_HOLES_MAX = 10_000
"""With more of them everything behind the mark-delete position is named: nobody waits for a walk over millions."""


class GivesUp(Protocol):
    """The cursor, as far as `given_up_of` asks."""

    mark_delete: Position
    properties: dict[str, str]


class ExpiryLog(Protocol):
    """The managed ledger, as it is needed here."""

    topic: str

    @property
    def cursors(self) -> Mapping[str, Cursor]: ...

    @property
    def last_confirmed(self) -> Position: ...

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]: ...

    def next_position(self, position: Position) -> Position: ...

    def entries_between(self, after: Position, upto: Position) -> int: ...

    def bytes_between(self, after: Position, upto: Position) -> int: ...

    def position_after(self, position: Position, count: int) -> Position: ...

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> Sequence[tuple[int, int, Run]]: ...


async def oldest_unacked_ms(log: ExpiryLog, name: str) -> int:
    cursor = log.cursors.get(name)
    if cursor is None:
        raise NotFound(f"{log.topic}: there is no cursor {name}")
    return await _time_ms(log, cursor.read_position) if cursor.backlog_entries else 0


async def expire_before(log: ExpiryLog, time_ms: int, names: Collection[str]) -> dict[str, int]:
    waiting = [c for c in _chosen(log, names) if c.backlog_entries]
    if not waiting:
        return {}
    slowest = min(c.mark_delete for c in waiting)
    expired = await _last_older(log, slowest, time_ms)
    return await move(log, expired, names, noted=True) if expired is not None else {}


async def drop_to(log: ExpiryLog, size_bytes: int, names: Collection[str]) -> dict[str, int]:
    given_up: dict[str, int] = {}
    for cursor in _chosen(log, names):
        last = log.last_confirmed
        low, high = 0, log.entries_between(cursor.mark_delete, last)
        while low < high:  # the fewest entries to give up
            middle = (low + high) // 2
            upto = log.position_after(cursor.mark_delete, middle) if middle else cursor.mark_delete
            if log.bytes_between(upto, last) <= size_bytes:
                high = middle
            else:
                low = middle + 1
        if low:
            given_up.update(await move(log, log.position_after(cursor.mark_delete, low), [cursor.name], noted=True))
    return given_up


async def move(log: ExpiryLog, upto: Position, names: Collection[str], *, noted: bool = False) -> dict[str, int]:
    """Over everything up to `upto`; returns how many entries each gave up unacknowledged, where there were any. noted:
    as what nobody acknowledged.
    """
    moved: list[Cursor] = []
    given_up: dict[str, int] = {}
    for cursor in _chosen(log, names):
        if cursor.mark_delete < upto:
            before = cursor.backlog_entries
            if noted and cursor.durable:
                cursor.set_properties(
                    {**cursor.properties, GIVEN_UP: json.dumps(_noted(log, cursor, upto), separators=(",", ":"))}
                )
            cursor.ack_cumulative(upto)
            moved.append(cursor)
            if before > cursor.backlog_entries:
                given_up[cursor.name] = before - cursor.backlog_entries
    for cursor in moved:
        await cursor.flushed()
    return given_up


def read_given_up(properties: Mapping[str, str]) -> list[tuple[Position, Position]]:
    """Returns the ranges (after, through] of `GIVEN_UP`, ascending; [] where there is no such property. Raises
    CorruptData.
    """
    try:
        found = [((a, b), (c, d)) for a, b, c, d in json.loads(properties.get(GIVEN_UP, "[]"))]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptData(f"what a cursor gave up: {error}") from error
    if not all(isinstance(number, int) for pair in found for at in pair for number in at):
        raise CorruptData("what a cursor gave up: no positions")
    return found


def given_up_of(cursor: GivesUp) -> list[tuple[Position, Position]]:
    """The same, of a cursor. Where that cannot be read it is everything up to its mark-delete position: too much, never
    too little.
    """
    try:
        return read_given_up(cursor.properties)
    except CorruptData:
        return [(BEFORE_ALL, cursor.mark_delete)]


def _noted(log: ExpiryLog, cursor: Cursor, upto: Position) -> list[tuple[int, int, int, int]]:
    """What was given up before, and what is not acknowledged behind the mark-delete position."""
    at, end = cursor.mark_delete, (upto[0], upto[1] + 1)
    ranges = deque(
        (after, min(through, at)) for after, through in given_up_of(cursor) if after < at
    )  # it may have been moved back since
    acked = cursor.acked_ranges if cursor.holes <= _HOLES_MAX else []
    for ledger, first, last in [*(one for one in acked if one[:2] <= end), (*end, end[1])]:
        if log.entries_between(at, (ledger, first - 1)) > 0:
            if ranges and log.entries_between(ranges[-1][1], at) == 0:
                ranges[-1] = (ranges[-1][0], (ledger, first - 1))
            else:
                ranges.append((at, (ledger, first - 1)))
        at = (ledger, last)
        if len(ranges) > GIVEN_UP_MAX:
            after, _ = ranges.popleft()
            ranges[0] = (after, ranges[0][1])
    return [(*after, *through) for after, through in ranges]


def _chosen(log: ExpiryLog, names: Collection[str]) -> list[Cursor]:
    return [cursor for cursor in log.cursors.values() if cursor.name in names]


async def _last_older(log: ExpiryLog, after: Position, time_ms: int) -> Position | None:
    """The last entry behind `after` that was found to be older, as were all ledgers between them; None: there is none.

    Counts from `after` mean another entry once what lies there is trimmed, which may be while an entry is read: what is
    returned is where an entry was looked at, never a count.
    """
    older: Position | None = None
    for info in log.ledgers_from(after[0]):
        end = min((info.ledger, info.entries - 1) if info.closed_ms else (info.ledger, _OPEN_END), log.last_confirmed)
        start = after if older is None else older
        if end <= start or end[0] != info.ledger:
            continue  # nothing of it is there
        if info.closed_ms and info.closed_ms < time_ms:
            older = end
            continue
        if not await _is_older(log, log.next_position(start), time_ms):
            break
        low, high = 0, log.entries_between(start, end)
        while low < high:
            middle = (low + high) // 2
            position = log.position_after(start, middle + 1)
            if position <= end and await _is_older(log, position, time_ms):
                low, older = middle + 1, position
            else:
                high = middle
        if older != end:
            break
    return older


async def _is_older(log: ExpiryLog, position: Position, time_ms: int) -> bool:
    """Whether the entry there is known to be."""
    try:
        return await _time_ms(log, position) < time_ms
    except _UNREADABLE:
        return False


async def _time_ms(log: ExpiryLog, position: Position) -> int:
    """Broker time of the entry there; 0 where it was trimmed meanwhile, so that it counts as old. Of one that cannot be
    read for good: when its ledger was closed, which is no earlier. Raises what it cannot be read for, of one in an open
    ledger.
    """
    try:
        runs = await log.read(position, 1, 1)
    except _UNREADABLE:
        closed_ms = next((info.closed_ms for info in log.ledgers_from(position[0]) if info.ledger == position[0]), 0)
        if not closed_ms:
            raise
        return closed_ms
    return runs[0][2].time_ms if runs and runs[0][:2] == position else 0
