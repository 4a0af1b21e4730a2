"""Pulsar clients of the simulated world: they speak the wire protocol, keep what is not acknowledged, and come back
after anything.

Is: the behaviour that official clients show (look up, redirect, resend in order, acknowledge, seek the owner again), as
small as a check needs it.
Isn't: shared with production code but for the protobuf classes; a server's mistake must not be mirrored here. Not fast,
not complete.

A protocol mistake of the server (a receipt that overtakes, an entry whose checksum is wrong, a message nobody asked
for) raises, which fails the run.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import crc32c

from heliograph.wire.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandSubscribe,
    MessageMetadata,
)

ASK_TIMEOUT_S = 6.0
PING_S = 1.5
SILENCE_S = 4.0
RETRY_S = (0.05, 0.5)
SHARED = "shared-"
"""So begin names that producers of several regions have: what tells them apart is how their payloads begin."""

Address = tuple[str, int]


class Refused(Exception):
    """The server answered with an error, or the connection is gone: look the topic up again."""


class Delivered(NamedTuple):
    """One entry as a reader got it."""

    ledger: int
    entry: int
    producer: str
    sequence: int
    replicated_from: str
    payload: bytes


def encode_entry(
    producer: str, sequence: int, payload: bytes, publish_ms: int, txn: tuple[int, int] | None = None, key: str = ""
) -> bytes:
    """What follows a SEND command: magic, checksum, metadata, payload. key "": it has none."""
    made = MessageMetadata(producer_name=producer, sequence_id=sequence, publish_time=publish_ms)
    if txn is not None:
        made.txnid_most_bits, made.txnid_least_bits = txn
    if key:
        made.partition_key = key
    metadata = made.SerializeToString()
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    return b"\x0e\x01" + int(crc32c.crc32c(body)).to_bytes(4, "big") + body


def decode_entry(entry: bytes) -> tuple[MessageMetadata, bytes]:
    """Verifies the checksum; raises AssertionError."""
    at = 0
    if entry[:2] == b"\x0e\x02":
        at = 6 + int.from_bytes(entry[2:6], "big")
    assert entry[at : at + 2] == b"\x0e\x01", "an entry without checksum"
    body = entry[at + 6 :]
    assert int.from_bytes(entry[at + 2 : at + 6], "big") == crc32c.crc32c(body), (
        "an entry whose checksum is wrong was delivered"
    )
    size = int.from_bytes(body[:4], "big")
    return MessageMetadata.FromString(body[4 : 4 + size]), body[4 + size :]


class Connection(asyncio.Protocol):
    """One connection: handshake, answers by request id, pushes by producer or consumer id, pings."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.lost = False
        self.on_lost: list[Callable[[], None]] = []
        self.on_producer: Callable[[BaseCommand], None] | None = None
        self.on_consumer: Callable[[BaseCommand, bytes], None] | None = None
        self._buffer = bytearray()
        self._requests: dict[int, asyncio.Future[BaseCommand]] = {}
        self._next_request = 0
        self._heard = self.loop.time()
        self._ready: asyncio.Future[BaseCommand] = self.loop.create_future()

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Raises OSError, TimeoutError, Refused."""
        async with asyncio.timeout(ASK_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(cls, *address)
            assert isinstance(connection, cls)
            command = BaseCommand(type=BaseCommand.CONNECT)
            command.connect.client_version, command.connect.protocol_version = "sim", 20
            command.connect.auth_method_name = "none"
            connection.send(command)
            try:
                await connection._ready
            except TimeoutError:
                connection.transport.abort()
                raise
        return connection

    def send(self, command: BaseCommand, payload: bytes = b"") -> None:
        body = command.SerializeToString()
        self.transport.write(
            (4 + len(body) + len(payload)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + payload
        )

    async def ask(self, command: BaseCommand, part: Any) -> BaseCommand:
        """Sends `command`, whose `part` has a request id, and returns the answer. Raises Refused, TimeoutError."""
        if self.lost:
            raise Refused("the connection is lost")
        request = part.request_id = self._next_request
        self._next_request += 1
        future = self._requests[request] = self.loop.create_future()
        self.send(command)
        try:
            answer = await asyncio.wait_for(future, ASK_TIMEOUT_S)
        finally:
            self._requests.pop(request, None)
        if answer.type == BaseCommand.ERROR:
            raise Refused(f"{answer.error.error}: {answer.error.message}")
        return cast(BaseCommand, answer)

    def close(self) -> None:
        self.transport.abort()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.loop.call_later(PING_S, self._ping)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for future in [*self._requests.values(), self._ready]:
            if not future.done():
                future.set_exception(Refused("the connection is lost"))
                future.exception()
        for callback in self.on_lost:
            callback()

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 8 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
            frame = bytes(buffer[:size])
            del buffer[:size]
            end = 8 + int.from_bytes(frame[4:8], "big")
            self._command(BaseCommand.FromString(frame[8:end]), frame[end:])

    def _command(self, command: BaseCommand, payload: bytes) -> None:
        kind = command.type
        if kind == BaseCommand.PING:
            pong = BaseCommand(type=BaseCommand.PONG)
            pong.pong.SetInParent()
            self.send(pong)
        elif kind == BaseCommand.CONNECTED:
            if not self._ready.done():  # whoever waited has given up at this moment
                self._ready.set_result(command)
        elif kind in (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER):
            if self.on_producer is not None:
                self.on_producer(command)
        elif kind in (BaseCommand.MESSAGE, BaseCommand.CLOSE_CONSUMER):
            if self.on_consumer is not None:
                self.on_consumer(command, payload)
        elif kind != BaseCommand.PONG:
            for part, value in command.ListFields():
                request = getattr(value, "request_id", None) if part.name != "type" else None
                if request in self._requests and not self._requests[request].done():
                    self._requests[request].set_result(command)

    def _ping(self) -> None:
        if self.lost or self.transport.is_closing():
            return
        if self.loop.time() - self._heard > SILENCE_S:
            self.transport.abort()
            return
        ping = BaseCommand(type=BaseCommand.PING)
        ping.ping.SetInParent()
        self.send(ping)
        self.loop.call_later(PING_S, self._ping)


class Client:
    """One region's clients: finds the owner of a topic, starting at any of the region's brokers."""

    def __init__(self, brokers: Sequence[Address], rng: random.Random) -> None:
        self.brokers, self.rng = tuple(brokers), rng

    async def open(self, topic: str) -> Connection:
        """A connection to the broker that owns `topic`. Raises OSError, TimeoutError, Refused."""
        address, authoritative = self.rng.choice(self.brokers), False
        for _ in range(6):
            connection = await Connection.open(address)
            try:
                command = BaseCommand(type=BaseCommand.LOOKUP)
                command.lookupTopic.topic, command.lookupTopic.authoritative = topic, authoritative
                answer = (await connection.ask(command, command.lookupTopic)).lookupTopicResponse
                if answer.response == CommandLookupTopicResponse.Failed:
                    raise Refused(f"lookup: {answer.error}: {answer.message}")
                host, _, port = answer.brokerServiceUrl.removeprefix("pulsar://").rpartition(":")
                found = (host, int(port))
                if answer.response == CommandLookupTopicResponse.Connect and found == address:
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
            if answer.response == CommandLookupTopicResponse.Connect:
                return await Connection.open(found)
            address, authoritative = found, answer.authoritative
        raise Refused("lookup: redirected in circles")

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(*RETRY_S))


@dataclass
class Pending:
    sequence: int
    payload: bytes
    entry: bytes


class _Staying:
    """What stays with one topic, over losses of its connection."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.closed = False
        self.last_error = ""
        self._connection: Connection | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Connects, and again after each loss, until `close`."""
        while not self.closed:
            try:
                await self._session()
            except (OSError, TimeoutError, Refused) as error:
                self.last_error = repr(error)
            self._connection = None
            if not self.closed:
                await self.client.pause()

    def close(self) -> None:
        self.closed = True
        self._changed.set()

    async def _session(self) -> None:
        """One connection, to its end."""
        raise NotImplementedError


class Producer(_Staying):
    """A named producer: sends in order, keeps what has no receipt, sends all of it again after a reconnect."""

    def __init__(
        self,
        client: Client,
        topic: str,
        name: str,
        on_receipt: Callable[[int, int, int], None],
        window: int = 100,
        *,
        shown: str = "",
    ) -> None:
        """name: of this one alone, with which its payloads begin. shown: what brokers hear, and others may be called,
        too; "": the same.
        """
        super().__init__(client, topic)
        self.name, self.on_receipt, self.window = name, on_receipt, window
        self.shown = shown or name
        self.pending: deque[Pending] = deque()
        self._unsent = 0
        """How many at the end of `pending` were not sent on this connection."""

    def send(self, sequence: int, payload: bytes) -> bool:
        """False where the window is full."""
        if len(self.pending) >= self.window:
            return False
        self._put(Pending(sequence, payload, encode_entry(self.shown, sequence, payload, 1)))
        return True

    def _put(self, item: Pending) -> None:
        self.pending.append(item)
        self._unsent += 1
        if self._connection is not None:
            self._flush()

    async def _session(self) -> None:
        connection = await self.client.open(self.topic)
        try:
            command = BaseCommand(type=BaseCommand.PRODUCER)
            part = command.producer
            part.topic, part.producer_id, part.producer_name, part.user_provided_producer_name = (
                self.topic,
                1,
                self.shown,
                True,
            )
            ended: list[BaseCommand] = []
            connection.on_producer = ended.append
            answer = await connection.ask(command, part)
            if ended:  # right behind the answer, before this task went on: kept back by the same cut, say
                raise Refused("the producer was closed at once")
            assert answer.producer_success.producer_name == self.shown
            self._connection = connection
            connection.on_producer = self._on_command
            connection.on_lost.append(self._changed.set)
            self._unsent = len(self.pending)
            self._flush()
            while not (self.closed or connection.lost or self._connection is not connection):
                self._changed.clear()
                await self._changed.wait()
        finally:
            connection.close()

    def _flush(self) -> None:
        assert self._connection is not None
        count = len(self.pending)
        for index in range(count - self._unsent, count):
            item = self.pending[index]
            self._connection.send(self._as_sent(item), item.entry)
        self._unsent = 0

    def _as_sent(self, item: Pending) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, item.sequence, 1
        return command

    def _on_command(self, command: BaseCommand) -> None:
        if command.type != BaseCommand.SEND_RECEIPT:
            if command.type == BaseCommand.SEND_ERROR:
                self.last_error = f"{command.send_error.error}: {command.send_error.message}"
            self._connection = None
            self._changed.set()
            return
        receipt = command.send_receipt
        if not self.pending or receipt.sequence_id < self.pending[0].sequence:
            return
        assert receipt.sequence_id == self.pending[0].sequence, (
            f"{self.name}: receipt {receipt.sequence_id}, expected {self.pending[0].sequence}"
        )
        self.pending.popleft()
        ledger, entry = _id(receipt.message_id)
        self.on_receipt(receipt.sequence_id, ledger, entry)


class Consumer(_Staying):
    """A consumer of a durable subscription: acknowledges some messages one by one, in an order of its own, and is given
    the others again later.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        subscription: str,
        on_message: Callable[[Delivered], None],
        *,
        shared: bool = True,
    ) -> None:
        super().__init__(client, topic)
        self.subscription, self.on_message, self.shared = subscription, on_message, shared
        self.acked: set[tuple[int, int]] = set()
        """Every position that was ever acknowledged, whether or not the server got to know."""
        self._unacked: list[tuple[int, int]] = []

    def drop(self) -> None:
        """Loses the connection, with some messages unacknowledged."""
        if self._connection is not None:
            self._connection.close()

    async def _session(self) -> None:
        connection = await self.client.open(self.topic)
        try:
            connection.on_consumer = self._on_command
            connection.on_lost.append(self._changed.set)
            self._unacked = []
            self._connection = connection
            command = BaseCommand(type=BaseCommand.SUBSCRIBE)
            part = command.subscribe
            part.topic, part.subscription, part.consumer_id = self.topic, self.subscription, 1
            part.subType = CommandSubscribe.Shared if self.shared else CommandSubscribe.Exclusive
            part.initialPosition = CommandSubscribe.Earliest
            await connection.ask(command, part)
            if (
                self._connection is not connection
            ):  # right behind the answer, before this task went on: the topic was to be unloaded while it was loaded
                raise Refused("the consumer was closed at once")
            self._flow(1000)
            while not (self.closed or connection.lost or self._connection is not connection):
                self._changed.clear()
                try:
                    await asyncio.wait_for(self._changed.wait(), 0.25)
                except TimeoutError:
                    pass
                self._acknowledge()
        finally:
            connection.close()

    def _flow(self, permits: int) -> None:
        assert self._connection is not None
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = 1, permits
        self._connection.send(command)

    def _on_command(self, command: BaseCommand, payload: bytes) -> None:
        if command.type == BaseCommand.CLOSE_CONSUMER:
            self._connection = None
            self._changed.set()
            return
        delivered = _delivered(command, payload)
        self.on_message(delivered)
        self._unacked.append((delivered.ledger, delivered.entry))

    def _acknowledge(self) -> None:
        """A random half of what waits, in random order; nine times of ten all of it."""
        if not self._unacked or self._connection is None or self._connection.lost:
            return
        rng = self.client.rng
        rng.shuffle(self._unacked)
        keep = len(self._unacked) // 2 if rng.random() < 0.1 else 0
        chosen, self._unacked = self._unacked[keep:], self._unacked[:keep]
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = 1, CommandAck.Individual
        for ledger, entry in chosen:
            command.ack.message_id.add(ledgerId=ledger, entryId=entry)
        self.acked.update(chosen)
        self._connection.send(command)
        self._flow(len(chosen))


