"""LinkReceiver: the target's half of the links that come in on one connection.

Is: OPEN, RUN, SKIP, SCHEMAS, and HEARTBEAT of any number of streams (one stream: one topic on this connection), and
what is answered: the shell around them. Isn't: the rule what to accept (`replicator.dedup.version_vector`), or a
listener.
Invariants: those of each stream (`replicator.receiving.receiver_stream`); a claim that is not the source's to make ends
that stream alone: it is said to the source, logged, and counted.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from heliograph.model.empty_dict import own
from heliograph.model.errors import LinkError, PeerError, reason_of
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.byte_budget import ByteBudget
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.audit_commands import read_ask, read_tell
from heliograph.wire.links.link_commands import LinkFrameKind, LinkHeartbeat, SkipRecord, StreamBeat
from heliograph.wire.links.schema_commands import SchemaRow, read_schemas, schemas_stream
from heliograph.wire.run import Buffer, Run
from replicator.audit.auditor import Auditor
from replicator.health.incoming_stats import Heard, IncomingLink, IncomingRegion, IncomingStats
from replicator.health.link_causes import Cause
from replicator.health.round_trips import RoundTrips
from replicator.links.schema_feed import SchemaConflict, SchemaHost
from replicator.log.replicated_log import ReplicatedLog
from replicator.receiving.link_session import LinkSession
from replicator.receiving.receiver_stream import ReceiverStream, RelayRights
from replicator.subscriptions.ack_claims import read_claims

events = logging.getLogger("replicator")

_Behind = tuple[int, Position, Run] | tuple[int, SkipRecord]
_SKIP_BYTES = 256
"""About what a SKIP takes in memory."""
_RECEIPT_AFTER_S = 0.01
"""A receipt goes out so long after something became durable: at most 50 ms."""
STREAMS_MAX = 100_000
"""Of one connection; a peer that opens more is cut off."""
_HELD_BEAT_S = 1.0
"""While reading is held, the sender hears so often that this side lives."""


class _Adopting:
    """A stream whose schemas are being stored: how many SCHEMAS are left, and what came behind them, in bytes of the
    budget.
    """

    __slots__ = ("left", "size_bytes", "waiting")

    def __init__(self) -> None:
        self.left = self.size_bytes = 0
        self.waiting: list[_Behind] = []


_Adoption = tuple[LinkFrameKind, ReceiverStream, _Adopting, list[SchemaRow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings:
    window_bytes: int = 16 << 20
    unpacked_bytes: int = 4 << 20
    """So many bytes of compressed runs are unpacked at once: a read of 256 KiB can hold 2 GiB of them."""
    adopters: int = 32
    """So many topics' schemas are stored at once: each takes round trips to the metadata, and all may come together."""
    feature_level: int = wire.FEATURE_LEVEL
    """What sources are told that this side understands."""


