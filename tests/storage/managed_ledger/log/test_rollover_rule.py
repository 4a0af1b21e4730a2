"""When a topic goes on in another ledger, and when its open one is closed without one."""

from __future__ import annotations

import random

import pytest

from heliograph.wire.run import COUNT_MAX
from storage.managed_ledger.log.rollover_rule import idle_left_s, idle_limit_s, is_full, last_entry_max
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings

SETTINGS = ManagedLedgerSettings(
    ledger_entries_max=10, ledger_bytes_max=1000, ledger_age_max_s=60.0, ledger_idle_s=16.0
)


@pytest.mark.parametrize(
    ("entries", "size_bytes", "age_s", "full"),
    [
        (9, 999, 60.0, False),
        (10, 0, 0.0, True),
        (0, 1000, 0.0, True),
        (0, 0, 60.001, True),
        (1, 1, 0.0, False),
        (11, 1001, 61.0, True),
    ],
)
def test_each_bound_alone_is_enough(entries: int, size_bytes: int, age_s: float, full: bool) -> None:
    """Entries and bytes are reached; an age is exceeded."""
    assert is_full(SETTINGS, entries, size_bytes, age_s) is full


@pytest.mark.parametrize("seed", range(20))
def test_no_ledger_takes_more_than_one_run_beyond_its_bounds(seed: int) -> None:
    rng = random.Random(seed)
    entries = size_bytes = 0
    age_s = 0.0
    while not is_full(SETTINGS, entries, size_bytes, age_s):
        assert entries < 10 and size_bytes < 1000 and age_s <= 60.0
        entries, size_bytes, age_s = (
            entries + rng.randrange(1, 4),
            size_bytes + rng.randrange(300),
            age_s + 20 * rng.random(),
        )
    assert is_full(SETTINGS, entries + 1, size_bytes + 1, age_s + 1.0), "full stays full"


@pytest.mark.parametrize("entries_max", (1, 10, 50_000))
def test_the_last_entry_that_a_ledger_may_have_is_that_of_the_largest_run_that_fills_it(entries_max: int) -> None:
    settings = ManagedLedgerSettings(ledger_entries_max=entries_max)
    before = entries_max - 1
    assert not is_full(settings, before, 0, 0.0) and is_full(settings, before + 1, 0, 0.0)
    assert last_entry_max(settings) == before + COUNT_MAX - 1


def test_with_more_ledgers_an_idle_one_is_left_open_for_longer_but_not_above_the_age() -> None:
    limits = [idle_limit_s(SETTINGS, ledgers) for ledgers in range(100)]
    assert limits[0] == 16.0 and limits[4] == 24.0 and limits[8] == 32.0
    assert limits == sorted(limits) and limits[21] == 58.0 and limits[22] == limits[-1] == 60.0
    short = ManagedLedgerSettings(ledger_idle_s=300.0, ledger_age_max_s=60.0)
    assert idle_limit_s(short, 0) == 60.0


def test_idle_time_counts_from_the_later_of_opening_and_use() -> None:
    assert idle_left_s(5.0, 100.0, 0.0, 102.0) == 3.0, "opened, and nothing was confirmed yet"
    assert idle_left_s(5.0, 100.0, 104.0, 107.0) == 2.0, "each run begins it anew"
    assert idle_left_s(5.0, 100.0, 104.0, 109.0) == 0.0
    assert idle_left_s(5.0, 100.0, 104.0, 1000.0) == 0.0, "it is never below"
    assert idle_left_s(5.0, 100.0, 104.0, 108.999) > 0.0
