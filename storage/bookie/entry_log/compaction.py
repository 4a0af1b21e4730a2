"""EntryLogCompactor: writes what is still wanted of mostly dead entry logs into a new one, and gives their space back.

Is: which logs are worth it, the copying at a bounded rate, suspend and resume. Isn't: the change itself
(`EntryLogs.swap`), or a thread.
Invariants: a source stays until a synced log with all that is wanted of it is named by a durable checkpoint; blocks are
verified before they are copied, and a log with a bad one stays as it is; a log's LAC and fence marks go along; of an
entry that was stored more than once nothing but what was stored last is written. Until the swap a crash leaves a file
that no checkpoint names.
Minor rounds take logs of which little lives, often; major ones take more, seldom. Driven by `tick`: nothing here reads
a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import is_transient
from heliograph.wire.block import peek_block, verify_block
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.entry_log.block_cutting import Covered, cut_block
from storage.bookie.entry_log.entry_log import EntryLog, LedgerMark, LogWriter, NewLog
from storage.bookie.entry_log.entry_logs import EntryLogs
from storage.bookie.entry_log.index_pages import load_page
from storage.bookie.entry_log.log_index import IndexPage
from storage.bookie.entry_log.open_logs import OpenLogs

_JOB_BYTES = 1 << 20
"""Copied at once; reads of clients come between."""
_SOURCES_MAX = 256
"""Of each a page of its index is in memory."""

_Block = tuple[EntryLog, int, int, int, int, int, int]
"""(log, offset, size, first entry, count, and of it what is copied: from entry, behind entry)."""
_Step = LedgerMark | _Block


class _Need(NamedTuple):
    """A page of that log's index."""

    log: EntryLog
    page: int


_Plan = Generator[_Step | _Need, IndexPage | None, None]


