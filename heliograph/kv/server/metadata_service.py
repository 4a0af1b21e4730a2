"""MetaService: one node's answers to reads, writes, and lease operations, whoever asks.

Is: linearizable reads behind a barrier, writes through the log, leases ended by the leader, and passing requests on to
the leader where a forwarder is given. Isn't: sockets (heliograph.kv.server.metadata_server), consensus
(heliograph.raft.member.raft_node).
Invariants: only the leader answers from its table; a request that was passed on is never passed on again; every answer
comes within the bounded time; a renewal is confirmed only after a barrier, so that a deposed leader confirms none; a
passed-on write is answered after this node applied it too, or its time is over; what a leader begins with is applied
before any client's command of its leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from heliograph.kv.engine.table_image import Image
from heliograph.kv.machine_commands import (
    CommandKind,
    CommandStatus,
    MalformedCommand,
    NotLeaderHere,
    answer_of,
    command,
    ok,
    refusal,
    unpack,
)
from heliograph.kv.metadata_store import PAGE_BYTES_MAX
from heliograph.kv.server.leases import LeaseDeadlines
from heliograph.kv.state_machine import Change, KvMachine
from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    NotAllowed,
    OutcomeUnknown,
    PeerError,
)
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from heliograph.wire.metadata_frames import Frame, fields

PACED = (Frame.GET, Frame.RANGE)
"""Have answers that may be large."""
_TICK_S = 0.25
_PAUSE_S = 0.05
Pace = Callable[[int, float], Awaitable[None]]
"""(the frame's kind, the seconds that are left): returns when its answer may be read, or asked of the leader. Raises
MetadataUnavailable.
"""


class MembersPort(Protocol):
    """Answers of a group's members (heliograph.kv.server.members_api)."""

    def here(self, payload: bytes) -> bytes | None: ...

    async def own(self, payload: bytes, *, timeout_s: float) -> bytes | None: ...

    async def answer(self, payload: bytes, *, timeout_s: float) -> bytes: ...


class RightsPort(Protocol):
    """Says who may write what (`global_config.region_write_rights`); where there is none, everybody may everything."""

    def check(self, writers: Sequence[str], kind: int, payload: bytes) -> None: ...


class Replica(Protocol):
    """What is needed of a Raft node (heliograph.raft.member.raft_node.RaftNode)."""

    @property
    def leader(self) -> str | None: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def term(self) -> int: ...

    async def propose(self, command: bytes, *, timeout_s: float) -> bytes: ...

    async def read_barrier(self, *, timeout_s: float) -> None: ...


class Forwarder(Protocol):
    """Carries a request to the leader's `MetaService.handle_forwarded`, and its answer back."""

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        """Raises MetadataUnavailable where it was surely not sent, OutcomeUnknown where it may have been."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    request_timeout_s: float = 5.0
    forward_timeout_s: float = 2.0
    """Bounds one try to reach the leader from another node: it may just have gone, and another be elected meanwhile."""
    unavailable_text: str = "the metadata has no leader: a majority of its voters must run and reach each other"
    begin: Callable[[KvMachine], Iterable[bytes]] | None = None
    """What each leader applies, by the table as it finds it, before the first command of a client: one after the other,
    each made when the one before is applied; an empty one lets others go on. Where that ends early it begins again.
    """
    begins_for_reads: bool = False
    """Whether `begin` comes before the first read and renewal, too; where it says something, a full disk keeps them
    out.
    """
    stamp: Callable[[KvMachine], bytes] | None = None
    """What each leader applies before any other command, also its own (`heliograph.kv.history`); empty: nothing."""
    rights: Callable[[KvMachine], RightsPort] | None = None
    """Who may write what, over the node's table; None: everybody may everything."""
    here: tuple[str, ...] = ()
    """As whom this node's own clients write, for `rights`."""

    def __post_init__(self) -> None:
        assert 0 < self.forward_timeout_s <= self.request_timeout_s <= 60


class MetaService:
    """Answers of one node. Set `replica.on_role_change = service.on_role_change` before the node starts."""

    def __init__(
        self,
        replica: Replica,
        machine: KvMachine,
        *,
        clock: Clock,
        settings: ServiceSettings | None = None,
        forwarder: Forwarder | None = None,
        hint: Callable[[str], str] = lambda node: "",
    ) -> None:
        """hint: node id -> the address at which clients reach it, or empty."""
        self.replica, self.machine = replica, machine
        self.on_damage: Callable[[CorruptData], None] = lambda damage: None
        """Called when a read meets damage in the table here."""
        self._clock, self._settings, self._forwarder, self._hint = clock, settings or ServiceSettings(), forwarder, hint
        self._leadership = self._begun = self._stamped = 0
        """Changes with each change of role; the ones in which what a leader begins with, and its stamp, were applied
        last.
        """
        self._beginning: asyncio.Task[HeliographError | None] | None = None
        self._deadlines = LeaseDeadlines()
        self._lease_changes = -1
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet("work of the metadata service failed")
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False
        self._backup: Image | None = None
        self.unavailable_text = self._settings.unavailable_text
        self.desk: MembersPort | None = None
        """Who answers MEMBERS; without one they are refused."""
        self._rights = None if self._settings.rights is None else self._settings.rights(machine)
        self._stop_observing = machine.observe(self._on_applied)

    async def stop(self) -> None:
        self._closed = True
        self._stop_observing()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def hears_leader(self) -> bool:
        return self.replica.leader is not None

    # -- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, kind: int, payload: bytes, pace: Pace | None = None) -> bytes:
        """The answer to one request frame: COMMAND, GET, RANGE, RENEW, or STATUS. Raises PeerError where the payload is
        malformed.

        pace: awaited behind a read's barrier: what is read then is returned without another pause; and before a read is
        passed on, again for each try.
        """
        if kind == Frame.STATUS:
            replica = self.replica
            return ok(replica.leader, replica.is_leader, replica.term, self.machine.index)
        if kind == Frame.MEMBERS and self.desk is not None and (answer := self.desk.here(payload)) is not None:
            return answer
        return await self._answered(self._anywhere(kind, payload, pace))

    async def handle_forwarded(self, request: bytes, writers: Sequence[str] = ()) -> bytes:
        """The answer to a request that another node passed on: u8 frame kind, payload. writers: as whom it writes, for
        `rights`; none: nobody proves anything, and nothing is asked.
        """
        if not request:
            raise PeerError("an empty request was passed on")
        return await self._answered(self._as_leader(request[0], request[1:], self._settings.request_timeout_s, writers))

    async def _answered(self, work: Awaitable[bytes]) -> bytes:
        """Its answer, or what it raised as one."""
        try:
            return await work
        except (NotAllowed, MalformedCommand) as error:
            return refusal(CommandStatus.REFUSED, str(error))
        except CorruptData as damage:
            self.on_damage(damage)
            return refusal(CommandStatus.UNAVAILABLE, str(damage))
        except MetadataError as error:
            return answer_of(error)

    async def _anywhere(self, kind: int, payload: bytes, pace: Pace | None) -> bytes:
        deadline = self._clock.monotonic() + self._settings.request_timeout_s
        if kind == Frame.MEMBERS and self.desk is not None:
            own = await self.desk.own(payload, timeout_s=self._settings.request_timeout_s)
            if own is not None:
                return own
        while True:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise MetadataUnavailable(self.unavailable_text)
            answer: bytes | None = None
            if self.replica.is_leader:
                try:
                    return await self._as_leader(kind, payload, left, self._settings.here, pace)
                except NotLeaderHere:
                    if self._forwarder is None:
                        raise
            elif self._forwarder is None:
                raise self._not_leader()
            elif (leader := self.replica.leader) is not None:
                if pace is not None and kind in PACED:
                    await pace(kind, left)
                    left = deadline - self._clock.monotonic()
                answer = await self._passed_on(self._forwarder, leader, kind, payload, left)
            if answer is not None:
                return answer
            await asyncio.sleep(_PAUSE_S)

    async def _passed_on(
        self, forwarder: Forwarder, leader: str, kind: int, payload: bytes, left_s: float
    ) -> bytes | None:
        """None: nothing was done, the caller may try again."""
        try:
            answer = await forwarder.forward(
                leader, bytes([kind]) + payload, timeout_s=min(left_s, self._settings.forward_timeout_s)
            )
        except OutcomeUnknown as error:
            if kind == Frame.COMMAND:
                raise OutcomeUnknown(f"{error}; the write may or may not have been made") from error
            return None
        except MetadataUnavailable:
            return None
        status, *found = unpack(answer)
        if status == CommandStatus.NOT_LEADER:
            return None
        if (
            kind == Frame.COMMAND
            and status == CommandStatus.OK
            and found
            and type(found[0]) is int
            and payload_kind(payload) in (CommandKind.TXN, CommandKind.GRANT)
        ):
            await self._applied(found[0], left_s)
        return answer

    async def _as_leader(
        self, kind: int, payload: bytes, left_s: float, writers: Sequence[str], pace: Pace | None = None
    ) -> bytes:
        if self._rights is not None and writers:
            self._rights.check(writers, kind, payload)
        if kind == Frame.COMMAND:
            unpack(payload)
            try:
                await self._begun_with(left_s, writes=True)
                return await self.replica.propose(payload, timeout_s=left_s)
            except MetadataUnavailable as error:
                raise self._not_leader_or(error) from error
        if kind == Frame.MEMBERS and self.desk is not None:
            try:
                return await self.desk.answer(payload, timeout_s=left_s)
            except MetadataUnavailable as error:
                raise self._not_leader_or(error) from error
        if kind not in (Frame.GET, Frame.RANGE, Frame.COUNT, Frame.RENEW):
            raise PeerError(f"metadata frame of kind {kind} is not known here")
        try:
            if self._settings.begins_for_reads:
                await self._begun_with(left_s, writes=False)
            await self.replica.read_barrier(timeout_s=left_s)
        except (MetadataUnavailable, OutcomeUnknown) as error:
            raise self._not_leader_or(error) from error
        if pace is not None and kind in PACED:
            await pace(kind, left_s)
        match kind:
            case Frame.GET:
                (key,) = fields(payload, str)
                found = self.machine.get(key)
                return ok() if found is None else ok(*found)
            case Frame.COUNT:
                (prefix,) = fields(payload, str)
                return ok(self.machine.count(prefix))
            case Frame.RANGE:
                start, end, limit = fields(payload, str, str, int)
                found_rows, more = self.machine.range(start, end, min(limit, self.machine.range_limit), PAGE_BYTES_MAX)
                return ok(found_rows, more)
            case _:
                (lease,) = fields(payload, int)
                if lease not in self.machine.held or not self._deadlines.renew(lease, self._clock.monotonic()):
                    if self.replica.is_leader and self._deadlines.leading:
                        raise LeaseLost(f"lease {lease} has expired or is unknown")
                    raise self._not_leader()
                return ok()

    async def _begun_with(self, left_s: float, *, writes: bool) -> None:
        """Returns once what this leadership begins with is applied. writes: its stamp, too, whatever it begins with.
        Raises MetadataUnavailable.
        """
        settings = self._settings
        while (settings.begin is not None and self._begun != self._leadership) or (
            writes and settings.stamp is not None and self._stamped != self._leadership
        ):
            await self._begin(left_s, writes=writes)

    async def _begin(self, left_s: float, *, writes: bool) -> None:
        """One at a time: none reads the table while a client's command behind another one's changes it. It may take
        longer than anybody waits. Raises MetadataUnavailable.
        """
        if self._beginning is None or self._beginning.done():
            self._beginning = self._tasks.spawn(self._begin_all(writes=writes))
        task = self._beginning
        await asyncio.wait([task], timeout=left_s)
        if not task.done() or task.cancelled():
            raise MetadataUnavailable(self.unavailable_text)
        if (error := task.result()) is not None:
            raise error

    async def _begin_all(self, *, writes: bool) -> HeliographError | None:
        """Why it ended early; None: what there was to do is applied."""
        leadership, timeout_s, stamp = self._leadership, self._settings.request_timeout_s, self._settings.stamp
        try:
            await self.replica.read_barrier(timeout_s=timeout_s)
            begin = self._settings.begin if self._begun != leadership else None
            commands = iter(() if begin is None else begin(self.machine))
            first = next(commands, None)
            if stamp is not None and self._stamped != leadership and (writes or first is not None):
                if stamped := stamp(self.machine):
                    await self.replica.propose(stamped, timeout_s=timeout_s)
                self._stamped = leadership
            for one in () if first is None else chain([first], commands):
                if one:
                    await self.replica.propose(one, timeout_s=timeout_s)
                else:
                    await asyncio.sleep(0)
            self._begun = leadership
        except OutcomeUnknown as error:  # of the beginning; nothing else was proposed
            return MetadataUnavailable(str(error))
        except (MetadataError, CorruptData) as error:
            return error
        return None

    def _not_leader(self) -> NotLeaderHere:
        leader = self.replica.leader
        return NotLeaderHere("" if leader is None else self._hint(leader), self.unavailable_text)

    def _not_leader_or(self, error: MetadataError) -> MetadataError:
        if self.replica.is_leader:
            return error if isinstance(error, MetadataUnavailable) else MetadataUnavailable(str(error))
        return self._not_leader()

    async def backup(self, at_least: int) -> Image:
        """One consistent image of this node's table, of an index from `at_least` on; one at a time. Raises
        MetadataUnavailable. `end_backup` it.
        """
        if self._backup is not None:
            raise MetadataUnavailable("another backup of this metadata node is under way; wait for its end")
        await self._applied(at_least, self._settings.request_timeout_s)
        if self.machine.index < at_least:
            raise MetadataUnavailable(
                f"this metadata node is behind: it is at index {self.machine.index}, and {at_least} was asked for"
            )
        if self._backup is not None:
            raise MetadataUnavailable("another backup of this metadata node is under way; wait for its end")
        self._backup = self.machine.image()
        return self._backup

    def end_backup(self, image: Image) -> None:
        self.machine.release(image)
        self._backup = None

    async def _applied(self, index: int, timeout_s: float) -> None:
        """Until this node applied `index`, or the time is over."""
        if self.machine.index >= index:
            return
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((index, applied))
        try:
            async with asyncio.timeout(timeout_s):
                await applied
        except TimeoutError:
            pass
        finally:
            self._waiting = [waiting for waiting in self._waiting if waiting[1] is not applied]

    # -- leases -------------------------------------------------------------------------------------------------------

    def on_role_change(self, leading: bool) -> None:
        self._leadership += 1
        if leading:
            self._deadlines.lead(self.machine.leases(), self._clock.monotonic())
            self._lease_changes = self.machine.lease_changes
            self._arm()
        else:
            self._deadlines.step_down()

    def _on_applied(self, index: int, _changes: list[Change] | None) -> None:
        if self._deadlines.leading and self._lease_changes != self.machine.lease_changes:
            self._lease_changes = self.machine.lease_changes
            self._deadlines.follow_table(self.machine.leases(), self._clock.monotonic())
            self._arm()
        for waited, future in self._waiting:
            if waited <= index and not future.done():
                future.set_result(None)

    def _arm(self) -> None:
        deadline = self._deadlines.next_deadline()
        if self._timer is not None or deadline is None or self._closed:
            return
        delay = min(_TICK_S, max(0.0, deadline - self._clock.monotonic()) + 0.001)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for lease in self._deadlines.due(self._clock.monotonic()):
            self.spawn(self._end(lease))
        self._arm()

    async def _end(self, lease: int) -> None:
        """Proposes the end of a lease until the machine knows of it; its outcome may be unknown for a while, and
        repeating it does no harm.
        """
        while self._deadlines.is_ending(lease) and not self._closed:
            try:
                timeout_s = self._settings.request_timeout_s
                await self._begun_with(timeout_s, writes=True)
                await self.replica.propose(command(CommandKind.REVOKE, [lease]), timeout_s=timeout_s)
            except (MetadataError, CorruptData):
                await asyncio.sleep(_PAUSE_S * 4)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` in a task of its own, which ends with this service at the latest."""
        self._tasks.spawn(work)


def payload_kind(payload: bytes) -> int:
    """The kind of a command; -1 where the bytes are none."""
    try:
        kind: int = unpack(payload)[0]
    except MalformedCommand:
        return -1
    return kind
