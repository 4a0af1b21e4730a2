"""Scrubber: reads every block of the entry logs again, slowly, so that rot is found while other copies are whole.

Is: one round after another at a bounded rate, and the list of what is bad. Isn't: the way back from another copy
(`storage.bookie.maintenance.block_refill`).
Invariants: at most one read is under way; what is not wanted any more is not read; a finding stays until its ledger or
its log is gone, or it reads well again. Driven by `tick`: nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import is_transient
from heliograph.wire.block import peek_block, verify_block
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.entry_log import entry_log
from storage.bookie.entry_log.entry_log import EntryLog
from storage.bookie.entry_log.entry_logs import EntryLogs
from storage.bookie.entry_log.index_pages import load_page
from storage.bookie.entry_log.log_index import IndexPage
from storage.bookie.entry_log.open_logs import OpenLogs

_JOB_BYTES = 1 << 20
_FIRST_ROUND_S = 600.0
_BAD_MAX = 10_000
"""Findings kept; more are only counted."""

Block = tuple[int, int, int, int, int]
"""(offset, size, ledger, first entry, count)."""
Spot = tuple[int, int, int]
"""(log, ledger, first entry) of a block: what a finding is kept under."""
Finding = tuple[int, int, int, str]
"""(log, ledger, first entry, what is wrong); ledger and entry are -1 for what is bad but no block: the footer."""


class Scrubber:
    """One directory's. Attributes are for reading."""

    def __init__(self, logs: EntryLogs, settings: BookieSettings) -> None:
        self._logs, self._settings = logs, settings
        self.suspended = False
        self.rounds = self.checked_bytes = self.bad_blocks = 0
        self.bad: dict[Spot, str] = {}
        """Findings by block -> what is wrong there; at most `_BAD_MAX`."""
        self.on_bad: Callable[[], None] | None = None
        """Called when something was found that was not known to be bad."""
        self._now, self._next_at = 0.0, min(_FIRST_ROUND_S, settings.scrub_interval_s)
        self._todo: list[int] = []
        self._log: EntryLog | None = None
        self._page = 0
        """The next one of its index."""
        self._blocks: Iterator[Block] = iter(())
        self._held: Block | None = None
        self._budget = 0
        self._working = self._round = False

    @property
    def running(self) -> bool:
        return self._round

    def suspend(self) -> None:
        """Nothing is read until `resume`."""
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False

    def run(self) -> None:
        """Asks for a round; the next `tick` begins it, unless one is under way."""
        self._next_at = self._now

    def look_at(self, log: EntryLog, block: Block) -> None:
        """A reader met something bad there."""
        self._logs.reads.submit(
            partial(verify, self._logs.files, log, [block]), partial(self._found, log.number, [block])
        )

    def tick(self, elapsed_s: float) -> None:
        """To be called about once a second."""
        self._now += elapsed_s
        if not self._round and self._now >= self._next_at:
            self._round = True
            self._todo = sorted(self._logs.table.logs, reverse=True)
            self._forget()
        self._budget = int(self._settings.scrub_bytes_per_s * elapsed_s)
        self._go_on()

    def _forget(self) -> None:
        """Findings about what is gone."""
        table = self._logs.table
        self.bad = {
            place: text
            for place, text in self.bad.items()
            if place[0] in table.logs and (place[1] < 0 or place[1] in table.last)
        }

    def _go_on(self) -> None:
        if self._working or self.suspended or not self._round or self._budget <= 0:
            return
        table = self._logs.table
        while self._log is None or self._log.number not in table.logs:
            if not self._todo:
                self._round, self._log = False, None
                self.rounds += 1
                self._next_at = self._now + self._settings.scrub_interval_s
                return
            self._log = table.logs.get(self._todo.pop())
            if self._log is not None:
                self._page, self._blocks, self._held = 0, iter(()), None
        log, blocks = self._log, self._take()
        if not blocks and self._page < log.pages:
            self._working = True
            self._logs.reads.submit(partial(load_page, self._logs.files, log, self._page), partial(self._paged, log))
            return
        if not blocks:
            self._log = None
        self._budget -= sum(block[1] for block in blocks)
        self._working = True
        self._logs.reads.submit(
            partial(verify, self._logs.files, log, blocks), partial(self._verified, log.number, blocks)
        )

    def _paged(self, log: EntryLog, page: IndexPage | None, error: BaseException | None) -> None:
        self._working = False
        if page is None and error is not None and is_transient(error):
            return  # the next tick tries again
        self._page += 1
        self._blocks = iter(()) if page is None else self._wanted(log, page)  # without one, its footer is found bad
        self._go_on()

    def _wanted(self, log: EntryLog, page: IndexPage) -> Iterator[Block]:
        for group, ledger in enumerate(page.ledgers):
            if self._logs.table.wants(ledger, log.number):
                for offset, size, first, count in page.runs(group):
                    if (log.number, ledger, first) not in self._logs.refilled:
                        yield offset, size, ledger, first, count

    def _take(self) -> list[Block]:
        """Neighbours, of about one job; [] at the end of the log."""
        taken: list[Block] = []
        size = 0
        while size < min(_JOB_BYTES, self._budget):
            block, self._held = self._held or next(self._blocks, None), None
            if block is None:
                break
            if taken and block[0] != taken[-1][0] + taken[-1][1]:
                self._held = block
                break
            taken.append(block)
            size += block[1]
        return taken

    def _verified(
        self, number: int, blocks: Sequence[Block], findings: list[Finding] | None, error: BaseException | None
    ) -> None:
        self._working = False
        self.checked_bytes += sum(block[1] for block in blocks)
        self._found(number, blocks, findings, error)
        if error is None:
            self._go_on()

    def _found(
        self, number: int, blocks: Sequence[Block], findings: list[Finding] | None, error: BaseException | None
    ) -> None:
        if error is not None:  # what is known of them stays
            return
        before = [self.bad.pop((number, ledger, first), "") for _, _, ledger, first, _ in blocks]
        fresh = len(findings or ()) > sum(map(bool, before))
        for log, ledger, first, text in findings or ():
            if number not in self._logs.table.logs or (ledger >= 0 and not self._logs.wants(log, ledger, first)):
                continue  # it went, or was refilled, while it was read
            self.bad_blocks += 1
            if len(self.bad) < _BAD_MAX:
                self.bad[log, ledger, first] = text
        if fresh and self.bad and self.on_bad is not None:
            self.on_bad()


def verify(files: OpenLogs, log: EntryLog, blocks: Sequence[Block]) -> list[Finding]:
    """Reads neighbours in a log and says which are bad; without blocks, its footer. Blocking; raises OSError where
    nothing can be read just now.
    """
    number = log.number
    if not blocks:
        try:
            entry_log.load(files.disk, number)
        except (OSError, CorruptData) as error:
            if is_transient(error):
                raise
            return [(number, -1, -1, str(error))]
        return []
    start = blocks[0][0]
    try:
        view = memoryview(files.read(log, start, sum(block[1] for block in blocks)))
    except OSError as error:
        if is_transient(error):
            raise
        if len(blocks) == 1:
            return [(number, *blocks[0][2:4], f"cannot be read: {error}")]
        return [finding for block in blocks for finding in verify(files, log, [block])]
    findings: list[Finding] = []
    for offset, size, ledger, first, count in blocks:
        block = view[offset - start : offset - start + size]
        try:
            verify_block(block)
            if peek_block(block) != (ledger, first, count):
                raise CorruptData("a block of another place")
        except CorruptData as error:
            findings.append((number, ledger, first, str(error)))
    return findings
