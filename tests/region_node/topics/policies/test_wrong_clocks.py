"""A broker whose wall clock is a day ahead, or becomes it: nothing is given up, in whole regions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from geo_tests.sim.region import CONFIG_PORT, NAMESPACE
from geo_tests.sim.region_stories import TOPIC, Story
from geo_tests.sim.simulation import Machine
from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.positions import BEFORE_ALL
from region_node.faces.kafka.groups.consumer_group import EMPTY
from region_node.faces.kafka.groups.group_coordinator import GroupCoordinator
from region_node.faces.kafka.session.kafka_broker import KafkaBroker

DAY_MS = 86_400_000
REGIONS = ("us", "eu")


@pytest.mark.slow
@pytest.mark.parametrize("when", ("while-it-runs", "before-it-starts"))
def test_a_broker_a_day_ahead_keeps_what_is_not_old(when: str) -> None:
    """Neither time to live nor retention ends by it: neither where the clock jumps, nor where a process begins beside
    the wrong one, and hears the other region only later.
    """
    bodies = [b"message %d" % number for number in range(30)]
    left: dict[str, Any] = {}

    async def tell(story: Story) -> None:
        await story.sim.call("us-client", policies, story.sim.machine("us-client"))
        await asyncio.sleep(5)
        await story.publish("us", TOPIC, bodies)
        node = story.regions["us"].brokers[0]
        role: Any = node.roles[0]

        async def subscribe() -> None:
            for name in ("behind", "done"):
                await role.topics.create_subscription(TOPIC, name, at=BEFORE_ALL)
            await role.topics.skip_all(TOPIC, "done")
            await (await role.topics.get(TOPIC, create=False)).ledger.roll_over()

        await node.machine.ask(subscribe)
        if when == "before-it-starts":
            node.kill()
            await asyncio.sleep(1)
        node.machine.clock.offset_ms += DAY_MS
        if when == "before-it-starts":
            await story.begin_anew([node])
        await asyncio.sleep(100)
        role = node.roles[0]

        async def look() -> None:
            topic = await role.topics.get(TOPIC, create=False)
            left["behind"] = topic.subscriptions["behind"].cursor.backlog_entries
            left["expires"] = topic.policies.limit("messageTTL")

        await node.machine.ask(look)
        left["read"] = await story.bodies("us", TOPIC)

    async def policies(machine: Machine) -> None:
        store = MetaClient([f"us-meta:{CONFIG_PORT}"], clock=machine.clock, rng=machine.rng)
        wanted = {"messageTTL": 3600, "retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}}
        await ConfigAdmin(store).update_namespace(
            NAMESPACE, lambda old: replace(old, policies={**old.policies, **wanted})
        )
        store.close()

    Story.play(tell, *REGIONS)
    assert left["expires"] == 3600
    assert left["behind"] and left["read"] == bodies, left


def test_kafkas_retention_and_offsets_obey_the_same_clock() -> None:
    async def main() -> None:
        kept: list[int] = []
        expired: list[Any] = []

        async def keep(before_ms: int, size: int) -> None:
            kept.append(before_ms)

        log = SimpleNamespace(name="t", keep=keep)
        rows = {("t", 0): SimpleNamespace(at_ms=DAY_MS)}
        held = SimpleNamespace(
            group=SimpleNamespace(state=EMPTY, empty_since_ms=DAY_MS, members={}),
            offsets=SimpleNamespace(rows=rows),
            unused=False,
            empty=False,
        )
        broker = SimpleNamespace(
            expiry=SimpleNamespace(wall_ms=lambda: DAY_MS + 5000),
            clock=SimpleNamespace(wall_ms=lambda: 9 * DAY_MS),
            logs=lambda: [log],
            configs=SimpleNamespace(number=lambda topic, name: 4000 if name == "retention.ms" else -1),
            settings=SimpleNamespace(offsets_retention_s=10.0),
            cluster=SimpleNamespace(owns=lambda place: True, coordinates=lambda place: True),
            group_leadership=SimpleNamespace(forget=lambda name: None),
            tasks=SimpleNamespace(spawn=expired.append),
        )
        await KafkaBroker.keep(broker)  # type: ignore[arg-type]
        assert kept == [DAY_MS + 1000]
        coordinator = SimpleNamespace(
            _broker=broker,
            _held={"g": held},
            _round=[],
            _looks_a_tick=1,
            _joined={},
            _ending=set(),
            place=lambda name: name,
            now=0.0,
            _expire=lambda held, old: old,
        )
        GroupCoordinator.tick(coordinator)  # type: ignore[arg-type]
        assert not expired
        broker.settings.offsets_retention_s = 4.0
        GroupCoordinator.tick(coordinator)  # type: ignore[arg-type]
        assert expired == [[("t", 0)]]

    run_alone(main())
