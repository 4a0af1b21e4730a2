"""Clients that stay: each has one producer on one topic, publishes at its own pace, and comes back by itself when its
broker goes.

Is: what a client library does where a broker dies or gives a bundle away (look up again, with a pause that doubles and
is drawn), without its cost, so that thousands fit into one process. Isn't: a client: no batches, no consumers.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from typing import Any, cast
from urllib.parse import urlsplit

import crc32c

from benchmarks.raw_client import simple
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.varint import varint

_U32 = struct.Struct(">I")
_K = pb.BaseCommand
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0


class Steady:
    """`every_s`: between two messages; 0: it only stays connected. Times are perf_counter seconds."""

    def __init__(
        self,
        topic: str,
        port: int,
        name: str,
        *,
        every_s: float = 1.0,
        size_bytes: int = 100,
        rng: random.Random | None = None,
    ) -> None:
        self.topic, self.port, self.name, self.every_s = topic, port, name, every_s
        self.latencies: list[tuple[float, float]] = []
        """(sent at, seconds until its receipt): of what is sent again after a loss, since it was sent first."""
        self.errors: list[str] = []
        self.reconnects = 0
        self.ready = asyncio.Event()
        self.ready_at = 0.0
        """When it had its producer the last time."""
        self.receipts = 0
        self._rng = rng or random.Random(name)
        self._sequence = 0
        self._waiting: dict[int, float] = {}
        self._link: _Link | None = None
        self._pauses = 0
        self._stopped = False
        metadata = pb.MessageMetadata(
            producer_name=name, publish_time=int(time.time() * 1000), sequence_id=0
        ).SerializeToString()
        entry = _U32.pack(len(metadata)) + metadata + bytes(size_bytes)
        self._entry = b"\x0e\x01" + _U32.pack(crc32c.crc32c(entry)) + entry
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._connect(self.port, False))
        self.pace(self.every_s)

    def stop(self) -> None:
        self._stopped = True
        if self._link is not None and self._link.transport is not None:
            self._link.transport.abort()
        if self._task is not None:
            self._task.cancel()

    @property
    def port_now(self) -> int:
        """The port of the broker that it is connected to, or tries to be; 0: it is between two."""
        return self._link.port if self._link is not None else 0

    # -- publishing

    def pace(self, every_s: float) -> None:
        """Another pace from now on; 0: it publishes nothing."""
        self.every_s = every_s
        if self._timer is not None:
            self._timer.cancel()  # else a pace that follows soon on a slow one would be twice as fast
        self._timer = self._loop.call_later(self._rng.uniform(0, every_s), self._beat) if every_s else None

    def _beat(self) -> None:
        if self._stopped:
            return
        self._timer = self._loop.call_later(self.every_s, self._beat)
        if len(self._waiting) < 1000:
            self._waiting[self._sequence] = time.perf_counter()
            self._sequence += 1
            if self.ready.is_set():
                self._send(self._sequence - 1)

    def _send(self, sequence: int) -> None:
        assert self._link is not None and self._link.transport is not None
        inner = b"\x08\x01\x10" + varint(sequence)
        command = b"\x08\x06\x32" + varint(len(inner)) + inner
        self._link.transport.write(
            struct.pack(">II", len(command) + 4 + len(self._entry), len(command)) + command + self._entry
        )

    # -- what the connection says

    def on_receipt(self, sequence: int) -> None:
        self.receipts += 1
        if (at := self._waiting.pop(sequence, None)) is not None:
            self.latencies.append((at, time.perf_counter() - at))

    def on_producer(self) -> None:
        self._pauses = 0
        self.ready_at = time.perf_counter()
        self.ready.set()
        for sequence in list(self._waiting):
            self._send(sequence)

    def on_found(self, url: str, authoritative: bool, redirect: bool) -> None:
        """Where the topic is: here (the port is this connection's), or elsewhere."""
        port = urlsplit(url).port or self.port
        assert self._link is not None
        if port == self._link.port and not redirect:
            self._link.open_producer()
            return
        self._drop()
        self._task = self._loop.create_task(self._connect(port, authoritative, opens=not redirect))

    def on_lost(self, link: _Link, why: str) -> None:
        if self._stopped or link is not self._link:
            return
        self.ready.clear()
        self.reconnects += 1
        self._again(why)

    def on_moved(self, url: str) -> None:
        """The topic is being closed; url: of its next owner, where that is known: there it is opened without another
        lookup.
        """
        port = urlsplit(url).port
        if port is None:
            self.on_refused(pb.ServiceNotReady, "the topic moves")
            return
        self.reconnects += self.ready.is_set()
        self.ready.clear()
        self._drop()
        self._task = self._loop.create_task(self._connect(port, False, opens=True))

    def on_refused(self, error: int, message: str) -> None:
        if error not in (
            pb.ServiceNotReady,
            pb.TooManyRequests,
            pb.MetadataError,
            pb.PersistenceError,
            pb.ProducerBusy,
            pb.TopicNotFound,
        ):
            self.errors.append(message)
        self.reconnects += self.ready.is_set()
        self.ready.clear()
        self._drop()
        self._again(message)

    def _again(self, why: str) -> None:
        if self._stopped:
            return
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._pauses)
        self._pauses += 1
        self._link = None
        self._task = self._loop.create_task(self._connect(self.port, False, self._rng.uniform(pause / 2, pause)))

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None and link.transport is not None:
            link.transport.close()

    async def _connect(self, port: int, authoritative: bool, pause_s: float = 0.0, *, opens: bool = False) -> None:
        await asyncio.sleep(pause_s)
        self._link = link = _Link(self, port, authoritative, opens)
        try:
            await self._loop.create_connection(lambda: link, "127.0.0.1", port)
        except OSError as error:
            self._again(str(error))


