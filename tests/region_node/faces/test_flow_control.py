"""What one read of a socket brings does not take the loop for itself."""

from __future__ import annotations

import asyncio

from region_node.faces.flow_control import BEGUN_AT_ONCE, PacedStarts


def test_requests_are_begun_in_their_order_some_in_one_pass() -> None:
    most = BEGUN_AT_ONCE
    count = 2 * most + 1

    async def run() -> None:
        begun: list[int] = []
        tasks: list[asyncio.Task[None]] = []

        async def request(number: int) -> None:
            begun.append(number)

        loop = asyncio.get_running_loop()
        held: list[bool] = []
        starts = PacedStarts(lambda work: tasks.append(loop.create_task(work)), loop.call_soon, held.append)
        for number in range(count):
            starts.begin(request(number))
        assert held == [True], "nothing is read while something waits"
        counts = []
        for _ in range(3):
            await asyncio.sleep(0)
            counts.append(len(begun))
        assert counts == [most, 2 * most, count] and begun == list(range(count)) and held == [True, False]
        await asyncio.sleep(0)
        for number in range(count, count + most):
            starts.begin(request(number))
        await asyncio.sleep(0)
        assert len(begun) == count + most and held == [True, False] and all(task.done() for task in tasks), (
            "a new pass begins as many again"
        )

    asyncio.run(run())
