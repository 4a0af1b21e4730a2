"""Holdings: what the bookies of a ledger say that they hold of it, against what they should; and how far what cannot be
read of any of them reaches.

Is: the questions to the bookies, and the arithmetic of ranges. Isn't: a mark, a repair, or the choice of ledgers.
Invariants: only confirmed entries are asked for: of a closed ledger all, of an open one what lies in fragments that
can't grow any more, and what a bookie knows to be at or below LAC. Who does not answer, or can't, lacks nothing that is
known. An entry that nobody holds is not one to be copied. What a bookie that may come soon could have is not called
unreadable; who lacks what such a bookie alone could have is not called whole.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from heliograph.model.errors import (
    BookieUnavailable,
    CorruptData,
    DiskFailed,
    HeliographError,
    NoSuchEntry,
    NoSuchLedger,
)
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import read_entries
from storage.ledger.repair.lost_bookies import Repair

UNREAD = (BookieUnavailable, CorruptData, DiskFailed, NoSuchEntry, NoSuchLedger)
"""What a read raises of which no copy could be had."""
_STEPS = 16
"""Behind unreadable entries the next look is a sixteenth of them further: so far reaches what may be missed."""
_LOOKING_S_MAX = 30.0
"""A bookie that says no sooner than after a time-out is asked no longer than so: it may be well later."""

Ranges = Sequence[tuple[int, int]]
"""[first, last] of each, ascending and disjoint."""


@dataclass(slots=True)
class Holdings:
    """What was found about one ledger."""

    through: int = -1
    """The entries up to this one were asked for."""
    lacking: list[Repair] = field(default_factory=list)
    """Ranges that lack the copy of one bookie each, and that another one holds."""
    nowhere: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that every bookie which should hold them says it does not."""
    unknown: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that one who was asked lacks, that nobody who answered holds, and that another one may hold."""
    silent: dict[str, None] = field(default_factory=dict)
    """Those that are registered, and did not answer."""
    mute: dict[str, None] = field(default_factory=dict)
    """Those of a version that can't say."""


async def look(
    context: LedgerContext, metadata: LedgerMetadata, through: int = -1, gone: Collection[str] = ()
) -> Holdings:
    """Asks each bookie of each fragment that is registered. through: an entry of an open ledger that is known to be
    confirmed, with all before it. gone: bookies of which it is not supposed that they hold more than they say.
    """
    found = Holdings(await _confirmed(context, metadata, through))
    fragments = metadata.fragments
    for index, (first, ensemble) in enumerate(fragments):
        last = found.through if index + 1 == len(fragments) else min(found.through, fragments[index + 1][0] - 1)
        if first <= last:
            await _look_at(context, metadata, first, last, ensemble, gone, found)
    return found


async def _confirmed(context: LedgerContext, metadata: LedgerMetadata, through: int) -> int:
    if metadata.state == LedgerState.CLOSED:
        return metadata.last_entry
    first, ensemble = metadata.fragments[-1]
    through = max(through, first - 1)
    if metadata.state == LedgerState.OPEN:  # what is being recovered is the recovery's

        async def lac(bookie: str) -> int:
            try:
                return await context.pool.client(bookie).read_lac(metadata.ledger)
            except HeliographError:
                return -1

        through = max(through, *await asyncio.gather(*[lac(b) for b in ensemble if context.pool.registered(b)]), -1)
    return through


