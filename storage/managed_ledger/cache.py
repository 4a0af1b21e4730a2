"""EntryCache: the newest confirmed runs of a broker's topics, bounded by bytes.

Is: one a broker; what consumers and links at the tail read. Isn't: a cache of what lagging readers fetch from bookies.
Invariants: at most `byte_bound` bytes (of entries, and of the blocks that they pin), the newest run excepted; least recently written goes first,
so what is held of one topic is a contiguous end of its log. A run is copied only where its block would pin more than twice its size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate

from heliograph.model.positions import Position
from heliograph.wire.run import Run

_COMPACT_ABOVE = 64
RUN_BYTES = 400
"""What a run costs beside its entries' bytes."""


class EntryCache:
    """The byte bound, and the order of eviction."""

    def __init__(self, byte_bound: int) -> None:
        self.byte_bound = byte_bound
        self.size_bytes = 0
        self._order: deque[tuple[TopicCache, int]] = deque()

    def topic(self) -> TopicCache:
        return TopicCache(self)

    def _written(self, topic: TopicCache, cost: int) -> None:
        self._order.append((topic, cost))
        self.size_bytes += cost
        while self.size_bytes > self.byte_bound and len(self._order) > 1:
            oldest, oldest_cost = self._order.popleft()
            if not oldest.closed:
                self.size_bytes -= oldest_cost
                oldest._evict_first(oldest_cost)


class TopicCache:
    """The end of one topic's log."""

    __slots__ = ("_bytes", "_cache", "_head", "_keys", "_runs", "closed")

    def __init__(self, cache: EntryCache) -> None:
        self._cache = cache
        self._keys: list[Position] = []
        self._runs: list[Run] = []
        self._head = 0
        self._bytes = 0
        self.closed = False

    def append(self, ledger: int, first: int, run: Run) -> None:
        """The run behind the last one."""
        cost = _compact(run) + RUN_BYTES
        self._keys.append((ledger, first))
        self._runs.append(run)
        self._bytes += cost
        self._cache._written(self, cost)

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """Runs from `position` on, which must exist, cut to what is asked for; at least one entry. [] where it is not held."""
        keys, runs = self._keys, self._runs
        at = bisect_right(keys, position, self._head) - 1
        if at < self._head or keys[at][0] != position[0]:
            return []
        ledger, first = keys[at]
        run = runs[at]
        start = position[1] - first
        if start >= run.count:
            return []
        out: list[tuple[int, int, Run]] = []
        end = len(keys)
        while True:
            if run.count - start > max_entries or run.size_bytes > max_bytes:
                stop = cut_point(run, start, max_entries, max_bytes, not out)
                if stop > start:
                    out.append((ledger, first + start, run.cut(start, stop)))
                return out
            run = run.cut(start, run.count)
            out.append((ledger, first + start, run))
            max_entries -= run.count
            max_bytes -= run.size_bytes
            at += 1
            if at == end or max_entries <= 0 or max_bytes <= 0:
                return out
            (ledger, first), run, start = keys[at], runs[at], 0

    def close(self) -> None:
        """Gives everything up, at once."""
        self.closed = True
        self._cache.size_bytes -= self._bytes
        self._bytes = 0
        self._keys, self._runs, self._head = [], [], 0

    def _evict_first(self, cost: int) -> None:
        head = self._head
        self._bytes -= cost
        self._runs[head] = _GONE
        self._head = head = head + 1
        if head > _COMPACT_ABOVE and head * 2 > len(self._keys):
            del self._keys[:head], self._runs[:head]
            self._head = 0


def cut_point(run: Run, start: int, max_entries: int, max_bytes: int, at_least_one: bool) -> int:
    """How far a read of `run` from entry `start` may go."""
    stop = min(run.count, start + max_entries)
    total = 0
    for index, size in enumerate(accumulate(run.lengths[start:stop]), start):
        total = size
        if total > max_bytes:
            return max(index, start + 1) if at_least_one else index
    return stop


def pinned_bytes(run: Run) -> int:
    """The memory that a run keeps alive: whole blocks, where its entries are views."""
    if run.body is not None:
        return memoryview(run.body.obj if isinstance(run.body, memoryview) else run.body).nbytes
    total = 0
    last: object = None
    for part in run.parts:
        base = part.obj if isinstance(part, memoryview) else part
        if base is not last:
            total += memoryview(base).nbytes
            last = base
    return total


def _compact(run: Run) -> int:
    """Copies the entries where they pin more than twice their size. Returns what the run pins now."""
    pinned = pinned_bytes(run)
    if pinned <= 2 * run.size_bytes:
        return pinned
    run.own_bytes()
    return run.size_bytes


_GONE = Run([], [])