class _BadSource(Exception):
    """A log that cannot be copied."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class EntryLogCompactor:
    """One directory's. Attributes are for reading.

    failed: a write to the directory failed, for good. changed: there is room again, or a checkpoint is free again.
    """

    def __init__(
        self,
        logs: EntryLogs,
        settings: BookieSettings,
        *,
        failed: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:
        self._logs, self._settings, self._failed, self._changed = logs, settings, failed, changed
        self.suspended = False
        self.compacted_logs = self.reclaimed_bytes = 0
        self.bad: dict[int, str] = {}
        """Logs that could not be copied, and why; they stay."""
        self._now = self._minor_at = self._major_at = 0.0
        self._live_max = 0.0  # of the round that is on; 0: none
        self._sick: dict[int, None] = {}
        self._budget = 0
        self._sources: list[int] = []
        self._source_bytes = 0
        self._writer: LogWriter | None = None
        self._plan: _Plan = _nothing()
        self._page: IndexPage | None = None
        self._steps: list[_Step] = []  # on their way to the disk's thread
        self._steps_bytes = 0
        self._ready: NewLog | None = None
        self._working = False

    @property
    def running(self) -> bool:
        return bool(self._sources)

    def suspend(self) -> None:
        """Nothing is copied until `resume`; what is half done waits."""
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False

    def run(self, *, major: bool = False) -> None:
        """Asks for a round; the next `tick` begins it. major: with the higher bound on the share of bytes that live."""
        self._live_max = self._settings.major_live_max if major else self._settings.minor_live_max

    def rewrite(self, number: int) -> None:
        """Soon, whatever lives in it: something in that log's file is bad, and not needed any more."""
        self.bad.pop(number, None)
        self._sick[number] = None

    def tick(self, elapsed_s: float) -> None:
        """To be called about once a second."""
        self._now += elapsed_s
        settings = self._settings
        if self._now - self._major_at >= settings.major_interval_s:
            self._major_at = self._minor_at = self._now
            self._live_max = settings.major_live_max
        elif self._now - self._minor_at >= settings.minor_interval_s:
            self._minor_at = self._now
            self._live_max = max(self._live_max, settings.minor_live_max)
        self._budget = int(settings.compaction_bytes_per_s * elapsed_s)
        self._go_on()

    # -- one log after another ----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self.suspended or self._working:
            return
        if self._ready is not None:
            if not self._logs.busy:
                self._working = True
                self._logs.swap(self._sources, self._ready, self._swapped)
            return
        if not self._sources and not self._begin():
            return
        if self._budget > 0:
            self._copy()

    def _begin(self) -> bool:
        """Chooses logs. False where no round is on, or nothing is left to do in it."""
        table = self._logs.table
        if self._sick:
            number = next(iter(self._sick))
            del self._sick[number]
            if (
                number in table.logs and number not in self.bad and not table.is_empty(number)
            ):  # an empty one goes by itself, perhaps just now
                return self._take([number], table.ledgers_in(number))
        if not self._live_max:
            return False
        shares = sorted(
            (share, number)
            for number in table.logs
            if number not in self.bad and 0 <= (share := self._share(number)) < self._live_max
        )
        size = 0
        chosen: list[int] = []
        for _, number in shares:
            size += table.live_bytes(number)
            if chosen and (size > self._settings.compacted_log_bytes or len(chosen) >= _SOURCES_MAX):
                break
            chosen.append(number)
        if not chosen:
            self._live_max = 0.0
            return False
        return self._take(chosen)

    def _take(self, sources: list[int], known: Sequence[int] = ()) -> bool:
        """known: ledgers that a source holds something of, where its index may be bad."""
        table, self._sources = self._logs.table, sources
        self._logs.held = dict.fromkeys(self._sources)
        self._source_bytes = sum(table.logs[number].block_bytes for number in self._sources)
        self._writer = LogWriter(self._logs.reads, self._logs.take_number())
        self._plan = self._planned([table.logs[number] for number in self._sources], known)
        return True

    def _share(self, number: int) -> float:
        """How much of the blocks of a log is wanted; -1 for a log that goes by itself."""
        log, table = self._logs.table.logs[number], self._logs.table
        if table.is_empty(number):
            return -1.0
        return table.live_bytes(number) / log.block_bytes if log.block_bytes else 1.0

    def _planned(self, sources: Sequence[EntryLog], known: Sequence[int]) -> _Plan:
        """What the new log holds, in order; asked for piece by piece, so a ledger that dies meanwhile is left out."""
        table = self._logs.table
        at: list[tuple[int, int, int, int]] = []  # ledger, source, page, group: the next one of each source
        pages: dict[int, IndexPage] = {}
        for source, log in enumerate(sources):
            if log.pages:
                pages[source] = yield from self._whole_page(log, 0, known)
                at += [(pages[source].ledgers[0], source, 0, 0)] if pages[source].ledgers else []
        heapq.heapify(at)
        rest = list(reversed(known))
        while at or rest:
            ledger = min(at[0][0] if at else rest[-1], rest[-1] if rest else at[0][0])
            while rest and rest[-1] == ledger:
                rest.pop()
            here: list[tuple[EntryLog, IndexPage, int]] = []
            while at and at[0][0] == ledger:
                _, source, number, group = heapq.heappop(at)
                log, page = sources[source], pages[source]
                here.append((log, page, group))
                group += 1
                while group == len(page.ledgers) and number + 1 < log.pages:
                    number, group = number + 1, 0
                    page = pages[source] = yield from self._whole_page(log, number, known)
                if group < len(page.ledgers):
                    heapq.heappush(at, (page.ledgers[group], source, number, group))
            if ledger in table.dead:
                continue
            wanted = [one for one in here if table.wants(ledger, one[0].number)]
            if (
                not wanted
                and ledger not in table.fenced
                and not any(table.wants_mark(ledger, log.number) for log in sources)
            ):
                continue
            yield LedgerMark(ledger, table.lac.get(ledger, -1), ledger in table.fenced)
            if ledger in table.mixed:
                yield from self._newest(ledger, {log.number for log in sources})
                continue
            runs = sorted(
                (first, offset, size, count, log.number, log)
                for log, page, group in wanted
                for offset, size, first, count in page.runs(group)
            )
            for first, offset, size, count, _, log in runs:
                yield log, offset, size, first, count, first, first + count

    def _whole_page(
        self, log: EntryLog, number: int, known: Sequence[int]
    ) -> Generator[_Need, IndexPage | None, IndexPage]:
        page = yield _Need(log, number)
        assert page is not None
        if page.rebuilt and not known:
            raise _BadSource(log.number, f"entry log {log.number}: its index cannot be read")
        return page

    def _newest(self, ledger: int, sources: set[int]) -> _Plan:
        """Yields, for a ledger of which something came again, what the sources have and no younger log has, be that a
        source or not. (What is in memory will be in a younger one.)
        """
        covered = Covered()
        blocks: list[tuple[int, int, int, int, int, int, EntryLog]] = []
        for log, _ in self._logs.table.logs_of(ledger):
            page = yield _Need(log, log.page_of(ledger))
            assert page is not None
            for offset, size, first, count in reversed(list(page.runs(page.group_of(ledger)))):
                if (log.number, ledger, first) in self._logs.refilled:
                    continue
                for low, high in covered.take(first, count):
                    if log.number in sources:
                        blocks.append((low, high, offset, size, first, count, log))
        for low, high, offset, size, first, count, log in sorted(blocks, key=lambda block: block[0]):
            yield log, offset, size, first, count, low, high

    def _copy(self) -> None:
        assert self._writer is not None
        reads, files, ended = self._logs.reads, self._logs.files, False
        while self._steps_bytes < min(_JOB_BYTES, self._budget):
            try:
                step = self._plan.send(self._page)
            except StopIteration:
                ended = True
                break
            except _BadSource as error:
                self._abandon(error)
                return
            self._page = None
            if isinstance(step, _Need):
                self._working = True
                reads.submit(partial(load_page, files, *step), partial(self._paged, step.log))
                return
            self._steps.append(step)
            self._steps_bytes += 0 if isinstance(step, LedgerMark) else step[2]
        steps, self._steps = self._steps, []
        self._budget -= self._steps_bytes
        self._steps_bytes = 0
        self._working = True
        if steps:
            reads.submit(partial(_copy_steps, files, self._writer, steps), self._copied)
        else:
            assert ended
            reads.submit(self._writer.finish, self._finished)

    def _paged(self, log: EntryLog, page: IndexPage | None, error: BaseException | None) -> None:
        self._working = False
        if page is not None:
            self._page = page
            self._go_on()
        elif error is not None and is_transient(error):
            self._abandon(error)
        else:
            self._abandon(_BadSource(log.number, f"entry log {log.number}: {error}"))

    def _copied(self, _result: None, error: BaseException | None) -> None:
        self._working = False
        if error is None:
            self._go_on()
        else:
            self._abandon(error)

    def _finished(self, new: NewLog | None, error: BaseException | None) -> None:
        self._working = False
        if error is None:
            self._ready = new
            self._go_on()
        else:
            self._abandon(error)

    def _swapped(self, error: BaseException | None) -> None:
        self._working = False
        if error is None:
            assert self._ready is not None
            self.compacted_logs += len(self._sources)
            self.reclaimed_bytes += self._source_bytes - self._ready[0].block_bytes
            self._end()
        elif not is_transient(error):  # on a full disk the next tick tries again: which checkpoint is there is not sure
            self._failed(error)
        self._changed()

    def _abandon(self, error: BaseException) -> None:
        writer = self._writer
        assert writer is not None
        self._logs.reads.submit(writer.abandon, lambda _result, _error: None)
        if isinstance(error, _BadSource):
            self.bad[error.number] = str(error)
        elif is_transient(error):
            self._live_max = 0.0  # a later round
        else:
            self._failed(error)
        self._end()

    def _end(self) -> None:
        self._sources, self._writer, self._ready, self._steps, self._steps_bytes = [], None, None, [], 0
        self._plan, self._page = _nothing(), None
        self._logs.held = {}


