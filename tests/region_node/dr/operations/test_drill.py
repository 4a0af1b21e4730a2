"""A drill's shadow is as large as its namespace, and goes whatever happens; what it costs publishers is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from region_node.dr.drill_settings import DrillSettings
from region_node.dr.operations.drill import shadow_of
from region_node.dr.operations.operation import Operation
from region_node.dr.operations.operation_steps import reports_of
from tests.region_node.dr.operations.world import NS, Interrupted, World, steps

PLAIN, PARTED = 70, 60
MANY = (
    *(f"persistent://{NS}/plain-{index}" for index in range(PLAIN)),
    *(f"persistent://{NS}/parted-partition-{index}" for index in range(PARTED)),
)


async def world_of(names: Sequence[str], settings: DrillSettings, world: World | None = None) -> World:
    world = world or World()
    await world.begin()
    world.have(names)
    world.drills = settings
    return world


async def advanced(world: World, step: str = "") -> tuple[Operation, list[str]]:
    """The drill, once it is at that step, "": has ended; with all that it has waited for. By another conductor each
    time.
    """
    said = []
    for _ in range(100):
        op = await world.make().advance(NS)
        said.append(op.waiting)
        if op.step == step:
            return op, said
        for region in ("us", "eu"):
            await world.obey(region)
    raise AssertionError(f"never there: {op}")


async def begun(world: World) -> None:
    await world.conductor.begin("drill", NS, "eu", "op")


def test_a_shadow_has_as_many_topics_in_both_regions_made_and_deleted_some_at_a_time() -> None:
    async def main() -> None:
        world = await world_of(MANY, DrillSettings(latency_before_s=0))
        await begun(world)
        op, said = await advanced(world, "rehearse")
        shadow = shadow_of(op)
        there = world.shadows.there[shadow]
        assert there["us"] == there["eu"] and len(there["us"]) == PLAIN + PARTED, "as many, and in the target, too"
        assert all(name.startswith(f"persistent://{shadow}/") for name in there["us"]), "under no other name"
        assert list(world.shadows.parted.values()) == [PARTED], "partitions of one topic"
        assert world.shadows.most_at_once < len(MANY) and f"50 of 130 topics of {shadow} are made" in said
        ended, said = await advanced(world)
        assert any("topics of" in why and "are left" in why for why in said), "they go some at a time, too"
        assert not world.shadows.there
        report = ended.report["signed"]
        assert report["passed"] and report["topics"] == {
            "measured": 130,
            "of": 130,
            "text": "measured with 130 of 130 topics",
        }
        assert report["rto_s"] >= report["first"]["max_ms"] / 1000 > 0 and report["first"]["topics"] > 1

    run_alone(main())


def test_a_bound_is_kept_and_told() -> None:
    async def main() -> None:
        world = await world_of(MANY, DrillSettings(topics_max=100, latency_before_s=0))
        await begun(world)
        op, _ = await advanced(world, "rehearse")
        assert len(world.shadows.there[shadow_of(op)]["eu"]) == 100
        ended, _ = await advanced(world)
        assert ended.report["signed"]["topics"]["text"] == "measured with 100 of 130 topics"
        assert next(text for name, _, text in ended.steps if name == "shadow").endswith("with 100 of 130 topics")

    run_alone(main())


@pytest.mark.parametrize("after", (False, True), ids=("lost", "answer-lost"))
def test_interrupted_at_any_write_a_large_shadow_is_made_once_and_gone_in_the_end(after: bool) -> None:
    async def main() -> None:
        for at in range(1, 80):
            world = await world_of(MANY, DrillSettings(latency_before_s=0), World(Interrupted(0, after)))
            assert isinstance(world.store, Interrupted)
            world.store.at, world.store.writes = at, 0
            done = await steps(world, "drill")
            assert done.state == "done" and done.report["made"] == len(MANY), f"interrupted at write {at}"
            assert not world.shadows.there and len(await reports_of(world.store, NS)) == 1
            if world.store.writes < at:
                return
        raise AssertionError("a drill has fewer writes than that")

    run_alone(main())


def test_a_region_that_does_not_answer_in_the_middle_is_asked_again() -> None:
    async def main() -> None:
        for at in range(1, 40):
            world = await world_of(MANY, DrillSettings(latency_before_s=0))
            world.shadows.fails_at = at
            done = await steps(world, "drill")
            assert done.report["signed"]["passed"] and not world.shadows.there, f"nobody answered call {at}"
            if world.shadows.calls < at:
                return
        raise AssertionError("a drill asks less often than that")

    run_alone(main())


@pytest.mark.parametrize("step", ("shadow", "rehearse", "first", "clean"))
def test_what_a_drill_that_was_given_up_has_made_is_removed_in_each_region_by_itself(step: str) -> None:
    async def main() -> None:
        world = await world_of(MANY, DrillSettings(latency_before_s=0))
        await begun(world)
        op, _ = await advanced(world, step)
        if step == "shadow":
            op = await world.make().advance(NS)  # some of its topics are there
        name = shadow_of(op)
        drill = world.make().drill
        assert drill is not None and name in world.shadows.there
        assert not await drill.sweep("eu") and name in world.shadows.there, "not while it is under way"
        await world.conductor.cancel(NS)
        for region in ("us", "eu"):  # neither asks the other
            while name not in await drill.sweep(region):
                pass
            assert region not in world.shadows.there.get(name, {})
        assert not world.shadows.there and name not in await world.conductor.switching.all()

    run_alone(main())


async def measured(settings: DrillSettings, before: Sequence[float], during: Sequence[float]) -> dict[str, Any]:
    """The report of a drill before and in which a thousand messages took each of these times (ms) in both regions."""
    world = await world_of(MANY[:3], settings)
    await begun(world)
    op = await world.make().advance(NS)
    assert op.step == "live" and "is measured for" in op.waiting
    for took_ms in before:
        for region in ("us", "eu"):
            world.shadows.published(region, took_ms)
    op = await world.make().advance(NS)
    assert op.step == "live", "the time is not over"
    world.later_ms = int(settings.latency_before_s * 1000)
    await advanced(world, "audit")
    for took_ms in during:
        for region in ("us", "eu"):
            world.shadows.published(region, took_ms)
    ended, _ = await advanced(world)
    assert ended.report["latency"] is None, "what was looked at does not stay in the record"
    report: dict[str, Any] = ended.report["signed"]
    return report


@pytest.mark.parametrize(
    ("settings", "before", "during", "verdict"),
    [
        (DrillSettings(), (2.0,), (2.0,), "kept"),
        (DrillSettings(), (2.0,), (6.0,), "kept"),
        (DrillSettings(), (2.0,), (20.0,), "broken"),
        (DrillSettings(latency_times_max=20.0), (2.0,), (20.0,), "kept"),
        (DrillSettings(latency_more_ms_max=50.0), (2.0,), (20.0,), "kept"),
        (DrillSettings(latency_more_ms_max=0.0), (2.0,), (6.0,), "broken"),
        (DrillSettings(), (100.0,), (118.0,), "kept"),
        (DrillSettings(), (100.0,), (170.0,), "broken"),
        (DrillSettings(), (), (2.0,), "no traffic"),
        (DrillSettings(), (2.0,), (), "not measured"),
    ],
)
def test_what_publishing_costs_during_a_drill_is_judged(
    settings: DrillSettings, before: Sequence[float], during: Sequence[float], verdict: str
) -> None:
    async def main() -> None:
        report = await measured(settings, before, during)
        assert {region: part["verdict"] for region, part in report["publish_latency"].items()} == {
            "us": verdict,
            "eu": verdict,
        }
        fails = verdict in ("broken", "not measured")
        assert report["passed"] is not fails
        assert len(report["because"]) == (2 if fails else 0)

    run_alone(main())


def test_a_drill_that_an_earlier_version_has_begun_does_not_say_that_publishing_was_measured() -> None:
    async def main() -> None:
        world = await world_of(MANY[:3], DrillSettings(latency_before_s=0))
        await begun(world)
        await advanced(world, "audit")
        world.drills = DrillSettings()
        ended, _ = await advanced(world)
        report = ended.report["signed"]
        assert not report["passed"] and {part["verdict"] for part in report["publish_latency"].values()} == {
            "not measured"
        }

    run_alone(main())


def test_the_rto_is_that_of_the_last_client() -> None:
    async def main() -> None:
        world = await world_of(MANY, DrillSettings(clients=5, latency_before_s=0))
        await begun(world)
        ended, _ = await advanced(world)
        report = ended.report["signed"]
        led = report["clients"]["pulsar"]
        assert (led["measured"], led["clients"], led["acked"]["max_s"], led["read"]["max_s"]) == (True, 5, 5.0, 5.5)
        assert report["passed"] and report["rto_s"] == 5.5 and report["rto_lost_s"] == 5.5 + 6.0
        assert not world.shadows.clients_there, "they have left"

    run_alone(main())


@pytest.mark.parametrize("connects", (True, False))
def test_clients_that_do_not_come_are_waited_for_and_are_not_measured(*, connects: bool) -> None:
    async def main() -> None:
        world = await world_of(MANY[:3], DrillSettings(latency_before_s=0))
        world.shadows.connects = connects
        world.shadows.follows = False
        await begun(world)
        await advanced(world, "rehearse")
        if not connects:
            op = await world.make().advance(NS)
            assert op.step == "rehearse" and op.waiting == "0 of 3 clients are connected"
            assert (await world.make().operation(op.report["shadow"]))[0] is None, "nothing is failed over before"
            world.later_ms = 30_000
        await advanced(world, "first")
        op = await world.make().advance(NS)
        assert op.step == "first" and "2 of 3 published" in op.waiting
        world.later_ms += 60_000
        ended, _ = await advanced(world)
        report = ended.report["signed"]
        assert not report["passed"] and "clients of pulsar take was not measured: 2 of 3" in report["because"][0]

    run_alone(main())


def test_without_clients_none_are_asked_for() -> None:
    async def main() -> None:
        world = await world_of(MANY[:3], DrillSettings(clients=0, latency_before_s=0))
        world.shadows.connects = False
        done = await steps(world, "drill")
        assert done.report["signed"]["passed"] and done.report["signed"]["clients"] == {}

    run_alone(main())
