"""Whoever asks for the steps of an operation that nobody waits for: one broker, and another one where that dies."""

from __future__ import annotations

import asyncio
from typing import Any

from geo_tests.sim.loop import run_alone
from region_node.dr.operations.operation import DONE, FAILOVER
from region_node.dr.operations.operation_driver import OperationDriver
from tests.region_node.dr.operations.world import NS, Clock, Obeying, World


def driver(world: World) -> OperationDriver:
    return OperationDriver(world.store, world.make, Clock(), 2.0)


def test_it_is_asked_for_until_it_is_done_and_told_of_once() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        obeying = Obeying(world)
        op = await world.conductor.begin(FAILOVER, NS, "eu", "somebody")
        ended = await asyncio.gather(*(driver(world).drive(op) for _ in range(2)))
        found = next(one for one in ended if one is not None)
        assert found.state == DONE and (await world.leadership()).active == "eu"
        assert [await driver(world).tells(found) for _ in range(2)] == [True, False]
        obeying.stop()

    run_alone(main())


def test_another_one_goes_on_only_once_nobody_does_any_more() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        op = await world.conductor.begin(FAILOVER, NS, "eu", "somebody")
        waits = asyncio.get_running_loop().create_task(driver(world).drive(op))  # nobody obeys: it waits at the fence
        await asyncio.sleep(5)
        assert not await driver(world).left_behind(NS, FAILOVER, "somebody"), "it is asked for"
        waits.cancel()
        assert not await driver(world).left_behind(NS, FAILOVER, "operator"), "another one's is nobody's to take"
        taken = await asyncio.gather(*(driver(world).left_behind(NS, FAILOVER, "somebody") for _ in range(3)))
        assert sorted(taken) == [False, False, True]

    run_alone(main())


def test_who_does_a_long_step_has_not_left_it_behind() -> None:
    async def main() -> None:
        world = World()
        await world.begin()

        async def slow(region: str, _: str) -> dict[str, Any]:
            await asyncio.sleep(20)
            return world.facts[region]

        world._facts = slow  # type: ignore[method-assign]
        op = await world.conductor.begin(FAILOVER, NS, "eu", "somebody")
        obeying = Obeying(world)
        drives = asyncio.get_running_loop().create_task(driver(world).drive(op))
        for _ in range(5):
            assert not await driver(world).left_behind(NS, FAILOVER, "somebody"), "it is at work"
            await asyncio.sleep(5)
        await asyncio.sleep(30)
        ended = await drives
        assert ended is not None and ended.state == DONE
        obeying.stop()

    run_alone(main())


def test_what_was_begun_in_its_place_is_somebody_elses() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        op = await world.conductor.begin("switchover", NS, "eu", "somebody")
        await world.conductor.begin(FAILOVER, NS, "eu", "operator")
        assert await driver(world).drive(op) is None

    run_alone(main())
