"""ReplicatedLog: one topic of one region, as producers and links write to it.

Is: a managed ledger with its state (vector, producers, incarnation), and the order in which writers hear of their runs.
Isn't: consumers, frames, or storage. It decides nothing itself: `replicator.dedup.producer_dedup` and
`replicator.dedup.version_vector` do.
Invariants: `done` and `failed` are called in the order of the calls, also across duplicates, which wait for the runs
before them and are answered with success only if what they repeat is durable by then; after a failed append everything
behind it fails, and *submitted* falls back to *durable*.
On the hot path a run costs one object and two calls; no Future, nothing per entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.policy_table import Applied
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.errors import HeliographError, NotAllowed, TopicClosed
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run
from replicator.dedup.aliases import ComingSequences, pieces, repeats, under_way
from replicator.dedup.producer_dedup import Coming, DedupSettings
from replicator.dedup.version_vector import RunVerdict
from replicator.health.incoming_stats import IncomingLink
from replicator.log.region_durability import Held, RegionWaits
from replicator.log.topic_state import TopicState, TransactionHost
from replicator.log.transaction_buffer import TransactionBuffer
from replicator.log.write_order import Done, Failed, RunPieces, Segments, WaitingRun
from replicator.subscriptions.ack_claims import ClaimSettings
from replicator.subscriptions.subscription_sync import SubscriptionHost, SubscriptionSync, any_replicated

if TYPE_CHECKING:
    from replicator.health.tracing import Tracing
    from storage.managed_ledger.log.managed_ledger import ManagedLedger
    from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory

Stop = Callable[[], None]
Watcher = TypeVar("Watcher", bound=Callable[..., None])


class LeadershipGate(Protocol):
    """Stands before the producers of a topic where one region at a time publishes."""

    @property
    def leadership(self) -> int:
        """As `heliograph.wire.run.Run.leadership`, of what is published now."""
        ...

    @property
    def epoch(self) -> int:
        """Rises within a leadership whenever another region becomes the one that publishes."""
        ...

    def taken_before(self) -> Callable[[], None]:
        """Something is on its way that was taken while no gate stood here. What is returned is called once it is
        answered.
        """
        ...


class SyncOwner(Protocol):
    """Who has the subscriptions of this broker, and numbers regions."""

    subscriptions: SubscriptionHost | None
    claims: ClaimSettings

    def region_number(self, region: str = "") -> int: ...

    def keep_in_step(self, log: ReplicatedLog) -> None:
        """It has a subscription that is replicated: `synced` is asked for rounds from now on."""
        ...

    def gone(self, log: ReplicatedLog, origin: Origin, at: Position) -> bool:
        """Whether a coordinate beyond what is here will never come."""
        ...

    def hears(self, log: ReplicatedLog, region: str) -> bool:
        """A link to or from that region is open: it tells itself what it holds."""
        ...

    def known_changed(self, topic: str) -> None:
        """What some region holds of the topic is another vector than before."""
        ...


_NOTHING: deque[WaitingRun] = deque(maxlen=0)
"""The order of every log to which nothing was published yet: an empty deque takes 760 bytes, and a region may have very
many idle topics.
"""
_NO_LINKS: Mapping[str, IncomingLink] = {}
_DEDUPLICATION = DedupSettings()


class ReplicatedLog:
    """One loaded topic, until it is closed. Called on the event loop only."""

    __slots__ = (
        "_arriving",
        "_close_watchers",
        "_coming",
        "_last_failure",
        "_order",
        "_rollback_watchers",
        "_sync",
        "_themselves",
        "_vector_watchers",
        "closed",
        "gate",
        "incoming",
        "known",
        "ledger",
        "planting",
        "replicate_all",
        "sends",
        "source_ends",
        "state",
        "sync_by",
        "topic",
        "tracing",
        "waits",
    )

    def __init__(self, ledger: ManagedLedger, state: TopicState) -> None:
        self.ledger, self.state = ledger, state
        state.positions.first = ledger.first_position
        state.find_affected()
        self._sync: SubscriptionSync | None = None
        self.sync_by: SyncOwner | None = None
        """Set where there are links."""
        self.topic = ledger.topic
        self.sends = False
        """It goes to other regions."""
        self.known: dict[str, tuple[Vector, int]] = NOTHING
        """Region -> (its durable vector as last heard, wall ms when it was first heard so)."""
        self._themselves: dict[str, None] = NOTHING
        """Those that told it themselves."""
        self.source_ends: dict[str, tuple[Origin, Position, int]] = NOTHING
        """Region -> (its last confirmed coordinate as last heard, wall ms when): what this region knows to be missing
        here.
        """
        self.incoming: Mapping[str, IncomingLink] = _NO_LINKS
        """Region -> the link that comes from there, also after it has ended."""
        self._arriving = 0
        """Runs of other regions that were published under a leadership, and are on their way."""
        self._coming: ComingSequences | None = None
        """Of what is on its way under a leadership; None: nothing of other regions is."""
        self.gate: LeadershipGate | None = None
        self.replicate_all = False
        """By policy: every subscription is replicated."""
        self.waits: RegionWaits | None = None
        """Set where receipts wait for other regions."""
        self.tracing: Tracing | None = None
        self.planting = False
        """A record of a tree is on its way to the bookies."""
        self.closed: HeliographError | None = None
        self._order: deque[WaitingRun] = _NOTHING
        self._last_failure: HeliographError | None = None
        self._vector_watchers: tuple[Callable[[Origin], None], ...] = ()
        self._close_watchers: tuple[Callable[[], None], ...] = ()
        self._rollback_watchers: tuple[Callable[[], None], ...] = ()

    @classmethod
    async def open(
        cls,
        factory: ManagedLedgerFactory,
        topic: str,
        *,
        region: RegionInfo,
        policies: Applied,
        clock: Clock,
        rng: Rng,
        create: bool,
        settings: DedupSettings | None = None,
    ) -> Self:
        """Recovers and replays the topic. Raises NotFound where it does not exist and `create` is not set, and what the
        managed ledger raises.
        """
        state = TopicState(
            region=region.number,
            epoch=region.epoch,
            rng=rng,
            deduplication=policies.deduplication,
            settings=settings or _DEDUPLICATION,
        )
        persistence = (policies.ensemble, policies.write_quorum, policies.ack_quorum)
        ledger = await factory.open(topic, state, persistence, create=create)
        state.begin_epoch(ledger.last_confirmed)
        return cls(ledger, state)

    @property
    def linked(self) -> bool:
        """Another region has it, too: it goes there, or has come from there."""
        return self.sends or bool(self.incoming)

    @property
    def subscriptions(self) -> SubscriptionSync:
        """Made when it is first asked for: most topics have no replicated subscription."""
        if self._sync is None:
            self._sync = SubscriptionSync(self)
            if self.sync_by is not None:
                self._sync.host, self._sync.region_number = self.sync_by.subscriptions, self.sync_by.region_number
        return self._sync

    @property
    def synced(self) -> SubscriptionSync | None:
        """None where nothing was kept in step since the topic was loaded. `syncing` looks at its cursors, too, which
        costs more.
        """
        return self._sync

    @property
    def syncing(self) -> SubscriptionSync | None:
        """None where there is nothing to keep in step."""
        if self._sync is None and any_replicated(self.ledger.cursors.values()):
            return self.subscriptions
        return self._sync

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def vector(self) -> Vector:
        """What this region holds durably, by origin."""
        return self.state.vector

    @property
    def origin(self) -> Origin:
        """The origin of what is first published here from now on."""
        return self.state.origin

    @property
    def transactional(self) -> ReplicatedLog:
        """The log itself: all of it is stored, so that it takes part in transactions."""
        return self

    @property
    def transactions(self) -> TransactionBuffer | None:
        """The transactions that it holds; None: it never held any."""
        return self.state.transactions

    def origin_at(self, position: Position) -> Origin:
        """The own origin that a local entry at `position` belongs to."""
        return self.state.origin_at(position)

    @property
    def transaction_comes(self) -> bool:
        """Whether something that belongs to a transaction is on its way, of which the transactions do not know yet."""
        return any(waiting.run.transaction is not None for waiting in self._order)

    def await_transaction(self, host: TransactionHost) -> None:
        """Tells `host` when the first transaction comes while it is loaded."""
        self.state.host = host

    @property
    def deduplication(self) -> bool:
        return self.state.deduplication

    @deduplication.setter
    def deduplication(self, on: bool) -> None:
        if not on:
            self.state.producers.rollback()
        self.state.deduplication = on

    def last_sequence(self, producer: str) -> int:
        """The highest sequence of `producer` that is stored here, and was first published here, or, where one region at
        a time publishes, wherever under the present leadership; -1: none, or deduplication is off.
        """
        return self.state.producers.last_sequence(producer, self._leadership()) if self.state.deduplication else -1

    def stand_behind(self, gate: LeadershipGate | None) -> None:
        """gate: where one region at a time publishes; what is tried again in another one is stored once then."""
        if gate is not None and gate is not self.gate:
            if any(waiting.run.origin is None for waiting in self._order):
                answered = partial(self._answered, gate.taken_before())
                self._order.append(WaitingRun(self, Run([], []), answered, answered, duplicate=True))
            elif self.waits is not None and self.waits.waiting:
                self._answered(gate.taken_before())
        self.gate = gate

    def _answered(self, then: Callable[[], None], _: object = None) -> None:
        """All before it are stored here, or failed; their receipts may wait for other regions."""
        if self.waits is None:
            then()
        else:
            self.waits.behind(then)

    def _leadership(self) -> int:
        return 0 if self.gate is None else self.gate.leadership

    def last_own(self) -> tuple[Origin, Position]:
        """The last confirmed coordinate of the own origin."""
        return self.state.origin, self.state.vector.prefix(self.state.origin)

    def awaits_past(self, position: Position) -> bool:
        """Whether what was published under the earlier epoch of the entry at `position`, or a later one, may still come
        back from another region: the end of its transaction may be among it.
        """
        if self.sync_by is None or not self.linked:
            return False
        for origin, end in self.state.past:
            ledger, entry = max(end, self.vector.prefix(origin))
            if position <= end and not self.sync_by.gone(self, origin, (ledger, entry + 1)):
                return True
        return False

    def comes_from(self, region: str, link: IncomingLink) -> None:
        """A link from `region` is open: it takes the place of the one before, and goes on with its counts, and with
        what its source told last.
        """
        if (before := self.incoming.get(region)) is not None:
            link.follows(before)
        self.incoming = {**self.incoming, region: link}

    def comes_no_more(self, region: str, link: IncomingLink) -> None:
        """The link has ended. Where one from before it is open still, as of a broker there that took the topic while
        its last one stood still, that one stands for the region again.
        """
        if self.incoming.get(region) is link and (other := link.open_before()) is not None:
            self.comes_from(region, other)

    def learn(self, region: str, vector: Vector, now_ms: int, by: str = "") -> None:
        """What `region` holds durably, as it tells itself, or as the region `by` does. An unchanged vector keeps its
        time: idle links have nothing to tell.

        What it told itself is never replaced by what another one knew of it, perhaps long ago, and taken further by it
        only where it cannot be heard. What is said of this region's own entries counts only from whom they go there by.
        """
        old = self.known.get(region)
        if by not in ("", region):
            if self.sync_by is not None and not self.sync_by.region_number(region):
                return
            vector = self._second_hand(region, vector, by, old[0] if old is not None else Vector())
        if by in ("", region):
            if region not in self._themselves:
                self._themselves = own(self._themselves)
                self._themselves[region] = None
        elif old is not None and region in self._themselves:
            if self.sync_by is not None and self.sync_by.hears(self, region):
                return
            vector, told = old[0].copy(), vector
            vector.merge(told)
        if old is None or old[0] != vector:
            self.known = own(self.known)
            self.known[region] = (vector, now_ms)
            if self.sync_by is not None:
                self.sync_by.known_changed(self.topic)
        if self.waits is not None:
            self.waits.heard(region, vector.prefix(self.state.origin))

    def _second_hand(self, region: str, told: Vector, by: str, old: Vector) -> Vector:
        """What counts of what `by` tells of `region`: receipts, and what this region keeps for it, go by what it holds
        of the entries published here, which nobody knows but those who hand them on.
        """
        vector, number = told, self.state.origin[0]
        for origin in {*told, *old}:
            if origin[0] == number and not (
                self.state.trees.hands_on(origin, by, region)
                and told.prefix(origin) <= self.state.vector.prefix(origin)
            ):
                vector = vector.copy() if vector is told else vector
                vector.overlay(origin, old)
        return vector

    # -- writers -------------------------------------------------------------------------------------------------------

    def publish(self, run: Run, done: Done, failed: Failed) -> None:
        """Publishes a run of local producers. `done(segments)` or `failed(error)` is called once, in the order of the
        calls.
        """
        if self.waits is not None:
            done, failed = self.waits.wrap(run, done, failed, lambda: self.last_own()[1], self._repeated)
        if self.tracing is not None:
            done = self._traced(self.tracing, run, done)
        if self.gate is not None:
            run.leadership = self.gate.leadership
        if self.state.deduplication and run.producers:
            if self.gate is not None and run.leadership:
                self.state.producers.lead(run.leadership, self.gate.epoch)
            coming = run.leadership and self._coming is not None and self._coming.may_hold(run)
            fresh = self.state.producers.submit(
                run, under_way(self._under_way(run.leadership, elsewhere=True)) if coming else None, self._on_its_way
            )
            if self._coming is not None:
                self._coming.note(run)
            if fresh is not None:
                self._publish_parts(run, fresh, done, failed)
                return
        waiting = WaitingRun(self, run, done, failed)
        self._queue().append(waiting)
        self._append(waiting)

    def _repeated(self, run: Run) -> Held | None:
        """Which regions have what `run`, a duplicate, repeats of another region, as they have told: those that have all
        that is here of the regions that the topic goes to, and of this one's what came back to it, as nothing says
        which one it was. None: it was this one.
        """
        if self.waits is None or not self.state.producers.repeats_others(run):
            return None
        of = None if self.sync_by is None else set(map(self.sync_by.region_number, self.waits.targets))
        here = {
            origin: at
            for origin in self.vector
            if (at := self.vector.prefix(origin)) > self.state.local_end(origin)
            and (of is None or origin[0] in of or origin[0] == self.origin[0])
        }

        def held(region: str) -> bool:
            told = self.known.get(region)
            return told is not None and all(told[0].prefix(origin) >= at for origin, at in here.items())

        return held

    def _traced(self, tracing: Tracing, run: Run, done: Done) -> Done:
        begin_ns, origin = tracing.now_ns(), self.state.origin

        def stored(segments: Segments) -> None:
            tracing.published(self.topic, origin, run, segments, begin_ns)
            done(segments)

        return stored

    def append_replicated(self, previous: Position, run: Run, done: Done, failed: Failed) -> RunVerdict:
        """Takes a run of another region where the rule allows it; `done` or `failed` follow only an ACCEPT.

        run: entries as they are to be stored here, with origin, spans, and origin checksums; what is held already is
        cut off.
        """
        assert run.origin is not None
        verdict = self.state.intake.judge(run.origin, previous, run.coordinate(run.count - 1))
        if verdict is RunVerdict.ACCEPT:
            before = self.state.intake.submitted(run.origin)
            run = self.state.intake.accept(run)
            if run.leadership and run.producers and self.state.deduplication and run.transaction is None:
                known = self.state.producers
                same = known if run.leadership == known.leadership else None
                above = self._coming is not None and not self._coming.may_hold(run)
                repeated = repeats(run, same, {} if above else self._on_its_way(run.leadership))
                if repeated is not None:
                    self._append_pieces(pieces(run, repeated, before), done, failed)
                    return verdict
            self._arrives(run)
            waiting = WaitingRun(self, run, done, failed)
            self._queue().append(waiting)
            self._append(waiting)
        return verdict

    def _arrives(self, run: Run) -> None:
        """A run of another region is about to be appended."""
        if run.leadership:
            if self._coming is None:
                self._coming = ComingSequences(waiting.run for waiting in self._order)
            self._coming.note(run)
            self._arriving += 1

    def _under_way(self, leadership: int, *, elsewhere: bool = False) -> Iterator[Run]:
        """Runs of producers, published under `leadership`, that are appended, and not durable. elsewhere: only what was
        first published there.
        """
        for waiting in self._order:
            if (
                waiting.run.leadership == leadership
                and not waiting.duplicate
                and waiting.skip is None
                and waiting.state != waiting.FAILED
                and not (elsewhere and waiting.run.origin is None)
            ):
                yield waiting.run

    def _on_its_way(self, leadership: int) -> Coming:
        return under_way(self._under_way(leadership))

    def _append_pieces(self, found: list[Run | SkipRecord], done: Done, failed: Failed) -> None:
        """A run of another region of which some entries are stored already."""
        parts = RunPieces(len(found), done, failed)
        waiting = [
            WaitingRun(self, piece.as_run(), parts.on_done, parts.on_failed, skip=piece)
            if isinstance(piece, SkipRecord)
            else WaitingRun(self, piece, parts.on_done, parts.on_failed)
            for piece in found
        ]
        for piece in waiting:
            if piece.skip is None:
                self._arrives(piece.run)
        self._queue().extend(waiting)
        for piece in waiting:
            if piece.state == piece.WAITS:
                self._append(piece)

    def append_skip(self, record: SkipRecord, done: Done, failed: Failed, *, issued: bool = False) -> RunVerdict:
        """Stores a SKIP as a hidden entry: of what other regions bring, by the same rule as a run; always of what was
        published to this log, and where it is issued here.
        """
        if not issued and record.through > self.state.local_end(record.origin):
            verdict = self.state.intake.judge(record.origin, record.after, record.through)
            if verdict is not RunVerdict.ACCEPT:
                return verdict
            record = self.state.intake.accept_skip(record)
        waiting = WaitingRun(self, record.as_run(), done, failed, skip=record)
        self._queue().append(waiting)
        self._append(waiting)
        return RunVerdict.ACCEPT

    def append_tree(self, run: Run, done: Done, failed: Failed) -> None:
        """Stores a record of the own origin's tree, in the order of what is published here."""
        waiting = WaitingRun(self, run, done, failed)
        self._queue().append(waiting)
        self._append(waiting)

    @property
    def publishes(self) -> bool:
        """Whether something was first published here under the present origin, or is on its way."""
        return self.last_own()[1] > BEFORE_ALL or any(waiting.run.origin is None for waiting in self._order)

    def append_late(self, run: Run, done: Done, failed: Failed) -> None:
        """Stores entries of another region that the vector covers and that are not here: the audit's repair. The vector
        stays as it is. What lies above it fails with NotAllowed: that is the link's to bring, in its order.
        """
        if run.origin is not None and run.coordinate(run.count - 1) > self.vector.prefix(run.origin):
            failed(NotAllowed("the entry is not lost: its link brings it; look at that link's state"))
            return
        self._arrives(run)
        waiting = WaitingRun(self, run, done, failed)
        self._queue().append(waiting)
        self._append(waiting)

    def _publish_parts(self, run: Run, fresh: list[bool], done: Done, failed: Failed) -> None:
        cuts = [0, *(i for i in range(1, run.count) if fresh[i] != fresh[i - 1]), run.count]
        parts = RunPieces(len(cuts) - 1, done, failed)
        pieces = [
            WaitingRun(self, run.cut(start, stop), parts.on_done, parts.on_failed, duplicate=not fresh[start])
            for start, stop in pairwise(cuts)
        ]
        self._queue().extend(pieces)
        for piece in pieces:
            if not piece.duplicate and piece.state == piece.WAITS:
                self._append(piece)
        self.settle()

    def _queue(self) -> deque[WaitingRun]:
        if self._order is _NOTHING:
            self._order = deque()
        return self._order

    def _append(self, waiting: WaitingRun) -> None:
        if self.closed is not None:
            self.fail(waiting, self.closed)
            return
        try:
            self.ledger.append_run(waiting.run, waiting.on_done, waiting.on_failed)
        except Exception as error:  # also MemoryError: a place that nobody fails would hold up all behind it
            if waiting.state == waiting.WAITS:
                told = error if isinstance(error, HeliographError) else TopicClosed(f"{self.topic}: {error!r}")
                self.fail(waiting, told)
            report_unexpected(error, "a run could not be appended")

    def settle(self) -> None:
        """Answers the head of the order as far as it is decided."""
        order = self._order
        while order:
            head = order[0]
            if head.state == head.WAITS:
                if not head.duplicate:
                    return
                if self.state.producers.answered(head.run):
                    head.state = head.DONE
                else:  # what it repeats has failed, or was forgotten meanwhile: the client tries again
                    head.state = head.FAILED
                    head.error = self._last_failure or TopicClosed(
                        "the entry that this one repeats was not stored; send it again"
                    )
            order.popleft()
            if self._arriving and head.run.origin is not None and head.skip is None:
                self._arriving -= head.run.leadership > 0
                if not self._arriving:
                    self._coming = None
            if head.state == head.FAILED:
                assert head.error is not None
                head.failed(head.error)
            elif head.duplicate:
                head.done([(head.run.count, -1, -1)])
            else:
                self._confirm(head)
                head.done([(head.run.count, head.ledger, head.first)])

    def _confirm(self, head: WaitingRun) -> None:
        run = head.run
        if run.origin is None:
            self.state.confirm_local(head.ledger, head.first, run)
            return
        if head.skip is not None:
            self.state.confirm_skip(head.skip)
        else:
            self.state.confirm_replicated(head.ledger, head.first, run)
        for watcher in self._vector_watchers:
            watcher(run.origin)

    def fail(self, failed: WaitingRun, error: HeliographError) -> None:
        """An append failed, and with it everything appended behind it."""
        self._last_failure = error
        behind = False
        for waiting in self._order:
            behind = behind or waiting is failed
            if behind and waiting.state == waiting.WAITS and not waiting.duplicate:
                waiting.state, waiting.error = waiting.FAILED, error
        self.state.rollback()
        for waiting in self._order:
            if waiting.state != waiting.FAILED and not waiting.duplicate:
                self.state.submit_again(waiting.run)
        for watcher in self._rollback_watchers:
            watcher()
        self.settle()

    # -- those who follow ----------------------------------------------------------------------------------------------

    def watch_vector(self, callback: Callable[[Origin], None]) -> Stop:
        """`callback(origin)` after the durable prefix of another region's origin moved."""
        self._vector_watchers = (*self._vector_watchers, callback)

        def stop() -> None:
            self._vector_watchers = _without(self._vector_watchers, callback)

        return stop

    def watch_rollback(self, callback: Callable[[], None]) -> Stop:
        """`callback()` after appends failed: what links sent since must come again."""
        self._rollback_watchers = (*self._rollback_watchers, callback)

        def stop() -> None:
            self._rollback_watchers = _without(self._rollback_watchers, callback)

        return stop

    def watch_close(self, callback: Callable[[], None]) -> Stop:
        """`callback()` once, when the topic is unloaded here."""
        self._close_watchers = (*self._close_watchers, callback)

        def stop() -> None:
            self._close_watchers = _without(self._close_watchers, callback)

        return stop

    async def close(self) -> None:
        """Unloads the topic: later writes fail with TopicClosed, links that come in are told, and the managed ledger is
        closed.
        """
        if self.closed is None:
            self.closed = TopicClosed(f"{self.topic} is being unloaded: look it up again")
            for watcher in self._close_watchers:
                watcher()
            if self.waits is not None:
                self.waits.close(self.closed)
            await self.ledger.close()


def _without(watchers: tuple[Watcher, ...], one: Watcher) -> tuple[Watcher, ...]:
    return tuple(watcher for watcher in watchers if watcher is not one)