class Reader:
    """Reads a topic from the earliest message to what was last when it began."""

    def __init__(self, client: Client, topic: str, *, compacted: bool = False) -> None:
        """compacted: without what is not the latest of its key, as far as the topic is compacted."""
        self.client, self.topic, self._compacted = client, topic, compacted
        self.found: list[Delivered] = []
        self._changed = asyncio.Event()
        self._moved = False

    async def read_all(self, *, limit_s: float = 60.0) -> list[Delivered]:
        """Starts over after a loss. Raises TimeoutError with the last refusal as its cause."""
        last: Exception | None = None
        deadline = asyncio.get_running_loop().time() + limit_s
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await self._session()
            except (OSError, TimeoutError, Refused) as error:
                last = error
            await self.client.pause()
        raise TimeoutError(f"a reader of {self.topic} got nowhere: {last!r}") from last

    async def _session(self) -> list[Delivered]:
        self.found, self._moved = [], False
        connection = await self.client.open(self.topic)
        try:
            connection.on_consumer = self._on_command
            connection.on_lost.append(self._changed.set)
            command = BaseCommand(type=BaseCommand.SUBSCRIBE)
            part = command.subscribe
            part.topic, part.subscription, part.consumer_id = (
                self.topic,
                f"reader-{self.client.rng.getrandbits(40):x}",
                1,
            )
            part.subType, part.durable = CommandSubscribe.Exclusive, False
            part.start_message_id.ledgerId, part.start_message_id.entryId = (1 << 64) - 1, (1 << 64) - 1
            part.initialPosition = CommandSubscribe.Earliest
            if self._compacted:
                part.read_compacted = True
            await connection.ask(command, part)
            query = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
            query.getLastMessageId.consumer_id = 1
            last = _id((await connection.ask(query, query.getLastMessageId)).getLastMessageIdResponse.last_message_id)
            if last[1] < 0:
                return self.found
            flow = BaseCommand(type=BaseCommand.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = 1, 1_000_000
            connection.send(flow)
            while not self.found or (self.found[-1].ledger, self.found[-1].entry) < last:
                if connection.lost or self._moved:
                    raise Refused("the connection is lost")
                self._changed.clear()
                await asyncio.wait_for(self._changed.wait(), ASK_TIMEOUT_S)
            return self.found
        finally:
            connection.close()

    def _on_command(self, command: BaseCommand, payload: bytes) -> None:
        self._changed.set()
        if command.type == BaseCommand.CLOSE_CONSUMER:
            self._moved = True
            return
        delivered = _delivered(command, payload)
        if self.found:
            before = self.found[-1]
            assert (delivered.ledger, delivered.entry) > (before.ledger, before.entry), (
                f"a reader went back: {before} then {delivered}"
            )
        self.found.append(delivered)


def _delivered(command: BaseCommand, payload: bytes) -> Delivered:
    metadata, body = decode_entry(payload)
    ledger, entry = _id(command.message.message_id)
    name = metadata.producer_name
    if name.startswith(SHARED):
        name = body.partition(b":")[0].decode()
    return Delivered(ledger, entry, name, metadata.sequence_id, metadata.replicated_from, body)


def _id(message: Any) -> tuple[int, int]:
    """(ledger, entry), signed."""
    ledger, entry = message.ledgerId, message.entryId
    return (ledger - (1 << 64) if ledger >= 1 << 63 else ledger, entry - (1 << 64) if entry >= 1 << 63 else entry)
