"""TopicProducer: publishes batches of one topic under a name of its own choice, each exactly once, through moves of the
topic and lost connections.

Is: SEND in a window, sending again what was not answered, skipping what the broker says it has. Isn't: finding the
owner, or the connection, which producers of other topics share (`broker_connections`); batching by time, keys, or
partitions: who calls it says what an entry is, and gives each message its sequence id.
Invariants: entries go in the order in which they were given; what was sent and not answered is sent again under the
same sequence ids, so that a topic with deduplication stores it once; what the broker had before under this name and
those ids is not sent, however entries were cut then. Brokers take nothing behind an entry that they refuse
(`IN_ORDER`): a later one would hide that an earlier one is not there.
Source: docs/protocols/pulsar.md.
"""

from __future__ import annotations

import asyncio
import errno
import struct
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import crc32c
from google.protobuf.message import EncodeError

from heliograph.client.broker_connections import Brokers, Line
from heliograph.client.pulsar_connection import ConnectionLost, ServerRefused
from heliograph.model.errors import HeliographError, NotAllowed
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar.frame_cutter import IN_ORDER
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, MessageMetadata, ServerError, SingleMessageMetadata

WINDOW_BYTES = 8 << 20
"""Sent and not answered, at most."""
SHARED_BYTES = 64 << 20
"""The same of all producers of a `Brokers`, but for an entry of each."""
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
_value = itemgetter(0)
_NOT_ALLOWED = ServerError.Value("NotAllowedError")
_MAGIC = b"\x0e\x01"
_ROW_BYTES = 8
"""What a message costs in a frame beside its value, at least."""
_HEAD_BYTES = 10 << 10
"""How much a frame may have beside the message: with more, a broker closes the connection without a word."""


class Message(NamedTuple):
    """One message as a client writes it. `event_ms`: 0 is none. `base64_key`: the key is bytes, as base64."""

    value: bytes
    key: str | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_ms: int = 0
    base64_key: bool = False


class _Sent(NamedTuple):
    first: int
    messages: Sequence[Message]
    publish_ms: int
    schema_version: int | None
    size_bytes: int

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def cut(self, start: int, stop: int) -> _Sent:
        messages = self.messages[start:stop]
        return self._replace(first=self.first + start, messages=messages, size_bytes=_size(messages))


