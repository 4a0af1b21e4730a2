"""FlakyStore: a MetadataStore whose calls take time, fail, and sometimes don't tell what became of them.

An unknown outcome is one of three: it happened, it never will, or it happens later, when the caller has gone on.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from geo_tests.sim.loop import LIFE
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, Put, WatchCallback
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import HeliographError, MetadataUnavailable, OutcomeUnknown

T = TypeVar("T")


class FlakyStore(EmbeddedStore):
    def __init__(self, machine: KvMachine, rng: random.Random, *, trouble: float = 0.0, delay_s: float = 0.003) -> None:
        super().__init__(machine)
        self.rng, self.trouble, self.delay_s = rng, trouble, delay_s
        self._outside = contextvars.copy_context()
        self._outside.run(LIFE.set, None)
        self._inner = EmbeddedStore(machine)
        self._late: list[asyncio.Task[object]] = []

    async def get(self, key: str) -> tuple[bytes, int] | None:
        return await self._read(lambda: self._inner.get(key))

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        return await self._read(lambda: self._inner.range(start, end, limit=limit))

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self.txn([Put(key, value, expected, lease)])

    async def txn(self, ops: Sequence[Op]) -> int:
        return await self._write(lambda: self._inner.txn(ops))

    async def next_ids(self, counter: str, count: int = 1, *, at_least: int = 0) -> int:
        return await self._write(lambda: self._inner.next_ids(counter, count, at_least=at_least))

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        return self._inner.watch(prefix, callback)

    async def synced(self, prefix: str) -> None:
        await self._inner.synced(prefix)

    async def _pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, self.delay_s))

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._pause()
        if self.rng.random() < self.trouble:
            raise MetadataUnavailable("no leader")
        found = await call()
        await self._pause()
        return found

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._pause()
        if self.rng.random() < self.trouble:
            raise MetadataUnavailable("no leader")
        if self.rng.random() < self.trouble:
            match self.rng.randrange(3):
                case 0:
                    await self._quietly(call, 0.0)
                case 1:
                    wait = self.rng.uniform(0.0, 2.0)
                    loop = asyncio.get_running_loop()
                    self._late.append(loop.create_task(self._quietly(call, wait), context=self._outside))
            raise OutcomeUnknown("no answer")
        result = await call()
        await self._pause()
        return result

    async def _quietly(self, call: Callable[[], Awaitable[object]], wait_s: float) -> object:
        await asyncio.sleep(wait_s)
        try:
            return await call()
        except HeliographError:
            return None
