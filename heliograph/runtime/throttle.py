"""Throttle: a `Rate` that its users wait at; RowPace: a loop of very many rows lets everybody else go on; in_steps: so
does work that is written as a generator; FairQueue: so many at once.

Is: the wait, in the order of the calls, or of the turns. Isn't: what is spent after the fact (`Rate` alone), or a bound
of how many rows there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Hashable
from typing import TypeVar

from heliograph.runtime.rate import Rate

T = TypeVar("T")
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


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Returns what the generator returns, with a pause wherever it yields. Raises what it raises."""
    try:
        while True:
            next(steps)
            await pause()
    except StopIteration as end:
        found: T = end.value
        return found


def at_once(steps: Generator[None, None, T]) -> T:
    """Returns the same without a pause: of what is known to be small."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        found: T = end.value
        return found


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


class FairQueue:
    """At most `at_once` go on at the same time, and `waiting_max` wait: those of each `who` in their order, nobody's
    second before another's first. Where all places are taken, whoever has most gives the last one to who has fewer.
    Parts of one `who` share its turns in the same way.
    """

    __slots__ = ("_counts", "_free", "_waiting", "_waiting_count", "_waiting_max")

    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._free, self._waiting_max, self._waiting_count = at_once, waiting_max, 0
        self._waiting: dict[Hashable, dict[Hashable, dict[asyncio.Future[bool], None]]] = {}
        """Who -> part -> their places, all in the order in which they go on."""
        self._counts: dict[Hashable, int] = {}
        """Who -> how many places that are."""

    def take_now(self) -> bool:
        """Whether it goes on at once, as a place is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self, who: Hashable, part: Hashable = None) -> bool:
        """Whether it goes on, and is to `give` its place back then; False: too many wait."""
        if self.take_now():
            return True
        if self._waiting_count >= self._waiting_max and not self._make_room(who, part):
            return False
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, {}).setdefault(part, {})[place] = None
        self._counts[who] = self._counts.get(who, 0) + 1
        self._waiting_count += 1
        try:
            return await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(who, part, place)
            elif place.result():
                self.give()
            raise

    def give(self) -> None:
        """The place goes to the next one that waits."""
        while self._waiting:
            who, parts = next(iter(self._waiting.items()))
            part, places = next(iter(parts.items()))
            place = next(iter(places))
            self._forget(who, part, place)
            if places:
                parts[part] = parts.pop(part)  # behind all others
            if parts:
                self._waiting[who] = self._waiting.pop(who)
            if not place.done():  # nor cancelled in this very pass
                place.set_result(True)
                return
        self._free += 1

    def _make_room(self, who: Hashable, part: Hashable) -> bool:
        mine = self._counts.get(who, 0)
        greedy, count = max(self._counts.items(), key=lambda item: item[1], default=(who, 0))
        fewer = 0
        if count <= mine + 1:  # among its own, then
            greedy, fewer = who, len(self._waiting.get(who, {}).get(part, ())) + 1
        whose, places = max(self._waiting.get(greedy, {}).items(), key=lambda item: len(item[1]), default=(part, {}))
        if len(places) <= fewer:
            return False
        last = next(reversed(places))
        self._forget(greedy, whose, last)
        if not last.done():
            last.set_result(False)
        return True

    def _forget(self, who: Hashable, part: Hashable, place: asyncio.Future[bool]) -> None:
        parts = self._waiting.get(who, {})
        places = parts.get(part)
        if places is None or place not in places:
            return
        del places[place]
        self._waiting_count -= 1
        self._counts[who] -= 1
        if not places:
            del parts[part]
        if not parts:
            del self._waiting[who], self._counts[who]
