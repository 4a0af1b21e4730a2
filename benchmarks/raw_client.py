"""A load generator that costs the machine as little as it can: frames built beforehand, a window, receipts counted and
not read.

Is: `python -m benchmarks.raw_client PORT TOPIC SIZE COUNT WINDOW` prints one JSON line {entries, seconds}; the same
against any Pulsar server.
Isn't: a client; it knows CONNECT, LOOKUP (to make the server load the topic), PRODUCER, SEND, PING, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from typing import Any, cast

import crc32c

from heliograph.wire.pulsar import pulsar_pb2 as pb

_U32 = struct.Struct(">I")
_RECEIPT = 7


def simple(command: Any) -> bytes:
    body: bytes = command.SerializeToString()
    return struct.pack(">II", len(body) + 4, len(body)) + body


def send_frames(name: str, first: int, count: int, payload: bytes) -> list[bytes]:
    """SENDs of producer 1, sequences first..first+count-1, each one unbatched message."""
    frames = []
    command = pb.BaseCommand(type=pb.BaseCommand.SEND)
    command.send.producer_id, command.send.num_messages = 1, 1
    metadata = pb.MessageMetadata(producer_name=name, publish_time=int(time.time() * 1000))
    for sequence in range(first, first + count):
        command.send.sequence_id = metadata.sequence_id = sequence
        head, meta = command.SerializeToString(), metadata.SerializeToString()
        entry = _U32.pack(len(meta)) + meta + payload
        frames.append(
            struct.pack(">II", len(head) + 10 + len(entry), len(head))
            + head
            + b"\x0e\x01"
            + _U32.pack(crc32c.crc32c(entry))
            + entry,
        )
    return frames


class LoadConnection(asyncio.Protocol):
    """A connection that carries load: it says CONNECT, and who waits for it hears of its end. `done`: of what was
    started last.
    """

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(64 << 20)
        hello = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "load", 19
        self.transport.write(simple(hello))

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self.ready, self.done):
            if not future.done():
                future.set_exception(error or ConnectionError("closed by the server"))


class RawProducer(LoadConnection):
    """Sends what it is given, never more than `window` without a receipt."""

    def __init__(self, topic: str, name: str, window: int) -> None:
        self.topic, self.name, self.window = topic, name, window
        super().__init__()
        self.frames: list[bytes] = []
        self.sent = self.received = 0
        self._rest = b""

    def start(self, frames: list[bytes]) -> None:
        self.frames, self.sent, self.received = frames, 0, 0
        self.done = asyncio.get_running_loop().create_future()
        self._fill()

    def _fill(self) -> None:
        stop = min(len(self.frames), self.received + self.window)
        if stop - self.sent >= self.window // 4 or stop == len(self.frames) > self.sent:
            self.transport.writelines(self.frames[self.sent : stop])
            self.sent = stop

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        receipts = 0
        while size - at >= 4:
            end = at + 4 + _U32.unpack_from(data, at)[0]
            if end > size:
                break
            if data[at + 9] == _RECEIPT:
                receipts += 1
            else:
                self._command(data[at + 8 : at + 8 + _U32.unpack_from(data, at + 4)[0]])
            at = end
        self._rest = data[at:]
        if receipts:
            self.received += receipts
            if self.received >= len(self.frames) and not self.done.done():
                self.done.set_result(time.perf_counter())
            elif self.sent < len(self.frames):
                self._fill()

    def _command(self, body: bytes) -> None:
        command = pb.BaseCommand()
        command.ParseFromString(body)
        kinds = pb.BaseCommand
        if command.type == kinds.CONNECTED:
            lookup = pb.BaseCommand(type=kinds.LOOKUP)
            lookup.lookupTopic.topic, lookup.lookupTopic.request_id = self.topic, 1
            self.transport.write(simple(lookup))
        elif command.type == kinds.LOOKUP_RESPONSE:
            producer = pb.BaseCommand(type=kinds.PRODUCER)
            producer.producer.topic, producer.producer.producer_id = self.topic, 1
            producer.producer.request_id, producer.producer.producer_name = 2, self.name
            self.transport.write(simple(producer))
        elif command.type == kinds.PRODUCER_SUCCESS:
            self.ready.set_result(None)
        elif command.type == kinds.PING:
            self.transport.write(simple(pb.BaseCommand(type=kinds.PONG, pong=pb.CommandPong())))
        else:
            self.transport.abort()
            raise SystemExit(f"unexpected answer: {command}")


async def blast(port: int, topic: str, size: int, count: int, window: int, *, warm: int = 0) -> tuple[int, float]:
    """(entries, seconds) of `count` entries, after `warm` that do not count."""
    loop = asyncio.get_running_loop()
    name = f"load-{time.time_ns()}"
    _, producer = await loop.create_connection(lambda: RawProducer(topic, name, window), "127.0.0.1", port)
    await asyncio.wait_for(producer.ready, 30)
    payload = bytes(range(256)) * (size // 256 + 1)
    at = 0
    if warm:
        producer.start(send_frames(name, 0, warm, payload[:size]))
        await producer.done
        at = warm
    entries, seconds = 0, 0.0
    chunk = max(1, min(count, (256 << 20) // (size + 100)))
    while entries < count:
        frames = send_frames(name, at, min(chunk, count - entries), payload[:size])
        begun = time.perf_counter()
        producer.start(frames)
        seconds += await producer.done - begun
        entries, at = entries + len(frames), at + len(frames)
    producer.transport.abort()
    return entries, seconds


def main() -> None:
    port, topic, size, count, window = int(sys.argv[1]), sys.argv[2], *(int(a) for a in sys.argv[3:6])
    try:
        import uvloop

        run: Any = uvloop.run
    except ImportError:
        run = asyncio.run
    entries, seconds = run(blast(port, topic, size, count, window, warm=count // 10))
    print(json.dumps({"entries": entries, "seconds": seconds}))


if __name__ == "__main__":
    main()
