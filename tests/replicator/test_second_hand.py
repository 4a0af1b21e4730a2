"""What a region holds is told by itself; what others knew of it once does not take that back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import Vector
from heliograph.model.positions import Position
from replicator.audit.audit_settings import AuditSettings
from replicator.log.replicated_log import ReplicatedLog
from replicator.manager.link_manager import LinkSettings
from tests.replicator.link_instance import Instance

NAMES = ("us", "eu", "ap", "sa")


def play() -> None:
    """ap knows an old picture of eu. It reaches us again, which has a newer one of eu itself; eu is idle."""
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, NAMES, 1, LinkSettings(audit=AuditSettings(period_s=0)))
            for a in NAMES:
                for b in NAMES:
                    if a < b:
                        sim.network.latency(a, b, 0.01, 0.02)
            await instance.load()
            us, eu, ap, sa = instance.regions.values()
            for region in instance.regions.values():
                region.publish(2)
            await asyncio.sleep(3)
            origin = sa.log.origin
            for pair in (("ap", "eu"), ("ap", "us"), ("sa", "us"), ("sa", "ap")):
                sim.network.cut(*pair)
            await asyncio.sleep(1)
            sa.publish(5)
            await asyncio.sleep(15)
            held = eu.log.vector.prefix(origin)
            old = ap.log.known["eu"][0].prefix(origin)
            assert us.log.known["eu"][0].prefix(origin) == held > old
            sim.network.heal("ap", "us")
            seen: list[Position] = []
            for _ in range(150):
                await asyncio.sleep(0.2)
                assert us.log.known["eu"][0].prefix(origin) == held, "what eu told itself stays"
                seen.append(ap.log.known["eu"][0].prefix(origin))
            assert seen[-1] == held and sorted(seen) == seen, "ap, which does not hear eu, learns it from us, once"
            for name in ("ap", "sa"):
                sim.network.heal(name, "eu")
                sim.network.heal(name, "us")
            sim.network.heal("sa", "ap")
            await asyncio.sleep(30)
            for region in instance.regions.values():
                for other in instance.regions.values():
                    assert region is other or region.log.known[other.name][0] == other.log.vector, (
                        region.name,
                        other.name,
                    )

        sim.run(main(), limit_s=600)


def test_an_old_picture_of_a_third_region_takes_nothing_back() -> None:
    play()


def test_mutant_whoever_tells_last_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = ReplicatedLog.learn

    def last(self: Any, region: str, vector: Vector, now_ms: int, by: str = "") -> None:
        learn(self, region, vector, now_ms)

    monkeypatch.setattr(ReplicatedLog, "learn", last)
    with pytest.raises(AssertionError):
        play()
