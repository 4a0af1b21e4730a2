"""Examination of a stopped bookie's directories: what they hold, and whether it is whole.

Is: a look that changes nothing. Isn't: repair (an empty bookie in its place is filled by re-replication), or for a
bookie that runs: what it is just writing looks like damage.
Invariants: every sentence in `problems` names a file or a ledger; a directory without problems starts without limbo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from heliograph.model.errors import CorruptData
from heliograph.model.ledger_homes import home_of
from heliograph.runtime.disk import Disk
from heliograph.wire.block import peek_block, verify_block
from heliograph.wire.bookie_frames import HEAD, Kind
from storage.bookie.directories.cookie import JOURNAL, LEDGER, Cookie, Where, load_cookie, load_dropped
from storage.bookie.entry_log import entry_log
from storage.bookie.entry_log.deleted_ledgers import DeadLedgers
from storage.bookie.entry_log.entry_log import EntryLog
from storage.bookie.entry_log.ledger_table import LedgerTable
from storage.bookie.entry_log.log_index import IndexPage
from storage.bookie.entry_log.open_logs import OpenLogs
from storage.bookie.entry_log.scrub import Block, verify
from storage.bookie.journal.checkpoint import Checkpoint, load_checkpoint
from storage.bookie.journal.journal import replay

_JOB_BYTES = 1 << 20
_PROBLEMS_MAX = 1000
Progress = Callable[[int, int], None]
"""(bytes verified, bytes of all)."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    number: int
    ledgers: int
    blocks: int
    size_bytes: int
    live_bytes: int
    directory: int = 0


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """ranges: entries held, as (first, last) pairs, both included."""

    ledger: int
    entries: int
    ranges: tuple[tuple[int, int], ...]
    size_bytes: int
    lac: int
    fenced: bool
    logs: tuple[int, ...]
    journal: bool
    """Some of it is in the journal only."""


@dataclass(slots=True)
class Examination:
    instance: str = ""
    bookie: str = ""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """The checkpoint of the first ledger directory; an empty one where it cannot be read."""
    dead: tuple[tuple[int, int], ...] = ()
    """The ids of deleted ledgers, of all ledger directories together, as (first, last), ascending and disjoint."""
    logs: list[LogSummary] = field(default_factory=list)
    ledgers: list[LedgerSummary] = field(default_factory=list)
    segments: int = 0
    journal_records: int = 0
    """That a start would replay."""
    verified_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a start puts right by itself."""


def examine(
    journals: Sequence[Disk],
    ledgers: Sequence[Disk],
    *,
    verify_blocks: bool,
    progress: Progress = lambda _done, _all: None,
) -> Examination:
    """Blocking; raises OSError where a directory cannot be read at all. In the order that the bookie's settings
    have.
    """
    return _Examiner(journals, ledgers).run(verify_blocks, progress)


class _Dir:
    """Holds what was read of one ledger directory: its checkpoint, and the table of its ledgers."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk, self.name = disk, name
        self.point = Checkpoint()
        self.table = LedgerTable()
        self.indexes: dict[int, IndexPage] = {}

    def logs(self) -> list[EntryLog]:
        return [self.table.logs[number] for number in sorted(self.table.logs)]


