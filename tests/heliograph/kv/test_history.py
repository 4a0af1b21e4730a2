"""Whoever knew an index of a history knows whether what is there now goes on from it."""

from __future__ import annotations

import random

import pytest

from heliograph.kv import history
from heliograph.kv.history import HISTORY, LEADERSHIPS_MAX, TableHistory
from heliograph.kv.machine_commands import CommandKind, command, txn_fields
from heliograph.kv.metadata_store import Put
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData


class Log:
    """Of one group: entries, of which those of a leader that nobody asks anything are empty."""

    def __init__(self, entries: list[bytes]) -> None:
        self.entries = entries
        self.table, self.begun = KvMachine(), False
        for entry in entries:
            self.table.apply(self.table.index + 1, entry)

    def add(self, entry: bytes) -> None:
        self.entries.append(entry)
        self.table.apply(self.table.index + 1, entry)

    def lead(self, rng: random.Random) -> None:
        """A leader's own entry, and maybe commands of clients, before which it puts its stamp."""
        self.add(b"")
        self.begun = False
        for _ in range(rng.randrange(4)):
            self.put(rng)

    def put(self, rng: random.Random) -> None:
        if not self.begun:
            self.begun = True
            self.add(history.beginning(rng, self.table))
        self.add(command(CommandKind.TXN, txn_fields([Put("/key", rng.randbytes(4))])))

    def known(self) -> tuple[int, int]:
        """(the newest stamp, the index of the last command)."""
        found = self.table.get(HISTORY)
        return TableHistory.decode(found[0]).stamp if found else 0, self.table.last_command


@pytest.mark.parametrize("seed", range(200))
def test_a_history_goes_on_from_what_it_has_and_from_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    log, copies = Log([]), list[list[bytes]]()
    told: list[tuple[tuple[int, int], list[bytes]]] = []
    for _ in range(40):
        match rng.randrange(6):
            case 0 if log.entries:
                copies.append(list(log.entries))
            case 1 if copies:
                log = Log(list(rng.choice(copies)))
                log.lead(rng)
            case 2:
                log = Log(log.entries)
                log.lead(rng)
            case 3 if log.begun and rng.random() < 0.5:  # its table was a snapshot of one with empty entries behind
                log.add(b"")
                log.table.restore(log.table.snapshot())
            case _ if log.entries:
                log.put(rng)
        found = log.table.get(HISTORY)
        if found is None:
            continue
        now = TableHistory.decode(found[0])
        for (stamp, index), entries in told:
            there = log.entries[: len(entries)] == entries
            begun = log.table.index == len(log.entries) and _begun_since(log, entries)
            if there or begun:  # before its first command it has told nothing new yet
                assert now.goes_on_from(stamp, index) == there
        if log.known()[0] and log.table.last_command:
            stamp, index = log.known()
            told.append(((stamp, index), log.entries[:index]))


def _begun_since(log: Log, entries: list[bytes]) -> bool:
    """Whether a leader put its stamp behind where the log parts from those entries."""
    common = 0
    while common < min(len(log.entries), len(entries)) and log.entries[common] == entries[common]:
        common += 1
    found = log.table.get(HISTORY)
    return found is not None and found[1] > common


def test_so_many_leaderships_are_kept() -> None:
    known = TableHistory()
    for number in range(1, LEADERSHIPS_MAX + 10):
        known = known.begun(number, number)
    assert len(known.leaderships) == LEADERSHIPS_MAX and known.stamp == LEADERSHIPS_MAX + 9
    assert TableHistory.decode(known.encode()) == known
    assert known.goes_on_from(10, 10) and not known.goes_on_from(9, 9), "it is known no more"
    with pytest.raises(CorruptData):
        TableHistory.decode(b"\x02")


def test_a_row_of_a_later_version_stays() -> None:
    table = KvMachine()
    table.apply(1, command(CommandKind.TXN, txn_fields([Put(HISTORY, b"\x02later")])))
    assert history.beginning(random.Random(1), table) == b""
