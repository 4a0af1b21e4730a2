"""DurableMachine: a KvMachine whose rows lie in an embedded store, with how far the log was applied to them.

Is: opening such a table, saving what was applied since, and taking over a snapshot piece by piece. Isn't: when to do so
(heliograph.raft.member.snapshotter), the store (`table_store`), or the log, which holds everything that was not saved
and is applied again from there.
Invariants: what is saved is the table of one index, with that index, its sessions, leases, and counters in the same
transaction; a snapshot that was not taken over as a whole changes nothing.

The mark of a store: u8 version (1), msgpack [description (given, opaque), index, [[counter, next]...], [[lease, ttl ms,
[key...]]...], [[session, low, [[sequence, answer]...]]...], rows in all]. (What hangs on leases is live nodes and owned
bundles: few against the rows.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from heliograph.kv.engine.layered_rows import LayeredRows
from heliograph.kv.engine.table_image import Head, Restoring
from heliograph.kv.engine.table_rows import KeyCounts
from heliograph.kv.engine.table_store import Done, TableBatch, TableStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import CorruptData
from heliograph.raft.ports import DurableTable, Restore

VERSION = 1


class DurableMachine(KvMachine):
    """`open_soon` first. Saving and taking over exclude each other; `saving` says whether one is under way."""

    def __init__(self, store: TableStore, settings: MachineSettings | None = None) -> None:
        """settings: see KvMachine; all members of a group must have the same."""
        self._layers = LayeredRows(store)
        super().__init__(self._layers, settings)
        self._store = store

    @property
    def saving(self) -> bool:
        return self._layers.saving

    @property
    def unsaved_bytes(self) -> int:
        """Says about how much memory the rows take that the store does not have yet."""
        return self._layers.unsaved_bytes

    def open_soon(self, done: Callable[[bytes, BaseException | None], None]) -> None:
        """done(description, error): what `save` or `end` was given last, empty where there is nothing. Errors: OSError,
        CorruptData.
        """

        def opened(kept: Any, error: BaseException | None) -> None:
            description = b""
            if error is None and kept.mark:
                try:
                    description = self._adopt(kept.mark, kept.counts)
                except CorruptData as damage:
                    error = damage
            done(description, error)

        self._store.open_soon(opened)

    def discard_soon(self, done: Done) -> None:
        """Instead of a table that could not be opened, an empty one; the other is set aside."""
        self._store.discard_soon(done)

    def _adopt(self, mark: bytes, under: dict[str, int]) -> bytes:
        if mark[0] != VERSION:
            raise CorruptData(f"the table of the metadata has version {mark[0]}; this program knows version {VERSION}")
        try:
            description, index, counters, leases, sessions, total = msgpack.unpackb(
                memoryview(mark)[1:], strict_map_key=False
            )
            head = Head(index, counters, [(lease, ttl_ms) for lease, ttl_ms, _ in leases], sessions)
            leased = {lease: dict.fromkeys(keys) for lease, _, keys in leases}
            self._take_over(head, self._layers, KeyCounts(total, under), leased)
        except (ValueError, TypeError) as error:
            raise CorruptData(f"the table of the metadata: its mark is not readable: {error}") from error
        assert isinstance(description, bytes)
        return description

    def save(self, description: bytes, done: Done) -> None:
        """Makes everything that is applied now durable, off the loop. done(OSError): nothing was stored, all is still
        here.
        """
        counts = self._counts.take_changed()

        def saved(error: BaseException | None) -> None:
            if error is not None:
                self._counts.give_back(counts)
            done(error)

        self._layers.save(self._mark(description), counts, saved)

    def _mark(self, description: bytes) -> bytes:
        head = self.head()
        leases = [(lease, ttl_ms, list(self.held[lease].keys)) for lease, ttl_ms in head.leases]
        packed: bytes = msgpack.packb(
            [description, head.index, head.counters, leases, head.sessions, self._counts.total]
        )
        return bytes([VERSION]) + packed

    def close(self) -> None:
        """Waits for what is being saved."""
        self._store.close()

    # -- a snapshot in the place of it ---------------------------------------------------------------------------------

    @property
    def kept(self) -> DurableTable | None:
        return self

    def begin_restore(self, done: Done) -> Restore:
        return TakingOver(self, done)


class TakingOver:
    """A snapshot on its way into the store's other table. Until `finish` is done, the machine is what it was."""

    def __init__(self, machine: DurableMachine, done: Done) -> None:
        """done: before anything else of this."""
        self._machine, self._reading = machine, Restoring()
        assert not machine.saving
        machine._layers.saving = True
        machine._store.clear(done)

    def add(self, data: bytes, done: Done) -> None:
        """The next piece, cut anywhere; one at a time. done: OSError, CorruptData."""
        try:
            rows = self._reading.add(data)
        except CorruptData as error:
            done(error)
            return
        if rows:
            self._machine._store.add(rows, done)
        else:
            done(None)

    def finish(self, description: bytes, done: Done) -> None:
        """The machine is that of the snapshot, durably."""
        machine, reading = self._machine, self._reading
        try:
            rows, head = reading.finish_rows(), reading.finish()
        except CorruptData as error:
            self.abandon()
            done(error)
            return
        counters, leases = (
            head.counters,
            [(lease, ttl_ms, list(reading.leased.get(lease, ()))) for lease, ttl_ms in head.leases],
        )
        packed: bytes = msgpack.packb([description, head.index, counters, leases, head.sessions, reading.counts.total])

        def replaced(error: BaseException | None) -> None:
            machine._layers.saving = False
            if error is None:
                machine._layers.drop_layers()
                reading.counts.take_changed()
                try:
                    machine._take_over(head, machine._layers, reading.counts, reading.leased)
                except CorruptData as damage:
                    error = damage
            done(error)

        machine._store.commit(
            TableBatch(dict(rows), reading.counts.take_changed(), bytes([VERSION]) + packed, replaces=True), replaced
        )

    def abandon(self) -> None:
        """The rest of the snapshot is not to be had."""
        self._machine._layers.saving = False
