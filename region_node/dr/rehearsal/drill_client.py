"""DrillClient: a producer and a reader of one topic of a drill's shadow, as a client of Pulsar has them.

Is: connections to brokers' Pulsar ports, look-ups at the regions' service URLs, publishing a message at a time, reading
them in this region, and when the first of each came behind the switch. Isn't: a client for anybody else, or a protocol
of Kafka's.
Invariants: it goes where brokers lead it, and asks again whenever it is sent away: nothing but their answers tells it
which region is the active one; a message counts as this region's only where a broker of this region has confirmed it;
a token goes by TLS only, but on this machine; no address is connected to that `ClientAccess.check` has not let pass.
Source: docs/protocols/leadership.md, "Clients".
"""

from __future__ import annotations

import asyncio
import ssl as tls
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from heliograph.client.pulsar_connection import (
    REDIRECTS_MAX,
    Address,
    BrokerConnection,
    ConnectionLost,
    ServerRefused,
    TopicReader,
)
from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import HeliographError, NotAllowed, NotFound
from heliograph.runtime.clock import Clock
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand
from region_node.dr.canary import entry_of

_EVERY_S = 0.05
"""Between two messages, and two tries."""
_ANSWER_S = 3.0
_THERE, _HERE = b"heliograph-drill: there", b"heliograph-drill: here"
"""What a message says: that it goes to a broker of another region, or of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """How brokers are reached: `urls` of regions, where look-ups begin, this region's last; `here`: whether a broker of
    this region listens there; `check`: raises NotAllowed where an address is none that they, or a client with that
    token, may be led to; `token`: who it is, anew for each connection, "": nobody; `ssl`: whom it believes, where
    brokers speak TLS.
    """

    urls: Sequence[str]
    here: Callable[[Address], bool]
    check: Callable[[Address, str], None]
    token: Callable[[], str]
    ssl: Callable[[], tls.SSLContext]


class DrillClient:
    """Runs until its task is cancelled."""

    def __init__(self, topic: str, access: ClientAccess, clock: Clock) -> None:
        self._topic, self._access, self._clock = topic, access, clock
        self.said = ""
        """Why the last try failed; "": none has."""
        self.acked_at: float | None = None
        self.read_at: float | None = None
        """When the first message was confirmed, and read, in this region."""
        self._acked_there = self._reads = False
        self._sequence = self._producers = 0
        self._answer: asyncio.Future[bool] | None = None
        """Of the message that is under way: whether it was confirmed."""
        self._sent_away = False

    @property
    def ready(self) -> bool:
        """It has published in the other region, and reads here; or it publishes here already."""
        return self._reads and (self._acked_there or self.acked_at is not None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again_and_again(self._publish))
            group.create_task(self._again_and_again(self._read))

    async def _again_and_again(self, act: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            try:
                await act()
            except (HeliographError, OSError, TimeoutError) as error:
                self.said = str(error) or type(error).__name__
            await asyncio.sleep(_EVERY_S)

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Until the connection is lost. Raises HeliographError, OSError, TimeoutError."""
        connection, address = await self._found(self._access.urls)
        try:
            while True:
                connection.hand_on(self._on_command, lambda _: self._leave())
                self._producers, self._sent_away = self._producers + 1, False
                name = f"heliograph-drill-{self._topic.rpartition('/')[2]}"
                try:
                    await connection.producer(self._producers, self._topic, name, timeout_s=_ANSWER_S)
                    await self._send(connection, here=self._access.here(address))
                except ServerRefused as error:
                    self.said = str(error)
                if connection.closed is not None:
                    raise connection.closed
                # where it was sent away it is told where to go
                answer = await connection.lookup(self._topic, timeout_s=_ANSWER_S)
                if answer.redirect or answer.address(address.secure) != address:
                    connection.close()
                    connection, address = await self._led(
                        answer.address(address.secure), authoritative=answer.authoritative
                    )
                else:
                    await asyncio.sleep(_EVERY_S)
        finally:
            connection.close()

    async def _send(self, connection: BrokerConnection, *, here: bool) -> None:
        """One message behind the other, until the producer is sent away. Raises TimeoutError."""
        while not self._sent_away:
            self._sequence += 1
            self._answer = asyncio.get_running_loop().create_future()
            connection.write([self._frame(_HERE if here else _THERE)])
            async with asyncio.timeout(_ANSWER_S):
                if not await self._answer:
                    return
            if not here:
                self._acked_there = True
            elif self.acked_at is None:
                self.acked_at = self._clock.monotonic()
            await asyncio.sleep(_EVERY_S)

    def _frame(self, body: bytes) -> bytes:
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = self._producers, self._sequence
        made, entry = command.SerializeToString(), entry_of("drill", body, self._sequence, self._clock.wall_ms())
        return struct.pack(">II", len(made) + 4 + len(entry), len(made)) + made + entry

    def _on_command(self, command: BaseCommand) -> None:
        kind = command.type
        if kind == BaseCommand.SEND_RECEIPT and command.send_receipt.producer_id == self._producers:
            self._answered(confirmed=command.send_receipt.sequence_id == self._sequence)
        elif (kind == BaseCommand.SEND_ERROR and command.send_error.producer_id == self._producers) or (
            kind == BaseCommand.CLOSE_PRODUCER and command.close_producer.producer_id == self._producers
        ):
            self._leave()

    def _leave(self) -> None:
        self._sent_away = True
        self._answered(confirmed=False)

    def _answered(self, *, confirmed: bool) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(confirmed)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """In this region. Raises HeliographError, OSError."""
        connection, _ = await self._found(self._access.urls[-1:])
        try:
            reader = await TopicReader.open(connection, self._topic, name="heliograph-drill")
            self._reads = True
            while True:
                try:
                    _, entry = await reader.next()
                except TimeoutError:
                    continue  # nothing was published
                if self.read_at is None and bytes(entry[-len(_HERE) :]) == _HERE:
                    self.read_at = self._clock.monotonic()
        finally:
            connection.close()

    # -- finding -------------------------------------------------------------------------------------------------------

    async def _found(self, urls: Sequence[str]) -> tuple[BrokerConnection, Address]:
        """A connection to the topic's owner, by a look-up at the first region that answers. Raises HeliographError,
        OSError, TimeoutError.
        """
        failed: Exception = NotFound("no region has a service URL")
        for url in urls:
            scheme, _, hosts = url.partition("://")
            for host in hosts.split(","):
                try:
                    return await self._led(Address.parse(f"{scheme}://{host}"), authoritative=False)
                except (HeliographError, OSError, TimeoutError) as error:
                    failed = error
        raise failed

    async def _led(self, address: Address, *, authoritative: bool) -> tuple[BrokerConnection, Address]:
        for _ in range(REDIRECTS_MAX):
            connection = await self._connected(address)
            try:
                answer = await connection.lookup(self._topic, authoritative=authoritative, timeout_s=_ANSWER_S)
                to, authoritative = answer.address(address.secure), answer.authoritative
            except BaseException:
                connection.close()
                raise
            if to == address and not answer.redirect:
                return connection, address
            connection.close()
            if not answer.redirect:
                return await self._connected(to), to
            address = to
        raise ConnectionLost(f"{self._topic}: brokers point at each other")

    async def _connected(self, address: Address) -> BrokerConnection:
        token, host = self._access.token(), f"[{address.host}]" if ":" in address.host else address.host
        if token and not secret_may_go_to(f"{'https' if address.secure else 'http'}://{host}:{address.port}"):
            raise NotAllowed(
                f"the token would go to {address} in clear: publish a service URL with TLS (`heliograph clusters "
                "update`), or have no clients in drills (broker.drill.clients)"
            )
        self._access.check(address, token)
        return await BrokerConnection.connect(
            address,
            ssl=self._access.ssl() if address.secure else None,
            token=token,
            timeout_s=_ANSWER_S,
        )
