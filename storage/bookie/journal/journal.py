"""The journal: what makes an add, a fence, or a deletion durable before it is answered.

Is: records in pre-written segments of one directory, which one a record goes to, and the replay after a crash. Isn't:
what a record's frames mean.
Invariants: a record is durable before `done(None)`; a segment is taken again only after `recycle` said that its records
are not needed; a record of an earlier lap of a segment, or of a life of the process whose end was lost, never passes
for one of this lap.
Source: docs/protocols/ledger.md, "Journal record".

A segment is a file `segment-NNNNNN` of fixed size, zero-written before its first use, so that a sync writes no
metadata. A record, big endian, begins at a multiple of 4096 (no page is written by two records, and it may go around
the page cache) and never crosses the end of its segment:

    0   2s magic "HJ"
    2   u8 version (1)
    3   u8 0
    4   u32 size of the record
    8   u64 segment number, never reused: (start of the process << 32) + count
    16  u64 sequence, of all records, consecutive, from 1
    24  u64 synced-through (0: none): every record up to this sequence was synced when this one was written
    32  u32 crc32c of all but itself, seeded with the directory's salt, segment number, and offset
    36  frames as they came (`heliograph.wire.bookie_frames`)

Replay takes consecutive sequences and ends at the first record that is missing or bad. What lies behind it was never
acknowledged, unless a later record claims that it was synced, or a segment that was made is not there: then the disk
has lost what it had promised, and the bookie starts in limbo. `made-segments` says which were made and not removed. A
start that found such a rest writes down at which sequence it goes on ("fork"), which voids what earlier starts left
from there on.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.runtime.disk import Buffer, Disk, File, is_transient
from storage.bookie.journal.small_files import read_small, write_small

_HEAD = struct.Struct(">2sBBIQQQI")
_SEED = struct.Struct(">IQQ")
_MAGIC, VERSION = b"HJ", 1
_ALIGN = 4096
_ZEROS = bytes(1 << 16)
_PREFIX = "segment-"
_MADE = "made-segments"

Fork = tuple[int, int, int]
"""(number of a start, first sequence it wrote, last sequence it found behind the end): records of earlier starts from
the first on are void.
"""
Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Segment:
    name: str
    file: File
    number: int = 0
    end: int = 0
    last_sequence: int = 0
    fits: bool = True
    """Whether the file has the size of now, and not that of an earlier start: behind its end nothing is zeroed, and a
    full disk would fail a write there, for good.
    """


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One record that was read back. `frames` is a view of the segment's bytes."""

    segment: int
    sequence: int
    synced_through: int
    frames: memoryview
    begin: int
    end: int
    whole: memoryview
    """All of it, to the end of its last page."""


@dataclass(slots=True)
class JournalReplay:
    """What a directory holds behind a checkpoint. `corrupt`: why this is not all that was acknowledged; "" where it
    is.
    """

    records: list[JournalRecord]
    next_sequence: int
    corrupt: str
    used: dict[str, int]
    """Segment file -> last sequence it holds, of those still needed."""
    free: list[str]
    stray_through: int
    """The last sequence found behind the end of the replay; below `next_sequence` where there is none."""
    made: set[str]
    """Segment files that the directory's list names."""
    unproven: list[tuple[str, int, memoryview]] = field(default_factory=list)
    """(segment file, offset, bytes) of the records that no later one says were synced: they may be in memory only."""


