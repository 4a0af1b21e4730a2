"""Lookup: from a coordinate to the position of its copy here, and back, for any entry that the topic still has.

Is: one bounded scan between two points of the sparse map, and what is said of an entry that is not there. Isn't: the
map (`replicator.coordinates.position_map`).
Invariants: HERE is exact, it was read from the entry's own run; everything else is said with certainty or not at all:
what may have been trimmed is `trimmed`, never "not there". Storage that does not answer is an error (retryable),
because then nothing is known.
Source: docs/protocols/links.md, "Where a coordinate lies".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from heliograph.model.coordinates import Coordinate, Origin
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.throttle import RowPace
from heliograph.wire.links.link_commands import SkipReason
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.coordinates.skip_reasons import HERE
from replicator.log.deletion import was_removed

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.log.topic_state import TopicState

_READ_ENTRIES = 512
_READ_BYTES = 1 << 20
_BACK = (64, 1024, 16384)
"""Entries: how far a search backwards reads at once."""


class LookupStatus(StrEnum):
    """What there is under a coordinate, or a position."""

    HERE = "here"
    AWAITED = "awaited"
    """It has not arrived here, or was not published yet."""
    TRIMMED = "trimmed"
    """The topic no longer has it: retention took it, or what was left there."""
    DELETED = "deleted"
    """An admin deleted it, here or where it was published, before it was everywhere."""
    LOST = "lost"
    """It will never come: a SKIP says so, or its origin has ended, and no region holds so much of it."""
    FILTERED = "filtered"
    """It is not meant for this region."""
    HIDDEN = "hidden"
    """A position that holds a SKIP, no message."""
    UNKNOWN = "unknown"
    """Nothing was ever published or stored under it, as far as this region can know."""


@dataclass(frozen=True, slots=True)
class Found:
    """position: where the coordinate lies, with HERE. following: the first entry of the same origin behind it here;
    None: there is none yet.

    reason: what the SKIP said that names it as missing; None: none does.
    """

    status: LookupStatus
    position: Position | None = None
    following: Position | None = None
    reason: SkipReason | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """coordinate: with HERE, where the entry at that position was first published. published_ms: broker time there."""

    status: LookupStatus
    coordinate: Coordinate | None = None
    published_ms: int = 0


_STATUS: dict[SkipReason | None, LookupStatus] = {
    SkipReason.TRIMMED: LookupStatus.TRIMMED,
    SkipReason.DELETED: LookupStatus.DELETED,
}
"""What a SKIP's reason says of an entry that is missing here; by any other reason, and by none, it is lost."""


async def position_of(log: ReplicatedLog, origin: Origin, at: Position, *, late: bool = True) -> Found:
    """Where the entry lies that was first published as `at` of `origin`. Raises what storage raises.

    late: also where an audit has appended it, behind higher ones.
    """
    state = log.state
    if at <= state.local_end(origin):
        return await _own(log, origin, at)
    if origin not in state.vector and not state.is_own(origin):
        return Found(LookupStatus.DELETED if at <= dict(state.dead).get(origin, BEFORE_ALL) else LookupStatus.UNKNOWN)
    if at > state.vector.prefix(origin):
        never = state.is_own(origin) if log.sync_by is None else log.sync_by.gone(log, origin, at)
        return Found(LookupStatus.LOST if never else LookupStatus.AWAITED)
    low, high = state.positions.around(origin, at)
    first, before, end = log.ledger.first_position(), False, state.local_end(origin)
    following: Position | None = None
    least = end[0], end[1] + 1  # of an own origin nothing that came back lies up to its end
    last = log.ledger.last_confirmed if high is None else high
    async for ledger, start, run in _runs(log, max(low, first, least), last):
        if run.origin != origin or _hidden(run):
            continue
        if run.coordinate(run.count - 1) < at:
            before = True
            continue
        index = _index(run.spans, at)
        before = before or index > 0
        if index < run.count:
            following = (ledger, start + index)
            if run.coordinate(index) == at:
                return Found(LookupStatus.HERE, following, following)
            break
    for low_late, high_late in state.late.between(origin, (at[0], at[1] - 1), at) if late else ():
        async for ledger, start, run in _runs(log, max(low_late, first), high_late):
            if (
                run.origin == origin
                and not _hidden(run)
                and (index := _index(run.spans, at)) < run.count
                and run.coordinate(index) == at
            ):
                return Found(LookupStatus.HERE, (ledger, start + index), following)
    if not state.vector.holds(origin, at):
        reason = state.reasons.of(HERE, origin, at)
        return Found(_STATUS.get(reason, LookupStatus.LOST), None, following, reason)
    if not before and (low > BEFORE_ALL or (_trimmed(log) and first > least)):
        return Found(LookupStatus.TRIMMED, None, following)
    return Found(LookupStatus.FILTERED, None, following)