class LinkReceiver:
    """One connection of a link listener. `open_log(topic, source region)` loads (or creates) the topic; it raises what
    the sender is told.
    """

    def __init__(
        self,
        session: LinkSession,
        open_log: Callable[[str, str], Awaitable[ReplicatedLog]],
        clock: Clock,
        *,
        region: str,
        region_number: Callable[[str], int | None],
        relays: RelayRights,
        settings: ReceiverSettings | None = None,
        budget: ByteBudget[LinkReceiver] | None = None,
        incoming: IncomingStats | None = None,
        auditor: Auditor | None = None,
        schemas: SchemaHost | None = None,
    ) -> None:
        """region: this one's name. region_number: of a region by name, from the global configuration; None: no such
        region.

        budget, incoming: of the whole broker.
        """
        self._session, self._open_log, self._clock = session, open_log, clock
        self._write, self._region, self._region_number = session.write, region, region_number
        self._relays = relays
        self.settings = settings or ReceiverSettings()
        self._streams: dict[int, ReceiverStream] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._adopting: dict[int, _Adopting] = {}
        self._adoptions: dict[str, deque[_Adoption]] = {}
        """Topic without partition -> its SCHEMAS, which are stored in their order."""
        self._due: deque[str] = deque()
        """Topics among them that no adopter has begun with."""
        self._adopters: dict[asyncio.Task[None], None] = {}
        self._dirty: dict[int, ReceiverStream] = {}
        self._grown: dict[int, ReceiverStream] = {}
        """Streams whose topic has more than the source was told of with a heartbeat."""
        self._heard = Heard(clock.monotonic)
        self._way = RoundTrips()
        self._sources: dict[str, IncomingRegion] = {}
        """Regions that have, or had, a stream here: one, but in tests."""
        self._timer: asyncio.TimerHandle | None = None
        self._closes: dict[int, Callable[[], None]] = {}
        self._lost = False
        self._kept: deque[tuple[int, Buffer, Buffer]] = deque()
        """Frames of the last read that wait until more may be unpacked."""
        self._next: asyncio.Handle | None = None
        self._held = False
        self._unpacked = 0
        """Bytes since the last read, or since the loop's last pass over what is kept."""
        self._incoming, self._auditor, self._schemas = incoming or IncomingStats(), auditor, schemas
        self._budget = budget or inflight_budget()
        self._held_timer: asyncio.TimerHandle | None = None

    def on_bytes(self) -> None:
        """Something came on the connection: its source is heard, also in the middle of a frame that takes a minute on a
        narrow way.
        """
        self._heard.bytes()
        if not self._kept:
            self._unpacked = 0

    def on_frame(self, kind: int, command: Buffer, payload: Buffer) -> None:
        """A private command: its type, the content of its field, what follows it. Raises PeerError."""
        if self._kept:
            self._kept.append((kind, bytes(command), bytes(payload)))
            return
        if not self._handle(kind, command, payload):
            self._kept.append((kind, bytes(command), bytes(payload)))
            if not self._held:
                self._stop_reading(True)
                self._go_on_later()

    def _go_on_later(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._handle_kept)

    def _handle_kept(self) -> None:
        self._next, self._unpacked = None, 0
        try:
            while self._kept and not self._lost and self._handle(*self._kept[0]):
                self._kept.popleft()
        except Exception as error:  # whatever it is, the connection ends, as where it is read
            report_unexpected(error, "a frame of a link could not be handled")
            self._kept.clear()
            self._session.refuse(reason_of(error))
            return
        if not self._held:
            if self._kept:
                self._go_on_later()
            else:
                self._stop_reading(False)

    def _handle(self, kind: int, command: Buffer, payload: Buffer) -> bool:
        """False: it is to wait until more may be unpacked. Raises PeerError."""
        number, fields = wire.parse(kind, command)
        if number is LinkFrameKind.RUN:
            stream, packed_bytes = wire.run_stream(fields)
            if (open_stream := self._streams.get(stream)) is None:
                return True
            if packed_bytes and (
                self._held or (self._unpacked and self._unpacked + packed_bytes > self.settings.unpacked_bytes)
            ):
                return False
            self._unpacked += packed_bytes
            _, attempt, previous, run = wire.read_run(fields, payload)
            if (adopting := self._adopting.get(stream)) is not None:
                self._wait(adopting, (attempt, previous, run), run.size_bytes)
            else:
                self._take_in(open_stream, (attempt, previous, run))
        elif number is LinkFrameKind.SKIP:
            stream, attempt, record = wire.read_skip(fields)
            if (adopting := self._adopting.get(stream)) is not None:
                self._wait(adopting, (attempt, record), _SKIP_BYTES)
            elif (open_stream := self._streams.get(stream)) is not None:
                self._take_in(open_stream, (attempt, record))
        elif number is LinkFrameKind.HEARTBEAT:
            self._on_heartbeat(wire.read_heartbeat(fields))
        elif number is LinkFrameKind.CLAIMS:
            stream, subscription, content = wire.read_claims(fields)
            claims = read_claims(content)
            if (open_stream := self._streams.get(stream)) is not None:
                open_stream.log.subscriptions.heard(open_stream.source, subscription, claims)
        elif number is LinkFrameKind.ASK:
            stream, request, ask = read_ask(fields)
            if (open_stream := self._streams.get(stream)) is not None and self._auditor is not None:
                open_stream.on_ask(request, ask, self._auditor)
        elif number is LinkFrameKind.TELL:
            stream, request, content, payload = read_tell(fields, payload)
            if (open_stream := self._streams.get(stream)) is not None and self._auditor is not None:
                self._auditor.told(open_stream.source, request, content, payload)
        elif number is LinkFrameKind.SCHEMAS or number is LinkFrameKind.OVERRULE:
            if (open_stream := self._streams.get(schemas_stream(fields))) is not None and self._schemas is not None:
                try:
                    if rows := read_schemas(fields)[1]:
                        self._adopt(number, open_stream, rows, self._schemas)
                except PeerError as error:  # earlier versions tell any number of rows in one frame
                    self._refuse(open_stream.number, Cause.SCHEMA_REFUSED, str(error))
        elif number is LinkFrameKind.OPEN:
            self._on_open(*wire.read_open(fields))
        elif number is LinkFrameKind.CLOSE:
            self._on_close(wire.read_close(fields)[0])
        else:
            raise PeerError(f"link: {number.name} is no command of a sender")
        return True

    def connection_lost(self) -> None:
        """Nothing is written after this."""
        self._lost = True
        self._kept.clear()
        self._budget.forget(self)
        self.on_hold(False)
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._opening.values(), *self._adopters]:
            task.cancel()
        for number in list(self._streams):
            self._end(number)
        for source in self._sources.values():
            source.end(self._heard)
        self._sources.clear()

    # -- streams -------------------------------------------------------------------------------------------------------

    def _on_open(self, number: int, topic: str, source: str, source_number: int, level: int) -> None:
        if number in self._streams or number in self._opening:
            raise PeerError(f"link: stream {number} is open already")
        if len(self._streams) + len(self._opening) >= STREAMS_MAX:
            raise PeerError(f"link: more than {STREAMS_MAX} streams on one connection")
        if self._session.peer and source != self._session.peer:
            text = f"the certificate is of region {self._session.peer}, which may not send as {source}"
            self._write(wire.close_frame(number, Cause.UNAUTHORIZED, text))
            return
        if level < 1 or self._region_number(source) != source_number:
            self._write(
                wire.close_frame(
                    number, Cause.REFUSED, f"{self._region} knows no region {source} with number {source_number}"
                )
            )
            return
        task = asyncio.get_running_loop().create_task(self._open(number, topic, source, source_number, level))
        self._opening[number] = task
        task.add_done_callback(lambda done: self._on_opening_over(number, done))

    def _on_opening_over(self, number: int, task: asyncio.Task[None]) -> None:
        if self._opening.get(number) is task:
            del self._opening[number]

    def _on_close(self, number: int) -> None:
        """The source gives the stream up, maybe before its topic is loaded: then there is none, and no answer."""
        if (task := self._opening.pop(number, None)) is not None:
            task.cancel()
        self._end(number)

    async def _open(self, number: int, topic: str, source: str, source_number: int, level: int) -> None:
        try:
            log = await self._open_log(topic, source)
        except Exception as error:  # whatever it is, the source hears of it
            report_unexpected(error, "a topic could not be opened for a link")
            events.info("link.refused", extra={"topic": topic, "source": source, "error": reason_of(error)})
            self._write(wire.close_frame(number, Cause.of(error, Cause.REFUSED), reason_of(error)))
            return
        if log.closed is not None:
            self._write(wire.close_frame(number, Cause.MOVED, str(log.closed)))
            return
        region = self._incoming.region(source)
        if source not in self._sources:
            self._sources[source] = region
            region.on.append(self._heard)
        self._streams[number] = self._grown[number] = ReceiverStream(
            number,
            source,
            source_number,
            log,
            self._write,
            self._on_dirty,
            region=self._region,
            level=level,
            take=self._take,
            give=self._budget.give,
            grew=self._on_grown,
            incoming=IncomingLink(region, self._heard),
            relays=self._relays,
            now_ms=self._clock.wall_ms,
        )
        self._closes[number] = log.watch_close(lambda: self._on_log_closed(number))
        self._write(
            wire.opened_frame(
                number, log.origin[2], self.settings.window_bytes, log.vector, self.settings.feature_level
            )
        )

    def _adopt(self, kind: LinkFrameKind, stream: ReceiverStream, rows: list[SchemaRow], host: SchemaHost) -> None:
        """What comes behind them on this stream waits until they are stored, and counts, with them, as not durable."""
        adopting = self._adopting.setdefault(stream.number, _Adopting())
        adopting.left += 1
        self._count(adopting, sum(len(value) for _, value in rows))
        topic = str(TopicName.parse(stream.log.topic).partitioned)  # all partitions have one schema
        if (waiting := self._adoptions.get(topic)) is None:
            waiting = self._adoptions[topic] = deque()
            self._due.append(topic)
            if len(self._adopters) < self.settings.adopters:
                task = asyncio.get_running_loop().create_task(self._adopt_all(host))
                self._adopters[task] = None
        waiting.append((kind, stream, adopting, rows))

    def _wait(self, adopting: _Adopting, what: _Behind, size_bytes: int) -> None:
        adopting.waiting.append(what)
        self._count(adopting, size_bytes)

    def _count(self, adopting: _Adopting, size_bytes: int) -> None:
        adopting.size_bytes += size_bytes
        self._take(size_bytes)

    async def _adopt_all(self, host: SchemaHost) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._due:
                waiting = self._adoptions[topic := self._due.popleft()]
                try:
                    while waiting:
                        await self._adopt_one(host, *waiting.popleft())
                finally:
                    del self._adoptions[topic]
        finally:  # in the pass in which it sees that nothing is due: what comes behind that begins another one
            self._adopters.pop(task, None)

    async def _adopt_one(
        self, host: SchemaHost, kind: LinkFrameKind, stream: ReceiverStream, adopting: _Adopting, rows: list[SchemaRow]
    ) -> None:
        number, topic = stream.number, stream.log.topic
        if self._adopting.get(number) is not adopting:
            return  # the stream has ended
        refused: tuple[Cause, str, Sequence[SchemaRow]] | None = None
        try:
            await (host.overrule if kind is LinkFrameKind.OVERRULE else host.adopt)(topic, rows)
        except SchemaConflict as error:
            refused = Cause.SCHEMA_CONFLICT, str(error), error.rows
        except Exception as error:  # whatever it is, the sender comes again, and tells everything again
            report_unexpected(error, "schemas of a link could not be stored")
            events.warning("link.schemas_failed", extra={"topic": topic, "error": reason_of(error)})
            refused = Cause.of(error, Cause.REFUSED), f"its schemas could not be stored: {reason_of(error)}", ()
        adopting.left -= 1
        if self._adopting.get(number) is not adopting:
            return
        if refused is not None:
            self._refuse(number, *refused)
        elif not adopting.left:
            self._go_on(number, stream)

    def _go_on(self, number: int, stream: ReceiverStream) -> None:
        adopting = self._adopting.pop(number)
        self._budget.give(adopting.size_bytes)
        try:
            for behind in adopting.waiting:
                if self._streams.get(number) is not stream:
                    return
                self._take_in(stream, behind)
        except PeerError as error:
            self._refuse(number, Cause.PROTOCOL, str(error))
        except Exception as error:  # whatever it is, other streams go on
            report_unexpected(error, "what came behind schemas of a link could not be handled")
            self._refuse(number, Cause.of(error, Cause.REFUSED), reason_of(error))

    def _take_in(self, stream: ReceiverStream, what: _Behind) -> None:
        try:
            if len(what) == 3:
                stream.on_run(*what)
            else:
                stream.on_skip(*what)
        except LinkError as error:
            self._on_claim(stream, error)

    def _on_claim(self, stream: ReceiverStream, error: LinkError) -> None:
        """The source claimed what is not its own to say. It comes again: one of both sides may only not know yet."""
        stream.incoming.refused(str(error), self._clock.wall_ms())
        events.warning(
            "link.origin_refused", extra={"topic": stream.log.topic, "source": stream.source, "error": str(error)}
        )
        self._refuse(stream.number, Cause.of(error), str(error))

    def _refuse(self, number: int, cause: Cause, text: str, rows: Sequence[SchemaRow] = ()) -> None:
        if number in self._streams and not self._lost:
            self._end(number)
            self._write(wire.close_frame(number, cause, text, rows))

    def _on_log_closed(self, number: int) -> None:
        self._end(number)
        self._write(wire.close_frame(number, Cause.MOVED, "the topic is being unloaded here"))

    def _end(self, number: int) -> None:
        if (stream := self._streams.pop(number, None)) is not None:
            stream.end(self._heard if self._lost else self._heard.stopped())
            self._closes.pop(number)()
            self._dirty.pop(number, None)
            self._grown.pop(number, None)
            if (adopting := self._adopting.pop(number, None)) is not None:
                self._budget.give(adopting.size_bytes)

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _take(self, size_bytes: int) -> None:
        self._budget.take(self, size_bytes)

    def on_hold(self, hold: bool) -> None:
        self._held = hold
        if hold or not self._kept:
            self._stop_reading(hold)
        elif not self._lost:
            self._go_on_later()

    def _stop_reading(self, hold: bool) -> None:
        """While nothing is read, heartbeats are not answered: the sender is told unasked that this side lives."""
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None
        if self._lost or self._session.hold is None:
            return
        self._session.hold(hold)
        if hold:
            self._held_timer = asyncio.get_running_loop().call_later(_HELD_BEAT_S, self._beat_while_held)

    def _beat_while_held(self) -> None:
        self._held_timer = asyncio.get_running_loop().call_later(_HELD_BEAT_S, self._beat_while_held)
        self._write(wire.heartbeat_frame(LinkHeartbeat(self._clock.wall_ms(), 0, 0)))

    def _on_grown(self, stream: ReceiverStream) -> None:
        self._grown[stream.number] = stream

    # -- receipts ------------------------------------------------------------------------------------------------------

    def _on_dirty(self, stream: ReceiverStream) -> None:
        self._dirty[stream.number] = stream
        if self._timer is None and not self._lost:
            self._timer = asyncio.get_running_loop().call_later(_RECEIPT_AFTER_S, self._send_receipts)

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

    def _on_heartbeat(self, beat: LinkHeartbeat) -> None:
        """Learns what the source tells, and answers with what is known here: as much as a frame takes, the rest with
        the next answer.
        """
        now = self._clock.wall_ms()
        answers: list[StreamBeat] = []
        for told in beat.streams:
            stream = self._streams.get(told.stream)
            if stream is None:
                continue
            log = stream.log
            if told.last_confirmed is not None and told.last_confirmed[0][0] != stream.source_number:
                self._on_claim(
                    stream, stream.refused(told.last_confirmed[0], "it names an entry there as its own last")
                )
                continue
            if told.risk is not None:
                stream.incoming.risk, stream.incoming.told = told.risk, True
            if told.last_confirmed is not None and told.last_confirmed[1] > BEFORE_ALL:
                log.source_ends = own(log.source_ends)
                log.source_ends[stream.source] = (*told.last_confirmed, now)
            for region, vector in told.vectors.items():
                if region != self._region:
                    log.learn(region, vector, now, stream.source)
        if (unopened := beat.unopened) is not None:  # also on a connection without a stream
            if self._session.peer not in ("", unopened.source):
                raise PeerError(f"link: region {self._session.peer} speaks for {unopened.source}")
            if self._region_number(unopened.source) is not None:
                self._incoming.region(unopened.source).unopened.take(unopened, self._heard.now())
        self._way.heard(beat, now, self._clock.monotonic())
        if beat.echo_ms:
            for source in self._sources.values():
                source.rtt_ms, source.clock_offset_ms = self._way.rtt_ms, self._way.offset_ms
                source.clock_ahead_ms = self._way.ahead_ms
        grown, self._grown = self._grown, {}
        size_bytes = 0
        for number, stream in grown.items():
            if size_bytes >= wire.HEARTBEAT_BYTES:
                self._grown[number] = stream
                continue
            log = stream.log
            vectors = (
                {region: vector for region, (vector, _) in log.known.items() if region != stream.source}
                if log.state.trees
                else {}
            )
            answers.append(StreamBeat(number, log.last_own(), {**vectors, self._region: log.vector}))
            size_bytes += answers[-1].size_bytes
        self._write(wire.heartbeat_frame(LinkHeartbeat(now, beat.wall_ms, 0, tuple(answers))))


def inflight_budget(bytes_max: int = 64 << 20) -> ByteBudget[LinkReceiver]:
    """What all links that come in at a broker hold that is not durable yet, whatever the number of topics."""
    return ByteBudget(bytes_max, LinkReceiver.on_hold)
