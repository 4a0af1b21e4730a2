"""TaskSet: what is started is kept, told of where it fails, and ended together."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from heliograph.runtime.task_set import TaskSet, cancel_all


def test_what_runs_is_kept_and_counted_until_it_ends() -> None:
    async def run() -> None:
        tasks, may_end = TaskSet(), asyncio.Event()

        async def work() -> int:
            await may_end.wait()
            return 7

        started = tasks.spawn(work())
        await asyncio.sleep(0)
        gc.collect()
        assert len(tasks) == 1 and not started.done()
        may_end.set()
        assert await started == 7
        await asyncio.sleep(0)
        assert not len(tasks)

    asyncio.run(run())


def test_an_error_that_nobody_expected_is_told_once_and_a_cancelled_task_is_none() -> None:
    async def run() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        heard: list[BaseException] = []
        by_loop, by_owner = TaskSet("the watch has ended"), TaskSet(on_error=heard.append)

        async def fails() -> None:
            raise OSError("no disk")

        failed = by_loop.spawn(fails())
        by_owner.spawn(fails())
        by_loop.spawn(asyncio.sleep(600)).cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [(context["message"], str(context["exception"]), context["task"]) for context in told] == [
            ("the watch has ended", "no disk", failed)
        ]
        assert [str(error) for error in heard] == ["no disk"]
        await by_loop.close()  # raises nothing of it

    asyncio.run(run())


def test_close_cancels_all_and_waits_and_nothing_is_begun_after_it() -> None:
    async def run() -> None:
        tasks, said = TaskSet(), list[str]()

        async def work(name: str) -> None:
            said.append(f"{name} begins")
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0)
                tasks.spawn(work("late"))
                said.append(f"{name} ends")

        tasks.spawn(work("a"))
        tasks.spawn(work("b"))
        await asyncio.sleep(0)
        await tasks.close()
        assert said == ["a begins", "b begins", "a ends", "b ends"] and not len(tasks)
        last = tasks.spawn(work("later"))
        await asyncio.wait([last])
        assert last.cancelled() and len(said) == 4
        await tasks.close()

    asyncio.run(run())


def test_a_task_may_close_the_set_that_it_belongs_to() -> None:
    async def run() -> None:
        tasks = TaskSet()

        async def ends_all() -> str:
            await tasks.close()
            return "goes on"

        other = tasks.spawn(asyncio.sleep(600))
        assert await tasks.spawn(ends_all()) == "goes on" and other.cancelled()

    asyncio.run(run())


def test_cancel_all_takes_what_is_there_and_raises_nothing_of_it() -> None:
    async def run() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        async def fails() -> None:
            raise OSError("no disk")

        failed, waiting = asyncio.ensure_future(fails()), asyncio.ensure_future(asyncio.sleep(600))
        await asyncio.wait([failed])
        await cancel_all([None, failed, waiting])
        await cancel_all([None])
        await cancel_all([])
        assert waiting.cancelled()
        del failed
        gc.collect()
        assert not told

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
        ending = asyncio.ensure_future(cancel_all([task]))
        await cancelled.wait()
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled() and not task.done(), "and what it was to end goes on with that"
        may_end.set()
        await asyncio.wait([task])

    asyncio.run(run())
