"""Which bookies count as lost, and which fragments are copied because of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.model.errors import ConfigError
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from storage.ledger.repair.lost_bookies import (
    FRAGMENTS_MAX,
    AutoRecoverySettings,
    LostBookies,
    Repair,
    is_surplus,
    repairs,
    waits_for_its_writer,
    with_copy,
)

OPEN = LedgerMetadata(7, 2, 2, ((0, ("a", "b")), (10, ("a", "c")), (20, ("c", "d"))))
CLOSED = replace(OPEN, state=LedgerState.CLOSED, last_entry=24)


def test_a_bookie_is_lost_after_the_delay_and_not_any_more_once_it_is_back() -> None:
    core = LostBookies(60.0)
    core.on_registered(["a", "b"], 0.0)
    core.on_registered(["b"], 5.0)
    core.on_registered(["b"], 50.0)
    assert core.lost(64.9) == [] and core.lost(65.0) == ["a"]
    core.on_registered(["a", "b"], 70.0)
    assert core.lost(500.0) == []
    core.on_registered(["b"], 500.0)
    assert core.lost(559.0) == [] and core.lost(560.0) == ["a"]


def test_a_bookie_that_only_ledgers_know_is_away_from_when_it_was_missed() -> None:
    core = LostBookies(60.0)
    core.on_registered(["a"], 0.0)
    core.on_named(["a", "z"], 10.0)
    core.on_named(["z"], 40.0)
    assert core.lost(69.0) == [] and core.lost(70.0) == ["z"]


def test_nobody_is_lost_while_nobody_is_there() -> None:
    core = LostBookies(60.0)
    core.on_registered(["a"], 0.0)
    core.on_registered([], 1.0)
    assert core.lost(1000.0) == []
    core.on_registered(["b"], 1001.0)
    assert core.lost(1001.0) == ["a"]


def test_of_an_open_ledger_only_sealed_fragments_are_copied() -> None:
    first, second = Repair(0, 9, ("a", "b"), ("a",)), Repair(10, 19, ("a", "c"), ("a",))
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        ledger = replace(OPEN, state=state)
        assert repairs(ledger, ["a"]) == [first, second] and repairs(ledger, ["d"]) == []
        assert waits_for_its_writer(ledger, ["d"]) and not waits_for_its_writer(ledger, ["a"])
    assert repairs(CLOSED, ["d"]) == [Repair(20, 24, ("c", "d"), ("d",))]
    assert not waits_for_its_writer(CLOSED, ["d"])


def test_fragments_without_entries_are_left_alone() -> None:
    assert repairs(replace(CLOSED, last_entry=14), ["c", "d"]) == [Repair(10, 14, ("a", "c"), ("c",))]
    assert repairs(replace(CLOSED, last_entry=-1), ["a", "b", "c", "d"]) == []


def test_a_copy_takes_the_place_of_the_lost_one_in_its_own_fragment_only() -> None:
    repair = repairs(OPEN, ["a"])[0]
    copied = with_copy(OPEN, repair, "a", "e")
    assert copied is not None and copied.fragments == ((0, ("e", "b")), (10, ("a", "c")), (20, ("c", "d")))
    assert with_copy(copied, repair, "a", "e") is None, "it is recorded already"
    assert with_copy(OPEN, repair, "a", "b") is None
    assert with_copy(OPEN.with_fragment(0, ("a", "b")), repair, "a", "e") is None, "that fragment can grow again"


def test_a_copy_that_lacks_entries_leaves_the_lost_one_named_for_these() -> None:
    repair = repairs(OPEN, ["a"])[1]
    copied = with_copy(OPEN, repair, "a", "e", [(10, 11), (15, 15)])
    assert copied is not None and copied.fragments[1:] == (
        (10, ("a", "c")),
        (12, ("e", "c")),
        (15, ("a", "c")),
        (16, ("e", "c")),
        (20, ("c", "d")),
    )
    (first, _, _, last) = [(one.first, one.last) for one in repairs(copied, ["a", "e"])][1:]
    assert (first, last) == ((10, 11), (16, 19))
    assert with_copy(OPEN, repair, "a", "e", [(10, 19)]) == OPEN


def test_pieces_that_have_the_same_places_again_are_one() -> None:
    split = replace(CLOSED, fragments=((0, ("e", "b")), (3, ("a", "b")), (5, ("e", "b")), (10, ("c", "d"))))
    joined = with_copy(split, repairs(split, ["a"])[0], "a", "e")
    assert joined is not None and joined.fragments == ((0, ("e", "b")), (10, ("c", "d")))


def test_a_ledger_is_split_into_so_many_fragments_at_the_most() -> None:
    long = LedgerMetadata(7, 2, 2, ((0, ("a", "b")), (5000, ("c", "d"))), LedgerState.CLOSED, 5999)
    repair = repairs(long, ["a"])[0]
    gaps = [(at, at) for at in range(0, 4990, 9 + 1)]
    copied = with_copy(long, repair, "a", "e", [*gaps[:100], *gaps[110:]])  # one stretch is longer than the others
    assert copied is not None and FRAGMENTS_MAX - 3 < len(copied.fragments) <= FRAGMENTS_MAX
    assert (991, ("e", "b")) in copied.fragments
    full = with_copy(long, repair, "a", "e")
    assert full is not None and len(full.fragments) == 2
    many = replace(long, fragments=tuple((at, (f"x{at}", "b")) for at in range(0, 5000, 10)))
    assert with_copy(many, repairs(many, ["x0"])[0], "x0", "e", [(3, 3)]) == many, "it has too many already"


def test_surplus_is_what_a_closed_ledger_does_not_name() -> None:
    assert is_surplus(CLOSED, "e") and not is_surplus(CLOSED, "a") and not is_surplus(OPEN, "e")


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError):
        AutoRecoverySettings(lost_after_s=0.0)
    with pytest.raises(ConfigError):
        AutoRecoverySettings(bytes_per_s=0)
