"""Raft members that lose table and log, or all of their folders, and begin anew beside the others; and rules that may
not be broken then.

Is: RaftWorld, in which now and then a member that starts has lost everything but its term, its vote, and how far its
log went, or those too, or has what it had some time ago; one at a time, in groups that can do without it. Isn't: how a
member finds that out, or what lies on its disk (tests/local_meta/test_node_damaged_table.py).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from geo_tests.sim.raft_member import FAULTS_S, DurableState, Violation
from geo_tests.sim.raft_world import RaftWorld
from heliograph.raft.core import RaftCore
from heliograph.raft.leader import Leading
from heliograph.raft.messages import Founding, Proof, VoteRequest
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


class WipingWorld(RaftWorld):
    """From the first moment on, so also while the group is being founded."""

    wiped = 0
    """Folders that were emptied; `early`: before anything was committed."""
    early = 0

    def __init__(self, seed: int, *, core: type[RaftCore] = RaftCore) -> None:
        super().__init__(seed, core=core)
        if self.rng.random() < 0.8:  # it takes several round trips until a member counts again
            self.delay_s, self.sync_s, self.trouble_s = (0.001, 0.03), (0.0005, 0.01), self.rng.choice((0.2, 0.4))
            self.loss, self.cruelty = self.rng.choice((0.0, 0.05)), self.rng.choice((0.0, 0.0, 0.01))

    def _start(self, name: str) -> None:
        member = self.members[name]
        whole = all(
            other.durable.proven is not None or other.durable.forgotten is None for other in self.members.values()
        )
        if (
            member.core is None
            and member.lives
            and whole
            and name in self.config.voters
            and len(self.config.voters) > 2
            and self.time < FAULTS_S
            and self.rng.random() < 0.6
        ):
            member.durable = member.durable.empty()
            self.wiped += 1
            self.early += not self.committed
        super()._start(name)

    def run(self) -> None:
        super().run()
        if any(member.durable.proven is None for member in self.members.values()):
            raise Violation("liveness: a member with an empty folder never counts again")


class OlderWorld(WipingWorld):
    """Older copies are put back, of which every other voter knows that they are older; whether or not anybody leads."""

    put_back = 0

    def __init__(self, seed: int, *, core: type[RaftCore] = RaftCore) -> None:
        super().__init__(seed, core=core)
        self._copies: dict[str, DurableState] = {}
        self._older: dict[str, int] = {}
        """Who was put back, in which life it came, until it counts in another one."""

    def _start(self, name: str) -> None:
        member = self.members[name]
        if member.core is None and self.time < FAULTS_S and name in self.config.voters and len(self.config.voters) > 2:
            copy = self._copies.get(name)
            if copy is not None and self._is_known(name) and self.rng.random() < 0.8:
                copy.forgotten = member.durable
                member.durable, self._older[name] = copy, copy.life
                self.put_back += 1
                del self._copies[name]
            elif copy is None and member.durable.proven is not None and name not in self._older:
                self._copies[name] = deepcopy(replace(member.durable, forgotten=None))
                self._copies[name].forgotten = member.durable.forgotten
        RaftWorld._start(self, name)

    def _is_known(self, name: str) -> bool:
        """Whether the others know its last start, which is not that of the copy, and are what they were."""
        for other, life in list(self._older.items()):
            disk = self.members[other].durable
            if disk.life == life or disk.proven is None:
                return False
            del self._older[other]
        last = self.members[name].durable.starts
        knowing = [self.members[voter].durable.starts.others for voter in self.config.voters if voter != name]
        return last.own != self._copies[name].starts.own and all((name, last.own) in others for others in knowing)


class TrustsItsDisk(RaftCore):
    """Believes that nobody can know more of its own starts than it does itself."""

    def _put_back(self, start: int, now: float) -> None:
        self.starts.own = start


class VotesBeforeItIsSure(RaftCore):
    """Votes, and is elected, before it has heard whether its disk is an older copy."""

    def _is_sure(self, voter: str, numbered: bool) -> bool:
        return True

    def _has_asked(self, now: float) -> bool:
        return True


class VotesWithAnEmptyFolder(RaftCore):
    """Takes an empty folder for that of the first hour."""

    def _begin(self, now: float) -> None:
        if self.unproven:
            self._found()
        super()._begin(now)


class CountsWhatIsUnproven(RaftCore):
    """A leader that counts the copies of a member that has begun with an empty folder."""

    def _on_matched(self, member: str, progress: Progress, index: int, *, counts: bool) -> None:
        super()._on_matched(member, progress, index, counts=True)


class ProvesTooEarly(RaftCore):
    """A leader that lets a member count at once, with what it holds itself."""

    def _note_life(self, member: str, progress: Progress, life: int) -> None:
        if life:
            self._send(member, Proof(self.term, life, self.log.last_index))


class FoundsAlone(RaftCore):
    """Founds the group as soon as anybody has answered."""

    def _on_founding(self, sender: str, message: Founding, now: float) -> None:
        super()._on_founding(sender, message, now)
        if self.unproven and self._is_fresh():
            self.founders.lives = message.lives
            self._found()


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
