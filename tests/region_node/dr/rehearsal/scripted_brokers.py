"""Two brokers of two regions that lead clients as ours do: by look-ups, behind a refusal."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

from heliograph.client.pulsar_connection import Address
from heliograph.runtime.clock import Clock
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError

TOPIC = "persistent://t/n-drill-1/of-0-0"


class LoopClock(Clock):
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000)


class Region:
    """One broker. `other`: where it leads publishers while it is not the active one; `log`: entries of the topic."""

    def __init__(self, port: int) -> None:
        self.url = f"pulsar://test:{port}"
        self.active, self.leads = False, True
        self.other: Region | None = None
        self.log: list[bytes] = []
        self.connections: list[Connection] = []
        self._port, self._server = port, cast(Any, None)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "test", self._port)

    def stop(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.transport.abort()

    def passive(self) -> None:
        """Its producers are closed."""
        self.active = False
        for connection in self.connections:
            connection.send_away()


async def two_regions() -> tuple[Region, Region]:
    """(the active one, the other one)."""
    us, eu = Region(6650), Region(6651)
    us.other, eu.other, us.active = eu, us, True
    await us.start()
    await eu.start()
    return us, eu


class Connection(asyncio.Protocol):
    def __init__(self, region: Region) -> None:
        self._region, self._data = region, b""
        self.transport: asyncio.Transport
        self._producers: set[int] = set()
        self._read = -1
        """How many entries were sent to its reader; -1: it has none."""
        self._told = False
        """Whether the next look-up is that of somebody who was sent away."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._region.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._region.connections.remove(self)

    def send_away(self) -> None:
        for producer in sorted(self._producers):
            command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
            command.close_producer.producer_id, command.close_producer.request_id = producer, 0
            self._send(command)
            self._told = True
        self._producers.clear()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 8:
            total, size = struct.unpack_from(">II", self._data)
            if len(self._data) < 4 + total:
                return
            command, payload = self._data[8 : 8 + size], self._data[8 + size : 4 + total]
            self._data = self._data[4 + total :]
            self._on(BaseCommand.FromString(command), payload)

    def _on(self, asked: Any, payload: bytes) -> None:
        answer, region = BaseCommand(), self._region
        if asked.type == BaseCommand.CONNECT:
            answer.type = BaseCommand.CONNECTED
            answer.connected.server_version = "scripted"
        elif asked.type == BaseCommand.LOOKUP:
            answer.type, found = BaseCommand.LOOKUP_RESPONSE, answer.lookupTopicResponse
            led = self._told and region.leads and region.other is not None
            self._told = False
            found.request_id, found.authoritative = asked.lookupTopic.request_id, False
            found.response = CommandLookupTopicResponse.Redirect if led else CommandLookupTopicResponse.Connect
            found.brokerServiceUrl = region.other.url if led and region.other is not None else region.url
        elif asked.type == BaseCommand.PRODUCER and not region.active:
            answer.type, self._told = BaseCommand.ERROR, True
            answer.error.request_id, answer.error.message = asked.producer.request_id, "another region is active"
            answer.error.error = ServerError.Value("ServiceNotReady")
        elif asked.type == BaseCommand.PRODUCER:
            self._producers.add(asked.producer.producer_id)
            answer.type, made = BaseCommand.PRODUCER_SUCCESS, answer.producer_success
            made.request_id, made.producer_name = asked.producer.request_id, asked.producer.producer_name
            made.last_sequence_id = -1
        elif asked.type == BaseCommand.SEND and asked.send.producer_id in self._producers:
            region.log.append(payload)
            answer.type, receipt = BaseCommand.SEND_RECEIPT, answer.send_receipt
            receipt.producer_id, receipt.sequence_id = asked.send.producer_id, asked.send.sequence_id
            for connection in region.connections:
                connection.deliver()
        elif asked.type == BaseCommand.SUBSCRIBE:
            answer.type, answer.success.request_id = BaseCommand.SUCCESS, asked.subscribe.request_id
            self._read = 0
        else:
            if asked.type == BaseCommand.FLOW:
                self.deliver()
            return
        self._send(answer)

    def deliver(self) -> None:
        while 0 <= self._read < len(self._region.log):
            command = BaseCommand(type=BaseCommand.MESSAGE)
            command.message.consumer_id = 1
            command.message.message_id.ledgerId, command.message.message_id.entryId = 1, self._read
            self._send(command, self._region.log[self._read])
            self._read += 1

    def _send(self, command: Any, payload: bytes = b"") -> None:
        body = command.SerializeToString()
        self.transport.write(struct.pack(">II", len(body) + 4 + len(payload), len(body)) + body + payload)


def any_address(address: Address, token: str) -> None:
    """Lets a client go wherever it is led."""
