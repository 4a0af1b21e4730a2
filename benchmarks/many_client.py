"""A load generator of many producers: T topics, P producers in all over C connections, each with at most W entries
without a receipt.

Is: `python -m benchmarks.many_client PORT PREFIX TOPICS PRODUCERS CONNECTIONS WINDOW SIZE COUNT` prints one JSON line
{entries, seconds, p50_ms, p99_ms}.
Isn't: a client; it finds no other broker, and gives up at the first error. Frames are built while it runs, which costs
both sides the same.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from statistics import quantiles
from typing import Any

import crc32c

from benchmarks.raw_client import LoadConnection, simple
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.varint import read_varint, varint

_U32 = struct.Struct(">I")
_RECEIPT = 7


class ManyProducers(LoadConnection):
    """One connection with some of the producers. `topics`: of each producer, whose id is its place."""

    def __init__(self, topics: list[str], name: str, window: int, size: int) -> None:
        self.topics, self.name, self.window = topics, name, window
        super().__init__()
        self.latencies: list[float] = []
        self._left = self._waiting = 0
        self._sequences = [0] * len(topics)
        self._sent_at: list[list[float]] = [[] for _ in topics]
        self._rest = b""
        self._opened = 0
        metadata = pb.MessageMetadata(
            producer_name=name, publish_time=int(time.time() * 1000), sequence_id=0
        ).SerializeToString()
        entry = _U32.pack(len(metadata)) + metadata + bytes(size)
        self._entry = b"\x0e\x01" + _U32.pack(crc32c.crc32c(entry)) + entry

    def start(self, count: int) -> None:
        """Sends `count` entries, round the producers."""
        self._left, self._waiting = count, 0
        self.latencies = []
        self.done = asyncio.get_running_loop().create_future()
        frames: list[bytes] = []
        for _ in range(self.window):
            for producer in range(len(self.topics)):
                self._put(producer, frames)
        self.transport.write(b"".join(frames))

    def _put(self, producer: int, frames: list[bytes]) -> None:
        if not self._left:
            return
        self._left -= 1
        self._waiting += 1
        sequence = self._sequences[producer]
        self._sequences[producer] = sequence + 1
        self._sent_at[producer].append(time.perf_counter())
        inner = b"\x08" + varint(producer) + b"\x10" + varint(sequence)
        command = b"\x08\x06\x32" + varint(len(inner)) + inner
        frames.append(struct.pack(">II", len(command) + 4 + len(self._entry), len(command)) + command + self._entry)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        frames: list[bytes] = []
        now = time.perf_counter()
        while size - at >= 4:
            end = at + 4 + _U32.unpack_from(data, at)[0]
            if end > size:
                break
            if data[at + 9] == _RECEIPT:
                _, behind = read_varint(data, at + 11)
                producer, _ = read_varint(data, behind + 1)
                self.latencies.append(now - self._sent_at[producer].pop(0))
                self._waiting -= 1
                self._put(producer, frames)
            else:
                self._command(data[at + 8 : at + 8 + _U32.unpack_from(data, at + 4)[0]])
            at = end
        self._rest = data[at:]
        if frames:
            self.transport.write(b"".join(frames))
        elif not self._waiting and not self._left and not self.done.done():
            self.done.set_result(None)

    def _command(self, body: bytes) -> None:
        command = pb.BaseCommand()
        command.ParseFromString(body)
        kinds = pb.BaseCommand
        if command.type == kinds.CONNECTED:
            self._look()
        elif command.type == kinds.LOOKUP_RESPONSE:
            producer = pb.BaseCommand(type=kinds.PRODUCER)
            producer.producer.topic, producer.producer.producer_id = self.topics[self._opened], self._opened
            producer.producer.request_id, producer.producer.producer_name = 2, f"{self.name}-{self._opened}"
            self.transport.write(simple(producer))
        elif command.type == kinds.PRODUCER_SUCCESS:
            self._opened += 1
            if self._opened == len(self.topics):
                self.ready.set_result(None)
            else:
                self._look()
        elif command.type == kinds.PING:
            self.transport.write(simple(pb.BaseCommand(type=kinds.PONG, pong=pb.CommandPong())))
        else:
            self.connection_lost(ConnectionError(f"unexpected answer: {command}"))
            self.transport.abort()

    def _look(self) -> None:
        lookup = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = self.topics[self._opened], 1
        self.transport.write(simple(lookup))


async def run(
    port: int, prefix: str, topics: int, producers: int, connections: int, window: int, size: int, count: int
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    made: list[ManyProducers] = []
    for index in range(connections):
        names = [f"{prefix}-{number % topics}" for number in range(producers) if number % connections == index]
        _, one = await loop.create_connection(
            lambda names=names, index=index: ManyProducers(  # type: ignore[misc]
                names, f"many-{time.time_ns()}-{index}", window, size
            ),
            "127.0.0.1",
            port,
        )
        made.append(one)
    for one in made:
        await asyncio.wait_for(one.ready, 120)
    seconds = 0.0
    for part in (count // 10, count):
        begun = time.perf_counter()
        for one in made:
            one.start(part // connections)
        for one in made:
            await one.done
        seconds = time.perf_counter() - begun
    cut = quantiles([each for one in made for each in one.latencies], n=100)
    for one in made:
        one.transport.abort()
    return {
        "entries": count // connections * connections,
        "seconds": seconds,
        "p50_ms": cut[49] * 1e3,
        "p99_ms": cut[98] * 1e3,
    }


def main() -> None:
    port, prefix, *numbers = sys.argv[1:]
    try:
        import uvloop

        runner: Any = uvloop.run
    except ImportError:
        runner = asyncio.run
    print(json.dumps(runner(run(int(port), prefix, *(int(n) for n in numbers)))))


if __name__ == "__main__":
    main()
