"""A bookie that scrubs quickly, and entries for it to look at."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.storage.bookie.boxes import Box
from tests.storage.bookie.history import SMALL, add, send

QUICK = replace(SMALL, scrub_interval_s=5.0, scrub_bytes_per_s=4 << 10)


async def fill(box: Box) -> list[str]:
    box.start(QUICK)
    for turn in range(3):
        send(box.bookie, box.peer, *[add(ledger, turn * 5, 5) for ledger in (1, 2, 3)])
        await box.flushed()
    return [name for name in box.ledgers.names() if name.startswith("log-")]


async def ticks(box: Box, count: int) -> None:
    for _ in range(count):
        box.bookie.tick()
        await asyncio.sleep(0.02)


async def rounds(box: Box, count: int) -> None:
    wanted = box.bookie.dirs[0].scrubber.rounds + count
    for _ in range(500):
        if box.bookie.dirs[0].scrubber.rounds >= wanted:
            return
        await ticks(box, 1)
    raise AssertionError("no round came to its end")
