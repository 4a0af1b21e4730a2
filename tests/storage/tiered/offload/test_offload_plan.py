"""What of a topic is offloaded, and which local copies go."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heliograph.model.errors import ConfigError
from heliograph.model.ledger_metadata import LedgerInfo, OffloadRecord, OffloadState
from storage.tiered.offload.offload_plan import OffloadPolicy, stored, stored_prefix, to_drop, to_offload
from tests.storage.tiered.ledger_infos import infos


def test_policies_choose_the_oldest_without_a_hole() -> None:
    ledgers = infos((1, 100, 1000, None), (2, 100, 2000, None), (5, 100, 3000, None), (6, 50, 0, None))

    def chosen(policy: OffloadPolicy, now_ms: int = 3000, before: tuple[int, int] | None = None) -> list[int]:
        return [info.ledger for info in to_offload(ledgers, policy, now_ms, before)]

    assert chosen(OffloadPolicy()) == []
    assert chosen(OffloadPolicy(threshold_bytes=0)) == [1, 2, 5]
    assert chosen(OffloadPolicy(threshold_bytes=149)) == [1, 2, 5]
    assert chosen(OffloadPolicy(threshold_bytes=150)) == [1, 2]
    assert chosen(OffloadPolicy(threshold_bytes=349)) == [1] and chosen(OffloadPolicy(threshold_bytes=350)) == []
    assert chosen(OffloadPolicy(threshold_s=1)) == [1, 2] and chosen(OffloadPolicy(threshold_s=2)) == [1]
    assert chosen(OffloadPolicy(threshold_s=0)) == [1, 2, 5]
    assert chosen(OffloadPolicy(), before=(5, 3)) == [1, 2] and chosen(OffloadPolicy(), before=(5, 10)) == [1, 2, 5]
    assert chosen(OffloadPolicy(), before=(1, 9)) == []
    ledgers = infos(
        (1, 100, 1000, OffloadState.LOCAL_GONE),
        (2, 100, 2000, OffloadState.BEGUN),
        (5, 100, 3000, None),
        (6, 50, 0, None),
    )
    assert chosen(OffloadPolicy()) == [2]
    assert [info.ledger for info in stored_prefix(ledgers)] == [1]


def test_local_copies_go_after_their_lag() -> None:
    kept, gone = OffloadState.STORED, OffloadState.LOCAL_GONE
    ledgers = infos((1, 1, 1000, gone), (2, 1, 2000, kept), (3, 1, 3000, kept), (4, 1, 4000, OffloadState.BEGUN))
    assert [info.ledger for info in to_drop(ledgers, OffloadPolicy(deletion_lag_ms=500), 2600)] == [2]
    assert [info.ledger for info in to_drop(ledgers, OffloadPolicy(deletion_lag_ms=0), 9000)] == [2, 3]
    assert to_drop(ledgers, OffloadPolicy(deletion_lag_ms=-1), 1 << 50) == []


def drawn(rng: random.Random) -> list[LedgerInfo]:
    """The last one open or not; of those before it any in any state, now and then one that is not closed either. Times
    are whole and half seconds, so that bounds are met.
    """
    states = (None, None, OffloadState.BEGUN, OffloadState.STORED, OffloadState.LOCAL_GONE)
    count = rng.randrange(1, 9)
    rows = [(at + 1, rng.randrange(200), 1000 * (at + 1), rng.choice(states)) for at in range(count)]
    rows = [(at, size, 0, None) if rng.random() < 0.1 else (at, size, ms, state) for at, size, ms, state in rows]
    return infos(*rows[:-1], (count, rng.randrange(200), 0, None)) if rng.random() < 0.7 else infos(*rows)


@pytest.mark.parametrize("seed", range(200))
def test_only_closed_ledgers_and_always_from_the_oldest_without_a_hole(seed: int) -> None:
    rng = random.Random(seed)
    ledgers, now_ms = drawn(rng), rng.randrange(0, 12_000, 500)
    policy = OffloadPolicy(threshold_bytes=rng.choice((-1, 0, 100, 400)), threshold_s=rng.choice((-1, 0, 2, 5)))
    before = (rng.randrange(10), rng.randrange(12)) if rng.random() < 0.5 else None
    chosen = to_offload(ledgers, policy, now_ms, before)
    assert all(info.closed_ms and not stored(info) for info in chosen)

    def wanted(at: int) -> bool:
        """Whether this ledger alone is a reason."""
        info = ledgers[at]
        return info.closed_ms > 0 and (
            0 <= policy.threshold_bytes < sum(i.size_bytes for i in ledgers[at:])
            or 0 <= policy.threshold_s <= (now_ms - info.closed_ms) / 1000
            or (before is not None and (info.ledger, info.entries) <= before)
            or (info.offload is not None and info.offload.state == OffloadState.BEGUN)
        )

    newest = max((at for at in range(len(ledgers)) if wanted(at)), default=-1)
    left = [info for info in ledgers[: newest + 1] if info.closed_ms and not stored(info)]
    assert chosen == left, "the newest that there is a reason for, and everything before it"
    committed = OffloadRecord("", "", OffloadState.STORED)
    done = [replace(info, offload=committed) if info in chosen else info for info in ledgers]
    assert not to_offload(done, policy, now_ms, before)


@pytest.mark.parametrize("seed", range(100))
def test_a_local_copy_goes_only_where_its_object_was_committed_a_lag_ago(seed: int) -> None:
    rng = random.Random(seed)
    ledgers, now_ms = drawn(rng), rng.randrange(0, 12_000, 500)
    lag_ms = rng.choice((0, 500, 1000, 3000))
    gone = to_drop(ledgers, OffloadPolicy(deletion_lag_ms=lag_ms), now_ms)
    for info in ledgers:
        committed = info.offload is not None and info.offload.state == OffloadState.STORED
        assert (info in gone) is (committed and (not lag_ms or info.closed_ms + lag_ms <= now_ms))
    assert to_drop(ledgers, OffloadPolicy(deletion_lag_ms=-1), 1 << 60) == []


@pytest.mark.parametrize("seed", range(50))
def test_what_can_be_restored_ends_where_the_first_is_missing(seed: int) -> None:
    ledgers = drawn(random.Random(seed))
    prefix = stored_prefix(ledgers)
    assert prefix == ledgers[: len(prefix)] and all(stored(info) for info in prefix)
    assert len(prefix) == len(ledgers) or not stored(ledgers[len(prefix)])


def test_policies_out_of_range_are_refused_and_off_is_off() -> None:
    assert (
        not OffloadPolicy().active and OffloadPolicy(threshold_s=0).active and OffloadPolicy(threshold_bytes=0).active
    )
    for fields in ({"threshold_bytes": -2}, {"threshold_s": -2}, {"deletion_lag_ms": -2}):
        with pytest.raises(ConfigError):
            OffloadPolicy(**fields)
