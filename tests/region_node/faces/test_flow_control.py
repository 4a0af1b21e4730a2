"""What one read of a socket brings does not take the loop for itself."""

from __future__ import annotations

import asyncio

import pytest

from region_node.faces import flow_control
from region_node.faces.flow_control import PacedStarts


def test_requests_are_begun_in_their_order_some_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_control, "BEGUN_AT_ONCE", 2)

    async def run() -> None:
        begun: list[int] = []
        tasks: list[asyncio.Task[None]] = []

        async def request(number: int) -> None:
            begun.append(number)

        loop = asyncio.get_running_loop()
        held: list[bool] = []
        starts = PacedStarts(lambda work: tasks.append(loop.create_task(work)), loop.call_soon, held.append)
        for number in range(5):
            starts.begin(request(number))
        assert held == [True], "nothing is read while something waits"
        counts = []
        for _ in range(3):
            await asyncio.sleep(0)
            counts.append(len(begun))
        assert counts == [2, 4, 5] and begun == [0, 1, 2, 3, 4] and held == [True, False]
        await asyncio.sleep(0)
        for number in (5, 6):
            starts.begin(request(number))
        await asyncio.sleep(0)
        assert begun[5:] == [5, 6] and held == [True, False] and all(task.done() for task in tasks), (
            "a new pass begins as many again"
        )

    asyncio.run(run())
