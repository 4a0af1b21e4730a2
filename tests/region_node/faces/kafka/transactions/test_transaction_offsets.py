"""Offsets that transactions hold: how much of them, and how often what is stored is gone through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import HeliographError
from heliograph.runtime.task_set import TaskSet
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.committed_offsets import Committed, Row, encode
from region_node.faces.kafka.transactions.transaction_offsets import TRANSACTIONS_MAX, TransactionOffsets
from region_node.faces.kafka.transactions.transactional_id_expiration import TXN_OFFSETS


class CountedStore(EmbeddedStore):
    """How often somebody went through what transactions hold, and which keys were read."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.read = 0, list[str]()
        self.fails = False

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        self.looks += start == TXN_OFFSETS
        self.read.append(start)
        if self.fails:
            raise HeliographError("it is away")
        await asyncio.sleep(0)
        return await super().range(start, end, limit=limit)

    async def hold(self, name: str, group: str, topic: str, *partitions: int, producer: int = 1) -> None:
        rows = encode({partition: Row(7, -1, "", 1) for partition in partitions})
        await self.put(f"{TXN_OFFSETS}{name}/{group}/{topic}", msgpack.packb([1, producer, 0, rows]))


def offsets_of(test: Callable[[CountedStore, TaskSet], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        tasks = TaskSet()
        await test(CountedStore(), tasks)
        await tasks.close()

    asyncio.run(run())


def test_who_asks_meanwhile_shares_the_next_look() -> None:
    async def run(store: CountedStore, tasks: TaskSet) -> None:
        offsets = TransactionOffsets(store, tasks)
        await store.hold("id", "g0", "t", 0, 5)
        await store.hold("other", "g1", "t", 1)
        asked = [asyncio.create_task(offsets.of_group(f"g{number % 3}")) for number in range(30)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store.looks == 1
        await store.hold("late", "g2", "t", 2)
        late = asyncio.create_task(offsets.of_group("g2"))
        found = await asyncio.gather(*asked)
        assert found[0] == {("t", 0), ("t", 5)} and found[1] == {("t", 1)}
        assert await late == {("t", 2)}, "what was written before it asked is there"
        assert store.looks == 2

    offsets_of(run)


def test_who_asks_hears_that_the_metadata_is_away() -> None:
    async def run(store: CountedStore, tasks: TaskSet) -> None:
        offsets, store.fails = TransactionOffsets(store, tasks), True
        with pytest.raises(HeliographError, match="away"):
            await offsets.of_group("g")
        store.fails = False
        assert await offsets.of_group("g") == set()

    offsets_of(run)


def test_a_transaction_has_a_bound_of_bytes() -> None:
    async def run(store: CountedStore, tasks: TaskSet) -> None:
        offsets = TransactionOffsets(store, tasks, held_bytes_max=1_000)
        offsets.grow((0, 1), 900)
        with pytest.raises(Refused, match="commit it more often") as refused:
            offsets.check((0, 1), 101)
        assert refused.value.code == Code.POLICY_VIOLATION
        offsets.check((0, 1), 100)
        offsets.check((0, 2), 1_000)
        for number in range(TRANSACTIONS_MAX + 5):
            offsets.grow((1, number), 1)
        assert len(offsets._held) == TRANSACTIONS_MAX

    offsets_of(run)


def test_of_a_group_what_is_beside_a_transactions_offsets_is_read_alone() -> None:
    async def run(store: CountedStore, tasks: TaskSet) -> None:
        await Committed(store, "g").put({("t", 0): Row(1, -1, "", 1), ("u", 0): Row(2, -1, "", 1)})
        await store.hold("id", "g", "t", 1)
        await store.hold("id", "h", "t", 1, producer=2)  # another one's, who had the id before
        await TransactionOffsets(store, tasks).move("id", 1, 5, commit=True)
        assert store.read == [f"{TXN_OFFSETS}id/"], "no group is read whole"
        found = Committed(store, "g")
        await found.load()
        assert found.rows[("t", 1)] == Row(7, -1, "", 5) and len(found.rows) == 3
        assert await store.range(TXN_OFFSETS, TXN_OFFSETS + "~") == []
        await store.hold("id", "g", "t", 2)
        await TransactionOffsets(store, tasks).move("id", 1, 5, commit=False)
        await found.load()
        assert len(found.rows) == 3 and await store.range(TXN_OFFSETS, TXN_OFFSETS + "~") == []

    offsets_of(run)
