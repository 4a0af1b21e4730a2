"""The Pulsar face over fake storage: what opens and closes a connection, and what a client gets for each question."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable, NotOwner
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.flow_control import BEGUN_AT_ONCE, CLOSED_AT_ONCE
from region_node.faces.pulsar.commands.command_table import SERVED
from region_node.faces.pulsar.connection import pulsar_connection
from region_node.faces.pulsar.session.publishing import NO_REQUEST
from region_node.faces.pulsar.session.pulsar_broker import ConnectionLimits, TopicAddress
from replicator.receiving.link_session import LinkSession
from tests.region_node.faces.pulsar.codec import FIELDS, entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, K, kinds, publish, settle, with_broker


def test_connect_and_ping() -> None:
    async def test(broker: Broker) -> None:
        client = Client(broker.listener)
        ((connected, _),) = await client.do(frame(K.CONNECT, client_version="x", protocol_version=99))
        assert connected.connected.server_version and connected.connected.protocol_version == 21
        assert connected.connected.max_message_size == 5 << 20
        assert kinds(await client.do(frame(K.PING))) == [K.PONG]

    with_broker(test)


@pytest.mark.parametrize(
    "data",
    [
        frame(K.PING),
        frame(K.CONNECTED, server_version="me"),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">II", 1 << 20, 10),
        frame(K.CONNECT, client_version="a") * 2,
        frame(K.CONNECT, client_version="a") + frame(K.CONNECTED, server_version="me"),
        frame(K.CONNECT, client_version="a") + struct.pack(">II", 8, 4) + b"\x08\xe9\x07\x00",
    ],
)
def test_a_bad_frame_closes_this_connection_and_no_other(data: bytes) -> None:
    async def test(broker: Broker) -> None:
        bystander = await broker.client()
        await bystander.producer()
        client = Client(broker.listener)
        came = await client.do(data)
        assert came[-1][0].type == K.ERROR and came[-1][0].error.request_id == NO_REQUEST and came[-1][0].error.message
        assert client.transport.closing
        await publish(bystander, 3)

    with_broker(test)


def test_large_requests_that_wait_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker) -> None:
        client, go = await broker.client(), asyncio.Event()
        get = broker.topics.get_for_client

        async def stuck(*about: Any, **fields: Any) -> Any:
            await go.wait()
            return await get(*about, **fields)

        monkeypatch.setattr(broker.topics, "get_for_client", stuck)

        def producer(number: int, size: int) -> bytes:
            pairs = [pb.KeyValue(key="k", value="v" * size)]
            return frame(K.PRODUCER, topic=TOPIC, producer_id=number, request_id=number, metadata=pairs)

        for number in range(20):
            client.raw(producer(number, 10_000))
        for number in range(20, 23):
            client.raw(producer(number, 30_000))
        await settle()
        assert client.transport.reading
        client.raw(producer(23, 30_000))
        assert not client.transport.reading
        go.set()
        assert kinds(await client.news()) == [K.PRODUCER_SUCCESS] * 24
        assert client.transport.reading and client.protocol._request_bytes == 0

    with_broker(test, limits=ConnectionLimits(request_bytes_max=100_000))


def test_http_learns_where_the_admin_port_is() -> None:
    async def test(broker: Broker) -> None:
        broker.lookup.admin_urls = "http://broker:8080", ""
        client = Client(broker.listener)
        client.raw(b"GET /admin/v2/clusters HTTP/1.1\r\nHost: broker\r\n\r\n")
        answer = b"".join(client.transport.written)
        assert (
            answer.startswith(b"HTTP/1.1 307 ")
            and b"\r\nLocation: http://broker:8080/admin/v2/clusters\r\n" in answer
            and client.transport.closing
        )
        for tell, request in (
            (("", "https://broker:8443"), b"GET / HTTP/1.1\r\n\r\n"),
            (("http://broker:8080", ""), b"GET me HTTP/1.1\r\n\r\n"),
        ):
            broker.lookup.admin_urls = tell
            ((error, _),) = await Client(broker.listener).do(request)
            assert error.type == K.ERROR, (
                "whoever came without TLS is not told the port that wants it, and no path is none"
            )
        link = Client(broker.listener, link=True)
        assert kinds(await link.do(b"GET / HTTP/1.1\r\n\r\n")) == [K.ERROR]
        late = await broker.client()
        assert kinds(await late.do(b"GET / HTTP/1.1\r\n\r\n")) == [K.ERROR]

    with_broker(test)


@pytest.mark.parametrize("kind", SERVED)
def test_a_link_listener_answers_links_and_nothing_else(kind: int) -> None:
    """A region's certificate, which whoever holds one of its machines has, reads and writes no topic."""

    async def test(broker: Broker) -> None:
        link = Client(broker.listener, link=True)
        assert kinds(await link.do(frame(K.CONNECT, client_version="link", protocol_version=21))) == [K.CONNECTED]
        if kind in (K.PING, K.PONG, K.LOOKUP, K.PARTITIONED_METADATA):
            await link.do(_least(kind))
            assert not link.transport.closing
        elif kind not in (K.CONNECT, K.AUTH_RESPONSE):
            assert K.ERROR in kinds(await link.do(_least(kind))) and link.transport.closing

    with_broker(test)


