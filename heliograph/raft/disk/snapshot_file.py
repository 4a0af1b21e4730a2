"""Snapshot files: one state of a machine each, whole and verified, or not there.

Is: the file's layout, writing it at once or in pieces, reading it. Isn't: the log (heliograph.raft.disk.log_storage),
or what the blob says.
Invariants: a file is seen under its name only once all of it is durable; what is read has passed its checksums.

snapshot-{index}; snapshot.tmp (from the leader) and image.tmp (this member's own) until they are whole:

    0   u32 magic "HRS1"     8   u32 size of the description
    4   u8  version (1)      12  u32 crc32c of the description
    5   u24 reserved (0)     16  the description (`messages.encode_meta`: it holds the size and crc32c of the blob)
                             ..  the blob, to the end
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.raft.messages import Config, SnapshotMeta, decode_meta, encode_meta
from heliograph.runtime.disk import Disk, File, none_now

VERSION = 1
_MAGIC = b"HRS1"
_HEAD = struct.Struct(">4sB3xII")
RECEIVED, IMAGE = "snapshot.tmp", "image.tmp"
SCRATCH_NAMES = (RECEIVED, IMAGE)
"""Left behind by a crash."""

Done = Callable[[BaseException | None], None]


def snapshot_name(index: int) -> str:
    return f"snapshot-{index:020d}"


def blob_start(meta: SnapshotMeta) -> int:
    """Where the blob begins in the file."""
    return _HEAD.size + len(encode_meta(meta))


def why_full(error: BaseException) -> str:
    """What an operator has to do about a transient error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk of the metadata log is full: free some space"
    return none_now(error, "the metadata log", "")


def write_snapshot(disk: Disk, index: int, term: int, config: Config, pieces: Iterable[bytes]) -> SnapshotMeta:
    """One in pieces, at once: for a restore, where no log is. Blocking. Raises OSError, and what `pieces` raises; then
    nothing of it is left.
    """
    meta, size, crc = SnapshotMeta(index, term, config), 0, 0
    image = disk.open(IMAGE, create=True)
    try:
        image.truncate(0)
        for piece in pieces:
            image.pwritev([piece], blob_start(meta) + size)
            size, crc = size + len(piece), crc32c.crc32c(piece, crc)
        meta = replace(meta, size_bytes=size, crc=crc)
        description = encode_meta(meta)
        image.pwritev([_head(description), description], 0)
        image.datasync()
    except BaseException:
        image.close()
        disk.remove(IMAGE)
        raise
    image.close()
    disk.rename(IMAGE, snapshot_name(index))
    disk.sync_directory()
    return meta


def read_description(disk: Disk, name: str) -> SnapshotMeta:
    """What a snapshot says of itself; its contents are not looked at. Blocking. Raises OSError, CorruptData."""
    snapshot_file = disk.open(name)
    try:
        raw = snapshot_file.pread(_HEAD.size, 0)
        if len(raw) < _HEAD.size:
            raise CorruptData(f"{name} is cut off")
        magic, version, size, crc = _HEAD.unpack(raw)
        held = snapshot_file.size_bytes()
        description = snapshot_file.pread(min(size, held), len(raw))
    finally:
        snapshot_file.close()
    if magic != _MAGIC or crc32c.crc32c(description) != crc:
        raise CorruptData(f"{name}: its head is damaged")
    if version != VERSION:
        raise CorruptData(f"{name}: version {version} is not known to this program")
    meta, _ = decode_meta(description)
    if held != blob_start(meta) + meta.size_bytes:
        raise CorruptData(f"{name}: its contents are damaged: it is cut off")
    return meta


def load_snapshot(disk: Disk, name: str) -> tuple[SnapshotMeta, bytes]:
    """A small one, at once. Blocking. Raises OSError, CorruptData."""
    meta = read_description(disk, name)
    snapshot_file = disk.open(name)
    try:
        blob = snapshot_file.pread(meta.size_bytes, blob_start(meta))
    finally:
        snapshot_file.close()
    if len(blob) != meta.size_bytes or crc32c.crc32c(blob) != meta.crc:
        raise CorruptData(f"{name}: its contents are damaged")
    return meta, blob


def _head(description: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, VERSION, len(description), crc32c.crc32c(description))


class SnapshotWriter:
    """A snapshot of this member's machine, written piece by piece beside the log, and seen only once all of it is
    durable.

    Each piece is synced by itself, so that the log, which shares the disk's thread, never waits for a large sync.
    """

    def __init__(
        self,
        disk: Disk,
        on_written: Callable[[SnapshotMeta], None],
        on_failed: Callable[[BaseException], None],
        scratch: str = IMAGE,
    ) -> None:
        """on_written: before `done` of `finish`. on_failed: before any other `done(error)`."""
        self._disk, self._on_written, self._on_failed, self._scratch = disk, on_written, on_failed, scratch
        self._file: File | None = None
        self.size_bytes = self.crc = 0

    def add(self, meta: SnapshotMeta, piece: bytes, done: Done) -> None:
        """meta: what `finish` will be told, but for size and checksum. done(error): nothing of this snapshot will be,
        and nothing of it is left.
        """
        offset = self.size_bytes
        self.size_bytes += len(piece)
        self.crc = crc32c.crc32c(piece, self.crc)

        def job() -> None:
            image = self._open()
            image.pwritev([piece], blob_start(meta) + offset)
            image.datasync()

        self._run(job, done)

    def finish(self, meta: SnapshotMeta, done: Done) -> None:
        """meta: with `size_bytes` and `crc` of all pieces. done(None): it is the newest snapshot, and what it replaces
        is going.
        """
        description = encode_meta(meta)

        def job() -> None:
            image = self._open()
            image.pwritev([_head(description), description], 0)
            image.datasync()
            image.close()
            self._disk.rename(self._scratch, snapshot_name(meta.index))
            self._disk.sync_directory()

        def finished(error: BaseException | None) -> None:
            if error is None:
                self._on_written(meta)
            done(error)

        self._run(job, finished)

    def abandon(self) -> None:
        """It is not wanted any more."""
        self._disk.submit(self._remove, lambda _, error: self._on_failed(error) if error is not None else None)

    def _run(self, job: Callable[[], None], done: Done) -> None:
        def guarded() -> None:
            try:
                job()
            except (OSError, MemoryError):
                self._remove()
                raise

        def ran(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._on_failed(error)
            done(error)

        self._disk.submit(guarded, ran)

    def _open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._scratch, create=True)
            self._file.truncate(0)
        return self._file

    def _remove(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            if self._scratch in self._disk.names():
                self._disk.remove(self._scratch)