def _nothing() -> _Plan:
    yield from ()


def _copy_steps(files: OpenLogs, writer: LogWriter, steps: Sequence[_Step]) -> None:
    """Copies the blocks, neighbours in one read, and verifies each. Blocking; raises _BadSource where a source cannot
    be read or is bad, OSError where the new log cannot be written, or nothing can be read just now.
    """
    index = 0
    while index < len(steps):
        step = steps[index]
        index += 1
        if isinstance(step, LedgerMark):
            writer.begin(step)
            continue
        log, offset, size = step[:3]
        blocks = [step]
        while (
            index < len(steps)
            and not isinstance(following := steps[index], LedgerMark)
            and following[:2] == (log, offset + size)
        ):
            blocks.append(following)
            size += following[2]
            index += 1
        try:
            view = memoryview(files.read(log, offset, size))
        except OSError as error:
            if is_transient(error):
                raise
            raise _BadSource(log.number, f"entry log {log.number} at {offset}: {error}") from error
        for _, at, block_bytes, first, count, low, high in blocks:
            block = view[at - offset : at - offset + block_bytes]
            try:
                verify_block(block)
            except CorruptData as error:
                raise _BadSource(log.number, f"entry log {log.number} at {at}: {error}") from error
            if peek_block(block) != (writer.ledger, first, count):
                raise _BadSource(log.number, f"entry log {log.number} at {at}: a block of another place")
            writer.put(low, high - low, block if (low, high) == (first, first + count) else cut_block(block, low, high))