def _least(kind: int) -> bytes:
    """A command with its required fields alone, each as small as its type allows."""

    def filled(message: Any) -> None:
        for field in message.DESCRIPTOR.fields:
            if field.is_required:
                if field.message_type is not None:
                    filled(getattr(message, field.name))
                    getattr(message, field.name).SetInParent()
                elif field.enum_type is not None:
                    setattr(message, field.name, field.enum_type.values[0].number)
                else:
                    least = {field.TYPE_STRING: TOPIC, field.TYPE_BYTES: b""}.get(field.type, 1)
                    setattr(message, field.name, least)

    made = pb.BaseCommand(type=kind)
    field = FIELDS[kind]
    getattr(made, field).SetInParent()
    filled(getattr(made, field))
    body = made.SerializeToString()
    return struct.pack(">II", len(body) + 4, len(body)) + body


def test_the_source_of_a_link_is_heard_in_the_middle_of_a_frame() -> None:
    """A frame of megabytes takes longer on a narrow way than a region may be silent."""

    class Frames:
        came = 0

        def on_bytes(self) -> None:
            self.came += 1

        def on_frame(self, kind: int, command: memoryview, payload: memoryview) -> None:
            raise AssertionError("no frame has come whole")

        def connection_lost(self) -> None: ...

    async def test(broker: Broker) -> None:
        frames = Frames()
        broker.listener.broker.link_receivers = lambda session: frames
        link = Client(broker.listener, link=True)
        await link.connect()
        assert frames.came == 0
        run = struct.pack(">II", 1 << 20, 10) + bytes(100)
        for part in (run[:3], run[3:12], run[12:]):
            link.raw(part)
        assert frames.came == 3 and not link.transport.closing

    with_broker(test)


def test_a_link_may_hold_and_end_its_connection() -> None:
    async def test(broker: Broker) -> None:
        sessions: list[LinkSession] = []
        frames = SimpleNamespace(on_bytes=lambda: None, connection_lost=lambda: None)
        broker.listener.broker.link_receivers = lambda session: sessions.append(session) or frames  # type: ignore
        link = await Client(broker.listener, link=True).connect()
        (session,) = sessions
        assert session.peer == "" and session.hold is not None, "without TLS nothing is proven"
        session.hold(True)
        assert not link.transport.reading
        session.hold(False)
        assert link.transport.reading
        session.refuse("a frame that is none")
        ((told, _),) = await link.news()
        assert told.error.message == "a frame that is none" and link.transport.closing

    with_broker(test)


