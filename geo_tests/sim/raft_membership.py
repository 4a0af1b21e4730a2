"""MembershipWorld: the same world of Raft cores, while members come, learn, are promoted, go, and hand the leadership
over.

Is: RaftWorld with members that wait outside, and an operator who changes the group through whoever leads, or thinks so.
Isn't: other faults than RaftWorld's. Checked besides: voters change one by one, and only behind a committed entry of
the leader's own term and the change before; when all is healed, the leader belongs to its group, everybody in it
follows, and who was removed disturbs nobody; the leadership moves when it is asked to.
"""

from __future__ import annotations

from collections import Counter

from geo_tests.sim.raft_member import FAULTS_S, Member, Violation
from geo_tests.sim.raft_world import RaftWorld
from heliograph.model.errors import NotAllowed
from heliograph.raft.core import RaftCore, RaftRole
from heliograph.raft.membership import AddLearner, Change, Promote, Remove
from heliograph.raft.messages import CONFIG, Config

ASKED_S, MOVED_S = 3.6, 4.6  # behind the healing: the leadership is asked to move, and has moved


class MembershipWorld(RaftWorld):
    """One run. `changes`: how many of each kind were made; `refused`: how many were not."""

    def __init__(self, seed: int, *, core: type[RaftCore] = RaftCore) -> None:
        super().__init__(seed, core=core)
        self.alone = True  # a group of one may come and go: look at what a leader makes when it is durable
        self.changes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        if (
            self.rng.random() < 0.7
        ):  # a change takes several round trips: let most worlds be such that it comes to its end
            self.delay_s, self.sync_s, self.trouble_s = (0.001, 0.02), (0.0005, 0.01), 0.6
        self.hurry_s = self.rng.choice((0.05, 0.1, 0.3))
        self._settled: tuple[str, int] | None = None

    def _draw_group(self) -> tuple[Config, tuple[str, ...]]:
        count = self.rng.choice((1, 2, 2, 3, 3, 3, 4))
        total = max(4, count + self.rng.choice((1, 2)))
        return Config(tuple(f"n{i}" for i in range(count))), tuple(f"n{i}" for i in range(count, total))

    def run(self) -> None:
        self.after(self.rng.random(), self._operate)
        super().run()

    # -- the operator -------------------------------------------------------------------------------------------------

    def _operate(self) -> None:
        if self.time >= FAULTS_S:
            return
        self.after(self.rng.uniform(0, self.hurry_s * 2), self._operate)
        leading = [name for name in sorted(self.members) if self._leads(name) >= 0]
        if not leading:
            return
        member = self.members[self.rng.choice(leading)]  # maybe one that was deposed and does not know yet
        core = member.core
        assert core is not None
        config, rng = core.config, self.rng
        outside = [name for name in sorted(self.members) if name not in config.members]
        match rng.randrange(10):
            case 0 | 1 if outside:
                self._change(member, core, AddLearner(rng.choice(outside), "10.0.0.1:1" if rng.random() < 0.5 else ""))
            case 2 | 3 | 4 | 5 | 6 if config.learners:
                self._change(member, core, Promote(rng.choice(config.learners)))
            case 7 | 8 if len(config.voters) > 2 or rng.random() < 0.3:
                self._change(member, core, Remove(rng.choice(config.members)))
            case 9:
                self._transfer(member, core)

    def _change(self, member: Member, core: RaftCore, change: Change) -> None:
        kind = type(change).__name__
        before = core.config
        try:
            index = core.change(change, member.now(self.time))
        except NotAllowed:
            self.refused[kind] += 1
            return
        if index:
            self.changes[kind] += 1
            self._check_change(member, core, before, index)
        self._pump(member)

    def _transfer(self, member: Member, core: RaftCore) -> None:
        try:
            self.changes["transfer"] += bool(core.transfer(self.rng.choice(core.config.voters), member.now(self.time)))
        except NotAllowed:
            self.refused["transfer"] += 1
            return
        self._pump(member)

    # -- invariants ---------------------------------------------------------------------------------------------------

    def _check_change(self, member: Member, core: RaftCore, before: Config, index: int) -> None:
        if len(set(before.voters) ^ set(core.config.voters)) > 1:
            raise Violation(f"one by one: {member.name} goes from {before.voters} to {core.config.voters}")
        if not any(entry[0] == core.term for entry in self.committed.values()):
            raise Violation(
                f"own term first: {member.name} changes the group at {index} before an entry of term {core.term} is "
                "committed"
            )
        pending = [at for at in range(core.commit + 1, index) if core.log.slice(at, at + 1)[0][1] == CONFIG]
        if pending:
            raise Violation(f"one by one: {member.name} changes the group at {index} while {pending} is not committed")

    def _heal(self) -> None:
        super()._heal()
        for name in sorted(self.members):
            member = self.members[name]
            if member.core is not None:
                self._pump(member)  # its clock runs otherwise now: arm it anew, for maybe nobody speaks to it
        self.after(ASKED_S, self._ask_to_move)

    def _ask_to_move(self) -> None:
        """Everything works: then a transfer works, to whichever voter, in bounded time."""
        name = max(sorted(self.members), key=self._leads)
        member, core = self.members[name], self.members[name].core
        assert core is not None
        if core.role is not RaftRole.LEADER:
            raise Violation("liveness: nobody leads after healing")
        if name not in core.config.voters:
            raise Violation(f"membership: {name} leads, and is no voter of {core.config.voters}")
        self.asked = core.config.voters
        others = [voter for voter in core.config.voters if voter != name]
        to = self.rng.choice(others) if others else name
        try:
            core.transfer(to, member.now(self.time))
        except NotAllowed as error:
            raise Violation(f"liveness: the leadership cannot move after healing: {error}") from error
        self._pump(member)
        self.after(MOVED_S - ASKED_S, self._has_moved, to)

    def _has_moved(self, to: str) -> None:
        leader = max(sorted(self.members), key=self._leads)
        if leader != to:
            raise Violation(f"transfer: {leader} leads where {to} was to")
        self._settled = leader, self._leads(leader)

    def _check_convergence(self) -> None:
        leaders = [name for name in sorted(self.members) if self._leads(name) >= 0]
        if len(leaders) != 1 or (leaders[0], self._leads(leaders[0])) != self._settled:
            raise Violation(f"liveness: {leaders} lead at the end, and {self._settled} before: somebody disturbs")
        core = self.members[leaders[0]].core
        assert core is not None
        for name in core.config.members:
            member = self.members[name]
            if member.kv.index < core.commit - 8:
                raise Violation(f"liveness: {name} is at {member.kv.index}, the leader at {core.commit}")
            if member.core is None or member.core.config != core.config:
                raise Violation(f"membership: {name} knows another group than the leader")
