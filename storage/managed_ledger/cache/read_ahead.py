"""ReadAhead: runs that were fetched from bookies for readers who lag, kept for the next read and the next reader.

Is: one a broker, bounded by bytes, by whole fetches; the least recently read goes first; a part of the EntryCache's
bound; and what is on its way before a reader asks for it. Isn't: the cache of the newest entries, or who decides what
is fetched.
Invariants: what is kept was confirmed, so it never becomes wrong, unless a repair in place says `forget`; a fetch is
kept whole, starts where it was asked for, and has no hole; it counts with all memory that it keeps alive. Of what was
fetched before anybody asked at most three eighths of the bound wait for their readers or are on their way: more readers
than that fetch as they go. A reader's second fetch takes none of the last of these eighths, so that it keeps nobody's
first one away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.model.errors import HeliographError
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.run import Run
from storage.ledger.reading.ledger_reader import OnEnd
from storage.managed_ledger.cache.topic_cache import RUN_BYTES, pinned_bytes

Runs = list[tuple[int, Run]]
"""(first entry, run), without a hole."""
Fetching = Callable[[OnEnd], Coroutine[Any, Any, Runs]]

_WORTH_BYTES = 256 << 10
_EARLY_EIGHTHS, _SECOND_EIGHTHS = 3, 2
_LEFT_READS = 256
"""After so many reads of others, what was fetched for a reader before it asked is not waited for any more."""


class _Fetch:
    __slots__ = ("cost", "early", "end", "ledger", "reads_before", "runs", "size_bytes", "start")

    def __init__(self, ledger: int, runs: Runs) -> None:
        self.ledger, self.runs = ledger, runs
        self.early = False
        """Fetched before a reader asked, and not read since."""
        self.reads_before = 0
        """How many reads of all readers had been counted when it came: so one that nobody reads is found."""
        self.start = runs[0][0]
        self.end = runs[-1][0] + runs[-1][1].count
        self.size_bytes = sum(run.size_bytes + RUN_BYTES for _, run in runs)
        self.cost = pinned_bytes(*(run for _, run in runs)) + RUN_BYTES * len(runs)
        """With all of the slabs that entries lie in, which other fetches may keep alive as well."""


class _Flight:
    """What is on its way before a reader asked for it."""

    __slots__ = ("end", "size_bytes", "task")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        """An estimate of what will come; the real size is known once it is here."""
        self.end = -1
        """The entry behind it, once that is known."""
        self.task: asyncio.Task[None]


class ReadAhead:
    """on_size(bytes): so many more are held, or fewer."""

    def __init__(self, byte_bound: int, on_size: Callable[[int], None] = lambda size_bytes: None) -> None:
        self.byte_bound, self.size_bytes = byte_bound, 0
        self._on_size = on_size
        self.hits = self.misses = 0
        self._recent: dict[_Fetch, None] = {}  # the least recently read first
        self._of: dict[int, list[_Fetch]] = {}
        self._flying: dict[tuple[int, int], _Flight] = {}
        self._repairs = 0
        self.early_bytes = 0
        """Fetched before anybody asked: on its way, or not read yet."""

    def window(self, bytes_max: int) -> int:
        """How much to fetch at a time, at most `bytes_max`: so that about two fetches of each ledger that is read have
        room, but not less than is worth it.
        """
        return min(bytes_max, max(self.byte_bound // (2 * (len(self._of) + 1)), _WORTH_BYTES))

    def lacking(self, ledger: int, first: int, fetches: int) -> tuple[int, int] | None:
        """Follows so many fetches one behind another from entry `first` on. Returns where the first one begins that is
        neither here nor on its way, and how many are left with it.
        None: there is none, or where it begins is not known yet.
        """
        while fetches:
            flight = self._flying.get((ledger, first))
            if flight is None:
                held = self._find(ledger, first)
                if held is None:
                    return first, fetches
                first = held.end
            elif flight.end < 0:
                return None
            else:
                first = flight.end
            fetches -= 1
        return None

    def early(
        self,
        tasks: TaskSet,
        ledger: int,
        first: int,
        size_bytes: int,
        fetch: Fetching,
        go_on: Callable[[], None],
        *,
        second: bool = False,
    ) -> None:
        """Has `fetch` bring about `size_bytes` from entry `first` on, unless they are here, on their way, or more than
        may wait for their readers.

        go_on: called when it is known where it ends, and again when it is here. second: its reader has another one on
        its way.
        """
        if (ledger, first) in self._flying or self._find(ledger, first) is not None:
            return
        eighths = _SECOND_EIGHTHS if second else _EARLY_EIGHTHS
        if 8 * (self.early_bytes + size_bytes) > eighths * self.byte_bound:
            left = next((fetch for fetch in self._recent if fetch.early), None)
            if left is None or self.hits + self.misses - left.reads_before < _LEFT_READS:
                return
            self._drop(left)  # its reader has gone
            if 8 * (self.early_bytes + size_bytes) > eighths * self.byte_bound:
                return
        self.early_bytes += size_bytes
        self._flying[ledger, first] = flight = _Flight(size_bytes)
        flight.task = tasks.spawn(self._bring(flight, ledger, first, fetch, go_on))

    async def _bring(
        self, flight: _Flight, ledger: int, first: int, fetch: Fetching, go_on: Callable[[], None]
    ) -> None:
        def ends(behind: int) -> None:
            if flight.end < 0:
                flight.end = behind
                go_on()

        repairs = self._repairs
        try:
            runs = await fetch(ends)
        except HeliographError:
            runs = []  # whoever wants it asks again, and hears it
        finally:
            self.early_bytes -= flight.size_bytes
            del self._flying[ledger, first]
        if runs and repairs == self._repairs:
            self.put(ledger, runs, early=True)
            if self._find(ledger, first) is not None:
                go_on()

    async def arrived(self, ledger: int, first: int) -> Runs:
        """As `get`, of what is on its way; [] where nothing is, or nothing came."""
        flying = self._flying.get((ledger, first))
        if flying is None:
            return []
        await asyncio.wait([flying.task])
        return self.get(ledger, first)

    def put(self, ledger: int, runs: Runs, *, early: bool = False) -> None:
        """A fetch above the bound is not kept."""
        fetch = _Fetch(ledger, runs)
        if fetch.cost > self.byte_bound:
            return
        if early:
            fetch.early, fetch.reads_before = True, self.hits + self.misses
            self.early_bytes += fetch.size_bytes
        self._recent[fetch] = None
        self._of.setdefault(ledger, []).append(fetch)
        self.size_bytes += fetch.cost
        while self.size_bytes > self.byte_bound:
            self._drop(next(iter(self._recent)))
        self._on_size(fetch.cost)

    def get(self, ledger: int, first: int) -> Runs:
        """From entry `first` on, as far as one fetch goes; [] where it is not here."""
        fetch = self._find(ledger, first)
        if fetch is None:
            self.misses += 1
            return []
        del self._recent[fetch]
        self._recent[fetch] = None
        self._claim(fetch)
        self.hits += 1
        found = [(start, run) for start, run in fetch.runs if start + run.count > first]
        start, run = found[0]
        if start < first:
            found[0] = first, run.cut(first - start, run.count)
        return found

    def forget(self, ledger: int) -> None:
        """Entries of it were put right on the bookies; what is on its way may have been read before."""
        self._repairs += 1
        for fetch in list(self._of.get(ledger, ())):
            self._drop(fetch)

    def _find(self, ledger: int, entry: int) -> _Fetch | None:
        return next((fetch for fetch in self._of.get(ledger, ()) if fetch.start <= entry < fetch.end), None)

    def _claim(self, fetch: _Fetch) -> None:
        if fetch.early:
            fetch.early = False
            self.early_bytes -= fetch.size_bytes

    def _drop(self, fetch: _Fetch) -> None:
        del self._recent[fetch]
        self._claim(fetch)
        self.size_bytes -= fetch.cost
        self._on_size(-fetch.cost)
        rest = self._of[fetch.ledger]
        rest.remove(fetch)
        if not rest:
            del self._of[fetch.ledger]
