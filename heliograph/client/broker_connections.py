"""Brokers: a connection to each broker of a region, which producers of thousands of topics share; `Line`: one of them.

Is: finding a topic's owner, connecting once, and handing on what comes for a producer. Isn't: what a producer does with
that (`producer`).
Invariants: a producer's id is used once on a connection, so what comes for one that has left is nobody's.
Source: docs/protocols/pulsar.md.
"""

from __future__ import annotations

import asyncio
import ssl as tls
import urllib.parse
from collections.abc import Callable
from typing import Any, Protocol

from heliograph.client.admin_http import Http
from heliograph.client.pulsar_connection import Address, BrokerConnection
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand

_ASKING_MAX = 4
"""So many connections are there for lookups."""
_OPENING_MAX = 32
"""Producers that are looked up and made at a time: each waits for its broker, and a new topic for the metadata."""


class ConnectedProducer(Protocol):
    """A producer, as its connection sees it."""

    def on_receipt(self, command: Any) -> None: ...

    def on_refused(self, command: Any) -> None: ...

    def lost(self) -> None:
        """The connection is, or the broker has sent it away."""
        ...


class Line:
    """A connection, and the producers on it by their ids."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self._producers: dict[int, ConnectedProducer] = {}
        self._made = self.answered = 0
        """answered: receipts, of whichever producer."""
        connection.on_command, connection.on_closed = self._on_command, self._on_closed

    def enter(self, producer: ConnectedProducer) -> int:
        """Its id, which no other has had here: what comes for an earlier one is nobody's."""
        self._made += 1
        self._producers[self._made] = producer
        return self._made

    def has(self, number: int) -> bool:
        return number in self._producers

    def leave(self, number: int) -> None:
        if self._producers.pop(number, None) is not None and self.connection.closed is None:
            self.connection.close_producer(number)

    def _on_command(self, command: Any) -> None:
        kind, producers = command.type, self._producers
        if kind == BaseCommand.SEND_RECEIPT:
            self.answered += 1
            if (producer := producers.get(command.send_receipt.producer_id)) is not None:
                producer.on_receipt(command)
        elif kind == BaseCommand.SEND_ERROR and (producer := producers.get(command.send_error.producer_id)) is not None:
            producer.on_refused(command)
        elif (
            kind == BaseCommand.CLOSE_PRODUCER
            and (producer := producers.pop(command.close_producer.producer_id, None)) is not None
        ):
            producer.lost()

    def _on_closed(self, _: HeliographError) -> None:
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            producer.lost()


class Brokers:
    """A region's brokers, a connection to each that is asked for. token: read anew for each connection. Of one event
    loop.
    """

    def __init__(self, admin_url: str, *, token: Callable[[], str] = str, ssl: tls.SSLContext | None = None) -> None:
        self._token, self._ssl = token, ssl
        self._https = [Http(admin_url, tls=ssl) for _ in range(_ASKING_MAX)]
        self._idle = asyncio.Queue[Http]()
        for http in self._https:
            self._idle.put_nowait(http)
        self._lines: dict[Address, asyncio.Task[Line]] = {}
        self.opening = asyncio.Semaphore(_OPENING_MAX)
        self.waiting_bytes = 0

    async def line(self, topic: str) -> Line:
        """To the topic's present owner. Raises NotAllowed for what time does not end, else HeliographError, OSError,
        TimeoutError.
        """
        http = await self._idle.get()
        try:
            address = await asyncio.to_thread(self._owner, http, topic)
        finally:
            self._idle.put_nowait(http)
        while True:
            task = self._lines.get(address)
            if task is None or (
                task.done()
                and (task.cancelled() or task.exception() is not None or task.result().connection.closed is not None)
            ):
                task = self._lines[address] = asyncio.create_task(self._connected(address))
            line = await asyncio.shield(task)
            if line.connection.closed is None:
                return line

    async def _connected(self, address: Address) -> Line:
        return Line(await BrokerConnection.connect(address, ssl=self._ssl, token=self._token()))

    def _owner(self, http: Http, topic: str) -> Address:
        """By HTTP lookup at any broker. Raises NotAllowed where the region refuses, MetadataUnavailable where it does
        not answer.
        """
        name = TopicName.parse(topic)
        path = (
            f"/lookup/v2/topic/{name.domain}/{name.tenant}/{name.namespace_local}/"
            f"{urllib.parse.quote(name.local, safe='')}"
        )
        try:
            http.renew(self._token())
            found = http.json("GET", path)
        except MetadataUnavailable:
            raise
        except HeliographError as error:
            raise NotAllowed(str(error)) from error
        url = found.get("brokerUrlTls" if self._ssl is not None else "brokerUrl") or ""
        if not url:
            raise NotAllowed(
                f"the owner of {topic} has no {'TLS ' if self._ssl is not None else 'plain '}address: {found}"
            )
        return Address.parse(url)

    def close(self) -> None:
        for http in self._https:
            http.close()
        for task in self._lines.values():
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                task.result().connection.close()
