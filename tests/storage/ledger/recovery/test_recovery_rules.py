"""LedgerRecovery, stepped by seeds against a writer that does not know that it is being fenced."""

from __future__ import annotations

import pytest

from heliograph.model.ledger_metadata import LedgerMetadata
from storage.ledger.recovery.recovery_rules import LedgerRecovery
from tests.storage.ledger.recovery.stepped_recovery import one_recovery


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
