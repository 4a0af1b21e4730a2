"""GroupCalls: what is asked of one member about its group: who is in it, another member, another leader.

Is: the calls, and who waits for them. Isn't: a rule of membership (`membership`), or anything that the core says
(`raft_node` carries it out).
Invariants: a change is answered once it is committed; one that was refused was not made; whoever hands the leadership
over hears whether it was taken.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from heliograph.model.errors import MetadataUnavailable, NotLeader, OutcomeUnknown
from heliograph.raft.core import RaftCore, RaftRole
from heliograph.raft.disk.log_storage import LogStorage
from heliograph.raft.generations import Standing
from heliograph.raft.member.waiters import Waiters
from heliograph.raft.membership import Change
from heliograph.raft.ports import MemberState
from heliograph.runtime.clock import Clock, Rng

CHANGE_BYTES_MAX = 256 << 10
"""Bounds an encoded configuration: it holds MEMBERS_MAX names and addresses."""


class GroupCalls(ABC):
    """What `RaftNode` does of it."""

    node_id: str
    _begun: float
    _clock: Clock
    _core: RaftCore | None
    _heard: dict[str, float]
    """When each other member was heard last."""
    _loop: asyncio.AbstractEventLoop | None
    _moved: asyncio.Future[bool] | None
    """Whoever hands the leadership over waits for it."""
    _rng: Rng
    _storage: LogStorage
    _waiting: Waiters

    @property
    @abstractmethod
    def leader(self) -> str | None: ...

    @abstractmethod
    def _check(self) -> RaftCore:
        """Raises MetadataUnavailable where this member does not take part."""

    @abstractmethod
    def _pump(self) -> None:
        """Carries out what the core says."""

    @abstractmethod
    def _flush_soon(self) -> None:
        """What waits to be proposed is, at the end of this loop pass."""

    async def change(self, change: Change, *, timeout_s: float) -> bool:
        """Adds, promotes, or removes a member; returns once that is committed: False where it was so already.

        Raises NotAllowed (the reason), NotLeader, MetadataUnavailable: it was not made. OutcomeUnknown: it may be;
        repeating it does no harm.
        """
        core = self._check()
        if core.role is RaftRole.LEADER and self._storage.full and self._storage.room_bytes() < CHANGE_BYTES_MAX:
            raise MetadataUnavailable(f"on the leader, {self._storage.full}, or hand the leadership to another voter")
        index = core.change(change, self._clock.monotonic())
        if index is None:
            raise NotLeader(self.leader)
        if not index:
            return False
        await self._committed(index, core.term, timeout_s)
        return True

    async def _committed(self, index: int, term: int, timeout_s: float) -> None:
        assert self._loop is not None
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.expect(index, term, future)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise OutcomeUnknown(
                f"no majority answered within {timeout_s:g} s; the change of the group may still happen"
            ) from None

    @property
    def standing(self) -> Standing:
        """Whether the group was forced without this member."""
        return self._core.standing if self._core is not None else Standing()

    @property
    def generation(self) -> int:
        return self._core.generation if self._core is not None else 0

    @property
    def others_may_decide(self) -> bool:
        """Whether the others may be a majority without this member, as the core knows it."""
        return self._check().others_may_decide

    def left_behind(self) -> dict[str, str]:
        """Each member that the last force left behind -> its address, "" where settings say it; as far as the log here
        still knows it.
        """
        before = self._check().configs.left_behind()
        return {member: dict(before.addresses).get(member, "") for member in before.members if member != self.node_id}

    @property
    def left_index(self) -> int:
        """Index of the configuration that they were in, as far as the log here still knows it; 0: it does not."""
        return self._check().configs.left_index

    @property
    def holds_nothing(self) -> bool:
        core = self._check()
        return not core.log.last_index and core.snapshot is None

    @property
    def learns(self) -> bool:
        """Whether it has gone over to another generation, and does not hold yet what that has decided before."""
        return self._core is not None and bool(self._core.standing.adopted and self._core.life)

    @property
    def settled(self) -> bool:
        """Whether this member counts, and will, as far as any voter knows."""
        return self._check().settled

    @property
    def last_index(self) -> int:
        """The last one of the log here, committed or not."""
        return self._check().log.last_index

    def silent_s(self, member: str) -> float:
        """For how long nothing was heard of another member, since this one was started at most."""
        return self._clock.monotonic() - self._heard.get(member, self._begun)

    def examine_force(self) -> None:
        """Raises NotAllowed with the reason why this member may not go on without the others, MetadataUnavailable."""
        self._check().examine_force(self._clock.monotonic())

    async def force(self, *, timeout_s: float) -> None:
        """Goes on without all other members, in another generation; returns once it leads, and that is durable. Raises
        NotAllowed (the reason), MetadataUnavailable: it was not made. OutcomeUnknown: it may be.
        """
        core = self._check()
        if self._storage.full and self._storage.room_bytes() < CHANGE_BYTES_MAX:
            raise MetadataUnavailable(self._storage.full)
        core.force(self._rng.getrandbits(32), self._clock.monotonic())
        await self._committed(core.log.last_index, core.term, timeout_s)

    def set_aside(self, generation: int) -> None:
        """This member ends soon, and begins anew with an empty folder at its next start; what is in it stays beside.
        generation: which has left it behind. Raises NotAllowed where it has not, MetadataUnavailable.
        """
        self._check().set_aside(generation, self._clock.monotonic())
        self._pump()

    async def transfer_leadership(self, to: str) -> bool:
        """Hands the leadership over, within one election time-out or not at all; commands wait meanwhile. False: it
        leads already.

        Raises NotAllowed (the reason), NotLeader, MetadataUnavailable: it was not taken over, this member goes on
        leading.
        """
        core = self._check()
        begun = core.transfer(to, self._clock.monotonic())
        if begun is None:
            raise NotLeader(self.leader)
        if not begun:
            return False
        assert self._loop is not None
        if self._moved is None:
            self._moved = self._loop.create_future()
        moved = self._moved
        self._pump()
        if not await asyncio.shield(moved):
            raise MetadataUnavailable(
                f"{to!r} did not take the leadership over in time: {self.node_id!r} goes on leading"
            )
        return True

    def examine(self, change: Change) -> bool:
        """Whether a change would change anything now. Raises NotAllowed (why it would be refused), NotLeader,
        MetadataUnavailable.
        """
        core = self._check()
        config = core.examine(change, self._clock.monotonic())
        if config is None:
            raise NotLeader(self.leader)
        return config != core.config

    def examine_transfer(self, to: str) -> bool:
        """As `examine`, of the leadership."""
        may = self._check().examine_transfer(to, self._clock.monotonic())
        if may is None:
            raise NotLeader(self.leader)
        return may

    def members(self) -> list[MemberState]:
        """Returns a row for each member of the configuration in the log; how far each is, only the leader knows."""
        core = self._check()
        addresses, now = dict(core.config.addresses), self._clock.monotonic()
        rows = []
        for member in core.config.members:
            progress = core.progress.get(member)
            mine = member == self.node_id
            rows.append(
                MemberState(
                    member=member,
                    voter=member in core.config.voters,
                    address=addresses.get(member, ""),
                    leads=member == core.leader,
                    behind=0
                    if mine and core.role is RaftRole.LEADER
                    else core.log.last_index - progress.match
                    if progress is not None
                    else None,
                    silent_s=0.0 if mine else now - progress.heard if progress is not None else None,
                )
            )
        return rows

    def _end_transfer(self, moved: bool) -> None:
        if self._moved is not None:
            if not self._moved.done():
                self._moved.set_result(moved)
            self._moved = None
            if self._waiting.proposals:
                self._flush_soon()
