"""What a broker has to run soon: one queue for all subscriptions, one bounded set of reads.

Is: fairness (each subscription gets a bounded pass, in order) and bounds. Isn't: a decision what to dispatch.
Invariants: an item is queued at most once; `reads_max` reads of backlog are under way at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from heliograph.runtime.task_set import TaskSet, report_error


class Ready(Protocol):
    """Something with work to do. `queued`: kept by the queue."""

    queued: bool

    def run_ready(self) -> None:
        """Does a bounded piece of work; pushes itself again where more is left."""
        ...


class ReadyQueue:
    """Runs what was pushed, once each, in the next pass of the loop."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon
        self._items: deque[Ready] = deque()
        self._scheduled = False

    def push(self, item: Ready) -> None:
        if item.queued:
            return
        item.queued = True
        self._items.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        for _ in range(len(self._items)):
            item = self._items.popleft()
            item.queued = False
            try:
                item.run_ready()
            except Exception as error:  # of one: the others' turn comes all the same
                report_error(error, "what was ready on this broker failed")
        if self._items and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)


class YieldingPort(Protocol):
    """How fast backlog is read while somebody publishes on this broker (`replicator.bandwidth.drain_throttle`)."""

    def may(self, member: Any) -> bool:
        """Whether it may go now; else its share comes."""
        ...

    def spend(self, size_bytes: int) -> None: ...

    def count_also(self, left: Callable[[], int]) -> None:
        """From now on what `left` says is the backlog that is still to be read here."""
        ...


class _QueuedRead:
    """A read of somebody who catches up, among the other drains of the broker."""

    __slots__ = ("_go",)
    live, weight = False, 1

    def __init__(self, go: Callable[[], None]) -> None:
        self._go = go

    def on_share(self, upto_bytes: int) -> None:
        self._go()


class BoundedReads:
    """Reads of backlog: at most `reads_max` at once in a broker, the others wait in order; those of who catches up give
    way to who publishes.
    """

    def __init__(self, tasks: TaskSet, reads_max: int = 32, yielding: YieldingPort | None = None) -> None:
        self._tasks, self._free, self._yielding = tasks, reads_max, yielding
        self._waiting: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._left: dict[object, int] = {}
        self._queued: dict[object, int] = {}
        """Who waits for its share, or reads -> how often."""
        if yielding is not None:
            yielding.count_also(self.take_left)

    def take_left(self) -> int:
        """Bytes that those have before them who catch up: who have read since the last call, or wait for their share or
        their bookies.
        """
        left = sum(self._left.values())
        self._left = {who: self._left[who] for who in self._queued}
        return left

    def start_bulk(
        self, who: object, work: Callable[[], Coroutine[Any, Any, None]], size_bytes: int, left_bytes: int
    ) -> None:
        """As `start`, of somebody who reads on and on: about `size_bytes` now, and has `left_bytes` before him."""
        if self._yielding is None:
            self.start(work)
            return
        self._left[who] = left_bytes
        self._queued[who] = self._queued.get(who, 0) + 1
        go = partial(self._spend, who, size_bytes, work)
        if self._yielding.may(_QueuedRead(go)):
            go()

    def _spend(self, who: object, size_bytes: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._yielding is not None
        self._yielding.spend(size_bytes)
        self.start(partial(self._reads_of, who, work))

    async def _reads_of(self, who: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        finally:
            self._queued[who] -= 1
            if not self._queued[who]:
                del self._queued[who]

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._free:
            self._free -= 1
            self._tasks.spawn(self._run(work))
        else:
            self._waiting.append(work)

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
            while self._waiting:
                await self._waiting.popleft()()
        finally:
            self._free += 1
            if self._waiting:  # this one failed: those behind it do not wait until somebody else comes
                self.start(self._waiting.popleft())
