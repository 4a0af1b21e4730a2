"""Whole instances with real bookies, where auto-recovery is as quick as the faults, so that it copies while everything
else goes wrong too.
"""

from __future__ import annotations

from typing import Any

import pytest

from geo_tests.sim.world import WorldSettings, run_seed
from storage.ledger.repair.ledger_repair import LedgerRepair
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector

QUICK = AutoRecoverySettings(lost_after_s=0.4, rescan_s=0.3, tick_s=0.1, orphan_grace_s=0.2, scan_s=0.5)
LOSSES = (
    "kill_bookie",
    "power_cut_bookie",
    "power_cut_bookie_while_it_writes",
    "failing_disk",
    "kill_broker",
    "unload",
    "change_topology",
)
SETTINGS = WorldSettings(regions=("us", "eu", "ap"), chaos_s=12.0, faults=8, kinds=LOSSES, auto_recovery=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_nothing_is_lost_while_copies_move(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = sweeps = 0
    record, sweep = LedgerRepair._record, OrphanCollector.sweep

    async def recording(self: LedgerRepair, *arguments: Any) -> None:
        nonlocal recorded
        await record(self, *arguments)
        recorded += 1

    async def sweeping(self: OrphanCollector, now: float) -> list[int]:
        nonlocal sweeps
        sweeps += 1
        return await sweep(self, now)

    monkeypatch.setattr(LedgerRepair, "_record", recording)
    monkeypatch.setattr(OrphanCollector, "sweep", sweeping)
    for seed in range(block * 2, block * 2 + 2):
        assert run_seed(seed, SETTINGS).messages > 0
    assert recorded and sweeps > 12