class _Examiner:
    def __init__(self, journals: Sequence[Disk], ledgers: Sequence[Disk]) -> None:
        self._journals = list(journals)
        self._dirs = [
            _Dir(disk, f" of ledger directory {at + 1}" if len(ledgers) > 1 else "") for at, disk in enumerate(ledgers)
        ]
        self._dropped: dict[Where, str] = {}
        self._dead = DeadLedgers()
        self._tails: dict[int, list[tuple[int, int, int]]] = {}  # ledger -> (first, count, bytes), of the journal
        self.found = Examination()

    def run(self, verify_blocks: bool, progress: Progress) -> Examination:
        found = self.found
        salt = self._cookies()
        self._load_logs()
        if salt is not None:
            for at, journal in enumerate(self._journals):
                self._replay(journal, self._dirs[at :: len(self._journals)], salt)
        if verify_blocks:
            total = sum(log.block_bytes for one in self._dirs for log in one.logs())
            for one in self._dirs:
                for log in one.logs():
                    self._verify(one, log, lambda: progress(found.verified_bytes, total))
        for at, one in enumerate(self._dirs):
            for log in one.logs():
                index = one.indexes[log.number]
                found.logs.append(
                    LogSummary(
                        log.number,
                        len(index.ledgers),
                        index.blocks,
                        log.block_bytes,
                        one.table.live_bytes(log.number),
                        at,
                    )
                )
                log.close()
        found.ledgers = sorted(
            (self._summary(one, ledger) for one in self._dirs for ledger in one.table.ids()),
            key=lambda summary: summary.ledger,
        )
        return found

    def _problem(self, text: str) -> None:
        if len(self.found.problems) < _PROBLEMS_MAX:
            self.found.problems.append(text)
        elif len(self.found.problems) == _PROBLEMS_MAX:
            self.found.problems.append("there is more; only the first are listed")

    def _cookies(self) -> int | None:
        """The salt of the journals' checksums."""
        cookies: list[Cookie] = []
        places: list[tuple[Where, Disk]] = [((JOURNAL, at), disk) for at, disk in enumerate(self._journals)]
        places += [((LEDGER, at), one.disk) for at, one in enumerate(self._dirs)]
        shape = len(self._journals), len(self._dirs)
        for where, disk in places:
            what = f"{'journal' if where[0] == JOURNAL else 'ledgers'} directory" + (
                f" {where[1] + 1}" if shape != (1, 1) else ""
            )
            try:
                cookie = load_cookie(disk)
                self._dropped |= load_dropped(disk)
            except CorruptData as error:
                self._problem(f"the {what}'s cookie cannot be read: {error}")
                continue
            if cookie is None:
                self._problem(f"the {what} has no cookie: it belongs to no bookie, or lost it")
                continue
            cookies.append(cookie)
            if (cookie.journals, cookie.ledgers) != shape:
                self._problem(
                    f"the bookie has {cookie.journals} journal and {cookie.ledgers} ledger directories; give all of "
                    "them, in their order"
                )
            elif cookie.where not in (None, where):
                self._problem(f"the {what} is in the place of another one; give them in their order")
        if len({(cookie.instance, cookie.bookie, cookie.salt) for cookie in cookies}) > 1:
            self._problem("the directories belong to different bookies, or to different lives of one")
        for where, reason in sorted(self._dropped.items()):
            self._problem(
                f"{where[0]} directory {where[1] + 1} was dropped, and what it held is said to be unknown: {reason}"
            )
        if cookies:
            self.found.instance, self.found.bookie = cookies[0].instance, cookies[0].bookie
            return cookies[0].salt
        return None

    def _load_logs(self) -> None:
        found = self.found
        for at, one in enumerate(self._dirs):
            try:
                one.point = load_checkpoint(one.disk)
            except CorruptData as error:
                self._problem(f"the checkpoint{one.name} cannot be read: {error}")
            if not at:
                found.checkpoint = one.point
        self._dead = DeadLedgers.union(pair for one in self._dirs for pair in one.point.dead)
        found.dead = self._dead.ranges()
        for one in self._dirs:
            self._load_dir(one)

    def _load_dir(self, one: _Dir) -> None:
        found = self.found
        one.table = LedgerTable(self._dead)
        files = [name for name in one.disk.names() if name.startswith("log-")]
        named = [entry_log.name_of(number) for number in one.point.logs]
        if files and not one.point.start and not found.problems:
            self._problem(f"there are entry logs, but the checkpoint{one.name} is gone")
        strays = [name for name in files if name not in named]
        if strays and one.point.start:
            found.notes.append(
                f"{len(strays)} entry logs are of a flush or compaction that did not end; the next start removes "
                f"them: {', '.join(strays[:5])}"
            )
        for number in one.point.logs:
            try:
                log, index = entry_log.load(one.disk, number)
                one.table.install(log, index)
                one.indexes[number] = index.all
            except FileNotFoundError:
                self._problem(f"{entry_log.name_of(number)}{one.name} is gone, and the checkpoint names it")
            except (CorruptData, OSError) as error:
                self._problem(f"{entry_log.name_of(number)}{one.name}: the index cannot be read: {error}")

    def _replay(self, journal: Disk, dirs: Sequence[_Dir], salt: int) -> None:
        found = self.found
        forks = tuple(dict.fromkeys(fork for one in dirs for fork in one.point.forks))
        read = replay(journal, salt=salt, flushed_through=min(one.point.flushed_through for one in dirs), forks=forks)
        found.segments += len(read.used) + len(read.free)
        found.journal_records += len(read.records)
        if read.corrupt:
            self._problem(read.corrupt)
        for record in read.records:
            at = 0
            while at < len(record.frames):
                size, _, kind, _, ledger, _, lac, _ = HEAD.unpack_from(record.frames, at)
                if size < HEAD.size:
                    self._problem(f"journal record {record.sequence}: a frame of a wrong shape")
                    break
                one = self._dirs[home_of(ledger, len(self._dirs))]
                if one in dirs and record.sequence > one.point.flushed_through:
                    self._frame(
                        one.table, record.sequence, kind, ledger, lac, record.frames[at + HEAD.size : at + size]
                    )
                at += size

    def _frame(self, table: LedgerTable, sequence: int, kind: int, ledger: int, lac: int, body: memoryview) -> None:
        if kind == Kind.FENCE:
            table.fence(ledger)
        elif kind == Kind.DELETE:
            table.delete(ledger)
        elif ledger not in table.dead:
            try:
                verify_block(body)
            except CorruptData as error:
                self._problem(f"journal record {sequence}, ledger {ledger}: {error}")
                return
            _, first, count = peek_block(body)
            table.stored(ledger, first, first + count - 1, lac)
            self._tails.setdefault(ledger, []).append((first, count, len(body)))

    def _verify(self, one: _Dir, log: EntryLog, step: Callable[[], None]) -> None:
        """Verifies every block of a log. Those of dead ledgers too: that costs nothing and says something about the
        disk, but is no problem.
        """
        batch: list[Block] = []
        size = 0
        index = one.indexes[log.number]
        for group, ledger in enumerate(index.ledgers):
            for offset, block_bytes, first, count in index.runs(group):
                batch.append((offset, block_bytes, ledger, first, count))
                size += block_bytes
                if size >= _JOB_BYTES:
                    self._check(one, log, batch)
                    batch, size = [], 0
                    step()
        if batch:
            self._check(one, log, batch)
        step()

    def _check(self, one: _Dir, log: EntryLog, batch: list[Block]) -> None:
        self.found.verified_bytes += sum(block[1] for block in batch)
        for number, ledger, first, text in verify(OpenLogs(one.disk, 1), log, batch):
            sentence = f"{entry_log.name_of(number)}{one.name}, ledger {ledger}, block of entry {first}: {text}"
            if ledger in one.table.last:
                self._problem(sentence)
            else:
                self.found.notes.append(f"{sentence} (the ledger was deleted)")

    def _summary(self, one: _Dir, ledger: int) -> LedgerSummary:
        logs = {log.number: index for log in one.logs() if (index := one.indexes[log.number]).group_of(ledger) >= 0}
        runs = list(self._tails.get(ledger, ()))
        for index in logs.values():
            runs += [(first, count, size) for _, size, first, count in index.runs(index.group_of(ledger))]
        ranges: list[tuple[int, int]] = []
        for first, count, _ in sorted(runs):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], first + count - 1)
            else:
                ranges.append((first, first + count - 1))
        return LedgerSummary(
            ledger,
            sum(last - first + 1 for first, last in ranges),
            tuple(ranges),
            sum(size for _, _, size in runs),
            one.table.lac.get(ledger, -1),
            ledger in one.table.fenced,
            tuple(logs),
            ledger in self._tails,
        )
