"""Offload: what runs beside the loop, how many may wait, and what it raises."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.runtime.compute_thread import Offload, Overloaded


def test_offload_is_bounded() -> None:
    async def run() -> None:
        offload = Offload(waiting_max=2)
        first = [asyncio.ensure_future(offload.run(lambda: sum(range(1000)))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await offload.run(lambda: 1)
        assert await asyncio.gather(*first) == [499_500] * 2
        assert await offload.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await offload.run(lambda: 1 // 0)
        offload.close()

    asyncio.run(run())
