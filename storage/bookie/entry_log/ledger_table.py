"""LedgerTable: what a bookie knows of the ledgers of one directory, in memory.

Is: per ledger the last entry, LAC, and fence; which entry logs hold some of it; which ledgers are dead; how much of
each log is still wanted.
Isn't: blocks that are in no log yet (`storage.bookie.entry_log.write_cache`), where in a log a block lies
(`log_index`), or I/O.
Invariants: a dead ledger is held no more and never again; a log counts as empty only when nothing in it is wanted, a
fence included; nothing is kept per entry. Logs have an age: what the younger one holds of an entry is what was stored
last. A log that compaction wrote is as old as the youngest of those it was made of, and leaves out what a younger one
has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from storage.bookie.entry_log.deleted_ledgers import DeadLedgers
from storage.bookie.entry_log.entry_log import EntryLog
from storage.bookie.entry_log.log_index import LogIndex
from storage.bookie.entry_log.write_cache import NEVER

_BYTES_BITS = 32
_BYTES = (1 << _BYTES_BITS) - 1


class LedgerTable:
    """Knows the ledgers of one directory. Its attributes are for reading only."""

    def __init__(self, dead: DeadLedgers | None = None) -> None:
        """dead: shared by the tables of all directories of a bookie."""
        self.last: dict[int, int] = {}
        """Every ledger held -> last entry; -1: only a fence."""
        self.lac: dict[int, int] = {}
        self.fenced: dict[int, None] = {}
        self.dead = DeadLedgers() if dead is None else dead
        """Ids of deleted ledgers: they are refused for ever."""
        self.logs: dict[int, EntryLog] = {}
        self.mixed: dict[int, None] = {}
        """Ledgers of which something came again: two logs, or a log and the write cache, may hold the same entry."""
        self._age: dict[int, int] = {}  # log -> the greater, the younger
        self._live: dict[int, int] = {}  # log -> ledgers in it that are not dead
        self._live_bytes: dict[int, int] = {}
        self._rows: dict[int, array[int]] = {}  # ledger -> (log, bytes of its blocks there), the oldest log first
        self._begins: dict[int, array[int]] = {}  # ledger -> its first entry in each of these
        self._marks_of: dict[int, list[int]] = {}  # ledger -> logs that hold only a mark of it, or only that is wanted

    def by_age(self) -> list[int]:
        """The logs, the oldest first."""
        return sorted(self.logs, key=self._age.__getitem__)

    def age(self, number: int) -> int:
        return self._age[number]

    def stored(self, ledger: int, first: int, last: int, lac: int) -> None:
        """Blocks from entry `first` up to `last` are held now."""
        if first <= self.last.get(ledger, -1):
            self.mixed[ledger] = None
        self._known(ledger, last, lac)

    def _known(self, ledger: int, last: int, lac: int) -> None:
        if last > self.last.get(ledger, -2):
            self.last[ledger] = last
        if lac > self.lac.get(ledger, -1):
            self.lac[ledger] = lac

    def fence(self, ledger: int) -> bool:
        """False where the ledger is dead: there is nothing to fence."""
        if ledger in self.dead:
            return False
        self.fenced[ledger] = None
        self.last.setdefault(ledger, -1)
        return True

    def delete(self, ledger: int) -> bool:
        """Makes it dead. False where nothing of it was held."""
        self.dead.add(ledger)
        if self.last.pop(ledger, None) is None:
            return False
        self.lac.pop(ledger, None)
        self.fenced.pop(ledger, None)
        self.mixed.pop(ledger, None)
        self._begins.pop(ledger, None)
        for row in self._rows.pop(ledger, ()):
            self._live[row >> _BYTES_BITS] -= 1
            self._live_bytes[row >> _BYTES_BITS] -= row & _BYTES
        for number in self._marks_of.pop(ledger, ()):
            self._live[number] -= 1
        return True

    def forget(self, ledger: int) -> None:
        """Its blocks are not wanted here. It may come again, and its fence stays; until compaction has written its logs
        anew, a start finds it again.
        """
        fenced = ledger in self.fenced
        self.mixed.pop(ledger, None)
        self._begins.pop(ledger, None)
        marks = self._marks_of.setdefault(ledger, [])
        for row in self._rows.pop(ledger, ()):
            self._live_bytes[row >> _BYTES_BITS] -= row & _BYTES
            marks.append(row >> _BYTES_BITS)
        if not fenced or not marks:
            for number in self._marks_of.pop(ledger):
                self._live[number] -= 1
        if fenced:
            self.last[ledger] = -1
        else:
            self.last.pop(ledger, None)
            self.lac.pop(ledger, None)

    def wants(self, ledger: int, number: int) -> bool:
        """Whether the blocks of a ledger in that log are wanted."""
        return any(row >> _BYTES_BITS == number for row in self._rows.get(ledger, ()))

    def wants_mark(self, ledger: int, number: int) -> bool:
        """Whether that log holds a mark of a ledger, and nothing else of it that is wanted."""
        return number in self._marks_of.get(ledger, ())

    def ledgers_in(self, number: int) -> list[int]:
        """Those of which that log holds something that is wanted, ascending. Looks at all ledgers."""
        return sorted(ledger for ledger in self.last if self.wants(ledger, number) or self.wants_mark(ledger, number))

    def ids(self, above: int = -1) -> list[int]:
        return sorted(known for known in self.last if known > above)

    # -- entry logs ---------------------------------------------------------------------------------------------------

    def load(self, log: EntryLog, index: LogIndex) -> None:
        """At the start: the next one by age."""
        for group, ledger in enumerate(index.all.ledgers):
            if ledger not in self.dead and index.all.first_entry(group) <= self.last.get(ledger, -1):
                self.mixed[ledger] = None
        self.install(log, index)

    def install(self, log: EntryLog, index: LogIndex, made_of: Sequence[int] = ()) -> None:
        """From now on its blocks are found in it. It is the youngest, or as old as the youngest of those that it was
        made of.
        """
        self.logs[log.number] = log
        self._age[log.number] = max(
            (self._age[number] for number in made_of), default=max(self._age.values(), default=-1) + 1
        )
        live = live_bytes = 0
        for group, ledger in enumerate(index.all.ledgers):
            if ledger in self.dead:
                continue
            live += 1
            if (size := min(index.all.group_bytes(group), _BYTES)) > 0:
                live_bytes += size
                self._insert(ledger, log.number, size, index.all.first_entry(group))
            else:
                self._marks_of.setdefault(ledger, []).append(log.number)
            self._known(ledger, index.all.last_entry(group), index.lacs[group])
            self.lac.setdefault(ledger, -1)
            if index.fenced[group]:
                self.fenced[ledger] = None
        self._live[log.number], self._live_bytes[log.number] = live, live_bytes

    def _insert(self, ledger: int, number: int, size: int, first: int) -> None:
        rows = self._rows.get(ledger)
        if rows is None:
            self._rows[ledger], self._begins[ledger] = array("Q", (number << _BYTES_BITS | size,)), array("q", (first,))
            return
        begins, age = self._begins[ledger], self._age
        at = bisect_right(rows, age[number], key=lambda row: age[row >> _BYTES_BITS])
        if (at and begins[at - 1] >= first) or (at < len(begins) and begins[at] <= first):
            self.mixed[ledger] = None  # what compaction put together lies on both sides of what it left alone
        rows.insert(at, number << _BYTES_BITS | size)
        begins.insert(at, first)

    def uninstall(self, number: int, made: LogIndex | None = None) -> EntryLog:
        """Its blocks are not wanted any more, or lie in another log too: `made` of it."""
        log = self.logs.pop(number)
        del self._live[number], self._live_bytes[number], self._age[number]
        for ledger in () if made is None else made.all.ledgers:
            rows = self._rows.get(ledger, ())
            for at, row in enumerate(rows):
                if row >> _BYTES_BITS == number:
                    del self._rows[ledger][at], self._begins[ledger][at]
                    break
            marks = self._marks_of.get(ledger, [])
            if number in marks:
                marks.remove(number)
        return log

    def log_at(self, ledger: int, entry: int) -> EntryLog | None:
        """The only one that may hold that entry, of a ledger that is not mixed."""
        at = bisect_right(self._begins.get(ledger, ()), entry) - 1
        return self.logs[self._rows[ledger][at] >> _BYTES_BITS] if at >= 0 else None

    def first_above(self, ledger: int, entry: int) -> int:
        """Where the next log begins that has something of the ledger behind that entry; NEVER where none does."""
        return min((first for first in self._begins.get(ledger, ()) if first > entry), default=NEVER)

    def logs_of(self, ledger: int) -> list[tuple[EntryLog, int]]:
        """Those whose blocks of the ledger are wanted, the youngest first, and its first entry in each."""
        rows = zip(self._rows.get(ledger, ()), self._begins.get(ledger, ()), strict=True)
        return [(self.logs[row >> _BYTES_BITS], first) for row, first in reversed(list(rows))]

    def empty_logs(self) -> list[int]:
        """Logs of which nothing is wanted."""
        return [number for number in self.logs if self.is_empty(number)]

    def is_empty(self, number: int) -> bool:
        return not self._live[number]

    def live_bytes(self, number: int) -> int:
        """The bytes of the blocks of log `number` that are still wanted."""
        return self._live_bytes[number]
