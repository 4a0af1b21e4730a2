"""LinkReceiver: the target's half of the links that come in on one connection.

Is: OPEN, RUN, SKIP, and HEARTBEAT of any number of streams (one stream: one topic on this connection), and what is answered. `ReceiverStream`
is the core of one stream; `LinkReceiver` the shell around them. Isn't: the rule what to accept (`replicator.intake`), or a listener.
Invariants: a receipt names only what is durable here; a run is stored only if it comes from its origin's own region (full mesh), its entries
match their checksums, and the previous coordinate is held; after a GAP nothing of that attempt is stored any more.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError, PeerError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.clock import Clock
from heliograph.wire import link as wire
from heliograph.wire.link import Heartbeat, Kind, SkipRecord, StreamBeat
from heliograph.wire.run import Buffer, Run
from replicator.causes import Cause
from replicator.claims import Claims, read_claims
from replicator.entries import received
from replicator.incoming import Incoming, IncomingLink, IncomingRegion
from replicator.intake import Verdict
from replicator.log import ReplicatedLog
from replicator.receiver_budget import Hold, ReceiverBudget

events = logging.getLogger("replicator")

Write = Callable[[Sequence[Buffer]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    window_bytes: int = 16 << 20
    receipt_after_s: float = 0.01
    """A receipt goes out so long after something became durable: at most 50 ms."""
    streams_max: int = 100_000
    held_beat_s: float = 1.0
    """While reading is held, the sender hears so often that this side lives."""

    def __post_init__(self) -> None:
        assert 0 < self.receipt_after_s <= 0.05


class ReceiverStream:
    """One topic's stream. `write`: sends a frame. `dirty`: a receipt is due."""

    def __init__(
        self,
        number: int,
        source: str,
        source_number: int,
        log: ReplicatedLog,
        write: Write,
        dirty: Callable[[ReceiverStream], None],
        *,
        level: int = 1,
        take: Callable[[int], None] = lambda _: None,
        give: Callable[[int], None] = lambda _: None,
        incoming: IncomingLink | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """take, give: bytes of runs that are on their way to the bookies, and not any more."""
        self._take, self._give = take, give
        self.incoming, self._now_ms = incoming or IncomingLink(IncomingRegion()), now_ms
        self.incoming.connected, self.incoming.heard_ms = True, now_ms()
        log.comes_from(source, self.incoming)
        self.number, self.source, self.source_number, self.log = number, source, source_number, log
        self._write, self._dirty = write, dirty
        self._attempt = self._gapped = 0
        self._told: Position | None = None
        self._due: dict[Origin, None] = {}
        self._stops = [log.watch_vector(self._on_vector), log.watch_rollback(self._on_rollback)]
        if level >= 2:
            self._stops.append(log.subscriptions.channel(source, self._tell_claims))

    def end(self) -> None:
        for stop in self._stops:
            stop()
        if self.log.incoming.get(self.source) is self.incoming:  # else a newer stream is there already
            self.incoming.connected = False

    def on_run(self, attempt: int, previous: Position, run: Run) -> None:
        """Raises PeerError."""
        assert run.origin is not None
        if self._passes(attempt, run.origin):
            ledger, first, count = run.spans[-1]
            origin, last = run.origin, (ledger, first + count - 1)
            if last > self.log.state.intake.submitted(origin):
                run = received(run, self.source)
            size, give = run.size_bytes, self._give
            self._take(size)
            verdict = self.log.append_replicated(previous, run, lambda _: self._stored(run, size), lambda _: give(size))
            if verdict is not Verdict.ACCEPT:
                give(size)
            self._answer(attempt, origin, last, verdict)

    def _stored(self, run: Run, size_bytes: int) -> None:
        self._give(size_bytes)
        region = self.incoming.region
        region.latency.add(max(0.0, self._now_ms() - (run.origin_time_ms - region.clock_offset_ms)), run.messages)

    def on_skip(self, attempt: int, record: SkipRecord) -> None:
        """Raises PeerError."""
        if self._passes(attempt, record.origin):
            self._answer(attempt, record.origin, record.through, self.log.append_skip(record, _stored, _failed))

    def _tell_claims(self, subscription: str, claims: Claims) -> bool:
        self._write(wire.claims_frame(self.number, subscription, claims.fields()))
        return True

    def receipt(self) -> list[tuple[Origin, Position]]:
        """What to acknowledge, of the origins that a receipt is due for."""
        due, self._due = self._due, {}
        return [(origin, self._durable(origin)) for origin in due]

    def changed(self) -> bool:
        """Whether the topic has grown since this was asked last."""
        told, self._told = self._told, self.log.ledger.last_confirmed
        return told != self._told

    def _passes(self, attempt: int, origin: Origin) -> bool:
        if origin[0] != self.source_number or self.log.state.is_own(origin):
            raise PeerError(f"link: {self.source} is not where region {origin[0]} publishes, and in a full mesh the origin itself delivers")
        if attempt < self._attempt:
            raise PeerError("link: attempts count upwards")
        self._attempt = attempt
        return attempt > self._gapped

    def _answer(self, attempt: int, origin: Origin, last: Position, verdict: Verdict) -> None:
        if verdict is Verdict.GAP:
            self._gap(attempt)
        elif verdict is Verdict.DUPLICATE and last <= self._durable(origin):
            self._due[origin] = None
            self._dirty(self)

    def _durable(self, origin: Origin) -> Position:
        return self.log.vector.prefix(origin)

    def _gap(self, attempt: int) -> None:
        self._gapped = attempt
        self._write(wire.gap_frame(self.number, attempt, self.log.vector))

    def _on_vector(self, origin: Origin) -> None:
        if origin[0] == self.source_number:
            self._due[origin] = None
            self._dirty(self)

    def _on_rollback(self) -> None:
        if self._attempt > self._gapped:
            self._gap(self._attempt)


def _stored(_: Any) -> None:
    """The vector's watchers hear of it."""


def _failed(_: HeliographError) -> None:
    """The rollback's watchers hear of it."""


class LinkReceiver:
    """One connection of a link listener. `open_log(topic, source region)` loads (or creates) the topic; it raises what the sender is told."""

    def __init__(
        self,
        write: Write,
        open_log: Callable[[str, str], Awaitable[ReplicatedLog]],
        clock: Clock,
        *,
        region: str,
        region_number: Callable[[str], int | None],
        peer: str = "",
        settings: ReceiverSettings | None = None,
        budget: ReceiverBudget | None = None,
        incoming: Incoming | None = None,
    ) -> None:
        """region: this one's name. region_number: of a region by name, from the global configuration; None: no such region.

        budget, incoming: of the whole broker.
        peer: the region that the sender has proven to be; "": nothing is proven (no TLS), and its word counts.
        """
        self._write, self._open_log, self._clock = write, open_log, clock
        self._region, self._region_number, self._peer = region, region_number, peer
        self.settings = settings or ReceiverSettings()
        self._streams: dict[int, ReceiverStream] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._dirty: dict[int, ReceiverStream] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closes: dict[int, Callable[[], None]] = {}
        self._lost = False
        self.hold: Hold | None = None
        """Stops and continues reading; set by whoever owns the connection. Without it nothing is held."""
        self._incoming = incoming or Incoming()
        self._budget = budget or ReceiverBudget()
        self._budget_number = self._budget.number()
        self._held_timer: asyncio.TimerHandle | None = None

    def on_frame(self, kind: int, command: Buffer, payload: Buffer) -> None:
        """A private command: its type, the content of its field, what follows it. Raises PeerError."""
        number, fields = wire.parse(kind, command)
        if number is Kind.RUN:
            stream, attempt, previous, run = wire.read_run(fields, payload)
            if (open_stream := self._streams.get(stream)) is not None:
                open_stream.on_run(attempt, previous, run)
        elif number is Kind.SKIP:
            stream, attempt, record = wire.read_skip(fields)
            if (open_stream := self._streams.get(stream)) is not None:
                open_stream.on_skip(attempt, record)
        elif number is Kind.HEARTBEAT:
            self._on_heartbeat(wire.read_heartbeat(fields))
        elif number is Kind.CLAIMS:
            stream, subscription, content = wire.read_claims(fields)
            claims = read_claims(content)
            if (open_stream := self._streams.get(stream)) is not None:
                open_stream.log.subscriptions.heard(open_stream.source, subscription, claims)
        elif number is Kind.OPEN:
            self._on_open(*wire.read_open(fields))
        elif number is Kind.CLOSE:
            self._end(wire.read_close(fields)[0])
        else:
            raise PeerError(f"link: {number.name} is no command of a sender")

    def connection_lost(self) -> None:
        """Nothing is written after this."""
        self._lost = True
        self._budget.forget(self._budget_number)
        self._on_hold(False)
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._opening.values()):
            task.cancel()
        for number in list(self._streams):
            self._end(number)

    # -- streams -------------------------------------------------------------------------------------------------------

    def _on_open(self, number: int, topic: str, source: str, source_number: int, level: int) -> None:
        if number in self._streams or number in self._opening:
            raise PeerError(f"link: stream {number} is open already")
        if len(self._streams) + len(self._opening) >= self.settings.streams_max:
            raise PeerError(f"link: more than {self.settings.streams_max} streams on one connection")
        if self._peer and source != self._peer:
            text = f"the certificate is of region {self._peer}, which may not send as {source}"
            self._write(wire.close_frame(number, Cause.UNAUTHORIZED, text))
            return
        if level < 1 or self._region_number(source) != source_number:
            self._write(wire.close_frame(number, Cause.REFUSED, f"{self._region} knows no region {source} with number {source_number}"))
            return
        task = asyncio.get_running_loop().create_task(self._open(number, topic, source, source_number, level))
        self._opening[number] = task
        task.add_done_callback(lambda _: self._opening.pop(number, None))

    async def _open(self, number: int, topic: str, source: str, source_number: int, level: int) -> None:
        try:
            log = await self._open_log(topic, source)
        except HeliographError as error:
            events.info("link.refused topic=%s source=%s error=%r", topic, source, error)
            self._write(wire.close_frame(number, Cause.of(error), str(error)))
            return
        if log.closed is not None:
            self._write(wire.close_frame(number, Cause.MOVED, str(log.closed)))
            return
        self._streams[number] = ReceiverStream(
            number,
            source,
            source_number,
            log,
            self._write,
            self._on_dirty,
            level=level,
            take=self._take,
            give=self._budget.give,
            incoming=IncomingLink(self._incoming.region(source)),
            now_ms=self._clock.wall_ms,
        )
        self._closes[number] = log.watch_close(lambda: self._on_log_closed(number))
        self._write(wire.opened_frame(number, log.origin[2], self.settings.window_bytes, log.vector))

    def _on_log_closed(self, number: int) -> None:
        self._end(number)
        self._write(wire.close_frame(number, Cause.MOVED, "the topic is being unloaded here"))

    def _end(self, number: int) -> None:
        if (stream := self._streams.pop(number, None)) is not None:
            stream.end()
            self._closes.pop(number)()
            self._dirty.pop(number, None)

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _take(self, size_bytes: int) -> None:
        self._budget.take(self._budget_number, self._on_hold, size_bytes)

    def _on_hold(self, hold: bool) -> None:
        """While nothing is read, heartbeats are not answered: the sender is told unasked that this side lives."""
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None
        if self._lost or self.hold is None:
            return
        self.hold(hold)
        if hold:
            self._held_timer = asyncio.get_running_loop().call_later(self.settings.held_beat_s, self._beat_while_held)

    def _beat_while_held(self) -> None:
        self._held_timer = asyncio.get_running_loop().call_later(self.settings.held_beat_s, self._beat_while_held)
        self._write(wire.heartbeat_frame(Heartbeat(self._clock.wall_ms(), 0, 0)))

    # -- receipts ------------------------------------------------------------------------------------------------------

    def _on_dirty(self, stream: ReceiverStream) -> None:
        self._dirty[stream.number] = stream
        if self._timer is None and not self._lost:
            self._timer = asyncio.get_running_loop().call_later(self.settings.receipt_after_s, self._send_receipts)

    def _send_receipts(self) -> None:
        self._timer = None
        dirty, self._dirty = self._dirty, {}
        frames: list[Buffer] = []
        for number, stream in dirty.items():
            if through := stream.receipt():
                frames += wire.receipt_frame(number, through)
        if frames and not self._lost:
            self._write(frames)

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        """Learns what the source tells, and answers with what is known here."""
        now = self._clock.wall_ms()
        answers: list[StreamBeat] = []
        for told in beat.streams:
            stream = self._streams.get(told.stream)
            if stream is None:
                continue
            log = stream.log
            if told.risk is not None:
                stream.incoming.risk = told.risk
            if told.last_confirmed is not None and told.last_confirmed[1] > BEFORE_ALL:
                log.source_ends[stream.source] = (*told.last_confirmed, now)
            for region, vector in told.vectors.items():
                if region != self._region:
                    log.learn(region, vector, now)
        for stream in self._streams.values():
            stream.incoming.heard_ms = now
            if beat.echo_ms:
                heard = stream.incoming.region
                heard.rtt_ms = max(0.0, float(now - beat.echo_ms - beat.echo_age_ms))
                heard.clock_offset_ms = beat.wall_ms - now + heard.rtt_ms / 2
            if stream.changed():
                answers.append(StreamBeat(stream.number, stream.log.last_own(), {self._region: stream.log.vector}))
        self._write(wire.heartbeat_frame(Heartbeat(now, beat.wall_ms, 0, tuple(answers))))
