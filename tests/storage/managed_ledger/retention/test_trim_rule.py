"""How many ledgers may go from the front of a topic."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
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


def drawn(rng: random.Random) -> list[LedgerInfo]:
    """Ledgers with gaps between their ids, closed one behind the other by multiples of 10 s, so that bounds are met.
    The last one is often open.
    """
    ledgers, ledger, now_ms = list[LedgerInfo](), 0, 1
    for _ in range(rng.randrange(1, 9)):
        ledger, now_ms = ledger + rng.randrange(1, 3), now_ms + rng.randrange(0, 50_000, 10_000)
        ledgers.append(LedgerInfo(ledger, rng.randrange(1, 4), rng.randrange(3 << 20), now_ms))
    return [*ledgers[:-1], replace(ledgers[-1], closed_ms=0)] if rng.random() < 0.6 else ledgers


def end(info: LedgerInfo) -> Position:
    return (info.ledger, info.entries - 1)


def place(rng: random.Random, ledgers: list[LedgerInfo]) -> Position:
    return (99, 0) if rng.random() < 0.5 else (rng.randrange(ledgers[-1].ledger + 2), rng.randrange(-1, 4))


@pytest.mark.parametrize("seed", range(300))
def test_what_goes_nobody_needs_and_what_stays_somebody_does(seed: int) -> None:
    """What is needed is said here ledger by ledger, not in a pass."""
    rng = random.Random(seed)
    ledgers = drawn(rng)
    slowest, through = place(rng, ledgers), place(rng, ledgers)
    truncating = place(rng, ledgers) if rng.random() < 0.3 else (-1, -1)
    retention = Retention(rng.choice((-1, 0, 1, 2)), rng.choice((-1, 0, 1, 4)))
    now_ms, last_kept_ms = 1 + rng.randrange(0, 300_000, 10_000), rng.choice((0, 60_000))
    count = trim_count(ledgers, slowest, through, retention, now_ms, truncating, last_kept_ms)
    done = [info.closed_ms > 0 and end(info) <= slowest and end(info) <= through for info in ledgers]
    if end(ledgers[-1]) > truncating and now_ms - ledgers[-1].closed_ms < last_kept_ms:
        done[-1] = False
    acknowledged = [*done, False].index(False)
    assert count <= acknowledged, "each that goes is closed, and behind the cursors and the stored state"

    def kept(at: int) -> bool:
        """Young enough, and small enough together with what was acknowledged behind it; or nothing is asked for."""
        young = retention.minutes < 0 or now_ms - ledgers[at].closed_ms < retention.minutes * 60_000
        small = retention.mb < 0 or sum(i.size_bytes for i in ledgers[at:acknowledged]) <= retention.mb << 20
        return young and small and end(ledgers[at]) > truncating

    assert not any(kept(at) for at in range(count))
    assert count == acknowledged or kept(count)


@pytest.mark.parametrize("seed", range(100))
def test_with_time_and_with_acknowledgements_never_fewer_go(seed: int) -> None:
    rng = random.Random(seed)
    ledgers, retention = drawn(rng), Retention(rng.choice((-1, 0, 1)), rng.choice((-1, 0, 2)))
    slowest, now_ms = place(rng, ledgers), rng.randrange(600_000)

    def count(slowest: Position, now_ms: int) -> int:
        return trim_count(ledgers, slowest, (99, 0), retention, now_ms, last_kept_ms=60_000)

    assert count(slowest, now_ms) <= count(slowest, now_ms + rng.randrange(90_000))
    assert count(slowest, now_ms) <= count((99, 0), now_ms)
    assert count((-1, -1), 10**9) == 0


@pytest.mark.parametrize("seed", range(100))
def test_of_very_many_ledgers_the_first_ones_are_decided_as_if_all_were_looked_at(seed: int) -> None:
    rng = random.Random(seed)
    ledgers, retention = drawn(rng), Retention(rng.choice((-1, 0, 1)), rng.choice((-1, 0, 2)))
    slowest, now_ms = place(rng, ledgers), 600_000 + rng.randrange(600_000)
    front = rng.randrange(1, len(ledgers) + 1)
    behind = sum(i.size_bytes for i in ledgers[front:] if i.closed_ms and end(i) <= slowest)
    count = trim_count(ledgers[:front], slowest, (99, 0), retention, now_ms, behind_bytes=behind)
    assert count == min(front, trim_count(ledgers, slowest, (99, 0), retention, now_ms))
