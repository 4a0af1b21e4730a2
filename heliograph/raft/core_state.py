"""CoreState: what one member of a Raft group holds, whatever its role.

Is: term, vote, log, commit index, configurations, the snapshot, and the actions that changes of them ask for. Isn't:
who says what when (`leader`, `core`).
Invariants: the commit index never falls; a committed entry is never replaced; what is written down as committed was
committed, so that a member that comes back alone may apply it.
Source: Ongaro, "Consensus: bridging theory and practice", 3 and 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.raft.actions import FOREVER, Actions, CoreSettings, RaftRole
from heliograph.raft.founding import Founders
from heliograph.raft.generations import Standing
from heliograph.raft.membership import Configurations
from heliograph.raft.messages import Config, Entry, Message, SnapshotMeta
from heliograph.raft.progress import Mode, Progress
from heliograph.raft.raft_log import RaftLog
from heliograph.raft.starts import Starts
from heliograph.runtime.clock import Rng


@dataclass(slots=True)
class IncomingSnapshot:
    """A snapshot on its way in. handed, stored: bytes, to the shell and on the disk; one piece at a time is between
    them.
    """

    number: int
    sender: str
    meta: SnapshotMeta
    handed: int = 0
    stored: int = 0
    crc: int = 0


class CoreState:
    """See RaftCore, which this is a part of."""

    def __init__(
        self,
        node_id: str,
        *,
        config: Config,
        term: int,
        vote: str,
        log: RaftLog,
        snapshot: SnapshotMeta | None,
        settings: CoreSettings,
        rng: Rng,
        now: float,
        commit: int = 0,
        owed: tuple[int, int] | None = None,
        founders: Founders | None = None,
        proven: bool = True,
        starts: Starts | None = None,
        standing: Standing | None = None,
    ) -> None:
        """config: as of the log's base; without voters for a member that waits to be added. vote: "" = none.

        log, snapshot, and commit (of the last batch or note): as they lie durably on disk.
        owed: (term, index) of the last entry that this member has ever said to be durable, where it has lost its log
        since.
        founders: which life this is, and who the first voters were. proven: as it lies on the disk; a life that is not
        began with an empty folder, or an older copy of it, and no founding or leader has shown yet that it may count.
        starts: None: this member numbers none, and is asked for none. standing: which generation the folder is of;
        None: of the one that the log names.
        """
        self.node_id, self.settings = node_id, settings
        self.term, self.vote, self.log, self.snapshot = term, vote, log, snapshot
        self.role, self.leader = RaftRole.FOLLOWER, ""
        self.owed = owed
        self.founders = founders or Founders(node_id, 0)
        self.unproven = not proven
        self._proving = False  # a leader has said what to hold, as `owed`
        self._ask_at = self._found_at = FOREVER
        self.starts = starts or Starts()
        self.standing = standing or Standing()
        self._begun, self._tell_at, self._renumber_at = now, FOREVER, FOREVER
        self._told_config: Config | None = None  # whose members are being told of this start
        self.commit = max(log.base_index, min(commit, log.last_index))
        self.term_start = 0  # index of the first entry of this leader's term
        self.durable = log.last_index
        self._applying = log.base_index
        self.configs = Configurations(log.base_index, config)
        self.configs.adopt(log.base_index + 1, log.slice(log.base_index + 1, log.last_index + 1))
        self._rng = rng
        self._out = Actions()
        self._unsaved = log.last_index + 1
        self._alike = 0, 0  # (term, index): through it the log was found to be as that term's leader has it
        self._votes: dict[str, bool] = {}
        self._now = self._leader_heard = now
        self._note_at = FOREVER
        self.progress: dict[str, Progress] = {}
        self._heartbeat_at = now
        self._round = 0
        self._reads: list[int] = []  # tokens that wait for a round
        self._rounds: deque[tuple[int, int, list[int]]] = deque()  # (round, index, tokens)
        self._incoming: IncomingSnapshot | None = None
        self._incoming_number = 0
        self._election_at = 0.0
        self._transfer_to, self._transfer_until = "", FOREVER
        self._begin(now)

    def _begin(self, now: float) -> None:
        """The first thing that this member does."""

    @property
    def life(self) -> int:
        """What its answers carry: 0 for a member that counts, and would after a restart."""
        return self.founders.life if self.unproven or self._proving else 0

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """In effect from the moment it stands in the log, committed or not."""
        return self.configs.latest

    @property
    def deciding(self) -> tuple[str, ...]:
        """Whose votes and copies count: the voters of the configuration in the log, committed or not. Of two of which
        one is being removed both, until that is committed: one that has not read of it may be forced, beside the other.
        """
        voters, before = self.config.voters, self.configs.before
        if len(voters) > 1 or self.configs.latest_index <= self.commit or before.forced != self.config.forced:
            return voters
        return before.voters if len(before.voters) > len(voters) else voters

    @property
    def generation(self) -> int:
        """What this member is of, and says in each message; 0: nobody has forced this group."""
        return max(self.config.forced, self.standing.adopted)

    @property
    def ready(self) -> bool:
        """Leader, and everything of earlier terms is committed."""
        return self.role is RaftRole.LEADER and self.commit >= self.term_start

    @property
    def settled(self) -> bool:
        """Whether it counts, and no voter knows of a later start of it, after which it would not."""
        others = [voter for voter in self.config.voters if voter != self.node_id]
        return not self.life and (not self.starts.own or self.starts.sure.issuperset(others))

    @property
    def uncommitted(self) -> int:
        return self.log.last_index - self.commit

    def take_actions(self) -> Actions:
        """Those that say nothing are of nobody: they are filled again, since who asks until there are none would make
        as many that are empty as others.
        """
        out, last = self._out, self.log.last_index
        out.term = self.term
        out.be_of(self.generation)
        if self._unsaved <= last:
            out.first_index = self._unsaved
            out.entries = self.log.slice(self._unsaved, last + 1)
            self._unsaved = last + 1
        out.durable_mark = (last, self.log.last_term)
        out.commit = self._commit_to_note()
        stores = out.stores
        if stores:
            out.note_commit, self._note_at = False, FOREVER
        if self._applying < self.commit:
            out.committed_first = self._applying + 1
            out.committed = self.log.slice(out.committed_first, self.commit + 1)
            self._applying = self.commit
        if stores or out:
            self._out = Actions()
        return out

    def describe_snapshot(self, index: int) -> SnapshotMeta:
        """What a snapshot of the machine after `index` (applied, and not compacted yet) must be stored with, but for
        its size and checksum.
        """
        return SnapshotMeta(index, self._snapshot_term(index), self.configs.at(index))

    def on_snapshot_stored(self, meta: SnapshotMeta, keep_entries: int) -> None:
        """A snapshot of this member's machine is durable; the log keeps `keep_entries` behind it for members that
        lag.
        """
        if self.snapshot is None or meta.index > self.snapshot.index:
            self.snapshot = meta
            self._compact(meta.index - keep_entries)

    def on_kept(self, index: int, keep_entries: int, now: float) -> bool:
        """The machine's own table is durable through `index`: the log is needed for other members only. True: the
        snapshot is of no use any more.
        """
        self._now = now
        self._compact(min(index - keep_entries, max(self._needed_behind(), index - self.settings.lag_entries_max)))
        if self.snapshot is None or self.snapshot.index >= self.log.base_index:
            return False
        self.snapshot = None
        return True

    def _needed_behind(self) -> int:
        """The entries behind this index are needed by members that answer."""
        needed = self.log.last_index
        for progress in self.progress.values():
            if progress.heard >= self._now - self.settings.election_timeout_s:
                sending = progress.snapshot if progress.mode is Mode.SNAPSHOT else None
                needed = min(needed, progress.match if sending is None else sending.index)
        return needed

    def _compact(self, index: int) -> None:
        base = max(self.log.base_index, index)
        self.log.compact(base)
        self.configs.compact(base)

    # -- what lies on the disk ----------------------------------------------------------------------------------------

    def _set_hard_state(self, term: int, vote: str) -> None:
        self.term, self.vote = term, vote
        self._out.hard_state = (term, vote)

    def _append_own(self, entries: list[Entry]) -> None:
        self.configs.adopt(self.log.last_index + 1, entries)
        self.log.append(entries)

    def _replace_from(self, first: int, entries: Sequence[Entry]) -> None:
        if first <= self.log.last_index:
            assert first > self.commit, "a committed entry would be replaced"
            self.log.truncate(first)
            self.durable = min(self.durable, first - 1)
            self._unsaved = min(self._unsaved, first)
            self.configs.roll_back(first)
        self.configs.adopt(first, entries)
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
        """All entries through it are committed, and are among what was handed out to be stored: `take_actions` hands
        out the whole log.
        """
        return self.commit

    def _send(self, to: str, message: Message) -> None:
        self._out.sends.append((to, message))

    def _snapshot_term(self, index: int) -> int:
        return self.log.term(index)

    def _install(self, meta: SnapshotMeta) -> None:
        self.log.reset(meta.index, meta.term)
        self.snapshot, self.commit, self._applying = meta, meta.index, meta.index
        self.durable, self._unsaved = meta.index, meta.index + 1
        self.configs.reset(meta.index, meta.config)
        self._out.snapshot = meta
