"""EmbeddedStore: a MetadataStore directly over a KvMachine in this process.

Is: for tests of the layers above, and for tools; several stores may share one machine, as clients of one server would.
Isn't: durable, or replicated.
Invariants: leases end by the event loop's timers, also after the store that granted them was closed, as if its process
had died (in a simulation the timers belong to no machine's life, and a watch calls back in the life of the one that
watches).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any

from heliograph.kv.machine_commands import CommandKind, command, open_answer, txn_fields
from heliograph.kv.metadata_store import PAGE_BYTES_MAX, Delete, Op, Put, WatchCallback, check_key, check_ops, check_ttl
from heliograph.kv.state_machine import Change, KvMachine
from heliograph.kv.unreadable_records import tell_change
from heliograph.model.errors import LeaseLost, MetadataUnavailable


class EmbeddedStore:
    """Answers at once, but never before the event loop made a pass."""

    def __init__(self, machine: KvMachine | None = None) -> None:
        self.machine = KvMachine() if machine is None else machine
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._watches: list[_Watch] = []
        self._closed = False
        self.unavailable: str | None = None
        """Set by a test: every call raises MetadataUnavailable with this text."""

    async def get(self, key: str) -> tuple[bytes, int] | None:
        await self._pass()
        return self.machine.get(key)

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self.txn([Put(key, value, expected, lease)])

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        there: bool = (await self._txn([Delete(key, expected)]))[1][0]
        return there

    async def txn(self, ops: Sequence[Op]) -> int:
        version: int = (await self._txn(ops))[0]
        return version

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        await self._pass()
        return self.machine.range(start, end, limit, PAGE_BYTES_MAX if limit is None else 1 << 62)[0]

    @property
    def range_limit(self) -> int:
        return self.machine.range_limit

    async def count(self, prefix: str) -> int:
        await self._pass()
        return self.machine.count(prefix)

    async def next_ids(self, counter: str, count: int = 1, *, at_least: int = 0) -> int:
        check_key(counter)
        first: int = (await self._apply(CommandKind.NEXT_IDS, [counter, count, at_least]))[0]
        return first

    async def grant(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        lease: int = (await self._apply(CommandKind.GRANT, [ttl_ms]))[0]
        self._arm(lease, ttl_ms)
        return lease

    async def renew(self, lease: int) -> None:
        await self._pass()
        held = self.machine.held.get(lease)
        if held is None:
            raise LeaseLost(f"lease {lease} has expired or is unknown")
        self._arm(lease, held.ttl_ms)

    async def revoke(self, lease: int) -> None:
        await self._apply(CommandKind.REVOKE, [lease])

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        watch = _Watch(self.machine, prefix, callback)
        self._watches.append(watch)
        return watch.stop

    async def synced(self, prefix: str) -> None:
        for watch in self._watches:
            if watch.prefix == prefix and not watch.stopped:
                await watch.synced.wait()

    def stale_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._closed = True
        for watch in self._watches:
            watch.stop()

    def expire(self, lease: int) -> None:
        """Ends a lease now, as its time-out would."""
        self._timers.pop(lease, None)
        self.machine.apply(self.machine.index + 1, command(CommandKind.REVOKE, [lease]))

    def _arm(self, lease: int, ttl_ms: int) -> None:
        timer = self._timers.pop(lease, None)
        if timer is not None:
            timer.cancel()
        self._timers[lease] = asyncio.get_running_loop().call_later(
            ttl_ms / 1000, self.expire, lease, context=Context()
        )

    async def _txn(self, ops: Sequence[Op]) -> list[Any]:
        check_ops(ops)
        return await self._apply(CommandKind.TXN, txn_fields(ops))

    async def _apply(self, kind: CommandKind, fields: list[Any]) -> list[Any]:
        await self._pass()
        return open_answer(self.machine.apply(self.machine.index + 1, command(kind, fields)))

    async def _pass(self) -> None:
        await asyncio.sleep(0)
        if self._closed:
            raise MetadataUnavailable("the metadata store is closed")
        if self.unavailable is not None:
            raise MetadataUnavailable(self.unavailable)


class _Watch:
    """One watch: queues changes, and calls back in a pass of its own."""

    def __init__(self, machine: KvMachine, prefix: str, callback: WatchCallback) -> None:
        self.prefix, self._callback = prefix, callback
        self.synced = asyncio.Event()
        self.stopped = False
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._queue: list[Change] = list(machine.under(prefix))
        self._loop.call_soon(self._first, context=self._context)
        self._stop_observing = machine.observe(self._on_changes)
        self._scheduled = True

    def stop(self) -> None:
        self.stopped = True
        self.synced.set()
        self._stop_observing()

    def _on_changes(self, _index: int, changes: list[Change] | None) -> None:
        assert changes is not None, "the machine of an embedded store is never replaced"
        self._queue += [change for change in changes if change[0].startswith(self.prefix)]
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush, context=self._context)

    def _first(self) -> None:
        self._flush()
        self.synced.set()

    def _flush(self) -> None:
        self._scheduled = False
        queue, self._queue = self._queue, []
        for key, value, version in queue:
            if not self.stopped:
                tell_change(self._callback, key, value, version)
