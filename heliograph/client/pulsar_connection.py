"""BrokerConnection: our own asyncio client of the Pulsar protocol, as small as links, canaries, and tools need it.

Is: CONNECT, LOOKUP with redirects, keep-alive, private commands both ways, and reading a topic from a position. Isn't:
a producer (`producer`), or a client with reconnection; who uses it decides when to connect again.
Invariants: a frame that makes no sense closes the connection; every waiting request ends when the connection does.
Source: docs/protocols/pulsar.md.
"""

from __future__ import annotations

import asyncio
import ssl as tls
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from heliograph.model.errors import HeliographError, NotFound, PeerError
from heliograph.model.host_names import is_host
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import PRIVATE_FROM, command_content, command_kind
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandSubscribe,
    FeatureFlags,
    MessageIdData,
    Schema,
)
from heliograph.wire.run import Buffer

PROTOCOL_VERSION = 19
FRAME_BYTES_MAX = 8 << 20
REDIRECTS_MAX = 20
CLIENT_VERSION = "heliograph"
_U32_U32 = struct.Struct(">II").unpack_from
_PING = BaseCommand.PING
_U64_MAX = (1 << 64) - 1
_WRITE_HIGH_BYTES = 8 << 20


class ConnectionLost(HeliographError):
    """The connection ended, or could not be made."""

    retryable = True


class ServerRefused(HeliographError):
    """The other side answered a request with an error. `code`: Pulsar's ServerError."""

    retryable = True

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"refused with code {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Address:
    """Names the place where a broker listens, and whether it speaks TLS there."""

    host: str
    port: int
    secure: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Takes `pulsar://host:port` and `pulsar+ssl://host:port`. Raises NotFound where it is neither."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            if parts.scheme in ("pulsar", "pulsar+ssl") and is_host(host) and parts.port:
                return cls(host, parts.port, parts.scheme == "pulsar+ssl")
        except ValueError:
            pass
        raise NotFound(f"{url!r} is no address of a broker: expected pulsar://host:port")

    def __str__(self) -> str:
        return f"{'pulsar+ssl' if self.secure else 'pulsar'}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a topic is served, or (`redirect`) who else to ask."""

    url: str
    url_tls: str
    redirect: bool
    authoritative: bool

    def address(self, secure: bool) -> Address:
        return Address.parse(self.url_tls or self.url if secure else self.url or self.url_tls)