def test_silence_is_answered_by_a_ping_and_then_by_closing() -> None:
    async def test(broker: Broker) -> None:
        client, fresh = await broker.client(), Client(broker.listener)
        broker.clock.now += 31
        for one in (client, fresh):
            one.protocol.tick(broker.clock.now)
        broker.clock.now += 31
        client.protocol.tick(broker.clock.now)
        assert kinds(await client.news()) == [K.PING] and not client.transport.closing
        assert fresh.transport.closing
        await client.do(frame(K.PONG))
        broker.clock.now += 31
        client.protocol.tick(broker.clock.now)
        assert kinds(await client.news()) == []
        for _ in range(2):
            broker.clock.now += 31
            client.protocol.tick(broker.clock.now)
        assert client.transport.closing

    with_broker(test)


def test_a_broker_that_stood_still_does_not_blame_its_peers() -> None:
    async def test(broker: Broker) -> None:
        client, fresh, listener = await broker.client(), Client(broker.listener), broker.listener
        listener._next_tick(broker.clock.now)
        broker.clock.now += 100
        listener._tick()
        assert kinds(await client.news()) == [] and not client.transport.closing and not fresh.transport.closing
        for _ in range(2):
            broker.clock.now += listener._tick_s
            listener._tick()
        assert fresh.transport.closing and not client.transport.closing

    with_broker(test)


def test_those_that_come_late_together_are_closed_some_in_one_pass() -> None:
    most = CLOSED_AT_ONCE

    async def test(broker: Broker) -> None:
        listener, client = broker.listener, await broker.client()
        late = [Client(listener) for _ in range(2 * most + 1)]
        listener._next_tick(broker.clock.now)
        for _ in range(2):
            broker.clock.now += listener._tick_s
            listener._tick()
        closed = []
        for _ in range(3):
            closed.append(sum(each.transport.closing for each in late))
            await asyncio.sleep(0)
        assert closed == [most, 2 * most, 2 * most + 1] and not client.transport.closing

    with_broker(test)


def test_requests_of_one_read_are_begun_some_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    most, begun = BEGUN_AT_ONCE, list[int]()

    async def noted(self: Any, request_id: int, work: Any, large: int) -> None:
        begun.append(request_id)
        work.close()

    async def test(broker: Broker) -> None:
        client = await broker.client()
        monkeypatch.setattr(pulsar_connection.PulsarConnection, "_answer", noted)
        count = 2 * most + 1
        client.protocol.data_received(b"".join(frame(K.LOOKUP, topic="t", request_id=each) for each in range(count)))
        passes = []
        for _ in range(3):
            await asyncio.sleep(0)
            passes.append(len(begun))
        assert passes == [most, 2 * most, count] and begun == list(range(count))

    with_broker(test)


def test_many_look_ups_of_one_read_are_all_answered() -> None:
    """Clients have some thousand on their way: what is not begun yet does not count as what waits."""
    count = 10 * BEGUN_AT_ONCE

    async def test(broker: Broker) -> None:
        client = await broker.client()
        answers = await client.do(b"".join(frame(K.LOOKUP, topic="t", request_id=each) for each in range(count)))
        found = [answer.lookupTopicResponse for answer, _ in answers]
        assert [(each.request_id, each.response) for each in found] == [(each, 1) for each in range(count)]
        assert not client.protocol._reading_held

    with_broker(test, limits=ConnectionLimits(requests_max=2 * BEGUN_AT_ONCE))


