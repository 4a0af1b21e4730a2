"""An in-memory managed ledger for the replicator's tests: the port's contract, with the faults that a test asks for.

Is: the part of ManagedLedger and Cursor that links use. A `Store` is what is durable; a `FakeLedger` is one owner's
view of it, and the newest owner fences those before it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.model.errors import HeliographError, LedgerFenced, MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import Run
from storage.managed_ledger.cursors.cursor import Cursor


class FakeCursor:
    def __init__(self, name: str, mark: Position) -> None:
        self.name, self.mark_delete = name, mark
        self.history: list[Position] = []
        self.properties: dict[str, str] = {}
        self.reading: Any = None

    def ack_cumulative(self, position: Position) -> None:
        if position > self.mark_delete:
            self.mark_delete = position
            self.history.append(position)

    def reset(self, mark_delete: Position) -> None:
        self.mark_delete = mark_delete

    def set_properties(self, properties: dict[str, str]) -> None:
        self.properties = properties


class StoreCatalog:
    """What a real cursor asks of the catalog, by looking at every block."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def _entries(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for (ledger, first), count, _ in self.store.blocks:
            found[ledger] = first + count
        return found

    @property
    def last(self) -> Position:
        return max(((ledger, count - 1) for ledger, count in self._entries().items()), default=BEFORE_ALL)

    def entries_of(self, ledger: int) -> int:
        return self._entries().get(ledger, 0)

    def bounded(self, ledger: int, stop: int) -> int:
        return min(stop, self.entries_of(ledger))

    def at_or_before(self, position: Position) -> Position | None:
        ends = [(ledger, count - 1) for ledger, count in self._entries().items() if ledger <= position[0]]
        return max((p for p in (min(end, position) for end in ends) if p[1] >= 0), default=None)

    def next(self, position: Position) -> Position:
        above = [
            (ledger, position[1] + 1 if ledger == position[0] else 0)
            for ledger, count in self._entries().items()
            if ledger >= position[0]
        ]
        return min(
            (p for p in above if p[1] < self.entries_of(p[0])),
            default=(max(position, self.last)[0], max(position, self.last)[1] + 1),
        )

    def first(self) -> Position:
        return self.store.blocks[0][0] if self.store.blocks else (0, 0)

    def entries_between(self, after: Position, upto: Position) -> int:
        return sum(
            after < (ledger, entry) <= upto
            for (ledger, first), count, _ in self.store.blocks
            for entry in range(first, first + count)
        )


class Store:
    """What survives: blocks by position, the state snapshot, cursors."""

    def __init__(self, topic: str = "persistent://t/n/x") -> None:
        self.topic = topic
        self.blocks: list[tuple[Position, int, bytes]] = []  # (first position, count, block)
        self.snapshot: tuple[Position, bytes] | None = None
        self.cursors: dict[str, Any] = {}
        self.next_ledger = 1
        self.owner: FakeLedger | None = None
        self.trimmed_below: Position = (0, 0)
        self.read_s = 0.0
        """How long a read takes."""

    def runs(self) -> list[tuple[int, int, Run]]:
        return [decode_block(block) for _, _, block in self.blocks]


