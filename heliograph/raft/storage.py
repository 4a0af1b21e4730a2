"""LogStorage: term, vote, entries, and snapshots of one Raft member, durably, in one directory.

Is: a segmented log of records and snapshot files on the `Disk` port; recovery of both. Isn't: rules of Raft, or anything that waits: it calls back.
Invariants: `done` of a write is called once everything of it is durable, in the order of the writes; writes that wait together share one sync.
A torn tail that was never reported durable is cut off; damage below what was reported durable raises CorruptData at `recover`, as far as a later
record (or a clean close) bears witness to it. Segments are filled with zeros before they are used, so that a full disk shows where a segment is made
(`full`), not in the middle of a record. A failed write or sync is final.
Each record also says how far entries are known to be committed. Only the last record of a batch raises that, behind the entries that it speaks of, and
committed entries are never replaced: so whatever prefix of the log survives holds those very entries. A member that restarts may therefore apply
them before it hears of anybody; what it doesn't know of is only what was committed after its last record.
Source: formats below; ARCHITECTURE "Ledgers and journal".

Files: log-{number}; snapshots as in `snapshot_file`. All numbers big endian. A segment holds records, then zeros. A record:

    0  u32 magic "HRL1"           12 u32 crc32c of segment number, offset, the head without this field, and the body
    4  u8  version (1)            16 u64 sequence: one more than that of the record before
    5  u8  kind                   24 u64 every record through this sequence was durable when this one was written
    6  u16 reserved (0)           32 u64 entries through this index are committed, as this member knew behind this record; never falls
    8  u32 size of the body       40 body

    1 hard state   u64 term, u8 size, vote                     also the first record of each segment
    2 entries      u64 first index, entries as in messages     replaces everything from the first index on
    3 reset        u64 index, u64 term                         the log is empty behind a snapshot of that index
    4 closed       -                                           clean end: everything before is durable
    5 commit       -                                           the commit index of its head, where nothing else was to be written for a while

"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import crc32c

from heliograph.model.errors import CorruptData, PeerError
from heliograph.raft.messages import (
    ENTRY_OVERHEAD,
    Entry,
    SnapshotMeta,
    decode_entries,
    encode_entries,
)
from heliograph.raft.snapshot_file import SCRATCH_NAMES, SnapshotWriter, blob_start, is_full, load_snapshot, snapshot_name, store_snapshot
from heliograph.runtime.disk import Disk, File

VERSION = 1
_MAGIC = b"HRL1"
_HEAD = struct.Struct(">4sBBHIIQQQ")
_SEED = struct.Struct(">QQ")
_HARD_STATE = struct.Struct(">QB")
_FIRST = struct.Struct(">Q")
_RESET = struct.Struct(">QQ")
_KIND_HARD_STATE, _KIND_ENTRIES, _KIND_RESET, _KIND_CLOSED, _KIND_COMMIT = 1, 2, 3, 4, 5
_RESERVE_BYTES = 16 << 10
_SMALL_BYTES = 2 * _RESERVE_BYTES  # the segment of a member that starts on a full disk
_RECORD_BYTES = 256 << 10
_ZEROS = bytes(64 << 10)

Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class Recovered:
    """What the directory held. `entries` follow the snapshot, or index 0 where there is none; those through `commit` are known to be committed."""

    term: int = 0
    vote: str = ""
    snapshot: SnapshotMeta | None = None
    blob: bytes = b""
    entries: list[Entry] = field(default_factory=list)
    commit: int = 0


@dataclass(slots=True)
class _Record:
    kind: int
    sequence: int
    synced: int
    commit: int
    body: bytes


@dataclass(slots=True)
class _Segment:
    number: int
    file: File
    size_bytes: int  # as filled with zeros
    end: int = 0  # where the next record goes
    index_max: int = 0  # no entry or reset above it
    head_sequence: int = 0


@dataclass(slots=True)
class _Write:
    bodies: deque[tuple[int, bytes, int]]  # (kind, body, largest index)
    done: Done | None
    commit: int = 0  # what its last record may say
    snapshot: tuple[SnapshotMeta, bytes] | None = None  # to be stored behind these records and before anything else


def _checksum(number: int, offset: int, head: bytes, body: bytes) -> int:
    return crc32c.crc32c(body, crc32c.crc32c(head, crc32c.crc32c(_SEED.pack(number, offset))))


def _hard_state_body(term: int, vote: str) -> bytes:
    name = vote.encode()
    return _HARD_STATE.pack(term, len(name)) + name


def _encode_record(number: int, offset: int, record: _Record) -> bytes:
    kind, size, rest = record.kind, len(record.body), (record.sequence, record.synced, record.commit)
    crc = _checksum(number, offset, _HEAD.pack(_MAGIC, VERSION, kind, 0, size, 0, *rest), record.body)
    return _HEAD.pack(_MAGIC, VERSION, kind, 0, size, crc, *rest) + record.body


def _read_record(number: int, raw: bytes, offset: int) -> _Record | None:
    """The whole record at `offset`, or None."""
    if offset + _HEAD.size > len(raw):
        return None
    magic, version, kind, reserved, size, crc, sequence, synced, commit = _HEAD.unpack_from(raw, offset)
    start = offset + _HEAD.size
    if magic != _MAGIC or version != VERSION or reserved or size > len(raw) - start:
        return None
    body = raw[start : start + size]
    if _checksum(number, offset, _HEAD.pack(magic, version, kind, 0, size, 0, sequence, synced, commit), body) != crc:
        return None
    return _Record(kind, sequence, synced, commit, body)


def segment_name(number: int) -> str:
    return f"log-{number:010d}"


class LogStorage:
    """recover() first, in a job or at start-up; then everything else from the event loop."""

    def __init__(self, disk: Disk, *, segment_bytes: int) -> None:
        self._disk, self._segment_bytes = disk, segment_bytes
        self._segments: list[_Segment] = []  # oldest first; the last one is written to
        self._spare: _Segment | None = None
        self._preparing = False
        self._sequence = 0  # of the last record made
        self._synced = 0  # every record through it is durable
        self._commit = 0  # what the last record says
        self._hard_state = _hard_state_body(0, "")  # the newest one in the log, as a body
        self._writes: deque[_Write] = deque()
        self._installing: tuple[SnapshotMeta, bytes] | None = None  # must be durable before the next write
        self._snapshot: SnapshotMeta | None = None
        self.full = False
        self.failed: BaseException | None = None

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Reads the directory, makes durable what it takes over, and opens a segment to write to. Blocking. Raises OSError, CorruptData."""
        state = Recovered()
        names = self._disk.names()
        snapshots = [name for name in names if name.startswith("snapshot-")]
        if snapshots:
            state.snapshot, state.blob = load_snapshot(self._disk, snapshots[-1])
        base, base_term, entries = self._replay(sorted(name for name in names if name.startswith("log-")), state)
        needs_reset = False
        if state.snapshot is not None:
            index = state.snapshot.index
            if base > index:
                raise CorruptData(f"the log begins behind index {base}, the newest snapshot ends at {index}")
            held = base_term if index == base else entries[index - base - 1][0] if index - base <= len(entries) else -1
            if held == state.snapshot.term:
                entries = entries[index - base :]
            else:
                needs_reset, entries = True, []
            base = index
        elif base:
            raise CorruptData(f"the log begins behind index {base}, and there is no snapshot")
        if self._commit > base + len(entries):
            raise CorruptData(f"entries through index {self._commit} are committed, and the log ends at {base + len(entries)}")
        state.entries, state.commit = entries, max(self._commit, base)
        self._snapshot = state.snapshot
        self._begin(needs_reset, state)
        for name in names:
            if name in SCRATCH_NAMES or name in snapshots[:-1]:
                self._disk.remove(name)
        return state

    def recover_soon(self, done: Callable[[Recovered | None, BaseException | None], None]) -> None:
        """`recover` on the disk's own thread."""

        self._disk.submit(self.recover, done)

    def _replay(self, names: list[str], state: Recovered) -> tuple[int, int, list[Entry]]:
        """Returns (base index, its term, entries behind it). Sets hard state, sequences, and segments."""
        base, base_term, entries = -1, 0, list[Entry]()
        cut = False
        for name in names:
            number = int(name.removeprefix("log-"))
            segment_file = self._disk.open(name)
            raw = segment_file.pread(segment_file.size_bytes(), 0)
            if cut:
                self._look_for_witness(number, raw, 0)
                segment_file.close()
                self._disk.remove(name)
                continue
            segment = _Segment(number, segment_file, len(raw))
            while (record := _read_record(number, raw, segment.end)) is not None and (not self._sequence or record.sequence == self._sequence + 1):
                kind, body = record.kind, record.body
                self._sequence, self._synced, self._commit = record.sequence, record.synced, record.commit
                if not segment.end:
                    segment.head_sequence = self._sequence
                segment.end += _HEAD.size + len(body)
                if kind == _KIND_HARD_STATE:
                    self._hard_state = body
                    state.term, size = _HARD_STATE.unpack_from(body)
                    state.vote = body[_HARD_STATE.size : _HARD_STATE.size + size].decode()
                elif kind == _KIND_RESET:
                    base, base_term = _RESET.unpack(body)
                    entries = []
                    segment.index_max = max(segment.index_max, base)
                elif kind == _KIND_ENTRIES:
                    (first,) = _FIRST.unpack_from(body)
                    try:
                        new = decode_entries(body, _FIRST.size)
                    except PeerError as error:
                        raise CorruptData(f"{name}: a whole record holds what cannot be read: {error}") from error
                    if base < 0 or first <= base:
                        base, base_term, entries = first - 1, 0, new
                        if state.snapshot is not None and base == state.snapshot.index:
                            base_term = state.snapshot.term
                    elif first > base + len(entries) + 1:
                        raise CorruptData(f"{name}: entries before index {first} are missing")
                    else:
                        entries[first - base - 1 :] = new
                    segment.index_max = max(segment.index_max, first - 1 + len(new))
            tail = raw[segment.end :]
            if tail[:4] == _MAGIC and len(tail) > 4 and tail[4] not in (0, VERSION):
                raise CorruptData(f"{name}: version {tail[4]} is not known to this program")
            if tail.count(0) != len(tail):
                self._look_for_witness(number, raw, segment.end)
                cut = True
            elif not segment.end:
                cut = True  # an unused spare, or one whose first record was lost
            if segment.end:
                segment_file.truncate(segment.end)
                segment.size_bytes = segment.end
                self._segments.append(segment)
            else:
                segment_file.close()
                self._disk.remove(name)
        if base < 0:
            base, base_term = (state.snapshot.index, state.snapshot.term) if state.snapshot is not None else (0, 0)
        return base, base_term, entries

    def _look_for_witness(self, number: int, raw: bytes, start: int) -> None:
        """The log ends before `start`. A whole record behind it that says more was durable means damage."""
        at = raw.find(_MAGIC, start)
        while at >= 0:
            record = _read_record(number, raw, at)
            if record is not None and record.synced > self._sequence:
                raise CorruptData(f"{segment_name(number)}: record {self._sequence + 1} was durable and cannot be read")
            at = raw.find(_MAGIC, at + 1)

    def _begin(self, needs_reset: bool, state: Recovered) -> None:
        for segment in self._segments:
            segment.file.datasync()
        number = self._segments[-1].number + 1 if self._segments else 1
        try:
            segment = self._make_segment(number, self._segment_bytes)
        except OSError as error:
            if not is_full(error):
                raise
            segment, self.full = self._make_segment(number, _SMALL_BYTES), True
        bodies = [(_KIND_HARD_STATE, self._hard_state)]
        if needs_reset and state.snapshot is not None:
            bodies.append((_KIND_RESET, _RESET.pack(state.snapshot.index, state.snapshot.term)))
            segment.index_max = state.snapshot.index
        self._synced = self._sequence
        self._segments.append(segment)
        segment.head_sequence = self._sequence + 1
        segment.file.pwritev([self._record(segment, kind, body) for kind, body in bodies], 0)
        segment.file.datasync()
        self._synced = self._sequence

    def _make_segment(self, number: int, size_bytes: int) -> _Segment:
        """Creates a segment full of zeros, durably. Blocking. Raises OSError; then nothing of it is left."""
        name = segment_name(number)
        segment_file = self._disk.open(name, create=True)
        try:
            for offset in range(0, size_bytes, len(_ZEROS)):
                segment_file.pwritev([memoryview(_ZEROS)[: min(len(_ZEROS), size_bytes - offset)]], offset)
            segment_file.datasync()
        except OSError:
            segment_file.close()
            self._disk.remove(name)
            raise
        self._disk.sync_directory()
        return _Segment(number, segment_file, size_bytes)

    # -- writing ------------------------------------------------------------------------------------------------------

    def room_bytes(self) -> int:
        """What still fits into segments that are made already, less a reserve for terms and votes."""
        spare = self._spare.size_bytes if self._spare is not None else 0
        return self._segments[-1].size_bytes - self._segments[-1].end + spare - _RESERVE_BYTES

    def write(
        self,
        hard_state: tuple[int, str] | None,
        snapshot: tuple[SnapshotMeta, bytes] | None,
        first_index: int,
        entries: Sequence[Entry],
        commit: int,
        done: Done,
    ) -> None:
        """Stores a batch: term and vote, a snapshot that came from the leader (the log is empty behind it), entries from `first_index` on.

        commit: everything through this index is committed, and stands in this batch or in those before it. Nothing at all: only that is stored.
        """
        bodies: deque[tuple[int, bytes, int]] = deque()
        if hard_state is not None:
            bodies.append((_KIND_HARD_STATE, _hard_state_body(*hard_state), 0))
        if snapshot is not None:
            self._writes.append(_Write(bodies, None, snapshot=snapshot))
            bodies = deque([(_KIND_RESET, _RESET.pack(snapshot[0].index, snapshot[0].term), snapshot[0].index)])
        at = 0
        while at < len(entries):
            end, size = at, 0
            while end < len(entries) and (end == at or size + ENTRY_OVERHEAD + len(entries[end][2]) <= _RECORD_BYTES):
                size += ENTRY_OVERHEAD + len(entries[end][2])
                end += 1
            first = first_index + at
            bodies.append((_KIND_ENTRIES, _FIRST.pack(first) + encode_entries(entries[at:end]), first_index + end - 1))
            at = end
        if not bodies:
            bodies.append((_KIND_COMMIT, b"", 0))
        self._writes.append(_Write(bodies, done, commit))
        self._drain()

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def retry(self) -> None:
        """Space may have come back: try again to make a segment."""
        if self.full and self._installing is not None:
            self._install(*self._installing)
        elif self.full:
            self._prepare(self._segment_bytes)

    def _record(self, segment: _Segment, kind: int, body: bytes) -> bytes:
        self._sequence += 1
        record = _encode_record(segment.number, segment.end, _Record(kind, self._sequence, self._synced, self._commit, body))
        segment.end += len(record)
        return record

    def _drain(self) -> None:
        """Hands everything to the disk for which there is room, one call a segment and write."""
        while self._writes and self._installing is None and self.failed is None:
            write = self._writes[0]
            segment, offset, records = self._segments[-1], self._segments[-1].end, list[bytes]()
            while write.bodies:
                kind, body, index = write.bodies[0]
                if segment.end + _HEAD.size + len(body) > segment.size_bytes:
                    break
                write.bodies.popleft()
                if kind == _KIND_HARD_STATE:
                    self._hard_state = body
                if not write.bodies:
                    self._commit = max(self._commit, write.commit)
                records.append(self._record(segment, kind, body))
                segment.index_max = max(segment.index_max, index)
            whole = not write.bodies
            if whole:
                self._writes.popleft()
            if records:
                done = write.done if whole else None
                self._disk.submit_sync(segment.file, offset, records, partial(self._synced_through, self._sequence, done))
            if not whole and not self._roll(_HEAD.size + len(write.bodies[0][1])):
                return
            if whole and write.snapshot is not None:
                self._install(*write.snapshot)
        if self._segments[-1].size_bytes - self._segments[-1].end < self._segment_bytes // 2:
            self._prepare(self._segment_bytes)

    def _roll(self, needed: int) -> bool:
        """Goes on in the spare segment. False: there is none yet; `_drain` is called again when there is."""
        head = _HEAD.size + len(self._hard_state)
        if self._spare is None or self._spare.size_bytes < needed + head:
            self._prepare(max(self._segment_bytes, needed + head))
            return False
        segment, self._spare = self._spare, None
        self._segments.append(segment)
        segment.head_sequence = self._sequence + 1
        record = self._record(segment, _KIND_HARD_STATE, self._hard_state)
        self._disk.submit_sync(segment.file, 0, [record], partial(self._synced_through, self._sequence, None))
        return True

    def _prepare(self, size_bytes: int) -> None:
        if self._preparing or self.failed is not None:
            return
        number = self._segments[-1].number + 1
        old = self._spare
        if old is not None:
            if old.size_bytes >= size_bytes:
                return
            self._spare = None
        self._preparing = True

        def job() -> _Segment:
            if old is not None:
                old.file.close()
            return self._make_segment(number, size_bytes)

        self._disk.submit(job, self._prepared)

    def _prepared(self, segment: _Segment | None, error: BaseException | None) -> None:
        self._preparing = False
        if segment is not None:
            self.full = False
            self._spare = segment
            self._drain()
        elif error is not None and is_full(error):
            self.full = True
        else:
            self._fail(error)

    def _synced_through(self, sequence: int, done: Done | None, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        elif self.failed is None:
            self._synced = max(self._synced, sequence)
        if done is not None:
            done(self.failed)

    def _fail(self, error: BaseException | None) -> None:
        if self.failed is None:
            self.failed = error or OSError("the disk failed")
            waiting, self._writes = self._writes, deque()
            for write in waiting:
                if write.done is not None:
                    write.done(self.failed)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def save_snapshot(self, meta: SnapshotMeta, blob: bytes, done: Done) -> None:
        """Stores a snapshot of this member's machine, then drops what it replaces. done(OSError of a full disk) changes nothing."""

        def stored(_: None, error: BaseException | None) -> None:
            if error is None:
                self._snapshot = meta
                self._prune()
            elif not is_full(error):
                self._fail(error)
            done(error)

        self._disk.submit(partial(store_snapshot, self._disk, meta, blob), stored)

    def begin_snapshot(self) -> SnapshotWriter:
        """The same in pieces, for one that takes long to make. One at a time."""

        def written(meta: SnapshotMeta) -> None:
            if self._snapshot is None or meta.index > self._snapshot.index:
                self._snapshot = meta
                self._prune()

        return SnapshotWriter(self._disk, written, lambda error: None if is_full(error) else self._fail(error))

    def read_chunk(self, meta: SnapshotMeta, offset: int, size_bytes: int, done: Callable[[bytes | None, BaseException | None], None]) -> None:
        """Part of the blob of a stored snapshot; FileNotFoundError where it is gone."""

        def job() -> bytes:
            snapshot_file = self._disk.open(snapshot_name(meta.index))
            try:
                return snapshot_file.pread(min(size_bytes, meta.size_bytes - offset), blob_start(meta) + offset)
            finally:
                snapshot_file.close()

        self._disk.submit(job, done)

    def close(self, commit: int, done: Done) -> None:
        """Marks a clean end: everything before was durable. Nothing may be written behind it. commit: as in `write`."""

        def closed(error: BaseException | None) -> None:
            for each in [*self._segments, *([self._spare] if self._spare else [])]:
                each.file.close()
            done(error)

        segment = self._segments[-1]
        if self.failed is not None or self._writes or segment.end + _HEAD.size > segment.size_bytes:
            self._disk.submit(lambda: None, lambda _, error: closed(error))
        else:
            offset = segment.end
            self._commit = max(self._commit, commit)
            record = self._record(segment, _KIND_CLOSED, b"")
            self._disk.submit_sync(segment.file, offset, [record], closed)

    def _install(self, meta: SnapshotMeta, blob: bytes) -> None:
        """Stores a snapshot from the leader; the next writes wait, because they say that the log is empty behind it."""
        self._installing = (meta, blob)

        def stored(_: None, error: BaseException | None) -> None:
            if error is None:
                self._snapshot, self._installing, self.full = meta, None, False
                self._drain()
            elif is_full(error):
                self.full = True  # `retry` tries again; until then nothing is written, so nothing is promised
            else:
                self._fail(error)

        self._disk.submit(partial(store_snapshot, self._disk, meta, blob), stored)

    def _prune(self) -> None:
        """Drops segments and snapshots that the newest snapshot replaces. One older snapshot stays, for a member that is being sent it."""
        assert self._snapshot is not None
        index, gone = self._snapshot.index, list[_Segment]()
        while len(self._segments) > 1 and self._segments[0].index_max <= index and self._segments[1].head_sequence <= self._synced:
            gone.append(self._segments.pop(0))

        def job() -> None:
            for segment in gone:
                segment.file.close()
                self._disk.remove(segment_name(segment.number))
            for name in [name for name in self._disk.names() if name.startswith("snapshot-")][:-2]:
                self._disk.remove(name)

        self._disk.submit(job, lambda _, error: self._fail(error) if error is not None else None)
