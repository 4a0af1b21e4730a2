"""LedgerTable: what a bookie knows of the ledgers of one directory, in memory.

Is: per ledger the last entry, LAC, and fence; which entry logs hold some of it; which ledgers are dead; how much of
each log is still wanted.
Isn't: blocks that are in no log yet (`storage.bookie.entry_log.write_cache`), or I/O.
Invariants: a dead ledger is held no more and never again; a log counts as empty only when nothing in it is wanted, a
fence included; nothing is kept per entry. Logs have an age: what the younger one holds of an entry is what was stored
last. A log that compaction wrote is as old as the youngest of those it was made of, and leaves out what a younger one
has.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence

from storage.bookie.entry_log.deleted_ledgers import DeadLedgers
from storage.bookie.entry_log.entry_log import EntryLog


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
        self._logs_of: dict[int, list[int]] = {}  # ledger -> its logs, ascending
        self._marks_of: dict[int, list[int]] = {}  # ledger whose blocks are not wanted -> logs that hold its fence

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
        for number in self._logs_of.pop(ledger, ()):
            self._live[number] -= 1
            self._live_bytes[number] -= self.logs[number].bytes_of(ledger)
        for number in self._marks_of.pop(ledger, ()):
            self._live[number] -= 1
        return True

    def forget(self, ledger: int) -> None:
        """Its blocks are not wanted here. It may come again, and its fence stays; until compaction has written its logs
        anew, a start finds it again.
        """
        fenced = ledger in self.fenced
        self.mixed.pop(ledger, None)
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

    def load(self, log: EntryLog) -> None:
        """At the start: the next one by age."""
        for group, ledger in enumerate(log.ledgers):
            if ledger not in self.dead and log.first_entry(group) <= self.last.get(ledger, -1):
                self.mixed[ledger] = None
        self.install(log)

    def install(self, log: EntryLog, made_of: Sequence[int] = ()) -> None:
        """From now on its blocks are found in it. It is the youngest, or as old as the youngest of those that it was
        made of.
        """
        self.logs[log.number] = log
        self._age[log.number] = max(
            (self._age[number] for number in made_of), default=max(self._age.values(), default=-1) + 1
        )
        live = size = 0
        for group, ledger in enumerate(log.ledgers):
            if ledger in self.dead:
                continue
            live += 1
            size += log.group_bytes(group)
            insort(self._logs_of.setdefault(ledger, []), log.number, key=self._age.__getitem__)
            self._known(ledger, log.last_entry(group), log.lacs[group])
            self.lac.setdefault(ledger, -1)
            if log.fenced[group]:
                self.fenced[ledger] = None
        self._live[log.number], self._live_bytes[log.number] = live, size

    def uninstall(self, number: int) -> EntryLog:
        """Its blocks are not wanted any more, or lie in another log too."""
        log = self.logs.pop(number)
        del self._live[number], self._live_bytes[number], self._age[number]
        for ledger in log.ledgers:
            for places in (self._logs_of, self._marks_of):
                logs = places.get(ledger, [])
                if number in logs:
                    logs.remove(number)
        return log

    def find(self, ledger: int, entry: int) -> tuple[EntryLog, int, int, int] | None:
        """(log, offset, size, entry behind it) of the block that holds what was stored last of `entry`."""
        for log in self.logs_of(ledger):
            run = log.find(ledger, entry)
            if run is not None:
                return log, *run
        return None

    def logs_of(self, ledger: int) -> Iterator[EntryLog]:
        """Those whose blocks of the ledger are wanted, the youngest first."""
        return (self.logs[number] for number in reversed(self._logs_of.get(ledger, ())))

    def empty_logs(self) -> list[int]:
        """Logs of which nothing is wanted."""
        return [number for number in self.logs if self.is_empty(number)]

    def is_empty(self, number: int) -> bool:
        return not self._live[number]

    def live_bytes(self, number: int) -> int:
        """The bytes of the blocks of log `number` that are still wanted."""
        return self._live_bytes[number]
