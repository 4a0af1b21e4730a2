"""Offload: one thread for the few computations that would stall the event loop, such as a password hash.

Is: a bounded queue in front of one thread. Isn't: a place for I/O (`system_disk`), or for anything on the data path.
Invariants: at most `waiting_max` calls wait or run. Where all places are taken, a call gets the last one of whoever has
most, if that is more than the caller would have, or is refused at once: nobody can fill the memory, and few cannot take
all places. They take turns, so that nobody waits for all that another one has asked. What nobody waits for any more is
not computed, and not kept.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Overloaded(Exception):
    """Too many calls wait, or the turn of this one did not come in time: nothing was computed."""


class _Call:
    """One that waits for its turn, or runs."""

    __slots__ = ("done", "wanted", "work")

    def __init__(self, work: Callable[[], Any], wanted: Callable[[], bool] | None, done: asyncio.Future[Any]) -> None:
        self.work, self.wanted, self.done = work, wanted, done


class Offload:
    """The thread is there from the first call on."""

    def __init__(self, waiting_max: int = 64) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._waiting_count, self._waiting_max = 0, waiting_max
        self._waiting: dict[Hashable, dict[_Call, None]] = {}
        """Who -> what waits of theirs, both in the order of their turns."""
        self._busy = False

    async def run(
        self,
        work: Callable[[], T],
        *,
        who: Hashable = None,
        within_s: float = math.inf,
        wanted: Callable[[], bool] | None = None,
    ) -> T:
        """What `work` returns or raises. Raises Overloaded.

        who: nobody's second call goes before another's first one. within_s: it begins within that time, or not at all.
        wanted: asked when its turn has come; False: nobody waits for it any more.
        """
        if self._waiting_count + self._busy >= self._waiting_max:
            self._make_room(who)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        call = _Call(work, wanted, done)
        self._waiting.setdefault(who, {})[call] = None
        self._waiting_count += 1
        timer = None if within_s == math.inf else loop.call_later(within_s, self._give_up, who, call)
        try:
            self._next(loop)
            return await done
        finally:
            self._forget(who, call)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """What waits is dropped; what runs ends by itself."""
        for calls in self._waiting.values():
            for call in calls:
                call.done.cancel()
        self._waiting, self._waiting_count = {}, 0
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and not self._busy:
            who, calls = next(iter(self._waiting.items()))
            call = next(iter(calls))
            del calls[call], self._waiting[who]
            self._waiting_count -= 1
            if calls:
                self._waiting[who] = calls  # behind all others
            if call.done.done():
                continue
            if call.wanted is not None and not call.wanted():
                call.done.set_exception(Overloaded())
                continue
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload")
            self._busy = True
            loop.run_in_executor(self._thread, call.work).add_done_callback(partial(self._ended, loop, call.done))

    def _ended(self, loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], computed: asyncio.Future[Any]) -> None:
        self._busy = False
        error = None if computed.cancelled() else computed.exception()
        if done.done():
            pass  # whoever asked has gone
        elif computed.cancelled():
            done.cancel()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(computed.result())
        self._next(loop)

    def _make_room(self, who: Hashable) -> None:
        """Takes one place from whoever has most, the one whose turn would come last. Raises Overloaded."""
        greedy, calls = max(self._waiting.items(), key=lambda item: len(item[1]), default=(who, {}))
        if len(calls) <= len(self._waiting.get(who, ())) + 1:
            raise Overloaded
        self._give_up(greedy, next(reversed(calls)))

    def _give_up(self, who: Hashable, call: _Call) -> None:
        if self._forget(who, call) and not call.done.done():
            call.done.set_exception(Overloaded())

    def _forget(self, who: Hashable, call: _Call) -> bool:
        """Whether it waited for its turn still: it does no more."""
        calls = self._waiting.get(who)
        if calls is None or call not in calls:
            return False
        del calls[call]
        self._waiting_count -= 1
        if not calls:
            del self._waiting[who]
        return True
