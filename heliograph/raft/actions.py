"""What the Raft core hands to its shell: actions in an order, and the times and bounds by which it acts.

Is: Role, CoreSettings, Actions. Isn't: a rule of Raft (`core`), or what carries actions out (`raft_node`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from heliograph.raft.generations import Standing
from heliograph.raft.messages import Entry, Lives, Message, SnapshotMeta
from heliograph.raft.starts import StartsRecord

FOREVER = float("inf")


class RaftRole(IntEnum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Times and bounds. The election time-out is drawn from [t, 2t) each time; heartbeats need several to fit into
    it.
    """

    election_timeout_s: float = 1.0
    heartbeat_s: float = 0.15
    append_bytes_max: int = 256 << 10
    inflight_appends_max: int = 64
    inflight_bytes_max: int = 4 << 20
    chunk_bytes: int = 512 << 10
    read_rounds_max: int = 8
    note_commit_s: float = 1.0
    """A commit that no batch has carried to the disk for so long is written down by itself."""
    snapshot_bytes_max: int = 1 << 30
    lag_entries_max: int = 200_000
    """So many entries are kept for members that answer and lack them, where the machine itself needs none."""
    promotion_lag_max: int = 1_000
    """Entries that a learner may lack when it becomes a voter."""
    renumber_s: float = 3600.0
    """After so long a member that runs takes another number, so that copies which were made before are known."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s * 2 <= self.election_timeout_s:
            raise ValueError("the election time-out must be at least two heartbeats")
        if (
            min(
                self.append_bytes_max,
                self.inflight_appends_max,
                self.inflight_bytes_max,
                self.chunk_bytes,
                self.read_rounds_max,
            )
            < 1
        ):
            raise ValueError("bounds of the Raft core must be at least 1")


@dataclass(slots=True)
class Actions:
    """What the shell does, in this order, before it begins with the next batch.

    0. `pieces` (number, snapshot, offset, bytes) of a snapshot that comes from the leader are stored beside the log,
       and nothing waits for them: each is answered by `on_piece_stored` or `on_piece_failed`; one at offset 0 begins
       anew. `wants_snapshot`: a member needs a snapshot, and none is of use: make one, unless one is being made, and
       tell the core: `on_snapshot_stored`.
    1. Store durably: which generation this folder is of (`standing`), that another `life` begins in this folder, which
       nothing proves yet, and `starts` (then tell the core: `on_starts_stored`); that this life is `proven` (by the
       lives that founded the group; empty: by a leader), `hard_state` (term, vote), then `snapshot` (its pieces are
       its contents, the log is empty behind it), then `entries`, which replace everything from `first_index` on; with
       the last of it that everything through `commit` is committed. Then tell the core: `on_durable(durable_mark)`.
       `note_commit`: there is nothing of these, and `commit` is to be stored alone, behind what was stored before;
       nothing waits for it.
    2. Send `sends`, as of `generation`, also where another one has begun since; for `chunks` (to, snapshot, offset)
       read the bytes, and send them as a SnapshotChunk of `term`, and of it.
    3. Restore the machine from `snapshot`; apply `committed`, which begin at `committed_first`. (The sends of the next
       batches need not wait for it.)
    4. Answer `reads` (tokens, index): they may be served once that index is applied. `lost_reads`: no longer leader.
    """

    term: int = 0
    generation: int = 0
    standing: Standing | None = None
    life: int = 0
    starts: StartsRecord | None = None
    proven: Lives | None = None
    hard_state: tuple[int, str] | None = None
    pieces: list[tuple[int, SnapshotMeta, int, bytes]] = field(default_factory=list)
    wants_snapshot: bool = False
    snapshot: SnapshotMeta | None = None
    first_index: int = 0
    entries: list[Entry] = field(default_factory=list)
    commit: int = 0
    note_commit: bool = False
    durable_mark: tuple[int, int] = (0, 0)
    sends: list[tuple[str, Message]] = field(default_factory=list)
    chunks: list[tuple[str, SnapshotMeta, int]] = field(default_factory=list)
    committed_first: int = 0
    committed: list[Entry] = field(default_factory=list)
    reads: list[tuple[list[int], int]] = field(default_factory=list)
    lost_reads: list[int] = field(default_factory=list)

    def be_of(self, generation: int) -> None:
        """They were decided in that one."""
        self.generation = generation

    @property
    def stores(self) -> bool:
        told = self.hard_state is not None or self.proven is not None or self.starts is not None
        return told or self.standing is not None or self.snapshot is not None or bool(self.entries)

    def __bool__(self) -> bool:
        if self.sends or self.committed or self.reads or self.lost_reads or self.note_commit:
            return True
        return bool(self.chunks or self.pieces or self.wants_snapshot) or self.stores
