"""The simulator's loop: virtual time, order, lives that end, failures that are noticed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.loop import START_S, SimFailure, SimLoop
from geo_tests.sim.simulation import Machine, Simulation


def test_time_jumps() -> None:
    with Simulation(1) as sim:

        async def main() -> float:
            await asyncio.sleep(3600)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 100)
            return asyncio.get_running_loop().time()

        assert sim.run(main(), limit_s=4000) == START_S + 3700


def test_timers_fire_in_order() -> None:
    loop = SimLoop()
    order: list[float] = []

    async def main() -> None:
        for delay in (3, 1, 2, 1):
            loop.call_later(delay, order.append, delay)
        cancelled = loop.call_later(1.5, order.append, 1.5)
        cancelled.cancel()
        await asyncio.sleep(5)

    loop.run(main())
    loop.close()
    assert order == [1, 1, 2, 3]


def test_a_killed_process_does_nothing_more() -> None:
    said: list[str] = []

    async def process(machine: Machine) -> None:
        async def child() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    said.append("child")
            finally:
                said.append("finally")

        def timer() -> None:
            said.append("timer")
            machine.loop.call_later(1, timer)

        timer()
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    with Simulation(1) as sim:
        machine = sim.machine("a")

        async def main() -> None:
            machine.start(process)
            await asyncio.sleep(1.5)
            machine.kill()
            before = list(said)
            await asyncio.sleep(10)
            assert said == before == ["timer", "child", "timer"] or said == before == ["timer", "timer", "child"]
            machine.start(process)
            await asyncio.sleep(1.5)
            assert len(said) == 6

        sim.run(main())
        assert "finally" not in said


def test_an_error_in_a_callback_fails_the_run() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            sim.loop.call_later(1, lambda: 1 / 0)
            await asyncio.sleep(2)

        with pytest.raises(SimFailure, match="ZeroDivisionError"):
            sim.run(main())


def test_an_error_in_a_forgotten_task_fails_the_run() -> None:
    async def broken() -> None:
        await asyncio.sleep(1)
        raise ValueError("nobody listens")

    async def process(machine: Machine) -> None:
        machine.loop.create_task(broken())

    with Simulation(1) as sim:

        async def main() -> None:
            sim.machine("a").start(process)
            await asyncio.sleep(5)

        with pytest.raises(SimFailure, match="nobody listens"):
            sim.run(main())


def test_an_error_of_a_process_fails_the_run() -> None:
    async def process(_: Machine) -> None:
        raise ValueError("cannot start")

    with Simulation(1) as sim:

        async def main() -> None:
            sim.machine("a").start(process)
            await asyncio.sleep(5)

        with pytest.raises(SimFailure, match="cannot start"):
            sim.run(main())


def test_a_wait_that_nothing_can_end_fails_the_run() -> None:
    with Simulation(1) as sim, pytest.raises(SimFailure, match="everything waits"):
        sim.run(asyncio.Event().wait())


def test_the_virtual_limit() -> None:
    with Simulation(1) as sim, pytest.raises(SimFailure, match="virtual limit"):
        sim.run(asyncio.sleep(100), limit_s=50)


def test_time_that_stands_still_fails_the_run() -> None:
    loop = SimLoop(callbacks_max=1000)

    def again() -> None:
        loop.call_soon(again)

    async def main() -> None:
        again()
        await asyncio.sleep(1)

    asyncio.set_event_loop(loop)
    try:
        with pytest.raises(SimFailure, match="1000 callbacks and time stands still"):
            loop.run(main())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_a_process_that_is_stopped_goes_on_where_it_was_and_its_clock_has_gone_on() -> None:
    with Simulation(1) as sim:
        machine, seen = sim.machine("a"), list[tuple[str, float]]()

        async def serve(machine: Machine) -> None:
            class Echo(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    seen.append((data.decode(), machine.clock.monotonic() - START_S))

            await machine.loop.create_server(Echo, machine.host, 7000)
            while True:
                await asyncio.sleep(1)
                seen.append(("tick", machine.clock.monotonic() - START_S))

        async def send() -> None:
            transport, _ = await sim.loop.create_connection(asyncio.Protocol, "a", 7000)
            await asyncio.sleep(1)
            transport.write(b"one")
            await asyncio.sleep(1)

        async def main() -> None:
            machine.start(serve)
            await asyncio.sleep(1.5)
            assert seen == [("tick", 1.0)]
            life = machine.stop()
            await sim.call("b", send)
            await asyncio.sleep(5 - sim.now())
            assert seen == [("tick", 1.0)] and life is machine.life and life is not None
            sim.loop.go_on(life)
            await asyncio.sleep(1.5)
            assert sorted(seen[1:]) == [("one", 5.0), ("tick", 5.0), ("tick", 6.0)]
            machine.stop()
            machine.kill()
            assert life.held is None
            sim.loop.go_on(life)
            await asyncio.sleep(5)
            assert len(seen) == 4, "what was stopped and killed does not go on"

        sim.run(main(), limit_s=60)


def test_tasks_hash_by_number() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            tasks = [asyncio.ensure_future(asyncio.sleep(1)) for _ in range(100)]
            assert list(set(tasks)) == sorted(tasks, key=hash)
            entered: Any = asyncio.tasks._all_tasks  # type: ignore[attr-defined]
            assert {hash(each) for each in entered.data} >= {hash(task) for task in tasks}, "asyncio hashed them so too"
            await asyncio.gather(*tasks)

        sim.run(main())


def test_ask_and_call() -> None:
    async def answer(text: str) -> str:
        await asyncio.sleep(1)
        return text

    async def idle(_: Machine) -> None:
        pass

    with Simulation(1) as sim:

        async def main() -> None:
            assert await sim.call("client", answer, "x") == "x"
            machine = sim.machine("a")
            machine.start(idle)
            sim.loop.call_later(0.5, machine.kill)
            with pytest.raises(TimeoutError):
                await machine.ask(answer, "y", limit_s=5)

        sim.run(main())


def test_run_in_executor_is_inline() -> None:
    with Simulation(1) as sim:

        async def main() -> int:
            return await asyncio.to_thread(lambda: 7)

        assert sim.run(main()) == 7
