"""Drills that begin by themselves: one at a time, in their turn, gone on with by another broker, never in place of
something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import ABSENT
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotAllowed
from region_node.dr.operations.drill_schedule import DrillSchedule, Schedule, schedule
from region_node.dr.operations.operation import STEPS, Operation
from region_node.dr.operations.operation_steps import Conductor, reports_of
from tests.region_node.dr.operations.world import NS, Clock, Obeying, View, World, failed_over, lack, link


async def brokers(world: World, count: int, *, region: str = "eu") -> list[DrillSchedule]:
    made = [DrillSchedule(world.store, world.make, clock=Clock(), region=region) for _ in range(count)]
    for broker in made:
        await broker.start()
    return made


def test_each_turn_is_taken_once_and_what_was_missed_is_not_made_up_for() -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        obeying, made = Obeying(world), await brokers(world, 3)
        await world.store.put(
            schedule(NS), Schedule(every_s=100, next_ms=Clock().wall_ms() - 1_000_000, to="eu").encode()
        )
        await asyncio.sleep(240)
        reports = await reports_of(world.store, NS)
        assert [report["id"] for report in reports] == [1, 2, 3] and {report["by"] for report in reports} == {
            "schedule"
        }
        assert world.shadows.signed == 3
        await world.store.delete(schedule(NS))
        await asyncio.sleep(150)
        assert len(await reports_of(world.store, NS)) == 3, "off is off"
        obeying.stop()
        for broker in made:
            await broker.stop()

    run_alone(main())


def test_another_broker_goes_on_with_one_that_was_left_behind() -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        made = await brokers(world, 1)
        await world.store.put(schedule(NS), Schedule(every_s=10_000, next_ms=0, to="eu").encode())
        await asyncio.sleep(20)
        operation, _ = await world.conductor.operation(NS)
        assert operation is not None and operation.running and operation.step == "rehearse", (
            "nobody obeys, so it waits there"
        )
        await made[0].stop()
        obeying, others = Obeying(world), await brokers(world, 2)
        await asyncio.sleep(60)
        assert [report["id"] for report in await reports_of(world.store, NS)] == [1]
        obeying.stop()
        for broker in others:
            await broker.stop()

    run_alone(main())


def test_one_that_waits_keeps_no_other_from_beginning_and_is_asked_for_by_one_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world, regions = World(), ("us", "eu", "ap")
        monkeypatch.setattr(
            View, "namespace", lambda _, name: NamespacePolicies(regions=regions[: 2 if "-drill-" in name else 3])
        )
        world.down = {"ap"}
        asked = list[tuple[int, str]]()

        def of(number: int) -> Callable[[], Conductor]:
            def conductor() -> Conductor:
                made = world.make()
                advance = made.advance

                async def recorded(namespace: str, *of: Any) -> Operation:
                    asked.append((number, namespace))
                    return await advance(namespace, *of)

                made.advance = recorded  # type: ignore[method-assign]
                return made

            return conductor

        made = [DrillSchedule(world.store, of(number), clock=Clock(), region="eu") for number in range(2)]
        for broker in made:
            await broker.start()
        obeying, names = Obeying(world), (NS, "t/o", "t/p", "t/q")
        for namespace in names:
            await world.conductor.switching.begin(namespace, "us", {})
            to = "eu" if namespace == "t/q" else "ap"
            await world.store.put(schedule(namespace), Schedule(every_s=10_000, next_ms=0, to=to).encode())
            await asyncio.sleep(11)
        for namespace in names[:-1]:
            operation, _ = await world.conductor.operation(namespace)
            assert operation is not None and operation.waiting == "region ap does not answer"
        await asyncio.sleep(60)
        assert len(await reports_of(world.store, "t/q")) == 1, "the three before it wait for a region that is away"
        asked.clear()
        await asyncio.sleep(60)
        assert {namespace for _, namespace in asked} == set(names[:-1])
        assert len(set(asked)) == 3, "each by one broker"
        await made[asked[0][0]].stop()
        asked.clear()
        await asyncio.sleep(60)
        assert len(set(asked)) == 3, "another one goes on with what it has left"
        obeying.stop()
        for broker in made:
            await broker.stop()

    run_alone(main())


def test_it_does_not_begin_while_something_else_is_under_way_and_says_why() -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        world.topic("eu")["lacks"]["us"] = lack()
        await world.conductor.begin("switchover", NS, "eu", "op")
        made = await brokers(world, 1)
        await world.store.put(schedule(NS), Schedule(every_s=60, next_ms=0).encode())
        await asyncio.sleep(30)
        operation, _ = await world.conductor.operation(NS)
        assert operation is not None and operation.kind == "switchover"
        assert "is under way" in made[0].known[NS][0].said
        await made[0].stop()

    run_alone(main())


def test_a_drill_takes_no_turn_of_a_rejoin_and_gives_way_to_everything() -> None:
    async def main() -> None:
        world = World()
        await failed_over(world)
        world.topic("us")["links"]["eu"] = link(entries=9, messages=9)  # its tail is on its way for long
        await world.conductor.begin("rejoin", NS, "us", "op")
        made = await brokers(world, 1)
        await world.store.put(schedule(NS), Schedule(every_s=10_000, next_ms=0).encode())
        await asyncio.sleep(30)
        operation, _ = await world.conductor.operation(NS)
        assert operation is not None and operation.kind == "rejoin" and operation.running
        assert "a rejoin of t/n to eu is under way" in made[0].known[NS][0].said
        await made[0].stop()
        await world.conductor.cancel(NS)
        for kind, target in (("rejoin", "us"), ("switchover", "us"), ("failover", "us")):
            assert (await world.conductor.begin("drill", NS, "us", "op")).kind == "drill"
            begun = await world.conductor.begin(kind, NS, target, "op")
            assert begun.kind == kind and (await world.conductor.history(NS))[-1].kind == "drill"
            with pytest.raises(NotAllowed, match="under way"):
                await world.conductor.begin("drill", NS, "us", "op")
            await world.conductor.cancel(NS)

    run_alone(main())


@pytest.mark.parametrize("given_up", ("cancel", "failover"))
@pytest.mark.parametrize("step", STEPS["drill"])
def test_a_drill_that_was_given_up_at_any_step_leaves_nothing(step: str, given_up: str) -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        for region in ("us", "eu"):
            await world.obey(region)
        operation = await world.conductor.begin("drill", NS, "eu", "op")
        while operation.step != step:
            operation = await world.conductor.advance(NS)
            for region in ("us", "eu"):
                await world.obey(region)
        inside = step in ("rehearse", "first", "clean")
        if step == "rehearse":  # in its middle: the shadow is closed
            await world.conductor.advance(NS)
            await world.conductor.advance(NS)
        world.shadows.away = True
        made = [*await brokers(world, 1), *await brokers(world, 1, region="us")]
        if given_up == "cancel":
            await world.conductor.cancel(NS)
        else:
            await world.conductor.begin("failover", NS, "eu", "op")
        await asyncio.sleep(20)
        assert bool(world.shadows.there) == inside, "a region that is lost looks at nothing"
        world.shadows.away = False
        await asyncio.sleep(20)
        assert not world.shadows.there and list(await world.conductor.switching.all()) == [NS]
        rows = await world.store.range("/dr/", "/dr0")
        assert not [key for key, _, _ in rows if "-drill-" in key], "nor is anything of it on record"
        for broker in made:
            await broker.stop()

    run_alone(main())


def test_the_shadow_of_a_drill_that_waits_is_left_alone() -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        await world.conductor.begin("drill", NS, "eu", "op")
        for _ in range(6):
            await world.conductor.advance(NS)
        made = await brokers(world, 2)
        await asyncio.sleep(60)
        assert list(world.shadows.there) == [f"{NS}-drill-1"] and len(await world.conductor.switching.all()) == 2
        for broker in made:
            await broker.stop()

    run_alone(main())


@pytest.mark.parametrize("every_s", (0, 59, 1e12, float("nan")))
def test_how_often_has_its_bounds(every_s: float) -> None:
    with pytest.raises(NotAllowed):
        Schedule(every_s=every_s, next_ms=0)


def test_what_cannot_be_read_is_passed_over() -> None:
    async def main() -> None:
        store = EmbeddedStore()

        world = World()
        broker = DrillSchedule(store, world.make, clock=Clock())
        await broker.start()
        for blob in (b"", b"{}", b'{"format": 1, "every_s": 1, "next_ms": 0}', b'{"format": 7}'):
            await store.put(schedule(NS), blob)
            await asyncio.sleep(10)
        assert not broker.known and await world.conductor.operation(NS) == (None, ABSENT)
        await broker.stop()

    run_alone(main())
