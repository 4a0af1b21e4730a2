"""Cores with one broken rule each: what shows that the simulation of Raft can fail.

Is: subclasses of RaftCore, each without one rule of the protocol. Isn't: anything that may be used. Each must be found
within a few hundred seeds.
"""

from __future__ import annotations

from heliograph.raft.core import Actions, RaftCore, RaftRole
from heliograph.raft.messages import Append, AppendReply, Heartbeat, Message, VoteReply, VoteRequest


class SendsBeforeSync(RaftCore):
    """Some answers leave before the term, vote, and entries that they speak of are durable."""

    kinds: tuple[type, ...] = ()
    held: Actions | None = None

    def take_actions(self) -> Actions:
        if self.held is not None:
            held, self.held = self.held, None
            return held
        actions = super().take_actions()
        early = [each for each in actions.sends if isinstance(each[1], self.kinds)]
        if not actions.stores or not early:
            return actions
        actions.sends = [each for each in actions.sends if not isinstance(each[1], self.kinds)]
        self.held = actions
        return Actions(term=actions.term, sends=early)


class VoteBeforeSync(SendsBeforeSync):
    kinds = (VoteReply,)


class AcknowledgesBeforeSync(SendsBeforeSync):
    kinds = (AppendReply,)


class ForgetsItsVote(RaftCore):
    """Votes again in a term in which it has voted."""

    def _may_vote_for(self, sender: str, request: VoteRequest) -> bool:
        return self.role is not RaftRole.LEADER


class VotesForAnyone(RaftCore):
    """Votes for candidates whose log lacks entries."""

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


class CommitsOlderTerms(RaftCore):
    """Commits entries of earlier terms by counting copies (Ongaro, figure 3.7)."""

    def _may_commit(self, index: int) -> bool:
        return True


class CommitsHalf(RaftCore):
    """Counts half of the voters as a majority."""

    @staticmethod
    def _majority(marks: list[float] | list[int]) -> float:
        return sorted(marks, reverse=True)[max(len(marks) // 2 - 1, 0)]


class CountsUnsynced(RaftCore):
    """The leader counts its own copy before it is durable."""

    def _append_own(self, entries: list[tuple[int, int, bytes]]) -> None:
        super()._append_own(entries)
        self.durable = self.log.last_index
        self._advance_commit()


class ReadsBeforeNoop(RaftCore):
    """Answers reads before an entry of the own term is committed."""

    def _may_read(self) -> bool:
        return True


class ReadsWithoutAsking(RaftCore):
    """Answers reads without a majority's word that it still leads."""

    def _confirm_rounds(self) -> None:
        while self._rounds:
            _, index, tokens = self._rounds.popleft()
            self._out.reads.append((tokens, index))


class SnapshotWithoutTerm(RaftCore):
    """Snapshots do not say of which term their last entry was."""

    def _snapshot_term(self, index: int) -> int:
        return 0


class NotesWhatItHolds(RaftCore):
    """Writes down everything that it holds as committed."""

    def _commit_to_note(self) -> int:
        return self.log.last_index


class NotesWithBatchesOnly(RaftCore):
    """Never writes down a commit behind which nothing else comes."""

    def _note_soon(self) -> None:
        pass


class KeepsConflicts(RaftCore):
    """Appends behind what it has, without comparing terms."""

    def _on_append(self, sender: str, message: Append) -> None:
        if message.previous_index <= self.log.last_index and message.previous_index >= self.commit:
            following = self.log.last_index + 1 - message.previous_index - 1
            if following < len(message.entries):
                self._replace_from(self.log.last_index + 1, message.entries[following:])
            self._commit_to(min(message.commit, message.previous_index + len(message.entries)))
            self._send(sender, AppendReply(self.term, message.previous_index + len(message.entries), True))
        else:
            super()._on_append(sender, message)


class HeartbeatCommits(RaftCore):
    """Heartbeats tell followers to commit entries that nobody has compared with theirs."""

    def _heartbeats(self) -> None:
        for member in self.progress:
            self._send(member, Heartbeat(self.term, self.commit, self._round))

    def _on_leaders_commit(self, sender: str, commit: int) -> None:
        self._commit_to(min(commit, self.log.last_index))


class NeverStepsDown(RaftCore):
    """Stays leader when it hears of a newer term."""

    def _follow(self, term: int, leader: str, now: float) -> None:
        if self.role is RaftRole.LEADER and term > self.term:
            return
        super()._follow(term, leader, now)


class ReplacesOldTerm(RaftCore):
    """Obeys leaders of terms that are over."""

    def receive(self, sender: str, message: Message, now: float) -> None:
        if isinstance(message, Append) and message.term < self.term and self.role is not RaftRole.LEADER:
            self._on_append(sender, message)
            return
        super().receive(sender, message, now)


MUTANTS: list[type[RaftCore]] = [
    AcknowledgesBeforeSync,
    ForgetsItsVote,
    VotesForAnyone,
    CommitsHalf,
    CountsUnsynced,
    ReadsBeforeNoop,
    ReadsWithoutAsking,
    SnapshotWithoutTerm,
    NotesWhatItHolds,
    NotesWithBatchesOnly,
    KeepsConflicts,
    HeartbeatCommits,
    NeverStepsDown,
]
"""Found by random runs, most within a few dozen seeds."""

RARE: list[type[RaftCore]] = [VoteBeforeSync, CommitsOlderTerms, ReplacesOldTerm]
"""Need a course of events that random runs reach once in hundreds or thousands of seeds; scripts in
tests/heliograph/raft/test_core.py show each at once.
"""
