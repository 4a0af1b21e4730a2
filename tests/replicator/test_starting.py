"""A link that is switched on later begins where the policy says; what it leaves out is named, and nothing fetches it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import format_coordinate
from replicator import link
from replicator.audit_settings import AuditSettings
from replicator.manager import LinkSettings
from tests.replicator.audit_world import Damaged
from tests.replicator.link_instance import Instance


def play(scenario: Callable[[Instance], Coroutine[Any, Any, None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu"), 1, LinkSettings(audit=AuditSettings(period_s=0)))
            sim.network.latency("us", "eu", 0.01, 0.02)
            await instance.load()
            await scenario(instance)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=300)


async def history(instance: Instance) -> list[int]:
    """Ten runs of us, of a second each, while nothing is replicated. Returns the broker time of each."""
    us = instance.regions["us"]
    broker = us.brokers[0]
    broker.machine.run(broker.links.attach, us.log, [])
    await asyncio.sleep(0.5)
    assert not us.store.cursors
    times = []
    for _ in range(10):
        times.append(broker.clock.wall_ms())
        us.publish(5)
        await asyncio.sleep(1)
    return times


async def switched_on(instance: Instance, policy: dict[str, Any], expected: int) -> None:
    us, eu = instance.regions.values()
    broker = us.brokers[0]

    def attach() -> None:
        broker.links.attach(us.log, ["eu"])
        broker.links.obey(us.log, {"replicationStart": policy})

    broker.machine.run(attach)
    await asyncio.sleep(2)
    us.publish(3)
    await asyncio.sleep(2)
    assert eu.bodies() == [1_000_000 + n for n in range(50 - expected, 53)]
    stats = us.link("eu")
    assert stats.connected and stats.backlog_entries == 0 and stats.progress == 1.0
    (missing,) = eu.log.vector.missing(us.log.origin) or ((None, None),)
    assert (missing[1] is None) == (expected == 50)
    broker.machine.run(broker.links.attach, us.log, ["eu"])
    await us.move(0)
    await asyncio.sleep(3)
    damaged = Damaged(instance)
    report = await damaged.audit(eu)
    assert not report.found and not report.unchecked, report.shown()
    assert len(eu.bodies()) == expected + 3


@pytest.mark.parametrize(("position", "expected"), [("earliest", 50), ("latest", 0), ("time", 20), ("coordinate", 18)])
def test_it_begins_where_the_policy_says(position: str, expected: int) -> None:
    async def scenario(instance: Instance) -> None:
        times = await history(instance)
        us = instance.regions["us"]
        at = us.store.runs()[0]
        policy = {"position": position, "timeMs": times[6], "coordinate": format_coordinate((us.log.origin, (at[0], 32)))}
        await switched_on(instance, policy, expected)

    play(scenario)


def test_a_coordinate_of_another_region_is_refused_with_a_sentence() -> None:
    async def scenario(instance: Instance) -> None:
        await history(instance)
        us, eu = instance.regions.values()
        policy = {"position": "coordinate", "coordinate": format_coordinate((eu.log.origin, (1, 0)))}
        with pytest.raises(AssertionError):
            await switched_on(instance, policy, 50)
        stats = us.link("eu")
        assert not stats.connected and "another region" in stats.cause_text and stats.remedy

    play(scenario)


def test_mutant_nothing_names_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the audit takes it for lost and fetches it."""
    start = link.LinkSender.opened

    def jumps(self: Any, vector: Any, window: int) -> bool:
        back = start(self, vector, window)
        self.read_at = (1, 50)
        return back

    monkeypatch.setattr(link.LinkSender, "opened", jumps)
    with pytest.raises(AssertionError):
        test_it_begins_where_the_policy_says("latest", 0)
