"""LedgerAppend, stepped by seeds against what the disks of its bookies really hold."""

from __future__ import annotations

import pytest

from heliograph.model.striping import Striping
from storage.ledger.writing.ledger_append import LedgerAppend
from tests.storage.ledger.writing.stepped_writer import one_writing


@pytest.mark.parametrize("seed", range(300))
def test_confirmed_means_that_an_ack_quorum_of_the_recorded_ensemble_holds_it(seed: int) -> None:
    one_writing(seed)


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