class BrokerConnection(asyncio.Protocol):
    """One connection after its handshake. `on_private(kind, content, payload)`, `on_closed(error)`, `on_writable()`:
    set by the owner.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.on_private: Callable[[int, memoryview, memoryview], None] | None = None
        self.on_message: Callable[[Any, memoryview], None] | None = None
        self.on_command: Callable[[BaseCommand], None] | None = None
        """Gets every other command that nothing in this class handles."""
        self.on_closed: Callable[[HeliographError], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.writable = True
        self.heard = True
        """Something came since whoever watches has set it to False."""
        self.features = FeatureFlags()
        """What the other side said that it can do."""
        self.message_bytes_max = 0
        """What it takes at most, as it said; 0: it did not."""
        self.closed: HeliographError | None = None
        self._parts: list[bytes] = []
        self._have, self._need = 0, 8
        self._requests = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls,
        address: Address,
        *,
        ssl: tls.SSLContext | None = None,
        token: str = "",
        by_certificate: bool = False,
        timeout_s: float = 10.0,
        replicates: bool = False,
    ) -> BrokerConnection:
        """Connects and shakes hands; TLS where `ssl` is given, as the role of `token` where that is. Raises
        ConnectionLost, ServerRefused, TimeoutError.

        by_certificate: without a token, as the role of the certificate in `ssl`.

        replicates: its producers are a replicator's, whose receipts may name positions at the source in place of
        sequences (`features` says whether).
        """
        loop = asyncio.get_running_loop()
        connection: BrokerConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                name = address.host if ssl is not None else None
                _, connection = await loop.create_connection(
                    cls, address.host, address.port, ssl=ssl, server_hostname=name
                )
                command = BaseCommand(type=BaseCommand.CONNECT)
                command.connect.client_version = CLIENT_VERSION
                command.connect.protocol_version = PROTOCOL_VERSION
                if token:
                    command.connect.auth_method_name, command.connect.auth_data = "token", token.encode()
                elif by_certificate:
                    command.connect.auth_method_name = "tls"
                if replicates:
                    command.connect.feature_flags.supports_repl_dedup_by_lid_and_eid = True
                connection.send(command)
                await connection._connected
        except (OSError, ValueError) as error:  # ValueError: a host that nobody can look up
            raise ConnectionLost(f"{address}: {error}") from error
        finally:
            if connection is not None and not (connection._connected.done() and connection.closed is None):
                connection.close()
        return connection

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The other side's verified certificate; None without TLS."""
        return self.transport.get_extra_info("peercert") if self.transport is not None else None

    def hand_on(self, on_command: Callable[[BaseCommand], None], on_closed: Callable[[HeliographError], None]) -> None:
        """From now on its owner hears of every command that nothing here handles, and of its end, by these."""
        self.on_command, self.on_closed = on_command, on_closed

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, command: BaseCommand) -> None:
        body = command.SerializeToString()
        self.write([struct.pack(">II", len(body) + 4, len(body)) + body])

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Frames, ready as they are. Nothing is written once the connection is closed."""
        if self.transport is not None and self.closed is None:
            self.transport.writelines(buffers)

    async def lookup(
        self, topic: str, *, listener: str = "", authoritative: bool = False, timeout_s: float = 10.0
    ) -> BrokerAddress:
        """One LOOKUP here. Raises ServerRefused, ConnectionLost, TimeoutError."""
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.authoritative = authoritative
        if listener:
            command.lookupTopic.advertised_listener_name = listener
        command.lookupTopic.request_id = self._next_request()
        answer = await self._ask(command, command.lookupTopic.request_id, timeout_s)
        if answer.response == CommandLookupTopicResponse.Failed:
            raise ServerRefused(answer.error, answer.message)
        redirect = answer.response == CommandLookupTopicResponse.Redirect
        return BrokerAddress(answer.brokerServiceUrl, answer.brokerServiceUrlTls, redirect, answer.authoritative)

    async def producer(
        self,
        producer: int,
        topic: str,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> int:
        """Makes a producer; returns the newest sequence id that is stored under this name, -1 where there is none.
        Raises as `lookup`.
        """
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id = topic, producer
        command.producer.producer_name, command.producer.user_provided_producer_name = name, True
        for key, value in (metadata or {}).items():
            command.producer.metadata.add(key=key, value=value)
        command.producer.request_id = self._next_request()
        return int((await self._ask(command, command.producer.request_id, timeout_s)).last_sequence_id)

    def close_producer(self, producer: int) -> None:
        """Its answer is not waited for."""
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id, command.close_producer.request_id = producer, self._next_request()
        self.send(command)

    async def schema_version(self, topic: str, schema: Schema, *, timeout_s: float = 10.0) -> bytes:
        """The version that `schema` has there, which is stored where it is new. Raises as `lookup`."""
        command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
        asked = command.getOrCreateSchema
        asked.topic, asked.request_id = topic, self._next_request()
        asked.schema.CopyFrom(schema)
        answer = await self._ask(command, asked.request_id, timeout_s)
        if answer.HasField("error_code"):
            raise ServerRefused(answer.error_code, answer.error_message)
        return bytes(answer.schema_version)

    async def subscribe(
        self, consumer: int, topic: str, subscription: str, *, start: MessageIdData | None, timeout_s: float = 10.0
    ) -> None:
        """An exclusive, non-durable subscription (a reader) from `start` on. Raises as `lookup`."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription, subscribe.consumer_id = topic, subscription, consumer
        subscribe.subType, subscribe.durable = CommandSubscribe.Exclusive, False
        subscribe.request_id = self._next_request()
        if start is not None:
            subscribe.start_message_id.CopyFrom(start)
        subscribe.initialPosition = CommandSubscribe.Earliest
        await self._ask(command, subscribe.request_id, timeout_s)

    async def last_message(self, consumer: int, *, timeout_s: float = 10.0) -> Position:
        """Where the newest message lies that a consumer may see; BEFORE_ALL: there is none. Raises as `lookup`."""
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id, command.getLastMessageId.request_id = consumer, self._next_request()
        found = (await self._ask(command, command.getLastMessageId.request_id, timeout_s)).last_message_id
        return BEFORE_ALL if found.entryId == _U64_MAX else (found.ledgerId, found.entryId)

    def flow(self, consumer: int, permits: int) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = consumer, permits
        self.send(command)

    def ping(self) -> None:
        command = BaseCommand(type=_PING)
        command.ping.SetInParent()
        self.send(command)

    def close(self, error: HeliographError | None = None) -> None:
        """Ends the connection; what waits fails."""
        self._end(error or ConnectionLost("closed"))
        if self.transport is not None:
            self.transport.abort()

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def _ask(self, command: BaseCommand, request: int, timeout_s: float) -> Any:
        if self.closed is not None:
            raise self.closed
        future = self._waiting[request] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                self.send(command)
                return await future
        finally:
            self._waiting.pop(request, None)

    # -- the protocol --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        block = data if len(self._parts) == 1 else b"".join(self._parts)
        view, at, size = memoryview(block), 0, len(block)
        self._need = 8
        try:
            while size - at >= 8 and self.closed is None:
                total, command_size = _U32_U32(block, at)
                if total > FRAME_BYTES_MAX or not 2 <= command_size <= total - 4:
                    raise PeerError(f"a frame of {total} bytes with a command of {command_size}")
                end = at + 4 + total
                if end > size:
                    self._need = 4 + total
                    break
                self._on_frame(view[at + 8 : at + 8 + command_size], view[at + 8 + command_size : end])
                at = end
        except PeerError as error:
            self.close(error)
            return
        self._parts = [block[at:]] if at < size else []
        self._have = size - at

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost(f"the connection ended: {exc}" if exc else "the other side closed the connection"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def _end(self, error: HeliographError) -> None:
        if self.closed is not None:
            return
        self.closed = error
        for future in [self._connected, *self._waiting.values()]:
            if not future.done():
                future.set_exception(error)
        if not self._connected.cancelled() and self._connected.done():
            self._connected.exception()
        if self.on_closed is not None:
            self.on_closed(error)

    def _on_frame(self, command: memoryview, payload: memoryview) -> None:
        if command_kind(command) >= PRIVATE_FROM:
            kind, content = command_content(command)
            if self.on_private is not None:
                self.on_private(kind, content, payload)
            return
        try:
            base = BaseCommand.FromString(bytes(command))
        except DecodeError as error:
            raise PeerError("a command that cannot be decoded") from error
        kind = base.type
        if kind == BaseCommand.CONNECTED:
            self.features = base.connected.feature_flags
            self.message_bytes_max = base.connected.max_message_size
            if not self._connected.done():
                self._connected.set_result(None)
        elif kind == BaseCommand.PING:
            pong = BaseCommand(type=BaseCommand.PONG)
            pong.pong.SetInParent()
            self.send(pong)
        elif kind == BaseCommand.LOOKUP_RESPONSE:
            self._answer(base.lookupTopicResponse.request_id, base.lookupTopicResponse)
        elif kind == BaseCommand.SUCCESS:
            self._answer(base.success.request_id, base.success)
        elif kind == BaseCommand.ERROR:
            self._on_error(base.error.request_id, ServerRefused(base.error.error, base.error.message))
        elif kind == BaseCommand.PRODUCER_SUCCESS:
            if base.producer_success.producer_ready:
                self._answer(base.producer_success.request_id, base.producer_success)
        elif kind == BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE:
            self._answer(base.getLastMessageIdResponse.request_id, base.getLastMessageIdResponse)
        elif kind == BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE:
            self._answer(base.getOrCreateSchemaResponse.request_id, base.getOrCreateSchemaResponse)
        elif kind == BaseCommand.MESSAGE and self.on_message is not None:
            self.on_message(base.message, payload)
        elif self.on_command is not None:
            self.on_command(base)

    def _on_error(self, request: int, error: ServerRefused) -> None:
        future = self._waiting.get(request, self._connected)
        if not future.done():
            future.set_exception(error)

    def _answer(self, request: int, answer: Any) -> None:
        future = self._waiting.get(request)
        if future is not None and not future.done():
            future.set_result(answer)


class TopicReader:
    """One topic from a position on, entry by entry, over a connection to its owner that it has for itself."""

    def __init__(self, connection: BrokerConnection, permits: int) -> None:
        self._connection, self._permits = connection, permits
        self._entries: deque[tuple[Position, memoryview]] = deque()
        self._spent = 0
        self._arrived = asyncio.Event()
        connection.on_message = self._on_message
        connection.on_closed = lambda _: self._arrived.set()

    @classmethod
    async def open(
        cls,
        connection: BrokerConnection,
        topic: str,
        *,
        start: Position = BEFORE_ALL,
        name: str = "reader",
        permits: int = 1000,
    ) -> Self:
        """`start`: the first entry, if it exists; else what follows it. Raises ServerRefused, ConnectionLost,
        TimeoutError.
        """
        reader = cls(connection, permits)
        first = MessageIdData(ledgerId=start[0] & _U64_MAX, entryId=start[1] & _U64_MAX)
        await connection.subscribe(1, topic, name, start=first)
        connection.flow(1, permits)
        return reader

    async def next(self, timeout_s: float = 10.0) -> tuple[Position, memoryview]:
        """(position, entry: checksum, metadata, payload). Raises TimeoutError where none comes, ConnectionLost."""
        async with asyncio.timeout(timeout_s):
            while not self._entries:
                if self._connection.closed is not None:
                    raise self._connection.closed
                self._arrived.clear()
                await self._arrived.wait()
        position, entry = self._entries.popleft()
        metadata, _ = entry_metadata(entry)
        self._spent += max(1, metadata.num_messages_in_batch)
        if self._spent * 2 >= self._permits:
            self._connection.flow(1, self._spent)
            self._spent = 0
        return position, entry

    def _on_message(self, message: Any, payload: memoryview) -> None:
        self._entries.append(((message.message_id.ledgerId, message.message_id.entryId), payload))
        self._arrived.set()
