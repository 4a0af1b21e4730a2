"""Non-persistent topics: what is published goes out at once or not at all."""

from __future__ import annotations

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import Broker, Client, K, messages, with_broker

TOPIC = "non-persistent://public/default/t"


async def publish(client: Client, start: int, count: int) -> list[tuple[pb.BaseCommand, bytes]]:
    """Returns what came back besides receipts."""
    came = await client.do(
        *(send(1, n, entry(b"%d" % n, sequence=n, partition_key=f"k{n % 30}")) for n in range(start, start + count))
    )
    receipts = [c.send_receipt for c, _ in came if c.type == K.SEND_RECEIPT]
    assert [(r.sequence_id, r.message_id.ledgerId, r.message_id.entryId) for r in receipts] == [
        (n, 0, 0) for n in range(start, start + count)
    ]
    return [c for c in came if c[0].type != K.SEND_RECEIPT]


def payloads(came: list[tuple[pb.BaseCommand, bytes]]) -> list[int]:
    return [
        int(payload[-2:].strip(b"\0") if payload[-2:-1].isdigit() else payload[-1:]) for _, payload in messages(came)
    ]


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_who_has_permits_gets_it_and_the_rest_is_dropped(kind: int) -> None:
    async def test(broker: Broker) -> None:
        broker.view.set("public/default", NamespacePolicies(regions=("us",), policies={"maxUnackedPerConsumer": 3}))
        client = await broker.client()
        await client.producer(1, TOPIC)
        assert await publish(client, 0, 5) == []
        await client.subscribe(1, TOPIC, kind=kind, initialPosition=1)
        assert await publish(client, 5, 5) == []
        assert await client.flow(4) == []  # what was dropped does not come back
        assert len(messages(await publish(client, 10, 6))) == 4
        await client.flow(100)
        assert messages(await client.do(frame(K.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1))) == []
        got = await publish(client, 16, 20)
        assert sorted(payloads(got)) == list(range(16, 36))  # nobody acknowledges, and nothing stops for it
        topic = broker.topics.loaded[TOPIC]
        assert topic.subscriptions["s"].dropped == 5 + 2 and topic.stats([])["subscriptions"]["s"]["msgDropCount"] == 7
        dispatcher = topic.subscriptions["s"].dispatcher
        assert dispatcher is not None and not any(c.pending for c in dispatcher.consumers)
        assert not getattr(dispatcher, "_hashes", None) and not getattr(dispatcher, "_replaying", None)
        assert broker.factory.ledgers == {} and broker.links.attached == {}

    with_broker(test)


def test_a_consumer_that_joins_takes_its_keys_at_once() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, TOPIC)
        for consumer in (1, 2):
            await client.subscribe(consumer, TOPIC, kind=3)
            await client.flow(1000, consumer)
            came = messages(await publish(client, 30 * consumer, 30))
            assert len(came) == 30 and {m.consumer_id for m, _ in came} == set(range(1, consumer + 1))

    with_broker(test)


def test_a_client_that_does_not_read_loses_and_holds_nobody_up() -> None:
    async def test(broker: Broker) -> None:
        slow, fast = await broker.client(), await broker.client()
        await fast.producer(1, TOPIC)
        for i, client in enumerate((slow, fast)):
            await client.subscribe(1, TOPIC, name=f"s{i}")
            await client.flow(1000)
        slow.protocol.pause_writing()
        assert len(messages(await publish(fast, 0, 10))) == 10
        slow.protocol.resume_writing()
        assert messages(await slow.news()) == [] and broker.topics.loaded[TOPIC].subscriptions["s0"].dropped == 10

    with_broker(test)


def test_questions_lists_and_the_end() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        ((answer, _),) = await client.do(
            frame(
                K.SUBSCRIBE,
                topic=TOPIC,
                subscription="s",
                subType=0,
                consumer_id=9,
                request_id=3,
                force_topic_creation=False,
            )
        )
        assert answer.error.error == pb.TopicNotFound
        await client.producer(1, TOPIC)
        await client.subscribe(1, TOPIC)
        await publish(client, 0, 3)
        ((answer, _),) = await client.do(frame(K.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=4))
        assert answer.getLastMessageIdResponse.last_message_id.entryId == (1 << 64) - 1
        for mode, names in ((0, []), (1, [TOPIC]), (2, [TOPIC])):
            ((answer, _),) = await client.do(
                frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1, mode=mode)
            )
            assert list(answer.getTopicsOfNamespaceResponse.topics) == names
        ((answer, _),) = await client.do(
            frame(K.PRODUCER, topic=TOPIC, producer_id=2, request_id=5, producer_access_mode=1)
        )
        assert answer.error.error == pb.ProducerFenced
        topic = broker.topics.loaded[TOPIC]
        assert not topic.forgotten(10.0) and not topic.forgotten(100.0)
        await client.do(
            frame(K.CLOSE_PRODUCER, producer_id=1, request_id=6), frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=7)
        )
        assert not topic.forgotten(200.0) and topic.forgotten(270.0)
        await client.producer(3, TOPIC)
        assert not topic.forgotten(300.0)
        await broker.topics.delete_topic(TOPIC, force=True)
        assert TOPIC not in broker.topics.loaded and [c.type for c, _ in await client.news()] == [K.CLOSE_PRODUCER]

    with_broker(test)
