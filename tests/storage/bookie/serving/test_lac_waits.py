"""Readers that wait at a bookie for a ledger to be confirmed further."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import NoSuchLedger
from storage.bookie.serving.lac_waits import LacWaits
from tests.storage.bookie.serving.bookie_cluster import Cluster, Writer, scenario


def test_each_waiter_is_answered_once_when_there_is_more_or_its_time_is_over() -> None:
    waits, heard = LacWaits(9), list[str]()
    waits.wait(1, 5, 2.0, lambda: heard.append("a"))
    waits.wait(1, 7, 9.0, lambda: heard.append("b"))
    waits.wait(2, 0, 1.0, lambda: heard.append("c"))
    assert 1 in waits and 3 not in waits and len(waits) == 3
    waits.moved(1, 5)
    assert heard == []
    waits.moved(1, 6)
    assert heard == ["a"]
    for _ in range(3):
        assert heard == ["a"]
        waits.tick(0.5)
    assert heard == ["a", "c"] and 2 not in waits
    waits.ended(1)
    waits.moved(1, 100)
    waits.tick(100)
    assert heard == ["a", "c", "b"] and not len(waits)


def test_the_oldest_makes_room_for_a_new_one() -> None:
    waits, heard = LacWaits(3), list[int]()
    for number in range(5):
        waits.wait(number % 2, 9, 10.0, lambda number=number: heard.append(number))  # type: ignore[misc]
    assert heard == [0, 1] and len(waits) == 3


def test_a_long_poll_over_a_connection() -> None:
    async def body(cluster: Cluster) -> None:
        client, reader = cluster.client(), cluster.client()
        loop = asyncio.get_running_loop()
        writer = Writer(client, 1)
        early = asyncio.ensure_future(reader.wait_lac(1, -1, 2.0))  # nothing of it is there yet
        await asyncio.sleep(0.1)
        writer.add(3)
        writer.add(2)  # says that 0..2 are confirmed
        began = loop.time()
        assert await early == 2 and loop.time() - began < 0.2, "an add tells it"
        assert await reader.wait_lac(1, 1, 2.0) == 2, "it is known already"
        began = loop.time()
        poll = asyncio.ensure_future(reader.wait_lac(1, 2, 2.0))
        await asyncio.sleep(0.3)
        assert not poll.done()
        client.write_lac(1, 4)
        assert await poll == 4 and loop.time() - began < 0.6
        assert await reader.wait_lac(1, 4, 1.0) == 4, "its time is over"
        assert loop.time() - began > 1.0
        poll = asyncio.ensure_future(reader.wait_lac(1, 4, 2.5))
        await asyncio.sleep(0.1)
        began = loop.time()
        await client.fence(1)
        assert await poll == 4 and loop.time() - began < 0.2, (
            "who waits for a ledger that is being recovered had better look at its metadata"
        )
        began = loop.time()
        assert await reader.wait_lac(1, 4, 2.5) == 4 and loop.time() - began < 0.2, "a fenced one is not waited for"
        with pytest.raises(NoSuchLedger):
            await reader.wait_lac(7, -1, 0.5)
        client.close()
        reader.close()

    scenario(body)
