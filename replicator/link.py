"""Link: one topic to one region, the shell around `replicator.sender`.

Is: reading the topic, writing frames, moving the cursor, storing SKIPs, and the life of a link (waiting, connecting, opening, open).
Isn't: a decision what is sent or how far the cursor moves (the core's), or the making of connections (the manager's).
Invariants: no task and no timer of the loop while it idles; a SKIP goes out only on the connection it was decided on, after it is stored here.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import HeliographError, LinkError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire import link as wire
from heliograph.wire.link import Risk, SkipReason, SkipRecord
from heliograph.wire.link_audit import Ask, Told, ask_frame, tell_frame
from heliograph.wire.link_schemas import SchemaRow, schemas_frame
from heliograph.wire.run import Buffer, Run
from replicator.auditor import LEVEL as AUDIT_LEVEL
from replicator.causes import Cause
from replicator.claims import Claims
from replicator.compression import RunPacker
from replicator.connection import LinkConnection
from replicator.link_stats import LinkCursor, LinkStats
from replicator.log import ReplicatedLog
from replicator.pace import Pace
from replicator.schemas import SchemaFeed
from replicator.sender import LinkSender, SendRun, joined
from replicator.starting import begins_of
from replicator.timers import Timer
from replicator.transactions import below
from replicator.watchdog import Facts, Watchdog

if TYPE_CHECKING:
    from replicator.manager import LinkManager

events = logging.getLogger("replicator")

_READ_ENTRIES = 512
_READ_BYTES = 1 << 20
_TURN_BYTES = 4 << 20
_STEADY_S = 5.0
_HISTORY = 8


class Link:
    """Made by LinkManager.attach; `begin` once its cursor is open."""

    def __init__(self, manager: LinkManager, log: ReplicatedLog, target: str) -> None:
        self.manager, self.log, self.target = manager, log, target
        self.state, self.cause, self.cause_text = "loading", Cause.NONE, ""
        self.core: LinkSender | None = None
        self.failures = 0
        self._cursor: LinkCursor | None = None
        self.start: Mapping[str, Any] | None = None
        """The policy `replicationStart`: where a link begins that is new."""
        self._begins: Position = BEFORE_ALL
        self._connection: LinkConnection | None = None
        self._number = self._level = 0
        self._timer: Timer | None = None
        self._filter_timer: Timer | None = None
        self._opened_at = 0.0
        self._reading = self._reads = 0
        """The read that is under way, 0: none; how many there were."""
        self._watchdog = Watchdog(manager.settings.sender.stalled_after_s)
        self.restarts: Counter[Cause] = Counter()
        self.history: deque[tuple[int, Cause, str]] = deque(maxlen=_HISTORY)
        """(wall ms, cause, sentence) of the newest ends."""
        self.schemas = SchemaFeed(self)
        self.packer = RunPacker(manager.settings.compression, manager.traffic_to(target))
        self.pace: Pace | None = None
        """None: as fast as it goes."""
        self._rate: Mapping[str, Any] | None = None
        self._pace_timer: Timer | None = None
        self._stop_waking: Callable[[], None] | None = None
        self._told: object = None
        self._stop_telling: Callable[[], None] | None = None
        self._rated = (0, 0)
        self.rate_out = self.throughput_out = 0.0

    @property
    def ended(self) -> bool:
        return self.state == "detached"

    # -- life ----------------------------------------------------------------------------------------------------------

    def begin(self, cursor: LinkCursor) -> None:
        """The cursor `pulsar.repl.<target>` is open."""
        if self.ended:
            return
        self._cursor = cursor
        self._begins = begins_of(cursor.properties)
        self.core = core = LinkSender(self.target, self.log.state, cursor.mark_delete, self.manager.settings.sender)
        cursor.reading = lambda: core.read_at
        self._rated = self.core.done[1:]
        self._stop_waking = self.log.ledger.wake_on_append(self.pump)
        self.connect()

    def obey_rate(self, policy: Mapping[str, Any] | None) -> None:
        """`replicatorDispatchRate`, as JSON. One that did not change keeps what was spent of it."""
        if policy != self._rate:
            self._rate, self.pace = policy, Pace.of(policy)
            if self._pace_timer is not None:
                self._pace_timer.cancel()
                self._on_pace()

    def connect(self) -> None:
        self._timer = None
        if not self.ended:
            self.state = "connecting"
            self.manager.establish(self)

    def open_on(self, connection: LinkConnection) -> None:
        """A connection to the topic's owner stands."""
        if self.ended:
            return
        self.state = "opening"
        self._connection = connection
        self._number = connection.open(self, self.log.topic, self.manager.region, self.manager.region_number())
        self._timer = self.manager.timers.after(self.manager.settings.open_timeout_s, lambda: self.restart(Cause.TIMEOUT, "no answer to OPEN"))

    def restart(self, cause: Cause, text: str) -> None:
        """Gives the connection up, and comes again after a while."""
        if self._connection is not None:
            self._connection.close_stream(self._number, cause, text)
        self.on_ended(cause, text)

    def on_ended(self, cause: Cause, text: str) -> None:
        """The stream is gone, or could not be opened."""
        if self.ended:
            return
        if self.state == "open" and self.manager.clock.monotonic() - self._opened_at > _STEADY_S:
            self.failures = 0
        self._disconnect()
        if cause is not self.cause:
            events.info("link.ended topic=%s target=%s cause=%s text=%s", self.log.topic, self.target, cause, text)
        self.state, self.cause, self.cause_text = "waiting", cause, text
        self.restarts[cause] += 1
        self.manager.restarts[self.target, cause] += 1
        self.history.append((self.manager.clock.wall_ms(), cause, text))
        self._timer = self.manager.timers.after(self.manager.backoff_s(self.failures), self.connect)
        self.failures += 1

    def detach(self) -> None:
        """The topic leaves this broker, or the region leaves the topic: final."""
        if self.ended:
            return
        if self._connection is not None:
            self._connection.close_stream(self._number, Cause.DETACHED, "the topic is unloaded at its source")
        self._disconnect()
        self.state, self.cause = "detached", Cause.DETACHED
        if self._cursor is not None:
            self._cursor.reading = None
        if self._stop_waking is not None:
            self._stop_waking()

    def poke(self) -> None:
        """Something changed that may have been the reason for waiting."""
        if self.state == "waiting":
            self.failures = 0
            self._cancel_timer()
            self.connect()

    def _disconnect(self) -> None:
        self._cancel_timer()
        self._cancel_filter_timer()
        self._connection, self._told = None, None
        if self._stop_telling is not None:
            self._stop_telling()
            self._stop_telling = None
        if self.core is not None:
            self.core.disconnected()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what comes back -----------------------------------------------------------------------------------------------

    def on_opened(self, incarnation: int, window_bytes: int, vector: Vector, level: int) -> None:
        if self.state != "opening" or self.core is None:
            return
        self._cancel_timer()
        self.state, self.cause, self.cause_text = "open", Cause.NONE, ""
        self._level = self.packer.level = level
        self._opened_at = self.manager.clock.monotonic()
        self._watchdog.opened(self._opened_at, self.core.rewinds)
        self.log.learn(self.target, vector.copy(), self.manager.clock.wall_ms())
        events.info("link.opened topic=%s target=%s vector=%r", self.log.topic, self.target, vector)
        if level >= AUDIT_LEVEL:
            self.schemas.opened()
        if level >= 2:
            self._stop_telling = self.log.subscriptions.channel(self.target, self._tell_claims)
        self.core.transactional = level >= 3
        self._rewound(self.core.opened(vector, window_bytes))

    def _tell_claims(self, subscription: str, claims: Claims) -> bool:
        connection = self._connection
        if connection is None or not connection.writable(self._number):
            return False
        connection.write(wire.claims_frame(self._number, subscription, claims.fields(self._level)))
        return True

    def on_claims(self, subscription: str, claims: Claims) -> None:
        self.log.subscriptions.heard(self.target, subscription, claims)

    def send_ask(self, request: int, ask: Ask) -> bool:
        """What the target holds is asked; False: not now."""
        connection = self._connection
        if connection is None or not self.asks:
            return False
        connection.write(ask_frame(self._number, request, ask))
        return True

    @property
    def asks(self) -> bool:
        """Whether the other side answers questions of an audit, and may ask some."""
        return self.state == "open" and self._level >= AUDIT_LEVEL

    def send_schemas(self, rows: Sequence[SchemaRow]) -> bool:
        """False: there is no stream now."""
        connection = self._connection
        if connection is None or not self.asks:
            return False
        connection.write(schemas_frame(self._number, rows))
        return True

    def on_ask(self, request: int, ask: Ask) -> None:
        connection, number = self._connection, self._number

        def answer(told: Told) -> None:
            if connection is not None and connection is self._connection and number == self._number:
                connection.write(tell_frame(number, request, ask.what, told))

        self.manager.auditor.asked(self.log, self.target, ask, answer)

    def on_tell(self, request: int, fields: list[Any], payload: Buffer) -> None:
        self.manager.auditor.told(request, fields, payload)

    def on_gap(self, attempt: int, vector: Vector) -> None:
        if self.core is not None and (went_back := self.core.gap(attempt, vector)) is not None:
            events.info("link.rewound topic=%s target=%s vector=%r", self.log.topic, self.target, vector)
            self._rewound(went_back)

    def on_receipt(self, through: Sequence[tuple[Origin, Position]]) -> None:
        if self.core is None:
            return
        for origin, position in through:
            self.core.receipt(origin, position)
        if self.log.waits is not None:
            self.log.waits.heard(self.target, self.core.remote.prefix(self.log.origin))
        self.failures = 0
        self._move_cursor()
        self.pump()

    def on_writable(self) -> None:
        self.pump()

    def _rewound(self, went_back: bool) -> None:
        assert self.core is not None and self._cursor is not None
        if went_back and self.core.mark < self._cursor.mark_delete:
            events.warning("link.target_went_back topic=%s target=%s mark=%s", self.log.topic, self.target, self.core.mark)
            self._cursor.reset(self.core.mark)
        self._move_cursor()
        self.pump()

    def _move_cursor(self) -> None:
        assert self.core is not None and self._cursor is not None
        if self.core.mark > self._cursor.mark_delete:
            self._cursor.ack_cumulative(self.core.mark)

    # -- sending -------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what the core lets go. Called when the topic grew, a receipt came, or the connection can be written again."""
        core, connection = self.core, self._connection
        if core is None or connection is None or self.state != "open" or self._reading or core.room_bytes <= 0 or self._waits():
            return
        ledger, now, sent = self.log.ledger, self.manager.clock.monotonic(), 0
        sends: list[SendRun] = []
        while (room := core.room_bytes) > 0 and sent < _TURN_BYTES and connection.writable(self._number):
            first = ledger.first_position()
            begins = max(first, self._begins)
            if core.read_at < begins and (record := core.trimmed(begins, SkipReason.TRIMMED if begins == first else SkipReason.ADMIN)) is not None:
                self._store_skip(connection, record)
                break
            if core.read_at > ledger.last_confirmed:
                core.at_the_end()
                break
            undecided = self._undecided()
            if undecided is not None and core.read_at >= undecided:
                break
            runs = ledger.cached(core.read_at, *self._at_once(room))
            if undecided is not None:
                runs = below(runs, undecided)
            if not runs:
                self._reads += 1
                self._reading = self._reads
                self.manager.read(self)
                break
            for number, start, run in runs:
                if (send := core.take(number, start, run, now)) is not None:
                    sends.append(send)
                    sent += send.run.size_bytes
            if self._paced(runs):
                break
        else:
            if sent >= _TURN_BYTES:
                self.manager.soon(self.pump)
        self._send(connection, sends)
        self._move_cursor()
        self._watch_filtered()

    def _send(self, connection: LinkConnection, sends: list[SendRun]) -> None:
        assert self.core is not None
        frames: list[Buffer] = []
        attempt = self.core.attempt
        for previous, run in joined(sends):
            frames += self.packer.frame(self._number, attempt, previous, run, connection.rtt_ms)
        if frames:
            connection.write(frames)

    def _undecided(self) -> Position | None:
        """The first entry of an open transaction: nothing is sent from there on. None: there is none."""
        buffer = self.log.state.transactions
        return None if buffer is None else buffer.undecided_from()

    def _last_sendable(self) -> Position:
        undecided = self._undecided()
        return self.log.ledger.last_confirmed if undecided is None else (undecided[0], undecided[1] - 1)

    @property
    def waits_for_transaction(self) -> bool:
        """Everything before an open transaction is sent, and nothing behind it may be."""
        undecided = self._undecided()
        return undecided is not None and self.core is not None and self.core.read_at >= undecided

    def _open_transaction(self) -> str:
        buffer = self.log.state.transactions
        (_, coordinator, number), found = next(iter(buffer.open.items())) if buffer is not None else ((None, 0, 0), None)
        where = f", from {found.first[0]}:{found.first[1]} on" if found is not None else ""
        return f"transaction {coordinator}:{number} is open{where}: what was published behind its first message waits for its end"

    def _waits(self) -> bool:
        """For what must be sent before, or for the rate: then the link goes on by itself."""
        return self.schemas.sending or self._paced()

    def _at_once(self, room_bytes: int) -> tuple[int, int]:
        """(entries, bytes) to read at most."""
        size = min(room_bytes, _READ_BYTES)
        return (_READ_ENTRIES, size) if self.pace is None else (min(_READ_ENTRIES, self.pace.entries_max), min(size, self.pace.bytes_max))

    def _paced(self, taken: Sequence[tuple[int, int, Run]] = ()) -> bool:
        """Whether the rate lets nothing more go now: then the link goes on by itself. taken: what was just read to be sent."""
        if self.pace is None:
            return False
        now = self.manager.clock.monotonic()
        for _, _, run in taken:
            if run.origin is None:
                self.pace.spend(run.messages, run.size_bytes, now)
        if (wait := self.pace.wait_s(now)) > 0 and self._pace_timer is None:
            self._pace_timer = self.manager.timers.after(wait, self._on_pace)
        return self._pace_timer is not None

    def _on_pace(self) -> None:
        self._pace_timer = None
        self.pump()

    async def read(self) -> None:
        """The next runs are not in the cache: brings them, and sends them."""
        core, number = self.core, self._reading
        assert core is not None
        if not number:
            return
        attempt, connection, position = core.attempt, self._connection, core.read_at
        try:
            runs = await self.log.ledger.read(position, *self._at_once(max(1, core.room_bytes)))
        except HeliographError as error:
            if number != self._reading:
                return
            self._reading = 0
            if connection is self._connection and not self.ended:
                self.restart(Cause.of(error), f"reading at {position[0]}:{position[1]}: {error}")
            return
        if number != self._reading:
            return  # it was given up meanwhile
        self._reading = 0
        if self.ended or connection is None or connection is not self._connection or attempt != core.attempt or position != core.read_at:
            self.pump()
            return
        if (undecided := self._undecided()) is not None:
            runs = below(list(runs), undecided)
        now = self.manager.clock.monotonic()
        sends = [send for ledger, first, run in runs if (send := core.take(ledger, first, run, now)) is not None]
        self._send(connection, sends)
        self._move_cursor()
        if runs or core.read_at < self.log.ledger.first_position():
            self.pump()

    # -- skips ---------------------------------------------------------------------------------------------------------

    def _store_skip(self, connection: LinkConnection, record: SkipRecord) -> None:
        """Stores it here first: only the topic's owner can, because the next owner fences the ledger before anything else."""
        core = self.core
        assert core is not None
        attempt = core.attempt
        if record.loss:
            events.warning("link.skip topic=%s target=%s from=%s through=%s", self.log.topic, self.target, record.after, record.through)

        def stored(_: object) -> None:
            if connection is self._connection and (out := core.skip_stored(attempt, record)) is not None:
                connection.write(wire.skip_frame(self._number, attempt, out))
                self.pump()

        def failed(error: HeliographError) -> None:
            if connection is self._connection:
                self.restart(Cause.STORAGE, f"a SKIP could not be stored: {error}")

        self.log.append_skip(record, stored, failed)

    def _watch_filtered(self) -> None:
        assert self.core is not None
        due = self.core.next_deadline()
        if due is not None and self._filter_timer is None:
            self._filter_timer = self.manager.timers.after(max(0.0, due - self.manager.clock.monotonic()), self._on_filtered)

    def _on_filtered(self) -> None:
        self._filter_timer = None
        core, connection = self.core, self._connection
        if core is None or connection is None:
            return
        if core.read_at <= self._last_sendable():  # a run may follow yet; a deadline that is over is not waited for at once
            self._filter_timer = self.manager.timers.after(self.manager.settings.sender.filtered_after_s, self._on_filtered)
        elif (record := core.filtered(self.manager.clock.monotonic())) is not None:
            self._store_skip(connection, record)
        else:
            self._watch_filtered()

    def _cancel_filter_timer(self) -> None:
        if self._filter_timer is not None:
            self._filter_timer.cancel()
            self._filter_timer = None

    # -- heartbeats and numbers ----------------------------------------------------------------------------------------

    def beat(self) -> tuple[tuple[Origin, Position], dict[str, Vector], Risk] | None:
        """What the target should know of the source, where it changed since it was told last."""
        if self.state != "open" or self.core is None:
            return None
        (entries, messages, size), oldest_ms = self.core.backlog()
        risk = Risk(entries, messages, size, oldest_ms)
        state = (self.log.ledger.last_confirmed, [(region, at) for region, (_, at) in self.log.known.items()], risk)
        if state == self._told:
            return None
        self._told = state
        vectors = {region: vector for region, (vector, _) in self.log.known.items() if region != self.target}
        return self.log.last_own(), {**vectors, self.manager.region: self.log.vector}, risk

    def on_beat(self, vectors: dict[str, Vector]) -> None:
        for region, vector in vectors.items():
            if region != self.manager.region:
                self.log.learn(region, vector, self.manager.clock.wall_ms())

    def tick(self, elapsed_s: float) -> None:
        """Once a second: rates, and whether it makes progress."""
        core = self.core
        if core is None:
            return
        messages, size = core.done[1:]
        weight = 0.4
        self.rate_out += weight * (max(0, messages - self._rated[0]) / elapsed_s - self.rate_out)
        self.throughput_out += weight * (max(0, size - self._rated[1]) / elapsed_s - self.throughput_out)
        self._rated = (messages, size)
        connection = self._connection
        if self.state == "open" and connection is not None:
            if self._pace_timer is not None or not core.behind(self._last_sendable()):
                self._watchdog.caught_up()
                return
            facts = Facts(
                mark=core.mark,
                receipts=core.receipts,
                rewinds=core.rewinds,
                reading=bool(self._reading),
                skipping=core.skipping,
                blocked=not connection.client.writable,
                in_flight=core.in_flight_bytes > 0,
            )
            if (found := self._watchdog.look(self.manager.clock.monotonic(), facts)) is not None:
                self._reading = 0
                self._give_up(connection, *found)

    def _give_up(self, connection: LinkConnection, cause: Cause, text: str) -> None:
        events.warning("link.stands_still topic=%s target=%s cause=%s text=%s", self.log.topic, self.target, cause, text)
        if cause is Cause.WRITE_BLOCKED:  # another stream on the same connection would stand still as well
            connection.close(LinkError(cause, text))
        else:
            self.restart(cause, text)

    def _progress(self) -> float:
        total = self.log.state.outbox.totals[0]
        return 1.0 if not total else 0.0 if self.core is None else min(1.0, self.core.done[0] / total)

    def stats(self) -> LinkStats:
        (entries, messages, size), oldest_ms = ((0, 0, 0), 0) if self.core is None else self.core.backlog()
        connection = self._connection
        cause, text = self.cause, self.cause_text
        if self.state == "open" and self.waits_for_transaction:
            cause, text = Cause.TRANSACTION_OPEN, self._open_transaction()
        return LinkStats(
            source=self.manager.region,
            target=self.target,
            topic=self.log.topic,
            state=self.state,
            cause=str(cause),
            cause_text=text,
            remedy=cause.remedy,
            restarts=sum(self.restarts.values()),
            history=[{"at_ms": at_ms, "cause": str(cause), "text": text} for at_ms, cause, text in self.history],
            connected=self.state == "open",
            backlog_entries=entries,
            backlog_messages=messages,
            backlog_bytes=size,
            age_s=max(0.0, (self.manager.clock.wall_ms() - oldest_ms) / 1000) if entries and oldest_ms else 0.0,
            rate_out=self.rate_out,
            throughput_out=self.throughput_out,
            rtt_ms=connection.rtt_ms if connection is not None else 0.0,
            clock_offset_ms=connection.clock_offset_ms if connection is not None else 0.0,
            in_flight_bytes=self.core.in_flight_bytes if self.core is not None else 0,
            rewinds=self.core.rewinds if self.core is not None else 0,
            progress=self._progress(),
            slowed=self._pace_timer is not None,
            run_bytes=self.packer.run_bytes,
            wire_bytes=self.packer.wire_bytes,
        )
