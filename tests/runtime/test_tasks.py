"""Ending a task: who waits for it may be cancelled himself."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.runtime.tasks import end


def test_a_task_is_ended_and_what_it_ended_by_before_is_heard() -> None:
    async def run() -> None:
        await end(None)
        task = asyncio.ensure_future(asyncio.sleep(600))
        await asyncio.sleep(0)
        await end(task)
        assert task.cancelled()

        async def fails() -> None:
            raise OSError("no disk")

        failed = asyncio.ensure_future(fails())
        await asyncio.wait([failed])
        with pytest.raises(OSError, match="no disk"):
            await end(failed)

    asyncio.run(run())


def test_who_is_cancelled_while_it_waits_for_the_end_of_another_is_cancelled() -> None:
    async def run() -> None:
        cancelled, may_end = asyncio.Event(), asyncio.Event()

        async def slow_to_end() -> None:
            try:
                await asyncio.sleep(600)
            finally:
                cancelled.set()
                await may_end.wait()

        task = asyncio.ensure_future(slow_to_end())
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(end(task))
        await cancelled.wait()
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled() and not task.done(), "and what it was to end goes on with that"
        may_end.set()
        await asyncio.wait([task])

    asyncio.run(run())
