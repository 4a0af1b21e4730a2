"""PulsarConnection: one connection of a client, as `asyncio.Protocol`.

Is: bytes in and out, the handshake, keep-alive, back-pressure, and the sink of its producers and consumers. Isn't: an
answer to a command (`publishing`, `consumer_commands`, `command_table`).
Invariants: commands are handled in the order in which they came; a fault of the peer closes this connection and nothing
else; at most one write a loop pass, but for receipts that no other can follow in it; nothing is written after `close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, cast

from heliograph.model.errors import HeliographError, PeerError
from heliograph.model.roles.certificate_role import REPLICATOR, peer_identity
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.frame_cutter import (
    HANDSHAKE_BYTES_MAX,
    BadSend,
    Event,
    Flow,
    FrameCutter,
    Private,
    ReplicatedSend,
    SendRun,
    StraySend,
)
from heliograph.wire.pulsar.server_frames import frame
from heliograph.wire.run import Buffer, Run
from region_node.faces.flow_control import PacedStarts
from region_node.faces.open_connections import OpenConnections
from region_node.faces.pulsar.commands.command_rights import CommandRight
from region_node.faces.pulsar.commands.command_table import SERVED
from region_node.faces.pulsar.commands.producer_commands import send_producer_success
from region_node.faces.pulsar.connection.connection_admission import Admission
from region_node.faces.pulsar.connection.unsent_answers import UnsentAnswers
from region_node.faces.pulsar.server_errors import code_of
from region_node.faces.pulsar.session.deliveries import Delivery
from region_node.faces.pulsar.session.publishing import NO_REQUEST
from region_node.faces.pulsar.session.pulsar_broker import AnsweredCommand, LinkFrames, PulsarBroker
from region_node.faces.pulsar.session.pulsar_session import PulsarSession
from region_node.subscriptions.consumer import Consumer
from region_node.topics.producers import Producer
from replicator.receiving.link_session import LinkSession

log = logging.getLogger("region_node.pulsar")

PROTOCOL_VERSION = 21
LARGE_BYTES = 16 << 10
"""A request of more counts with its bytes while it waits."""
_LARGE = "large requests"
_BEGINNING = "requests that are not begun yet"
_FRAME_ROOM = 10 << 10
_LINK_ROOM = 128 << 10
"""An entry of the largest size grows on a link, by its run's header and `replicated_from`."""
_JOIN_BELOW = 1 << 16
_SHOWN_MAX = 256
"""Characters that are kept of what a client says that it is."""
WRITE_BUFFER_BYTES = 1 << 20
"""The high-water mark of what waits to be written to one connection; above it dispatch to it stops."""
_GET = b"GET "
"""As a frame's size it would be more than a gigabyte."""


