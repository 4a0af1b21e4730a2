"""SharedReads: one read for many that ask, of which each began after they asked; so many at once, tenants in turn."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.topic_names import TopicName
from region_node.runtime.shared_reads import READS_AT_ONCE, SharedReads


def topic(name: str, tenant: str = "t") -> TopicName:
    return TopicName.parse(f"persistent://{tenant}/n/{name}")


class Slow:
    """Reads that end when they are let."""

    def __init__(self, **limits: int) -> None:
        self.began: list[str] = []
        self.ends: list[asyncio.Future[int]] = []
        self.reads = SharedReads(self.read, lambda topic: topic.tenant, **limits)

    async def read(self, topic: TopicName) -> int:
        self.began.append(str(topic))
        self.ends.append(asyncio.get_running_loop().create_future())
        return await self.ends[-1]

    async def asks(self, *topics: TopicName) -> list[asyncio.Task[int]]:
        tasks = [asyncio.ensure_future(self.reads.of(each)) for each in topics]
        for _ in range(4):
            await asyncio.sleep(0)
        return tasks

    async def end(self, at: int, value: int) -> None:
        self.ends[at].set_result(value)
        for _ in range(6):
            await asyncio.sleep(0)


def test_who_asks_while_it_is_read_gets_what_is_read_next() -> None:
    async def test() -> None:
        slow = Slow()
        first = await slow.asks(topic("a"))
        more = await slow.asks(*[topic("a")] * 100)
        assert len(slow.began) == 1
        more[0].cancel()
        await slow.end(0, 1)
        assert first[0].result() == 1 and len(slow.began) == 2 and not more[1].done()
        last = await slow.asks(topic("a"))
        await slow.end(1, 2)
        assert [each.result() for each in more[1:]] == [2] * 99 and len(slow.began) == 3
        slow.ends[2].set_exception(MetadataUnavailable("away"))
        with pytest.raises(MetadataUnavailable, match="away"):
            await last[0]
        assert not slow.reads._running and not slow.reads._waiting

    asyncio.run(test())


def test_a_tenants_topics_wait_and_another_tenants_have_the_next_turn() -> None:
    async def test() -> None:
        slow = Slow()
        tasks = await slow.asks(*(topic(str(number)) for number in range(READS_AT_ONCE + 10)))
        tasks += await slow.asks(topic("x", "other"))
        assert len(slow.began) == READS_AT_ONCE
        await slow.end(0, 0)
        await slow.end(1, 0)
        assert str(topic("x", "other")) in slow.began[READS_AT_ONCE:] and len(slow.began) == READS_AT_ONCE + 2
        for task in tasks:
            task.cancel()

    asyncio.run(test())


def test_more_than_may_wait_are_told_to_try_again() -> None:
    async def test() -> None:
        slow = Slow(waiting_max=2)
        tasks = await slow.asks(*(topic(str(number)) for number in range(READS_AT_ONCE + 3)))
        with pytest.raises(MetadataUnavailable, match="try again"):
            await tasks[-1]
        assert len(slow.began) == READS_AT_ONCE
        for task in tasks:
            task.cancel()

    asyncio.run(test())