async def _own(log: ReplicatedLog, origin: Origin, at: Position) -> Found:
    state, ledger = log.state, log.ledger
    if at > state.vector.prefix(origin):
        return Found(LookupStatus.AWAITED if origin == state.origin else LookupStatus.LOST)
    following, end = None, state.local_end(origin)
    async for number, start, run in _runs(log, max(at, ledger.first_position()), min(end, ledger.last_confirmed)):
        if run.origin is None and not _hidden(run) and state.origin_at((number, start)) == origin:
            following = (number, start)
            break
    if following is None and end < state.vector.prefix(origin):  # what came back follows
        following = (await position_of(log, origin, (end[0], end[1] + 1))).following
    if at < ledger.first_position():
        return Found(LookupStatus.DELETED if was_removed(state, at) else LookupStatus.TRIMMED, None, following)
    if following == at:
        return Found(LookupStatus.HERE, at, at)
    return Found(LookupStatus.UNKNOWN, None, following)


async def came_back(log: ReplicatedLog, ledger: int, first: int, last: int) -> list[tuple[int, int]]:
    """[first, last] of the entries `first` to `last` of `ledger` that were published to the topic before its region's
    metadata went back, and lie here under the same coordinates: other regions have brought them. Ascending and apart.
    Raises what storage raises.
    """
    state, found = log.state, set[int]()
    after, through, begin = (ledger, first - 1), (ledger, last), log.ledger.first_position()
    for origin in state.vector:
        reached = min(through, state.vector.prefix(origin))
        # also of a topic that the backup did not know: then the origin of before is none of its past ones
        if origin[0] != state.origin[0] or origin == state.origin or reached <= after:
            continue
        end = state.local_end(origin)
        low = max(state.positions.around(origin, (ledger, first))[0], (end[0], end[1] + 1))
        late = state.late.between(origin, after, through)
        for at_least, at_most, in_order in [(low, log.ledger.last_confirmed, True), *((*part, False) for part in late)]:
            async for number, start, run in _runs(log, max(at_least, begin), at_most):
                if run.origin != origin or _hidden(run):
                    continue
                low_index, high_index, highest = entries_until(state, number, start, run, origin, after, through)
                found.update(run.coordinate(index)[1] for index in range(low_index, high_index))
                if in_order and highest >= reached:
                    break
    ranges: list[tuple[int, int]] = []
    for entry in sorted(found):
        ranges.append((ranges.pop()[0] if ranges and ranges[-1][1] == entry - 1 else entry, entry))
    return ranges


async def coordinate_of(log: ReplicatedLog, position: Position) -> Published:
    """Where the entry at the local `position` was first published. Raises what storage raises."""
    ledger = log.ledger
    if position > ledger.last_confirmed:
        return Published(LookupStatus.AWAITED)
    if position < ledger.first_position():
        return Published(LookupStatus.DELETED if was_removed(log.state, position) else LookupStatus.TRIMMED)
    for number, start, run in await ledger.read(position, 1, 1):
        if (number, start) != position:
            break
        if _hidden(run):
            return Published(LookupStatus.HIDDEN)
        if run.origin is None:
            return Published(LookupStatus.HERE, (log.state.origin_at(position), position), run.time_ms)
        return Published(LookupStatus.HERE, (run.origin, run.coordinate(0)), run.origin_time_ms)
    return Published(LookupStatus.UNKNOWN)


