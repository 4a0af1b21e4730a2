"""Link: one topic to one region, the shell around `replicator.sender`.

Is: reading the topic, writing frames, moving the cursor, storing SKIPs, and the life of a link (waiting, connecting, opening, open).
Isn't: a decision what is sent or how far the cursor moves (the core's), or the making of connections (the manager's).
Invariants: no task and no timer of the loop while it idles; a SKIP goes out only on the connection it was decided on, after it is stored here.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import HeliographError, LinkError
from heliograph.model.positions import Position
from heliograph.wire import link as wire
from heliograph.wire.link import Risk, SkipRecord
from heliograph.wire.run import Buffer
from replicator.causes import Cause
from replicator.claims import Claims
from replicator.connection import LinkConnection
from replicator.log import ReplicatedLog
from replicator.sender import LinkSender, SendRun, joined
from replicator.timers import Timer
from replicator.watchdog import Facts, Watchdog

if TYPE_CHECKING:
    from replicator.manager import LinkManager

events = logging.getLogger("replicator")

_READ_ENTRIES = 512
_READ_BYTES = 1 << 20
_TURN_BYTES = 4 << 20
_STEADY_S = 5.0
_HISTORY = 8


class LinkCursor(Protocol):
    """The part of the managed ledger's cursor that a link uses."""

    mark_delete: Position
    reading: Callable[[], Position] | None
    """Where the link reads, as long as it does: what it still needs stays in the entry cache."""

    def ack_cumulative(self, position: Position) -> None: ...

    def reset(self, mark_delete: Position) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStats:
    """One link, as its source knows it; backlog and age are of what was first published here and is not done with."""

    source: str
    target: str
    topic: str
    state: str
    cause: str
    cause_text: str
    remedy: str
    """What to do about the cause."""
    restarts: int
    history: list[dict[str, Any]]
    """The newest ends of the link: at_ms, cause, text."""
    connected: bool
    backlog_entries: int
    backlog_messages: int
    backlog_bytes: int
    age_s: float
    rate_out: float
    """Messages a second that the target acknowledged."""
    throughput_out: float
    """The same in bytes."""
    rtt_ms: float
    clock_offset_ms: float
    in_flight_bytes: int
    rewinds: int


class Link:
    """Made by LinkManager.attach; `begin` once its cursor is open."""

    def __init__(self, manager: LinkManager, log: ReplicatedLog, target: str) -> None:
        self.manager, self.log, self.target = manager, log, target
        self.state, self.cause, self.cause_text = "loading", Cause.NONE, ""
        self.core: LinkSender | None = None
        self.failures = 0
        self._cursor: LinkCursor | None = None
        self._connection: LinkConnection | None = None
        self._number = 0
        self._timer: Timer | None = None
        self._filter_timer: Timer | None = None
        self._opened_at = 0.0
        self._reading = self._reads = 0
        """The read that is under way, 0: none; how many there were."""
        self._watchdog = Watchdog(manager.settings.sender.stalled_after_s)
        self.restarts: Counter[Cause] = Counter()
        self.history: deque[tuple[int, Cause, str]] = deque(maxlen=_HISTORY)
        """(wall ms, cause, sentence) of the newest ends."""
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
        self.core = core = LinkSender(self.target, self.log.state, cursor.mark_delete, self.manager.settings.sender)
        cursor.reading = lambda: core.read_at
        self._rated = self.core.done[1:]
        self._stop_waking = self.log.ledger.wake_on_append(self.pump)
        self.connect()

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
        self._opened_at = self.manager.clock.monotonic()
        self._watchdog.opened(self._opened_at, self.core.rewinds)
        self.log.learn(self.target, vector.copy(), self.manager.clock.wall_ms())
        events.info("link.opened topic=%s target=%s vector=%r", self.log.topic, self.target, vector)
        if level >= 2:
            self._stop_telling = self.log.subscriptions.channel(self.target, self._tell_claims)
        self._rewound(self.core.opened(vector, window_bytes))

    def _tell_claims(self, subscription: str, claims: Claims) -> bool:
        connection = self._connection
        if connection is None or not connection.writable(self._number):
            return False
        connection.write(wire.claims_frame(self._number, subscription, claims.fields()))
        return True

    def on_claims(self, subscription: str, claims: Claims) -> None:
        self.log.subscriptions.heard(self.target, subscription, claims)

    def on_gap(self, attempt: int, vector: Vector) -> None:
        if self.core is not None and (went_back := self.core.gap(attempt, vector)) is not None:
            events.info("link.rewound topic=%s target=%s vector=%r", self.log.topic, self.target, vector)
            self._rewound(went_back)

    def on_receipt(self, through: Sequence[tuple[Origin, Position]]) -> None:
        if self.core is None:
            return
        for origin, position in through:
            self.core.receipt(origin, position)
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
        if core is None or connection is None or self.state != "open" or self._reading or core.room_bytes <= 0:
            return
        ledger, now, sent = self.log.ledger, self.manager.clock.monotonic(), 0
        sends: list[SendRun] = []
        while (room := core.room_bytes) > 0 and sent < _TURN_BYTES and connection.writable(self._number):
            if core.read_at < (first := ledger.first_position()) and (record := core.trimmed(first)) is not None:
                self._store_skip(connection, record)
                break
            if core.read_at > ledger.last_confirmed:
                core.at_the_end()
                break
            runs = ledger.cached(core.read_at, _READ_ENTRIES, min(room, _READ_BYTES))
            if not runs:
                self._reads += 1
                self._reading = self._reads
                self.manager.read(self)
                break
            for number, start, run in runs:
                if (send := core.take(number, start, run, now)) is not None:
                    sends.append(send)
                    sent += send.run.size_bytes
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
            frames += wire.run_frame(self._number, attempt, previous, run)
        if frames:
            connection.write(frames)

    async def read(self) -> None:
        """The next runs are not in the cache: brings them, and sends them."""
        core, number = self.core, self._reading
        assert core is not None
        if not number:
            return
        attempt, connection, position = core.attempt, self._connection, core.read_at
        try:
            runs = await self.log.ledger.read(position, _READ_ENTRIES, min(max(1, core.room_bytes), _READ_BYTES))
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
        if core.read_at > self.log.ledger.last_confirmed and (record := core.filtered(self.manager.clock.monotonic())) is not None:
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
            if not core.behind(self.log.ledger.last_confirmed):
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

    def stats(self) -> LinkStats:
        (entries, messages, size), oldest_ms = ((0, 0, 0), 0) if self.core is None else self.core.backlog()
        connection = self._connection
        return LinkStats(
            source=self.manager.region,
            target=self.target,
            topic=self.log.topic,
            state=self.state,
            cause=str(self.cause),
            cause_text=self.cause_text,
            remedy=self.cause.remedy,
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
        )
