"""Positions that clients ask for: the last message they can see, the first one published at a time.

Is: reading entries' metadata at a few places, by halving. Isn't: on the data path.
"""

from __future__ import annotations

from bisect import bisect_left

from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.pulsar.entry_metadata import entry_metadata, last_batch_index
from heliograph.wire.run import FLAG_KAFKA, Buffer
from region_node.runtime.topic_ports import ManagedLedgerPort, ReadablePort

_LOOK_BACK = 64
_AHEAD_MS = 3600 * 1000
"""A ledger that was closed so long before a time has nothing of that time, unless a client's clock is further ahead
than this.
"""
_OPEN_MS = 1 << 62


async def last_visible(ledger: ReadablePort) -> tuple[Position, int]:
    """(position of the last entry that clients see, its last batch index or -1); entry -1: nothing is there."""
    position, span = ledger.last_confirmed, 1
    while position[1] >= 0:
        start = max(0, position[1] + 1 - span)
        found = await _last_visible(ledger, position[0], start, position[1])
        if found is not None:
            return found
        span = min(8 * span, _LOOK_BACK)
        if start == 0:
            earlier = ledger.position_before((position[0], 0))
            position = earlier if earlier[1] >= 0 else (position[0], -1)
        else:
            position = (position[0], start - 1)
    return position, -1


async def _last_visible(log: ReadablePort, ledger: int, first: int, last: int) -> tuple[Position, int] | None:
    """(position, last batch index) of the last entry of [first, last] that clients see."""
    seen: tuple[int, Buffer] | None = None
    at = first
    while at <= last:  # a read may end early: at a change of the ensemble, or at its bound of bytes
        pieces = [p for p in await log.read((ledger, at), last + 1 - at, 1 << 22) if p[0] == ledger]
        if not pieces:
            break
        for _, start, run in pieces:
            visible = [i for i in range(run.count) if run.flags is None or not run.flags[i] & ~FLAG_KAFKA]
            if visible:
                seen = start + visible[-1], run.parts[visible[-1]]
        at = pieces[-1][1] + pieces[-1][2].count
    if seen is None:
        return None
    try:
        return (ledger, seen[0]), last_batch_index(seen[1])
    except CorruptData:
        return (ledger, seen[0]), -1


async def before_publish_time(ledger: ManagedLedgerPort, publish_ms: int) -> Position:
    """The position before the first entry published at or after `publish_ms`, by halving: times that go back and forth
    may mislead it.

    Raises what reading raises, and what the metadata raises.
    """
    await ledger.whole()
    last, infos = ledger.last_confirmed, ledger.ledgers()
    for info in infos[bisect_left(infos, publish_ms - _AHEAD_MS, key=lambda info: info.closed_ms or _OPEN_MS) :]:
        high = last[1] if info.ledger == last[0] else info.entries - 1
        if high < 0 or info.ledger > last[0] or await _publish_ms(ledger, (info.ledger, high)) < publish_ms:
            continue
        low = 0
        while low < high:
            middle = (low + high) // 2
            if await _publish_ms(ledger, (info.ledger, middle)) >= publish_ms:
                high = middle
            else:
                low = middle + 1
        return info.ledger, low - 1
    return last


async def _publish_ms(ledger: ManagedLedgerPort, position: Position) -> int:
    pieces = await ledger.read(position, 1, 1 << 20)
    if not pieces or pieces[0][:2] != position:
        return 0
    run = pieces[0][2]
    if run.flags is not None and run.flags[0] & ~FLAG_KAFKA:
        return run.time_ms
    return entry_metadata(run.parts[0])[0].publish_time
