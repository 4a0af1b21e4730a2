"""Throttle: a `Rate` that its users wait at; RowPace: a loop of very many rows lets everybody else go on.

Is: the wait, in the order of the calls. Isn't: fairness among users, what is spent after the fact (`Rate` alone), or a
bound of how many rows there are.
"""

from __future__ import annotations

import asyncio

from heliograph.runtime.rate import Rate

OWED_S = 0.01
"""Who owes less, in seconds, goes on and waits with what follows: a timer for each small piece costs more than it."""
ROWS = 256
"""Rows between two pauses."""


class Throttle:
    """So much a second, for all that share it; at most OWED_S of it goes ahead of its time."""

    def __init__(self, per_s: float) -> None:
        self._rate = Rate(per_s)

    async def take(self, amount: float) -> None:
        """Returns when so much more fits in. Who is cancelled while it waits has spent it all the same."""
        now = asyncio.get_running_loop().time()
        wait_s = self._rate.wait_s(now)
        self._rate.spend(amount, now)
        if wait_s >= OWED_S:
            await asyncio.sleep(wait_s)


async def pause() -> None:
    """Gives others their turn, behind what took its time."""
    await asyncio.sleep(0)


class RowPace:
    """Counts the rows of one request. One that is refused waits for nothing, so a loop over such has no other pause."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = 0

    async def row(self) -> None:
        """Is awaited before each row; one in ROWS takes a pause."""
        await self.rows(1)

    async def rows(self, count: int) -> None:
        """Is awaited beside so many rows that are made at once; one pause stands for all that they would have had."""
        before, self._rows = self._rows, self._rows + count
        if before // ROWS != self._rows // ROWS:
            await asyncio.sleep(0)
