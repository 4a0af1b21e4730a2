"""Recovery of one Raft member's directory: what its log, its snapshots, and its machine's own table say together.

Is: reading the segments, and deciding what of them holds. Isn't: writing (`log_storage`), but for cutting off what was
never reported durable, for writing again what no record proves durable, and for what a member that has lost its table
owes to the others.
Invariants: a torn tail that was never reported durable is cut off; damage below what was reported durable raises
CorruptData, as far as a later record (or a clean close) bears witness to it. Each record also says how far entries are
known to be committed: those are never cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from heliograph.model.errors import CorruptData, PeerError
from heliograph.raft.disk import generation_file, life_file, lost_log, other_voters, starts_file
from heliograph.raft.disk.log_records import (
    FIRST,
    HARD_STATE,
    HEAD,
    KIND_ENTRIES,
    KIND_HARD_STATE,
    KIND_RESET,
    MAGIC,
    RESET,
    VERSION,
    hard_state_body,
    read_record,
)
from heliograph.raft.disk.segments import Segment, segment_name
from heliograph.raft.disk.snapshot_file import read_description
from heliograph.raft.generations import Standing
from heliograph.raft.messages import Entry, Lives, SnapshotMeta, decode_entries
from heliograph.raft.starts import StartsRecord
from heliograph.runtime.disk import Disk


@dataclass(slots=True)
class Recovered:
    """What the directory held. `snapshot`: the newest file. `entries` follow `base`, the newer one of that and the
    machine's own table, or index 0 where there is neither; those through `commit` are known to be committed.
    """

    term: int = 0
    vote: str = ""
    snapshot: SnapshotMeta | None = None
    base: SnapshotMeta | None = None
    entries: list[Entry] = field(default_factory=list)
    commit: int = 0
    owed: tuple[int, int] | None = None
    """(term, index) of the last entry that was durable here, where the log was lost with the table, and is not made
    good yet.
    """
    others: bool | None = None
    """Whether other voters have what this member has, where that is written down."""
    life: int = 0
    proven: bool = True
    lives: Lives = ()
    """Which life this is, whether it is proven, and the lives of the founding where that was by it."""
    enrolled: bool = False
    """Whether the step that made the folder says that nothing was there before, and nothing is proven since."""
    starts: StartsRecord = field(default_factory=StartsRecord)
    standing: Standing = field(default_factory=Standing)


class LogReplay:
    """What the segments hold, oldest first. `base`: the index before the first of `entries`; -1: no record says
    anything of entries.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.segments: list[Segment] = []
        self.sequence = 0
        """Number of the last whole record; 0: none was found."""
        self.synced = 0
        self.commit = 0
        self.hard_state = hard_state_body(0, "")
        self.base, self.base_term = -1, 0
        self.entries: list[Entry] = []
        self._unproven: deque[tuple[int, Segment, int]] = deque()
        """(number, segment, offset) of the records that none behind them says to be durable."""

    def run(self, names: Sequence[str], known: SnapshotMeta | None) -> None:
        """names: of the segments, ascending. known: what the newest snapshot or table is the state of. Blocking. Raises
        OSError, CorruptData.
        """
        cut = False
        for name in names:
            number = int(name.removeprefix("log-"))
            file = self._disk.open(name)
            raw = file.pread(file.size_bytes(), 0)
            if cut:
                self._look_for_witness(number, raw, 0)
                file.close()
                self._disk.remove(name)
                continue
            segment = Segment(number, file, len(raw))
            self._read(segment, raw, known)
            cut = self._cut_off(segment, raw)
        if self.base < 0:
            self.base, self.base_term = (known.index, known.term) if known is not None else (0, 0)

    def _read(self, segment: Segment, raw: bytes, known: SnapshotMeta | None) -> None:
        """Its whole records, up to the first that is none."""
        number = segment.number
        while (record := read_record(number, raw, segment.end)) is not None and (
            not self.sequence or record.sequence == self.sequence + 1
        ):
            self.sequence, self.synced, self.commit = record.sequence, record.synced, record.commit
            self._unproven.append((record.sequence, segment, segment.end))
            while self._unproven and self._unproven[0][0] <= record.synced:
                self._unproven.popleft()
            if not segment.end:
                segment.head_sequence = self.sequence
            segment.end += HEAD.size + len(record.body)
            if record.kind == KIND_HARD_STATE:
                self.hard_state = record.body
            elif record.kind == KIND_RESET:
                self.base, self.base_term = RESET.unpack(record.body)
                self.entries = []
                segment.index_max = max(segment.index_max, self.base)
            elif record.kind == KIND_ENTRIES:
                segment.index_max = max(segment.index_max, self._add(segment_name(number), record.body, known))

    def make_durable(self) -> None:
        """Everything that was read. Blocking. Raises OSError.

        Where a sync has failed, the kernel calls the pages clean that it could not write: another sync of them says
        that all is well and writes nothing. So what no record proves is written again first.
        """
        done: Segment | None = None
        for _, segment, offset in self._unproven:
            if segment is not done:  # the first one of this segment; the others lie behind it
                done = segment
                segment.file.pwritev([segment.file.pread(segment.end - offset, offset)], offset)
        for segment in self.segments:
            segment.file.datasync()

    def _add(self, name: str, body: bytes, known: SnapshotMeta | None) -> int:
        """Returns the index of the last of these entries."""
        (first,) = FIRST.unpack_from(body)
        try:
            new = decode_entries(body, FIRST.size)
        except PeerError as error:
            raise CorruptData(f"{name}: a whole record holds what cannot be read: {error}") from error
        if self.base < 0 or first <= self.base:
            self.base, self.base_term, self.entries = first - 1, 0, new
            if known is not None and self.base == known.index:
                self.base_term = known.term
        elif first > self.base + len(self.entries) + 1:
            raise CorruptData(f"{name}: entries before index {first} are missing")
        else:
            self.entries[first - self.base - 1 :] = new
        return int(first) - 1 + len(new)

    def _cut_off(self, segment: Segment, raw: bytes) -> bool:
        """What lies behind its last whole record. Whether the log ends in this segment."""
        name, tail = segment_name(segment.number), raw[segment.end :]
        if tail[:4] == MAGIC and len(tail) > 4 and tail[4] not in (0, VERSION):
            raise CorruptData(f"{name}: version {tail[4]} is not known to this program")
        torn = tail.count(0) != len(tail)
        if torn:
            self._look_for_witness(segment.number, raw, segment.end)
        if not segment.end:  # an unused spare, or one whose first record was lost
            segment.file.close()
            self._disk.remove(name)
            return True
        segment.file.truncate(segment.end)
        segment.size_bytes = segment.end
        self.segments.append(segment)
        return torn

    def _look_for_witness(self, number: int, raw: bytes, start: int) -> None:
        """The log ends before `start`. A whole record behind it that says more was durable means damage."""
        at = raw.find(MAGIC, start)
        while at >= 0:
            record = read_record(number, raw, at)
            if record is not None and record.synced > self.sequence:
                raise CorruptData(f"{segment_name(number)}: record {self.sequence + 1} was durable and cannot be read")
            at = raw.find(MAGIC, at + 1)


