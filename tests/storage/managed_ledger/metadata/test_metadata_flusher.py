"""The flusher on the loop of production: what is due at once gets another kind of handle there."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Put
from heliograph.kv.state_machine import KvMachine
from replicator.links.timer_wheel import Timers
from storage.managed_ledger.metadata.metadata_flusher import MetadataFlusher

uvloop = pytest.importorskip("uvloop")


class Topic:
    """A member with one thing to write."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.written = asyncio.get_running_loop().create_future()

    def collect(self) -> list[Put]:
        return [Put(self.key, b"x")]

    def on_not_written(self) -> None: ...

    def on_written(self, version: int) -> None:
        if not self.written.done():
            self.written.set_result(version)


class Tasks:
    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        return task


class Context:
    def __init__(self) -> None:
        self.meta, self.tasks = EmbeddedStore(KvMachine()), Tasks()


def test_many_members_that_are_due_at_once_are_all_written() -> None:
    async def run() -> None:
        flusher = MetadataFlusher(cast(Any, Context()))
        topics = [Topic(f"/t{number}") for number in range(20)]
        for topic in topics:
            flusher.request(cast(Any, topic), 0.0)
        await asyncio.wait_for(asyncio.gather(*(topic.written for topic in topics)), 10)
        flusher.close()

    uvloop.run(run())


def test_timers_that_are_due_at_once_all_run() -> None:
    async def run() -> None:
        timers, came = Timers(asyncio.get_running_loop()), []
        done = asyncio.get_running_loop().create_future()
        for number in range(5):
            timers.after(0.0, lambda number=number: came.append(number))  # type: ignore[misc]
        timers.after(0.01, lambda: done.set_result(None))
        await asyncio.wait_for(done, 10)
        assert came == [0, 1, 2, 3, 4]

    uvloop.run(run())


class Counted(Topic):
    """A member that notes who was asked since other work had its turn."""

    def __init__(self, key: str, asked: list[str]) -> None:
        super().__init__(key)
        self.asked = asked

    def collect(self) -> list[Put]:
        self.asked.append(self.key)
        return super().collect()


def test_ten_thousand_members_that_are_due_at_once_leave_other_work_its_turn() -> None:
    async def run() -> None:
        flusher, asked, most, total = MetadataFlusher(cast(Any, Context())), list[str](), 0, 0
        topics = [Counted(f"/t{number:05}", asked) for number in range(10_001)]
        for topic in topics:
            flusher.request(cast(Any, topic), 0.0)
        gone = topics.pop(9_000)
        written = asyncio.gather(*(topic.written for topic in topics))
        order: list[str] = []
        while not written.done():
            await asyncio.sleep(0)
            if asked and not order:
                flusher.drop(cast(Any, gone))  # its topic ended while others were written
            most, total = max(most, len(asked)), total + len(asked)
            order += asked
            asked.clear()
        assert most <= 64
        assert order == [topic.key for topic in topics], (
            "each once, in the order of the requests; the one that is gone never"
        )
        flusher.close()

    asyncio.run(run())


def test_a_member_that_fails_keeps_none_of_the_others_from_being_written() -> None:
    class Broken(Topic):
        def collect(self) -> list[Put]:
            raise RuntimeError("a fault of the program")

    async def run() -> None:
        context = Context()
        flusher = MetadataFlusher(cast(Any, context))
        topics = [Topic("/a"), Broken("/b"), Topic("/c")]
        for topic in topics:
            flusher.request(cast(Any, topic), 0.0)
        await asyncio.wait_for(asyncio.gather(topics[0].written, topics[2].written), 10)
        failed = [task for task in context.tasks.running if task.done() and task.exception() is not None]
        assert len(failed) == 1
        flusher.close()

    asyncio.run(run())
