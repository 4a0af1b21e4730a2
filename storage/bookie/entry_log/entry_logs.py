"""EntryLogs: the entry logs of one directory, and the checkpoint that names them.

Is: the steps log, checkpoint, table, removal, in this order, one change at a time. Isn't: when to flush or compact, or
what a failure means.
Invariants: the checkpoint names only logs that were synced before it, the oldest first (`LedgerTable`: age); a log is
removed only after a checkpoint without it is durable, and behind the reads that still use it; a file that no checkpoint
names is of a change that never came to its end, and goes at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Disk, is_transient
from storage.bookie.entry_log import entry_log
from storage.bookie.entry_log.deleted_ledgers import DeadLedgers
from storage.bookie.entry_log.entry_log import EntryLog, LedgerMark, NewLog
from storage.bookie.entry_log.index_pages import IndexPages
from storage.bookie.entry_log.ledger_table import LedgerTable
from storage.bookie.entry_log.open_logs import OpenLogs
from storage.bookie.entry_log.write_cache import CacheGeneration
from storage.bookie.journal.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from storage.bookie.journal.journal import Fork

Done = Callable[[BaseException | None], None]


class EntryLogs:
    """files: over the same directory; its disk's thread reads. behind(job): on that thread, behind all reads that
    were begun.
    """

    def __init__(
        self, disk: Disk, files: OpenLogs, pages: IndexPages, behind: Callable[[Callable[[], None]], None]
    ) -> None:
        self.disk, self.files, self.reads, self.pages = disk, files, files.disk, pages
        self._behind = behind
        self.point = Checkpoint()
        self.table = LedgerTable()
        self.busy = False
        """A change is on its way to the checkpoint."""
        self.held: dict[int, None] = {}
        """Logs that are being read to be written anew: they stay."""
        self.refilled: dict[tuple[int, int, int], None] = {}
        """(log, ledger, first entry) of bad blocks whose entries came from another copy since: not wanted any more."""
        self._next = 0
        self._closed = False
        self._written: NewLog | None = None
        """The last log that a flush wrote, until its checkpoint is durable."""

    def load_point(self) -> str:
        """Blocking; raises OSError that may pass. Returns why something is lost, or ""."""
        try:
            self.point = load_checkpoint(self.disk)
        except (CorruptData, OSError) as error:
            if is_transient(error):
                raise
            return f"the checkpoint cannot be read: {error}"
        self._next = self.point.next_log
        if not self.point.start and any(name.startswith("log-") for name in self.disk.names()):
            return "the checkpoint is gone"
        return ""

    def load_logs(self, dead: DeadLedgers) -> str:
        """Then this. `dead`: of all directories together. Blocking; raises OSError that may pass. Returns why something
        is lost, or "".
        """
        trouble = ""
        self.table = LedgerTable(dead)
        for number in self.point.logs:
            try:
                new = entry_log.load(self.disk, number)
            except (CorruptData, OSError) as error:
                if is_transient(error):
                    raise
                trouble = trouble or f"entry log {number} cannot be read: {error}"
            else:
                self.table.load(*new)
                self.pages.fill(new)
        return trouble

    def begin(self, start: int, flushed_through: int, forks: tuple[Fork, ...]) -> None:
        """Writes down that life number `start` begins behind what was replayed. Blocking; raises OSError."""
        self.point = replace(self.point, start=start, flushed_through=flushed_through, forks=forks)
        save_checkpoint(self.disk, self.point)
        for name in self.disk.names():  # of a change that did not get to its checkpoint
            if name.startswith("log-") and int(name.removeprefix("log-")) not in self.table.logs:
                self.disk.remove(name)

    def close(self) -> None:
        """What is under way ends without effect here; the next start finds it."""
        self._closed = True

    def close_files(self) -> None:
        self.files.close_all()

    def take_number(self) -> int:
        """Takes the number of the next log, which is never given again while the bookie runs."""
        self._next += 1
        return self._next - 1

    def flush(
        self, number: int, generation: CacheGeneration, through: int, marks: Sequence[LedgerMark], done: Done
    ) -> None:
        """Writes what the journal holds up to record `through` to log `number`; logs of which nothing is wanted go. May
        be tried again after a failure.
        """
        gone = [empty for empty in self.table.empty_logs() if empty not in self.held]

        def make() -> NewLog:
            # one that is whole may be named already, by a checkpoint of which it is not known whether it is durable
            if self._written is None or self._written[0].number != number:
                self._written = entry_log.write(self.disk, number, generation, marks)
            return self._written

        self._save(through, gone, number if marks else None, make if marks else _no_log, done)

    def wants(self, number: int, ledger: int, first: int) -> bool:
        """Whether the block in that log that begins with that entry is wanted."""
        return self.table.wants(ledger, number) and (number, ledger, first) not in self.refilled

    def drop_empty(self, done: Done) -> bool:
        """Removes logs of which nothing is wanted, without writing any: for a full disk. False where there are none."""
        gone = [empty for empty in self.table.empty_logs() if empty not in self.held]
        if gone:
            self._save(self.point.flushed_through, gone, None, _no_log, done)
        return bool(gone)

    def swap(self, sources: Sequence[int], new: NewLog, done: Done) -> None:
        """Puts that log, synced already, in the place of `sources`. May be tried again after a failure."""
        self._save(self.point.flushed_through, sources, new[0].number, lambda: new, done, made_of=sources)

    def _save(
        self,
        through: int,
        gone: Sequence[int],
        number: int | None,
        make: Callable[[], NewLog | None],
        done: Done,
        made_of: Sequence[int] = (),
    ) -> None:
        assert not self.busy
        self.busy = True
        disk = self.disk
        left = [one for one in self.table.by_age() if one not in gone]
        if number is not None and made_of:
            left.insert(sum(self.table.age(one) <= max(map(self.table.age, made_of)) for one in left), number)
        elif number is not None:
            left.append(number)
        new = replace(
            self.point,
            flushed_through=through,
            next_log=self._next,
            logs=tuple(left),
            dead=self.table.dead.ranges(),
            forks=tuple(fork for fork in self.point.forks if fork[2] > through),
        )

        def job() -> NewLog | None:
            made = make()
            save_checkpoint(disk, new)
            return made

        disk.submit(job, partial(self._saved, new, gone, made_of, done))

    def _saved(
        self,
        point: Checkpoint,
        gone: Sequence[int],
        made_of: Sequence[int],
        done: Done,
        made: NewLog | None,
        error: BaseException | None,
    ) -> None:
        if self._closed:
            return
        self.busy = False
        if error is None:
            self.point, self._written = point, None
            if made is not None:
                self.table.install(*made, made_of)
                self.pages.fill(made)
            if self.refilled:
                self.refilled = {place: None for place in self.refilled if place[0] not in gone}
            for number in gone:
                log = self.table.uninstall(number, made[1] if made and made_of else None)
                self.pages.drop(log)
                self._behind(partial(_remove, self.disk, self.files, log))
        done(error)


def _no_log() -> None:
    return None


def _remove(disk: Disk, files: OpenLogs, log: EntryLog) -> None:
    """Blocking; behind the reads that were asked for before. What cannot be removed is removed at the next start."""
    files.close(log)
    disk.remove(entry_log.name_of(log.number))
