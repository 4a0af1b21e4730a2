"""LedgerAppend, stepped by seeds against what the disks of its bookies really hold."""

from __future__ import annotations

import random

import pytest

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


@pytest.mark.parametrize("seed", range(300))
def test_confirmed_means_that_an_ack_quorum_of_the_recorded_ensemble_holds_it(seed: int) -> None:
    writer = Writer(seed)
    for _ in range(120):
        writer.step()
        writer.check()
    writer.settle()
    writer.check()
    assert writer.core.lac == writer.next - 1


@pytest.mark.parametrize(("width", "write", "stride"), [(2, 2, 5), (3, 2, 5), (5, 3, 1), (7, 2, 64), (4, 4, 1)])
def test_every_entry_has_as_many_places_as_the_write_quorum_and_stripes_are_level(
    width: int, write: int, stride: int
) -> None:
    striping = Striping(width, write, stride)
    load = [0] * width
    for entry in range(width * stride * 3):
        places = striping.places(entry)
        assert (
            sorted(places) == [place for place in range(width) if striping.holds(place, entry)]
            and len(set(places)) == write
        )
        assert (
            striping.last(entry) >= entry and striping.places(min(striping.last(entry), 10**6)) == places
        ) or width == write
        assert all(
            sorted(set(places) - {place}) in [sorted(others) for others in striping.others(place)] for place in places
        )
        for place in places:
            load[place] += 1
    assert len(set(load)) == 1


def test_lac_goes_from_stripe_to_stripe() -> None:
    core = LedgerAppend(["a", "b", "c"], 2, Striping(3, 2, 10))  # 0-9 on a b, 10-19 on b c, 20-29 on c a
    core.on_ack("a", 29)
    core.on_ack("b", 19)
    assert core.lac == 9, "c has nothing of the second stripe yet"
    assert core.on_ack("c", 14) and core.lac == 14
    assert core.on_ack("c", 23) and core.lac == 23


def test_a_bookie_misses_only_what_lies_at_its_own_places() -> None:
    core = LedgerAppend(
        ["a", "b", "c", "d"], 2, Striping(4, 2, 10)
    )  # 0-9 on a b, 10-19 on b c, 20-29 on c d, 30-39 on d a
    core.on_ack("a", 9)
    core.on_ack("b", 19)
    assert core.lac == 9 and not any(map(core.misses, "abcd")), "c and d have nothing, and need nothing"
    core.on_ack("c", 19)
    assert core.lac == 19 and not core.misses("d")
    narrow = LedgerAppend(["a", "b", "c"], 2)
    narrow.on_ack("a", 5)
    narrow.on_ack("b", 3)
    assert not narrow.misses("b") and narrow.misses("c")


def test_lac_is_the_ack_quorums_common_prefix() -> None:
    core = LedgerAppend(["a", "b", "c"], 2)
    assert not core.on_ack("a", 5)
    assert core.on_ack("b", 3) and core.lac == 3
    assert core.on_ack("c", 9) and core.lac == 5
    assert not core.on_ack("c", 9)


def test_the_acks_of_a_replaced_bookie_are_withdrawn_and_lac_waits_for_the_newest_ensemble() -> None:
    core = LedgerAppend(["a", "b"], 2)
    core.on_ack("a", 4)
    core.on_ack("b", 2)
    assert core.lac == 2
    assert core.on_bookie_replaced("a", "c") == 3
    assert not core.on_ack("a", 9)
    core.on_ack("b", 9)
    assert not core.on_ack("c", 4) and core.lac == 2 and not core.settled
    assert core.on_bookie_replaced("b", "d") == 3
    assert not core.on_ensemble_recorded(1)
    core.on_ack("c", 9)
    core.on_ack("d", 7)
    assert core.lac == 2
    assert core.on_ensemble_recorded(2) and core.lac == 7 and core.settled


def test_a_bookie_that_comes_back_is_sent_what_it_lacks() -> None:
    core = LedgerAppend(["a", "b", "c"], 2)
    core.on_ack("a", 7)
    assert core.on_bookie_back("a") == 8
    core.on_ack("b", 5)
    assert core.lac == 5 and core.on_bookie_back("c") == 6