def test_who_is_refused_for_too_many_requests_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of what was refused: its id is free."""

    async def test(broker: Broker) -> None:
        client, go, lookup = await broker.client(), asyncio.Event(), broker.lookup.lookup

        async def stuck(*about: Any) -> TopicAddress:
            await go.wait()
            return await lookup(*about)

        monkeypatch.setattr(broker.lookup, "lookup", stuck)
        assert not await client.do(frame(K.LOOKUP, topic="t", request_id=9))
        asked = (
            frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1),
            frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=2),
            frame(K.WATCH_TOPIC_LIST, namespace="public/default", topics_pattern=".*", watcher_id=1, request_id=3),
        )
        refused = [(await client.do(each))[0][0].error for each in asked]
        assert [each.error for each in refused] == [pb.TooManyRequests] * 3
        go.set()
        assert kinds(await client.news()) == [K.LOOKUP_RESPONSE]
        answered = [(await client.do(each))[0][0].type for each in asked]
        assert answered == [K.PRODUCER_SUCCESS, K.SUCCESS, K.WATCH_TOPIC_LIST_SUCCESS]

    with_broker(test, limits=ConnectionLimits(requests_max=1))


def test_lookup_partitions_topics() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        ((answer, _),) = await client.do(frame(K.LOOKUP, topic="t", request_id=7))
        found = answer.lookupTopicResponse
        assert (found.request_id, found.response, found.brokerServiceUrl) == (7, 1, "pulsar://here:6650")
        broker.lookup.answer = TopicAddress("pulsar://there:1", redirect=True)
        ((answer, _),) = await client.do(frame(K.LOOKUP, topic="t", request_id=8))
        assert answer.lookupTopicResponse.response == 0 and not answer.lookupTopicResponse.authoritative
        broker.view.counts[TOPIC] = 3
        ((answer, _),) = await client.do(frame(K.PARTITIONED_METADATA, topic=TOPIC, request_id=9))
        assert answer.partitionMetadataResponse.partitions == 3
        await client.producer(1, "persistent://public/default/x")
        ((answer, _),) = await client.do(frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=10))
        listed = answer.getTopicsOfNamespaceResponse
        unused = [
            f"{TOPIC}-partition-{index}" for index in range(3)
        ]  # as Pulsar lists them, which makes them with the topic
        assert list(listed.topics) == [*unused, "persistent://public/default/x"] and listed.changed
        ((answer, _),) = await client.do(frame(K.GET_TOPICS_OF_NAMESPACE, namespace="no/where", request_id=12))
        assert list(answer.getTopicsOfNamespaceResponse.topics) == []
        again = frame(
            K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=11, topics_hash=listed.topics_hash
        )
        ((answer, _),) = await client.do(again)
        assert not answer.getTopicsOfNamespaceResponse.changed and not answer.getTopicsOfNamespaceResponse.topics

    with_broker(test)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("persistent://no/where/t", pb.TopicNotFound),
        ("non-persistent://no/where/t", pb.TopicNotFound),
        ("persistent://public/default/t-partition-7", pb.TopicNotFound),
        ("other://public/default/t", pb.NotAllowedError),
    ],
)
def test_topics_that_cannot_be_had(topic: str, code: int) -> None:
    async def test(broker: Broker) -> None:
        broker.view.counts[TOPIC] = 3
        client = await broker.client()
        ((answer, _),) = await client.do(frame(K.PRODUCER, topic=topic, producer_id=1, request_id=5))
        assert (answer.error.request_id, answer.error.error) == (5, code)

    with_broker(test)


def test_not_the_owner() -> None:
    async def test(broker: Broker) -> None:
        broker.owned = lambda topic: False
        client = await broker.client()
        ((answer, _),) = await client.do(
            frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=5)
        )
        assert answer.error.error == pb.ServiceNotReady

    with_broker(test)


def test_metadata_that_is_away_for_a_moment_is_asked_again_by_the_client() -> None:
    """A reader that is made just then must not wait for its time-out."""

    async def test(broker: Broker) -> None:
        client = await broker.client()

        broker.factory.open_error = MetadataUnavailable("no leader")
        subscribing = frame(
            K.SUBSCRIBE, topic=TOPIC, subscription="r", subType=0, consumer_id=1, request_id=1, durable=False
        )
        ((answer, _),) = await client.do(subscribing)
        assert (answer.type, answer.error.error) == (K.ERROR, pb.ServiceNotReady)
        broker.factory.open_error = None
        await client.subscribe(1, durable=False)

    with_broker(test)


def test_schemas() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        one, more = b'{"type":"record","name":"R","fields":[]}', b'{"type":"record","name":"S","fields":[]}'
        schema = {"name": "s", "schema_data": one, "type": pb.Schema.Json}
        other = {"name": "s", "schema_data": more, "type": pb.Schema.Json}
        assert (await client.producer(1, schema=schema)).schema_version == bytes(8)
        assert (await client.producer(2, schema=other)).schema_version == struct.pack(">Q", 1)
        ((answer, _),) = await client.do(frame(K.GET_OR_CREATE_SCHEMA, topic=TOPIC, request_id=3, schema=schema))
        assert answer.getOrCreateSchemaResponse.schema_version == bytes(8)
        ((answer, _),) = await client.do(frame(K.GET_SCHEMA, topic=TOPIC, request_id=3))
        assert answer.getSchemaResponse.schema.schema_data == more
        ((answer, _),) = await client.do(
            frame(K.GET_SCHEMA, topic=TOPIC, request_id=3, schema_version=struct.pack(">Q", 9))
        )
        assert answer.getSchemaResponse.error_code == pb.TopicNotFound
        for wrong in (
            {"name": "s", "schema_data": b"{}", "type": pb.Schema.Json},
            {"name": "s", "schema_data": b"", "type": pb.Schema.String},
        ):
            ((answer, _),) = await client.do(frame(K.GET_OR_CREATE_SCHEMA, topic=TOPIC, request_id=4, schema=wrong))
            assert answer.getOrCreateSchemaResponse.error_code == pb.IncompatibleSchema

    with_broker(test)


def test_what_is_not_there_is_answered() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        ((answer, _),) = await client.do(frame(K.NEW_TXN, request_id=5))
        assert answer.newTxnResponse.error == pb.TransactionCoordinatorNotFound

    with_broker(test)


def test_stats() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, producer_name="me")
        await client.subscribe(1, kind=1)
        broker.topics.loaded[TOPIC].tick(100.0, 1.0)
        await publish(client, 5)
        await client.flow(3)
        broker.topics.loaded[TOPIC].tick(101.0, 1.0)
        stats = await broker.topics.stats(TOPIC)
        assert (stats["msgInCounter"], stats["msgRateIn"]) == (5, 5.0)
        assert stats["publishers"][0]["producerName"] == "me" and stats["publishers"][0]["msgRateIn"] == 5.0
        subscription = stats["subscriptions"]["s"]
        assert (
            subscription["type"],
            subscription["msgBacklog"],
            subscription["unackedMessages"],
            subscription["msgRateOut"],
        ) == ("Shared", 5, 3, 3.0)
        ((answer, _),) = await client.do(frame(K.CONSUMER_STATS, request_id=5, consumer_id=1))
        assert answer.consumerStatsResponse.unackedMessages == 3 and answer.consumerStatsResponse.type == "Shared"

    with_broker(test)


def test_a_broker_that_lost_a_topic_sends_its_clients_away() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        broker.owned = lambda topic: False
        await broker.topics.unload(TOPIC)
        assert sorted(kinds(await client.news())) == [K.CLOSE_PRODUCER, K.CLOSE_CONSUMER]
        ((answer, _),) = await client.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5))
        assert answer.error.error == pb.ServiceNotReady
        with pytest.raises(NotOwner):
            await broker.topics.get(TOPIC, create=False)

    with_broker(test)


def test_closing_the_listener_answers_what_is_in_flight() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        await client.do(send(1, 0, entry(b"x")))
        closing = asyncio.ensure_future(broker.listener.close())
        await settle()
        assert not client.transport.reading and not client.transport.closing
        broker.ledger().release()
        await closing
        assert kinds(await client.news()) == [K.SEND_RECEIPT] and client.transport.closing

    with_broker(test)