class TopicProducer:
    """Looks its topic up, and connects, once it has something to send, while more is given to it. Not to be used by two
    tasks at once.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        name: str,
        *,
        patience_s: float = 60.0,
        compress: Compress | None = None,
        ids_end: int | None = None,
    ) -> None:
        """name: of the producer; deduplication goes by it. ids_end: from there on sequence ids are of later writers
        under that name: where such are stored, whoever writes has gone back, and nothing is taken for what is there.
        """
        self.topic, self.name, self._ids_end = str(TopicName.parse(topic)), name, ids_end
        self.skipped = 0
        """Messages that the broker had already."""
        self._brokers, self._patience_s, self._compress = brokers, patience_s, compress
        self._line: Line | None = None
        self._id = 0
        self._opening: asyncio.Task[None] | None = None
        self._opened = self._resumed = False
        self._stored = -1
        self._waiting: deque[_Sent] = deque()
        self._waiting_bytes = self._bytes_max = 0
        self._entry_bytes = 0
        """Above that entries are cut, since the topic refused one; 0: none so far."""
        self._refused_at = -1
        """The first sequence id of what was refused last."""
        self._changed = asyncio.Event()
        self._error: HeliographError | None = None
        self._stuck_since: float | None = None
        """When the first connection was made of those over which nothing was stored."""

    async def send(
        self, messages: Sequence[Message], first_sequence: int, publish_ms: int, schema_version: int | None = None
    ) -> None:
        """One entry: a batch of these, with consecutive sequence ids. Waits while the window is full. schema_version:
        which they have at the topic, if any.

        Raises NotAllowed for what time does not end, else HeliographError after `patience_s`; also for what was given
        before.
        """
        sent = self._left(_Sent(first_sequence, messages, publish_ms, schema_version, _size(messages)))
        if sent is None:
            return
        while (
            self._waiting
            and max(
                self._waiting_bytes + sent.size_bytes - WINDOW_BYTES,
                self._brokers.waiting_bytes + sent.size_bytes - SHARED_BYTES,
            )
            > 0
        ):
            await self._wait()
        if self._error is not None:
            raise self._error
        frames = [] if self._line is None else self._frames(sent)
        self._waiting.append(sent)
        self._count(sent.size_bytes)
        if self._line is not None:
            self._line.connection.write(frames)
        elif not self._opened:
            self._open()
        await asyncio.sleep(0)  # who fills the window reads the receipts too

    async def ready(self) -> None:
        """Returns once it is made. Raises as `send`."""
        if self._line is None and self._opening is None:
            self._open()
        while self._opening is not None:
            await asyncio.wait([self._opening])
        if self._error is not None:
            raise self._error

    async def flush(self) -> None:
        """Returns once everything is stored. Raises as `send`."""
        while self._waiting:
            await self._wait()

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        self._leave()
        self._count(-self._waiting_bytes)

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until something was answered; connects anew where the connection or the producer is gone."""
        if self._error is not None:
            raise self._error
        if self._line is None and self._opening is None:
            now = asyncio.get_running_loop().time()
            if self._stuck_since is None:
                self._stuck_since = now
            elif now > self._stuck_since + self._patience_s:
                raise ConnectionLost(
                    f"{self.topic}: for {self._patience_s:.0f} s, brokers have ended each connection before they "
                    "stored anything"
                )
            else:
                await asyncio.sleep(_TRIES_S[1])
            self._open()
        if self._opening is not None:
            await asyncio.wait([self._opening])  # which has patience of its own
            return
        self._changed.clear()
        line, answered = self._line, 0 if self._line is None else self._line.answered
        try:
            async with asyncio.timeout(self._patience_s):
                await self._changed.wait()
        except TimeoutError:
            if line is not None and line.answered != answered:
                return  # a topic that its broker slows down slows down its neighbours on the connection
            raise ConnectionLost(f"{self.topic}: no answer to a publish within {self._patience_s:.0f} s") from None

    def _open(self) -> None:
        self._opened = True
        self._opening = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        """To the present owner; then everything that is not answered goes out again. What it fails with is `_error`."""
        try:
            async with self._brokers.opening:
                line, stored = await self._made()
            self._resume(line, stored)
        except HeliographError as error:
            self._error = error
        finally:
            self._opening = None
            self._changed.set()

    async def _made(self) -> tuple[Line, int]:
        """Where the producer is now, and what is stored under its name. Raises as `send`."""
        loop, tries = asyncio.get_running_loop(), 0
        deadline = loop.time() + self._patience_s
        while True:
            line = None
            try:
                line = await self._brokers.line(self.topic)
                self._id = line.enter(self)
                stored = await line.connection.producer(self._id, self.topic, self.name, metadata={IN_ORDER: "true"})
                if line.has(self._id):  # which it is not if what took it away came with the answer
                    return line, stored
            except (HeliographError, OSError, TimeoutError) as error:
                if line is not None:
                    line.leave(self._id)
                if _too_many_files(error):
                    raise NotAllowed(
                        f"{self.topic}: this process may not open more files; raise their limit (ulimit -n)"
                    ) from error
                if isinstance(error, NotAllowed) or (isinstance(error, ServerRefused) and error.code in _FINAL):
                    raise NotAllowed(f"{self.topic}: {error}") from error
                if loop.time() > deadline:
                    raise ConnectionLost(
                        f"{self.topic} could not be reached within {self._patience_s:.0f} s: {error}"
                    ) from error
            await asyncio.sleep(_TRIES_S[min(tries, len(_TRIES_S) - 1)])
            tries += 1

    def _resume(self, line: Line, stored: int) -> None:
        """Drops what the broker has stored through `stored`, and sends the rest again, in order. Raises NotAllowed."""
        self._bytes_max = line.connection.message_bytes_max
        first, self._resumed, self._stored = not self._resumed, True, max(self._stored, stored)
        refused, self._refused_at = self._refused_at, -1
        if 0 <= refused <= self._stored:
            raise NotAllowed(
                f"{self.topic} refused a message, and its broker, of an earlier version, has stored later ones: "
                "upgrade brokers before Spark"
            )
        if self._ids_end is not None and self._stored >= self._ids_end:
            raise NotAllowed(
                f"the checkpoint is older than {self.topic}: that has later rows of the query, under the name "
                f"{self.name}, and would take these, which are others, for some that it has: put the newer checkpoint "
                "back, or start with a new checkpoint folder; and see that no other driver runs the query"
            )
        waiting, self._waiting = self._waiting, deque()
        self._count(-self._waiting_bytes)
        skipped = self.skipped
        for sent in waiting:
            left = self._left(sent)
            if left is not None:
                self._waiting.append(left)
                self._count(left.size_bytes)
        if not first:
            self.skipped = skipped  # it is what this one has sent
        frames = [frame for sent in self._waiting for frame in self._frames(sent)]
        self._line = line
        line.connection.write(frames)

    def _left(self, sent: _Sent) -> _Sent | None:
        """What is not stored of it: entries were cut otherwise before, and brokers take one whole, or not at all."""
        there = min(max(self._stored + 1 - sent.first, 0), len(sent.messages))
        self.skipped += there
        if not there:
            return sent
        return sent.cut(there, len(sent.messages)) if there < len(sent.messages) else None

    def _leave(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.leave(self._id)

    def lost(self) -> None:
        """The connection is, or the broker has closed the producer."""
        self._line = None
        self._changed.set()

    def on_receipt(self, command: Any) -> None:
        sequence = max(command.send_receipt.sequence_id, command.send_receipt.highest_sequence_id)
        while self._waiting and self._waiting[0].last <= sequence:
            self._stuck_since = None
            self._count(-self._waiting.popleft().size_bytes)
        self._changed.set()

    def on_refused(self, command: Any) -> None:
        error = command.send_error
        if error.error in _FINAL:
            refused = next((sent for sent in self._waiting if sent.first <= error.sequence_id <= sent.last), None)
            whole = 0 if refused is None else max(map(_each, refused.messages))
            bytes_now = 0 if refused is None else min(refused.size_bytes, self._entry_bytes or refused.size_bytes)
            if error.error != _NOT_ALLOWED or bytes_now <= whole:
                self._error = NotAllowed(f"{self.topic}: {error.message}")
            else:  # messages may be smaller than what the topic takes, and their batch is not
                self._entry_bytes, self._refused_at = max(bytes_now // 2, 1), error.sequence_id
        self._leave()  # the topic moves, or storage asks for another try: all of it again, in order
        self._changed.set()

    def _count(self, size_bytes: int) -> None:
        self._waiting_bytes += size_bytes
        self._brokers.waiting_bytes += size_bytes

    def _frames(self, sent: _Sent) -> list[bytes]:
        """Makes the frames of the entry, or of the pieces that the topic may take. Raises NotAllowed."""
        try:
            made = [self._frame(piece) for piece in (self._pieces(sent) if self._entry_bytes else [sent])]
        except (EncodeError, TypeError, ValueError) as error:
            why = "a property without a value, or an event time before 1970?"
            raise NotAllowed(
                f"{self.topic}: one of {len(sent.messages)} messages cannot be written ({error}): {why}"
            ) from error
        if self._bytes_max and max(map(len, made)) > self._bytes_max + _HEAD_BYTES:
            biggest = max(len(each.value) for each in sent.messages)
            raise NotAllowed(
                f"{self.topic}: a message of {biggest:,} bytes; its brokers take {self._bytes_max:,} at most"
            )
        return made

    def _pieces(self, sent: _Sent) -> list[_Sent]:
        found, start, size_bytes = list[_Sent](), 0, 0
        for at, message in enumerate(sent.messages):
            each = _each(message)
            if at > start and size_bytes + each > self._entry_bytes:
                found.append(sent.cut(start, at))
                start, size_bytes = at, 0
            size_bytes += each
        found.append(sent.cut(start, len(sent.messages)))
        return found

    def _frame(self, sent: _Sent) -> bytes:
        first, messages, publish_ms, schema_version, _ = sent
        last = sent.last
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
        metadata = MessageMetadata(
            producer_name=self.name, sequence_id=first, publish_time=publish_ms, num_messages_in_batch=len(messages)
        )
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
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = self._id, first, len(messages)
        command.send.highest_sequence_id = last
        packed = command.SerializeToString()
        size = 4 + len(packed) + 2 + 4 + len(body)
        return struct.pack(">II", size, len(packed)) + packed + _MAGIC + crc32c.crc32c(body).to_bytes(4, "big") + body


def _each(message: Message) -> int:
    return len(message.value) + _ROW_BYTES


def _size(messages: Sequence[Message]) -> int:
    return sum(map(len, map(_value, messages))) + _ROW_BYTES * len(messages)


def _too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__
    return False


Compress = tuple[Any, Callable[[bytes], bytes]]
"""Holds (Pulsar's CompressionType, the function that compresses a payload)."""
