"""Finding records of one partition by their times.

Is: reading what the partition's blocks of times point to; halving, for what they do not know. Isn't: the blocks
(`time_index`).
Invariants: a record that is found has the time that was asked for, or a later one; no earlier offset has, as far as the
blocks know the log.
Bounds: what the blocks do not know yet is read first, at most CATCH_UP_BYTES for one request; then a block or two.
Source: Kafka's ListOffsets; docs/protocols/kafka.md, "Offsets".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from heliograph.model.positions import Position
from region_node.faces.kafka.log.time_index import NONE, Entry, Found, Times, entries_of, highest_of, times_of

if TYPE_CHECKING:
    from region_node.faces.kafka.log.partition_log import KafkaLog

CATCH_UP_BYTES = 256 << 20
_ENTRIES, _BYTES = 2048, 4 << 20


async def at_time(log: KafkaLog, time_ms: int, catch_up_bytes: int = CATCH_UP_BYTES) -> Found:
    """The first record of that time or later; NONE where there is none. Raises what a read raises. catch_up_bytes: so
    much is read first of what the blocks do not know yet.
    """
    await log.ledger.whole()
    known = await _catch_up(log, catch_up_bytes)
    found = await _in_blocks(log, time_ms)
    if not known:
        found = min((each for each in (found, await _halved(log, time_ms)) if each[0] >= 0), default=NONE)
    return (log.start_offset, found[1]) if found[0] == log.log_offset else found


async def newest(log: KafkaLog) -> Found:
    """The first of the records with the highest time; of a log that the blocks do not know whole, of its last entries.
    NONE: it has none.
    """
    if not await _catch_up(log, CATCH_UP_BYTES):
        return await _newest_of_last(log)
    best = NONE
    for first, end, highest in sorted(log.times.blocks(log.start_offset), key=lambda block: -block[2]):
        if highest <= best[1]:
            break
        async for entry in _entries(log, first, end):
            for offset, time in times_of(entry) if highest_of(entry) > best[1] else ():
                if time > best[1] and offset >= first:
                    best = offset, time
    return best


async def _entries(log: KafkaLog, first: int, end: int) -> AsyncIterator[Entry]:
    """Those that hold offsets in [first, end)."""
    at = await log.position_of(first)
    while pieces := await log.ledger.read(at, _ENTRIES, _BYTES):
        for ledger, entry_id, run in pieces:
            for entry in entries_of(run):
                if entry[0] >= end:
                    return
                if entry[0] + entry[1] > first:
                    yield entry
            at = (ledger, entry_id + run.count)


async def _catch_up(log: KafkaLog, left: int) -> bool:
    """Reads about `left` bytes of what the blocks do not know. Whether they know the whole log then, as it was when
    this was called.
    """
    end = log.high_watermark
    if log.times.end < log.log_offset:  # all of that has gone
        log.times = Times(log.log_offset)
    times = log.times
    if times.end < end:
        async for entry in _entries(log, times.end, end):
            times.add(entry[0], entry[1], highest_of(entry), len(entry[2]))
            left -= len(entry[2])
            if left <= 0:
                break
    return times.begin <= max(log.log_offset, log.start_offset) and times.end >= end


async def _in_blocks(log: KafkaLog, time_ms: int) -> Found:
    for first, end, highest in log.times.blocks(log.start_offset):
        if highest < time_ms:
            continue
        async for entry in _entries(log, first, end):
            if highest_of(entry) < time_ms:
                continue
            for offset, time in times_of(entry):
                if time >= time_ms and offset >= first:
                    return offset, time
    return NONE


# -- what the blocks do not know ---------------------------------------------------------------------------------------


async def _halved(log: KafkaLog, time_ms: int) -> Found:
    """Times are taken to grow from entry to entry: ledgers are halved by the times of their last entries, then the one
    that is left.
    """
    end = log.ledger.last_confirmed
    lasts = [
        min((info.ledger, info.entries - 1), end)
        for info in log.ledger.ledgers()
        if info.entries and info.ledger <= end[0]
    ]
    which = await _first(len(lasts), lambda index: _reaches(log, lasts[index], time_ms))
    if which == len(lasts):
        return NONE
    ledger, last = lasts[which]
    entry = await _first(last, lambda index: _reaches(log, (ledger, index), time_ms))
    run = await log.one((ledger, entry))
    if run is None:
        return NONE
    found = next(((offset, time) for offset, time in times_of(entries_of(run)[0]) if time >= time_ms), None)
    return found or (run.first_index, run.time_ms)


async def _reaches(log: KafkaLog, position: Position, time_ms: int) -> bool:
    """Whether an entry has a record of that time or later; one that shows none has its broker's time."""
    run = await log.one(position)
    if run is None:
        return False
    highest = highest_of(entries_of(run)[0])
    return (run.time_ms if highest < 0 else highest) >= time_ms


async def _first(count: int, holds: Callable[[int], Awaitable[bool]]) -> int:
    """The first of 0..count-1 that it holds for, where it holds for all behind that one too; `count`: for none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if await holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


async def _newest_of_last(log: KafkaLog) -> Found:
    best = NONE
    end = log.ledger.last_confirmed
    if end[1] >= 0:
        for _, _, run in await log.ledger.read((end[0], max(0, end[1] - 63)), 64, 8 << 20):
            for entry in entries_of(run):
                best = max([best, *times_of(entry)], key=lambda each: each[1])
    return best
