"""RaftNode: one member of a Raft group, around a state machine.

Is: the shell of `core`: gathers the proposals and reads of one loop turn, carries the core's actions out in order (store, send, apply), keeps the
waiters, the timer, and snapshots. Isn't: any rule of Raft.
Invariants: batches of actions are released one after the other, each after everything before it is durable. A failed write or sync stops the member for
good; a full disk refuses proposals and goes on reading. A member that starts applies what it durably knows to be committed, whether or not it can
reach another one.
Source: ARCHITECTURE "Folders" (heliograph/raft).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from heliograph.model.errors import HeliographError, MetadataUnavailable, NotLeader, OutcomeUnknown, PeerError
from heliograph.raft.core import Actions, RaftCore, Role
from heliograph.raft.log import Log
from heliograph.raft.membership import Change
from heliograph.raft.messages import COMMAND, Append, Config, Entry, SnapshotChunk, SnapshotMeta, decode, encode
from heliograph.raft.ports import MemberState, RaftSettings, RaftTransport, StateMachine
from heliograph.raft.snapshot_file import SnapshotWriter
from heliograph.raft.storage import LogStorage, Recovered
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk

__all__ = ["MemberState", "NotLeader", "RaftNode", "RaftSettings", "RaftTransport", "StateMachine"]

WRITES_TIMED = 512
CHANGE_BYTES_MAX = 256 << 10
"""Of a configuration: MEMBERS_MAX names and addresses."""

_Proposal = tuple[bytes, "asyncio.Future[bytes]"]


@dataclass(slots=True)
class _Making:
    """A snapshot of the machine while it is made. meta: without size and checksum."""

    meta: SnapshotMeta
    parts: Iterator[bytes]
    writer: SnapshotWriter


class RaftNode:
    """peers: the first voters, with or without this one; they do not change when the group does, which its log says.

    joining: this node was none of the first voters: it waits until it is added. (Its `peers` then say nothing of the group.)
    machine: empty; `start` restores and replays it. transport: see RaftTransport. Attributes are for reading.
    """

    def __init__(
        self,
        *,
        node_id: str,
        peers: Sequence[str],
        machine: StateMachine,
        disk: Disk,
        transport: RaftTransport,
        settings: RaftSettings,
        clock: Clock,
        rng: Rng,
        joining: bool = False,
    ) -> None:
        self.node_id, self.settings = node_id, settings
        self.on_role_change: Callable[[bool], None] = lambda leads: None
        """on_role_change(True) once this member leads and has applied everything of earlier terms; (False) as soon as that ends."""
        self.on_failed: Callable[[BaseException], None] = lambda error: None
        self.on_config: Callable[[Config], None] = lambda config: None
        """on_config(configuration) at the start, and whenever another one stands in the log, committed or not."""
        self.failed: BaseException | None = None
        self.applied_index = 0
        self.is_leader = False
        self.refused_messages = 0
        """Messages that could not be read: damaged, or of a newer version."""
        self.write_s: deque[float] = deque(maxlen=WRITES_TIMED)
        """How long the last writes that were proposed here took until they were applied here."""
        self._first = Config(()) if joining else Config(tuple(sorted({node_id, *peers})))
        self._told: Config | None = None
        self._moved: asyncio.Future[bool] | None = None  # whoever hands the leadership over waits for it
        self._machine, self._transport, self._clock, self._rng = machine, transport, clock, rng
        self._storage = LogStorage(disk, segment_bytes=settings.segment_bytes)
        self._core: RaftCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._pumping = False
        self._batches: deque[tuple[Actions, bool]] = deque()  # (actions, they wait for the disk)
        self._proposals: list[_Proposal] = []
        self._barriers: list[asyncio.Future[None]] = []
        self._flush_due = False
        self._waiting: dict[int, tuple[int, asyncio.Future[bytes]]] = {}  # index -> (term, who waits)
        self._waiting_bytes = 0
        self._tokens = 0
        self._reads: dict[int, list[asyncio.Future[None]]] = {}
        self._unserved: deque[tuple[int, list[asyncio.Future[None]]]] = deque()  # reads whose index is not applied yet
        self._making: _Making | None = None  # the snapshot on its way to the disk
        self._snapshot_after = 0.0
        self._log_bytes = 0  # of commands since the last snapshot
        self._stopped = False

    # -- what is asked ------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> str | None:
        return self._core.leader or None if self._core is not None and self.failed is None else None

    @property
    def term(self) -> int:
        return self._core.term if self._core is not None else 0

    @property
    def commit_index(self) -> int:
        return self._core.commit if self._core is not None else 0

    @property
    def config(self) -> Config:
        return self._core.config if self._core is not None else Config(())

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers log and snapshot, then takes part. Raises OSError, CorruptData."""
        loop = self._loop = asyncio.get_running_loop()
        recovering: asyncio.Future[Recovered] = loop.create_future()
        self._storage.recover_soon(partial(_settle, recovering))
        state = await recovering
        base, base_term, config = 0, 0, self._first
        if state.snapshot is not None:
            base, base_term, config = state.snapshot.index, state.snapshot.term, state.snapshot.config
            self._machine.restore(state.blob)
            self.applied_index = base
        self._core = RaftCore(
            self.node_id,
            config=config,
            term=state.term,
            vote=state.vote,
            log=Log(base, base_term, state.entries),
            snapshot=state.snapshot,
            settings=self.settings.core,
            rng=self._rng,
            now=self._clock.monotonic(),
            commit=state.commit,
        )
        self._transport.on_receive(self._on_message)
        self._pump()

    async def stop(self) -> None:
        """Ends taking part; what waits is answered with its failure. What was durable stays."""
        if self._stopped:
            return
        self._end(MetadataUnavailable("the metadata node is stopping"))
        if self._core is not None and self._loop is not None:
            closing: asyncio.Future[None] = self._loop.create_future()
            rest = self._core.take_actions()
            commit = 0 if rest.stores else rest.commit  # it may speak of what was never handed to the disk
            self._storage.close(commit, lambda error: None if closing.done() else closing.set_result(None))
            await closing

    # -- calls --------------------------------------------------------------------------------------------------------

    async def propose(self, command: bytes, *, timeout_s: float) -> bytes:
        """Returns the machine's answer once the command is committed and applied here.

        Raises NotLeader and MetadataUnavailable: it was not and never will be applied. OutcomeUnknown: it may be.
        """
        core = self._check()
        if core.role is not Role.LEADER:
            raise NotLeader(self.leader)
        if len(command) > self.settings.command_bytes_max:
            raise MetadataUnavailable(f"a metadata write of {len(command)} bytes is above the limit of {self.settings.command_bytes_max}")
        if len(self._waiting) + len(self._proposals) >= self.settings.waiting_max or self._waiting_bytes >= self.settings.waiting_bytes_max:
            raise MetadataUnavailable("too many metadata writes wait already")
        if self._storage.full and self._storage.room_bytes() < len(command) + self._waiting_bytes + 1024:
            raise MetadataUnavailable("the disk of the metadata log is full: free some space")
        assert self._loop is not None
        future: asyncio.Future[bytes] = self._loop.create_future()
        began = self._clock.monotonic()
        self._proposals.append((command, future))
        self._waiting_bytes += len(command)
        self._flush_soon()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await future
            self.write_s.append(self._clock.monotonic() - began)
            return answer
        except TimeoutError:
            raise OutcomeUnknown(f"no majority answered within {timeout_s:g} s; the write may still happen") from None
        finally:
            self._waiting_bytes -= len(command)

    async def read_barrier(self, *, timeout_s: float) -> None:
        """Returns once the machine here has applied everything that was committed anywhere before the call. Raises NotLeader, MetadataUnavailable."""
        core = self._check()
        if core.role is not Role.LEADER:
            raise NotLeader(self.leader)
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._barriers.append(future)
        self._flush_soon()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise MetadataUnavailable(f"no majority confirmed the leader within {timeout_s:g} s") from None

    async def change(self, change: Change, *, timeout_s: float) -> bool:
        """Adds, promotes, or removes a member; returns once that is committed: False where it was so already.

        Raises NotAllowed (the reason), NotLeader, MetadataUnavailable: it was not made. OutcomeUnknown: it may be; repeating it does no harm.
        """
        core = self._check()
        if core.role is Role.LEADER and self._storage.full and self._storage.room_bytes() < CHANGE_BYTES_MAX:
            raise MetadataUnavailable("the disk of the leader's metadata log is full: free some space, or hand the leadership to another voter")
        index = core.change(change, self._clock.monotonic())
        if index is None:
            raise NotLeader(self.leader)
        if not index:
            return False
        assert self._loop is not None
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[index] = (core.term, future)
        self._pump()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise OutcomeUnknown(f"no majority answered within {timeout_s:g} s; the change of the group may still happen") from None
        return True

    async def transfer_leadership(self, to: str) -> bool:
        """Hands the leadership over, within one election time-out or not at all; commands wait meanwhile. False: it leads already.

        Raises NotAllowed (the reason), NotLeader, MetadataUnavailable: it was not taken over, this member goes on leading.
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
            raise MetadataUnavailable(f"{to!r} did not take the leadership over in time: {self.node_id!r} goes on leading")
        return True

    def examine(self, change: Change) -> bool:
        """Whether a change would change anything now. Raises NotAllowed (why it would be refused), NotLeader, MetadataUnavailable."""
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
        """Of the configuration in the log; how far each is, only the leader knows."""
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
                    behind=0 if mine and core.role is Role.LEADER else core.log.last_index - progress.match if progress is not None else None,
                    silent_s=0.0 if mine else now - progress.heard if progress is not None else None,
                )
            )
        return rows

    def _check(self) -> RaftCore:
        if self.failed is not None:
            raise MetadataUnavailable(f"the metadata node has stopped: {self.failed}")
        if self._core is None or self._stopped:
            raise MetadataUnavailable("the metadata node is not running")
        return self._core

    def _flush_soon(self) -> None:
        if not self._flush_due and self._loop is not None:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Hands the proposals and reads of this loop turn to the core, as one batch each."""
        self._flush_due = False
        core = self._core
        if core is None or self._stopped:
            return
        proposals = [] if core.transferring else [each for each in self._proposals if not each[1].done()]
        if not core.transferring:
            self._proposals = []
        if proposals:
            first = core.propose([command for command, _ in proposals])
            if first is None:
                for _, future in proposals:
                    future.set_exception(NotLeader(self.leader))
            else:
                for index, (_, future) in enumerate(proposals, first):
                    self._waiting[index] = (core.term, future)
        barriers, self._barriers = self._barriers, []
        if barriers:
            self._tokens += 1
            self._reads[self._tokens] = barriers
            if not core.read(self._tokens):
                self._lose_reads(self._tokens)
        self._pump()

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_message(self, sender: str, raw: bytes) -> None:
        core = self._core
        if core is None or self._stopped:
            return
        try:
            message = decode(raw)
        except PeerError:
            self.refused_messages += 1
            return
        if self._storage.full and isinstance(message, Append) and self._storage.room_bytes() < len(raw):
            return
        core.receive(sender, message, self._clock.monotonic())
        self._pump()

    def _on_timer(self) -> None:
        self._timer = None
        if self._core is not None and not self._stopped:
            self._core.tick(self._clock.monotonic())
            self._pump()

    def _arm(self, core: RaftCore) -> None:
        """One timer, moved forward only: one that fires early finds nothing to do and is armed again."""
        at = core.next_deadline()
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer_at = at
        self._timer = self._loop.call_later(max(at - self._clock.monotonic(), 0.001), self._on_timer)

    # -- actions ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Carries out what the core says until it has nothing more to say."""
        core = self._core
        if self._pumping or core is None:
            return
        self._pumping = True
        try:
            while not self._stopped:
                actions = core.take_actions()
                if actions:
                    self._batches.append((actions, actions.stores))
                    if actions.stores or actions.note_commit:
                        stored = partial(self._on_stored, actions)
                        self._storage.write(actions.hard_state, actions.snapshot, actions.first_index, actions.entries, actions.commit, stored)
                elif not self._release_next():
                    break
        finally:
            self._pumping = False
        if not self._stopped:
            if core.config is not self._told:
                self._told = core.config
                self.on_config(core.config)
            self._show_role(core)
            self._arm(core)
            if not core.transferring:
                self._end_transfer(core.role is not Role.LEADER)
            if self._storage.full and self._retry is None and self._loop is not None:
                self._retry = self._loop.call_later(self.settings.full_retry_s, self._retry_storage)

    def _end_transfer(self, moved: bool) -> None:
        if self._moved is not None:
            if not self._moved.done():
                self._moved.set_result(moved)
            self._moved = None
            if self._proposals:
                self._flush_soon()

    def _retry_storage(self) -> None:
        self._retry = None
        if not self._stopped:
            self._storage.retry()
            self._pump()

    def _on_stored(self, actions: Actions, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        if self._stopped or self._core is None:
            return
        for at, (batch, _) in enumerate(self._batches):
            if batch is actions:
                self._batches[at] = (batch, False)
                break
        self._core.on_durable(actions.durable_mark)
        self._pump()

    def _release_next(self) -> bool:
        """Sends, applies, and answers the oldest batch. False: there is none, or it waits for the disk."""
        if not self._batches or self._batches[0][1]:
            return False
        actions, _ = self._batches.popleft()
        for to, message in actions.sends:
            self._transport.send(to, encode(message))
        for to, meta, offset in actions.chunks:
            self._send_chunk(actions.term, to, meta, offset)
        if actions.snapshot is not None:
            self._restore(*actions.snapshot)
        if actions.committed:
            self._apply(actions.committed_first, actions.committed)
        for tokens, index in actions.reads:
            for token in tokens:
                self._unserved.append((index, self._reads.pop(token)))
        for token in actions.lost_reads:
            self._lose_reads(token)
        self._serve_reads()
        return True

    def _send_chunk(self, term: int, to: str, meta: SnapshotMeta, offset: int) -> None:
        def read(data: bytes | None, error: BaseException | None) -> None:
            core = self._core
            if core is None or self._stopped:
                return
            if data is None:
                core.on_chunk_missing(to, meta)
                self._pump()
            else:
                self._transport.send(to, encode(SnapshotChunk(term, meta, offset, data)))

        self._storage.read_chunk(meta, offset, self.settings.core.chunk_bytes, read)

    def _apply(self, first: int, entries: list[Entry]) -> None:
        for index, (term, kind, data) in enumerate(entries, first):
            answer = b""
            if kind == COMMAND:
                answer = self._machine.apply(index, data)
                self._log_bytes += len(data)
            self.applied_index = index
            waiter = self._waiting.pop(index, None)
            if waiter is not None and not waiter[1].done():
                if waiter[0] == term:
                    waiter[1].set_result(answer)
                else:  # another entry took its place: it can never happen
                    waiter[1].set_exception(NotLeader(self.leader))
        self._snapshot_if_due()

    def _restore(self, meta: SnapshotMeta, blob: bytes) -> None:
        if self._making is not None:
            self._making.writer.abandon()
            self._making = None
        self._machine.restore(blob)
        self.applied_index = meta.index
        self._log_bytes = 0
        for index in [index for index in self._waiting if index <= meta.index]:
            _, future = self._waiting.pop(index)
            if not future.done():
                future.set_exception(OutcomeUnknown("the leader changed; the write may have happened"))

    def _serve_reads(self) -> None:
        while self._unserved and self._unserved[0][0] <= self.applied_index:
            for future in self._unserved.popleft()[1]:
                if not future.done():
                    future.set_result(None)

    def _lose_reads(self, token: int) -> None:
        for future in self._reads.pop(token, ()):
            if not future.done():
                future.set_exception(NotLeader(self.leader))

    def _snapshot_if_due(self) -> None:
        core, settings = self._core, self.settings
        if core is None or self._making is not None:
            return
        index, size = (core.snapshot.index, core.snapshot.size_bytes) if core.snapshot is not None else (0, 0)
        since = self.applied_index - index
        bytes_due = max(settings.snapshot_bytes, size // 2)  # a large table is written again less often
        crowded = since > 0 and self._storage.segment_count > max(settings.segments_max, 2 * bytes_due // settings.segment_bytes)
        if since < max(settings.snapshot_entries, size // 512) and self._log_bytes < bytes_due and not crowded:
            return
        if self._clock.monotonic() < self._snapshot_after:
            return
        self._log_bytes = 0
        self._making = _Making(core.describe_snapshot(self.applied_index, b""), self._machine.parts(), self._storage.begin_snapshot())
        self._make_snapshot(self._making, None)

    def _make_snapshot(self, making: _Making, error: BaseException | None) -> None:
        """The next piece; the loop turns between one and the next, and the log's writes go between them too."""
        core = self._core
        if making is not self._making or core is None or self._stopped:
            return
        if self._storage.failed is not None:
            self._fail(self._storage.failed)
        elif error is not None:  # a full disk: the log stays as long as it is
            self._end_snapshot(self.settings.full_retry_s)
        elif (piece := next(making.parts, None)) is not None:
            making.writer.add(making.meta, piece, partial(self._make_snapshot, making))
        else:
            meta = replace(making.meta, size_bytes=making.writer.size_bytes, crc=making.writer.crc)
            making.writer.finish(meta, partial(self._snapshot_made, making, meta))

    def _snapshot_made(self, making: _Making, meta: SnapshotMeta, error: BaseException | None) -> None:
        core = self._core
        if making is not self._making or core is None or self._stopped:
            return
        if self._storage.failed is not None:
            self._fail(self._storage.failed)
            return
        if error is None:
            core.on_snapshot_stored(meta, self.settings.keep_entries)
        self._end_snapshot(0.0 if error is None else self.settings.full_retry_s)

    def _end_snapshot(self, pause_s: float) -> None:
        self._making = None
        self._snapshot_after = self._clock.monotonic() + pause_s

    def _show_role(self, core: RaftCore) -> None:
        leads = core.ready and self.applied_index >= core.term_start
        if leads != self.is_leader:
            self.is_leader = leads
            self.write_s.clear()
            self.on_role_change(leads)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            self._end(MetadataUnavailable(f"the metadata node has stopped: {error}"))
            self.on_failed(error)

    def _end(self, reason: HeliographError) -> None:
        """Answers everything that waits: what never reached the core did not happen; of the rest nobody here knows."""
        self._stopped = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        for _, future in self._proposals:
            if not future.done():
                future.set_exception(reason)
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(OutcomeUnknown("the metadata node stopped; the write may have happened"))
        readers = [*self._barriers, *(f for fs in self._reads.values() for f in fs), *(f for _, fs in self._unserved for f in fs)]
        for reader in readers:
            if not reader.done():
                reader.set_exception(reason)
        self._proposals, self._barriers = [], []
        self._waiting.clear()
        self._reads.clear()
        self._unserved.clear()
        self._batches.clear()
        self._end_transfer(False)
        if self.is_leader:
            self.is_leader = False
            self.on_role_change(False)


def _settle(future: asyncio.Future[Recovered], result: Recovered | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None or result is None:
        future.set_exception(error or OSError("recovery gave nothing"))
    else:
        future.set_result(result)
