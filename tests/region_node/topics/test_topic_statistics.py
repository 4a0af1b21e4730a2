"""Numbers of topics, producers, and consumers that admin clients show: each says what happened, and to whom."""

from __future__ import annotations

from typing import Any

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.topics.topic_statistics import summed
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, settle, tick, with_broker

K = pb.BaseCommand


async def stats(broker: Broker) -> dict[str, Any]:
    return await broker.topics.stats(TOPIC)


def test_a_topic_that_is_loaded_again_is_no_new_one() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        ledger = broker.ledger()
        ledger.created_ms, ledger.published_ms = 1_000_000, 2_000_000  # as storage knows
        await broker.topics.unload(TOPIC)
        await settle()
        before = broker.clock.wall_ms()
        found = await stats(broker)
        assert (found["topicCreationTimeStamp"], found["lastPublishTimestamp"]) == (1_000_000, 2_000_000)
        broker.ledger().published_ms = 2_500_000  # what came over a link
        assert (await stats(broker))["lastPublishTimestamp"] == 2_500_000
        client = await broker.client()
        await client.producer(1)
        await client.do(send(1, 0, entry(b"x")))
        assert (await stats(broker))["lastPublishTimestamp"] >= before

    with_broker(test)


def test_pieces_of_chunked_messages_are_their_producer_s() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, producer_name="a")
        await client.producer(2, producer_name="b")
        pieces = [send(1, 7, entry(b"x", chunk_id=index, num_chunks_from_msg=4), is_chunk=True) for index in range(4)]
        await tick(broker)
        await client.do(send(1, 6, entry(b"y")) + b"".join(pieces) + send(2, 1, entry(b"z")))
        await tick(broker, 2)
        rates = {
            one["producerName"]: (one["msgRateIn"], one["chunkedMessageRate"])
            for one in (await stats(broker))["publishers"]
        }
        assert rates == {"a": (2.5, 2.0), "b": (0.5, 0.0)}

    with_broker(test)


def test_how_many_messages_a_consumer_gets_in_an_entry() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        (consumer,) = (await stats(broker))["subscriptions"]["s"]["consumers"]
        assert consumer["avgMessagesPerEntry"] == 0
        await client.do(frame(K.FLOW, consumer_id=1, messagePermits=1000))
        await client.do(
            send(1, 0, entry(b"y" * 54, batch=7), num_messages=7), send(1, 7, entry(b"y" * 54, batch=9), num_messages=9)
        )
        (consumer,) = (await stats(broker))["subscriptions"]["s"]["consumers"]
        assert (consumer["avgMessagesPerEntry"], consumer["msgOutCounter"]) == (8, 16)

    with_broker(test)


def test_partitions_are_added_up_and_what_has_one_name_in_several_is_one() -> None:
    one: dict[str, Any] = {
        "msgRateIn": 2.0,
        "msgThroughputIn": 20.0,
        "topicCreationTimeStamp": 7,
        "lastPublishTimestamp": 8,
    }
    one["subscriptions"] = {"s": {"msgBacklog": 3, "type": "Shared", "consumers": ["a"]}}
    other: dict[str, Any] = {
        "msgRateIn": 3.0,
        "msgThroughputIn": 80.0,
        "topicCreationTimeStamp": 5,
        "lastPublishTimestamp": 9,
    }
    other["subscriptions"] = {
        "s": {"msgBacklog": 4, "type": "Shared", "consumers": ["b"]},
        "t": {"msgBacklog": 1},
    }
    found = summed([one, other])
    assert (found["msgRateIn"], found["averageMsgSize"], found["bytesInCounter"]) == (5.0, 20.0, 0)
    assert (found["topicCreationTimeStamp"], found["lastPublishTimestamp"]) == (5, 9)
    assert found["subscriptions"] == {
        "s": {"msgBacklog": 7, "type": "Shared", "consumers": ["a", "b"]},
        "t": {"msgBacklog": 1},
    }
    assert summed([])["averageMsgSize"] == 0.0 and summed([])["topicCreationTimeStamp"] == 0
