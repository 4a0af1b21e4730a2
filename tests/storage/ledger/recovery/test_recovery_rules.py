"""LedgerRecovery, stepped by seeds against a writer that does not know that it is being fenced."""

from __future__ import annotations

import pytest

from heliograph.model.ledger_metadata import LedgerMetadata
from storage.ledger.recovery.recovery_rules import LedgerRecovery
from tests.storage.ledger.recovery.stepped_recovery import one_recovery, one_recovery_behind_a_loss


@pytest.mark.parametrize("seed", range(400))
def test_whatever_the_writer_confirms_before_or_after_is_found(seed: int) -> None:
    """Adds and acks are on their way while the fences arrive one by one; some bookies never answer, some answer
    late.
    """
    one_recovery(seed)


def test_a_time_out_is_not_absence_and_only_fenced_bookies_are_asked() -> None:
    core = LedgerRecovery(LedgerMetadata(1, 3, 2, ((0, ("a", "b", "c")),)))
    core.on_fenced("a", 4)
    assert not core.fenced and core.to_ask() == [] and core.unfenced() == ["b", "c"]
    core.on_fenced("b", 6)
    assert core.fenced and core.next == 7 and core.to_ask() == ["a", "b"]
    core.on_absent("a")
    assert not core.ended and core.to_ask() == ["b"]
    core.on_found(9)
    assert core.next == 10 and core.to_ask() == ["a", "b"]
    core.on_absent("a")
    core.on_absent("b")
    assert core.ended


def test_recovery_starts_at_the_last_fragment() -> None:
    core = LedgerRecovery(LedgerMetadata(1, 2, 2, ((0, ("a", "b")), (30, ("a", "c")))))
    assert core.next == 30 and core.ensemble == ("a", "c")


def test_each_write_set_of_a_striped_ledger_is_fenced_and_an_entry_is_asked_for_in_its_own() -> None:
    core = LedgerRecovery(LedgerMetadata(1, 2, 2, ((0, ("a", "b", "c", "d")),), stride=10))
    core.on_fenced("a", -1)
    core.on_fenced("b", 3)
    assert not core.fenced and core.to_ask() == [], "a write quorum could still be reached on c and d"
    core.on_fenced("c", 8)
    assert core.fenced and core.next == 9 and core.to_ask() == ["a", "b"]
    core.on_found(9)
    assert core.to_ask() == ["b", "c"]
    core.on_found(29)
    assert core.to_ask() == ["a"], "of d and a only a is fenced"
    core.on_absent("a")
    assert core.ended


@pytest.mark.parametrize("seed", range(400))
def test_what_one_bookie_lost_is_found_on_the_others(seed: int) -> None:
    one_recovery_behind_a_loss(seed)


def test_the_word_of_one_without_a_trace_counts_once_nobody_else_is_to_be_asked() -> None:
    soon = {"b"}
    core = LedgerRecovery(LedgerMetadata(1, 2, 2, ((0, ("a", "b")),)), lambda bookie: bookie in soon)
    core.on_fenced("a", -1)
    core.on_absent("a")
    assert not core.ended, "b may be back any moment, and have it"
    soon.clear()
    assert core.ended, "b stays away"
    core.on_fenced("b", -1)
    assert not core.ended and core.to_ask() == ["b"]
    core.on_absent("b")
    assert core.ended


def test_the_word_of_one_with_a_trace_counts_at_once() -> None:
    core = LedgerRecovery(LedgerMetadata(1, 2, 2, ((0, ("a", "b")),)), lambda bookie: True)
    core.on_fenced("a", 3, 7)
    core.on_found(7)
    core.on_absent("a")
    assert core.ended and core.next == 8


def test_one_that_forgot_the_ledger_denies_nothing_until_all_have_been_asked() -> None:
    core = LedgerRecovery(LedgerMetadata(1, 2, 2, ((0, ("a", "b")),)))
    core.on_fenced("a", -1)
    core.on_forgotten("a")
    assert not core.ended and core.to_ask() == []
    core.on_fenced("b", 4, 5)
    core.on_found(5)
    assert not core.ended and core.to_ask() == ["a", "b"]
    core.on_forgotten("a")
    core.on_absent("b")
    assert core.ended and core.next == 6
    both = LedgerRecovery(LedgerMetadata(1, 2, 2, ((0, ("a", "b")),)))
    for bookie in "ab":
        both.on_fenced(bookie, -1)
        both.on_forgotten(bookie)
    assert both.ended, "nobody has it, and nobody ever will"
