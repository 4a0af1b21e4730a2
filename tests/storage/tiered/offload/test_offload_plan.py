"""What of a topic is offloaded, and which local copies go."""

from __future__ import annotations

from heliograph.model.ledger_metadata import OffloadState
from storage.tiered.offload.offload_plan import OffloadPolicy, stored_prefix, to_drop, to_offload
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
