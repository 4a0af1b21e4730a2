"""RaftMember: one node of a simulated Raft group: its core, what its disk holds durably, and a small key-value machine
with client sessions.

Is: state, and how it outlives a crash. Isn't: what happens to it, or what is checked (`geo_tests.sim.raft_world`).
"""

from __future__ import annotations

import json
import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from geo_tests.sim.raft_history import CONFLICT, FOREVER, Operation, State
from heliograph.raft.core import Actions, RaftCore
from heliograph.raft.messages import Entry, Lives, SnapshotMeta
from heliograph.raft.starts import StartsRecord

FAULTS_S, HEAL_S = 9.0, 6.0
NOTED_S = 2.0  # after the last commit, wherever it comes from
KEEP_ENTRIES = 3
CLIENT_TIMEOUT_S = 0.4
KEYS = ("a", "b")


class Violation(AssertionError):
    """An invariant of Raft does not hold. The text begins with the invariant's name."""


class SessionKv:
    """Registers with versions and, for each client, the last answer: a retried write is answered, not repeated.
    `digest` stands for all that was applied.
    """

    def __init__(self) -> None:
        self.table: dict[str, tuple[bytes, int]] = {}
        self.answers: dict[str, tuple[int, int]] = {}
        self.index = self.digest = 0

    def apply(self, index: int, command: bytes) -> tuple[str, int, int]:
        """Returns (client, sequence, version made or CONFLICT)."""
        client, sequence, kind, key, value, expected = json.loads(command)
        last = self.answers.get(client)
        if last is not None and last[0] >= sequence:
            return client, sequence, last[1]
        state = self.table.get(key)
        if kind == "cas" and (state[1] if state else 0) != expected:
            answer = CONFLICT
        else:
            self.table[key] = (value.encode(), index)
            answer = index
        self.answers[client] = (sequence, answer)
        return client, sequence, answer

    def advance(self, index: int, entry: Entry) -> None:
        self.index, self.digest = index, zlib.crc32(entry[2] + b"%d %d" % (index, entry[0]), self.digest)

    def snapshot(self) -> bytes:
        table = {key: [value.decode(), version] for key, (value, version) in self.table.items()}
        return json.dumps([table, self.answers, self.index, self.digest]).encode()

    def restore(self, blob: bytes) -> None:
        table, answers, self.index, self.digest = json.loads(blob)
        self.table = {key: (value.encode(), version) for key, (value, version) in table.items()}
        self.answers = {client: (sequence, answer) for client, (sequence, answer) in answers.items()}


@dataclass
class DurableState:
    """What a member's disk holds for sure."""

    term: int = 0
    vote: str = ""
    snapshot: SnapshotMeta | None = None
    blob: bytes = b""
    table: tuple[SnapshotMeta, bytes] | None = None
    """The machine's own table, where it keeps one."""
    incoming: bytes = b""
    received: dict[int, bytes] = field(default_factory=dict)
    """Whole snapshots from the leader that are not stored yet, by their index."""
    base: int = 0
    base_term: int = 0
    entries: list[Entry] = field(default_factory=list)
    commit: int = 0
    owed: tuple[int, int] | None = None
    """(term, index) of the last entry of a log that was lost."""
    life: int = 0
    """0: the folder is empty, and the next start begins a life."""
    proven: Lives | None = None
    """What has proved it: the lives of the founding, empty for a leader; None: nothing."""
    starts: StartsRecord = field(default_factory=StartsRecord)
    forgotten: DurableState | None = None
    """What lay there before the folder was emptied: it may be why an entry is committed."""

    def store(self, batch: Actions, rng: random.Random | None = None) -> None:
        """rng: power goes during this batch; a prefix of it is kept."""
        if rng is not None and rng.random() < 0.3:
            return
        if batch.life:
            self.life, self.proven = batch.life, None
        if batch.starts is not None:
            self.starts = batch.starts
        if batch.proven is not None:
            self.proven = batch.proven
        if rng is not None and rng.random() < 0.3:
            return
        if batch.hard_state is not None:
            self.term, self.vote = batch.hard_state
        if rng is not None and rng.random() < 0.5:
            return
        if batch.snapshot is not None:
            self.snapshot, self.blob = batch.snapshot, self.received.pop(batch.snapshot.index)
            self.base, self.base_term, self.entries = self.snapshot.index, self.snapshot.term, []
        if batch.entries:
            count = len(batch.entries) if rng is None else rng.randrange(len(batch.entries) + 1)
            if count:
                self.entries[batch.first_index - self.base - 1 :] = batch.entries[:count]
        if rng is None:
            self.commit = max(self.commit, batch.commit)

    def compact(self, meta: SnapshotMeta, blob: bytes) -> None:
        """A snapshot of the own machine has been stored."""
        if self.snapshot is None or meta.index > self.snapshot.index:
            self.snapshot, self.blob = meta, blob
            self._cut(meta)

    def keep(self, meta: SnapshotMeta, blob: bytes) -> None:
        """The own table has been saved."""
        if self.table is None or meta.index > self.table[0].index:
            self.table = meta, blob
            self._cut(meta)

    def newest(self) -> tuple[SnapshotMeta, bytes] | None:
        if self.snapshot is None or (self.table is not None and self.table[0].index > self.snapshot.index):
            return self.table
        return self.snapshot, self.blob

    def _cut(self, meta: SnapshotMeta) -> None:
        if meta.index > self.base:
            self.base_term = self.entries[meta.index - self.base - 1][0]
            del self.entries[: meta.index - self.base]
            self.base = meta.index

    def lose(self) -> None:
        """Table, snapshot, and log; what it has said of terms, votes, and entries is known still."""
        last_term = self.entries[-1][0] if self.entries else self.base_term
        self.owed = max(self.owed or (0, 0), (last_term, self.base + len(self.entries)))
        self.snapshot, self.blob, self.table, self.incoming = None, b"", None, b""
        self.base, self.base_term, self.entries, self.commit = 0, 0, [], 0

    def empty(self) -> DurableState:
        """What a folder with nothing in it holds."""
        return DurableState(forgotten=self)

    def holds(self, index: int, term: int) -> bool:
        if self.forgotten is not None and self.forgotten.holds(index, term):
            return True
        if index <= self.base or (self.owed is not None and index <= self.owed[1]):
            return True
        return index - self.base <= len(self.entries) and self.entries[index - self.base - 1][0] == term


class Member:
    """One node: its disk outlives its core."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.durable = DurableState()
        self.lives = 0
        self.rate, self.offset = 1.0, 0.0
        self.core: RaftCore | None = None
        self.kv = SessionKv()
        self.batches: deque[tuple[Actions, bool]] = deque()  # (actions, they wait for the disk)
        self.unstored: deque[Actions] = deque()  # what the disk has still to do
        self.disk_busy = False
        self.seen_commit = 0
        self.led = 0  # the last term in which it was seen to lead
        self.waiting: dict[tuple[str, int], Callable[[int], None]] = {}
        self.reads: dict[int, tuple[str, Callable[[State], None]]] = {}
        self.tick_at = FOREVER
        self.keeps = False
        """Its machine keeps its own table, and makes snapshots only for others."""
        self.making = False

    def now(self, time: float) -> float:
        return time * self.rate + self.offset

    def set_rate(self, time: float, rate: float) -> None:
        """From now on its clock runs at another speed; it never jumps back."""
        self.offset += time * (self.rate - rate)
        self.rate = rate


@dataclass
class Request:
    """What a client asks for, as it travels."""

    client: str
    sequence: int
    operation: Operation
    key: str