class _Link(asyncio.Protocol):
    """One connection: CONNECT, LOOKUP where it does not know yet, PRODUCER, then receipts."""

    def __init__(self, owner: Steady, port: int, authoritative: bool, opens: bool) -> None:
        self.owner, self.port, self._authoritative, self._opens = owner, port, authoritative, opens
        self.transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        hello = pb.BaseCommand(type=_K.CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "steady", 19
        self.transport.write(simple(hello))

    def connection_lost(self, error: Exception | None) -> None:
        self.owner.on_lost(self, str(error or "closed by the server"))

    def open_producer(self) -> None:
        command = pb.BaseCommand(type=_K.PRODUCER)
        command.producer.topic, command.producer.producer_id = self.owner.topic, 1
        command.producer.request_id, command.producer.producer_name = 2, self.owner.name
        self._write(command)

    def _write(self, command: Any) -> None:
        assert self.transport is not None
        self.transport.write(simple(command))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= 4:
            end = at + 4 + _U32.unpack_from(data, at)[0]
            if end > size:
                break
            command = pb.BaseCommand()
            command.ParseFromString(data[at + 8 : at + 8 + _U32.unpack_from(data, at + 4)[0]])
            at = end
            if self.owner._link is self:
                self._on_command(command)
        self._rest = data[at:]

    def _on_command(self, command: Any) -> None:
        match command.type:
            case _K.SEND_RECEIPT:
                self.owner.on_receipt(command.send_receipt.sequence_id)
            case _K.CONNECTED:
                if self._opens:
                    self.open_producer()
                    return
                lookup = pb.BaseCommand(type=_K.LOOKUP)
                lookup.lookupTopic.topic, lookup.lookupTopic.request_id = self.owner.topic, 1
                lookup.lookupTopic.authoritative = self._authoritative
                self._write(lookup)
            case _K.LOOKUP_RESPONSE:
                found = command.lookupTopicResponse
                if found.response == pb.CommandLookupTopicResponse.Failed:
                    self.owner.on_refused(found.error, found.message)
                else:
                    self.owner.on_found(
                        found.brokerServiceUrl,
                        found.authoritative,
                        found.response == pb.CommandLookupTopicResponse.Redirect,
                    )
            case _K.PRODUCER_SUCCESS:
                self.owner.on_producer()
            case _K.PING:
                self._write(pb.BaseCommand(type=_K.PONG, pong=pb.CommandPong()))
            case _K.CLOSE_PRODUCER:
                self.owner.on_moved(command.close_producer.assignedBrokerServiceUrl)
            case _K.ERROR:
                self.owner.on_refused(command.error.error, command.error.message)
            case _K.SEND_ERROR:
                self.owner.on_refused(command.send_error.error, command.send_error.message)


def quantile(values: list[float], share: float) -> float:
    """Returns the value that `share` of them (0 to 1) lie below; NaN where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
