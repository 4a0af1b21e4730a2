"""SimulatedCalls: what the brokers of one region ask each other about transactions, over the simulated network.

Is: `BrokerCalls.call`, and the two handlers that answer it (`region_node.faces.admin.transactions.transactions`), on
plain frames (u32 size | msgpack [path, body], and one answer behind it) between named hosts. Isn't: HTTP, TLS, or any
other call of the interface. Each call has a connection of its own; one whose answer does not come in time, or whose
connection is lost, is MetadataUnavailable, as there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgpack
import msgspec

from heliograph.model.errors import HeliographError, MetadataUnavailable
from region_node.faces.admin.transactions import transactions as handlers
from region_node.placement.ownership.broker_calls import BrokerCalls
from region_node.transactions.coordinators import transaction_calls

if TYPE_CHECKING:
    from geo_tests.sim.region import Node
    from region_node.faces.admin.calls.admin_context import Admin
    from region_node.placement.ownership.broker_records import BrokerRecord
    from region_node.process.broker_role import BrokerRole
    from region_node.transactions.coordinators.transaction_service import Transactions

_PORT = 8080
_TIMEOUT_S = 15.0


class SimulatedCalls(BrokerCalls):
    """Of one broker, in one life."""

    async def call(self, record: BrokerRecord, method: str, path: str, body: Any = None) -> Any:
        """Raises MetadataUnavailable."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                transport, _ = await loop.create_connection(lambda: _Call([path, body], answered), record.broker, _PORT)
                answer = await answered
        except (OSError, TimeoutError) as error:
            raise MetadataUnavailable(f"broker {record.broker} does not answer: {error!r}") from error
        finally:
            answered.cancel()
            if transport is not None:
                cast(asyncio.Transport, transport).abort()
        if isinstance(answer, str):
            raise MetadataUnavailable(f"broker {record.broker} answered: {answer}")
        return answer


class Called:
    """Of one broker, in one life: a stand-in for its `Admin`."""

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions

    async def answer(self, path: str, body: Any) -> Any:
        """A text says what is wrong."""
        admin = cast("Admin", self)
        try:
            if path == transaction_calls.END:
                return await handlers.end_here(admin, cast(Any, None), msgspec.convert(body, handlers.Ending))
            return await handlers.arrived(admin, msgspec.convert(body, handlers.Asked))
        except HeliographError as error:
            return str(error)


class _Framed(asyncio.Protocol):
    """One frame of the other side's, and `send`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, fields: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            body = msgpack.packb(fields)
            self._transport.write(len(body).to_bytes(4, "big") + body)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= 4 and len(self._buffer) >= 4 + int.from_bytes(self._buffer[:4], "big"):
            self.received(msgpack.unpackb(bytes(self._buffer[4:])))

    def received(self, fields: Any) -> None:
        raise NotImplementedError


class _Call(_Framed):
    def __init__(self, asked: Any, answered: asyncio.Future[Any]) -> None:
        super().__init__()
        self._asked, self._answered = asked, answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(self._asked)

    def received(self, fields: Any) -> None:
        if not self._answered.done():
            self._answered.set_result(fields)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(ConnectionResetError("the connection is lost"))


class _Called(_Framed):
    def __init__(self, called: Called) -> None:
        super().__init__()
        self._called = called

    def received(self, fields: Any) -> None:
        asyncio.get_running_loop().create_task(self._answer(*fields))

    async def _answer(self, path: str, body: Any) -> None:
        self.send(await self._called.answer(path, body))


def listen(node: Node) -> None:
    """Whenever a broker has started: it hears the others."""
    broker = cast("BrokerRole", node.roles[0])
    if broker.transactions is not None:
        called = Called(broker.transactions)
        asyncio.get_running_loop().create_task(_listen(node.name, called))


async def _listen(host: str, called: Called) -> None:
    await asyncio.get_running_loop().create_server(lambda: _Called(called), host, _PORT)
