"""ReadAhead: runs that were fetched from bookies for readers who lag, kept for the next read and the next reader.

Is: one a broker, bounded by bytes, by whole fetches; the least recently read goes first; a part of the EntryCache's bound. Isn't: the cache of
the newest entries, or who decides what is fetched.
Invariants: what is kept was confirmed, so it never becomes wrong; a fetch is kept whole, starts where it was asked for, and has no hole.
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.wire.run import Run
from storage.managed_ledger.topic_cache import RUN_BYTES

Runs = list[tuple[int, Run]]
"""(first entry, run), without a hole."""


class _Fetch:
    __slots__ = ("cost", "end", "ledger", "runs", "start")

    def __init__(self, ledger: int, runs: Runs) -> None:
        self.ledger, self.runs = ledger, runs
        self.start = runs[0][0]
        self.end = runs[-1][0] + runs[-1][1].count
        self.cost = sum(run.size_bytes + RUN_BYTES for _, run in runs)


class ReadAhead:
    """on_size(bytes): so many more are held, or fewer."""

    def __init__(self, byte_bound: int, on_size: Callable[[int], None] = lambda size_bytes: None) -> None:
        self.byte_bound, self.size_bytes = byte_bound, 0
        self._on_size = on_size
        self.hits = self.misses = 0
        self._recent: dict[_Fetch, None] = {}  # the least recently read first
        self._of: dict[int, list[_Fetch]] = {}

    def put(self, ledger: int, runs: Runs) -> None:
        """A fetch above the bound is not kept."""
        fetch = _Fetch(ledger, runs)
        if fetch.cost > self.byte_bound:
            return
        self._recent[fetch] = None
        self._of.setdefault(ledger, []).append(fetch)
        self.size_bytes += fetch.cost
        while self.size_bytes > self.byte_bound:
            self._drop(next(iter(self._recent)))
        self._on_size(fetch.cost)

    def get(self, ledger: int, first: int) -> Runs:
        """From entry `first` on, as far as one fetch goes; [] where it is not here."""
        for fetch in self._of.get(ledger, ()):
            if fetch.start <= first < fetch.end:
                del self._recent[fetch]
                self._recent[fetch] = None
                self.hits += 1
                found = [(start, run) for start, run in fetch.runs if start + run.count > first]
                start, run = found[0]
                if start < first:
                    found[0] = first, run.cut(first - start, run.count)
                return found
        self.misses += 1
        return []

    def _drop(self, fetch: _Fetch) -> None:
        del self._recent[fetch]
        self.size_bytes -= fetch.cost
        self._on_size(-fetch.cost)
        rest = self._of[fetch.ledger]
        rest.remove(fetch)
        if not rest:
            del self._of[fetch.ledger]
