"""LedgerAppend, stepped by a seed."""

from __future__ import annotations

import random

from heliograph.model.striping import Striping
from storage.ledger.writing.ledger_append import LedgerAppend

QUORUMS = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (3, 2, 1), (4, 2, 2), (5, 3, 2), (4, 3, 3)]
"""(ensemble, write quorum, ack quorum); wider than the write quorum: striped."""


class Writer:
    """A writer around the core, with bookies that hold what reached them, and metadata writes on their way."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        width, write, self.ack = self.rng.choice(QUORUMS)
        self.names = [f"b{i}" for i in range(width)]
        self.striping = Striping(width, write, self.rng.choice((1, 3, 8)))
        self.core = LedgerAppend(self.names, self.ack, self.striping)
        self.next = 0
        self.recorded: list[tuple[int, tuple[str, ...]]] = [(0, tuple(self.names))]
        self.writing: list[tuple[int, int, tuple[str, ...]]] = []
        self.held: dict[str, set[int]] = {name: set() for name in self.names}
        self.sent: dict[str, list[int]] = {
            name: [] for name in self.names
        }  # on the connection of that bookie, in order
        self.acks: list[tuple[str, int]] = []
        self.lac = -1

    def step(self) -> None:
        rng, core = self.rng, self.core
        match rng.randrange(10):
            case 0 if len(self.writing) < 3 and len(self.held) < 40:
                lost, spare = rng.choice(core.ensemble), f"b{len(self.held)}"
                first = core.on_bookie_replaced(lost, spare)
                self.held[spare] = set()
                self.sent[spare] = self.of(spare, first)
                self.writing.append((core.changes, first, tuple(core.ensemble)))
            case 1:
                away = rng.choice(core.ensemble)
                self.sent[away] = self.of(away, core.on_bookie_back(away))
            case 2 if self.writing:
                while len(self.writing) > 1 and rng.random() < 0.5:
                    self.writing.pop(0)  # one write may speak for several changes
                change, first, bookies = self.writing.pop(0)
                self.recorded = [r for r in self.recorded if r[0] < first] + [(first, bookies)]
                core.on_ensemble_recorded(change)
            case 3 | 4:
                count = rng.randrange(1, 9)
                self.next += count
                for name in core.ensemble:
                    self.sent[name] += self.of(name, self.next - count)
            case 5 if self.acks:
                core.on_ack(*self.acks.pop(rng.randrange(len(self.acks))))  # any order, also of those replaced long ago
            case _:
                name = rng.choice(sorted(self.held))  # a replaced bookie may still write what it was sent
                if queue := self.sent[name]:
                    count = rng.randrange(1, len(queue) + 1)
                    self.held[name].update(queue[:count])
                    self.acks.append((name, queue[count - 1]))
                    del queue[:count]

    def of(self, name: str, first: int) -> list[int]:
        """What that bookie is to be sent from `first` on."""
        place = self.core.ensemble.index(name)
        return [entry for entry in range(first, self.next) if self.striping.holds(place, entry)]

    def check(self) -> None:
        assert self.core.lac >= self.lac
        self.lac = self.core.lac
        for entry in range(self.lac + 1):
            bookies = next(bookies for first, bookies in reversed(self.recorded) if first <= entry)
            holders = [bookies[place] for place in self.striping.places(entry)]
            assert sum(entry in self.held[name] for name in holders) >= self.ack, f"entry {entry} of LAC {self.lac}"

    def settle(self) -> None:
        """Nothing is lost any more, everything arrives."""
        self.writing.clear()
        self.recorded = [r for r in self.recorded if r[0] <= self.core.lac] + [
            (self.core.lac + 1, tuple(self.core.ensemble))
        ]
        self.core.on_ensemble_recorded(self.core.changes)
        for name in self.core.ensemble:
            entries = self.of(name, self.core.on_bookie_back(name))
            self.held[name].update(entries)
            if entries:
                self.core.on_ack(name, entries[-1])


def one_writing(seed: int) -> None:
    writer = Writer(seed)
    for _ in range(120):
        writer.step()
        writer.check()
    writer.settle()
    writer.check()
    assert writer.core.lac == writer.next - 1
