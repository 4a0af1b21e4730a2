"""The other way to store large entries, on the bookie's own classes: they stay where the journal wrote them, and an
entry log only names their places.

Is: what `benchmarks.large_entries` measures against the bookie as it is (decision 11): the write path, the flush, and
reading. A segment that holds such a block is never taken again; fresh ones are allocated, not zero-written, as zeros
would cost what the copy costs.
Isn't: a bookie for use: a start does not know these logs, and neither compaction nor deletion gives a segment back.
Invariant: a log that names places in a segment is written only once the journal has synced them.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from heliograph.model.ledger_homes import home_of
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Buffer, Disk, File
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.bookie_frames import HEAD, Kind
from storage.bookie.bookie_peer import Peer
from storage.bookie.bookie_settings import BookieSettings
from storage.bookie.directories.cookie import DirectoryPlace
from storage.bookie.directories.journal_dir import Answer, JournalDir
from storage.bookie.directories.ledger_dir import LedgerDir
from storage.bookie.entry_log.compaction import EntryLogCompactor
from storage.bookie.entry_log.entry_log import EntryLog, LedgerMark, LogWriter
from storage.bookie.entry_log.entry_logs import EntryLogs
from storage.bookie.entry_log.scrub import Scrubber
from storage.bookie.entry_log.write_cache import CacheGeneration
from storage.bookie.journal.journal import Done, Journal, JournalReplay, _Segment
from storage.bookie.serving.bookie import Bookie

LARGE_BYTES = 64 << 10
_RECORD_HEAD_BYTES, _LOG_HEAD_BYTES = 36, 16
_FILE_SHIFT = 40

Places = dict[tuple[int, int], tuple[int, str, int]]
"""(ledger, first entry) of a block -> (its bytes, segment, offset there)."""
Placed = Callable[[int, int, int, str, int], None]
"""(ledger, first entry, bytes of the block, segment, offset)."""


class KeptLog(EntryLog):
    """A log some of whose blocks lie in segments of the journal. An offset's upper bits name the file; 0 is the log's
    own.
    """

    __slots__ = ("_journal", "_places", "_segment_files", "_segments")

    _journal: Disk
    _places: array[int]
    _segments: list[str]
    _segment_files: dict[int, File]

    def runs(self, group: int) -> Iterator[tuple[int, int, int, int]]:
        for offset, size, first, count in super().runs(group):
            yield self._place(offset), size, first, count

    def find(self, ledger: int, entry: int) -> tuple[int, int, int] | None:
        found = super().find(ledger, entry)
        return None if found is None else (self._place(found[0]), found[1], found[2])

    def behind(self, offset: int, bytes_max: int) -> tuple[int, int]:
        return offset, 0  # blocks of other ledgers, mostly

    def read(self, disk: Disk, offset: int, size_bytes: int) -> bytes:
        number, at = offset >> _FILE_SHIFT, offset & ((1 << _FILE_SHIFT) - 1)
        if not number:
            return super().read(disk, at, size_bytes)
        file = self._segment_files.get(number)
        if file is None:
            file = self._segment_files[number] = self._journal.open(self._segments[number - 1])
            file.expect_scattered()
        return file.pread(size_bytes, at)

    def close(self) -> None:
        super().close()
        for file in self._segment_files.values():
            file.close()
        self._segment_files = {}

    def _place(self, offset: int) -> int:
        return self._places[bisect_left(self._offsets, offset)]


class KeptWriter(LogWriter):
    """journal: the directory of the segments."""

    def __init__(self, disk: Disk, number: int, journal: Disk) -> None:
        super().__init__(disk, number)
        self._journal = journal
        self._places = array("Q")
        self._segments: dict[str, int] = {}
        self._own_end = _LOG_HEAD_BYTES

    def put(self, first: int, count: int, block: Buffer) -> None:
        self._places.append(self._own_end)
        self._own_end += len(block)
        super().put(first, count, block)

    def name(self, first: int, count: int, size_bytes: int, segment: str, offset: int) -> None:
        """A block that stays in that segment."""
        self._run_counts[-1] += 1
        self._firsts.append(first)
        self._counts.append(count)
        self._sizes.append(size_bytes)
        self._places.append(self._segments.setdefault(segment, len(self._segments) + 1) << _FILE_SHIFT | offset)

    def finish(self) -> EntryLog:
        self._open().put(self._places.tobytes())
        super().finish()
        log = KeptLog(self.number, self._marks, self._run_counts, self._firsts, self._sizes, self._counts)
        log._journal, log._places, log._segments, log._segment_files = (
            self._journal,
            self._places,
            list(self._segments),
            {},
        )
        return log


def write(
    disk: Disk, journal: Disk, number: int, generation: CacheGeneration, marks: Sequence[LedgerMark], places: Places
) -> EntryLog:
    """As `entry_log.write`; blocks whose place is known are named, not copied."""
    writer = KeptWriter(disk, number, journal)
    try:
        for mark in marks:
            writer.begin(mark)
            tail = generation.tails.get(mark.ledger)
            if tail is None:
                continue
            for first, count, block in zip(tail.firsts, tail.counts, tail.blocks, strict=True):
                place = places.get((mark.ledger, first))
                if place is not None and place[0] == len(block):
                    writer.name(first, count, *place)
                else:
                    writer.put(first, count, block)
        return writer.finish()
    finally:
        writer.close()


class KeepingLogs(EntryLogs):
    def flush_kept(
        self,
        number: int,
        generation: CacheGeneration,
        through: int,
        marks: Sequence[LedgerMark],
        journal: Disk,
        places: Places,
        done: Done,
    ) -> None:
        self._save(through, [], number, partial(write, self.disk, journal, number, generation, marks, places), done)


class KeepingLedgerDir(LedgerDir):
    def __init__(
        self,
        place: DirectoryPlace,
        journal: KeepingJournalDir,
        settings: BookieSettings,
        cache_bytes_max: int,
        *,
        changed: Callable[[], None],
        room: Callable[[], None],
    ) -> None:
        super().__init__(place, journal, settings, cache_bytes_max, changed=changed, room=room)
        self.keeping = KeepingLogs(place.disk, place.background, self.catch_up.behind)
        self.logs = self.keeping
        self.compactor, self.scrubber = (
            EntryLogCompactor(self.logs, settings, failed=self.fail, changed=room),
            Scrubber(self.logs, settings),
        )
        self.places: Places = {}
        self._waiting: Callable[[], None] | None = None

    def _start_flush(self, number: int, generation: CacheGeneration, through: int, marks: Sequence[LedgerMark]) -> None:
        places, self.places = self.places, {}
        self._waiting = partial(self._flush_once_synced, number, generation, through, marks, places)
        self._waiting()

    def on_synced(self) -> None:
        if self._waiting is not None:
            self._waiting()

    def _flush_once_synced(
        self, number: int, generation: CacheGeneration, through: int, marks: Sequence[LedgerMark], places: Places
    ) -> None:
        assert self.journal.journal is not None
        if self.journal.journal.synced_through >= through:
            self._waiting = None
            self.keeping.flush_kept(
                number, generation, through, marks, self.journal.place.background, places, self._flushed
            )


class KeepingJournal(Journal):
    """placed: told of each large block of a record, once its place is known."""

    def __init__(
        self,
        disk: Disk,
        zeroing: Disk,
        placed: Placed,
        *,
        segment_bytes: int,
        spare: int,
        start: int,
        salt: int,
        replay: JournalReplay,
    ) -> None:
        self._placed, self._kept = placed, dict[str, None]()
        super().__init__(disk, zeroing, segment_bytes=segment_bytes, spare=spare, start=start, salt=salt, replay=replay)

    def _write(self, frames: Sequence[Buffer], size_bytes: int, done: Done, *, alone: bool = False) -> bool:
        if not super()._write(frames, size_bytes, done, alone=alone):
            return False
        segment = self._current
        assert segment is not None
        at = segment.end - -(-(_RECORD_HEAD_BYTES + size_bytes) // 4096) * 4096 + _RECORD_HEAD_BYTES
        for piece in frames:
            start = 0
            while start < len(piece):
                size, _, kind, count, ledger, entry, _, _ = HEAD.unpack_from(piece, start)
                if kind == Kind.ADD and size - HEAD.size >= LARGE_BYTES * count:
                    self._kept[segment.name] = None
                    self._placed(ledger, entry, size - HEAD.size, segment.name, at + start + HEAD.size)
                start += size
            at += len(piece)
        return True

    def _recycle(self) -> None:
        through = min(self._flushed_through, self.synced_through)
        for segment in self._used:
            if segment.last_sequence <= through and segment.name in self._kept:
                segment.file.close()
        self._used = deque(one for one in self._used if one.last_sequence > through or one.name not in self._kept)
        super()._recycle()

    def prepare(self) -> None:
        if len(self._free) < self._spare:
            self._want_segment()

    def _write_waiting(self) -> None:
        super()._write_waiting()
        self.prepare()

    def _make(self, name: str) -> _Segment:
        assert isinstance(self._zeroing, SystemDisk)
        file = self._zeroing.open(name, create=True)
        descriptor = os.open(self._zeroing.directory / name, os.O_RDWR)
        os.posix_fallocate(descriptor, 0, self._segment_bytes)
        os.close(descriptor)
        file.datasync()
        self._zeroing.sync_directory()
        return _Segment(name, file)


class KeepingJournalDir(JournalDir):
    keepers: list[KeepingLedgerDir]

    def open(self, found: JournalReplay, *, start: int, salt: int) -> None:
        bounds = {"segment_bytes": self._settings.segment_bytes, "spare": self._settings.spare_segments}
        self.journal = KeepingJournal(
            self.place.disk, self.place.background, self._placed, **bounds, start=start, salt=salt, replay=found
        )

    def _placed(self, ledger: int, first: int, size_bytes: int, segment: str, offset: int) -> None:
        self.keepers[home_of(ledger, len(self.keepers))].places[ledger, first] = size_bytes, segment, offset

    def _durable(
        self, acks: dict[tuple[Peer, int], int], answers: list[Answer], begun: float, error: BaseException | None
    ) -> None:
        super()._durable(acks, answers, begun, error)
        for one in self.keepers:
            one.on_synced()


class KeepingBookie(Bookie):
    """A bookie with one journal directory that keeps large entries where its journal wrote them."""

    def __init__(
        self,
        journals: Sequence[DirectoryPlace],
        ledgers: Sequence[DirectoryPlace],
        settings: BookieSettings,
        *,
        bookie_id: str,
        instance: str,
        rng: Rng,
        clock: Clock,
    ) -> None:
        super().__init__(journals, ledgers, settings, bookie_id=bookie_id, instance=instance, rng=rng, clock=clock)
        journal = KeepingJournalDir(
            journals[0],
            settings,
            f"bookie {bookie_id}",
            self.counts,
            self._now,
            changed=self._on_state,
            room=self._unblock,
        )
        share = max(1, settings.write_cache_bytes // len(ledgers))
        journal.keepers = [
            KeepingLedgerDir(place, journal, settings, share, changed=self._on_state, room=self._on_room)
            for place in ledgers
        ]
        self.journals, self.dirs = [journal], list(journal.keepers)
