"""every: work that is done again and again, for as long as its owner lives.

Is: the loop, its pauses, and what an error of the work means. Isn't: the task that runs it (`TaskSet`), or work that is
tried until it succeeds.
Invariants: one round at a time; the pause is counted from a round's end, so rounds never pile up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from heliograph.model.errors import HeliographError


async def every(
    period_s: float | Callable[[], float | None],
    work: Callable[[], Awaitable[object]],
    *,
    first_s: float | None = None,
    failed: Callable[[HeliographError], object] | None = None,
    wake: asyncio.Event | None = None,
) -> NoReturn:
    """Waits `period_s` seconds, does `work`, and so on; ends when it is cancelled.

    period_s: or what says it before each pause, where it is spread by chance, or depends; None: until `wake`.
    first_s: the first pause, where it is another one; 0: the first round begins at once.
    wake: the next round begins as soon as it is set; it is cleared before the round, so that what comes meanwhile
    brings another.
    failed: told of a HeliographError of `work`; the next round tries again. Without it such an error ends the loop, as
    every other one does: it is raised here.
    """
    pause_s = _of(period_s) if first_s is None else first_s
    if pause_s != 0:
        await _pause(pause_s, wake)
    while True:
        try:
            await work()
        except HeliographError as error:
            if failed is None:
                raise
            failed(error)
        await _pause(_of(period_s), wake)


def _of(period_s: float | Callable[[], float | None]) -> float | None:
    return period_s() if callable(period_s) else period_s


async def _pause(pause_s: float | None, wake: asyncio.Event | None) -> None:
    if wake is None:
        assert pause_s is not None, "nothing would end this pause"
        await asyncio.sleep(pause_s)
        return
    try:
        async with asyncio.timeout(pause_s):
            await wake.wait()
    except TimeoutError:
        pass
    wake.clear()
