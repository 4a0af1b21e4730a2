"""The Pulsar face over fake storage: what a client gets for each command, and what closes a connection."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest

from heliograph.model.errors import LedgerFenced, NotEnoughBookies, NotOwner
from heliograph.model.policies import NamespacePolicies
from heliograph.wire import pulsar_pb2 as pb
from region_node.pulsar.listener import LookupAnswer
from region_node.pulsar.publishing import NO_REQUEST
from region_node.subscriptions.keys import key_hash
from region_node.topics.epochs import topic_epoch_key
from tests.pulsar.codec import entry, frame, send
from tests.pulsar.harness import TOPIC, Broker, Client, K, ids, messages, settle, with_broker


def kinds(came: list[tuple[pb.BaseCommand, bytes]]) -> list[int]:
    return [c.type for c, _ in came]


def receipts(came: list[tuple[pb.BaseCommand, bytes]]) -> list[tuple[int, int, int]]:
    return [
        (c.send_receipt.producer_id, c.send_receipt.sequence_id, c.send_receipt.message_id.entryId) for c, _ in came if c.type == K.SEND_RECEIPT
    ]


async def publish(client: Client, count: int, producer_id: int = 1, start: int = 0) -> None:
    came = await client.do(*(send(producer_id, start + i, entry(b"m%d" % (start + i), sequence=start + i)) for i in range(count)))
    assert len(receipts(came)) == count


# -- handshake and life


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


# -- lookup


def test_lookup_partitions_topics() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        ((answer, _),) = await client.do(frame(K.LOOKUP, topic="t", request_id=7))
        found = answer.lookupTopicResponse
        assert (found.request_id, found.response, found.brokerServiceUrl) == (7, 1, "pulsar://here:6650")
        broker.lookup.answer = LookupAnswer("pulsar://there:1", redirect=True)
        ((answer, _),) = await client.do(frame(K.LOOKUP, topic="t", request_id=8))
        assert answer.lookupTopicResponse.response == 0 and not answer.lookupTopicResponse.authoritative
        broker.view.counts[TOPIC] = 3
        ((answer, _),) = await client.do(frame(K.PARTITIONED_METADATA, topic=TOPIC, request_id=9))
        assert answer.partitionMetadataResponse.partitions == 3
        await client.producer(1, "persistent://public/default/x")
        ((answer, _),) = await client.do(frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=10))
        listed = answer.getTopicsOfNamespaceResponse
        unused = [f"{TOPIC}-partition-{index}" for index in range(3)]  # as Pulsar lists them, which makes them with the topic
        assert list(listed.topics) == [*unused, "persistent://public/default/x"] and listed.changed
        ((answer, _),) = await client.do(frame(K.GET_TOPICS_OF_NAMESPACE, namespace="no/where", request_id=12))
        assert list(answer.getTopicsOfNamespaceResponse.topics) == []
        again = frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=11, topics_hash=listed.topics_hash)
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
        ((answer, _),) = await client.do(frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=5))
        assert answer.error.error == pb.ServiceNotReady

    with_broker(test)


# -- producers


def test_sends_behind_their_producer_wait_for_it() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        came = await client.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1), *(send(1, i, entry(b"x")) for i in range(3)))
        assert receipts(came) == [(1, i, i) for i in range(3)]
        assert kinds(came)[0] in (K.PRODUCER_SUCCESS, K.SEND_RECEIPT)

    with_broker(test)


def test_receipts_of_several_producers_on_one_connection() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, producer_name="a")
        await client.producer(2, producer_name="b")
        came = await client.do(*(send(1 + i % 2, i, entry(b"x")) for i in range(10)))
        assert receipts(came) == [(1 + i % 2, i, i) for i in range(10)]
        assert [run.count for _, _, run in broker.ledger().runs] == [10]

    with_broker(test)


def test_one_write_a_loop_turn() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        client.raw(b"".join(send(1, i, entry(b"x")) for i in range(600)))
        await settle()
        assert len(client.transport.written) == 1

    with_broker(test)


def test_a_damaged_entry_is_refused_in_its_place() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        stored = entry(b"x" * 50)
        assert await client.do(send(1, 0, stored), send(1, 1, stored[:-1] + b"?"), send(1, 2, stored)) == []
        broker.ledger().release()
        came = await client.news()
        assert kinds(came) == [K.SEND_RECEIPT, K.SEND_ERROR, K.SEND_RECEIPT] or kinds(came) == [K.SEND_RECEIPT, K.SEND_RECEIPT, K.SEND_ERROR]
        assert [c.send_error.error for c, _ in came if c.type == K.SEND_ERROR] == [pb.ChecksumError]
        assert len(broker.ledger().positions()) == 2

    with_broker(test)


def test_a_checksum_error_never_overtakes_receipts() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        stored = entry(b"x" * 50)
        assert await client.do(send(1, 0, stored), send(1, 1, stored[:-1] + b"?")) == []
        broker.ledger().release()
        assert kinds(await client.news()) == [K.SEND_RECEIPT, K.SEND_ERROR]

    with_broker(test)


def test_after_a_failed_append_nothing_later_is_stored() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, producer_name="a")
        broker.ledger().fail_with = NotEnoughBookies("one of two")
        came = await client.do(send(1, 5, entry(b"x")), send(1, 6, entry(b"x")))
        assert kinds(came) == [K.SEND_ERROR]
        assert (came[0][0].send_error.sequence_id, came[0][0].send_error.error) == (5, pb.PersistenceError)
        broker.ledger().fail_with = None
        assert await client.do(send(1, 7, entry(b"x"))) == []
        assert broker.ledger().positions() == []

    with_broker(test)


def test_a_fenced_topic_is_unloaded_and_its_clients_told() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        broker.ledger().fail_with = LedgerFenced("by another")
        came = await client.do(send(1, 5, entry(b"x")))
        assert sorted(kinds(came)) == [K.CLOSE_PRODUCER, K.CLOSE_CONSUMER]
        assert TOPIC not in broker.topics.loaded
        broker.ledger().fail_with = None
        await client.producer(1)
        await publish(client, 1)

    with_broker(test)


def test_unloading_answers_what_is_under_way_first() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        await client.do(send(1, 0, entry(b"x")))
        await broker.topics.unload(TOPIC)
        assert await client.do(send(1, 1, entry(b"late"))) == []
        broker.ledger().release()
        assert kinds(await client.news()) == [K.SEND_RECEIPT, K.CLOSE_PRODUCER]
        assert len(broker.ledger().positions()) == 1

    with_broker(test)


def test_closing_waits_for_the_receipts() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        broker.ledger().hold = True
        assert await client.do(send(1, 0, entry(b"x")), frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9)) == []
        broker.ledger().release()
        assert kinds(await client.news()) == [K.SEND_RECEIPT, K.SUCCESS]
        assert kinds(await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=10))) == [K.ERROR]

    with_broker(test)


def test_deduplication() -> None:
    async def test(broker: Broker) -> None:
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"deduplication": True}))
        client = await broker.client()
        assert (await client.producer(1, producer_name="a")).last_sequence_id == -1
        await publish(client, 3)
        came = await client.do(send(1, 1, entry(b"again")))
        none = (1 << 64) - 1
        assert receipts(came) == [(1, 1, none)]
        await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        assert (await client.producer(1, producer_name="a")).last_sequence_id == 2

    with_broker(test)


def test_reading_stops_above_the_budget() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        await one.producer(1)
        await two.subscribe(1)
        broker.ledger().hold = True
        one.raw(send(1, 0, entry(bytes(4 << 20))))
        one.raw(send(1, 1, entry(bytes(4 << 20))))
        assert not one.transport.reading and two.transport.reading
        broker.ledger().release()
        assert one.transport.reading and broker.listener.budget.used == 0

    with_broker(test, inflight_bytes_max=6 << 20)


def test_the_budget_is_given_back_by_what_is_gone() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        broker.owned = lambda topic: False
        client.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1) + send(1, 0, entry(b"x")))
        assert broker.listener.budget.used > 0
        await settle()
        assert broker.listener.budget.used == 0

    with_broker(test)


def test_exclusive_access_and_waiting_for_it() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        first = await one.producer(1, producer_access_mode=1)
        assert first.topic_epoch == 0
        waiting = await two.producer(1, producer_access_mode=2)
        assert not waiting.producer_ready
        came = await one.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        assert kinds(came) == [K.SUCCESS]
        (success,) = [c.producer_success for c, _ in await two.news()]
        assert success.producer_ready and success.topic_epoch == 1 and success.request_id == waiting.request_id
        await publish(two, 2)
        three = await broker.client()
        fencing = await three.producer(1, producer_access_mode=3)
        assert fencing.topic_epoch == 2 and kinds(await two.news()) == [K.CLOSE_PRODUCER]
        ((answer, _),) = await two.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5, producer_access_mode=1, topic_epoch=1))
        assert answer.error.error == pb.ProducerFenced

    with_broker(test)


def test_the_topic_epoch_outlives_the_topic_being_loaded() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        assert (await one.producer(1, producer_access_mode=1, producer_name="a")).topic_epoch == 0
        await broker.topics.unload(TOPIC)
        assert kinds(await one.news()) == [K.CLOSE_PRODUCER]
        assert (await one.producer(1, producer_access_mode=1, producer_name="a", topic_epoch=0)).topic_epoch == 0  # connected again
        await broker.topics.unload(TOPIC)
        await one.news()
        assert (await two.producer(1, producer_access_mode=1)).topic_epoch == 1
        await broker.topics.unload(TOPIC)
        for mode in (1, 2, 3, 0):
            ((answer, _),) = await one.do(frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=5, producer_access_mode=mode, topic_epoch=0))
            assert answer.error.error == pb.ProducerFenced, mode
        await two.news()
        assert (await two.producer(1, producer_access_mode=2, topic_epoch=1)).topic_epoch == 1
        waiting = await one.producer(2, producer_access_mode=2)
        assert not waiting.producer_ready
        await two.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=9))
        (ready,) = [c.producer_success for c, _ in await one.news()]
        assert ready.producer_ready and ready.topic_epoch == 2
        await broker.topics.unload(TOPIC)
        await one.news()
        assert (await two.producer(7, producer_access_mode=1)).topic_epoch == 3
        await one.news()
        await broker.topics.delete_topic(TOPIC, force=True)
        await one.news()
        assert (await one.producer(3, producer_access_mode=1)).topic_epoch == 0

    with_broker(test)


def test_an_epoch_is_told_only_once_it_is_durable() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        await one.producer(1, producer_access_mode=1)
        name = broker.topics.loaded[TOPIC].name
        await broker.meta.put(topic_epoch_key(name), b"another broker's")
        ((answer, _),) = await two.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5, producer_access_mode=3))
        assert (answer.error.request_id, answer.error.error) == (5, pb.ServiceNotReady)
        broker.meta.unavailable = "no majority"
        broker.topics.loaded[TOPIC].producers.topic_epoch = 7
        ((answer, _),) = await two.do(frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=6, producer_access_mode=3))
        assert answer.error.request_id == 6 and not broker.topics.loaded[TOPIC].producers.producers
        broker.meta.unavailable = ""

    with_broker(test)


def test_who_is_thrown_out_before_its_epoch_is_durable() -> None:
    async def test(broker: Broker) -> None:
        one, two = await broker.client(), await broker.client()
        for client in (one, two):
            client.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=5, producer_access_mode=3))
        ((answer, _),) = [c for c in await one.news() if c[0].type == K.ERROR]
        assert (answer.error.request_id, answer.error.error) == (5, pb.ProducerFenced)
        ((answer, _),) = await two.news()
        assert answer.producer_success.producer_ready and answer.producer_success.topic_epoch == 1

    with_broker(test)


def test_a_dead_connection_gives_its_producer_name_up() -> None:
    async def test(broker: Broker) -> None:
        old, new = await broker.client(), await broker.client()
        await old.producer(1, producer_name="me")
        new.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me", epoch=1))
        assert kinds(await old.news()) == [K.PING]
        old.protocol.close()
        assert kinds(await new.news()) == [K.PRODUCER_SUCCESS]
        third = await broker.client()
        third.raw(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="me"))
        await settle()
        await new.do(frame(K.PONG))
        ((answer, _),) = await third.news()
        assert answer.error.error == pb.ProducerBusy

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
        ((answer, _),) = await client.do(frame(K.GET_SCHEMA, topic=TOPIC, request_id=3, schema_version=struct.pack(">Q", 9)))
        assert answer.getSchemaResponse.error_code == pb.TopicNotFound
        for wrong in ({"name": "s", "schema_data": b"{}", "type": pb.Schema.Json}, {"name": "s", "schema_data": b"", "type": pb.Schema.String}):
            ((answer, _),) = await client.do(frame(K.GET_OR_CREATE_SCHEMA, topic=TOPIC, request_id=4, schema=wrong))
            assert answer.getOrCreateSchemaResponse.error_code == pb.IncompatibleSchema

    with_broker(test)


# -- consumers


def test_permits_count_messages_and_the_last_entry_may_overdraw() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.do(*(send(1, i * 10, entry(b"b", batch=10), num_messages=10) for i in range(5)))
        await client.subscribe(1, initialPosition=1)
        assert ids(await client.flow(15)) == [(10, 0), (10, 1)]
        assert ids(await client.flow(5)) == []
        assert ids(await client.flow(1)) == [(10, 2)]

    with_broker(test)


def test_tail_and_backlog_and_resuming() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 10)
        broker.ledger().cache = False
        await client.subscribe(1, initialPosition=1)
        got = await client.flow(1000)
        assert [i[1] for i in ids(got)] == list(range(10))
        broker.ledger().cache = True
        came = await client.do(send(1, 10, entry(b"tail")))
        assert sorted(kinds(came)) == [K.SEND_RECEIPT, K.MESSAGE]
        ack = [{"ledgerId": 10, "entryId": e} for e in (0, 1, 2, 5)]
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(**m) for m in ack]))
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=50))
        await client.subscribe(2)
        assert [i[1] for i in ids(await client.flow(1000, 2))] == [3, 4, 6, 7, 8, 9, 10]
        last = pb.MessageIdData(ledgerId=10, entryId=8)
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=2, ack_type=1, message_id=[last], request_id=77))
        assert answer.ackResponse.request_id == 77 and broker.ledger().cursors["s"].flushes == 1
        assert broker.ledger().cursors["s"].mark_delete == (10, 8)

    with_broker(test)


def test_part_of_a_batch_and_entries_to_come_are_not_acknowledged() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 3)
        await client.subscribe(1, initialPosition=1)
        await client.flow(10)
        part = pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[3])
        done = pb.MessageIdData(ledgerId=10, entryId=1, ack_set=[0])
        future = pb.MessageIdData(ledgerId=10, entryId=9)
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[part, done, future]))
        cursor = broker.ledger().cursors["s"]
        assert [cursor.is_acked((10, e)) for e in (0, 1, 2, 9)] == [False, True, False, False]

    with_broker(test)


@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("kind", [0, 1, 3])
def test_messages_of_a_batch_are_acknowledged_one_by_one(setting: bool, kind: int) -> None:
    async def test(broker: Broker) -> None:
        broker.topics.settings = replace(broker.topics.settings, batch_index_acks=setting)
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, kind=kind, initialPosition=1)
        await client.do(*(send(1, n, entry(b"x", sequence=n, batch=4, partition_key="k"), num_messages=4) for n in range(2)))
        assert [list(m.ack_set) for m, _ in await client.flow(8)] == [[], []]
        for left in (0b1110, 0b1011):
            part = pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[left], batch_size=4)
            ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[part], request_id=left))
            assert answer.ackResponse.request_id == left and not answer.ackResponse.HasField("error")
        again = messages(await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1), frame(K.FLOW, consumer_id=1, messagePermits=8)))
        assert [list(m.ack_set) for m, _ in again] == [[0b1010] if setting else [], []]
        if kind == 0:
            last = pb.MessageIdData(ledgerId=10, entryId=1, ack_set=[0b1000])
            await client.do(frame(K.ACK, consumer_id=1, ack_type=1, message_id=[last]))
            again = messages(await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1), frame(K.FLOW, consumer_id=1, messagePermits=8)))
            assert [(m.message_id.entryId, list(m.ack_set)) for m, _ in again] == [(1, [8] if setting else [])]
        huge = pb.MessageIdData(ledgerId=10, entryId=0, ack_set=[1] * 5000)
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[huge], request_id=99))
        assert (answer.ackResponse.error == pb.NotAllowedError) is setting

    with_broker(test)


def test_key_shared_over_frames() -> None:
    async def test(broker: Broker) -> None:
        def meta(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
            made = pb.KeySharedMeta(keySharedMode=pb.STICKY)
            for start, end in ranges:
                made.hashRanges.add(start=start, end=end)
            return made

        def subscribe(request_id: int, consumer_id: int, shared: pb.KeySharedMeta) -> bytes:
            command = pb.CommandSubscribe(
                topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Key_Shared, consumer_id=consumer_id, request_id=request_id, keySharedMeta=shared
            )
            body = pb.BaseCommand(type=K.SUBSCRIBE, subscribe=command).SerializeToString()
            return struct.pack(">II", len(body) + 4, len(body)) + body

        client = await broker.client()
        await client.producer(1)
        assert kinds(await client.do(subscribe(1, 1, meta((0, 29_999))))) == [K.SUCCESS]
        for wrong in (meta((29_999, 30_000)), meta(), meta((-1, 5))):
            ((answer, _),) = await client.do(subscribe(2, 2, wrong))
            assert (answer.error.request_id, answer.error.error) == (2, pb.ConsumerAssignError)
        ((answer, _),) = await client.do(subscribe(3, 3, pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)))
        assert answer.error.error == pb.ConsumerBusy
        assert kinds(await client.do(subscribe(4, 2, meta((30_000, 65_535))))) == [K.SUCCESS]
        await client.do(frame(K.FLOW, consumer_id=1, messagePermits=100), frame(K.FLOW, consumer_id=2, messagePermits=100))
        came = messages(await client.do(*(send(1, n, entry(b"x", sequence=n, partition_key=f"k{n}")) for n in range(30))))
        for message, _ in came:
            assert message.consumer_id == (1 if key_hash(f"k{message.message_id.entryId}".encode()) < 30_000 else 2)
        assert len(came) == 30 and {m.consumer_id for m, _ in came} == {1, 2}
        last = pb.MessageIdData(ledgerId=10, entryId=8)
        ((answer, _),) = await client.do(frame(K.ACK, consumer_id=1, ack_type=1, message_id=[last], request_id=9))
        assert answer.ackResponse.error == pb.NotAllowedError

    with_broker(test)


def test_redelivery_on_exclusive_rewinds_and_echoes_the_epoch() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 4)
        await client.subscribe(1, initialPosition=1)
        await client.flow(10)
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=[pb.MessageIdData(ledgerId=10, entryId=0)]))
        came = messages(await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, consumer_epoch=3)))
        assert [i[1] for i in ids(came)] == [1, 2, 3] and {m.consumer_epoch for m, _ in came} == {3}

    with_broker(test)


def test_readers() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 5)
        start = {"ledgerId": 10, "entryId": 3}
        await client.subscribe(1, name="r", durable=False, start_message_id=start)
        assert [i[1] for i in ids(await client.flow(10))] == [3, 4]
        ((answer, _),) = await client.do(frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5))
        assert answer.getLastMessageIdResponse.last_message_id.entryId == 4
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=6))
        assert "r" not in broker.ledger().cursors and "r" not in broker.topics.loaded[TOPIC].subscriptions
        everything = (1 << 64) - 1
        await client.subscribe(2, name="r", durable=False, start_message_id={"ledgerId": everything, "entryId": everything})
        assert len(await client.flow(10, 2)) == 5

    with_broker(test)


def test_closing_and_making_a_reader_of_one_name_in_one_read() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, name="r", durable=False)
        again = frame(K.SUBSCRIBE, topic=TOPIC, subscription="r", subType=0, consumer_id=2, request_id=8, durable=False)
        came = await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=7), again)
        assert [c.success.request_id for c, _ in came if c.type == K.SUCCESS] == [7, 8]

    with_broker(test)


def test_seek_by_id_and_time() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 5)
        broker.ledger().rollover()
        await publish(client, 5, start=5)
        await client.subscribe(1, initialPosition=1)
        await client.flow(100)
        came = await client.do(frame(K.SEEK, consumer_id=1, request_id=5, message_id={"ledgerId": 11, "entryId": 1}))
        assert kinds(came) == [K.CLOSE_CONSUMER, K.SUCCESS]
        await client.subscribe(1)
        assert ids(await client.flow(100)) == [(11, e) for e in range(1, 5)]
        for publish_time, expected in ((1003, (10, 3)), (1004, (10, 4)), (1005, (11, 0)), (1008, (11, 3)), (1, (10, 0))):
            await client.do(frame(K.SEEK, consumer_id=1, request_id=5, message_publish_time=publish_time))
            await client.subscribe(1)
            assert ids(await client.flow(100))[0] == expected
        await client.do(frame(K.SEEK, consumer_id=1, request_id=5, message_publish_time=99_999))
        await client.subscribe(1)
        assert await client.flow(100) == []

    with_broker(test)


def test_unsubscribe() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, kind=1)
        await client.subscribe(2, kind=1)
        ((answer, _),) = await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=5))
        assert answer.error.error == pb.MetadataError  # what a real broker says here
        await client.do(frame(K.CLOSE_CONSUMER, consumer_id=2, request_id=6))
        assert kinds(await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=7))) == [K.SUCCESS]
        assert broker.ledger().cursors == {}
        assert kinds(await client.do(frame(K.UNSUBSCRIBE, consumer_id=1, request_id=8))) == [K.ERROR]

    with_broker(test)


def test_last_message_of_a_batch_and_of_nothing() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, topic=TOPIC + "-partition-3")
        ask = frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5)
        ((answer, _),) = await client.do(ask)
        assert answer.getLastMessageIdResponse.last_message_id.entryId == (1 << 64) - 1
        await client.producer(1, topic=TOPIC + "-partition-3")
        await client.do(send(1, 0, entry(b"b", batch=4), num_messages=4))
        ((answer, _),) = await client.do(ask)
        last = answer.getLastMessageIdResponse.last_message_id
        assert (last.ledgerId, last.entryId, last.batch_index, last.partition) == (10, 0, 3, 3)
        ((message, _),) = await client.flow(10)
        assert message.message_id.partition == 3

    with_broker(test)


def test_markers_are_not_delivered_but_acknowledged() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.do(*(send(1, i, entry(b"x"), marker=i in (0, 2, 3, 6)) for i in range(7)))
        await client.subscribe(1, initialPosition=1)
        got = await client.flow(100)
        assert [i[1] for i in ids(got)] == [1, 4, 5]
        ((answer, _),) = await client.do(frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=5))
        assert answer.getLastMessageIdResponse.last_message_id.entryId == 5
        ids_ = [pb.MessageIdData(ledgerId=10, entryId=e) for e in (1, 4, 5)]
        await client.do(frame(K.ACK, consumer_id=1, ack_type=0, message_id=ids_))
        assert broker.ledger().cursors["s"].mark_delete == (10, 6)

    with_broker(test)


def test_dispatch_stops_above_the_high_water_mark() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await publish(client, 10)
        await client.subscribe(1, initialPosition=1)
        client.protocol.pause_writing()
        assert await client.flow(100) == []
        client.protocol.resume_writing()
        assert len(messages(await client.news())) == 10

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
        assert (subscription["type"], subscription["msgBacklog"], subscription["unackedMessages"], subscription["msgRateOut"]) == ("Shared", 5, 3, 3.0)
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


def test_who_is_active_is_told_with_the_first_permits() -> None:
    """Before them Go's client still looks at the answer to SUBSCRIBE, and would drop it."""

    async def test(broker: Broker) -> None:
        client = await broker.client()
        subscribe = frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=2, consumer_id=1, consumer_name="a", request_id=5)
        assert kinds(await client.do(subscribe)) == [K.SUCCESS]
        ((told, _),) = await client.do(frame(K.FLOW, consumer_id=1, messagePermits=1))
        assert told.active_consumer_change.is_active and told.active_consumer_change.consumer_id == 1
        second = frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=2, consumer_id=2, consumer_name="b", request_id=6)
        early = frame(K.FLOW, consumer_id=2, messagePermits=1)  # asked for before the answer came
        assert kinds(await client.do(second, early)) == [K.SUCCESS, K.ACTIVE_CONSUMER_CHANGE]
        came = await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=7))
        assert [c.active_consumer_change.is_active for c, _ in came if c.type == K.ACTIVE_CONSUMER_CHANGE] == [True]

    with_broker(test)
