"""A link that is switched on later begins where the policy says; what it leaves out is named, and nothing fetches it
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import format_coordinate
from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from replicator.audit.audit_settings import AuditSettings
from replicator.links import link
from replicator.log.coordinate_lookup import LookupStatus, position_of
from replicator.log.routing_trees import is_skip
from replicator.manager.link_manager import LinkSettings
from tests.broken_rules import BrokenRules
from tests.replicator.audit.audit_world import Damaged
from tests.replicator.link_instance import Instance


def play(scenario: Callable[[Instance], Coroutine[Any, Any, None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu"), 1, LinkSettings(audit=AuditSettings(period_s=0), left_grace_s=0.0))
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
        policy = {
            "position": position,
            "timeMs": times[6],
            "coordinate": format_coordinate((us.log.origin, (at[0], 32))),
        }
        await switched_on(instance, policy, expected)

    play(scenario)


def test_what_is_published_while_the_cursor_cannot_be_made_is_sent_wherever_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(instance: Instance) -> None:
        await history(instance)
        us, eu = instance.regions.values()
        broker, ledger = us.brokers[0], us.ledger
        made, refused = ledger.open_cursor, [0]

        async def not_now(*given: Any, **more: Any) -> Any:
            if refused[0] < 3:
                refused[0] += 1
                raise MetadataUnavailable("no voter answers")
            return await made(*given, **more)

        monkeypatch.setattr(ledger, "open_cursor", not_now)
        broker.machine.run(broker.links.attach, us.log, ["eu"])
        broker.machine.run(broker.links.obey, us.log, {"replicationStart": {"position": "latest"}})
        while refused[0] < 3:
            us.publish(1)
            await asyncio.sleep(0.2)
        await asyncio.sleep(10)
        assert us.sequence > 51 and eu.bodies() == us.bodies()[50:]

    play(scenario)


def test_what_outlived_its_time_for_replication_is_named_expired_and_not_sent() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        broker = us.brokers[0]
        us.publish(4)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "eu")
        broker.machine.run(broker.links.obey, us.log, {"replicationTTL": 5})
        await asyncio.sleep(12)  # it is noticed
        for _ in range(10):
            us.publish(5)
            await asyncio.sleep(2)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        here = us.bodies()
        gone = [body for body in here if body not in eu.bodies()]
        assert gone and gone == here[4 : 4 + len(gone)], "the oldest of what was held up, in one piece"
        assert 20 <= len(gone) < 50, len(gone)
        (missing,) = eu.log.vector.missing(us.log.origin)
        found = [SkipRecord.decode(run.parts[0]) for _, _, run in eu.store.runs() if is_skip(run)]
        assert [(record.reason, record.after, record.through) for record in found] == [(SkipReason.EXPIRED, *missing)]
        at = us.store.runs()[1]
        assert (await position_of(eu.log, us.log.origin, (at[0], at[1]))).status is LookupStatus.LOST
        us.publish(3)
        await asyncio.sleep(2)
        assert eu.bodies()[-3:] == us.bodies()[-3:] and us.link("eu").backlog_entries == 0
        damaged = Damaged(instance)
        report = await damaged.audit(eu)
        assert not report.found, report.shown()

    play(scenario)


def test_a_wrong_clock_gives_up_nothing_that_is_held_up() -> None:
    """replicationTTL measures by the earliest clock: of the source, which may be set anew, and of the regions that it
    hears.
    """

    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        broker = us.brokers[0]
        broker.machine.run(broker.links.obey, us.log, {"replicationTTL": 3600})
        us.publish(4)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "eu")
        for _ in range(10):
            us.publish(5)
            await asyncio.sleep(2)
        broker.machine.clock.offset_ms = 86_400_000
        us.publish(5)
        await asyncio.sleep(20)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert eu.bodies() == us.bodies() and not eu.log.vector.missing(us.log.origin)

    play(scenario)


def test_what_a_receipt_waits_for_does_not_outlive_its_time() -> None:
    """Else a publisher would hear that eu has what was given up on the way there."""

    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        broker = us.brokers[0]
        durability = {"regions": 2, "degradeAfterMs": 0}
        broker.machine.run(broker.links.obey, us.log, {"replicationTTL": 5, "durability": durability})
        instance.sim.network.cut("us", "eu")
        for _ in range(10):
            us.publish(5)
            await asyncio.sleep(2)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert eu.bodies() == us.bodies() and not eu.log.vector.missing(us.log.origin)
        broker.machine.run(broker.links.obey, us.log, {"replicationTTL": 5})
        instance.sim.network.cut("us", "eu")
        for _ in range(10):
            us.publish(5)
            await asyncio.sleep(2)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert eu.log.vector.missing(us.log.origin), "nothing waits any more"

    play(scenario)


def test_without_the_policy_everything_is_sent_however_old() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        broker = us.brokers[0]
        broker.machine.run(broker.links.obey, us.log, {"messageTTL": 1})
        instance.sim.network.cut("us", "eu")
        us.publish(5)
        await asyncio.sleep(60)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert eu.bodies() == us.bodies() and not eu.log.vector.missing(us.log.origin)

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


def test_mutant_nothing_names_what_is_left_out(broken: BrokenRules) -> None:
    """Then the audit takes it for lost and fetches it."""
    start = link.LinkSender.opened

    def jumps(self: Any, vector: Any, window: int) -> bool:
        back = start(self, vector, window)
        self.read_at = (1, 50)
        return back

    broken.setattr(link.LinkSender, "opened", jumps)
    with broken.found():
        test_it_begins_where_the_policy_says("latest", 0)
