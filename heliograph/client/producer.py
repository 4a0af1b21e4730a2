"""TopicProducer: publishes batches of one topic under a name of its own choice, each exactly once, through moves of the topic and lost connections.

Is: finding the owner, SEND in a window, sending again what was not answered, skipping what the broker says it has. Isn't: batching by time, keys, or
partitions; who calls it says what an entry is, and gives each message its sequence id.
Invariants: entries go in the order in which they were given; what was sent and not answered is sent again under the same sequence ids, so that a topic with
deduplication stores it once; what the broker had before under this name and those ids is not sent, however entries were cut then.
Source: docs/protocols/pulsar.md.
"""

from __future__ import annotations

import asyncio
import errno
import ssl as tls
import struct
import urllib.parse
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import crc32c
from google.protobuf.message import EncodeError

from heliograph.client.http import Http
from heliograph.client.pulsar import Address, ConnectionLost, PulsarConnection, Refused
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed
from heliograph.model.names import TopicName
from heliograph.wire.pulsar_pb2 import BaseCommand, MessageMetadata, ServerError, SingleMessageMetadata

WINDOW_BYTES = 8 << 20
"""Sent and not answered, at most."""
_TRIES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_FINAL = {
    ServerError.Value(name)
    for name in (
        "AuthorizationError",
        "AuthenticationError",
        "IncompatibleSchema",
        "InvalidTopicName",
        "NotAllowedError",
        "TopicTerminatedError",
        "UnsupportedVersionError",
        "ProducerBlockedQuotaExceededError",
        "ProducerBlockedQuotaExceededException",
    )
}
_MAGIC = b"\x0e\x01"
_HEAD_BYTES = 10 << 10
"""Of a frame, beside the message: more than that, and a broker closes the connection without a word."""


class Message(NamedTuple):
    """One message as a client writes it. `event_ms`: 0 is none. `base64_key`: the key is bytes, as base64."""

    value: bytes
    key: str | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_ms: int = 0
    base64_key: bool = False


class _Sent(NamedTuple):
    first: int
    last: int
    frame: bytes


