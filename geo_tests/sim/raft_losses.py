"""Raft members that lose table and log, and begin anew beside the others; and rules that may not be broken then.

Is: RaftWorld, in which now and then a member that starts has lost everything but its term, its vote, and how far its
log went; one at a time, in groups that can do without it. Isn't: how a member finds that out, or what lies on its disk
(tests/local_meta/test_node_damaged_table.py).
"""

from __future__ import annotations

from geo_tests.sim.raft_member import FAULTS_S
from geo_tests.sim.raft_world import RaftWorld
from heliograph.raft.core import RaftCore
from heliograph.raft.leader import Leading
from heliograph.raft.messages import VoteRequest
from heliograph.raft.progress import Progress


class LosingWorld(RaftWorld):
    losses = 0
    made_good = 0

    def _start(self, name: str) -> None:
        member = self.members[name]
        nobody = all(other.durable.owed is None for other in self.members.values())
        if (
            member.core is None
            and nobody
            and len(self.config.voters) > 2
            and self.time < FAULTS_S
            and self.rng.random() < 0.3
        ):
            member.durable.lose()
            self.losses += 1
        super()._start(name)

    def run(self) -> None:
        super().run()
        self.made_good = self.losses - sum(member.durable.owed is not None for member in self.members.values())


class VotesByWhatIsLeft(RaftCore):
    """Compares a candidate's log with the empty one that it has now."""

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return (request.last_term, request.last_index) >= (self.log.last_term, self.log.last_index)


class StandsWithNothing(RaftCore):
    """Stands for election, and votes, although it has not made good what it lost."""

    def _begin(self, now: float) -> None:
        self.owed = None
        super()._begin(now)


class CountsOnWhatWasLost(RaftCore):
    """A leader that believes for ever what a member has once said it holds."""

    def _on_refused(self, member: str, progress: Progress, index: int, hint_index: int, hint_term: int) -> None:
        if index > progress.match or not progress.match:
            Leading._on_refused(self, member, progress, index, hint_index, hint_term)
