"""Schemas travel before the messages that name them: when a link opens, when a version is new, and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import MetadataUnavailable, PeerError
from heliograph.wire import link_schemas as wire
from heliograph.wire.link import Kind
from heliograph.wire.link_schemas import SchemaRow
from replicator import schemas
from replicator.causes import Cause
from tests.replicator.link_instance import TOPIC, Instance
from tests.replicator.link_world import parsed


class Registry:
    """`SchemaHost` in memory. Reading takes a while; `refuses`: what the next calls raise."""

    def __init__(self, instance: Instance, name: str) -> None:
        self.instance, self.name = instance, name
        self.rows: dict[int, bytes] = {}
        self.held: dict[int, int] = {}
        """Number -> how many messages were here when it came."""
        self.refuses = 0

    def has(self, topic: str) -> bool:
        return topic == TOPIC and bool(self.rows)

    async def dump(self, topic: str) -> Sequence[SchemaRow]:
        await asyncio.sleep(0.05)
        self._refuse()
        return sorted(self.rows.items())

    async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        self._refuse()
        for number, value in rows:
            if number not in self.rows:
                self.held[number] = len(self.instance.regions[self.name].bodies())
            self.rows.setdefault(number, value)

    def _refuse(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise MetadataUnavailable("no leader")


def play(scenario: Callable[[Instance, dict[str, Registry], Simulation], Coroutine[Any, Any, None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, ("us", "eu"))
            sim.network.latency("us", "eu", 0.01, 0.02)
            await asyncio.sleep(0.01)
            registries = {name: Registry(instance, name) for name in instance.names}
            for name, region in instance.regions.items():
                region.brokers[0].links.schemas = registries[name]
            await scenario(instance, registries, sim)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=200)


def new_version(instance: Instance, registries: dict[str, Registry], number: int) -> None:
    registries["us"].rows[number] = b"schema %d" % number
    broker = instance.regions["us"].brokers[0]
    broker.machine.run(broker.links.schemas_changed, TOPIC)


async def versions_and_messages(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
    us, eu = instance.regions.values()
    registries["us"].rows[0] = b"schema 0"
    us.publish(3)
    await asyncio.sleep(2)
    expected = {0: 0}
    for number in range(1, 6):
        new_version(instance, registries, number)
        expected[number] = us.sequence
        us.publish(4)
        await asyncio.sleep(0.01 * number)
    await asyncio.sleep(2)
    assert registries["eu"].rows == registries["us"].rows
    assert all(registries["eu"].held[number] <= before for number, before in expected.items()), "before the messages that name it"
    assert len(eu.bodies()) == us.sequence


def test_versions_come_before_the_messages_that_name_them() -> None:
    play(versions_and_messages)


def test_mutant_runs_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas.SchemaFeed, "sending", property(lambda self: False))
    with pytest.raises(AssertionError, match="before the messages"):
        play(versions_and_messages)


def test_metadata_that_does_not_answer_delays_and_loses_nothing() -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us, eu = instance.regions.values()
        registries["us"].rows[0] = b"schema 0"
        registries["us"].refuses, registries["eu"].refuses = 2, 2
        us.publish(3)
        await asyncio.sleep(10)
        assert registries["eu"].rows == registries["us"].rows and len(eu.bodies()) == 3
        assert Cause.METADATA in {event["cause"] for event in us.link("eu").history}
        sim.network.cut("us", "eu")
        new_version(instance, registries, 1)
        us.publish(3)
        await asyncio.sleep(8)
        sim.network.heal("us", "eu")
        await asyncio.sleep(8)
        assert registries["eu"].rows == registries["us"].rows and len(eu.bodies()) == 6 and registries["eu"].held[1] <= 3

    play(scenario)


def test_the_frame_comes_back_and_bad_ones_are_peer_errors() -> None:
    rows = [(0, b"a"), (1 << 40, b"bb")]
    kind, fields, _ = parsed(b"".join(bytes(part) for part in wire.schemas_frame(7, rows)))
    assert kind is Kind.SCHEMAS and wire.read_schemas(fields) == (7, rows)
    for bad in ([], ["x"], [1, 2], [1, [1]], [1, [1, b""]], [1, [-1, b"x"]], [1, [1, "x"]], [1, *([[0, b"x"]] * (wire.ROWS_MAX + 1))]):
        with pytest.raises(PeerError):
            wire.read_schemas(bad)
