"""Throttle: who shares it waits in order, and together they take no more than the rate. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.runtime.throttle import OWED_S, ROWS, FairQueue, RowPace, Throttle


def test_those_who_share_it_wait_in_order() -> None:
    async def run() -> None:
        throttle, loop = Throttle(100.0), asyncio.get_running_loop()
        start, took = loop.time(), list[tuple[str, float]]()

        async def takes(name: str, amount: float) -> None:
            await throttle.take(amount)
            took.append((name, pytest.approx(loop.time() - start)))

        await asyncio.gather(takes("a", 50), takes("b", 200), takes("c", 1))
        assert took == [("a", 0.0), ("b", 0.5), ("c", 2.5)]
        await asyncio.sleep(10.0)
        start = loop.time()
        await throttle.take(1)
        assert loop.time() == start

    with Simulation(1) as sim:
        sim.run(run())


def test_small_pieces_wait_together() -> None:
    async def run() -> None:
        throttle, loop = Throttle(1000.0), asyncio.get_running_loop()
        start, times = loop.time(), set[float]()
        for _ in range(200):
            await throttle.take(1)
            times.add(loop.time() - start)
        assert len(times) <= 200 / 1000.0 / OWED_S + 1, "each of them had a timer of its own"
        assert 0.2 - 2 * OWED_S <= max(times) <= 0.2

    with Simulation(3) as sim:
        sim.run(run())


def test_who_is_cancelled_while_it_waits_has_spent_it() -> None:
    async def run() -> None:
        throttle, loop = Throttle(100.0), asyncio.get_running_loop()
        start = loop.time()
        await throttle.take(100)
        waiting = loop.create_task(throttle.take(100))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await throttle.take(1)
        assert loop.time() - start == pytest.approx(2.0)

    with Simulation(2) as sim:
        sim.run(run())


def test_rows_that_are_made_at_once_are_one_pause_at_most() -> None:
    async def run() -> None:
        pace, passes = RowPace(), 0
        for count in (0, ROWS - 1, 10 * ROWS, 1):
            asked = asyncio.ensure_future(pace.rows(count))
            while not asked.done():
                await asyncio.sleep(0)
                passes += 1
        assert passes == 4 + 2

    asyncio.run(run())


def test_so_many_go_on_at_once_and_others_have_their_turns() -> None:
    async def run() -> None:
        queue, begun = FairQueue(2, 100), list[str]()

        async def goes_on(who: str) -> None:
            assert await queue.take(who)
            begun.append(who)
            await asyncio.sleep(1.0)
            queue.give()

        await asyncio.gather(*(goes_on(who) for who in "aaaaaabcb"))
        assert "".join(begun) == "aaabcabaa"
        await asyncio.gather(goes_on("a"), goes_on("a"))

    with Simulation(1) as sim:
        sim.run(run())


def test_who_has_most_of_the_waiting_places_gives_one_to_who_has_fewer() -> None:
    async def run() -> None:
        queue = FairQueue(1, 3)
        assert await queue.take("a")
        waiting = [asyncio.ensure_future(queue.take("a")) for _ in range(3)]
        await asyncio.sleep(0)
        assert not await queue.take("a")
        other = asyncio.ensure_future(queue.take("b"))
        await asyncio.sleep(0)
        assert not await waiting[2]
        queue.give()
        assert await waiting[0]
        queue.give()
        assert await other
        queue.give()
        assert await waiting[1]

    with Simulation(1) as sim:
        sim.run(run())


def test_parts_of_one_share_its_turns_and_places() -> None:
    async def run() -> None:
        queue, begun = FairQueue(1, 5), list[str]()

        async def goes_on(who: str, part: str) -> None:
            if not await queue.take(who, part):
                begun.append("-" + part)
                return
            begun.append(part)
            await asyncio.sleep(1.0)
            queue.give()

        order = ["a1", "a1", "a1", "a1", "a2", "b", "a1", "a2", "a3", "c"]
        await asyncio.gather(*(goes_on(each[0], each) for each in order))
        assert sorted(each for each in begun if each[0] == "-") == ["-a1"] * 3 + ["-a2"]
        assert [each for each in begun if each[0] != "-"] == ["a1", "a1", "b", "c", "a2", "a3"]
        assert not queue._counts and not queue._waiting_count

    with Simulation(1) as sim:
        sim.run(run())


def test_a_place_of_one_that_is_cancelled_goes_to_the_next_one() -> None:
    async def run() -> None:
        queue = FairQueue(1, 3)
        assert await queue.take("a")
        gone, given, last = (asyncio.ensure_future(queue.take(who)) for who in "abc")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        queue.give()
        given.cancel()  # its turn has come, and it does not know yet
        assert await last
        last.cancel()
        fifth = asyncio.ensure_future(queue.take("d"))
        await asyncio.sleep(0)
        fifth.cancel()
        queue.give()
        assert await queue.take("e")

    with Simulation(1) as sim:
        sim.run(run())
