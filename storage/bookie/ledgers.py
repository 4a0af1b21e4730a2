"""LedgerTable: what a bookie knows of the ledgers of one directory, in memory.

Is: per ledger the last entry, LAC, and fence; which entry logs hold some of it; which ledgers are dead; how much of each log is still wanted.
Isn't: blocks that are in no log yet (`storage.bookie.write_cache`), or I/O.
Invariants: a dead ledger is held no more and never again; a log counts as empty only when nothing in it is wanted, a fence included; nothing is
kept per entry.
"""

from __future__ import annotations

from bisect import insort

from storage.bookie.dead import DeadLedgers
from storage.bookie.entry_log import EntryLog


class LedgerTable:
    """Attributes are for reading."""

    def __init__(self, dead: DeadLedgers | None = None) -> None:
        """dead: shared by the tables of all directories of a bookie."""
        self.last: dict[int, int] = {}
        """Every ledger held -> last entry; -1: only a fence."""
        self.lac: dict[int, int] = {}
        self.fenced: dict[int, None] = {}
        self.dead = DeadLedgers() if dead is None else dead
        """Deleted, for ever."""
        self.logs: dict[int, EntryLog] = {}
        self._live: dict[int, int] = {}  # log -> ledgers in it that are not dead
        self._live_bytes: dict[int, int] = {}
        self._logs_of: dict[int, list[int]] = {}  # ledger -> its logs, ascending
        self._marks_of: dict[int, list[int]] = {}  # ledger whose blocks are not wanted -> logs that hold its fence

    def stored(self, ledger: int, last: int, lac: int) -> None:
        """Blocks up to entry `last` are held now."""
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
        for number in self._logs_of.pop(ledger, ()):
            self._live[number] -= 1
            self._live_bytes[number] -= self.logs[number].bytes_of(ledger)
        for number in self._marks_of.pop(ledger, ()):
            self._live[number] -= 1
        return True

    def forget(self, ledger: int) -> None:
        """Its blocks are not wanted here. It may come again, and its fence stays; until compaction has written its logs anew, a start finds it again."""
        fenced = ledger in self.fenced
        for number in self._logs_of.pop(ledger, ()):
            self._live_bytes[number] -= self.logs[number].bytes_of(ledger)
            if fenced:
                self._marks_of.setdefault(ledger, []).append(number)
            else:
                self._live[number] -= 1
        if fenced:
            self.last[ledger] = -1
        else:
            self.last.pop(ledger, None)
            self.lac.pop(ledger, None)

    def wants(self, ledger: int, number: int) -> bool:
        """Whether the blocks of a ledger in that log are wanted."""
        return number in self._logs_of.get(ledger, ())

    def ids(self, above: int = -1) -> list[int]:
        return sorted(known for known in self.last if known > above)

    # -- entry logs ---------------------------------------------------------------------------------------------------

    def install(self, log: EntryLog) -> None:
        """From now on its blocks are found in it."""
        self.logs[log.number] = log
        live = size = 0
        for group, ledger in enumerate(log.ledgers):
            if ledger in self.dead:
                continue
            live += 1
            size += log.group_bytes(group)
            insort(self._logs_of.setdefault(ledger, []), log.number)
            self.stored(ledger, log.last_entry(group), log.lacs[group])
            self.lac.setdefault(ledger, -1)
            if log.fenced[group]:
                self.fenced[ledger] = None
        self._live[log.number], self._live_bytes[log.number] = live, size

    def uninstall(self, number: int) -> EntryLog:
        """Its blocks are not wanted any more, or lie in another log too."""
        log = self.logs.pop(number)
        del self._live[number], self._live_bytes[number]
        for ledger in log.ledgers:
            for places in (self._logs_of, self._marks_of):
                logs = places.get(ledger, [])
                if number in logs:
                    logs.remove(number)
        return log

    def find(self, ledger: int, entry: int) -> tuple[EntryLog, int, int, int] | None:
        """(log, offset, size, entry behind it) of a block that holds `entry`."""
        for number in reversed(self._logs_of.get(ledger, ())):
            log = self.logs[number]
            run = log.find(ledger, entry)
            if run is not None:
                return log, *run
        return None

    def empty_logs(self) -> list[int]:
        """Logs of which nothing is wanted."""
        return [number for number in self.logs if self.is_empty(number)]

    def is_empty(self, number: int) -> bool:
        return not self._live[number]

    def live_bytes(self, number: int) -> int:
        """Of the blocks of a log that are still wanted."""
        return self._live_bytes[number]

