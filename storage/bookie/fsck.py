"""Examination of a stopped bookie's directories: what they hold, and whether it is whole.

Is: a look that changes nothing. Isn't: repair (an empty bookie in its place is filled by re-replication), or for a bookie that runs: what it is just
writing looks like damage.
Invariants: every sentence in `problems` names a file or a ledger; a directory without problems starts without limbo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Disk
from heliograph.wire.bookie import HEAD, Kind
from heliograph.wire.run import peek_block, verify_block
from storage.bookie import entry_log
from storage.bookie.checkpoint import Checkpoint, load_checkpoint, load_cookie
from storage.bookie.entry_log import EntryLog
from storage.bookie.journal import replay
from storage.bookie.ledgers import LedgerTable
from storage.bookie.scrub import Block, verify

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
    logs: list[LogSummary] = field(default_factory=list)
    ledgers: list[LedgerSummary] = field(default_factory=list)
    segments: int = 0
    journal_records: int = 0
    """That a start would replay."""
    verified_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a start puts right by itself."""


def examine(journal: Disk, ledgers: Disk, *, verify_blocks: bool, progress: Progress = lambda _done, _all: None) -> Examination:
    """Blocking; raises OSError where a directory cannot be read at all."""
    return _Examiner(journal, ledgers).run(verify_blocks, progress)


class _Examiner:
    def __init__(self, journal: Disk, ledgers: Disk) -> None:
        self._journal, self._ledgers = journal, ledgers
        self._table = LedgerTable()
        self._tails: dict[int, list[tuple[int, int, int]]] = {}  # ledger -> (first, count, bytes), of the journal
        self.found = Examination()

    def run(self, verify_blocks: bool, progress: Progress) -> Examination:
        found = self.found
        salt = self._cookies()
        self._load_logs()
        if salt is not None:
            self._replay(salt)
        logs = [self._table.logs[number] for number in sorted(self._table.logs)]
        if verify_blocks:
            total = sum(log.block_bytes for log in logs)
            for log in logs:
                self._verify(log, lambda: progress(found.verified_bytes, total))
        for log in logs:
            blocks = sum(sum(1 for _ in log.runs(group)) for group in range(len(log.ledgers)))
            found.logs.append(LogSummary(log.number, len(log.ledgers), blocks, log.block_bytes, self._table.live_bytes(log.number)))
            log.close()
        found.ledgers = [self._summary(ledger) for ledger in self._table.ids()]
        return found

    def _problem(self, text: str) -> None:
        if len(self.found.problems) < _PROBLEMS_MAX:
            self.found.problems.append(text)
        elif len(self.found.problems) == _PROBLEMS_MAX:
            self.found.problems.append("there is more; only the first are listed")

    def _cookies(self) -> int | None:
        """The salt of the journal's checksums."""
        cookies: list[tuple[str, str, int]] = []
        for what, disk in (("journal", self._journal), ("ledgers", self._ledgers)):
            try:
                cookie = load_cookie(disk)
            except CorruptData as error:
                self._problem(f"the {what} directory's cookie cannot be read: {error}")
                continue
            if cookie is None:
                self._problem(f"the {what} directory has no cookie: it belongs to no bookie, or lost it")
            else:
                cookies.append(cookie)
        if len(cookies) == 2 and cookies[0] != cookies[1]:
            self._problem("the journal and the ledgers directory belong to different bookies, or to different lives of one")
        if cookies:
            self.found.instance, self.found.bookie, _ = cookies[0]
            return cookies[0][2]
        return None

    def _load_logs(self) -> None:
        found = self.found
        try:
            found.checkpoint = load_checkpoint(self._ledgers)
        except CorruptData as error:
            self._problem(f"the checkpoint cannot be read: {error}")
        self._table = LedgerTable(found.checkpoint.dead)
        files = [name for name in self._ledgers.names() if name.startswith("log-")]
        named = [entry_log.name_of(number) for number in found.checkpoint.logs]
        if files and not found.checkpoint.start and not found.problems:
            self._problem("there are entry logs, but the checkpoint is gone")
        strays = [name for name in files if name not in named]
        if strays and found.checkpoint.start:
            found.notes.append(f"{len(strays)} entry logs are of a flush or compaction that did not end; the next start removes them: {', '.join(strays[:5])}")
        for number in found.checkpoint.logs:
            try:
                self._table.install(entry_log.load(self._ledgers, number))
            except FileNotFoundError:
                self._problem(f"{entry_log.name_of(number)} is gone, and the checkpoint names it")
            except (CorruptData, OSError) as error:
                self._problem(f"{entry_log.name_of(number)}: the index cannot be read: {error}")

    def _replay(self, salt: int) -> None:
        found, point = self.found, self.found.checkpoint
        read = replay(self._journal, salt=salt, flushed_through=point.flushed_through, forks=point.forks)
        found.segments, found.journal_records = len(read.used) + len(read.free), len(read.records)
        if read.corrupt:
            self._problem(read.corrupt)
        for record in read.records:
            at = 0
            while at < len(record.frames):
                size, _, kind, _, ledger, _, lac, _ = HEAD.unpack_from(record.frames, at)
                if size < HEAD.size:
                    self._problem(f"journal record {record.sequence}: a frame of a wrong shape")
                    break
                self._frame(record.sequence, kind, ledger, lac, record.frames[at + HEAD.size : at + size])
                at += size

    def _frame(self, sequence: int, kind: int, ledger: int, lac: int, body: memoryview) -> None:
        if kind == Kind.FENCE:
            self._table.fence(ledger)
        elif kind == Kind.DELETE:
            self._table.delete(ledger)
        elif ledger not in self._table.dead:
            try:
                verify_block(body)
            except CorruptData as error:
                self._problem(f"journal record {sequence}, ledger {ledger}: {error}")
                return
            _, first, count = peek_block(body)
            self._table.stored(ledger, first + count - 1, lac)
            self._tails.setdefault(ledger, []).append((first, count, len(body)))

    def _verify(self, log: EntryLog, step: Callable[[], None]) -> None:
        """Of dead ledgers too: that costs nothing and says something about the disk, but is no problem."""
        batch: list[Block] = []
        size = 0
        for group, ledger in enumerate(log.ledgers):
            for offset, block_bytes, first, count in log.runs(group):
                batch.append((offset, block_bytes, ledger, first, count))
                size += block_bytes
                if size >= _JOB_BYTES:
                    self._check(log, batch)
                    batch, size = [], 0
                    step()
        if batch:
            self._check(log, batch)
        step()

    def _check(self, log: EntryLog, batch: list[Block]) -> None:
        self.found.verified_bytes += sum(block[1] for block in batch)
        for number, ledger, first, text in verify(self._ledgers, log, batch):
            sentence = f"{entry_log.name_of(number)}, ledger {ledger}, block of entry {first}: {text}"
            if ledger in self._table.last:
                self._problem(sentence)
            else:
                self.found.notes.append(f"{sentence} (the ledger was deleted)")

    def _summary(self, ledger: int) -> LedgerSummary:
        logs = [log for _, log in sorted(self._table.logs.items()) if log.group_of(ledger) >= 0]
        runs = list(self._tails.get(ledger, ()))
        for log in logs:
            runs += [(first, count, size) for _, size, first, count in log.runs(log.group_of(ledger))]
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
            self._table.lac.get(ledger, -1),
            ledger in self._table.fenced,
            tuple(log.number for log in logs),
            ledger in self._tails,
        )
