"""Snapshotter: how the state of one member's machine comes to the disk and back, beside its log.

Is: when a table is saved or a snapshot made, snapshots piece by piece out of the machine and into it, and what of the
log may go then. Isn't: a rule of Raft, files (`log_storage`, `snapshot_file`), or a table
(`heliograph.kv.durable_state_machine`).
Invariants: the log keeps every entry that neither the table nor the newest snapshot covers; the loop goes on between
one piece and the next; a machine is that of a snapshot as a whole or not at all; a full disk delays all of this, and is
tried again.
A machine in memory is saved as snapshots. One that keeps its own table saves that, and makes a snapshot only where a
member needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.raft.core import RaftCore
from heliograph.raft.disk.log_storage import LogStorage
from heliograph.raft.disk.snapshot_file import Done, SnapshotWriter
from heliograph.raft.messages import SnapshotMeta, decode_meta, encode_meta
from heliograph.raft.ports import DurableTable, RaftSettings, Restore, StateMachine
from heliograph.runtime.clock import Clock
from heliograph.runtime.disk import is_transient

_READ_BYTES = 256 << 10


@dataclass(slots=True)
class _Making:
    """A snapshot of the machine while it is made. meta: without size and checksum."""

    meta: SnapshotMeta
    parts: Iterator[bytes]
    writer: SnapshotWriter


class Snapshotter:
    """`open` and `load` at the start, then `begin`; the rest is called by the member's shell."""

    def __init__(
        self,
        machine: StateMachine,
        storage: LogStorage,
        settings: RaftSettings,
        clock: Clock,
        *,
        later: Callable[[float, Callable[[], None]], object],
        failed: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:
        """later: runs a call after so many seconds. failed: this member cannot go on. changed: the core may have
        something to do.
        """
        self._machine, self._storage, self._settings, self._clock = machine, storage, settings, clock
        self._later, self._failed, self._changed = later, failed, changed
        self._core: RaftCore | None = None
        self._making: _Making | None = None
        self._not_before = 0.0
        self._log_bytes = 0  # of commands since the last save or snapshot
        self._saved_index = self._applied_index = 0
        self._saving = False
        self._behind_save: Callable[[], None] | None = None
        self._stopped = False
        self.full = False
        """The table cannot be saved: its disk is full."""
        self.restoring = False

    @property
    def _kept(self) -> DurableTable | None:
        return self._machine.kept

    @property
    def crowded(self) -> bool:
        """More waits in memory to be saved than may."""
        kept = self._kept
        return kept is not None and kept.unsaved_bytes > self._settings.unsaved_bytes_max * (1 if self.full else 4)

    # -- start and end -------------------------------------------------------------------------------------------------

    def open(self, done: Callable[[SnapshotMeta | None, BaseException | None], None]) -> None:
        """Opens the machine's own table, if it keeps one. done(what it is the state of, error)."""
        if self._kept is None:
            done(None, None)
            return

        def opened(description: bytes, error: BaseException | None) -> None:
            try:
                done(decode_meta(description)[0] if description and error is None else None, error)
            except ValueError as wrong:
                done(None, CorruptData(f"the table of the metadata does not say of which index it is: {wrong}"))

        self._kept.open_soon(opened)

    def discard(self, done: Callable[[BaseException | None], None]) -> None:
        """Begins with an empty table in the place of one that could not be opened."""
        assert self._kept is not None
        self._kept.discard_soon(done)

    def begin(self, core: RaftCore, saved_index: int) -> None:
        self._core, self._saved_index = core, saved_index

    def stop(self) -> None:
        self._stopped = True

    # -- what was applied ----------------------------------------------------------------------------------------------

    def applied(self, index: int, log_bytes: int) -> None:
        """Entries through `index` were applied; their commands had so many bytes."""
        self._log_bytes += log_bytes
        self._applied_index = index
        core, settings, kept = self._core, self._settings, self._kept
        busy = self._making is not None if kept is None else self._saving
        if core is None or busy or self._stopped or self.restoring or self._clock.monotonic() < self._not_before:
            return
        size = core.snapshot.size_bytes if core.snapshot is not None and kept is None else 0
        saved = self._saved_index if kept is not None else core.snapshot.index if core.snapshot is not None else 0
        bytes_due = max(settings.snapshot_bytes, size // 2)  # a large table is written as a snapshot less often
        many_segments = index > saved and self._storage.segment_count > max(
            settings.segments_max, 2 * bytes_due // settings.segment_bytes
        )
        much_unsaved = kept is not None and kept.unsaved_bytes > settings.unsaved_bytes_max
        if (
            index - saved >= max(settings.snapshot_entries, size // 512)
            or self._log_bytes >= bytes_due
            or many_segments
            or much_unsaved
        ):
            if kept is not None:
                self._save(core, kept, index)
            else:
                self._make(core, index)

    def _save(self, core: RaftCore, kept: DurableTable, index: int) -> None:
        meta = core.describe_snapshot(index)
        self._saving, self._log_bytes = True, 0
        kept.save(encode_meta(meta), partial(self._save_ended, meta))

    def _save_ended(self, meta: SnapshotMeta, error: BaseException | None) -> None:
        self._saving = False
        core, waiting = self._core, self._behind_save
        if core is None or self._stopped:
            return
        if waiting is not None:
            self._behind_save = None
            waiting()
            return
        self.full = error is not None and is_transient(error)
        if self.full:
            self._pause()
        elif error is not None:
            self._failed(error)
        else:
            self._saved_index = meta.index
            self._storage.covered(meta.index)
            if self._making is None and core.on_kept(meta.index, self._settings.keep_entries, self._clock.monotonic()):
                self._storage.drop_snapshots(meta.index)
            self._changed()

    def _pause(self) -> None:
        self._not_before = self._clock.monotonic() + self._settings.full_retry_s
        self._later(self._settings.full_retry_s + 0.01, self._try_again)

    def _try_again(self) -> None:
        if (
            self._core is not None
            and not self._stopped
            and self.full
            and not self._saving
            and not self.restoring
            and self._kept is not None
        ):
            self._save(self._core, self._kept, self._applied_index)

    # -- out of the machine --------------------------------------------------------------------------------------------

    def make_for_others(self, index: int) -> None:
        """A member needs a snapshot. index: what is applied."""
        if (
            self._core is not None
            and self._making is None
            and not self.restoring
            and self._clock.monotonic() >= self._not_before
        ):
            self._make(self._core, index)

    def _make(self, core: RaftCore, index: int) -> None:
        self._log_bytes = 0
        self._making = _Making(core.describe_snapshot(index), self._machine.parts(), self._storage.begin_snapshot())
        self._make_on(self._making, None)

    def _make_on(self, making: _Making, error: BaseException | None) -> None:
        """The next piece; the loop goes on between one and the next, and the log's writes go between them too."""
        if making is not self._making or self._stopped:
            return
        if self._storage.failed is not None:
            self._failed(self._storage.failed)
        elif error is not None:  # a full disk: the log stays as long as it is
            self._making, self._not_before = None, self._clock.monotonic() + self._settings.full_retry_s
        elif (piece := next(making.parts, None)) is not None:
            making.writer.add(making.meta, piece, partial(self._make_on, making))
        else:
            meta = replace(making.meta, size_bytes=making.writer.size_bytes, crc=making.writer.crc)
            making.writer.finish(meta, partial(self._made, making, meta))

    def _made(self, making: _Making, meta: SnapshotMeta, error: BaseException | None) -> None:
        if making is not self._making or self._core is None or self._stopped:
            return
        self._making = None
        if self._storage.failed is not None:
            self._failed(self._storage.failed)
        elif error is None:
            self._core.on_snapshot_stored(meta, self._settings.keep_entries)
            self._changed()
        else:
            self._not_before = self._clock.monotonic() + self._settings.full_retry_s

    # -- into the machine ----------------------------------------------------------------------------------------------

    def receive(self, number: int, meta: SnapshotMeta, offset: int, data: bytes) -> None:
        """A piece of a snapshot that the leader sends."""

        def stored(error: BaseException | None) -> None:
            if self._core is None or self._stopped:
                return
            if self._storage.failed is not None:
                self._failed(self._storage.failed)
                return
            if error is None:
                self._core.on_piece_stored(number)
            else:
                self._core.on_piece_failed(number)
            self._changed()

        self._storage.receive(meta, offset, data, stored)

    def restore(self, meta: SnapshotMeta, done: Done) -> None:
        """The machine becomes that of a stored snapshot; until `done` nothing may be applied. done(error): it cannot be
        read, or not be kept.
        """
        self.restoring = True
        if self._making is not None:
            self._making.writer.abandon()
            self._making = None
        if self._saving:  # it ends first
            self._behind_save = partial(self.restore, meta, done)
            return
        self._log_bytes = 0

        def ended(error: BaseException | None) -> None:
            if self._stopped:
                return
            if error is not None and is_transient(error):
                self.full = True
                self._later(self._settings.full_retry_s, partial(self.restore, meta, done))
                return
            self.restoring, self.full = False, False
            if error is None:
                self._saved_index = self._applied_index = meta.index
                if self._kept is not None:
                    self._storage.covered(meta.index)
            done(error)

        _Loading(meta, self._machine, self._storage, ended).start()


class _Loading:
    """One stored snapshot, read piece by piece into a machine."""

    def __init__(self, meta: SnapshotMeta, machine: StateMachine, storage: LogStorage, done: Done) -> None:
        self._meta, self._machine, self._storage, self._done = meta, machine, storage, done
        self._at = self._crc = 0
        self._restore: Restore | None = None
        self._early: list[BaseException | None] = []

    def start(self) -> None:
        self._restore = self._machine.begin_restore(self._began)
        if self._early:
            self._next(self._early[0])

    def _began(self, error: BaseException | None) -> None:
        if self._restore is None:  # it needed no time, and `start` goes on
            self._early.append(error)
        else:
            self._next(error)

    def _next(self, error: BaseException | None) -> None:
        if error is not None:
            self._end(error)
        elif self._at < self._meta.size_bytes:
            self._storage.read_chunk(self._meta, self._at, _READ_BYTES, self._read)
        elif self._crc != self._meta.crc:
            self._end(CorruptData(f"the snapshot of index {self._meta.index} is damaged"))
        else:
            assert self._restore is not None
            self._restore.finish(encode_meta(self._meta), self._done)

    def _read(self, data: bytes | None, error: BaseException | None) -> None:
        if not data:
            self._end(error or CorruptData(f"the snapshot of index {self._meta.index} is cut off"))
            return
        self._at += len(data)
        self._crc = crc32c.crc32c(data, self._crc)
        assert self._restore is not None
        self._restore.add(data, self._next)

    def _end(self, error: BaseException) -> None:
        assert self._restore is not None
        self._restore.abandon()
        self._done(error)
