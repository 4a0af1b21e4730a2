"""RawProducer: publishes entries as they once lay on bookies, byte by byte, over the Pulsar protocol.

Is: one producer on one connection, a bounded window, receipts in order. Isn't: a client with reconnection; who uses it
begins again.
Invariants: an entry's bytes (checksum, metadata, payload) are not changed; a name and sequences that are given again
are duplicates to a topic that deduplicates, so repeating a call that broke off adds nothing twice there.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from heliograph.client.pulsar_connection import Address, BrokerConnection, ConnectionLost, ServerRefused
from heliograph.model.errors import NotFound
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand
from heliograph.wire.run import Buffer, Run

_WINDOW = 500
_HOPS_MAX = 10
_TIMEOUT_S = 30.0


class RawProducer(BrokerConnection):
    """`await open_producer(...)`, then `publish` runs, then `finish`."""

    def __init__(self) -> None:
        super().__init__()
        self._made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._window = asyncio.Semaphore(_WINDOW)
        self._sent = self._received = 0
        self.confirmed = -1
        """The sequence of the newest receipt: what was given before it is published, too."""
        self._failed: ServerRefused | None = None
        self._all: asyncio.Event = asyncio.Event()

    async def begin(self, topic: str, name: str) -> None:
        """Makes the producer `name` of `topic`; returns once the broker has answered. Raises ServerRefused,
        ConnectionLost, TimeoutError (after 30 s).
        """
        command = BaseCommand(type=BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic, producer.producer_id, producer.request_id, producer.producer_name = topic, 1, 1, name
        self._waiting[1] = self._made
        self.send(command)
        async with asyncio.timeout(_TIMEOUT_S):
            await self._made

    async def publish(self, first: int, run: Run) -> None:
        """Raises ServerRefused, ConnectionLost: some entries may have been published."""
        for index, entry in enumerate(run.parts):
            await self._room()
            command = BaseCommand(type=BaseCommand.SEND)
            command.send.producer_id, command.send.sequence_id = 1, first + index
            command.send.num_messages = run.counts[index] if run.counts is not None else 1
            self._sent += 1
            self.write(_frame(command, entry))

    async def finish(self) -> None:
        """Until every entry has its receipt. Raises as `publish`."""
        async with asyncio.timeout(_TIMEOUT_S):
            while self._received < self._sent:
                self._check()
                self._all.clear()
                await self._all.wait()
        self._check()

    async def _room(self) -> None:
        self._check()
        async with asyncio.timeout(_TIMEOUT_S):
            await self._window.acquire()
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self.closed is not None:
            raise self.closed

    def _end(self, error: Any) -> None:
        super()._end(error)
        self._wake()

    def _wake(self) -> None:
        self._all.set()
        self._window.release()

    def _on_frame(self, command: memoryview, payload: memoryview) -> None:
        kind = command[1] if command[0] == 8 else 0  # BaseCommand.type is the first field, of one byte here
        if kind == BaseCommand.PRODUCER_SUCCESS and not self._made.done():
            self._made.set_result(None)
        elif kind == BaseCommand.SEND_RECEIPT:
            self._received += 1
            self.confirmed = BaseCommand.FromString(bytes(command)).send_receipt.sequence_id
            self._wake()
        elif kind == BaseCommand.SEND_ERROR:
            error = BaseCommand.FromString(bytes(command)).send_error
            self._failed = ServerRefused(error.error, error.message)
            self._wake()
        elif kind == BaseCommand.CLOSE_PRODUCER:
            self._failed = ServerRefused(0, "the topic moved meanwhile: begin again")
            self._wake()
        else:
            super()._on_frame(command, payload)


async def open_producer(url: str, topic: str, name: str) -> RawProducer:
    """At the topic's owner, found from the broker at `url`. Raises NotFound (the address), ServerRefused,
    ConnectionLost, TimeoutError.
    """
    address, authoritative = Address.parse(url), False
    for _ in range(_HOPS_MAX):
        asked = await BrokerConnection.connect(address)
        try:
            answer = await asked.lookup(topic, authoritative=authoritative)
        finally:
            asked.close()
        address, authoritative = answer.address(False), answer.authoritative
        if not answer.redirect:
            made = await RawProducer.connect(address)
            assert isinstance(made, RawProducer)
            await made.begin(topic, name)
            return made
    raise NotFound(f"{topic}: brokers point at each other; try again")


def _frame(command: BaseCommand, entry: Buffer) -> list[Buffer]:
    body = command.SerializeToString()
    return [struct.pack(">II", len(body) + 4 + len(entry), len(body)) + body, entry]


__all__ = ["ConnectionLost", "RawProducer", "ServerRefused", "open_producer"]
