"""Whether a broker is well: all who say so say the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.errors import MetadataUnavailable
from region_node.faces.admin.brokers import brokers
from region_node.faces.admin.dr import disaster_recovery


class OneTry:
    """A canary, and how often it was asked."""

    def __init__(self, *, good: bool) -> None:
        self.verdict = SimpleNamespace(good=good, latency_ms=3.0)
        self.asked = 0

    async def once(self) -> Any:
        self.asked += 1
        return self.verdict


def admin_of(canary: OneTry, *registered: str) -> Any:
    live = [SimpleNamespace(broker=name) for name in registered]
    ownership = SimpleNamespace(record=SimpleNamespace(broker="b1"), brokers=lambda: live)
    return SimpleNamespace(region="eu", canary=canary, ownership=ownership)


@pytest.mark.parametrize("registered", [("b1", "b2"), ()])
@pytest.mark.parametrize("good", [True, False])
def test_health_is_one_judgement_and_readiness_asks_nobody(good: bool, registered: tuple[str, ...]) -> None:
    """What is known of the region's brokers stays as it was while the metadata is away: it says nothing of health."""

    async def main() -> None:
        canary = OneTry(good=good)
        admin = admin_of(canary, *registered)
        ours = (await disaster_recovery.health(admin)).status
        try:
            theirs, text = 200, (await brokers.health(admin)).text
        except MetadataUnavailable:
            theirs, text = 503, None
        assert ours == theirs == (200 if good else 503) and text == ("ok" if good else None)
        canary.asked = 0
        try:
            is_ready = (await brokers.ready(admin)).text == "ok"
        except MetadataUnavailable:
            is_ready = False
        assert is_ready is bool(registered) and not canary.asked

    run_alone(main())
