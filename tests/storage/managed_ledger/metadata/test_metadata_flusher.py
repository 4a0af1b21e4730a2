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
