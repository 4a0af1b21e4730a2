"""IndexPages: the pages of the indexes of one directory's entry logs that are in memory.

Is: at most so many bytes of them, the ones that were looked into last; how one is read again; and the look-up that
waits for it. Isn't: what is in a page (`log_index`), or the order in which reads have the disk (`disk_reads`).
Invariants: only the event loop changes it. A look-up says which page it needs next, gets it, and goes on where it was:
so it comes to its end however few are kept. What it finds stays in its file until it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer, is_transient
from storage.bookie.entry_log.block_reads import Need, Steps
from storage.bookie.entry_log.disk_reads import CatchUp
from storage.bookie.entry_log.entry_log import EntryLog, NewLog
from storage.bookie.entry_log.log_index import IndexPage
from storage.bookie.entry_log.open_logs import OpenLogs

T = TypeVar("T")


class IndexPages:
    """bytes_max: the bound. Attributes are for reading."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = self.loads = 0
        self._pages: dict[tuple[int, int], IndexPage] = {}  # (log, page), used longest ago first

    def get(self, log: EntryLog, at: int) -> IndexPage | None:
        place = log.number, at
        page = self._pages.pop(place, None)
        if page is not None:
            self._pages[place] = page
        return page

    def put(self, log: EntryLog, at: int, page: IndexPage) -> None:
        size = page.size_bytes
        if size > self.bytes_max:
            return
        self._drop((log.number, at))
        self._pages[log.number, at] = page
        self.held_bytes += size
        while self.held_bytes > self.bytes_max:
            self._drop(next(iter(self._pages)))

    def fill(self, new: NewLog) -> None:
        """With what was just written or loaded."""
        log, index = new
        for at, page in enumerate(log.pages_of(index)):
            self.put(log, at, page)

    def drop(self, log: EntryLog) -> None:
        """It is no log any more."""
        for at in range(log.pages):
            self._drop((log.number, at))

    def _drop(self, place: tuple[int, int]) -> None:
        page = self._pages.pop(place, None)
        if page is not None:
            self.held_bytes -= page.size_bytes


class LookUps:
    """The look-ups of one directory. Only the event loop calls it."""

    def __init__(self, pages: IndexPages, files: OpenLogs, reads: CatchUp) -> None:
        self.pages, self._files, self._reads = pages, files, reads

    def run(self, steps: Steps[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """done(what the look-up returns, error): at once where all that it needs is in memory; never after `close` of
        the reads.
        """
        self._go_on(steps, done, None, None)

    def _go_on(
        self,
        steps: Steps[T],
        done: Callable[[T | None, BaseException | None], None],
        page: IndexPage | None,
        hold: int | None,
    ) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            need = next(steps) if page is None else steps.send(page)
            while (page := self.pages.get(*need)) is not None:
                need = steps.send(page)
        except StopIteration as end:
            result = end.value
        else:
            hold = self._reads.hold() if hold is None else hold
            self._reads.load(partial(load_page, self._files, *need), partial(self._loaded, steps, done, need, hold))
            return
        if hold is None:
            done(result, error)
        else:
            self._reads.release(hold, partial(done, result, error))

    def _loaded(
        self,
        steps: Steps[T],
        done: Callable[[T | None, BaseException | None], None],
        need: Need,
        hold: int,
        page: IndexPage | None,
        error: BaseException | None,
    ) -> None:
        if page is None:
            steps.close()
            self._reads.release(hold, partial(done, None, error))
            return
        self.pages.loads += 1
        self.pages.put(*need, page)
        self._go_on(steps, done, page, hold)


def load_page(files: OpenLogs, log: EntryLog, at: int) -> IndexPage:
    """From the log's footer, or where that is bad of the blocks themselves. Blocking; raises OSError, CorruptData."""

    def read(offset: int, size_bytes: int) -> Buffer:
        return files.read(log, offset, size_bytes)

    try:
        return log.read_page(read, at)
    except (OSError, CorruptData) as error:
        if is_transient(error):
            raise
    return log.rebuild_page(read, at)
