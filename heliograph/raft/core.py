"""RaftCore: what one member of a Raft group does next.

Is: election with pre-vote and check-quorum, replication, commit, snapshots, reads; events in by method calls, actions out by `take_actions`.
Isn't: I/O, clocks, chance (`now` and `rng` are given), bytes (`messages`), the state machine.
Invariants: one leader a term; the term, the vote, and entries are durable before any message that depends on them leaves (the shell carries out `Actions`
in order: store, then send, then apply, and one batch after the other); only an entry of the leader's own term is committed by counting, and
only durable copies count; the commit index never falls; a read is answered only from a term whose first entry is committed, after a majority
confirmed the leader in a round begun after the read came; what is written down as committed was committed, so that a member that comes back alone
may apply it.
Source: Ongaro, "Consensus: bridging theory and practice", 3-6, 9.6, 6.4; progress tracking after etcd's raft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import crc32c

from heliograph.raft.log import Log
from heliograph.raft.messages import (
    COMMAND,
    CONFIG,
    NOOP,
    Append,
    AppendReply,
    Config,
    Entry,
    Heartbeat,
    HeartbeatReply,
    Message,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    decode_config,
)
from heliograph.runtime.clock import Rng

FOREVER = float("inf")


class Role(IntEnum):
    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Times and bounds. The election time-out is drawn from [t, 2t) each time; heartbeats need several to fit into it."""

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

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s * 2 <= self.election_timeout_s:
            raise ValueError("the election time-out must be at least two heartbeats")
        if min(self.append_bytes_max, self.inflight_appends_max, self.inflight_bytes_max, self.chunk_bytes, self.read_rounds_max) < 1:
            raise ValueError("bounds of the Raft core must be at least 1")


@dataclass(slots=True)
class Actions:
    """What the shell does, in this order, before it begins with the next batch.

    1. Store durably: `hard_state` (term, vote), then `snapshot` (the log is empty behind it), then `entries`, which replace everything
       from `first_index` on; with the last of it that everything through `commit` is committed. Then tell the core: `on_durable(durable_mark)`.
       `note_commit`: there is nothing of these, and `commit` is to be stored alone, behind what was stored before; nothing waits for it.
    2. Send `sends`; for `chunks` (to, snapshot, offset) read the bytes, and send them as a SnapshotChunk of `term`.
    3. Restore the machine from `snapshot`; apply `committed`, which begin at `committed_first`.
    4. Answer `reads` (tokens, index): they may be served once that index is applied. `lost_reads`: no longer leader.
    """

    term: int = 0
    hard_state: tuple[int, str] | None = None
    snapshot: tuple[SnapshotMeta, bytes] | None = None
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

    @property
    def stores(self) -> bool:
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)

    def __bool__(self) -> bool:
        return self.stores or self.note_commit or bool(self.sends or self.chunks or self.committed or self.reads or self.lost_reads)


class Mode(IntEnum):
    """How a leader feeds one member: one append at a time, a stream, or a snapshot."""

    PROBE = 0
    STREAM = 1
    SNAPSHOT = 2


class Progress:
    """What a leader knows of one other member."""

    __slots__ = ("heard", "inflight", "inflight_bytes", "match", "mode", "next", "offset", "round", "snapshot", "stalled", "waiting")

    def __init__(self, following: int, now: float) -> None:
        self.match, self.next = 0, following
        self.mode = Mode.PROBE
        self.waiting = False  # a probe is on its way
        self.inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of streamed appends
        self.inflight_bytes = 0
        self.heard = now
        self.round = 0
        self.snapshot: SnapshotMeta | None = None
        self.offset = 0
        self.stalled = False  # no snapshot reply since the last heartbeat reply

    def to_probe(self) -> None:
        self.mode, self.waiting = Mode.PROBE, False
        self.next = max(self.match + 1, 1)
        self._clear()

    def to_stream(self) -> None:
        self.mode, self.waiting = Mode.STREAM, False
        self.next = self.match + 1
        self._clear()

    def to_snapshot(self, meta: SnapshotMeta) -> None:
        self.mode, self.snapshot, self.offset, self.stalled = Mode.SNAPSHOT, meta, 0, False
        self._clear()

    def _clear(self) -> None:
        self.inflight.clear()
        self.inflight_bytes = 0

    def free(self, through: int) -> None:
        while self.inflight and self.inflight[0][0] <= through:
            self.inflight_bytes -= self.inflight.popleft()[1]


