"""LedgerDir: one directory of entry logs, and what is on its way there.

Is: its share of the ledgers, from the write cache to an entry log, and its work in the background. Isn't: which ledgers
are its own (`home_of`), or what makes an add durable (its `JournalDir`).
Invariants: a generation goes from memory only once entry log and checkpoint are synced; after a failed write or sync
nothing is written here any more: the directory is dropped, and nothing is said to be absent that may have been in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from heliograph.runtime.disk import is_transient, none_now
from heliograph.wire.bookie_frames import Kind
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.directories.cookie import DirectoryPlace
from storage.bookie.directories.disk_space import on, why_full
from storage.bookie.directories.journal_dir import JournalDir
from storage.bookie.entry_log import scrub
from storage.bookie.entry_log.block_reads import Steps, block_at, longest_at
from storage.bookie.entry_log.compaction import EntryLogCompactor
from storage.bookie.entry_log.disk_reads import CatchUp
from storage.bookie.entry_log.entry_log import EntryLog, LedgerMark
from storage.bookie.entry_log.entry_logs import EntryLogs
from storage.bookie.entry_log.index_pages import IndexPages, LookUps
from storage.bookie.entry_log.ledger_table import LedgerTable
from storage.bookie.entry_log.open_logs import OpenLogs
from storage.bookie.entry_log.scrub import Scrubber
from storage.bookie.entry_log.write_cache import CacheGeneration

T = TypeVar("T")
_CONTROL_BYTES = 64
"""What a fence or a deletion counts in the write cache, so that they too are flushed in the end."""


class LedgerDir:
    """Attributes are for reading. changed: full or failed. room: a change of the entry logs is done."""

    def __init__(
        self,
        place: DirectoryPlace,
        journal: JournalDir,
        settings: BookieSettings,
        share: int,
        *,
        changed: Callable[[], None],
        room: Callable[[], None],
    ) -> None:
        """share: how many directories share what the settings bound."""
        self.place, self.journal, self._settings = place, journal, settings
        self._cache_bytes_max = max(1, settings.write_cache_bytes // share)
        self._changed, self._room = changed, room
        journal.serve(self)
        self.failure = ""
        """Why this directory was dropped, for good."""
        self.let_go = False
        """Whether the next start knows that, too: until it does, the journal keeps what is not in the logs here."""
        self.full = ""
        """Why nothing is stored here at the moment."""
        files = OpenLogs(place.background, max(1, settings.open_logs_max // share))
        self.catch_up = CatchUp(files, lambda: journal.syncing)
        self.pages = IndexPages(max(1, settings.index_bytes_max // share))
        self.logs = EntryLogs(place.disk, files, self.pages, self.catch_up.behind)
        self._look_ups = LookUps(self.pages, files, self.catch_up)
        self.compactor = EntryLogCompactor(self.logs, settings, failed=self.fail, changed=room)
        self.scrubber = Scrubber(self.logs, settings)
        self.active = CacheGeneration()
        self.flushing: CacheGeneration | None = None
        self.watched: dict[int, None] = {}
        """Ledgers that may be given up as surplus copies, and of which no entry came since they were put here; `store`
        takes one out.
        """
        self._flush_failed = self._closed = False
        self._write_log: Callable[[], None] = _nothing

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def table(self) -> LedgerTable:
        return self.logs.table

    @property
    def gone(self) -> str:
        """Why nothing is stored here any more: this directory or its journal has failed."""
        return self.failure or self.journal.failure

    @property
    def flushed_through(self) -> int:
        """The last record of the journal up to which everything is in the logs here."""
        return self.logs.point.flushed_through

    @property
    def cached_bytes(self) -> int:
        return self.active.size_bytes + (self.flushing.size_bytes if self.flushing else 0)

    @property
    def wants_flush(self) -> bool:
        return self.active.size_bytes >= self._cache_bytes_max

    @property
    def behind(self) -> bool:
        """Both generations have their bound, and more is taken."""
        return (
            (self.flushing is not None or self.logs.busy)
            and self.wants_flush
            and not (self.gone or self.full or self.journal.full)
        )

    @property
    def log_bytes(self) -> int:
        """The bytes of all blocks in entry logs, wanted or not."""
        return sum(log.block_bytes for log in self.table.logs.values())

    @property
    def entries(self) -> int:
        """In entry logs and in memory; also those that nobody wants any more, until compaction writes their logs
        anew.
        """
        return sum(log.entries for log in self.table.logs.values()) + sum(one.entries for one in self.generations())

    @property
    def live_bytes(self) -> int:
        """The bytes of those blocks in entry logs that are still wanted."""
        return sum(map(self.table.live_bytes, self.table.logs))

    def look_at_space(self) -> None:
        if not self.failure:
            try:
                self.full = why_full(self.place, self._settings, self.full)
            except OSError as error:
                if not is_transient(error):
                    self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Marks the directory as failed, for good; only the first error is kept. Nothing is written here any more."""
        if not self.failure:
            self.failure = f"the ledger directory failed{on(self.place)}: {error}"
            self._changed()

    def close(self) -> None:
        """What is under way ends without effect here; the next start finds it."""
        self._closed = True
        self.catch_up.close()
        self.logs.close()

    def generations(self) -> list[CacheGeneration]:
        """The blocks in memory: the generation that takes adds, then the one that is being flushed, if any."""
        return [self.active] if self.flushing is None else [self.active, self.flushing]

    # -- changes in memory --------------------------------------------------------------------------------------------

    def store(self, ledger: int, first: int, count: int, lac: int, block: memoryview) -> None:
        if self.watched:
            self.watched.pop(ledger, None)
        self.active.insert(ledger, first, count, block)
        self.table.stored(ledger, first, first + count - 1, lac)

    def change(self, kind: int, ledger: int) -> tuple[int, int]:
        """Carries out a fence or a deletion; returns (last entry, LAC) as they are now."""
        self.active.size_bytes += _CONTROL_BYTES
        if kind == Kind.FENCE:
            if self.table.fence(ledger):
                self.active.touched[ledger] = None
            return self.table.last.get(ledger, -1), self.table.lac.get(ledger, -1)
        if self.table.delete(ledger):
            self.active.drop(ledger)
        return -1, -1

    def forget(self, ledger: int) -> None:
        """Gives up what is held of a ledger, but its fence; it may come again."""
        self.table.forget(ledger)
        self.active.drop(ledger)
        if ledger in self.table.fenced:
            self.active.touched[ledger] = None

    def met_bad(self, log: EntryLog, ledger: int, offset: int) -> None:
        """A reader did, there: it is looked at again, and named if it is bad."""

        def found(run: tuple[int, int, int, int] | None, _error: BaseException | None) -> None:
            if run is not None:
                at, size, first, count = run
                self.scrubber.look_at(log, (at, size, ledger, first, count))

        if log.number in self.table.logs and not self.failure:
            self.look_up(block_at(log, ledger, offset), found)

    def look_up(self, steps: Steps[T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Looks into the indexes, as `LookUps.run` does."""
        self._look_ups.run(steps, done)

    def count_at(self, place: scrub.Spot, done: Callable[[int | None, BaseException | None], None]) -> None:
        """Entries of the longest block in that log that begins with that one; 0 where none does, or none is wanted."""
        number, ledger, first = place
        log = self.table.logs.get(number)
        if log is None or not self.logs.wants(number, ledger, first):
            done(0, None)
        else:
            self.look_up(longest_at(log, ledger, first), done)

    def refilled(self, place: scrub.Spot) -> None:
        """The entries of that bad block are durable here again."""
        self.logs.refilled[place] = None
        self.scrubber.bad.pop(place, None)
        if not any(bad[0] == place[0] for bad in self.scrubber.bad):
            self.compactor.rewrite(place[0])

    def know_lac(self, ledger: int, lac: int) -> None:
        if ledger in self.table.last and lac > self.table.lac.get(ledger, -1):
            self.table.lac[ledger] = lac
            self.active.touched[ledger] = None

    # -- entry logs ---------------------------------------------------------------------------------------------------

    def on_durable(self) -> None:
        """The journal calls it, behind each record: reads from disk may go on."""
        self.catch_up.on_durable()

    def tick(self, elapsed_s: float) -> None:
        """About once a second: tries again what a full disk stopped, and goes on with work in the background."""
        self.catch_up.tick()
        if self.failure or self._closed:
            return
        self.scrubber.tick(elapsed_s)
        if self.journal.journal is None:
            return
        if not self.gone:
            self.compactor.tick(elapsed_s)
        if self.logs.busy:
            return
        if self.full:
            self.logs.drop_empty(self._dropped)
        elif self._flush_failed:
            self._write_log()
        elif self.table.empty_logs() or ((self.journal.full or self.journal.failure) and self.active.size_bytes):
            self.flush()  # a full journal gives segments back for it, a failed one cannot be relied upon

    def flush(self) -> None:
        """Starts to write what is cached to an entry log, where that is possible and not under way."""
        self.journal.commit()
        if self.journal.journal is None or self.flushing is not None or self.logs.busy or self.failure or self._closed:
            return
        generation, self.flushing = self.active, self.active
        self.active = CacheGeneration()
        table, through = self.table, self.journal.last_sequence
        marks = [
            LedgerMark(one, table.lac.get(one, -1), one in table.fenced)
            for one in sorted(generation.touched)
            if one in table.last
        ]
        self._write_log = partial(self._start_flush, self.logs.take_number(), generation, through, marks)
        self._write_log()

    def _start_flush(self, number: int, generation: CacheGeneration, through: int, marks: Sequence[LedgerMark]) -> None:
        self._flush_failed = False
        self.logs.flush(number, generation, through, marks, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        if error is None:
            self.flushing, self._write_log = None, _nothing
            self.journal.recycle()
            self._room()
            return
        if is_transient(error):
            self._flush_failed = True  # the generation stays in memory and in the journal; `tick` tries again
        self._on_error(error, "entry log")

    def _dropped(self, error: BaseException | None) -> None:
        if error is None:
            self._room()
        else:
            self._on_error(error, "checkpoint")

    def _on_error(self, error: BaseException, what: str) -> None:
        if is_transient(error):
            self.full = none_now(error, f"another {what}", on(self.place))
            self._changed()
        else:
            self.fail(error)


def _nothing() -> None:
    pass
