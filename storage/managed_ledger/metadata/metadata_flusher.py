"""MetadataFlusher: one stream of metadata writes for all topics of a broker.

Is: who asks is written within the delay that it gave, together with all others that wait; one transaction at a time.
Isn't: aware of what is written.
Invariants: each member's operations are applied whole or not at all, in the order of its calls; one member's conflict
fails no other. However many are due at once, other work comes after each few of them.
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
_COLLECTED_A_SLICE = 64
"""Topics that are encoded before other work has its turn: some milliseconds."""


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
        self._taken: dict[FlushMember, None] = {}  # of those that were due, who is still to be asked; the last one next
        self._over: tuple[FlushMember, Sequence[Op]] | None = None  # what the batch before had no room for
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
        self._taken.pop(member, None)
        if self._over is not None and self._over[0] is member:
            self._over = None

    def close(self) -> None:
        self._due.clear()
        self._taken.clear()
        self._over = None
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
            while self._take():
                while (batch := await self._batch())[0]:
                    await self._write(*batch)
                    if self._failures:
                        await asyncio.sleep(self._context.pause_s(self._failures))
        finally:  # also where a member failed: the others are none the worse for it
            self._running = False
            self._due = {**dict.fromkeys(reversed(self._taken), self._loop.time()), **self._due}
            self._taken.clear()
            if self._due:
                self._arm(min(self._due.values()))

    def _take(self) -> bool:
        horizon = self._loop.time() + FLUSH_S / 2
        due = [member for member, at in self._due.items() if at <= horizon]
        for member in due:
            del self._due[member]
        self._taken = dict.fromkeys(reversed(due))
        return bool(due)

    async def _batch(self) -> tuple[list[FlushMember], list[Op]]:
        """The next that are due, and what they write: as much as one transaction takes. ([], []) at the end."""
        members: list[FlushMember] = []
        ops: list[Op] = []
        size = collected = 0
        while self._over is not None or self._taken:
            if self._over is not None:
                (member, wanted), self._over = self._over, None
            else:
                member = self._taken.popitem()[0]
                try:
                    wanted = member.collect()
                except BaseException:
                    for other in members:
                        other.on_not_written()
                        self.request(other)
                    raise
                collected += 1
            added = sum(len(op.value) for op in wanted if isinstance(op, Put))
            if ops and (len(ops) + len(wanted) > OPS_MAX or size + added > _BYTES_MAX):
                self._over = member, wanted
                break
            if wanted:
                members.append(member)
                ops += wanted
                size += added
            if collected % _COLLECTED_A_SLICE == 0:
                await asyncio.sleep(0)
        return members, ops

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
