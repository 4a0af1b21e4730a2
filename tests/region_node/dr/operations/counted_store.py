"""A configuration whose calls are counted, and take a moment each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.kv.state_machine import KvMachine


class Counted(EmbeddedStore):
    """Each call takes a moment, as one over a network does, in which others come."""

    def __init__(self, machine: KvMachine | None = None, moment_s: float = 0.001) -> None:
        super().__init__(machine)
        self.moment_s = moment_s
        self.calls = Counter[str]()
        self.broken: Exception | None = None

    async def _call(self, what: str) -> None:
        self.calls[what] += 1
        if self.moment_s:
            await asyncio.sleep(self.moment_s)
        if self.broken is not None:
            raise self.broken

    async def get(self, key: str) -> Any:
        await self._call("get")
        return await super().get(key)

    async def range(self, *of: Any, **more: Any) -> Any:
        await self._call("range")
        return await super().range(*of, **more)

    async def txn(self, ops: Sequence[Op]) -> int:
        await self._call("txn")
        return await super().txn(ops)