async def _look_at(
    context: LedgerContext,
    metadata: LedgerMetadata,
    first: int,
    last: int,
    ensemble: Sequence[str],
    gone: Collection[str],
    found: Holdings,
) -> None:
    pool = context.pool

    async def held(bookie: str) -> Ranges | None:
        try:
            ranges = await pool.client(bookie).held(metadata.ledger, first, last)
        except NoSuchLedger:
            return []
        except HeliographError:
            found.silent[bookie] = None
            return None
        if ranges is None:
            found.mute[bookie] = None
        return ranges

    asked = [b for b in ensemble if pool.registered(b) and not pool.lacks(b, metadata.ledger)]
    told = {
        b: ranges
        for b, ranges in zip(asked, await asyncio.gather(*map(held, asked)), strict=True)
        if ranges is not None
    }
    somewhere = union(entry for ranges in told.values() for entry in ranges)
    untold = [place for place, b in enumerate(ensemble) if b not in told and b not in gone]
    perhaps = union(entry for place in untold for entry in expected(metadata, first, last, place))
    for bookie, ranges in told.items():
        missing = without(expected(metadata, first, last, ensemble.index(bookie)), ranges)
        nowhere = without(missing, somewhere)
        found.lacking += [Repair(begin, end, tuple(ensemble), (bookie,)) for begin, end in without(missing, nowhere)]
        found.unknown += without(nowhere, without(nowhere, perhaps))
    if len(told) == len(ensemble):
        found.nowhere += without([(first, last)], somewhere)


async def unreadable_through(
    context: LedgerContext, metadata: LedgerMetadata, at: int, last: int, gone: Collection[str], error: HeliographError
) -> int:
    """The last of the entries from `at` on, which raised `error`, that cannot be read of any copy: at most `last`,
    which lies in the same fragment, and the end of the stripe. A readable stretch counts with them where there are over
    sixteen times as many before it.

    gone: bookies that are not waited for. Raises BookieUnavailable where another one does not answer, or gives the
    entry when it is asked again.
    """
    pool, last = context.pool, min(last, metadata.striping.last(at))
    later = BookieUnavailable(f"ledger {metadata.ledger}: the entries from {at} on cannot be read now: {error}")

    async def held(bookie: str) -> Ranges:
        try:
            ranges = await pool.client(bookie).held(metadata.ledger, at, last)
        except NoSuchLedger:
            return []
        except HeliographError as refusal:
            if bookie in gone or (isinstance(refusal, BookieUnavailable) and refusal.forgotten):
                return []
            raise later from refusal
        return [(at, last)] if ranges is None else ranges

    told = await asyncio.gather(*map(held, metadata.write_set(at)))
    first, end = next(iter(union(entry for ranges in told for entry in ranges)), (last + 1, last))
    if first > at:
        return first - 1
    if not isinstance(error, CorruptData) and await _reads(context, metadata, at):  # it was late, no more
        raise later
    until = asyncio.get_running_loop().time() + _LOOKING_S_MAX
    bad, good, reached = at, end + 1, False
    while good - bad > 1:  # a block that is bad is so from its first entry to its last
        if asyncio.get_running_loop().time() > until:
            raise later
        look = (bad + good) // 2 if reached else min(bad + 1 + (bad - at) // _STEPS, good - 1)
        if await _reads(context, metadata, look):
            good, reached = look, True
        else:
            bad = look
    return bad


async def _reads(context: LedgerContext, metadata: LedgerMetadata, entry: int) -> bool:
    try:
        await read_entries(context, metadata, entry, entry, 1)
    except UNREAD:
        return False
    return True


def expected(metadata: LedgerMetadata, first: int, last: int, place: int) -> list[tuple[int, int]]:
    """Which of these entries of one fragment lie at that place of its ensemble."""
    striping, at = metadata.striping, first
    ranges: list[tuple[int, int]] = []
    while at <= last:
        stop = min(last, striping.last(at))
        if striping.holds(place, at):
            ranges.append((at, stop))
        at = stop + 1
    return ranges


def without(ranges: Ranges, taken: Ranges) -> list[tuple[int, int]]:
    """What of `ranges` is not in `taken`."""
    left: list[tuple[int, int]] = []
    at = 0
    for first, last in ranges:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        index = at
        while index < len(taken) and taken[index][0] <= last:
            if first < taken[index][0]:
                left.append((first, taken[index][0] - 1))
            first = taken[index][1] + 1
            index += 1
        if first <= last:
            left.append((first, last))
    return left


def union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """All of them, in any order, as ranges that are ascending and apart."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