class RaftCore:
    """One member. Nothing happens but in these calls; afterwards `take_actions` says what to do, and `next_deadline` when to `tick`."""

    def __init__(
        self,
        node_id: str,
        *,
        config: Config,
        term: int,
        vote: str,
        log: Log,
        snapshot: SnapshotMeta | None,
        settings: CoreSettings,
        rng: Rng,
        now: float,
        commit: int = 0,
    ) -> None:
        """config: as of the log's base. vote: "" = none. log, snapshot, and commit (of the last batch or note): as they lie durably on disk."""
        self.node_id, self.settings = node_id, settings
        self.term, self.vote, self.log, self.snapshot = term, vote, log, snapshot
        self.role, self.leader = Role.FOLLOWER, ""
        self.commit = max(log.base_index, min(commit, log.last_index))
        self.term_start = 0  # index of the first entry of this leader's term
        self.durable = log.last_index
        self._applying = log.base_index
        self._configs: list[tuple[int, Config]] = [(log.base_index, config)]
        self._adopt_configs(log.base_index + 1, log.slice(log.base_index + 1, log.last_index + 1))
        self._rng = rng
        self._out = Actions()
        self._unsaved = log.last_index + 1
        self._votes: dict[str, bool] = {}
        self._now = self._leader_heard = now
        self._note_at = FOREVER
        self.progress: dict[str, Progress] = {}
        self._heartbeat_at = now
        self._round = 0
        self._reads: list[int] = []  # tokens that wait for a round
        self._rounds: deque[tuple[int, int, list[int]]] = deque()  # (round, index, tokens)
        self._incoming: tuple[str, SnapshotMeta, bytearray] | None = None
        self._election_at = 0.0
        self._draw_election(now)
        if self.config.voters == (node_id,):
            self._stand(now)

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """In effect from the moment it stands in the log, committed or not."""
        return self._configs[-1][1]

    @property
    def ready(self) -> bool:
        """Leader, and everything of earlier terms is committed."""
        return self.role is Role.LEADER and self.commit >= self.term_start

    @property
    def uncommitted(self) -> int:
        return self.log.last_index - self.commit

    def next_deadline(self) -> float:
        return min(self._heartbeat_at if self.role is Role.LEADER else self._election_at, self._note_at)

    def take_actions(self) -> Actions:
        out, self._out = self._out, Actions()
        out.term = self.term
        if self._unsaved <= self.log.last_index:
            out.first_index = self._unsaved
            out.entries = self.log.slice(self._unsaved, self.log.last_index + 1)
            self._unsaved = self.log.last_index + 1
        out.durable_mark = (self.log.last_index, self.log.last_term)
        out.commit = self._commit_to_note()
        if out.stores:
            out.note_commit, self._note_at = False, FOREVER
        if self._applying < self.commit:
            out.committed_first = self._applying + 1
            out.committed = self.log.slice(out.committed_first, self.commit + 1)
            self._applying = self.commit
        return out

    def describe_snapshot(self, index: int, blob: bytes) -> SnapshotMeta:
        """What a snapshot of the machine after `index` (applied, and not compacted yet) must be stored with."""
        config = next(config for at, config in reversed(self._configs) if at <= index)
        return SnapshotMeta(index, self._snapshot_term(index), config, len(blob), crc32c.crc32c(blob))

    # -- events -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time has come to `now`. Early calls do nothing."""
        self._now = now
        if now >= self._note_at:
            self._out.note_commit, self._note_at = True, FOREVER
        if self.role is Role.LEADER:
            if now >= self._heartbeat_at:
                self._heartbeat_at = now + self.settings.heartbeat_s
                if self._majority([now if m == self.node_id else self.progress[m].heard for m in self.config.voters]) < now - self.settings.election_timeout_s:
                    self._follow(self.term, "", now)
                else:
                    self._heartbeats()
        elif now >= self._election_at:
            self._draw_election(now)
            if self.node_id in self.config.voters:
                self._campaign(now)

    def propose(self, commands: Sequence[bytes]) -> int | None:
        """Appends commands; returns the index of the first, or None where this member does not lead."""
        if self.role is not Role.LEADER:
            return None
        first = self.log.last_index + 1
        self._append_own([(self.term, COMMAND, command) for command in commands])
        for member in self.progress:
            self._replicate(member)
        return first

    def read(self, token: int) -> bool:
        """Asks for a linearizable read; the answer comes as an action with this token. False: this member does not lead."""
        if self.role is not Role.LEADER:
            return False
        self._reads.append(token)
        self._open_round()
        return True

    def on_durable(self, mark: tuple[int, int]) -> None:
        """The batch with this `durable_mark` is stored."""
        index, term = mark
        if index > self.durable and self.log.term(index) == term:  # what was replaced meanwhile is not meant
            self.durable = index
            if self.role is Role.LEADER:
                self._advance_commit()

    def on_snapshot_stored(self, meta: SnapshotMeta, keep_entries: int) -> None:
        """A snapshot of this member's machine is durable; the log keeps `keep_entries` behind it for members that lag."""
        if self.snapshot is None or meta.index > self.snapshot.index:
            self.snapshot = meta
            base = max(self.log.base_index, meta.index - keep_entries)
            self.log.compact(base)
            while len(self._configs) > 1 and self._configs[1][0] <= base:
                del self._configs[0]

    def on_chunk_missing(self, to: str, meta: SnapshotMeta) -> None:
        """The snapshot that was being sent is gone: begin again with the newest."""
        progress = self.progress.get(to)
        if progress is not None and progress.mode is Mode.SNAPSHOT and progress.snapshot == meta != self.snapshot:
            self._send_snapshot(to, progress)

    def receive(self, sender: str, message: Message, now: float) -> None:
        """A message came. Any loss, repetition, delay, or order is tolerated."""
        self._now = now
        if message.term > self.term and not _asks_first(message):
            if isinstance(message, VoteRequest) and not message.ordered and self._hears_leader(now):
                return
            self._follow(message.term, sender if isinstance(message, Append | Heartbeat | SnapshotChunk) else "", now)
        elif message.term < self.term:
            if isinstance(message, Append | Heartbeat | SnapshotChunk):
                self._send(sender, AppendReply(self.term, 0, False))  # tells a leader that was cut off
            elif isinstance(message, VoteRequest):
                self._send(sender, VoteReply(self.term, False, message.pre))
            return
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, now)
            case VoteReply():
                self._on_vote_reply(sender, message, now)
            case Append():
                if self._heed(sender, now):
                    self._on_append(sender, message)
            case Heartbeat():
                if self._heed(sender, now):
                    self._commit_to(min(message.commit, self.log.last_index))
                    self._send(sender, HeartbeatReply(self.term, message.round))
            case SnapshotChunk():
                if self._heed(sender, now):
                    self._on_chunk(sender, message)
            case TimeoutNow():
                if self.role is not Role.LEADER and self.node_id in self.config.voters:
                    self._stand(now, ordered=True)
            case _:
                progress = self.progress.get(sender)
                if self.role is Role.LEADER and progress is not None:
                    progress.heard = now
                    self._on_reply(sender, progress, message)

    # -- election -----------------------------------------------------------------------------------------------------

    def _draw_election(self, now: float) -> None:
        self._election_at = now + self.settings.election_timeout_s * (1 + self._rng.random())

    def _hears_leader(self, now: float) -> bool:
        return self.role is Role.LEADER or (self.leader != "" and now - self._leader_heard < self.settings.election_timeout_s)

    def _heed(self, sender: str, now: float) -> bool:
        """A message of this term's leader. False: two leaders of one term, which only a bug elsewhere can bring; it is not obeyed."""
        if self.role is Role.LEADER:
            return False
        self._follow(self.term, sender, now)
        self._leader_heard = now
        self._draw_election(now)
        return True

    def _follow(self, term: int, leader: str, now: float) -> None:
        if term > self.term:
            self._set_hard_state(term, "")
        if self.role is Role.LEADER:
            self._draw_election(now)
            self.progress.clear()
            self._out.lost_reads += [token for *_, tokens in self._rounds for token in tokens] + self._reads
            self._reads.clear()
            self._rounds.clear()
        if self.role is not Role.FOLLOWER or self.leader != leader:
            self._incoming = None
        self.role, self.leader = Role.FOLLOWER, leader

    def _set_hard_state(self, term: int, vote: str) -> None:
        self.term, self.vote = term, vote
        self._out.hard_state = (term, vote)

    def _campaign(self, now: float) -> None:
        self._follow(self.term, "", now)
        if self.config.voters == (self.node_id,):
            self._stand(now)
            return
        self.role, self._votes = Role.PRE_CANDIDATE, {self.node_id: True}
        self._ask_for_votes(VoteRequest(self.term + 1, self.log.last_index, self.log.last_term, pre=True))

    def _stand(self, now: float, ordered: bool = False) -> None:
        self._follow(self.term, "", now)
        self._set_hard_state(self.term + 1, self.node_id)
        self.role, self._votes = Role.CANDIDATE, {self.node_id: True}
        self._draw_election(now)
        self._ask_for_votes(VoteRequest(self.term, self.log.last_index, self.log.last_term, ordered=ordered))
        self._count_votes(now)

    def _ask_for_votes(self, request: VoteRequest) -> None:
        for member in self.config.voters:
            if member != self.node_id:
                self._send(member, request)

    def _may_vote_for(self, sender: str, request: VoteRequest) -> bool:
        """This term's vote is free, or already the sender's."""
        return self.vote in ("", sender) and self.leader in ("", sender)

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return (request.last_term, request.last_index) >= (self.log.last_term, self.log.last_index)

    def _on_vote_request(self, sender: str, request: VoteRequest, now: float) -> None:
        if request.pre:
            granted = request.term > self.term and not self._hears_leader(now) and self._is_up_to_date(request)
            self._send(sender, VoteReply(request.term if granted else self.term, granted, pre=True))
            return
        granted = self._may_vote_for(sender, request) and self._is_up_to_date(request)
        if granted:
            if self.vote != sender:
                self._set_hard_state(self.term, sender)
            self._draw_election(now)
        self._send(sender, VoteReply(self.term, granted))

    def _on_vote_reply(self, sender: str, reply: VoteReply, now: float) -> None:
        wanted = Role.PRE_CANDIDATE if reply.pre else Role.CANDIDATE
        term = self.term + 1 if reply.pre and reply.granted else self.term
        if self.role is wanted and reply.term == term and sender in self.config.voters:
            self._votes[sender] = reply.granted
            self._count_votes(now)

    def _count_votes(self, now: float) -> None:
        needed = len(self.config.voters) // 2 + 1
        granted = sum(self._votes.values())
        if granted >= needed:
            if self.role is Role.PRE_CANDIDATE:
                self._stand(now)
            else:
                self._lead(now)
        elif len(self._votes) - granted > len(self.config.voters) - needed:
            self._follow(self.term, "", now)

    def _lead(self, now: float) -> None:
        self.role, self.leader = Role.LEADER, self.node_id
        following = self.log.last_index + 1
        members = (*self.config.voters, *self.config.learners)
        self.progress = {member: Progress(following, now) for member in members if member != self.node_id}
        self.term_start = following
        self._round = 0
        self._append_own([(self.term, NOOP, b"")])
        self._heartbeat_at = now + self.settings.heartbeat_s
        for member in self.progress:
            self._replicate(member)

    # -- the log ------------------------------------------------------------------------------------------------------

    def _append_own(self, entries: list[Entry]) -> None:
        self._adopt_configs(self.log.last_index + 1, entries)
        self.log.append(entries)

    def _adopt_configs(self, first: int, entries: Sequence[Entry]) -> None:
        for at, (_, kind, data) in enumerate(entries, first):
            if kind == CONFIG:
                self._configs.append((at, decode_config(data)[0]))

    def _on_append(self, sender: str, message: Append) -> None:
        if message.previous_index < self.commit:
            self._send(sender, AppendReply(self.term, self.commit, True))
            return
        if self.log.term(message.previous_index) != message.previous_term:
            at = self.log.last_at_or_below(message.previous_index, message.previous_term)
            self._send(sender, AppendReply(self.term, message.previous_index, False, at, max(self.log.term(at), 0)))
            return
        through = message.previous_index + len(message.entries)
        for index, entry in enumerate(message.entries, message.previous_index + 1):
            if self.log.term(index) != entry[0]:
                self._replace_from(index, message.entries[index - message.previous_index - 1 :])
                break
        self._commit_to(min(message.commit, through))
        self._send(sender, AppendReply(self.term, through, True))

    def _replace_from(self, first: int, entries: Sequence[Entry]) -> None:
        if first <= self.log.last_index:
            assert first > self.commit, "a committed entry would be replaced"
            self.log.truncate(first)
            self.durable = min(self.durable, first - 1)
            self._unsaved = min(self._unsaved, first)
            while self._configs[-1][0] >= first:
                del self._configs[-1]
        self._adopt_configs(first, entries)
        self.log.append(entries)

    def _commit_to(self, index: int) -> None:
        if index > self.commit:
            self.commit = index
            self._note_soon()

    def _note_soon(self) -> None:
        """The commit index has grown; a group of one finds out by itself what is committed."""
        if self._note_at == FOREVER and self.config.voters != (self.node_id,):
            self._note_at = self._now + self.settings.note_commit_s

    def _commit_to_note(self) -> int:
        """All entries through it are committed, and are among what was handed out to be stored: `take_actions` hands out the whole log."""
        return self.commit

    @staticmethod
    def _majority(marks: list[float] | list[int]) -> float:
        """The largest mark that a majority has reached."""
        return sorted(marks)[(len(marks) - 1) // 2]

    def _may_commit(self, index: int) -> bool:
        """Only entries of the own term are committed by counting copies (Ongaro 3.6.2); older ones come with them."""
        return self.log.term(index) == self.term

    def _advance_commit(self) -> None:
        reached = int(self._majority([self.durable if m == self.node_id else self.progress[m].match for m in self.config.voters]))
        if reached > self.commit and self._may_commit(reached):
            self._commit_to(reached)
            for member in self.progress:
                self._replicate(member, empty=True)
            self._open_round()

    # -- feeding the others -------------------------------------------------------------------------------------------

    def _send(self, to: str, message: Message) -> None:
        self._out.sends.append((to, message))

    def _replicate(self, member: str, empty: bool = False) -> None:
        """Sends what may be sent now. empty: at least one message, for its commit index."""
        progress, settings = self.progress[member], self.settings
        while progress.mode is not Mode.SNAPSHOT:
            previous_term = self.log.term(progress.next - 1)
            if previous_term < 0:
                self._send_snapshot(member, progress)
                return
            full = len(progress.inflight) >= settings.inflight_appends_max or progress.inflight_bytes >= settings.inflight_bytes_max
            if progress.waiting or full:
                return
            entries, size_bytes = self.log.slice_bytes(progress.next, settings.append_bytes_max)
            if not entries and not empty:
                return
            self._send(member, Append(self.term, progress.next - 1, previous_term, self.commit, entries))
            if progress.mode is Mode.PROBE:
                progress.waiting = True
                return
            if not entries:
                return
            progress.next += len(entries)
            progress.inflight.append((progress.next - 1, size_bytes))
            progress.inflight_bytes += size_bytes
            empty = False

    def _heartbeats(self) -> None:
        for member, progress in self.progress.items():
            self._send(member, Heartbeat(self.term, min(progress.match, self.commit), self._round))

    def _on_reply(self, member: str, progress: Progress, reply: Message) -> None:
        match reply:
            case AppendReply(_, index, True):
                self._on_matched(member, progress, index)
            case AppendReply(_, index, False, hint_index, hint_term):
                self._on_refused(member, progress, index, hint_index, hint_term)
            case HeartbeatReply(_, round_):
                progress.round = max(progress.round, round_)
                self._confirm_rounds()
                progress.waiting = False
                if progress.mode is Mode.SNAPSHOT:
                    if progress.stalled:
                        self._send_chunk(member, progress)
                    progress.stalled = True
                elif progress.match < self.log.last_index:
                    if progress.inflight:  # one may have been lost: let the next message find out
                        progress.free(progress.inflight[0][0])
                    self._replicate(member, empty=True)
            case SnapshotReply(_, index, received):
                if progress.mode is Mode.SNAPSHOT and progress.snapshot is not None and progress.snapshot.index == index:
                    progress.stalled = False
                    if received > progress.offset or received == 0:
                        progress.offset = received
                        self._send_chunk(member, progress)

    def _on_matched(self, member: str, progress: Progress, index: int) -> None:
        if index < progress.match or (index == progress.match and progress.mode is Mode.STREAM) or index > self.log.last_index:
            return
        progress.match = index
        progress.next = max(progress.next, index + 1)
        if progress.mode is Mode.STREAM:
            progress.free(index)
        elif progress.mode is Mode.PROBE or (progress.snapshot is not None and index >= progress.snapshot.index):
            progress.to_stream()
        before = self.commit
        self._advance_commit()
        if self.commit == before:
            self._replicate(member)

    def _on_refused(self, member: str, progress: Progress, index: int, hint_index: int, hint_term: int) -> None:
        if progress.mode is Mode.STREAM:
            if index > progress.match:
                progress.to_probe()
                self._replicate(member, empty=True)
        elif progress.mode is Mode.PROBE and index == progress.next - 1:
            at = self.log.last_at_or_below(hint_index, hint_term) if hint_term else hint_index
            progress.next = max(min(index, at + 1), progress.match + 1)
            progress.waiting = False
            self._replicate(member, empty=True)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _snapshot_term(self, index: int) -> int:
        return self.log.term(index)

    def _send_snapshot(self, member: str, progress: Progress) -> None:
        assert self.snapshot is not None, "the log has a base without a snapshot"
        progress.to_snapshot(self.snapshot)
        self._send_chunk(member, progress)

    def _send_chunk(self, member: str, progress: Progress) -> None:
        assert progress.snapshot is not None
        self._out.chunks.append((member, progress.snapshot, progress.offset))

    def _on_chunk(self, sender: str, chunk: SnapshotChunk) -> None:
        meta = chunk.meta
        if meta.index <= self.commit or self.log.term(meta.index) == meta.term:
            self._commit_to(meta.index)
            self._incoming = None
            self._send(sender, AppendReply(self.term, self.commit, True))
            return
        if meta.size_bytes > self.settings.snapshot_bytes_max:
            return
        if self._incoming is None or self._incoming[:2] != (sender, meta):
            self._incoming = (sender, meta, bytearray())
        received = self._incoming[2]
        if chunk.offset == len(received) and len(received) + len(chunk.data) <= meta.size_bytes:
            received += chunk.data
        if len(received) < meta.size_bytes:
            self._send(sender, SnapshotReply(self.term, meta.index, len(received)))
            return
        self._incoming = None
        if crc32c.crc32c(received) == meta.crc:
            self._install(meta, bytes(received))
            self._send(sender, AppendReply(self.term, meta.index, True))

    def _install(self, meta: SnapshotMeta, blob: bytes) -> None:
        self.log.reset(meta.index, meta.term)
        self.snapshot, self.commit, self._applying = meta, meta.index, meta.index
        self.durable, self._unsaved = meta.index, meta.index + 1
        self._configs = [(meta.index, meta.config)]
        self._out.snapshot = (meta, blob)

    # -- reads --------------------------------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        """Before the term's first entry is committed, the commit index may lie behind what an earlier leader committed."""
        return self.commit >= self.term_start

    def _open_round(self) -> None:
        if self._reads and self._may_read() and len(self._rounds) < self.settings.read_rounds_max:
            self._round += 1
            self._rounds.append((self._round, self.commit, self._reads))
            self._reads = []
            self._heartbeats()
            self._confirm_rounds()

    def _confirm_rounds(self) -> None:
        reached = self._majority([self._round if m == self.node_id else self.progress[m].round for m in self.config.voters])
        while self._rounds and self._rounds[0][0] <= reached:
            _, index, tokens = self._rounds.popleft()
            self._out.reads.append((tokens, index))
        if self._reads and not self._rounds:
            self._open_round()


def _asks_first(message: Message) -> bool:
    """A pre-vote speaks of a term that nobody has begun yet; only its refusal names the voter's own."""
    match message:
        case VoteRequest(_, _, _, True) | VoteReply(_, True, True):
            return True
    return False
