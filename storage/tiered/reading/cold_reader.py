"""ColdReader: ledgers of which only the object is left, by ranges.

Is: one a broker; indexes and ranges that were read are kept, bounded; what a sequential reader wants next is fetched
while it reads: two ranges, so that one comes while the other is verified, and one where many objects are read. Isn't: a
judge of what is confirmed, or of which copy is read.
Invariants: nothing is returned that was not verified against its checksum, its ledger, and its place; a range is kept
by its upload, so an id that two topics have is no danger; who asks for what is on its way waits for that.
A missing or damaged object raises NoSuchObject or CorruptData, and the sentence says which object, where, and what to
do.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from heliograph.model.errors import CorruptData, HeliographError, NoSuchObject, StoreUnavailable
from heliograph.model.ledger_metadata import OffloadRecord
from heliograph.runtime.recent_latencies import Recent
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.block import is_sealed
from heliograph.wire.run import Run
from storage.sealing.cipher import check_form
from storage.tiered.objects.object_format import HEAD_BYTES, Index, cut_blocks
from storage.tiered.objects.object_names import ledger_key
from storage.tiered.store import ObjectStore, Stores
from storage.tiered.tiered_settings import TieredSettings

T = TypeVar("T")
_ENDS_KEPT = 256
_RANGES_AHEAD = 2
_HOLD_S = 0.5
_TOPICS_MAX = 1000
Opened = Callable[[int, list[tuple[int, Run]]], Awaitable[list[tuple[int, Run]]]]
_MEND = "bring it back from a version or a backup of the bucket; only then can this part of the topic be read"


class _Part:
    """Entries [start, end) of one object."""

    __slots__ = ("end", "firsts", "runs", "size_bytes", "start")

    def __init__(self, runs: list[tuple[int, Run]], size_bytes: int) -> None:
        self.runs, self.size_bytes = runs, size_bytes
        self.firsts = [first for first, _ in runs]
        self.start, self.end = runs[0][0], runs[-1][0] + runs[-1][1].count

    def read(self, first: int, last: int, max_bytes: int) -> list[tuple[int, Run]]:
        out: list[tuple[int, Run]] = []
        for at in range(bisect_right(self.firsts, first) - 1, len(self.runs)):
            start, run = self.runs[at]
            if start > last or max_bytes <= 0:
                break
            piece = run.cut(max(first - start, 0), min(run.count, last - start + 1))
            out.append((max(first, start), piece))
            max_bytes -= piece.size_bytes
        return out


async def as_stored(ledger: int, runs: list[tuple[int, Run]]) -> list[tuple[int, Run]]:
    return runs


class ColdCounts:
    """Counts the reads of one topic since the start of the broker. Times: milliseconds until an index, or a range of
    entries, was there.
    """

    __slots__ = ("data_ms", "errors", "index_ms", "read_bytes")

    def __init__(self) -> None:
        self.errors = self.read_bytes = 0
        self.index_ms, self.data_ms = Recent(), Recent()


class ColdReader:
    """`reads`, `read_bytes`, `hits` (of what was read before), `errors`: since its start."""

    def __init__(self, stores: Stores, settings: TieredSettings, tasks: TaskSet, opened: Opened = as_stored) -> None:
        """opened: (ledger, runs) -> the same runs, open, where they are sealed."""
        self.reads = self.read_bytes = self.hits = self.errors = 0
        self.topics: dict[str, ColdCounts] = {}
        """The counts of the first `_TOPICS_MAX` topics that were read; "": of the others."""
        self._stores, self._settings, self._tasks, self._opened = stores, settings, tasks, opened
        self._sealed: dict[str, bool] = {}  # of the objects whose indexes are here: whether their entries are
        self._indexes: OrderedDict[str, Index] = OrderedDict()
        self._parts: OrderedDict[tuple[str, int], _Part] = OrderedDict()  # the least recently read first
        self._of: dict[str, list[_Part]] = {}
        self._held_bytes = 0
        self._flying: dict[tuple[str, int], asyncio.Task[Any]] = {}
        self._ends: deque[tuple[str, int]] = deque(maxlen=_ENDS_KEPT)  # where the last reads ended
        self._fetches = asyncio.Semaphore(max(1, settings.cache_bytes // settings.read_bytes))
        self._silent: dict[
            str, tuple[int, float]
        ] = {}  # store -> (failures one behind another, until when it is not asked)

    async def read(
        self, topic: str, ledger: int, record: OffloadRecord, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, Run]]:
        index = await self._index(topic, ledger, record)
        if not 0 <= first <= last < index.entries:
            raise CorruptData(
                f"{self._place(topic, ledger, record)} holds {index.entries} entries, and {first} to {last} are asked "
                f"for; {_MEND}"
            )
        place = (record.attempt, first)
        sequential = place in self._ends
        if sequential:
            self._ends.remove(place)
        part = self._held(record.attempt, first)
        if part is None:
            part = await self._fetched(topic, ledger, record, index, first, sequential)
        else:
            self.hits += 1
        found = part.read(first, last, max_bytes)
        end = found[-1][0] + found[-1][1].count
        self._ends.append((record.attempt, end))
        if sequential:
            self._ahead(topic, ledger, record, index, part.end)
        return found

    async def place(
        self, topic: str, ledger: int, record: OffloadRecord, first: int, last: int
    ) -> tuple[str, int, int, int]:
        """For who reads the object without this broker: (URL, first entry, start, stop): bytes that hold the entries
        from `first` to `last`, by whole blocks.

        URL: signed, for an hour; of a local folder, a file's. "": the store has none, or what it has is sealed, and
        only brokers have the keys. Raises as `read`.
        """
        if record.seal_form:  # whatever the object says of itself
            return "", first, 0, 0
        index = await self._index(topic, ledger, record)
        rows = index.rows()
        if record.attempt not in self._sealed:
            self._sealed[record.attempt] = is_sealed(
                await self._range(topic, ledger, record, rows[0][1], rows[0][1] + HEAD_BYTES)
            )
        if self._sealed[record.attempt]:
            return "", first, 0, 0
        at = bisect_right(rows, (first, 1 << 63)) - 1
        behind = bisect_right(rows, (last, 1 << 63))
        signed = getattr(self._stores.get(record.store), "signed", None)
        url = "" if signed is None else await signed(ledger_key(record.holder, topic, ledger, record.attempt))
        return url, rows[at][0], rows[at][1], rows[behind][1] if behind < len(rows) else index.end

    # -- ranges -------------------------------------------------------------------------------------------------------

    def _held(self, attempt: str, entry: int) -> _Part | None:
        for part in self._of.get(attempt, ()):
            if part.start <= entry < part.end:
                self._parts.move_to_end((attempt, part.start))
                return part
        return None

    async def _fetched(
        self, topic: str, ledger: int, record: OffloadRecord, index: Index, entry: int, sequential: bool
    ) -> _Part:
        """Who reads on gets a long range; who looks at one place, a short one."""
        size = self._settings.read_bytes if sequential else self._settings.index_bytes
        first, _, _ = index.range_of(entry, size)
        while True:
            part: _Part = await self._once(
                (record.attempt, first), self._fetch(topic, ledger, record, index, entry, size), topic
            )
            if part.start <= entry < part.end:
                return part

    def _ahead(self, topic: str, ledger: int, record: OffloadRecord, index: Index, entry: int) -> None:
        """The ranges from `entry` on, where one begins."""
        size = self._settings.read_bytes
        crowded = (_RANGES_AHEAD + 2) * size * len(self._of) > self._settings.cache_bytes
        for _ in range(1 if crowded else _RANGES_AHEAD):
            if entry >= index.entries:
                return
            held = self._held(record.attempt, entry)
            if held is not None:
                entry = held.end
                continue
            if (record.attempt, entry) not in self._flying:
                work = self._fetch(topic, ledger, record, index, entry, size)
                self._tasks.spawn(self._quietly(self._once((record.attempt, entry), work, topic)))
            entry = index.behind(entry, size)

    @staticmethod
    async def _quietly(work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except HeliographError:
            pass  # the reader will ask for the same, and hear it

    async def _fetch(
        self, topic: str, ledger: int, record: OffloadRecord, index: Index, entry: int, size: int
    ) -> _Part:
        first, start, stop = index.range_of(entry, size)
        began = asyncio.get_running_loop().time()
        try:
            data = await self._range(topic, ledger, record, start, stop)
            runs = cut_blocks(data, ledger, first)
            for at, run in runs:
                check_form(ledger, at, run, record.seal_form)
            part = _Part(await self._opened(ledger, runs), stop - start)
            if part.end > index.entries or (stop == index.end and part.end != index.entries):
                raise CorruptData(f"its blocks end at entry {part.end}, and it holds {index.entries}")
        except NoSuchObject as error:
            raise NoSuchObject(f"{self._place(topic, ledger, record)} is not there; {_MEND}") from error
        except CorruptData as error:
            raise CorruptData(
                f"{self._place(topic, ledger, record)} is damaged between bytes {start} and {stop}: {error}; {_MEND}"
            ) from error
        self.reads += 1
        self.read_bytes += stop - start
        counts = self._counts(topic)
        counts.read_bytes += stop - start
        counts.data_ms.add((asyncio.get_running_loop().time() - began) * 1000)
        self._keep(record.attempt, part)
        return part

    async def _range(self, topic: str, ledger: int, record: OffloadRecord, start: int, stop: int) -> memoryview:
        """A store that does not answer is asked once in a while only, and never waited for by many: other topics' reads
        want their turn.
        """
        store, loop = self._stores.get(record.store), asyncio.get_running_loop()
        failures = self._failures_of(store.url, loop.time())
        if failures:
            self._silent[store.url] = failures, loop.time() + self._settings.timeout_s
            return await self._asked(
                store, ledger_key(record.holder, topic, ledger, record.attempt), start, stop, failures
            )
        async with self._fetches:
            self._failures_of(store.url, loop.time())  # it may have gone while this waited
            return await self._asked(store, ledger_key(record.holder, topic, ledger, record.attempt), start, stop, 0)

    def _failures_of(self, url: str, now: float) -> int:
        """How often the store has not answered, one behind another. Raises StoreUnavailable while it is not to be
        asked.
        """
        failures, until = self._silent.get(url, (0, 0.0))
        if now < until:
            raise StoreUnavailable(f"{url} has not answered {failures} times; it is asked again in {until - now:.1f} s")
        return failures

    async def _asked(self, store: ObjectStore, key: str, start: int, stop: int, failures: int) -> memoryview:
        """failures: known when this was begun; of several that fail together one counts."""
        try:
            data = await store.read(key, start, stop)
        except StoreUnavailable:
            if failures >= self._silent.get(store.url, (0, 0.0))[0]:
                hold_s = min(_HOLD_S * (2 << min(failures, 16)), self._settings.timeout_s)
                self._silent[store.url] = failures + 1, asyncio.get_running_loop().time() + hold_s
            raise
        except HeliographError:  # it has answered: the others may ask it
            self._silent.pop(store.url, None)
            raise
        self._silent.pop(store.url, None)
        return data

    def _keep(self, attempt: str, part: _Part) -> None:
        former = self._parts.get((attempt, part.start))
        if former is not None:
            self._drop((attempt, part.start))
        self._parts[attempt, part.start] = part
        self._of.setdefault(attempt, []).append(part)
        self._held_bytes += part.size_bytes
        while self._held_bytes > self._settings.cache_bytes and len(self._parts) > 1:
            self._drop(next(iter(self._parts)))

    def _drop(self, key: tuple[str, int]) -> None:
        part = self._parts.pop(key)
        self._held_bytes -= part.size_bytes
        rest = self._of[key[0]]
        rest.remove(part)
        if not rest:
            del self._of[key[0]]

    # -- indexes ------------------------------------------------------------------------------------------------------

    async def _index(self, topic: str, ledger: int, record: OffloadRecord) -> Index:
        found = self._indexes.get(record.attempt)
        if found is not None:
            self._indexes.move_to_end(record.attempt)
            return found
        return await self._once((record.attempt, -1), self._read_index(topic, ledger, record), topic)

    async def _read_index(self, topic: str, ledger: int, record: OffloadRecord) -> Index:
        began = asyncio.get_running_loop().time()
        try:
            tail = await self._range(topic, ledger, record, record.size_bytes - record.index_bytes, record.size_bytes)
            index = Index.decode(tail, record.size_bytes)
            if (index.ledger, index.topic) != (ledger, topic):
                raise CorruptData(f"it is ledger {index.ledger} of {index.topic}")
        except NoSuchObject as error:
            raise NoSuchObject(f"{self._place(topic, ledger, record)} is not there; {_MEND}") from error
        except CorruptData as error:
            raise CorruptData(f"{self._place(topic, ledger, record)} is damaged: {error}; {_MEND}") from error
        self._counts(topic).index_ms.add((asyncio.get_running_loop().time() - began) * 1000)
        self._indexes[record.attempt] = index
        while len(self._indexes) > self._settings.indexes_max:
            self._sealed.pop(self._indexes.popitem(last=False)[0], None)
        return index

    async def _once(self, key: tuple[str, int], work: Coroutine[Any, Any, T], topic: str) -> T:
        """What is on its way already is waited for; one that goes away stops nobody else."""
        task = self._flying.get(key)
        if task is None:
            task = self._flying[key] = self._tasks.spawn(self._settled(key, work, topic))
        else:
            work.close()
        error, value = await asyncio.shield(task)
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    async def _settled(
        self, key: tuple[str, int], work: Coroutine[Any, Any, T], topic: str
    ) -> tuple[HeliographError | None, T | None]:
        try:
            return None, await work
        except HeliographError as error:
            self.errors += 1
            self._counts(topic).errors += 1
            return error, None
        finally:
            self._flying.pop(key, None)

    def _counts(self, topic: str) -> ColdCounts:
        if topic not in self.topics and len(self.topics) >= _TOPICS_MAX:
            topic = ""
        return self.topics.setdefault(topic, ColdCounts())

    def _place(self, topic: str, ledger: int, record: OffloadRecord) -> str:
        url = record.store or self._stores.own_url
        return f"ledger {ledger} of {topic}: object {ledger_key(record.holder, topic, ledger, record.attempt)} in {url}"
