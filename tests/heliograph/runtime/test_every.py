"""every: its pauses, what wakes it, and which errors it goes on after. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import HeliographError
from heliograph.runtime.every import every


def test_it_waits_works_and_waits_again_counted_from_the_end_of_the_work() -> None:
    async def run() -> None:
        begun: list[float] = []
        loop = asyncio.get_running_loop()

        async def work() -> None:
            begun.append(round(loop.time() - start, 3))
            await asyncio.sleep(0.5)

        start = loop.time()
        task = loop.create_task(every(2.0, work))
        await asyncio.sleep(8.0)
        task.cancel()
        at_once = loop.create_task(every(2.0, work, first_s=0))
        await asyncio.sleep(3.0)
        at_once.cancel()
        assert begun == [2.0, 4.5, 7.0, 8.0, 10.5]

    with Simulation(1) as sim:
        sim.run(run())


def test_what_says_the_period_is_asked_before_each_pause() -> None:
    async def run() -> None:
        begun: list[float] = []
        loop = asyncio.get_running_loop()
        periods = iter((1.0, 2.0, 3.0, 600.0))

        async def work() -> None:
            begun.append(round(loop.time() - start, 3))

        start = loop.time()
        task = loop.create_task(every(lambda: next(periods), work))
        await asyncio.sleep(10.0)
        task.cancel()
        assert begun == [1.0, 3.0, 6.0]

    with Simulation(2) as sim:
        sim.run(run())


def test_it_goes_on_after_a_refusal_that_is_told_and_ends_by_everything_else() -> None:
    async def run() -> None:
        errors = iter((HeliographError("a"), None, HeliographError("b"), OSError("no disk")))
        told: list[str] = []

        async def work() -> None:
            error = next(errors)
            if error is not None:
                raise error

        with pytest.raises(OSError, match="no disk"):
            await every(1.0, work, failed=lambda error: told.append(str(error)))
        assert told == ["a", "b"]

        async def refused() -> None:
            raise HeliographError("c")

        with pytest.raises(HeliographError, match="c"):
            await every(1.0, refused)

    with Simulation(3) as sim:
        sim.run(run())


def test_who_wakes_it_need_not_wait_and_what_comes_during_a_round_brings_another() -> None:
    async def run() -> None:
        begun: list[float] = []
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        async def work() -> None:
            begun.append(round(loop.time() - start, 3))
            await asyncio.sleep(0.5)

        start = loop.time()
        task = loop.create_task(every(lambda: 10.0 if begun else None, work, first_s=30.0, wake=wake))
        await asyncio.sleep(1.0)
        wake.set()
        await asyncio.sleep(0.2)
        wake.set()
        await asyncio.sleep(15.0)
        task.cancel()
        assert begun == [1.0, 1.5, 12.0]
        for_ever = loop.create_task(every(lambda: None, work, wake=wake))
        await asyncio.sleep(500.0)
        assert len(begun) == 3
        for_ever.cancel()

    with Simulation(4) as sim:
        sim.run(run())