class TopicProducer:
    """Made by `open`. Not to be used by two tasks at once."""

    def __init__(self, admin_url: str, topic: str, name: str, *, token: str, ssl: tls.SSLContext | None, patience_s: float, compress: Compress | None) -> None:
        self.topic, self.name = str(TopicName.parse(topic)), name
        self.skipped = 0
        """Messages that the broker had already."""
        self._http = Http(admin_url, token=token, tls=ssl)
        self._token, self._ssl, self._patience_s, self._compress = token, ssl, patience_s, compress
        self._connection: PulsarConnection | None = None
        self._stored = -1
        self._waiting: deque[_Sent] = deque()
        self._waiting_bytes = self._bytes_max = 0
        self._changed = asyncio.Event()
        self._error: HeliographError | None = None
        self._stuck_since: float | None = None
        """When the first connection was made of those over which nothing was stored."""

    @classmethod
    async def open(
        cls,
        admin_url: str,
        topic: str,
        name: str,
        *,
        token: str = "",
        ssl: tls.SSLContext | None = None,
        patience_s: float = 60.0,
        compress: Compress | None = None,
    ) -> TopicProducer:
        """name: of the producer; deduplication goes by it. admin_url: or several of the region, separated by commas.

        Raises NotAllowed for what time does not end, else HeliographError after `patience_s`.
        """
        made = cls(admin_url, topic, name, token=token, ssl=ssl, patience_s=patience_s, compress=compress)
        await made._connect()
        return made

    async def send(self, messages: Sequence[Message], first_sequence: int, publish_ms: int, schema_version: int | None = None) -> None:
        """One entry: a batch of these, with consecutive sequence ids. Waits while the window is full. schema_version: which they have at the topic, if any."""
        last = first_sequence + len(messages) - 1
        if last <= self._stored:
            self.skipped += len(messages)
            return
        if first_sequence <= self._stored:  # entries were cut otherwise before: brokers take one whole, or not at all
            there = self._stored + 1 - first_sequence
            self.skipped += there
            messages, first_sequence = messages[there:], self._stored + 1
        try:
            sent = _Sent(first_sequence, last, self._frame(messages, first_sequence, publish_ms, schema_version))
        except (EncodeError, TypeError, ValueError) as error:
            why = "a property without a value, or an event time before 1970?"
            raise NotAllowed(f"{self.topic}: one of {len(messages)} messages cannot be written ({error}): {why}") from error
        if self._bytes_max and len(sent.frame) > self._bytes_max + _HEAD_BYTES:
            raise NotAllowed(f"{self.topic}: a message of {max(len(each.value) for each in messages):,} bytes; its brokers take {self._bytes_max:,} at most")
        while self._waiting_bytes + len(sent.frame) > WINDOW_BYTES and self._waiting:
            await self._wait()
        self._waiting.append(sent)
        self._waiting_bytes += len(sent.frame)
        if self._connection is not None:
            self._connection.write([sent.frame])
        await asyncio.sleep(0)  # who fills the window reads the receipts too

    async def flush(self) -> None:
        """Returns once everything is stored. Raises as `open`."""
        while self._waiting:
            await self._wait()

    def close(self) -> None:
        self._http.close()
        if self._connection is not None:
            self._connection.close()

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until something was answered; connects anew where the connection or the producer is gone."""
        if self._error is not None:
            raise self._error
        if self._connection is None:
            now = asyncio.get_running_loop().time()
            if self._stuck_since is None:
                self._stuck_since = now
            elif now > self._stuck_since + self._patience_s:
                raise ConnectionLost(f"{self.topic}: for {self._patience_s:.0f} s, brokers have ended each connection before they stored anything")
            else:
                await asyncio.sleep(_TRIES_S[1])
            await self._connect()
            return
        self._changed.clear()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._changed.wait()
        except TimeoutError:
            raise ConnectionLost(f"{self.topic}: no answer to a publish within {self._patience_s:.0f} s") from None

    async def _connect(self) -> None:
        """To the present owner; then everything that is not answered goes out again."""
        loop, tries = asyncio.get_running_loop(), 0
        deadline = loop.time() + self._patience_s
        while True:
            try:
                address = await asyncio.to_thread(self._owner)
                connection = await PulsarConnection.connect(address, ssl=self._ssl, token=self._token)
                connection.on_command, connection.on_closed = self._on_command, partial(self._lost, connection)
                self._connection, self._bytes_max = connection, connection.message_bytes_max
                self._stored = max(self._stored, await connection.producer(1, self.topic, self.name))
                break
            except (HeliographError, OSError, TimeoutError) as error:
                self.close()
                self._connection = None
                if _too_many_files(error):
                    raise NotAllowed(f"{self.topic}: this process may not open more files; raise their limit (ulimit -n), or write to fewer topics") from error
                if isinstance(error, NotAllowed) or (isinstance(error, Refused) and error.code in _FINAL):
                    raise NotAllowed(f"{self.topic}: {error}") from error
                if loop.time() > deadline:
                    raise ConnectionLost(f"{self.topic} could not be reached within {self._patience_s:.0f} s: {error}") from error
                await asyncio.sleep(_TRIES_S[min(tries, len(_TRIES_S) - 1)])
                tries += 1
        self._http.close()  # until the topic moves: who writes to hundreds of topics has one connection for each
        while self._waiting and self._waiting[0].last <= self._stored:
            self._done()
        connection.write([sent.frame for sent in self._waiting])

    def _owner(self) -> Address:
        """By HTTP lookup at any broker. Raises NotAllowed where the region refuses, MetadataUnavailable where it does not answer."""
        name = TopicName.parse(self.topic)
        path = f"/lookup/v2/topic/{name.domain}/{name.tenant}/{name.namespace_local}/{urllib.parse.quote(name.local, safe='')}"
        try:
            found = self._http.json("GET", path)
        except MetadataUnavailable:
            raise
        except HeliographError as error:
            raise NotAllowed(str(error)) from error
        url = found.get("brokerUrlTls" if self._ssl is not None else "brokerUrl") or ""
        if not url:
            raise NotAllowed(f"the owner of {self.topic} has no {'TLS ' if self._ssl is not None else 'plain '}address: {found}")
        return Address.parse(url)

    def _lost(self, connection: PulsarConnection, error: HeliographError) -> None:
        if self._connection is connection:
            self._connection = None
            self._changed.set()

    def _on_command(self, command: Any) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            sequence = max(command.send_receipt.sequence_id, command.send_receipt.highest_sequence_id)
            while self._waiting and self._waiting[0].last <= sequence:
                self._done()
            self._changed.set()
        elif command.type in (BaseCommand.CLOSE_PRODUCER, BaseCommand.SEND_ERROR):
            error = command.send_error
            if command.type == BaseCommand.SEND_ERROR and error.error in _FINAL:
                self._error = NotAllowed(f"{self.topic}: {error.message}")
                self._changed.set()
            elif self._connection is not None:
                self._connection.close()  # the topic moves, or storage asks for another try: all of it again, in order

    def _done(self) -> None:
        self._stuck_since = None
        self._waiting_bytes -= len(self._waiting.popleft().frame)

    def _frame(self, messages: Sequence[Message], first: int, publish_ms: int, schema_version: int | None) -> bytes:
        last = first + len(messages) - 1
        parts = []
        for message in messages:
            single = SingleMessageMetadata(payload_size=len(message.value))
            for key, value in message.properties:
                single.properties.add(key=key, value=value)
            if message.key is not None:
                single.partition_key = message.key
                if message.base64_key:
                    single.partition_key_b64_encoded = True
            if message.event_ms:
                single.event_time = message.event_ms
            head = single.SerializeToString()
            parts += [len(head).to_bytes(4, "big"), head, message.value]
        payload = b"".join(parts)
        metadata = MessageMetadata(producer_name=self.name, sequence_id=first, publish_time=publish_ms, num_messages_in_batch=len(messages))
        metadata.highest_sequence_id = last
        metadata.uncompressed_size = len(payload)
        if schema_version is not None:
            metadata.schema_version = struct.pack(">Q", schema_version)
        if messages[0].key is not None:
            metadata.partition_key = messages[0].key
            if messages[0].base64_key:
                metadata.partition_key_b64_encoded = True
        if self._compress is not None:
            kind, compress = self._compress
            metadata.compression = kind
            payload = compress(payload)
        head = metadata.SerializeToString()
        body = len(head).to_bytes(4, "big") + head + payload
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, first, len(messages)
        command.send.highest_sequence_id = last
        packed = command.SerializeToString()
        size = 4 + len(packed) + 2 + 4 + len(body)
        return struct.pack(">II", size, len(packed)) + packed + _MAGIC + crc32c.crc32c(body).to_bytes(4, "big") + body


def _too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False


Compress = tuple[Any, Callable[[bytes], bytes]]
"""(Pulsar's CompressionType, how)."""
