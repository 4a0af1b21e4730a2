"""Schemas travel before the messages that name them: when a link opens, when a version is new, and again after a
failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import LinkError, MetadataUnavailable, NotAllowed, PeerError
from heliograph.wire.links import schema_commands as wire
from heliograph.wire.links.link_commands import LinkFrameKind, close_frame, read_close
from heliograph.wire.links.schema_commands import SchemaRow
from replicator.health.link_causes import Cause
from replicator.links import schema_feed
from replicator.links.parked_links import Choice, resolve
from replicator.links.schema_feed import SchemaConflict
from tests.broken_rules import BrokenRules
from tests.replicator.link_instance import TOPIC, Instance
from tests.replicator.link_world import parsed


class Registry:
    """`SchemaHost` in memory. Reading takes a while; `refuses`: what the next calls raise."""

    def __init__(self, instance: Instance, name: str) -> None:
        self.instance, self.name = instance, name
        self.rows: dict[int, bytes] = {}
        self.held: dict[int, int] = {}
        """Number -> how many messages were here when it came."""
        self.refuses = self.adoptions = 0

    def has(self, topic: str) -> bool:
        return topic == TOPIC and bool(self.rows)

    async def dump(self, topic: str) -> Sequence[SchemaRow]:
        await asyncio.sleep(0.05)
        self._refuse()
        return sorted(self.rows.items())

    async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        self._refuse()
        self.adoptions += 1
        if b"unreadable" in dict(rows).values():
            raise LinkError(Cause.SCHEMA_REFUSED, "it cannot be read")
        if parted := [(number, self.rows[number]) for number, value in rows if self.rows.get(number, value) != value]:
            raise SchemaConflict("others are here", parted)
        for number, value in rows:
            if number not in self.rows:
                self.held[number] = len(self.instance.regions[self.name].bodies())
            self.rows.setdefault(number, value)

    async def overrule(self, topic: str, rows: Sequence[SchemaRow]) -> None:
        self.rows.update(rows)
        broker = self.instance.regions[self.name].brokers[0]
        broker.machine.run(broker.links.schemas_changed, TOPIC)

    def _refuse(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise MetadataUnavailable("no leader")


def play(
    scenario: Callable[[Instance, dict[str, Registry], Simulation], Coroutine[Any, Any, None]],
    names: tuple[str, ...] = ("us", "eu"),
) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, names)
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
    assert all(registries["eu"].held[number] <= before for number, before in expected.items()), (
        "before the messages that name it"
    )
    assert len(eu.bodies()) == us.sequence


def test_versions_come_before_the_messages_that_name_them() -> None:
    play(versions_and_messages)


def test_mutant_runs_do_not_wait(broken: BrokenRules) -> None:
    broken.setattr(schema_feed.SchemaFeed, "sending", property(lambda self: False))
    with broken.found(match="before the messages"):
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
        assert (
            registries["eu"].rows == registries["us"].rows and len(eu.bodies()) == 6 and registries["eu"].held[1] <= 3
        )

    play(scenario)


async def conflict(instance: Instance, registries: dict[str, Registry]) -> None:
    """us and eu have other schemas under number 7; us has published 3 messages."""
    registries["us"].rows[7], registries["eu"].rows[7] = b"ours", b"theirs"
    instance.regions["us"].publish(3)
    await asyncio.sleep(3)
    parked = instance.regions["us"].outgoing("eu").parked
    assert parked is not None and parked.rows == ((7, b"theirs"),), "the link waits for a decision"


async def held_back(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
    us, eu = instance.regions.values()
    await conflict(instance, registries)
    before = us.link("eu").restarts
    looks = registries["eu"].adoptions
    await asyncio.sleep(65)
    stats = us.link("eu")
    assert (stats.state, stats.cause, stats.remedy != "") == ("parked", "schema-conflict", True)
    assert stats.restarts == before and len(stats.history) == 1, "looking again is no restart"
    assert 1 <= registries["eu"].adoptions - looks <= 3, "it looks again, slowly"
    assert eu.bodies() == [] and stats.backlog_messages == 3 and registries["eu"].rows == {7: b"theirs"}, (
        "held, and nothing taken over"
    )
    assert [link.target for link in us.brokers[0].links.parked] == ["eu"]


def test_a_conflict_parks_the_link_and_holds_what_it_has() -> None:
    play(held_back)


def test_mutant_a_conflict_is_an_end_like_others(broken: BrokenRules) -> None:
    broken.setattr(Cause, "parks", property(lambda self: False))
    with broken.found(match="waits for a decision"):
        play(held_back)


@pytest.mark.parametrize(("choice", "left"), [(Choice.OURS, b"ours"), (Choice.THEIRS, b"theirs")])
def test_a_decision_ends_the_conflict_in_both_directions(choice: Choice, left: bytes) -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us, eu = instance.regions.values()
        await conflict(instance, registries)
        link = instance.regions["us"].outgoing("eu")
        assert await resolve(link, choice, dry_run=True) == [7]
        await asyncio.sleep(1)
        assert (
            us.link("eu").state == "parked"
            and registries["us"].rows == {7: b"ours"}
            and registries["eu"].rows == {7: b"theirs"}
        )
        assert await us.brokers[0].machine.ask(lambda: resolve(link, choice)) == [7]
        await asyncio.sleep(1)
        assert registries["us"].rows == registries["eu"].rows == {7: left}
        assert len(eu.bodies()) == 3 and us.link("eu").state == "open"
        eu.publish(2)
        await asyncio.sleep(45)
        assert len(us.bodies()) == 5 and eu.link("us").state == "open" and us.link("eu").cause == "none"
        assert not us.brokers[0].links.parked and not eu.brokers[0].links.parked
        with pytest.raises(NotAllowed, match="not parked"):
            await resolve(link, Choice.RETRY)

    play(scenario)


def test_what_cannot_be_read_there_parks_until_the_schemas_change() -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us, eu = instance.regions.values()
        registries["us"].rows[0] = b"unreadable"
        us.publish(3)
        await asyncio.sleep(3)
        assert (us.link("eu").state, us.link("eu").cause) == ("parked", "schema-refused")
        with pytest.raises(NotAllowed, match="nothing to take"):
            await resolve(instance.regions["us"].outgoing("eu"), Choice.OURS)
        new_version(instance, registries, 0)
        await asyncio.sleep(1)
        assert us.link("eu").state == "open" and len(eu.bodies()) == 3, "at once, without a decision"

    play(scenario)


def test_a_cut_while_parked_and_a_change_of_the_configuration() -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us, eu = instance.regions.values()
        await conflict(instance, registries)
        looks = registries["eu"].adoptions
        us.brokers[0].machine.run(instance.view.set, eu.info)
        await asyncio.sleep(1)
        assert registries["eu"].adoptions == looks + 1 and us.link("eu").state == "parked"
        sim.network.cut("us", "eu")
        await asyncio.sleep(40)
        assert us.link("eu").cause == "schema-conflict", "what has to be decided stays in view"
        sim.network.heal("us", "eu")
        registries["eu"].rows[7] = b"ours"
        await asyncio.sleep(45)
        assert us.link("eu").state == "open" and len(eu.bodies()) == 3

    play(scenario)


def test_a_conflict_that_ended_elsewhere_is_over_without_any_message() -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us = instance.regions["us"]
        registries["us"].rows[7], registries["eu"].rows[7] = b"ours", b"theirs"
        await instance.load()
        await asyncio.sleep(3)
        assert us.link("eu").state == "parked"
        registries["eu"].rows[7] = b"ours"
        await asyncio.sleep(45)
        assert us.link("eu").state == "open" and not us.brokers[0].links.parked

    play(scenario)


def test_a_third_region_hears_of_what_was_taken_in_place_of_another() -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us = instance.regions["us"]
        await conflict(instance, registries)
        assert us.link("ap").state == "open" and registries["ap"].rows == {7: b"ours"}
        await us.brokers[0].machine.ask(lambda: resolve(us.outgoing("eu"), Choice.THEIRS))
        await asyncio.sleep(1)
        assert us.link("ap").state == "parked" and us.outgoing("ap").parked.rows == ((7, b"ours"),), (
            "on the stream that was told otherwise before"
        )
        await us.brokers[0].machine.ask(lambda: resolve(us.outgoing("ap"), Choice.OURS))
        await asyncio.sleep(7)
        assert registries["ap"].rows == {7: b"theirs"} and us.link("ap").state == "open"

    play(scenario, ("us", "eu", "ap"))


def test_a_target_of_an_older_version_cannot_be_overruled() -> None:
    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        await conflict(instance, registries)
        link = instance.regions["us"].outgoing("eu")
        link._level = 5
        with pytest.raises(NotAllowed, match="upgrade it"):
            await resolve(link, Choice.OURS)
        assert link.parked is not None

    play(scenario)


def test_more_versions_than_a_frame_takes_arrive_in_several() -> None:
    """Two times 600, with all that was deleted between: a target takes nothing of it away."""

    async def scenario(instance: Instance, registries: dict[str, Registry], sim: Simulation) -> None:
        us, eu = instance.regions.values()
        registries["us"].rows = {number: b"schema %d" % number for number in range(1201)}
        us.publish(3)
        await asyncio.sleep(2)
        assert registries["eu"].rows == registries["us"].rows and registries["eu"].adoptions == 2
        assert set(registries["eu"].held.values()) == {0} and len(eu.bodies()) == us.sequence

    play(scenario)


def test_the_frame_comes_back_and_bad_ones_are_peer_errors() -> None:
    rows = [(0, b"a"), (1 << 40, b"bb")]
    kind, fields, _ = parsed(b"".join(bytes(part) for part in wire.schemas_frames(7, rows)))
    assert kind is LinkFrameKind.SCHEMAS and wire.read_schemas(fields) == (7, rows)
    kind, fields, _ = parsed(b"".join(bytes(part) for part in wire.overrule_frames(7, rows)))
    assert kind is LinkFrameKind.OVERRULE and wire.read_schemas(fields) == (7, rows)
    _, fields, _ = parsed(b"".join(bytes(part) for part in close_frame(7, "schema-conflict", "text", rows)))
    assert (
        read_close(fields) == (7, "schema-conflict", "text")
        and wire.close_rows(fields) == rows
        and wire.close_rows(fields[:3]) == []
    )
    for rest in (3, [1], [[1]], [[1, b""]], [["x", b"x"]]):
        with pytest.raises(PeerError):
            wire.close_rows([7, "c", "t", rest])
    for bad in (
        [],
        ["x"],
        [1, 2],
        [1, [1]],
        [1, [1, b""]],
        [1, [-1, b"x"]],
        [1, [1, "x"]],
        [1, *([[0, b"x"]] * (wire.ROWS_MAX + 1))],
    ):
        with pytest.raises(PeerError):
            wire.read_schemas(bad)
