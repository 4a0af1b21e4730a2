"""MetadataFlusher: one stream of metadata writes for all topics of a broker.

Is: who asks is written within the delay that it gave, together with all others that wait; one transaction at a time.
Isn't: aware of what is written.
Invariants: each member's operations are applied whole or not at all, in the order of its calls; one member's conflict
fails no other.
An unknown outcome is settled by its member before that member writes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from heliograph.kv.metadata_store import OPS_MAX, TXN_BYTES_MAX, Op, Put
from heliograph.model.errors import HeliographError, OutcomeUnknown, VersionConflict
from storage.ledger.ledger_context import LedgerContext

FLUSH_S = 0.05
_BYTES_MAX = TXN_BYTES_MAX // 2


class FlushMember(Protocol):
    """What one topic has to write. The flusher calls it on the event loop; one `collect` is under way at a time."""

    def collect(self) -> Sequence[Op]:
        """What it wants to write now; nothing is changed before it is told of the outcome. [] where there is
        nothing.
        """
        ...

    def on_written(self, version: int) -> None: ...

    def on_not_written(self) -> None:
        """Nothing of it was written, and it will be asked again."""
        ...

    def on_refused(self, error: HeliographError) -> None:
        """What it wants to write will never be accepted."""
        ...

    async def settle(self) -> bool:
        """After a conflict or an unknown outcome: reads what is there. Returns whether it has anything more to write.
        Never raises.
        """
        ...


class MetadataFlusher:
    """No member waits, no timer."""

    def __init__(self, context: LedgerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._due: dict[FlushMember, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0  # kept here: uvloop's handle of what is due at once does not tell
        self._running = False
        self._failures = 0

    def request(self, member: FlushMember, delay_s: float = FLUSH_S) -> None:
        """Idempotent; the earliest time wins."""
        due = self._loop.time() + delay_s
        if due < self._due.get(member, due + 1):
            self._due[member] = due
            if not self._running:
                self._arm(due)

    def drop(self, member: FlushMember) -> None:
        self._due.pop(member, None)

    def close(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer, self._timer_due = self._loop.call_at(due, self._start), due

    def _start(self) -> None:
        self._timer = None
        self._running = True
        self._context.tasks.spawn(self._run())

    async def _run(self) -> None:
        """Writes what is due, and goes on while more becomes due meanwhile."""
        try:
            while due := self._take():
                for members, ops in self._batches(due):
                    await self._write(members, ops)
                    if self._failures:
                        await asyncio.sleep(self._context.pause_s(self._failures))
        finally:
            self._running = False
            if self._due:
                self._arm(min(self._due.values()))

    def _take(self) -> list[FlushMember]:
        horizon = self._loop.time() + FLUSH_S / 2
        due = [member for member, at in self._due.items() if at <= horizon]
        for member in due:
            del self._due[member]
        return due

    def _batches(self, due: list[FlushMember]) -> list[tuple[list[FlushMember], list[Op]]]:
        batches: list[tuple[list[FlushMember], list[Op]]] = []
        members: list[FlushMember] = []
        ops: list[Op] = []
        size = 0
        for member in due:
            wanted = member.collect()
            if not wanted:
                continue
            added = sum(len(op.value) for op in wanted if isinstance(op, Put))
            if ops and (len(ops) + len(wanted) > OPS_MAX or size + added > _BYTES_MAX):
                batches.append((members, ops))
                members, ops, size = [], [], 0
            members.append(member)
            ops += wanted
            size += added
        if ops:
            batches.append((members, ops))
        return batches

    async def _write(self, members: list[FlushMember], ops: list[Op]) -> None:
        try:
            version = await self._context.meta.txn(ops)
        except OutcomeUnknown:
            await self._settle(members)
        except HeliographError as error:
            if not error.retryable:
                await self._on_error(members, error)
                return
            self._failures += 1
            for member in members:
                member.on_not_written()
                self.request(member)
        else:
            self._failures = 0
            for member in members:
                member.on_written(version)

    async def _on_error(self, members: list[FlushMember], error: HeliographError) -> None:
        """One of them has lost its topic, or wants what is not allowed: each is written by itself, so that it fails
        alone.
        """
        if len(members) > 1:
            for member in members:
                member.on_not_written()
                wanted = list(member.collect())
                if wanted:
                    await self._write([member], wanted)
        elif isinstance(error, VersionConflict):
            await self._settle(members)
        else:
            members[0].on_refused(error)

    async def _settle(self, members: list[FlushMember]) -> None:
        for member in members:
            if await member.settle():
                self.request(member)