class PulsarConnection(asyncio.Protocol):
    """`session`: what handlers know of it. `link`: on a link listener private commands are allowed. `balanced`: a load
    balancer's header comes first.
    """

    def __init__(
        self,
        opened: OpenConnections[PulsarConnection],
        broker: PulsarBroker,
        *,
        link: bool,
        balanced: bool = False,
    ) -> None:
        self._opened, self._broker, self.link = opened, broker, link
        self.limits, settings = broker.settings.limits, broker.settings
        self.admission = Admission(self, opened.addresses, HANDSHAKE_BYTES_MAX, balanced=balanced)
        self.cutter = FrameCutter(private=link, bytes_max=HANDSHAKE_BYTES_MAX)
        self.peer_region = ""
        self.session = PulsarSession(self, broker)
        self.certificate: dict[str, Any] | None = None
        self.broker_metadata = False
        """Messages go out with the broker's time and their index."""
        self.connected = False
        self.closed = False
        self.number = 0
        """Counts this broker's connections, in the log: with a request's id it names what a client was refused."""
        self.address = self.client_version = ""
        self.tls = False
        self.protocol_version = 0
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self.unflushed_bytes = 0
        self._paused = False
        self.unsent = UnsentAnswers(self, settings.unsent_bytes_max)
        self._heard = True
        self._reading_held = False
        self._holds: dict[object, None] = {}
        self._requests = self._request_bytes = 0
        self._starts = PacedStarts(
            self._begin, asyncio.get_running_loop().call_soon, lambda hold: self.hold_reading(hold, _BEGINNING)
        )
        self._pinged_at = 0.0
        self._since = self._heard_at = broker.clock.monotonic()
        self._alive: list[asyncio.Future[bool]] = []
        self._link_frames: LinkFrames | None = None
        self.by_position = False
        """The client is one that wants receipts to name positions at the source."""

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none
        self.number = self._opened.next_number()
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        if isinstance(peer, tuple):
            self.came_from(host, peer[1])
        settings = self._broker.settings
        if len(self._opened.all) >= settings.connections_max:
            self.close(f"too many connections: at most {settings.connections_max} are allowed here", pb.TooManyRequests)
            return
        self.certificate = transport.get_extra_info("peercert")
        self.tls = transport.get_extra_info("ssl_object") is not None
        role, self.peer_region = peer_identity(self.certificate)
        if self.link and self.tls and (role != REPLICATOR or not self.peer_region):
            self.close("only a replicator of this instance may connect here", pb.AuthorizationError)
            return
        if self.admission.header is None and not self.admission.enter(host):
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._opened.all[self] = None

    def came_from(self, host: str, port: int) -> None:
        """The client's own address is known."""
        self.address = f"/{host}:{port}"

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._link_frames is not None:
            self._link_frames.on_bytes()
        if self.closed:
            return
        if self.admission.header is not None:
            data = self.admission.behind_header(self.admission.header, data)
            if not data:
                return
        lone = self.cutter.lone(data)
        if lone is not None:
            self.session.producing.take(lone)
            return
        if not self.connected and data[:4] == _GET and self._redirected(data):
            return
        if self.admission.waits:
            self.admission.hold(self.cutter.feed(data), len(data))
        else:
            self._handle(self.cutter.feed(data))

    def _redirected(self, data: bytes) -> bool:
        """HTTP came: who knows a service URL alone learns the admin port here; by TLS only one with TLS, as credentials
        follow. False: none is told.
        """
        admin_url = self._broker.lookup.admin_urls[self.tls]
        path = data[4:].split(None, 1)[0].decode("latin-1") if admin_url and not self.link else ""
        if not path.startswith("/"):
            return False
        self.write(
            (
                f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {admin_url}{path}\r\nContent-Length: 0\r\nConnection: "
                "close\r\n\r\n"
            ).encode("latin-1")
        )
        self.close()
        return True

    def _handle(self, events: Iterator[Event]) -> None:
        try:
            for event in events:
                self._take(event)
                if self.closed:
                    return
                if self.session.identity.busy:
                    self.admission.hold(events)
                    return
            if self.session.replicated is not None:
                self.session.replicated.flush()
        except PeerError as error:
            log.info("connection.refused", extra={"address": self.address, "error": str(error)})
            self.close(str(error))

    def go_on(self) -> None:
        """CONNECT is answered: what waited behind it is handled."""
        self._handle(self.admission.release())

    def _take(self, event: Event) -> None:
        if isinstance(event, SendRun):
            self.session.producing.take(event)
        elif isinstance(event, Flow):
            self.session.consuming.flow(event.consumer_id, event.permits)
        elif isinstance(event, pb.BaseCommand):
            row = SERVED.get(event.type)
            if not self.connected and (row is None or row.right is not CommandRight.NONE):
                raise PeerError("the first command must be CONNECT")
            if row is None:
                raise PeerError(f"command {pb.BaseCommand.Type.Name(event.type)} is not one that a client sends")
            if self.link and not row.links:
                raise PeerError(f"{pb.BaseCommand.Type.Name(event.type)} is none of the commands of a link")
            row.handler(self.session, event)
        elif isinstance(event, ReplicatedSend):
            assert self.session.replicated is not None
            if (other := self.session.replicated.take(event)) is not None:
                self._take(other)
        elif isinstance(event, BadSend):
            self.session.producing.bad_send(event)
        elif isinstance(event, Private):
            if not self.connected or self._link_frames is None:
                raise PeerError("a private command on a connection that is no link")
            self._link_frames.on_frame(event.kind, event.command, event.payload)
        else:
            assert isinstance(
                event, StraySend
            )  # sent before the client heard that its producer is closed: it sends it again

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._opened.lost(self, known=self.connected)
        self.admission.leave()
        self.session.end()
        if self._link_frames is not None:
            self._link_frames.connection_lost()
        for waiting in self._alive:
            if not waiting.done():
                waiting.set_result(False)
        self._out, self._transport = [], None
        self.unsent.drained()

    # -- handshake and life

    def connect(self, command: pb.CommandConnect) -> None:
        if self.connected:
            raise PeerError("CONNECT came twice")
        self.session.identity.connect(command)

    def accept(self, command: pb.CommandConnect) -> None:
        """The client is known: answers CONNECT."""
        settings = self._broker.settings
        self.connected = True
        self.client_version = command.client_version[:_SHOWN_MAX]
        self.protocol_version = min(command.protocol_version, PROTOCOL_VERSION)
        self.cutter.bytes_max = settings.message_bytes_max + (_LINK_ROOM if self.link else _FRAME_ROOM)
        if self.link and self._broker.link_receivers is not None:
            self._link_frames = self._broker.link_receivers(
                LinkSession(self.write_all, self.peer_region, lambda hold: self.hold_reading(hold, "links"), self.close)
            )
        self.by_position = command.feature_flags.supports_repl_dedup_by_lid_and_eid
        self.broker_metadata = settings.broker_entry_metadata and command.feature_flags.supports_broker_entry_metadata
        connected = pb.CommandConnected(
            server_version=settings.server_version,
            protocol_version=self.protocol_version,
            max_message_size=settings.message_bytes_max,
            feature_flags=pb.FeatureFlags(
                supports_get_partitioned_metadata_without_auto_creation=True,
                supports_topic_watchers=True,
                supports_auth_refresh=not self._broker.security.authentication.open,
                supports_broker_entry_metadata=settings.broker_entry_metadata,
                supports_repl_dedup_by_lid_and_eid=True,
            ),
        )
        self.send(pb.BaseCommand(type=pb.BaseCommand.CONNECTED, connected=connected))

    def tick(self, now: float) -> None:
        """Called a few times in each keep-alive period."""
        settings = self._broker.settings
        if self.closed:
            if self._transport is not None and now - self._since >= settings.handshake_timeout_s:
                self._transport.abort()  # the peer does not take what waits for it
            return
        taking = self._transport is not None and self.unsent.held and self.unsent.taken(self._transport)
        if self._heard or taking or (self._reading_held and not self.unsent.held):
            self._heard, self._heard_at, self._pinged_at = False, now, 0.0
        self.session.identity.tick(now, self._broker.clock.wall_ms())
        if not self.connected:
            if now - self._since >= settings.handshake_timeout_s:
                self.close("no CONNECT in time")
        elif self._pinged_at:
            if now - self._pinged_at >= settings.keep_alive_s:
                log.info("connection.silent", extra={"address": self.address})
                self.close()
        elif now - self._heard_at >= settings.keep_alive_s:
            self._ping(now)

    def spare(self, seconds: float) -> None:
        """The broker itself stood still for so long: what the peer has sent meanwhile lies unread, and is not late by
        that.
        """
        self._since += seconds
        self._heard_at += seconds
        if self._pinged_at:
            self._pinged_at += seconds

    def _ping(self, now: float) -> None:
        self._pinged_at = now
        self.send(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))

    async def alive(self) -> bool:
        """Whether the peer answers a PING within a third of the keep-alive time; closes the connection where it does
        not.
        """
        if self.closed:
            return False
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bool] = loop.create_future()
        self._alive.append(waiting)
        self.send(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
        timer = loop.call_later(self._broker.settings.keep_alive_s / 3, self.close)
        try:
            return await waiting
        finally:
            timer.cancel()
            self._alive.remove(waiting)

    def pong(self) -> None:
        for waiting in self._alive:
            if not waiting.done():
                waiting.set_result(True)

    def close(self, reason: str = "", code: pb.ServerError.ValueType = pb.UnknownError) -> None:
        """Writes what waits, and the reason where there is one; then closes."""
        if self.closed:
            return
        if reason:
            self.send_error(NO_REQUEST, code, reason)
        self.flush()
        self.closed = True
        self._since = self._broker.clock.monotonic()
        if self._transport is not None:
            self._transport.close()

    # -- writing

    def send(self, command: pb.BaseCommand) -> None:
        self.write(frame(command))

    def send_error(self, request_id: int, code: pb.ServerError.ValueType, text: str) -> None:
        self.refused(request_id, code, text)
        error = pb.CommandError(request_id=request_id, error=code, message=text)
        self.send(pb.BaseCommand(type=pb.BaseCommand.ERROR, error=error))

    def refused(self, request_id: int, code: pb.ServerError.ValueType, text: str, **more: Any) -> None:
        """One line in the log for each command that is refused, whatever answers it. request_id: NO_REQUEST where the
        connection itself is.
        """
        named = {} if request_id == NO_REQUEST else {"request": request_id}
        fields = {
            "connection": self.number,
            "address": self.address,
            **named,
            "code": pb.ServerError.Name(code),
            "error": text,
            **more,
        }
        log.info("request.refused", extra=fields)

    def send_success(self, request_id: int) -> None:
        self.send(pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))

    def write(self, data: Buffer) -> None:
        if self.closed:
            return
        if not self._out:
            self._opened.outbox.add(self)
        self._out.append(data)
        self.unflushed_bytes += len(data)

    def write_all(self, data: Sequence[Buffer]) -> None:
        for buffer in data:
            self.write(buffer)

    def flush(self) -> None:
        """One write of everything that waits."""
        out, size = self._out, self.unflushed_bytes
        if not out or self._transport is None or self.closed:
            return
        self._out, self.unflushed_bytes = [], 0
        if len(out) == 1:
            self._transport.write(out[0])
        elif size < _JOIN_BELOW * len(out):
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        if self._paused:
            self.unsent.look(self._transport)
        elif size >= WRITE_BUFFER_BYTES:
            self.session.consuming.wake()

    @property
    def writable(self) -> bool:
        return not self._paused and self.unflushed_bytes < WRITE_BUFFER_BYTES

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.unsent.drained()
        self.session.consuming.wake()

    def call_later(self, wait_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, action)

    async def room(self) -> None:
        """Waits until the client has taken so much of its answers that another may be made."""
        await self.unsent.room()

    @property
    def reading_held(self) -> bool:
        return self._reading_held

    def hold_reading(self, hold: bool, reason: object = None) -> None:
        """Nothing is read while anybody has a reason to hold it (the broker's budget, the rate of a topic)."""
        if hold:
            self._holds[reason] = None
        else:
            self._holds.pop(reason, None)
        if self._transport is None or self.closed or self._reading_held == bool(self._holds):
            return
        self._reading_held = bool(self._holds)
        if self._reading_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- answers that take time

    def takes(self, request_id: int) -> bool:
        """Whether one request more may wait; else the client is told."""
        most = self.limits.requests_max
        if self._requests < most:
            return True
        self.send_error(request_id, pb.TooManyRequests, f"more than {most} requests are waiting on this connection")
        return False

    def answer(self, request: AnsweredCommand, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`; what it raises goes to the client as an ERROR of this request. Who keeps something for the
        request asks `takes` before.
        """
        if not self.takes(request.request_id):
            work.close()
            return
        large = size if (size := request.ByteSize()) > LARGE_BYTES else 0
        self._request_bytes += large
        if large and self._request_bytes > self.limits.request_bytes_max:
            self.hold_reading(True, _LARGE)
        self._starts.begin(self._answer(request.request_id, work, large))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._requests += 1
        self._broker.tasks.spawn(work)

    async def _answer(self, request_id: int, work: Coroutine[Any, Any, None], large: int) -> None:
        try:
            await self.unsent.room()
            await work
        except HeliographError as error:
            self.send_error(request_id, code_of(error), str(error))
        finally:
            work.close()  # where it never began
            self._requests -= 1
            self._request_bytes -= large
            if large and self._request_bytes <= self.limits.request_bytes_max // 2:
                self.hold_reading(False, _LARGE)

    # -- the sink of producers and consumers

    def producer_closed(self, producer: Producer) -> None:
        handle = self.session.producing.handles.get(producer.id)
        if handle is not None and handle.producer is producer:
            self.session.producing.close_when_answered(handle)

    def producer_ready(self, producer: Producer) -> None:
        handle = self.session.producing.handles.get(producer.id)
        if handle is not None and handle.producer is producer:
            self.session.producing.ready(handle)
            send_producer_success(self.session, handle)

    def deliver(
        self,
        consumer: Consumer,
        ledger: int,
        first: int,
        run: Run,
        redeliveries: Sequence[int] | None,
        ack_sets: Mapping[int, int] | None = None,
    ) -> None:
        handle = self.session.consuming.handles[consumer.id]
        handle.usage.messages_out += run.messages
        handle.usage.bytes_out += run.size_bytes
        self.session.deliveries.send(
            handle, Delivery(consumer, ledger, first, run, redeliveries, ack_sets, consumer.epoch)
        )

    def consumer_closed(self, consumer: Consumer) -> None:
        self.session.consuming.closed_from_here(consumer)

    def consumer_active(self, consumer: Consumer, active: bool) -> None:
        if self.protocol_version >= 12:
            self.session.consuming.tell_active(consumer, active)

    def reached_end(self, consumer: Consumer) -> None:
        if self.protocol_version >= 9:
            end = pb.CommandReachedEndOfTopic(consumer_id=consumer.id)
            self.send(pb.BaseCommand(type=pb.BaseCommand.REACHED_END_OF_TOPIC, reachedEndOfTopic=end))
