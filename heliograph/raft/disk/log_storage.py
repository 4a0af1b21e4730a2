"""LogStorage: term, vote, entries, and snapshots of one Raft member, durably, in one directory.

Is: a segmented log of records and snapshot files on the `Disk` port. Isn't: rules of Raft, what holds of them at a
start (`recovery`), or anything that
waits: it calls back.
Invariants: `done` of a write is called once everything of it is durable, in the order of the writes; writes that wait
together share one sync. A full disk shows where a segment is made (`full`), not in the middle of a record. A failed
write or sync is final.
Each record also says how far entries are known to be committed. Only the last record of a batch raises that, behind the
entries that it speaks of, and committed entries are never replaced: so whatever prefix of the log survives holds those
very entries. A member that restarts may therefore apply them before it hears of anybody; what it doesn't know of is
only what was committed after its last record.
Source: records in `log_records`, snapshots in `snapshot_file`; docs/protocols/metadata.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from heliograph.raft.disk import life_file, lost_log, starts_file
from heliograph.raft.disk.log_records import (
    FIRST,
    HEAD,
    KIND_CLOSED,
    KIND_COMMIT,
    KIND_ENTRIES,
    KIND_HARD_STATE,
    KIND_RESET,
    RESET,
    RaftRecord,
    encode_record,
    hard_state_body,
)
from heliograph.raft.disk.recovery import Recovered, recover
from heliograph.raft.disk.segments import Segment, make_segment, segment_name
from heliograph.raft.disk.snapshot_file import (
    RECEIVED,
    SCRATCH_NAMES,
    SnapshotWriter,
    blob_start,
    snapshot_name,
    why_full,
)
from heliograph.raft.messages import ENTRY_OVERHEAD, Entry, Lives, SnapshotMeta, encode_entries
from heliograph.raft.starts import StartsRecord
from heliograph.runtime.disk import Disk, is_transient

_RESERVE_BYTES = 16 << 10
_SMALL_BYTES = 2 * _RESERVE_BYTES  # the segment of a member that starts on a full disk
_RECORD_BYTES = 256 << 10

Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Write:
    bodies: deque[tuple[int, bytes, int]]  # (kind, body, largest index)
    done: Done | None
    commit: int = 0  # what its last record may say
    snapshot: SnapshotMeta | None = (
        None  # its pieces are to become the newest one behind these records and before anything else
    )


class LogStorage:
    """recover() first, in a job or at start-up; then everything else from the event loop."""

    def __init__(self, disk: Disk, *, segment_bytes: int) -> None:
        self._disk, self._segment_bytes = disk, segment_bytes
        self._segments: list[Segment] = []  # oldest first; the last one is written to
        self._spare: Segment | None = None
        self._preparing = False
        self._sequence = 0  # of the last record made
        self._synced = 0  # every record through it is durable
        self._commit = 0  # what the last record says
        self._hard_state = hard_state_body(0, "")  # the newest one in the log, as a body
        self._writes: deque[_Write] = deque()
        self._installing = False  # a snapshot, which must be durable before the next write
        self._receiving: SnapshotWriter | None = None
        self._life = 0
        self._covered = 0  # entries through it are needed for nothing that this member does itself
        self.full = ""
        """Why no segment can be made just now; "" where one can."""
        self.failed: BaseException | None = None
        self.on_failed: Callable[[BaseException], None] = lambda error: None
        """Called once, whatever it was that failed: no write may be waiting that would be told."""

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(
        self, kept: SnapshotMeta | None = None, lost: bool = False, others: bool = False, life: int = 0
    ) -> Recovered:
        """Reads the directory, makes durable what it takes over, and opens a segment to write to. Blocking. Raises
        OSError, CorruptData.

        kept: what the machine's own table is the state of; `lost`: it has one, and that is lost. Where snapshot and log
        do not make up for it, and other voters have the entries, it begins with an empty log, and remembers what it
        owes to the group. others: whether there are some, unless that is written down. life: the one that begins where
        there is no log; 0: nobody asks.
        """
        state, log, needs_reset = recover(self._disk, kept, lost=lost, others=others, life=life)
        self._life = state.life
        self._segments, self._sequence, self._synced = log.segments, log.sequence, log.synced
        self._commit, self._hard_state = log.commit, log.hard_state
        self._covered = state.base.index if state.base is not None else 0
        log.make_durable()
        self._begin(needs_reset, state)
        if life and life_file.is_restored(self._disk):  # there is a log now
            self._life = life
            life_file.prove(self._disk, life, ())
        names = self._disk.names()
        for name in [*SCRATCH_NAMES, *[name for name in names if name.startswith("snapshot-")][:-1]]:
            if name in names:
                self._disk.remove(name)
        return state

    def recover_soon(
        self,
        kept: SnapshotMeta | None,
        done: Callable[[Recovered | None, BaseException | None], None],
        lost: bool = False,
        others: bool = False,
        life: int = 0,
    ) -> None:
        """`recover` on the disk's own thread."""

        self._disk.submit(partial(self.recover, kept, lost, others, life), done)

    def pay(self) -> None:
        """What was owed is durable here again."""
        self._disk.submit(partial(lost_log.pay, self._disk), lambda _, error: None)

    def note(self, job: Callable[[Disk], bool | None], done: Callable[[bool | None], None] | None = None) -> None:
        """Has a small file beside the log written (`other_voters`, `generation_file`), durably before whatever is
        written from now on. done(what the job returned), unless the disk fails.
        """

        def stored(found: bool | None, error: BaseException | None) -> None:
            self._noted(found, error)
            if error is None and done is not None:
                done(found)

        self._disk.submit(partial(job, self._disk), stored)

    def prove(self, lives: Lives) -> None:
        """This life counts, by the lives that founded the group, or by a leader (empty); durably before whatever is
        written from now on.
        """
        self._disk.submit(partial(life_file.prove, self._disk, self._life, lives), self._noted)

    def note_starts(self, starts: StartsRecord, life: int, done: Callable[[bool], None]) -> bool:
        """Durably before whatever is written from now on. life: another one, unproven, begins before it; 0: none.
        done(whether it is written, or the disk was full), unless the disk fails. Returns whether another life begins.
        """

        def job() -> bool:
            try:
                if life:
                    life_file.begin(self._disk, life)
            except (OSError, MemoryError) as error:
                if not is_transient(error):
                    raise
                return False
            return starts_file.write(self._disk, starts)

        def stored(written: bool | None, error: BaseException | None) -> None:
            self._noted(written, error)
            if written is not None:
                done(written)

        before, self._life = self._life, life or self._life
        self._disk.submit(job, stored)
        return self._life != before

    def _noted(self, _: bool | None, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)

    def _begin(self, needs_reset: bool, state: Recovered) -> None:
        number = self._segments[-1].number + 1 if self._segments else 1
        try:
            segment = make_segment(self._disk, number, self._segment_bytes)
        except (OSError, MemoryError) as error:
            if not is_transient(error):
                raise
            segment, self.full = make_segment(self._disk, number, _SMALL_BYTES), why_full(error)
        bodies = [(KIND_HARD_STATE, self._hard_state)]
        if needs_reset:
            index, term = (state.base.index, state.base.term) if state.base is not None else (0, 0)
            bodies.append((KIND_RESET, RESET.pack(index, term)))
            segment.index_max = index
        self._synced = self._sequence
        self._segments.append(segment)
        segment.head_sequence = self._sequence + 1
        segment.file.pwritev([self._record(segment, kind, body) for kind, body in bodies], 0)
        segment.file.datasync()
        self._synced = self._sequence

    # -- writing ------------------------------------------------------------------------------------------------------

    def room_bytes(self) -> int:
        """What still fits into segments that are made already, less a reserve for terms and votes."""
        spare = self._spare.size_bytes if self._spare is not None else 0
        return self._segments[-1].size_bytes - self._segments[-1].end + spare - _RESERVE_BYTES

    def write(
        self,
        hard_state: tuple[int, str] | None,
        snapshot: SnapshotMeta | None,
        first_index: int,
        entries: Sequence[Entry],
        commit: int,
        done: Done,
    ) -> None:
        """Stores a batch: term and vote, a snapshot that came by `receive` (the log is empty behind it), entries from
        `first_index` on.

        commit: everything through this index is committed, and stands in this batch or in those before it. Nothing at
        all: only that is stored.
        """
        if self.failed is not None:
            done(self.failed)
            return
        bodies: deque[tuple[int, bytes, int]] = deque()
        if hard_state is not None:
            bodies.append((KIND_HARD_STATE, hard_state_body(*hard_state), 0))
        if snapshot is not None:
            self._writes.append(_Write(bodies, None, snapshot=snapshot))
            bodies = deque([(KIND_RESET, RESET.pack(snapshot.index, snapshot.term), snapshot.index)])
        at = 0
        while at < len(entries):
            end, size = at, 0
            while end < len(entries) and (end == at or size + ENTRY_OVERHEAD + len(entries[end][2]) <= _RECORD_BYTES):
                size += ENTRY_OVERHEAD + len(entries[end][2])
                end += 1
            first = first_index + at
            bodies.append((KIND_ENTRIES, FIRST.pack(first) + encode_entries(entries[at:end]), first_index + end - 1))
            at = end
        if not bodies:
            bodies.append((KIND_COMMIT, b"", 0))
        self._writes.append(_Write(bodies, done, commit))
        self._drain()

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def retry(self) -> None:
        """Space may have come back: try again to make a segment."""
        if self.full:
            self._prepare(self._segment_bytes)

    def _record(self, segment: Segment, kind: int, body: bytes) -> bytes:
        self._sequence += 1
        record = encode_record(
            segment.number, segment.end, RaftRecord(kind, self._sequence, self._synced, self._commit, body)
        )
        segment.end += len(record)
        return record

    def _drain(self) -> None:
        """Hands everything to the disk for which there is room, one call a segment and write."""
        while self._writes and not self._installing and self.failed is None:
            write = self._writes[0]
            segment, offset, records = self._segments[-1], self._segments[-1].end, list[bytes]()
            while write.bodies:
                kind, body, index = write.bodies[0]
                if segment.end + HEAD.size + len(body) > segment.size_bytes:
                    break
                write.bodies.popleft()
                if kind == KIND_HARD_STATE:
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
                self._disk.submit_sync(
                    segment.file, offset, records, partial(self._synced_through, self._sequence, done)
                )
            if not whole and not self._roll(HEAD.size + len(write.bodies[0][1])):
                return
            if whole and write.snapshot is not None:
                self._install(write.snapshot)
        if self._segments[-1].size_bytes - self._segments[-1].end < self._segment_bytes // 2:
            self._prepare(self._segment_bytes)

    def _roll(self, needed: int) -> bool:
        """Goes on in the spare segment. False: there is none yet; `_drain` is called again when there is."""
        head = HEAD.size + len(self._hard_state)
        if self._spare is None or self._spare.size_bytes < needed + head:
            self._prepare(max(self._segment_bytes, needed + head))
            return False
        segment, self._spare = self._spare, None
        self._segments.append(segment)
        segment.head_sequence = self._sequence + 1
        record = self._record(segment, KIND_HARD_STATE, self._hard_state)
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

        def job() -> Segment:
            if old is not None:
                old.file.close()
            return make_segment(self._disk, number, size_bytes)

        self._disk.submit(job, self._prepared)

    def _prepared(self, segment: Segment | None, error: BaseException | None) -> None:
        self._preparing = False
        if segment is not None:
            self.full = ""
            self._spare = segment
            self._drain()
        elif error is not None and is_transient(error):
            self.full = why_full(error)
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
            self.on_failed(self.failed)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> SnapshotWriter:
        """For one of this member's machine, in pieces. One at a time."""
        return SnapshotWriter(self._disk, lambda meta: self.covered(meta.index), self._on_place_failed)

    def receive(self, meta: SnapshotMeta, offset: int, data: bytes, done: Done) -> None:
        """A piece of a snapshot that comes from the leader; one at offset 0 begins a new one. done(error): nothing is
        left of it.
        """
        if not offset and self._receiving is not None:
            self._receiving.abandon()
            self._receiving = None
        self._receiver().add(meta, data, done)

    def _receiver(self) -> SnapshotWriter:
        if self._receiving is None:
            self._receiving = SnapshotWriter(self._disk, lambda meta: None, self._on_place_failed, RECEIVED)
        return self._receiving

    def _on_place_failed(self, error: BaseException) -> None:
        """A snapshot was not written, or nothing could be removed: it is tried again another time."""
        if not is_transient(error):
            self._fail(error)

    def covered(self, index: int) -> None:
        """A snapshot or the machine's own table is durable through `index`: what of the log lies before is dropped, and
        snapshots but for two.
        """
        if index > self._covered:
            self._covered = index
            self._prune()

    def drop_snapshots(self, index: int) -> None:
        """Those of `index` and before are of no use any more."""

        def job() -> None:
            for name in self._disk.names():
                if name.startswith("snapshot-") and name <= snapshot_name(index):
                    self._disk.remove(name)

        self._disk.submit(job, lambda _, error: self._on_place_failed(error) if error is not None else None)

    def read_chunk(
        self,
        meta: SnapshotMeta,
        offset: int,
        size_bytes: int,
        done: Callable[[bytes | None, BaseException | None], None],
    ) -> None:
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
        if self.failed is not None or self._writes or segment.end + HEAD.size > segment.size_bytes:
            self._disk.submit(lambda: None, lambda _, error: closed(error))
        else:
            offset = segment.end
            self._commit = max(self._commit, commit)
            record = self._record(segment, KIND_CLOSED, b"")
            self._disk.submit_sync(segment.file, offset, [record], closed)

    def _install(self, meta: SnapshotMeta) -> None:
        """Makes what was received the newest snapshot; the next writes wait, because they say that the log is empty
        behind it.
        """
        self._installing = True
        writer, self._receiving = self._receiver(), None

        def stored(error: BaseException | None) -> None:
            if error is None:
                self._installing = False
                self._covered = max(self._covered, meta.index)
                self._drain()
            else:  # its pieces are durable, so this is not for want of space: the pieces of it are promised already
                self._fail(error)

        writer.finish(meta, stored)

    def _prune(self) -> None:
        """Drops segments and snapshots that are not needed. One older snapshot stays, for a member that is being sent
        it.
        """
        index, gone = self._covered, list[Segment]()
        while (
            len(self._segments) > 1
            and self._segments[0].index_max <= index
            and self._segments[1].head_sequence <= self._synced
        ):
            gone.append(self._segments.pop(0))

        def job() -> None:
            for segment in gone:
                segment.file.close()
                self._disk.remove(segment_name(segment.number))
            for name in [name for name in self._disk.names() if name.startswith("snapshot-")][:-2]:
                self._disk.remove(name)

        self._disk.submit(job, lambda _, error: self._on_place_failed(error) if error is not None else None)
