"""An in-memory managed ledger for the replicator's tests: the port's contract, with the faults that a test asks for.

Is: the part of ManagedLedger that links use, as owner follows owner. A `Store` is what is durable; a `FakeLedger` is
one owner's view of it, and the newest owner fences those before it: each hears of that when it stores something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.model.errors import HeliographError, LedgerFenced, MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import Run
from storage.managed_ledger.cursors.cursor import Cursor
from tests.storage.managed_ledger.memory_log import Extent, MemoryCursor, MemoryLog, closed


class Store:
    """What survives: blocks by position, the state snapshot, cursors."""

    def __init__(self, topic: str = "persistent://t/n/x") -> None:
        self.topic = topic
        self.blocks: list[tuple[Position, int, bytes]] = []  # (first position, count, block)
        self.snapshot: tuple[Position, bytes] | None = None
        self.cursors: dict[str, MemoryCursor] = {}
        """Those of the newest owner."""
        self.next_ledger = 1
        self.next_index = 0
        """Of the message behind the last confirmed one."""
        self.owner: FakeLedger | None = None
        self.trimmed_below: Position = (0, 0)
        self.read_s = 0.0
        """How long a read takes."""

    def runs(self) -> list[tuple[int, int, Run]]:
        return [decode_block(block) for _, _, block in self.blocks]


class FakeLedger(MemoryLog):
    """One owner's managed ledger. Appends become durable when the test says `confirm(n)`; `fail(error)` fails all that
    wait.
    """

    def __init__(self, store: Store, state: Any, *, now_ms: Callable[[], int] = lambda: 1, auto: bool = False) -> None:
        super().__init__(store.topic)
        self.store, self.state, self.now_ms, self.auto = store, state, now_ms, auto
        self.sees: Position | None = None  # a former owner reads no further than this
        if store.owner is not None:
            store.owner.fence()
        store.owner = self
        self.fenced = False
        self.ledger, self.next_entry = store.next_ledger, 0
        store.next_ledger += 1
        self.next_index = store.next_index
        before, self.named = store.cursors, dict[str, MemoryCursor]()
        store.cursors = self.named
        for name, cursor in before.items():
            if cursor.durable:
                self.add_cursor(name, BEFORE_ALL).restore(cursor.encode())
        self.pending: list[
            tuple[int, int, Run, Callable[[int, int, Run], None], Callable[[HeliographError], None]]
        ] = []
        self.cache = True
        if store.snapshot is None:
            state.restore(b"")
            store.snapshot = (BEFORE_ALL, state.snapshot())
        else:
            state.restore(store.snapshot[1])
            for (ledger, first), count, block in store.blocks:
                if (ledger, first + count - 1) > store.snapshot[0]:
                    _, _, run = decode_block(block)
                    start = max(0, store.snapshot[0][1] - first + 1) if ledger == store.snapshot[0][0] else 0
                    state.replay(ledger, first + start, run.cut(start, count))

    # -- writing -------------------------------------------------------------------------------------------------------

    def append_run(
        self, run: Run, done: Callable[[int, int, Run], None], failed: Callable[[HeliographError], None]
    ) -> None:
        if self.failed is not None:
            failed(self.failed)
            return
        run.time_ms, run.first_index = run.time_ms or self.now_ms(), self.next_index
        self.next_index += run.messages
        self.pending.append((self.ledger, self.next_entry, run, done, failed))
        self.next_entry += run.count
        if self.auto:
            self.confirm(len(self.pending))

    def confirm(self, count: int) -> None:
        if self.fenced:
            self._hear()
            return
        ready, self.pending = self.pending[:count], self.pending[count:]
        for ledger, first, run, done, _ in ready:
            self._keep(ledger, first, run)
            done(ledger, first, run)
        if ready:
            self.wake()

    def _keep(self, ledger: int, first: int, run: Run) -> None:
        block = b"".join(bytes(p) for p in encode_block(run, ledger, first))
        self.store.blocks.append(((ledger, first), run.count, block))
        self.store.next_index = run.first_index + run.messages

    def _hear(self) -> None:
        """That it is fenced."""
        if self.failed is None:
            self.failed = LedgerFenced("another owner")
            self.fail(self.failed)

    def fail(self, error: HeliographError) -> None:
        """All that waits fails; the owner goes on in a new ledger."""
        waiting, self.pending = self.pending, []
        if waiting:
            self.next_index = waiting[0][2].first_index
        if waiting and not self.fenced:
            self.rollover()
        for *_, failed in waiting:
            failed(error)

    def rollover(self) -> None:
        assert not self.pending
        self.ledger, self.next_entry = self.store.next_ledger, 0
        self.store.next_ledger += 1
        self.save()

    def fence(self) -> None:
        self.fenced = True
        self.sees = self.sees or self.last_confirmed

    def recover_tail(self, kept: int) -> None:
        """A crash: the first `kept` runs that wait are found on the bookies by the next owner; nobody here hears of
        it.
        """
        self.sees = self.last_confirmed
        for ledger, first, run, _, _ in self.pending[:kept]:
            self._keep(ledger, first, run)
        self.pending = []

    def save(self) -> None:
        if not self.fenced:
            self.store.snapshot = (self.last_confirmed, self.state.snapshot())

    async def store_state(self) -> None:
        self._check_owner()
        self.save()

    async def _flushed(self, cursor: Cursor) -> None:
        self._check_owner()

    def _check_owner(self) -> None:
        if self.fenced:
            self._hear()
        self.check_open()

    def trim(self, upto: Position) -> None:
        """Forgets whole blocks at or below `upto`; never beyond the snapshot."""
        assert self.store.snapshot is not None
        upto = min(upto, self.store.snapshot[0])
        gone = [b for b in self.store.blocks if (b[0][0], b[0][1] + b[1] - 1) <= upto]
        if gone:
            self.store.blocks = self.store.blocks[len(gone) :]
            self.store.trimmed_below = (gone[-1][0][0], gone[-1][0][1] + gone[-1][1])

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        if self.sees is not None:
            return self.sees
        if not self.store.blocks:
            return (
                (self.store.trimmed_below[0], self.store.trimmed_below[1] - 1)
                if self.store.trimmed_below > (0, 0)
                else BEFORE_ALL
            )
        (ledger, first), count, _ = self.store.blocks[-1]
        return (ledger, first + count - 1)

    def extents(self) -> Sequence[Extent]:
        sees = self.sees
        return self.store.blocks if sees is None else [block for block in self.store.blocks if block[0] <= sees]

    def run_in(self, extent: Extent) -> Run:
        return decode_block(extent[2])[2]

    @property
    def first_index(self) -> int | None:
        return self.run_in(self.store.blocks[0]).first_index if self.store.blocks else None

    @property
    def confirmed_index(self) -> int:
        return self.pending[0][2].first_index if self.pending else self.next_index

    def ledgers(self) -> list[LedgerInfo]:
        """Not told before `whole`, which nobody asks for here."""
        raise MetadataUnavailable("some of very many are only being read")

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        return self.found(position, max_entries, max_bytes) if self.cache else []

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        if self.store.read_s:
            await asyncio.sleep(self.store.read_s)
        return self.found(position, max_entries, max_bytes)

    @property
    def cursors(self) -> dict[str, MemoryCursor]:
        return self.named

    async def close(self) -> None:
        """What waits is confirmed."""
        if self.failed is None:
            self.confirm(len(self.pending))
            self.save()
            self.failed = self.failed or closed(self.topic)


def coordinates(runs: Sequence[tuple[int, int, Run]]) -> list[tuple[Any, Position, bytes, bool]]:
    """(origin or None, coordinate, body, hidden) of each entry."""
    out: list[tuple[Any, Position, bytes, bool]] = []
    for ledger, first, run in runs:
        for i in range(run.count):
            hidden = bool(run.flags and run.flags[i] & 1)
            where = (ledger, first + i) if run.origin is None else run.coordinate(i)
            out.append((run.origin, where, bytes(run.parts[i]), hidden))
    return out