async def vector_at(
    log: ReplicatedLog, position: Position, since: tuple[Position, dict[Origin, Position]] = (BEFORE_ALL, {})
) -> dict[Origin, Position]:
    """By origin, the last coordinate at or below the local `position`; an origin without any is left out. Raises what
    storage raises.

    since: an earlier position and what this function said of it: nothing below is read again.
    """
    state, found = log.state, {}
    first = log.ledger.first_position()
    for origin in state.vector:
        if state.is_own(origin):
            through = min(position, state.local_prefix(origin))
            if through > BEFORE_ALL and state.origin_at(through) == origin:
                found[origin] = through
            if state.vector.prefix(origin) <= (end := state.local_end(origin)) or position <= end:
                continue
        coordinate, at, exact = state.positions.before(origin, position)
        if not exact:
            low = max(since[0], state.local_end(origin))
            coordinate, at = max(coordinate, since[1].get(origin, BEFORE_ALL)), max(at, (low[0], low[1] + 1))
            async for ledger, start, run in _runs(log, max(at, first), position):
                if run.origin == origin and not _hidden(run):
                    last = min(run.count - 1, position[1] - start) if ledger == position[0] else run.count - 1
                    coordinate = max(coordinate, run.coordinate(last))
        if coordinate > BEFORE_ALL:
            found[origin] = coordinate
    return found


async def own_before(log: ReplicatedLog, position: Position, back: Sequence[int] = _BACK) -> Position | None:
    """The last entry of the same ledger at or below the local `position` that was first published here. Raises what
    storage raises.

    None: there is none, or it lies too far before (some 16,000 entries). `vector_at` says `position` itself then, which
    is as true, but names no entry. back: how many entries are read at a time, one number behind another.
    """
    ledger, high = position
    for count in back:
        low, found = max(0, high - count + 1), None
        async for number, start, run in _runs(log, (ledger, low), (ledger, high)):
            if number == ledger and run.origin is None:
                found = (ledger, min(high, start + run.count - 1))
        if found is not None or not low:
            return found
        high = low - 1
    return None


async def _runs(log: ReplicatedLog, low: Position, high: Position) -> AsyncIterator[tuple[int, int, Run]]:
    """What lies in [low, high]; the last run may go on behind it."""
    at, pace = low, RowPace()
    while at <= high:
        runs = await log.ledger.read(at, _READ_ENTRIES, _READ_BYTES)
        for ledger, first, run in runs:
            if (ledger, first) > high:
                return
            yield ledger, first, run
        if not runs:
            return
        at = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
        await pace.rows(sum(run.count for *_, run in runs))  # what is in the cache is read without a pause


def entries_until(
    state: TopicState, ledger: int, first: int, run: Run, origin: Origin, after: Position, through: Position
) -> tuple[int, int, Position]:
    """(start, stop, last): the entries [start, stop) of the run at (ledger, first) have coordinates of `origin` in
    (after, through].

    last: the highest coordinate of `origin` in the run; BEFORE_ALL where there is none.
    """
    if run.origin is None:
        if state.origin_at((ledger, first)) != origin:
            return 0, 0, BEFORE_ALL
        spans: tuple[tuple[int, int, int], ...] = ((ledger, first, run.count),)
    elif run.origin == origin:
        spans = run.spans
    else:
        return 0, 0, BEFORE_ALL
    return (
        _index(spans, (after[0], after[1] + 1)),
        _index(spans, (through[0], through[1] + 1)),
        (spans[-1][0], spans[-1][1] + spans[-1][2] - 1),
    )


def _index(spans: tuple[tuple[int, int, int], ...], at: Position) -> int:
    """The index in the run of the first entry whose coordinate is not below `at`; the run's count where none is."""
    before = 0
    for ledger, first, count in spans:
        if (ledger, first + count - 1) < at:
            before += count
        else:
            return before + (at[1] - first if (ledger, first) < at else 0)
    return before


def _hidden(run: Run) -> bool:
    """A SKIP is stored as a run of its own, and reads cut runs, but never join them."""
    return run.flags is not None and bool(run.flags[0] & FLAG_HIDDEN)


def _trimmed(log: ReplicatedLog) -> bool:
    """Whether the topic has ever lost something from its front."""
    return bool(log.ledger.first_index)
