"""A scan between two points of the map lets others go on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from heliograph.model.positions import Position
from heliograph.runtime.throttle import ROWS
from heliograph.wire.run import Run
from replicator.log.coordinate_lookup import own_before


def test_others_go_on_while_it_reads_what_is_in_memory() -> None:
    reads = 0

    async def read(at: Position, entries_max: int, bytes_max: int) -> list[tuple[int, int, Run]]:
        nonlocal reads
        reads += 1
        return [(at[0], at[1], Run([b"x"] * ROWS, [1] * ROWS))]

    async def test() -> None:
        log: Any = SimpleNamespace(ledger=SimpleNamespace(read=read))
        looking, turns = asyncio.ensure_future(own_before(log, (1, 10 * ROWS - 1), (10 * ROWS,))), 0
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert looking.result() == (1, 10 * ROWS - 1) and turns >= reads == 10

    asyncio.run(test())