class FakeLedger:
    """One owner's managed ledger. Appends become durable when the test says `confirm(n)`; `fail(error)` fails all that
    wait.
    """

    def __init__(self, store: Store, state: Any, *, now_ms: Callable[[], int] = lambda: 1, auto: bool = False) -> None:
        self.store, self.state, self.topic, self.now_ms, self.auto = store, state, store.topic, now_ms, auto
        self.sees: Position | None = None  # a former owner reads no further than this
        if store.owner is not None:
            store.owner.fence()
        store.owner = self
        self.fenced = False
        self.ledger, self.next_entry = store.next_ledger, 0
        store.next_ledger += 1
        for name, cursor in list(store.cursors.items()):
            if isinstance(cursor, Cursor):
                store.cursors[name] = again = self._cursor(name, BEFORE_ALL)
                again.restore(cursor.encode())
        self.pending: list[
            tuple[int, int, Run, Callable[[int, int, Run], None], Callable[[HeliographError], None]]
        ] = []
        self.wakes: list[Callable[[], None]] = []
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
        run.time_ms = run.time_ms or self.now_ms()
        self.pending.append((self.ledger, self.next_entry, run, done, failed))
        self.next_entry += run.count
        if self.auto:
            self.confirm(len(self.pending))

    def confirm(self, count: int) -> None:
        if self.fenced:
            self.fail(LedgerFenced("another owner"))
            return
        ready, self.pending = self.pending[:count], self.pending[count:]
        for ledger, first, run, done, _ in ready:
            self.store.blocks.append(
                ((ledger, first), run.count, b"".join(bytes(p) for p in encode_block(run, ledger, first)))
            )
            done(ledger, first, run)
        if ready:
            for wake in list(self.wakes):
                wake()

    def fail(self, error: HeliographError) -> None:
        """All that waits fails; the owner goes on in a new ledger."""
        waiting, self.pending = self.pending, []
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
            self.store.blocks.append(
                ((ledger, first), run.count, b"".join(bytes(p) for p in encode_block(run, ledger, first)))
            )
        self.pending = []

    def save(self) -> None:
        if not self.fenced:
            self.store.snapshot = (self.last_confirmed, self.state.snapshot())

    async def store_state(self) -> None:
        self.save()

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

    def first_position(self) -> Position:
        return self.store.blocks[0][0] if self.store.blocks else self.store.trimmed_below

    async def read_back_to(self, ledger: int) -> None:
        """All ledgers are known."""

    @property
    def first_index(self) -> int | None:
        """Only what tells whether something was trimmed."""
        return int(self.store.trimmed_below > (0, 0)) if self.store.blocks else None

    def ledgers(self) -> list[LedgerInfo]:
        """Not told before `whole`, which nobody asks for here."""
        raise MetadataUnavailable("some of very many are only being read")

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        if not self.cache:
            return []
        out: list[tuple[int, int, Run]] = []
        at = max(0, bisect_right(self.store.blocks, position, key=lambda b: b[0]) - 1)
        for (ledger, first), count, block in self.store.blocks[at:]:
            if (ledger, first + count - 1) < position or max_entries <= 0 or max_bytes <= 0:
                continue
            if self.sees is not None and (ledger, first) > self.sees:
                break
            _, _, run = decode_block(block)
            start = position[1] - first if ledger == position[0] and position[1] > first else 0
            stop = min(count, start + max_entries)
            piece = run.cut(start, stop)
            out.append((ledger, first + start, piece))
            max_entries, max_bytes = max_entries - piece.count, max_bytes - piece.size_bytes
        return out

    def entries_between(self, after: Position, upto: Position) -> int:
        return StoreCatalog(self.store).entries_between(after, upto)

    async def first_from(self, position: Position) -> Position | None:
        for (ledger, first), count, _ in self.store.blocks:
            if (ledger, first + count - 1) >= position:
                return max((ledger, first), position)
        return None

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        if self.store.read_s:
            await asyncio.sleep(self.store.read_s)
        cache, self.cache = self.cache, True
        try:
            return self.cached(position, max_entries, max_bytes)
        finally:
            self.cache = cache

    def wake_on_append(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.wakes.append(callback)
        return lambda: self.wakes.remove(callback)

    @property
    def cursors(self) -> dict[str, Any]:
        return self.store.cursors

    async def open_cursor(
        self, name: str, initial: Position, *, properties: dict[str, str] | None = None, **_: object
    ) -> Any:
        """A link's is a fake; a subscription's is a real one."""
        if name not in self.store.cursors:
            self.store.cursors[name] = (
                FakeCursor(name, initial) if name.startswith("pulsar.") else self._cursor(name, initial)
            )
            self.store.cursors[name].properties.update(properties or {})
        return self.store.cursors[name]

    async def delete_cursor(self, name: str) -> None:
        del self.store.cursors[name]

    def _cursor(self, name: str, initial: Position) -> Cursor:
        catalog: Any = StoreCatalog(self.store)
        return Cursor(
            name, catalog, initial, durable=True, properties={}, request_flush=lambda _: None, wait_flushed=_nothing
        )

    async def close(self) -> None:
        self.pending = []


async def _nothing(_: Any) -> None:
    pass


def coordinates(runs: Sequence[tuple[int, int, Run]]) -> list[tuple[Any, Position, bytes, bool]]:
    """(origin or None, coordinate, body, hidden) of each entry."""
    out: list[tuple[Any, Position, bytes, bool]] = []
    for ledger, first, run in runs:
        for i in range(run.count):
            hidden = bool(run.flags and run.flags[i] & 1)
            where = (ledger, first + i) if run.origin is None else run.coordinate(i)
            out.append((run.origin, where, bytes(run.parts[i]), hidden))
    return out
