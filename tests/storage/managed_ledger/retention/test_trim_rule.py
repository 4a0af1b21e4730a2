"""How many ledgers may go from the front of a topic."""

from __future__ import annotations

from heliograph.model.ledger_metadata import LedgerInfo
from storage.managed_ledger.retention.trim_rule import Retention, trim_count


def _ledgers() -> list[LedgerInfo]:
    return [LedgerInfo(i, 10, 1 << 20, closed_ms=1_000 * (i + 1)) for i in range(4)] + [LedgerInfo(4, 3, 100)]


def test_trimming_passes_neither_the_slowest_cursor_nor_the_stored_state_nor_an_open_ledger() -> None:
    end = (4, 2)
    none = Retention()
    assert trim_count(_ledgers(), end, end, none, 10**9) == 4
    assert trim_count(_ledgers(), (2, 8), end, none, 10**9) == 2
    assert trim_count(_ledgers(), (2, 9), end, none, 10**9) == 3
    assert trim_count(_ledgers(), end, (1, 9), none, 10**9) == 2
    assert trim_count(_ledgers(), (-1, -1), end, none, 10**9) == 0
    assert trim_count(_ledgers()[-1:], end, end, none, 10**9) == 0
    closed = _ledgers()[:1]
    assert trim_count(closed, end, end, none, 10**9) == 1
    assert trim_count(closed, end, end, none, closed[0].closed_ms + 999, last_kept_ms=1000) == 0, (
        "as long as an open one would have been there"
    )
    assert trim_count(closed, end, end, none, closed[0].closed_ms + 1000, last_kept_ms=1000) == 1
    assert trim_count(closed, end, end, none, closed[0].closed_ms, (0, 9), last_kept_ms=1000) == 1, (
        "what is truncated is not kept"
    )


def test_retention_keeps_what_is_young_and_small() -> None:
    end = (4, 2)
    assert trim_count(_ledgers(), end, end, Retention(-1, -1), 10**9) == 0
    assert trim_count(_ledgers(), end, end, Retention(1, -1), 62_500) == 2
    assert trim_count(_ledgers(), end, end, Retention(-1, 3), 0) == 1
    assert trim_count(_ledgers(), end, end, Retention(1, 3), 62_500) == 2
    assert trim_count(_ledgers(), end, end, Retention(0, -1), 62_500) == 4
