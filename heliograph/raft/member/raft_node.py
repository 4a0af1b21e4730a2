"""RaftNode: one member of a Raft group, around a state machine.

Is: the shell of `core`: gathers the proposals and reads of one loop pass, carries the core's actions out in order
(store, send, apply), keeps the waiters, the timer, and snapshots. Isn't: any rule of Raft, or what is asked about the
group itself (`membership_calls`).
Invariants: batches of actions are released one after the other, each after everything before it is durable. A failed
write or sync stops the member for good; a full disk refuses proposals and goes on reading. A member that starts applies
what it durably knows to be committed, whether or not it can reach another one.
Source: docs/architecture.md, "Metadata".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NotLeader,
    OutcomeUnknown,
    PeerError,
)
from heliograph.raft.actions import FOREVER
from heliograph.raft.core import Actions, RaftCore, RaftRole
from heliograph.raft.disk import generation_file, other_voters
from heliograph.raft.disk.log_storage import LogStorage
from heliograph.raft.disk.other_voters import others_in
from heliograph.raft.generations import Standing
from heliograph.raft.member.membership_calls import GroupCalls
from heliograph.raft.member.snapshotter import Snapshotter
from heliograph.raft.member.startup import recovered
from heliograph.raft.member.waiters import Waiters
from heliograph.raft.messages import (
    COMMAND,
    Append,
    Config,
    Entry,
    SnapshotChunk,
    SnapshotMeta,
    decode,
    encode,
    generation_of,
)
from heliograph.raft.ports import MemberState, RaftSettings, RaftTransport, StateMachine
from heliograph.raft.starts import StartsRecord
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk

__all__ = ["MemberState", "NotLeader", "RaftNode", "RaftSettings", "RaftTransport", "StateMachine"]

WRITES_TIMED = 512
SET_ASIDE_S = 0.5
"""Between the word that what a member holds is to be set aside, and its end: the answer is on its way."""
events = logging.getLogger("heliograph.raft.member")


class RaftNode(GroupCalls):
    """peers: the first voters, with or without this one; they do not change when the group does, which its log says.

    joining: this node was none of the first voters: it waits until it is added. (Its `peers` then say nothing of the
    group.)
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
        """on_role_change(True) once this member leads and has applied everything of earlier terms; (False) as soon as
        that ends.
        """
        self.on_failed: Callable[[BaseException], None] = lambda error: None
        self.on_config: Callable[[Config], None] = lambda config: None
        """on_config(configuration) at the start, whenever another one stands in the log, committed or not, and when
        this member is superseded.
        """
        self.failed: BaseException | None = None
        self.applied_index = 0
        self.is_leader = False
        self.refused_messages = 0
        """Messages that could not be read: damaged, or of a newer version."""
        self.write_s: deque[float] = deque(maxlen=WRITES_TIMED)
        """How long the last writes that were proposed here took until they were applied here."""
        self._first = Config(()) if joining else Config(tuple(sorted({node_id, *peers}.difference(settings.later))))
        self._others = joining or len(self._first.voters) > 1  # as it is written down, or as the settings say
        self._owes = False
        self._told: tuple[Config, Standing] | None = None
        self._heard: dict[str, float] = {}
        self._begun = 0.0
        self._moved: asyncio.Future[bool] | None = None
        self._machine, self._transport, self._clock, self._rng = machine, transport, clock, rng
        self._storage = LogStorage(disk, segment_bytes=settings.segment_bytes)
        self._core: RaftCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._pumping = False
        self._batches: deque[tuple[Actions, bool]] = deque()  # (actions, they wait for the disk)
        self._flush_due = False
        self._waiting = Waiters()
        self._waiting_bytes = 0
        self._unapplied: deque[Actions] = deque()  # more than one only while the machine is being restored
        self._stopped = False
        self._snapshotter = Snapshotter(
            machine, self._storage, settings, clock, later=self._later, failed=self._fail, changed=self._pump
        )
        self._storage.on_failed = self._fail

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

    @property
    def full(self) -> bool:
        """Whether a disk of this member has no room: it refuses writes now, or will before long."""
        return bool(self._storage.full) or self._snapshotter.full

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers log and snapshot, then takes part. Raises OSError, CorruptData."""
        self._loop, self._begun = asyncio.get_running_loop(), self._clock.monotonic()
        found = await recovered(
            self.node_id,
            self._first,
            self._machine,
            self._snapshotter,
            self._storage,
            self.settings,
            self._clock,
            self._rng,
            others=self._others,
        )
        self._core, self.applied_index, self._owes, self._others = (
            found.core,
            found.base,
            found.core.owed is not None,
            found.others,
        )
        self._snapshotter.begin(self._core, found.base)
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
        if core.role is not RaftRole.LEADER:
            raise NotLeader(self.leader)
        if len(command) > self.settings.command_bytes_max:
            raise MetadataUnavailable(
                f"a metadata write of {len(command)} bytes is above the limit of {self.settings.command_bytes_max}"
            )
        if self._waiting.writes >= self.settings.waiting_max or self._waiting_bytes >= self.settings.waiting_bytes_max:
            raise MetadataUnavailable("too many metadata writes wait already")
        if self._storage.full and self._storage.room_bytes() < len(command) + self._waiting_bytes + 1024:
            raise MetadataUnavailable(self._storage.full)
        if self._snapshotter.crowded:
            raise MetadataUnavailable(
                "the disk of the metadata's table is full: free some space"
                if self._snapshotter.full
                else "too many metadata writes wait to be saved"
            )
        assert self._loop is not None
        future: asyncio.Future[bytes] = self._loop.create_future()
        began = self._clock.monotonic()
        self._waiting.proposals.append((command, future))
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
        """Returns once the machine here has applied everything that was committed anywhere before the call. Raises
        NotLeader, MetadataUnavailable.
        """
        core = self._check()
        if core.role is not RaftRole.LEADER:
            raise NotLeader(self.leader)
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.barriers.append(future)
        self._flush_soon()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise MetadataUnavailable(f"no majority confirmed the leader within {timeout_s:g} s") from None

    def table_damaged(self, damage: CorruptData) -> None:
        """A read met it. Where others can lead this member ends, so that they do; alone it goes on with what is
        whole.
        """
        if self._core is not None and len(self._core.config.voters) > 1:
            self._fail(damage)

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
        """Hands the proposals and reads of this loop pass to the core, as one batch each."""
        self._flush_due = False
        core = self._core
        if core is None or self._stopped:
            return
        proposals = [] if core.transferring else self._waiting.take_proposals()
        if proposals:
            first = core.propose([command for command, _ in proposals])
            if first is None:
                for _, future in proposals:
                    future.set_exception(NotLeader(self.leader))
            else:
                for index, (_, future) in enumerate(proposals, first):
                    self._waiting.expect(index, core.term, future)
        token = self._waiting.take_barriers()
        if token and not core.read(token):
            self._waiting.lose(token, self.leader)
        self._pump()

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_message(self, sender: str, raw: bytes) -> None:
        core = self._core
        if core is None or self._stopped:
            return
        try:
            message, generation = decode(raw), generation_of(raw)
        except PeerError:
            self.refused_messages += 1
            return
        if isinstance(message, Append) and (
            self._snapshotter.crowded or (self._storage.full and self._storage.room_bytes() < len(raw))
        ):
            return
        now = self._clock.monotonic()
        if sender in core.config.members:
            self._heard[sender] = now
        core.hear(sender, message, generation, now)
        self._pump()

    def _on_timer(self) -> None:
        self._timer = None
        if self._core is not None and not self._stopped:
            self._core.tick(self._clock.monotonic())
            self._pump()

    def _arm(self, core: RaftCore) -> None:
        """One timer, moved forward only: one that fires early finds nothing to do and is armed again."""
        at = core.next_deadline()
        if at == FOREVER:  # what is armed still finds nothing to do
            return
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
                    for piece in actions.pieces:
                        self._snapshotter.receive(*piece)
                    if actions.wants_snapshot:
                        self._snapshotter.make_for_others(self.applied_index)
                    self._batches.append((actions, actions.stores))
                    if actions.stores or actions.note_commit:
                        self._note_others(core)
                        if actions.standing is not None:
                            self._note_standing(actions.standing)
                        if actions.starts is not None:
                            self._note_starts(actions.starts, actions.life)
                        if actions.proven is not None:
                            self._storage.prove(actions.proven)
                        stored = partial(self._on_stored, actions)
                        self._storage.write(
                            actions.hard_state,
                            actions.snapshot,
                            actions.first_index,
                            actions.entries,
                            actions.commit,
                            stored,
                        )
                elif not self._release_next():
                    break
        finally:
            self._pumping = False
        if not self._stopped:
            if self._told is None or core.config is not self._told[0] or core.standing is not self._told[1]:
                self._told = core.config, core.standing
                self.on_config(core.config)
            self._note_others(core)
            self._show_role(core)
            self._arm(core)
            if not core.transferring:
                self._end_transfer(core.role is not RaftRole.LEADER)
            if self._storage.full and self._retry is None and self._loop is not None:
                self._retry = self._loop.call_later(self.settings.full_retry_s, self._retry_storage)

    def _note_standing(self, standing: Standing) -> None:

        def stored(written: bool | None) -> None:
            if not written:  # the disk is full
                self._later(self.settings.full_retry_s, again)
            elif standing.set_aside:
                ended = MetadataUnavailable("what it held is set aside: it begins anew with an empty folder")
                self._later(SET_ASIDE_S, lambda: self._fail(ended))

        def again() -> None:
            if self.standing is standing and not self._stopped:
                self._storage.note(job, stored)

        def job(disk: Disk) -> bool:
            return generation_file.write(disk, standing)

        if standing.superseded:
            events.warning("group.superseded", extra={"node": self.node_id, "set_aside": standing.set_aside})
        self._storage.note(job, stored)

    def _note_starts(self, starts: StartsRecord, life: int) -> None:

        def stored(written: bool) -> None:
            if self._core is not None and not self._stopped:
                self._core.on_starts_stored(starts, written)
                self._pump()

        if self._storage.note_starts(starts, life, stored):
            alone = self._core is not None and self._core.deciding == (self.node_id,)
            what = "restore a backup: no other voter can lead" if alone else "wait: a leader brings it up"
            events.warning("folder.older", extra={"node": self.node_id, "do": what})

    def _note_others(self, core: RaftCore) -> None:
        others = others_in(core.configs, self.node_id, core.commit)
        if others is not None and others != self._others:
            self._others = others
            self._storage.note(lambda disk: other_voters.note(disk, others))

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._loop is not None and not self._stopped:
            self._loop.call_later(delay_s, call)

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
        if self._owes and self._core.owed is None:
            self._owes = False
            self._storage.pay()
        self._pump()

    def _release_next(self) -> bool:
        """Sends, applies, and answers the oldest batch. False: there is none, or it waits for the disk."""
        if not self._batches or self._batches[0][1]:
            return False
        actions, _ = self._batches.popleft()
        for to, message in actions.sends:
            self._transport.send(to, encode(message, actions.generation))
        for to, meta, offset in actions.chunks:
            self._send_chunk(actions.term, actions.generation, to, meta, offset)
        self._unapplied.append(actions)
        if not self._snapshotter.restoring:
            self._apply_next()
        return True

    def _apply_next(self) -> None:
        """Applies and answers what was released, up to a snapshot that the machine has to become first."""
        while self._unapplied and not self._stopped:
            actions = self._unapplied[0]
            if actions.snapshot is not None:
                snapshot, actions.snapshot = actions.snapshot, None
                self._snapshotter.restore(snapshot, partial(self._restored, snapshot))
                return
            self._unapplied.popleft()
            if actions.committed:
                self._apply(actions.committed_first, actions.committed)
            for tokens, index in actions.reads:
                for token in tokens:
                    self._waiting.due(token, index)
            for token in actions.lost_reads:
                self._waiting.lose(token, self.leader)
            self._waiting.serve(self.applied_index)

    def _send_chunk(self, term: int, generation: int, to: str, meta: SnapshotMeta, offset: int) -> None:
        def read(data: bytes | None, error: BaseException | None) -> None:
            core = self._core
            if core is None or self._stopped:
                return
            if data is None:
                core.on_chunk_missing(to, meta)
                self._pump()
            else:
                self._transport.send(to, encode(SnapshotChunk(term, meta, offset, data), generation))

        self._storage.read_chunk(meta, offset, self.settings.core.chunk_bytes, read)

    def _apply(self, first: int, entries: list[Entry]) -> None:
        size_bytes = 0
        for index, (term, kind, data) in enumerate(entries, first):
            answer = b""
            if kind == COMMAND:
                try:
                    answer = self._machine.apply(index, data)
                except (
                    CorruptData
                ) as damage:  # of its table: what was not applied here is in the log, and others can go on
                    self._fail(damage)
                    return
                size_bytes += len(data)
            self.applied_index = index
            self._waiting.applied(index, term, answer, self.leader)
        self._snapshotter.applied(self.applied_index, size_bytes)

    def _restored(self, meta: SnapshotMeta, error: BaseException | None) -> None:
        """Called from within `_apply_next` or later, once the machine is that of the snapshot."""
        if self._stopped:
            return
        if error is not None:
            self._fail(error)
            return
        self.applied_index = meta.index
        self._waiting.passed(meta.index)
        self._apply_next()
        self._pump()

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
        self._stopped = True
        self._snapshotter.stop()
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._waiting.end(reason)
        self._batches.clear()
        self._unapplied.clear()
        self._end_transfer(False)
        if self.is_leader:
            self.is_leader = False
            self.on_role_change(False)
