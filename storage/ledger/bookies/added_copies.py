"""Copies on their way: adds what a recovery or a repair writes to one bookie, many runs at a time.

Is: how many go at once, and the wait for all of them. Isn't: what is copied, to whom, or the judgement of a failure.
Source: docs/protocols/storage.md, "Auto-recovery".
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from heliograph.wire.run import Buffer
from storage.ledger.bookies.bookie_port import BookiePort

COPIES_AT_ONCE = 64
"""Runs of a copy that are on their way to one bookie: each waits for its fsync, which many share."""
COPIES_BYTES = 2 << 20
"""Or so much, as they share their way with what others write there."""


async def add_copies(
    bookie: BookiePort, ledger: int, runs: Sequence[tuple[int, int, Sequence[Buffer]]], lac: int
) -> None:
    """Adds runs of a recovery or a repair, COPIES_AT_ONCE of them, or about COPIES_BYTES, at a time, and returns once
    all are durable. Raises what the first of them failed by, once those that were sent with it have ended.

    runs: (first entry, count, block).
    """
    adds: list[Coroutine[Any, Any, None]] = []
    size = 0
    for at, (first, count, block) in enumerate(runs, 1):
        adds.append(bookie.add_recovery(ledger, first, count, block, lac))
        size += sum(len(part) for part in block)
        if len(adds) >= COPIES_AT_ONCE or size >= COPIES_BYTES or at == len(runs):
            for failed in await asyncio.gather(*adds, return_exceptions=True):
                if failed is not None:
                    raise failed
            adds, size = [], 0
