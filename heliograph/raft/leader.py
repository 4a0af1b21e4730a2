"""Leading: what a leader does between its election and its end.

Is: feeding the members, committing, reads, changes of the membership, handing the leadership over. Isn't: elections, or
what a follower does (`core`).
Invariants: only an entry of the leader's own term is committed by counting, and only durable copies of voters count; a
read is answered only from a term whose first entry is committed, after a majority confirmed the leader in a round begun
after the read came; a member joins or goes only after the term's first entry and the change before are committed, and
only if a majority of what results answers.
Source: Ongaro, "Consensus: bridging theory and practice", 3.6, 3.10, 4, 6.4, and the correction to 4 (raft-dev, 2015:
first commit in your own term).
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.model.errors import NotAllowed
from heliograph.raft.actions import RaftRole
from heliograph.raft.core_state import CoreState
from heliograph.raft.membership import Change, Promote, changed
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
    Proof,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    encode_config,
)
from heliograph.raft.progress import Mode, Progress


class Leading(CoreState):
    """See RaftCore, which this is a part of."""

    @property
    def transferring(self) -> bool:
        """It is handing the leadership over, for one election time-out at most, and takes no commands meanwhile."""
        return self.role is RaftRole.LEADER and self._transfer_to != ""

    def propose(self, commands: Sequence[bytes]) -> int | None:
        """Appends commands; returns the index of the first, or None where this member does not lead, or is handing
        over.
        """
        if self.role is not RaftRole.LEADER or self._transfer_to:
            return None
        first = self.log.last_index + 1
        self._append_own([(self.term, COMMAND, command) for command in commands])
        for member in self.progress:
            self._replicate(member)
        return first

    def read(self, token: int) -> bool:
        """Asks for a linearizable read; the answer comes as an action with this token. False: this member does not
        lead.
        """
        if self.role is not RaftRole.LEADER:
            return False
        self._reads.append(token)
        self._open_round()
        return True

    def on_chunk_missing(self, to: str, meta: SnapshotMeta) -> None:
        """The snapshot that was being sent is gone: begin again with the newest."""
        progress = self.progress.get(to)
        if progress is not None and progress.mode is Mode.SNAPSHOT and progress.snapshot == meta:
            if self.snapshot == meta:
                self.snapshot = None
            self._send_snapshot(to, progress)

    def on_durable(self, mark: tuple[int, int]) -> None:
        """The batch with this `durable_mark` is stored."""
        index, term = mark
        if index > self.durable and self.log.term(index) == term:  # what was replaced meanwhile is not meant
            self.durable = index
            if self.role is RaftRole.LEADER:
                self._advance_commit()
        self._settle_debt()

    def _settle_debt(self) -> None:
        if self.owed is not None and (self.log.term(self.durable), self.durable) >= self.owed:
            self.owed = None
            if self._proving:
                self._proving = False
                self._out.proven = ()

    # -- members ------------------------------------------------------------------------------------------------------

    def change(self, change: Change, now: float) -> int | None:
        """Appends the configuration that a change makes; returns its index, 0 where all is so already, None where this
        member does not lead.

        Raises NotAllowed as `examine` does.
        """
        config = self.examine(change, now)
        if config is None or config == self.config:
            return None if config is None else 0
        self._append_own([(self.term, CONFIG, encode_config(config))])
        for member in self.progress:
            self._replicate(member)
        return self.log.last_index

    def examine(self, change: Change, now: float) -> Config | None:
        """What a change would make now; None where this member does not lead. Raises NotAllowed with the reason where
        it may not be made, or not yet.
        """
        self._now = now
        if self.role is not RaftRole.LEADER:
            return None
        if self._transfer_to:
            raise NotAllowed(f"the leadership is being handed over to {self._transfer_to!r}: try again in a moment")
        if self.node_id not in self.config.voters:
            raise NotAllowed("this leader was removed and is about to go: try again in a moment")
        if not self._may_change():
            raise NotAllowed(
                "the change before, or the first entry of this leader, is not committed yet: try again in a moment"
            )
        config = changed(self.config, change)
        if config != self.config:
            if isinstance(change, Promote):
                self._check_caught_up(change.member)
            self._check_quorum(config)
        return config

    def transfer(self, to: str, now: float) -> bool | None:
        """Begins to hand the leadership over, within one election time-out or not at all. False: it leads already;
        None: this member does not lead.

        Raises NotAllowed as `examine_transfer` does.
        """
        may = self.examine_transfer(to, now)
        if may:
            self._transfer_to, self._transfer_until = to, now + self.settings.election_timeout_s
            self._urge()
        return may

    def examine_transfer(self, to: str, now: float) -> bool | None:
        """As `transfer` would answer now. Raises NotAllowed with the reason where that member cannot lead."""
        self._now = now
        if self.role is not RaftRole.LEADER:
            return None
        if to == self.node_id:
            return False
        if to not in self.config.voters:
            raise NotAllowed(f"{to!r} is no voter; there are {', '.join(self.config.voters)}")
        if not self.ready:
            raise NotAllowed("this leader has only just been elected: try again in a moment")
        if not self._answers(to):
            raise NotAllowed(f"{to!r} does not answer: start it, or choose another voter")
        return True

    def _may_change(self) -> bool:
        return self.commit >= self.term_start and self.configs.latest_index <= self.commit

    def _answers(self, member: str) -> bool:
        """Lately, and as one that counts."""
        return member == self.node_id or (
            member in self.progress
            and not self.progress[member].life
            and self.progress[member].heard >= self._now - self.settings.election_timeout_s
        )

    def _check_caught_up(self, member: str) -> None:
        progress = self.progress[member]
        if progress.life:
            raise NotAllowed(
                f"{member!r} has begun with an empty folder and counts for nothing yet: try again in a moment"
            )
        behind = self.log.last_index - progress.match
        if not self._answers(member) or progress.mode is not Mode.STREAM or behind > self.settings.promotion_lag_max:
            state = f"is {behind} entries behind" if self._answers(member) else "does not answer"
            raise NotAllowed(f"{member!r} {state}: a learner becomes a voter once it has caught up")

    def _check_quorum(self, config: Config) -> None:
        """A configuration without a majority that answers could commit nothing, not even its own end."""
        silent = [member for member in config.voters if not self._answers(member)]
        needed = len(config.voters) // 2 + 1
        if config.voters != self.config.voters and len(config.voters) - len(silent) < needed:
            raise NotAllowed(
                f"the quorum would be lost: of the {len(config.voters)} voters that this leaves, {needed} must "
                f"answer, and {', '.join(silent)} "
                f"{'does' if len(silent) == 1 else 'do'} not: start them, or remove those first"
            )
        gone = [member for member in self.config.voters if member not in config.voters and not self._answers(member)]
        if gone and len(config.voters) == 1:
            raise NotAllowed(
                f"{gone[0]!r} does not answer: the last but one voter goes only once it has read of it, as it could be "
                "forced to go on alone. Start it, or, where it is lost for good, force the quorum without it"
            )

    def _append_own(self, entries: list[Entry]) -> None:
        super()._append_own(entries)
        for member in self.config.members:
            if member not in self.progress and member != self.node_id:
                self.progress[member] = Progress(self.log.last_index, self._now)

    def _on_config_committed(self) -> None:
        """Who was removed has been sent its removal, and is fed no longer; a leader that was goes at its next tick."""
        for member in [member for member in self.progress if member not in self.config.members]:
            del self.progress[member]
        if self.config.voters == (self.node_id,):  # before anybody hears of it: who went is asked for nothing any more
            self._set_hard_state(self.term, self.vote)
        if self._has_left():
            heir = max(self.config.voters, key=lambda member: self.progress[member].counted)
            self._send(heir, TimeoutNow(self.term))
            self._heartbeat_at = self._now

    def _has_left(self) -> bool:
        return self.node_id not in self.config.voters and self.configs.latest_index <= self.commit

    def _urge(self) -> None:
        """Tells the heir to stand as soon as it holds everything; again with each heartbeat, for the word may be
        lost.
        """
        heir = self.progress.get(self._transfer_to)
        if heir is not None and heir.match == self.log.last_index:
            self._send(self._transfer_to, TimeoutNow(self.term))

    # -- committing ---------------------------------------------------------------------------------------------------

    def _voter_marks(self) -> tuple[str, ...]:
        """Whose copies and answers count."""
        return self.deciding

    @staticmethod
    def _majority(marks: list[float] | list[int]) -> float:
        """The largest mark that a majority has reached."""
        return sorted(marks)[(len(marks) - 1) // 2]

    def _may_commit(self, index: int) -> bool:
        """Only entries of the own term are committed by counting copies (Ongaro 3.6.2); older ones come with them."""
        return self.log.term(index) == self.term

    def _advance_commit(self) -> None:
        reached = int(
            self._majority(
                [self.durable if m == self.node_id else self.progress[m].counted for m in self._voter_marks()]
            )
        )
        if reached > self.commit and self._may_commit(reached):
            changed_at, before = self.configs.latest_index, self.commit
            self._commit_to(reached)
            for member in self.progress:
                self._replicate(member, empty=True)
            if before < changed_at <= reached:
                self._on_config_committed()
            self._open_round()

    # -- feeding the others -------------------------------------------------------------------------------------------
    def _replicate(self, member: str, empty: bool = False) -> None:
        """Sends what may be sent now. empty: at least one message, for its commit index."""
        progress, settings = self.progress[member], self.settings
        while progress.mode is not Mode.SNAPSHOT:
            previous_term = self.log.term(progress.next - 1)
            if previous_term < 0:
                self._send_snapshot(member, progress)
                return
            full = (
                len(progress.inflight) >= settings.inflight_appends_max
                or progress.inflight_bytes >= settings.inflight_bytes_max
            )
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
        self._urge()

    def _on_reply(self, member: str, progress: Progress, reply: Message) -> None:
        match reply:
            case AppendReply(_, index, True, _, _, life):
                self._note_life(member, progress, life)
                self._on_matched(member, progress, index, counts=not life)
            case AppendReply(_, index, False, hint_index, hint_term, life):
                self._note_life(member, progress, life)
                self._on_refused(member, progress, index, hint_index, hint_term)
            case HeartbeatReply(_, round_, life):
                self._note_life(member, progress, life)
                if not life:
                    progress.round = max(progress.round, round_)
                    self._confirm_rounds()
                progress.waiting = False
                if progress.mode is Mode.SNAPSHOT:
                    if progress.stalled:
                        self._send_chunk(member, progress)
                    progress.stalled = True
                elif (progress.match if life else progress.counted) < self.log.last_index:
                    if progress.inflight:  # one may have been lost: let the next message find out
                        progress.free(progress.inflight[0][0])
                    self._replicate(member, empty=True)
            case SnapshotReply(_, index, received):
                if (
                    progress.mode is Mode.SNAPSHOT
                    and progress.snapshot is not None
                    and progress.snapshot.index == index
                ):
                    progress.stalled = False
                    if received > progress.offset or received == 0:
                        progress.offset = received
                        self._send_chunk(member, progress)

    def _note_life(self, member: str, progress: Progress, life: int) -> None:
        """A member that is unproven may have voted, and acknowledged, before its folder was emptied. Whatever came of
        that ends before an entry that is appended now; once a majority without it holds that entry, nobody that it has
        voted for can lead any more, and who holds the entry holds all that it has acknowledged.
        """
        if life != progress.life:
            progress.life, progress.proof = life, 0
        if not life or self._transfer_to:
            return
        if not progress.proof:
            self._append_own([(self.term, NOOP, b"")])
            progress.proof = self.log.last_index
            for each in self.progress:
                self._replicate(each)
        elif progress.proof <= self.commit:
            self._send(member, Proof(self.term, life, progress.proof))

    def _on_matched(self, member: str, progress: Progress, index: int, *, counts: bool) -> None:
        if index > self.log.last_index:
            return
        if counts and index > progress.counted:
            progress.counted = index
        elif index < progress.match or (index == progress.match and progress.mode is Mode.STREAM):
            return
        progress.match = max(progress.match, index)
        progress.next = max(progress.next, index + 1)
        if progress.mode is Mode.STREAM:
            progress.free(index)
        elif progress.mode is Mode.PROBE or (progress.snapshot is not None and index >= progress.snapshot.index):
            progress.to_stream()
        if member == self._transfer_to:
            self._urge()
        before = self.commit
        self._advance_commit()
        if self.commit == before:
            self._replicate(member)

    def _on_refused(self, member: str, progress: Progress, index: int, hint_index: int, hint_term: int) -> None:
        if index <= progress.match and hint_index < progress.match and progress.mode is not Mode.SNAPSHOT:
            # it has lost its log, or has an older copy of it (or this is very late: then it costs one question)
            progress.match = progress.counted = 0
            progress.to_probe()
            progress.next = self._asked_at(hint_index, hint_term) + 1
            self._replicate(member, empty=True)
        elif progress.mode is Mode.STREAM:
            if index > progress.match:
                progress.to_probe()
                self._replicate(member, empty=True)
        elif progress.mode is Mode.PROBE and index == progress.next - 1:
            progress.next = max(min(index, self._asked_at(hint_index, hint_term) + 1), progress.match + 1)
            progress.waiting = False
            self._replicate(member, empty=True)

    def _asked_at(self, hint_index: int, hint_term: int) -> int:
        """Where a member that holds another log, or less of this one, is asked next."""
        return self.log.last_at_or_below(hint_index, hint_term) if hint_term else hint_index

    # -- snapshots ----------------------------------------------------------------------------------------------------
    def _send_snapshot(self, member: str, progress: Progress) -> None:
        if self.snapshot is None or self.snapshot.index < self.log.base_index:  # the next heartbeat's answer asks again
            self._out.wants_snapshot = True
            if progress.mode is Mode.SNAPSHOT:
                progress.to_probe()
            return
        progress.to_snapshot(self.snapshot)
        self._send_chunk(member, progress)

    def _send_chunk(self, member: str, progress: Progress) -> None:
        assert progress.snapshot is not None
        self._out.chunks.append((member, progress.snapshot, progress.offset))

    # -- reads --------------------------------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        """Before the term's first entry is committed, the commit index may lie behind what an earlier leader
        committed.
        """
        return self.commit >= self.term_start

    def _open_round(self) -> None:
        if self._reads and self._may_read() and len(self._rounds) < self.settings.read_rounds_max:
            self._round += 1
            self._rounds.append((self._round, self.commit, self._reads))
            self._reads = []
            self._heartbeats()
            self._confirm_rounds()

    def _confirm_rounds(self) -> None:
        reached = self._majority(
            [self._round if m == self.node_id else self.progress[m].round for m in self._voter_marks()]
        )
        while self._rounds and self._rounds[0][0] <= reached:
            _, index, tokens = self._rounds.popleft()
            self._out.reads.append((tokens, index))
        if self._reads and not self._rounds:
            self._open_round()
