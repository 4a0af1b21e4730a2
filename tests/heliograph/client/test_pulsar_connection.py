"""PulsarConnection and TopicReader against the real listener, over real sockets on the loopback."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.client.pulsar_connection import Address, BrokerConnection, ConnectionLost, ServerRefused, TopicReader
from heliograph.model.errors import NotFound
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, publish, with_broker


async def connected(broker: Broker) -> BrokerConnection:
    port = await broker.listener.start("127.0.0.1", 0)
    return await BrokerConnection.connect(Address("127.0.0.1", port, False))


def test_lookup_and_reading() -> None:
    async def test(broker: Broker) -> None:
        connection = await connected(broker)
        answer = await connection.lookup(TOPIC)
        assert answer.url and not answer.redirect
        client = await broker.client()
        await client.producer()
        await publish(client, 30)
        reader = await TopicReader.open(connection, TOPIC, permits=8)
        found = [await reader.next() for _ in range(30)]
        assert [position for position, _ in found] == sorted(position for position, _ in found)
        assert [entry_metadata(entry)[0].sequence_id for _, entry in found] == list(range(30))
        with pytest.raises(TimeoutError):
            await reader.next(0.05)
        connection.close()
        with pytest.raises(ConnectionLost):
            await reader.next()

    with_broker(test)


def test_errors_are_told_to_who_asked() -> None:
    async def test(broker: Broker) -> None:
        connection = await connected(broker)
        with pytest.raises(ServerRefused):
            await connection.subscribe(1, "persistent://no/such/topic", "s", start=None)
        waiting = asyncio.ensure_future(connection._ask(_unanswered(), 99, 5.0))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost):
            await connection.lookup(TOPIC)

    with_broker(test)


def _unanswered() -> object:
    from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand

    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    return command


def test_nobody_there() -> None:
    async def test(broker: Broker) -> None:
        connection = await connected(broker)
        assert connection.transport is not None
        port = connection.transport.get_extra_info("peername")[1]
        await broker.listener.close()
        with pytest.raises(ConnectionLost):
            await BrokerConnection.connect(Address("127.0.0.1", port, False), timeout_s=2)

    with_broker(test)


def test_addresses() -> None:
    assert (
        Address.parse("pulsar+ssl://h:1") == Address("h", 1, True)
        and str(Address.parse("pulsar://h:2")) == "pulsar://h:2"
    )
    for wrong in ("http://h:1", "pulsar://h", "pulsar://h:99999999", ""):
        with pytest.raises(NotFound):
            Address.parse(wrong)


def test_a_host_that_nobody_can_look_up_is_no_address_and_no_surprise() -> None:
    for host in ("eu..test", "e" * 64 + ".test"):
        with pytest.raises(NotFound):
            Address.parse(f"pulsar://{host}:6650")
        with pytest.raises(ConnectionLost):
            asyncio.run(BrokerConnection.connect(Address(host, 6650, False)))
    assert (
        Address.parse("pulsar://[::1]:6650").host == "::1" and Address.parse("pulsar://eu.test.:1").host == "eu.test."
    )