class Journal:
    """The writing half. Only the event loop calls it.

    zeroing: a Disk over the same directory whose thread pre-writes segments, so that the sync thread never waits for
    that.
    """

    def __init__(
        self, disk: Disk, zeroing: Disk, *, segment_bytes: int, spare: int, start: int, salt: int, replay: JournalReplay
    ) -> None:
        self._disk, self._zeroing, self._segment_bytes, self._spare = disk, zeroing, segment_bytes, spare
        _write_again(disk, replay.unproven)
        self._start, self._salt, self._count = start, salt, 0
        self.next_sequence = replay.next_sequence
        self.synced_through = replay.next_sequence - 1
        self.pending_bytes = 0
        """Given to `append` and not durable yet."""
        self.failure: BaseException | None = None
        """The first failed write or sync: final."""
        self._used = deque(self._open(name, last) for name, last in sorted(replay.used.items(), key=lambda i: i[1]))
        self._free = [self._open(name) for name in replay.free]
        names = [*replay.used, *replay.free]
        self._made_names = set(names)
        """As the directory's list has them: only `_make` and `_drop` change it, in one thread."""
        self._unlisted: _Segment | None = None
        """Made, and its listing failed: the list may name it already, so the file stays, and is the next one made."""
        if replay.made != self._made_names:
            self._list()
        self._next_name = max((int(name.removeprefix(_PREFIX)) for name in names), default=-1) + 1
        self._making = False
        self._flushed_through = 0
        self._waiting: deque[tuple[Sequence[Buffer], int, Done]] = deque()
        self._current: _Segment | None = None
        other = [segment for segment in self._free if not segment.fits]
        self._free = [segment for segment in self._free if segment.fits]
        try:
            for segment in other:
                self._drop(segment)
            if not self._free:
                self._free.append(self._make(self._take_name()))
        except (OSError, MemoryError) as error:
            if not is_transient(error):
                raise

    @property
    def record_bytes_max(self) -> int:
        """Frames of one record together."""
        return self._segment_bytes - _HEAD.size - _ALIGN

    @property
    def pending_records(self) -> int:
        """Given to `append` and not durable yet."""
        return self.next_sequence - 1 - self.synced_through + len(self._waiting)

    @property
    def used_segments(self) -> int:
        """How many segments are full and still hold records that are not flushed to entry logs."""
        return len(self._used)

    @property
    def segments(self) -> int:
        return len(self._used) + len(self._free) + (self._current is not None)

    def append(self, frames: Sequence[Buffer], size_bytes: int, done: Done) -> None:
        """Writes one record; `done` is called in order, from within this call where the record came alone and its disk
        is fast.

        A full disk refuses it (OSError ENOSPC) without harm; other failures are final.
        """
        assert 0 < size_bytes <= self.record_bytes_max
        if self.failure is not None:
            done(self.failure)
            return
        alone = not self.pending_bytes
        self.pending_bytes += size_bytes
        if self._waiting or not self._write(frames, size_bytes, done, alone=alone):
            self._waiting.append((frames, size_bytes, done))
            self._want_segment()

    def recycle(self, through: int) -> None:
        """Entry logs, index, and checkpoint hold everything up to sequence `through` durably: those segments may be
        written again.

        A flush may be faster than the journal: a segment whose last record is still on its way to the disk waits for
        that.
        """
        self._flushed_through = max(self._flushed_through, through)
        self._recycle()

    def _recycle(self) -> None:
        while self._used and self._used[0].last_sequence <= min(self._flushed_through, self.synced_through):
            segment = self._used.popleft()
            if len(self._free) < self._spare and segment.fits:
                self._free.append(segment)
            else:
                self._zeroing.submit(
                    lambda gone=segment: self._drop(gone),  # type: ignore[misc]
                    lambda _result, _error: None,
                )
        self._write_waiting()

    def close(self) -> None:
        for segment in (*self._used, *self._free):
            segment.file.close()
        for single in (self._current, self._unlisted):
            if single is not None:
                single.file.close()

    # -- records ------------------------------------------------------------------------------------------------------

    def _write(self, frames: Sequence[Buffer], size_bytes: int, done: Done, *, alone: bool = False) -> bool:
        """False where there is no segment for it. alone: nothing else is on its way; then `done` may be called from
        within.
        """
        segment = self._current
        size = _HEAD.size + size_bytes
        padded = -(-size // _ALIGN) * _ALIGN
        if segment is None or segment.end + padded > self._segment_bytes:
            if not self._free:
                return False
            if segment is not None:
                self._used.append(segment)
            segment = self._current = self._take_segment()
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        head = _HEAD.pack(_MAGIC, VERSION, 0, size, segment.number, sequence, self.synced_through, 0)[:-4]
        crc = crc32c.crc32c(head, _seed(self._salt, segment.number, segment.end))
        for frame in frames:
            crc = crc32c.crc32c(frame, crc)
        buffers = [head, crc.to_bytes(4, "big"), *frames, _ZEROS[: padded - size]]
        offset, segment.end, segment.last_sequence = segment.end, segment.end + padded, sequence

        def synced(error: BaseException | None) -> None:
            self.pending_bytes -= size_bytes
            if error is not None:
                self.failure = self.failure or error
            elif self.failure is None:
                self.synced_through = sequence
            done(self.failure)
            self._recycle()

        if alone:
            try:
                at_once = self._disk.sync_at_once(segment.file, offset, buffers)
            except OSError as error:
                synced(error)
                return True
            if at_once:
                synced(None)
                return True
        self._disk.submit_sync(segment.file, offset, buffers, synced)
        return True

    def _write_waiting(self) -> None:
        while self._waiting and self._write(*self._waiting[0]):
            self._waiting.popleft()
        if self._waiting:
            self._want_segment()

    # -- segments -----------------------------------------------------------------------------------------------------

    def _take_segment(self) -> _Segment:
        segment = self._free.pop(0)
        segment.number, segment.end = self._start << 32 | self._count, 0
        self._count += 1
        return segment

    def prepare(self) -> None:
        """Has a spare segment written in the background, where there is none."""
        if not self._free:
            self._want_segment()

    def _want_segment(self) -> None:
        if not self._making:
            self._making = True
            name = self._take_name()
            self._zeroing.submit(lambda: self._make(name), self._made)

    def _made(self, segment: _Segment | None, error: BaseException | None) -> None:
        self._making = False
        if segment is not None:
            self._free.append(segment)
            self._write_waiting()
            return
        assert error is not None
        if not is_transient(error):
            self.failure = self.failure or error
        waiting, self._waiting = self._waiting, deque()
        for _, size_bytes, done in waiting:
            self.pending_bytes -= size_bytes
            done(error)

    def _take_name(self) -> str:
        self._next_name += 1
        return f"{_PREFIX}{self._next_name - 1:06d}"

    def _make(self, name: str) -> _Segment:
        """Blocking. A file that a full disk left short is removed."""
        if self._unlisted is None:
            self._unlisted = _Segment(name, self._zeroed(name))
        segment = self._unlisted
        self._made_names.add(segment.name)
        self._list()
        self._unlisted = None
        return segment

    def _zeroed(self, name: str) -> File:
        """Blocking. A new file of zeros, durable in its directory."""
        file = self._zeroing.open(name, create=True)
        try:
            step = len(_ZEROS)
            for offset in range(0, self._segment_bytes, step * 64):
                left = self._segment_bytes - offset
                file.pwritev(
                    [_ZEROS] * min(64, left // step) + ([_ZEROS[: left % step]] if left < 64 * step else []), offset
                )
            file.datasync()
            self._zeroing.sync_directory()
        except (OSError, MemoryError):
            file.close()
            self._zeroing.remove(name)
            raise
        return file

    def _open(self, name: str, last_sequence: int = 0) -> _Segment:
        file = self._disk.open(name)
        return _Segment(name, file, last_sequence=last_sequence, fits=file.size_bytes() == self._segment_bytes)

    def _drop(self, segment: _Segment) -> None:
        """Blocking. It leaves the list before it is removed."""
        segment.file.close()
        self._made_names.discard(segment.name)
        self._list()
        self._zeroing.remove(segment.name)

    def _list(self) -> None:
        """Blocking. Whatever is listed is there: a new segment is listed last, an old one removed last."""
        write_small(self._zeroing, _MADE, sorted(self._made_names))


def replay(disk: Disk, *, salt: int, flushed_through: int, forks: Sequence[Fork]) -> JournalReplay:
    """Reads every segment of the directory. Blocking; raises OSError."""
    lost = ""
    try:
        listed = read_small(disk, _MADE)
    except CorruptData as error:
        listed, lost = None, f"the list of the journal's segments cannot be read: {error}"
    made = set(listed[1]) if listed is not None else set()
    if gone := sorted(made.difference(disk.names())):
        lost = f"the journal has lost {', '.join(gone[:3])}{f' and {len(gone) - 3} more' if len(gone) > 3 else ''}"
    found: list[tuple[int, str, list[JournalRecord]]] = []
    free: list[str] = []
    stray: list[JournalRecord] = []
    for name in disk.names():
        if not name.startswith(_PREFIX):
            continue
        file = disk.open(name)
        # what is read here may not have been synced before the process died, and is relied upon from now on
        file.datasync()
        data = file.pread(file.size_bytes(), 0)
        file.close()
        records, end = _records(data, salt)
        needed = [r for r in records if r.sequence > flushed_through and not _void(r, forks)]
        if needed:
            found.append((needed[0].segment, name, needed))
        else:
            free.append(name)
        stray += [r for r in _behind(data, salt, end) if r.sequence > flushed_through and not _void(r, forks)]
    found.sort(key=lambda item: item[0])
    expected = flushed_through + 1
    taken: list[JournalRecord] = []
    whole = True
    for _, _, needed in found:
        for record in needed:
            whole = whole and record.sequence == expected
            if whole:
                taken.append(record)
                expected += 1
            else:
                stray.append(record)
    corrupt = ""
    claim = next((r for r in stray if r.synced_through >= expected), None)
    stray_through = max((r.sequence for r in stray), default=-1)
    if claim is not None:
        corrupt = f"the journal lost record {expected}, which record {claim.sequence} says was synced"
        taken += sorted((r for r in stray if r.sequence > expected), key=lambda r: r.sequence)
    used = {name: needed[-1].sequence for _, name, needed in found}
    proven = max((r.synced_through for r in taken), default=0)
    unproven = [(name, r.begin, r.whole) for _, name, needed in found for r in needed if proven < r.sequence < expected]
    return JournalReplay(taken, expected, lost or corrupt, used, free, stray_through, made, unproven)


def _write_again(disk: Disk, unproven: Sequence[tuple[str, int, memoryview]]) -> None:
    """Makes durable what later records will say was synced. Blocking; raises OSError.

    Where a sync has failed, the kernel calls the pages clean that it could not write: another sync of them says that
    all is well, and writes nothing. The same bytes in the same place harm nothing where they were durable.
    """
    for name in dict.fromkeys(name for name, _, _ in unproven):
        file = disk.open(name)
        for of, offset, whole in unproven:
            if of == name:
                file.pwritev([whole], offset)
        file.datasync()
        file.close()


def _records(data: bytes, salt: int) -> tuple[list[JournalRecord], int]:
    """The records from the beginning of a segment up to the first that is bad or of another lap, and the offset of that
    one.
    """
    records: list[JournalRecord] = []
    end, number = 0, -1
    while (record := _record_at(data, end, salt, number)) is not None:
        if records and record.sequence != records[-1].sequence + 1:
            break
        records.append(record)
        end, number = record.end, record.segment
    return records, end


def _behind(data: bytes, salt: int, offset: int) -> Iterator[JournalRecord]:
    """Good records of any lap somewhere behind the end of the replay."""
    while (offset := data.find(_MAGIC, offset)) >= 0:
        record = _record_at(data, offset, salt, -1) if offset % _ALIGN == 0 else None
        if record is not None:
            yield record
        offset += _ALIGN - offset % _ALIGN


def _record_at(data: bytes, offset: int, salt: int, number: int) -> JournalRecord | None:
    """number: the segment it must belong to; -1: any."""
    if offset + _HEAD.size > len(data):
        return None
    magic, version, _, size, segment, sequence, synced, crc = _HEAD.unpack_from(data, offset)
    if (
        magic != _MAGIC
        or version != VERSION
        or number not in (-1, segment)
        or not _HEAD.size < size <= len(data) - offset
    ):
        return None
    view = memoryview(data)[offset : offset + size]
    if crc32c.crc32c(view[_HEAD.size :], crc32c.crc32c(view[: _HEAD.size - 4], _seed(salt, segment, offset))) != crc:
        return None
    end = offset + -(-size // _ALIGN) * _ALIGN
    return JournalRecord(segment, sequence, synced, view[_HEAD.size :], offset, end, memoryview(data)[offset:end])


def _seed(salt: int, number: int, offset: int) -> int:
    seed: int = crc32c.crc32c(_SEED.pack(salt, number, offset))
    return seed


def _void(record: JournalRecord, forks: Sequence[Fork]) -> bool:
    start = record.segment >> 32
    return any(start < fork_start and first <= record.sequence <= last for fork_start, first, last in forks)
