"""Whole instances with a replicated subscription: all regions together consume everything, none is lost, and in the end
all know it.
"""

from __future__ import annotations

from typing import Any

import pytest

from geo_tests.sim.checkers import Violation
from geo_tests.sim.loop import SimFailure
from geo_tests.sim.world import WorldSettings, run_seed
from replicator.subscriptions import subscription_cursor
from tests.seeds import SUBSCRIPTION_WORLDS

SETTINGS = WorldSettings(replicated=True, messages=40, chaos_s=10.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SUBSCRIPTION_WORLDS))
def test_worlds_hold(seed: int) -> None:
    assert run_seed(seed, SETTINGS).messages > 0


@pytest.mark.slow
def test_claims_that_are_taken_for_more_than_they_say_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region claims everything that it holds, whether it was acknowledged or not."""

    def below(self: Any, state: Any, claims: Any, below: Any) -> None:
        for origin in self._log.vector:
            claims.add(origin, (-1, -1), self._log.vector.prefix(origin))

    monkeypatch.setattr(subscription_cursor.SyncedCursor, "_claim_below", below)
    for seed in range(5):
        try:
            run_seed(seed, SETTINGS)
        except (Violation, SimFailure):
            return
    pytest.fail("5 seeds hold although regions claim what nobody acknowledged")
