"""Looking for a message of a backlog, or through all of it, lets others go on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.positions import Position
from heliograph.wire.run import Run
from region_node.topics.backlog_reading import analysed, nth_unacked

LAST = 50


class Backlog:
    """A topic whose entries are read one at a time, all from memory, and a subscription that has read none of them."""

    def __init__(self) -> None:
        self.reads, self.text, self.readable, self.last_confirmed = 0, "persistent://t/n/x", self, (1, LAST)
        cursor = SimpleNamespace(mark_delete=(1, -1), unacked_runs=lambda runs: runs)
        found = SimpleNamespace(cursor=cursor, properties={}, rules=SimpleNamespace(filters=()))
        self.subscriptions = {"s": found}

    async def read(self, at: Position, entries_max: int, bytes_max: int) -> list[tuple[int, int, Run]]:
        self.reads += 1
        return [(1, at[1], Run([b"x"], [1]))]


@pytest.mark.parametrize("call", ["peek", "analyze"])
def test_others_go_on_between_two_reads(call: str) -> None:
    async def test() -> None:
        backlog, turns = Backlog(), 0

        topic: Any = backlog
        found = topic.subscriptions["s"]
        if call == "analyze":
            looking: asyncio.Future[Any] = asyncio.ensure_future(analysed(topic, found, "s"))
        else:
            looking = asyncio.ensure_future(nth_unacked(topic, found, "s", LAST))
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert looking.result() == (1, LAST - 1) if call == "peek" else looking.result()["entries"] == LAST + 1
        assert turns >= backlog.reads >= LAST

    asyncio.run(test())
