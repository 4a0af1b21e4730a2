"""PulsarLink: one topic to one real Pulsar cluster, as a plain producer: the shell around
`replicator.pulsar.pulsar_sender`.

Is: reading the topic, writing SENDs, schemas under the cluster's own versions, moving the cursor, and the life of a
link. Isn't: a link to a region (`replicator.links.link`), a decision what is sent (the core's), subscriptions
(`cluster_subscriptions`), or the making of connections (`cluster_connections`).
Invariants: the cursor `pulsar.repl.<cluster>` moves behind receipts only; no task and no timer of the loop while it
idles; an entry with a schema goes only once the cluster has that schema.
Source: docs/protocols/interop.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import HeliographError, LinkError, reason_of
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.links.audit_commands import Ask
from heliograph.wire.pulsar.geo_replication import Marker, producer_name, response, send_frame
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata, Schema
from heliograph.wire.run import Buffer, Run
from replicator.bandwidth.rate_limit import Pace
from replicator.coordinates.published_totals import Totals
from replicator.health.link_causes import Cause, cause_of, schema_cause_of
from replicator.health.link_stats import LinkCursor, LinkHistory, LinkStats
from replicator.health.watchdog import Facts, Watchdog
from replicator.links.parked_links import ParkedLink, park, settled
from replicator.links.start_position import begins_of
from replicator.links.timer_wheel import Timer
from replicator.log.deletion import LINK_CURSORS
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.transaction_buffer import below
from replicator.pulsar.arrived_entries import PROPERTY, newest_there, note, noted
from replicator.pulsar.cluster_connections import ClusterConnection, ClusterProofs
from replicator.pulsar.cluster_subscriptions import ClusterSubscriptions
from replicator.pulsar.pulsar_sender import Outgoing, PulsarSender

if TYPE_CHECKING:
    from replicator.manager.link_manager import LinkManager

events = logging.getLogger("replicator")

_READ_ENTRIES = 256
_READ_BYTES = 1 << 20
_STEADY_S = 5.0
_RATE_MIN = 0.01


class ClusterHost(ClusterProofs, Protocol):
    """What a link with a Pulsar cluster asks of its region."""

    async def prepare(self, cluster: PulsarCluster, topic: str) -> None:
        """The cluster has the partitioned topic that `topic` is a partition of, with as many partitions. Raises
        LinkError.
        """
        ...

    async def schema(self, topic: str, version: bytes) -> Schema | None:
        """The schema that messages of the topic name by `version`; None: there is no such. Raises MetadataError."""
        ...


class PulsarLink:
    """Made by LinkManager.attach; `begin` once its cursor is open."""

    asks = False
    """It takes no part in audits between regions."""

    def __init__(self, manager: LinkManager, log: ReplicatedLog, target: str) -> None:
        self.manager, self.log, self.target = manager, log, target
        self.state, self.cause, self.cause_text = "loading", Cause.NONE, ""
        self.core: PulsarSender | None = None
        self.failures = 0
        self.start: Mapping[str, Any] | None = None
        self.subscriptions = ClusterSubscriptions(self)
        self._cursor: LinkCursor | None = None
        self._connection: ClusterConnection | None = None
        self._number = self._attempt = 0
        self._timer: Timer | None = None
        self._opened_at = 0.0
        self._reading = False
        self._held: list[Outgoing] = []
        """Entries that wait until the cluster has their schema."""
        self._there: Position | None = None
        """In the cluster's topic: of the newest receipt, where that is not noted yet."""
        self._versions: dict[bytes, bytes] = {}
        """Version of a schema here -> there."""
        self._resolving = False
        self._reached: PulsarCluster | None = None
        """The registration that the present connection was made by."""
        self.parked: ParkedLink | None = None
        self._watchdog = Watchdog(manager.settings.sender.stalled_after_s, manager.settings.heartbeat_s)
        self.restarts: Counter[Cause] = Counter()
        self.history = LinkHistory()
        self.pace: Pace | None = None
        self._rate: Mapping[str, Any] | None = None
        self._pace_timer: Timer | None = None
        self._stop_waking: Callable[[], None] | None = None
        self._rated = (0, 0)
        self.rate_out = self.throughput_out = 0.0

    @property
    def ended(self) -> bool:
        return self.state == "detached"

    def send_ask(self, request: int, ask: Ask) -> bool:
        """Always False: a Pulsar cluster answers no audit."""
        return False

    # -- life ----------------------------------------------------------------------------------------------------------

    def begin(self, cursor: LinkCursor) -> None:
        """The cursor `pulsar.repl.<cluster>` is open."""
        if self.ended:
            return
        self._cursor = cursor
        begins = begins_of(cursor.properties)
        self.core = core = PulsarSender(
            self.manager.region, self.target, max(cursor.mark_delete, (begins[0], begins[1] - 1))
        )
        cursor.reading = lambda: core.read_at
        self._stop_waking = self.log.ledger.wake_on_append(self.pump)
        self.connect()

    def obey_rate(self, policy: Mapping[str, Any] | None) -> None:
        """Takes the policy `replicatorDispatchRate` over, as JSON; None: no rate."""
        if policy != self._rate:
            self._rate, self.pace = policy, Pace.of(policy)
            if self._pace_timer is not None:
                self._pace_timer.cancel()
                self._on_pace()

    def connect(self) -> None:
        self._timer = None
        if not self.ended:
            self.state = "connecting"
            self._attempt += 1
            self.manager.spawn(self._open(self._attempt))

    async def _open(self, attempt: int) -> None:
        cluster, step = self.manager.cluster(self.target), "its partitions"
        try:
            if cluster is None:
                raise LinkError(Cause.NO_ADDRESS, f"there is no cluster {self.target}")
            if self.manager.clusters is not None:
                await self.manager.clusters.prepare(cluster, self.log.topic)
            step = "its owner there"
            connection = await self.manager.cluster_connections.owner(cluster, self.log.topic, self.failures)
            step = "a producer there"
            number = await connection.producer(self, self.log.topic, producer_name(self.manager.region, self.target))
            try:
                step = "what had arrived there"
                there = await self._arrived(cluster, connection, number)
            except BaseException:
                connection.leave(number)
                raise
        except Exception as error:  # whatever it is, the link comes again
            report_unexpected(error, "a link's work failed")
            if attempt == self._attempt:
                self.on_ended(cause_of(error), reason_of(error, f"no answer in time while asking for {step}"))
            return
        if attempt != self._attempt or self.ended or connection.client.closed is not None:
            connection.leave(number)
            return
        self._reached = cluster
        self._opened(connection, number, there)
        self.reconsider()  # it may have been changed meanwhile

    async def _arrived(self, cluster: PulsarCluster, connection: ClusterConnection, number: int) -> Position:
        """How far the cluster is found to have this topic, beyond what it confirmed; it is noted from where on to look
        the next time.
        """
        cursor, core = self._cursor, self.core
        assert cursor is not None and core is not None
        after = noted(cursor.properties)
        if after is not None and self.log.ledger.last_confirmed <= core.mark:
            return BEFORE_ALL  # everything was confirmed
        nobodys = response("barrier", self.manager.region, (0, 0))
        barrier = await connection.barrier(
            number, send_frame(number, 0, 1, self._marker(Marker.SNAPSHOT_RESPONSE), nobodys, marker=True)
        )
        if after is None:
            cursor.set_properties({**cursor.properties, PROPERTY: note(barrier)})
            await cursor.flushed()
            return BEFORE_ALL
        alone = await self.manager.cluster_connections.alone(cluster, connection.address)
        try:
            return await newest_there(alone, self.log.topic, self.manager.region, after, barrier)
        finally:
            alone.close()

    def _opened(self, connection: ClusterConnection, number: int, there: Position) -> None:
        assert self.core is not None
        self._connection, self._number = connection, number
        self.state, self.cause, self.cause_text = "open", Cause.NONE, ""
        self._opened_at = self.manager.clock.monotonic()
        self.core.opened(connection.by_position, there)
        self._watchdog.opened(self._opened_at, 0)
        events.info(
            "link.opened", extra={"topic": self.log.topic, "target": self.target, "by_position": connection.by_position}
        )
        self.pump()

    def on_ended(self, cause: Cause, text: str) -> None:
        """The producer is gone, or could not be made: it comes again after a while."""
        if self.ended or self.state in ("waiting", "parked"):
            return
        if self.state == "open" and self.manager.clock.monotonic() - self._opened_at > _STEADY_S:
            self.failures = 0
        self._disconnect()
        if cause.parks:
            self._timer = self.manager.timers.after(park(self, cause, text), self.connect)
            return
        if cause is not self.cause:
            events.info(
                "link.ended", extra={"topic": self.log.topic, "target": self.target, "cause": cause, "text": text}
            )
        self.state, self.cause, self.cause_text = "waiting", cause, text
        self.restarts[cause] += 1
        self.manager.restarts[self.target, cause] += 1
        self.history.add(self.manager.clock.wall_ms(), cause, text)
        self._timer = self.manager.timers.after(self.manager.backoff_s(self.failures), self.connect)
        self.failures += 1

    def detach(self) -> None:
        """The topic leaves this broker, or the cluster leaves the topic: final."""
        if self.ended:
            return
        self._disconnect()
        self.state, self.cause = "detached", Cause.DETACHED
        self.manager.parked.pop(self, None)
        if self._cursor is not None:
            self._cursor.reading = None
        if self._stop_waking is not None:
            self._stop_waking()

    def poke(self) -> None:
        """Something changed that may have been the reason for waiting."""
        if self.state in ("waiting", "parked"):
            self.failures = 0
            if self._timer is not None:
                self._timer.cancel()
            self.connect()

    def unpark(self) -> None:
        """Something changed that the refusal may have been about."""
        if self.state == "parked":
            self.poke()

    def reconsider(self) -> None:
        """The cluster was registered anew: another address, or another token."""
        if self.state == "open" and self.manager.cluster(self.target) != self._reached:
            self.on_ended(Cause.MOVED, "the cluster's registration was changed: the link is made anew by it")

    def _disconnect(self) -> None:
        self._attempt += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(self._number)
        self._held, self._resolving = [], False
        self._versions.clear()  # somebody may have deleted schemas there
        self.subscriptions.disconnected()

    # -- sending -------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what there is room for. Called when the topic grew, a receipt came, or the connection can be written
        again.
        """
        core, connection = self.core, self._connection
        self.manager.keep_looking(self)
        if core is None or connection is None or self._reading or self._held or self._paced():
            return
        ledger = self.log.ledger
        while core.room and connection.client.writable:
            first = ledger.first_position()
            if core.read_at < first:
                core.skip_to(first)
            if core.read_at > ledger.last_confirmed:
                break
            undecided = self._undecided()
            if undecided is not None and core.read_at >= undecided:
                break
            runs = ledger.cached(core.read_at, *self._at_once())
            if not runs:
                self._reading = True
                self.manager.read(self)
                break
            if not self._take(below(runs, undecided) if undecided is not None else runs) or self._paced(runs):
                break
        self._move_cursor()
        if connection is self._connection and not self._held:
            self.subscriptions.answer(max((core.read_at[0], core.read_at[1] - 1), core.mark))

    def _take(self, runs: Sequence[tuple[int, int, Run]]) -> bool:
        """False: what was taken waits for a schema, or the link has ended."""
        core, connection = self.core, self._connection
        assert core is not None and connection is not None
        buffer = self.log.state.transactions
        try:
            out = [outgoing for number, start, run in runs for outgoing in core.take(number, start, run, buffer)]
        except HeliographError as error:
            self.on_ended(
                Cause.of(error), f"an entry at or behind {core.read_at[0]}:{core.read_at[1]} cannot be sent: {error}"
            )
            return False
        if any(o.metadata.HasField("schema_version") and o.metadata.schema_version not in self._versions for o in out):
            self._held = out
            self._resolving = True
            self.manager.spawn(self._resolve(connection, self._attempt))
            return False
        self._write(connection, out)
        return True

    def _write(self, connection: ClusterConnection, out: Sequence[Outgoing]) -> None:
        frames: list[Buffer] = []
        for number, messages, metadata, payload in out:
            if metadata.HasField("schema_version"):
                if version := self._versions.get(metadata.schema_version):
                    metadata.schema_version = version
                else:
                    metadata.ClearField("schema_version")
            frames.append(send_frame(self._number, number, messages, metadata, payload))
        if frames:
            connection.client.write(frames)

    async def _resolve(self, connection: ClusterConnection, attempt: int) -> None:
        """Brings the schemas of what is held to the cluster, and sends it."""
        try:
            for version in dict.fromkeys(
                o.metadata.schema_version for o in self._held if o.metadata.HasField("schema_version")
            ):
                schema = (
                    await self.manager.clusters.schema(self.log.topic, version)
                    if self.manager.clusters is not None
                    else None
                )
                self._versions[version] = (
                    await connection.client.schema_version(self.log.topic, schema) if schema is not None else b""
                )
        except Exception as error:  # whatever it is, the link comes again
            report_unexpected(error, "a link's work failed")
            if attempt == self._attempt:
                self.on_ended(schema_cause_of(error), f"the cluster does not take the topic's schema: {error}")
            return
        if attempt == self._attempt:
            self._resolving = False
            held, self._held = self._held, []
            self._write(connection, held)
            self.pump()

    def _undecided(self) -> Position | None:
        buffer = self.log.state.transactions
        return None if buffer is None else buffer.undecided_from()

    def _at_once(self) -> tuple[int, int]:
        """(entries, bytes) to read at most."""
        if self.pace is None:
            return _READ_ENTRIES, _READ_BYTES
        return min(_READ_ENTRIES, self.pace.entries_max), min(_READ_BYTES, self.pace.bytes_max)

    def _paced(self, taken: Sequence[tuple[int, int, Run]] = ()) -> bool:
        if self.pace is None:
            return False
        now = self.manager.clock.monotonic()
        for _, _, run in taken:
            self.pace.spend(run.messages, run.size_bytes, now)
        if (wait := self.pace.wait_s(now)) > 0 and self._pace_timer is None:
            self._pace_timer = self.manager.timers.after(wait, self._on_pace)
        return self._pace_timer is not None

    def _on_pace(self) -> None:
        self._pace_timer = None
        self.pump()

    async def read(self) -> None:
        """The next runs are not in the cache: brings them, and sends them."""
        core, attempt = self.core, self._attempt
        assert core is not None
        position = core.read_at
        try:
            runs = await self.log.ledger.read(position, *self._at_once())
        except Exception as error:  # whatever it is, the link comes again, and reads again
            report_unexpected(error, "a link's work failed")
            self._reading = False
            if attempt == self._attempt:
                self.on_ended(Cause.of(error, Cause.STORAGE), f"reading at {position[0]}:{position[1]}: {error}")
            return
        self._reading = False
        if attempt != self._attempt or position != core.read_at:
            self.pump()
            return
        undecided = self._undecided()
        if runs and self._take(below(list(runs), undecided) if undecided is not None else runs):
            self._paced(runs)
            self._move_cursor()
        if runs or core.read_at < self.log.ledger.first_position():
            self.manager.soon(self.pump)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def on_receipt(self, sequence: int, highest: int, there: Position) -> None:
        if self.core is not None and self.core.receipt(sequence, highest):
            self.failures = 0
            settled(self)
            if there[1] >= 0:
                self._there = there
            self._move_cursor()
            self.pump()

    def on_writable(self) -> None:
        self.pump()

    def _move_cursor(self) -> None:
        if self.core is not None and self._cursor is not None and self.core.mark > self._cursor.mark_delete:
            self._cursor.ack_cumulative(self.core.mark)

    def mark(self, kind: Marker, payload: bytes) -> None:
        """Sends a marker, behind everything that went out so far."""
        if self.core is not None and self._connection is not None:
            self._connection.client.write(
                [send_frame(self._number, self.core.next_number(), 1, self._marker(kind), payload, marker=True)]
            )

    def _marker(self, kind: Marker) -> MessageMetadata:
        made = MessageMetadata(
            producer_name="pulsar.marker", sequence_id=0, publish_time=self.manager.clock.wall_ms(), marker_type=kind
        )
        made.replicated_from = self.manager.region
        made.replicate_to.append(self.target)
        return made

    # -- numbers -------------------------------------------------------------------------------------------------------

    def tick(self, elapsed_s: float) -> bool:
        """Once a second: rates, subscriptions, and whether it makes progress. False: it is idle, and need not be asked
        until the topic grows.
        """
        core, connection = self.core, self._connection
        if core is None:
            return True
        weight = 0.4
        self.rate_out += weight * ((core.messages_out - self._rated[0]) / elapsed_s - self.rate_out)
        self.throughput_out += weight * ((core.size_out - self._rated[1]) / elapsed_s - self.throughput_out)
        self._rated = (core.messages_out, core.size_out)
        if self.rate_out < _RATE_MIN:
            self.rate_out = self.throughput_out = 0.0
        if connection is None:
            return True
        now = self.manager.clock.monotonic()
        self._note_arrivals()
        self.subscriptions.tend(now, may_ask=not self._held)
        undecided = self._undecided()
        end = self.log.ledger.last_confirmed if undecided is None else (undecided[0], undecided[1] - 1)
        if not self._held and now - self._opened_at > _STEADY_S:
            settled(self)
        if self._pace_timer is not None or not core.behind(end):
            self._watchdog.caught_up()
            syncing = self.log.syncing
            return (
                self._pace_timer is not None
                or self.rate_out > 0
                or (syncing is not None and syncing.active)
                or self.parked is not None
            )
        facts = Facts(
            mark=core.mark,
            receipts=core.receipts,
            rewinds=0,
            reading=self._reading,
            skipping=False,
            blocked=not connection.client.writable,
            in_flight=core.in_flight > 0,
        )
        if (found := self._watchdog.look(now, facts)) is not None:
            self.on_ended(*found)
        return True

    def _note_arrivals(self) -> None:
        """Together with the cursor's position: what lies behind it there is not confirmed here."""
        cursor, there = self._cursor, self._there
        if cursor is not None and there is not None:
            self._there = None
            self._move_cursor()
            cursor.set_properties({**cursor.properties, PROPERTY: note(there)})

    def oldest_ms(self) -> int:
        """Broker time of the oldest message that the cluster lacks; 0: it lacks none."""
        return self.log.state.outbox.oldest_ms(self._done) if self._entries else 0

    @property
    def _entries(self) -> int:
        """That the cluster lacks. Before its cursor is open, as the cursor lies there; where there is none, all."""
        cursor = self.log.ledger.cursors.get(LINK_CURSORS + self.target) if self._cursor is None else self._cursor
        return cursor.backlog_entries if cursor is not None else self.log.state.outbox.totals[0]

    @property
    def _mark(self) -> Position:
        if self.core is not None:
            return self.core.mark
        cursor = self.log.ledger.cursors.get(LINK_CURSORS + self.target)
        return cursor.mark_delete if cursor is not None else BEFORE_ALL

    @property
    def _done(self) -> Totals:
        return self.log.state.outbox.at(self._mark)

    def stats(self) -> LinkStats:
        core, end, entries = self.core, self.log.ledger.last_confirmed, self._entries
        done, oldest_ms = self._done, self.oldest_ms()
        size = self.log.ledger.bytes_between(self._mark, end) if entries else 0
        cause, text = (self.cause, self.cause_text) if self.parked is None else (self.parked.cause, self.parked.text)
        return LinkStats(
            source=self.manager.region,
            target=self.target,
            topic=self.log.topic,
            state=self.state if self.parked is None else "parked",
            cause=str(cause),
            cause_text=text,
            remedy=cause.remedy,
            restarts=sum(self.restarts.values()),
            history=self.history.shown(),
            connected=self.state == "open",
            silent_s=None if self._connection is None else self._connection.silent_s,
            backlog_entries=entries,
            backlog_messages=max(entries, self.log.state.outbox.totals[1] - done[1]) if entries else 0,
            backlog_bytes=size,
            age_s=max(0.0, (self.manager.expiry.stamp_ms() - oldest_ms) / 1000) if oldest_ms else 0.0,
            rate_out=self.rate_out,
            throughput_out=self.throughput_out,
            rtt_ms=0.0,
            clock_offset_ms=0.0,
            in_flight_bytes=core.bytes_in_flight if core is not None else 0,
            rewinds=0,
            progress=1.0
            if not entries
            else core.messages_out / (core.messages_out + entries)
            if core is not None
            else 0.0,
            slowed=self._pace_timer is not None,
            run_bytes=core.size_out if core is not None else 0,
            wire_bytes=core.size_out if core is not None else 0,
        )
