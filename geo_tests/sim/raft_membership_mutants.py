"""Cores with one broken rule of the membership each: what shows that its simulation can fail.

Is: subclasses of RaftCore, each without one rule. Isn't: anything that may be used.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.raft.core import RaftCore
from heliograph.raft.messages import Entry, SnapshotMeta, VoteRequest


class QuorumOfOldConfig(RaftCore):
    """Counts the copies of the voters before, until the new configuration is committed."""

    def _voter_marks(self) -> tuple[str, ...]:
        config = self.configs.before if self.configs.latest_index > self.commit else self.config
        return tuple(m for m in config.voters if m == self.node_id or m in self.progress) or self.config.voters


class CountsLearners(RaftCore):
    """Copies on learners count as those of voters."""

    def _voter_marks(self) -> tuple[str, ...]:
        return self.config.members


class LearnersVote(RaftCore):
    """Learners are asked for votes, and theirs count."""

    def _ask_for_votes(self, request: VoteRequest) -> None:
        for member in self.config.members:
            if member != self.node_id:
                self._send(member, request)

    def _counts(self, member: str) -> bool:
        return member in self.config.members


class ChangesBeforeNoop(RaftCore):
    """Changes the group before an entry of the own term is committed."""

    def _may_change(self) -> bool:
        return self.configs.latest_index <= self.commit


class ChangesPileUp(RaftCore):
    """Changes the group while the change before is not committed."""

    def _may_change(self) -> bool:
        return self.commit >= self.term_start


class NeverRollsBack(RaftCore):
    """A configuration stays when its entry is replaced."""

    def _replace_from(self, first: int, entries: Sequence[Entry]) -> None:
        config = self.config
        super()._replace_from(first, entries)
        if self.config != config:
            self.configs.reset(self.log.base_index, config)


class SnapshotOfFirstGroup(RaftCore):
    """Snapshots carry the oldest configuration that is known, not the one at their index."""

    def describe_snapshot(self, index: int) -> SnapshotMeta:
        meta = super().describe_snapshot(index)
        return SnapshotMeta(meta.index, meta.term, self.configs.at(self.log.base_index), meta.size_bytes, meta.crc)


class RemovedDisturbs(RaftCore):
    """Who was removed stands for election, without asking first, and the others heed it."""

    def _may_stand(self) -> bool:
        return True

    def _hears_leader(self, now: float) -> bool:
        return False

    def _campaign(self, now: float) -> None:
        self._stand(now)


class RemovedLeaderStays(RaftCore):
    """A leader that was removed goes on leading."""

    def _has_left(self) -> bool:
        return False


class RemovedCountsItself(RaftCore):
    """Votes for itself in a group that it does not belong to."""

    def _own_vote(self) -> dict[str, bool]:
        return {self.node_id: True}


class RemovedMayNotStand(RaftCore):
    """Does not stand though its removal may not be committed, and nobody else can be elected."""

    def _may_stand(self) -> bool:
        return self.node_id in self.config.voters


class NeverGivesUpTransfer(RaftCore):
    """A leader that hands over waits for its heir for ever."""

    def _end_transfer(self) -> None:
        self._transfer_until = float("inf")


class HandsOverNothing(RaftCore):
    """Never tells the heir to stand."""

    def _urge(self) -> None:
        pass


MUTANTS: list[type[RaftCore]] = [
    QuorumOfOldConfig,
    CountsLearners,
    LearnersVote,
    ChangesBeforeNoop,
    ChangesPileUp,
    NeverRollsBack,
    SnapshotOfFirstGroup,
    RemovedDisturbs,
    RemovedLeaderStays,
    RemovedCountsItself,
    RemovedMayNotStand,
    NeverGivesUpTransfer,
    HandsOverNothing,
]