def recover(
    disk: Disk, kept: SnapshotMeta | None, *, lost: bool, others: bool, life: int
) -> tuple[Recovered, LogReplay, bool]:
    """(what holds, the log, whether the log is to say that it is empty behind `base`). As `LogStorage.recover`; older
    snapshots are left to the caller.
    """
    standing = generation_file.begin(disk)
    state = Recovered(others=other_voters.noted(disk), standing=standing)
    names = disk.names()
    _find_life(disk, state, life if not any(name.startswith("log-") for name in names) else 0)
    if life:
        state.starts = starts_file.begin(disk, life)
    snapshots = [name for name in names if name.startswith("snapshot-")]
    if snapshots:
        state.snapshot = state.base = read_description(disk, snapshots[-1])
    if kept is not None and (state.base is None or kept.index >= state.base.index):
        state.base = kept
    log = LogReplay(disk)
    log.run(sorted(name for name in names if name.startswith("log-")), state.base)
    state.term, size = HARD_STATE.unpack_from(log.hard_state)
    state.vote = log.hard_state[HARD_STATE.size : HARD_STATE.size + size].decode()
    state.owed = lost_log.owed(disk)
    needs_reset = False
    known = state.base.index if state.base is not None else 0
    if (
        lost
        and (others if state.others is None else state.others)
        and (log.base > known or log.commit > log.base + len(log.entries))
    ):
        _begin_anew(disk, state, log)
        for name in snapshots:
            disk.remove(name)
        needs_reset = True
    if state.base is not None:
        index = state.base.index
        if log.base > index:
            raise CorruptData(f"the log begins behind index {log.base}, the newest snapshot or table ends at {index}")
        behind = index - log.base
        held = log.base_term if not behind else log.entries[behind - 1][0] if behind <= len(log.entries) else -1
        if held == state.base.term:
            log.entries = log.entries[behind:]
        else:
            needs_reset, log.entries = True, []
        log.base = index
    elif log.base:
        raise CorruptData(f"the log begins behind index {log.base}, and there is neither a snapshot nor a table")
    if log.commit > log.base + len(log.entries):
        raise CorruptData(
            f"entries through index {log.commit} are committed, and the log ends at {log.base + len(log.entries)}"
        )
    state.entries, state.commit = log.entries, max(log.commit, log.base)
    return state, log, needs_reset


def _find_life(disk: Disk, state: Recovered, begun: int) -> None:
    """begun: the life that begins where there is no log, however much else there is: without one it has forgotten how
    it voted; 0: there is one.
    """
    if begun and life_file.is_restored(disk):
        state.life = begun
    elif begun:
        state.life, state.proven = begun, False
        life_file.begin(disk, begun)
    elif (found := life_file.read(disk)) is not None:
        state.life, lives = found
        state.proven, state.lives = lives is not None, lives or ()
    state.enrolled = not state.proven and life_file.is_enrolled(disk)


def _begin_anew(disk: Disk, state: Recovered, log: LogReplay) -> None:
    """With an empty log; what it held, and is lost, is owed to the others."""
    end = log.base + len(log.entries)
    last_term = (
        (log.entries[-1][0] if log.entries else log.base_term) if end >= log.commit else state.term
    )  # no later one than that
    state.owed = max(state.owed or (0, 0), (last_term, max(end, log.commit)))
    lost_log.owe(disk, *state.owed)
    state.snapshot = state.base = None
    log.base, log.base_term, log.entries, log.commit = 0, 0, [], 0
