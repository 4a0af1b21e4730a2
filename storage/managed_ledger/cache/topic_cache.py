"""TopicCache: the end of one topic's log, as runs in memory.

Is: what the tail of one topic is read from. Isn't: a decision what goes when memory is short: that is the EntryCache's.
Invariants: what is held is a contiguous end of the topic's log, because runs come behind the last one and go from the
front. A run is copied only where its block would pin more than twice its size.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Protocol

from heliograph.model.positions import Position
from heliograph.wire.run import Run
from storage.managed_ledger.cursors.cursor import Cursor

_COMPACT_ABOVE = 64
RUN_BYTES = 400
"""What a run costs beside its entries' bytes."""


class CacheOwner(Protocol):
    """The EntryCache, as its topics see it."""

    now: float

    def needed_from(self, cursors: dict[str, Cursor]) -> Position | None:
        """The first position that one of them needs; None: nobody needs anything."""
        ...

    def on_written(self, topic: TopicCache, cost: int, entries: int) -> None: ...

    def on_gone(self, topic: TopicCache, cost: int, entries: int, *, evicted: bool) -> None: ...


class TopicCache:
    """size_bytes: what it holds, and pins. bucket: the EntryCache's."""

    __slots__ = ("_cache", "_costs", "_head", "_keys", "_runs", "_times", "bucket", "cursors", "size_bytes")

    def __init__(self, cache: CacheOwner) -> None:
        self.size_bytes = self.bucket = 0
        self.cursors: dict[str, Cursor] | None = None
        """Whose readers may need what is here; not set: not known, and no run counts as passed."""
        self._cache = cache
        self._head = 0
        self._keys: list[Position] = _KEYS
        self._runs: list[Run] = _RUNS
        self._costs: list[int] = _COSTS
        self._times: list[float] = _TIMES

    @property
    def runs(self) -> int:
        return len(self._keys) - self._head

    @property
    def start(self) -> Position | None:
        """The first position that is held; everything behind it is, too."""
        return self._keys[self._head] if self.runs else None

    def append(self, ledger: int, first: int, run: Run) -> None:
        """The run behind the last one."""
        cost = _compact(run) + RUN_BYTES
        if self._keys is _KEYS:
            self._keys, self._runs, self._costs, self._times = [], [], [], []
        self._keys.append((ledger, first))
        self._runs.append(run)
        self._costs.append(cost)
        self._times.append(self._cache.now)
        self.size_bytes += cost
        self._cache.on_written(self, cost, run.count)

    def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """Runs from `position` on, which must exist, cut to what is asked for; at least one entry. [] where it is not
        held.
        """
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
        self.cursors = None
        while self.runs:
            self._drop_first(evicted=False)

    def evict_first(self) -> None:
        """Gives the oldest run up, for want of room. There must be one."""
        self._drop_first(evicted=True)

    def evict_older(self, than: float) -> None:
        """Runs that came before that time."""
        while self.runs and self._times[self._head] < than:
            self._drop_first(evicted=True)

    def evict_through(self, ledger: int) -> None:
        """Runs up to the end of that ledger: what bookies have of it is something else now."""
        while self.runs and self._keys[self._head][0] <= ledger:
            self._drop_first(evicted=True)

    def evict_passed(self) -> None:
        """Runs that no reader needs any more."""
        if self.cursors is None:
            return
        limit = self._cache.needed_from(self.cursors)
        while self.runs:
            ledger, first = self._keys[self._head]
            if limit is not None and (ledger, first + self._runs[self._head].count) > limit:
                return
            self._drop_first(evicted=True)

    def _drop_first(self, *, evicted: bool) -> None:
        head = self._head
        cost, entries = self._costs[head], self._runs[head].count
        self._runs[head] = _GONE
        self._head = head = head + 1
        self.size_bytes -= cost
        if head == len(self._keys):
            self._forget()
        elif head > _COMPACT_ABOVE and head * 2 > len(self._keys):
            for column in (self._keys, self._runs, self._costs, self._times):
                del column[:head]
            self._head = 0
        self._cache.on_gone(self, cost, entries, evicted=evicted)

    def _forget(self) -> None:
        """Most topics hold nothing most of the time: then they share their columns."""
        self._keys, self._runs, self._costs, self._times = _KEYS, _RUNS, _COSTS, _TIMES
        self._head = 0


def cut_point(run: Run, start: int, max_entries: int, max_bytes: int, at_least_one: bool) -> int:
    """How far a read of `run` from entry `start` may go."""
    if not start and run.count <= max_entries and run.size_bytes <= max_bytes:
        return run.count
    stop = min(run.count, start + max_entries)
    total = 0
    for index, size in enumerate(accumulate(run.lengths[start:stop]), start):
        total = size
        if total > max_bytes:
            return max(index, start + 1) if at_least_one else index
    return stop


def pinned_bytes(*runs: Run) -> int:
    """The memory that runs keep alive: whole blocks, where their entries are views; one that several share, one behind
    another, once.
    """
    total = 0
    last: object = None
    for run in runs:
        for part in (run.body,) if run.body is not None else run.parts:
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
_KEYS: list[Position] = []
_RUNS: list[Run] = []
_COSTS: list[int] = []
_TIMES: list[float] = []
"""These empty lists are shared by every topic that holds nothing; they are never appended to."""
