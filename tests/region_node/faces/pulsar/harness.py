"""A broker's Pulsar face over fake storage, and clients that speak to it through transports in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    RegionInfo,
)
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection
from region_node.faces.pulsar.connection.pulsar_listener import PulsarListener
from region_node.faces.pulsar.session.pulsar_broker import ListenerSettings, PulsarBroker, TopicAddress
from region_node.schemas.schema_registry import SchemaRegistry
from region_node.topics.policies.policy_book import PolicyBook
from region_node.topics.serving.loaded_topics import Loaded, TopicsHere
from region_node.topics.serving.topic_service import OwnBundles, TopicDuties, TopicService, TopicSettings
from tests.region_node.faces.pulsar.codec import Reader, entry, frame, send
from tests.region_node.topics.fake_storage import FakeClock, FakeFactory, FakeLedger, FakeRegion, FakeView, NotedLinks

TOPIC = "persistent://public/default/t"
K = pb.BaseCommand


class OneAddress:
    """Every topic is at `answer`."""

    def __init__(self, view: FakeView) -> None:
        self.view = view
        self.answer = TopicAddress("pulsar://here:6650")
        self.admin_urls = "", ""

    async def lookup(self, topic: str, listener: str, authoritative: bool) -> TopicAddress:
        return self.answer

    async def partitions(self, topic: str, create: bool) -> int:
        return self.view.partitions(topic)


class FakeTransport(asyncio.Transport):
    def __init__(self, protocol: PulsarConnection, address: str = "127.0.0.1") -> None:
        super().__init__()
        self.protocol, self.address = protocol, address
        self.written: list[bytes] = []
        self.reading = True
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 4242) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.protocol.connection_lost(None)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


async def settle(turns: int = 40) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


class Client:
    """One connection. `got`: every (command, payload) that came, in order."""

    def __init__(self, listener: PulsarListener, *, link: bool = False) -> None:
        self.protocol = PulsarConnection(listener.opened, listener.broker, link=link)
        self.transport = FakeTransport(self.protocol)
        self.protocol.connection_made(self.transport)
        self.reader = Reader()
        self.got: list[tuple[pb.BaseCommand, bytes]] = []
        self.requests = 0

    def raw(self, data: bytes) -> None:
        self.protocol.data_received(data)

    async def do(self, *frames: bytes) -> list[tuple[pb.BaseCommand, bytes]]:
        """Sends, lets everything happen, and returns what came since."""
        self.raw(b"".join(frames))
        return await self.news()

    async def news(self) -> list[tuple[pb.BaseCommand, bytes]]:
        await settle()
        data, self.transport.written = b"".join(self.transport.written), []
        came = self.reader.feed(data)
        self.got += came
        return came

    async def connect(self) -> Client:
        (answer,) = await self.do(frame(K.CONNECT, client_version="test", protocol_version=19))
        assert answer[0].type == K.CONNECTED
        return self

    async def producer(self, producer_id: int = 1, topic: str = TOPIC, **fields: Any) -> pb.CommandProducerSuccess:
        self.requests += 1
        came = await self.do(
            frame(K.PRODUCER, topic=topic, producer_id=producer_id, request_id=self.requests, **fields)
        )
        assert [c.type for c, _ in came] == [K.PRODUCER_SUCCESS], came
        return came[0][0].producer_success

    async def subscribe(
        self, consumer_id: int = 1, topic: str = TOPIC, name: str = "s", kind: int = 0, **fields: Any
    ) -> None:
        self.requests += 1
        came = await self.do(
            frame(
                K.SUBSCRIBE,
                topic=topic,
                subscription=name,
                subType=kind,
                consumer_id=consumer_id,
                request_id=self.requests,
                **fields,
            )
        )
        assert K.SUCCESS in [c.type for c, _ in came], came

    async def flow(self, permits: int, consumer_id: int = 1) -> list[tuple[pb.CommandMessage, bytes]]:
        return messages(await self.do(frame(K.FLOW, consumer_id=consumer_id, messagePermits=permits)))


def kinds(came: Sequence[tuple[pb.BaseCommand, bytes]]) -> list[int]:
    return [c.type for c, _ in came]


def receipts(came: Sequence[tuple[pb.BaseCommand, bytes]]) -> list[tuple[int, int, int]]:
    return [
        (c.send_receipt.producer_id, c.send_receipt.sequence_id, c.send_receipt.message_id.entryId)
        for c, _ in came
        if c.type == K.SEND_RECEIPT
    ]


async def publish(client: Client, count: int, producer_id: int = 1, start: int = 0) -> None:
    came = await client.do(
        *(send(producer_id, start + i, entry(b"m%d" % (start + i), sequence=start + i)) for i in range(count))
    )
    assert len(receipts(came)) == count


def messages(came: Sequence[tuple[pb.BaseCommand, bytes]]) -> list[tuple[pb.CommandMessage, bytes]]:
    return [(c.message, payload) for c, payload in came if c.type == K.MESSAGE]


def ids(came: Sequence[tuple[pb.CommandMessage, bytes]]) -> list[tuple[int, int]]:
    return [(m.message_id.ledgerId, m.message_id.entryId) for m, _ in came]


class Broker:
    """settings: of its listener."""

    def __init__(
        self, topic_settings: TopicSettings | None = None, duties: TopicDuties | None = None, **settings: Any
    ) -> None:
        self.clock, self.factory, self.view, self.links = FakeClock(), FakeFactory(), FakeView(), NotedLinks()
        self.owned: Callable[[str], bool] = lambda topic: True
        rng = random.Random(1)
        self.meta = EmbeddedStore(KvMachine())
        self.region = FakeRegion(RegionInfo(name="us", number=1))
        self.topics = TopicService(
            region=self.region,
            factory=self.factory,
            links=self.links,
            meta=self.meta,
            schemas=SchemaRegistry(self.meta, lambda: 1, self.clock),
            here=TopicsHere(Loaded(), PolicyBook(self.meta, self.view, {}), self.view),
            bundles=OwnBundles(owns=lambda topic: self.owned(topic)),
            clock=self.clock,
            rng=rng,
            settings=topic_settings,
            duties=duties,
        )
        self.lookup = OneAddress(self.view)
        shared = PulsarBroker(
            topics=self.topics, lookup=self.lookup, settings=ListenerSettings(**settings), clock=self.clock, rng=rng
        )
        self.listener = PulsarListener(shared)

    async def client(self) -> Client:
        return await Client(self.listener).connect()

    def ledger(self, topic: str = TOPIC) -> FakeLedger:
        return self.factory.ledgers[topic]

    async def close(self) -> None:
        await self.listener.close()
        await self.topics.close()


def with_broker(test: Callable[[Broker], Any], **settings: Any) -> None:
    """Runs an async test with a broker of its own."""

    async def run() -> None:
        broker = Broker(**settings)
        try:
            await test(broker)
        finally:
            await broker.close()

    asyncio.run(run())


async def tick(broker: Broker, seconds: float = 1.0) -> None:
    broker.clock.now += seconds
    broker.topics._visit(broker.clock.now)
    await settle()


def obey(broker: Broker, **policies: Any) -> None:
    broker.view.set("public/default", NamespacePolicies(regions=("us",), policies=policies))
