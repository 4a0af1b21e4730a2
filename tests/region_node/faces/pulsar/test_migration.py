"""A region, or a namespace in it, that sends its clients on to another cluster."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import ClusterMigration, NamespacePolicies
from heliograph.model.errors import HeliographError, RegionPassive
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import Run
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import (
    TOPIC,
    Broker,
    Client,
    K,
    ids,
    kinds,
    publish,
    receipts,
    settle,
    with_broker,
)

GREEN = ClusterMigration(
    migrated=True, broker_service_url="pulsar://green:6650", broker_service_url_tls="pulsar+ssl://green:6651"
)
NAMESPACE = "public/default"


def migrate(broker: Broker, target: ClusterMigration | None = GREEN) -> None:
    if target is None:
        broker.view.migrations.clear()
    else:
        broker.view.migrations["us"] = target
    for callback in list(broker.view.callbacks):
        callback("/migrations/us")


def migrate_namespace(broker: Broker, *regions: str) -> None:
    broker.view.migrated[NAMESPACE] = regions
    for callback in list(broker.view.callbacks):
        callback(f"/migrated/{NAMESPACE}")


async def client(broker: Broker, version: int = 21) -> Client:
    made = Client(broker.listener)
    (answer,) = await made.do(frame(K.CONNECT, client_version="Pulsar-Java-v4.0.7", protocol_version=version))
    assert answer[0].type == K.CONNECTED
    return made


def told(came: Sequence[tuple[pb.BaseCommand, bytes]]) -> list[tuple[int, int, str, str]]:
    """(type, id, URL, URL with TLS) of each that is sent on."""
    moved = [c.topicMigrated for c, _ in came if c.type == K.TOPIC_MIGRATED]
    return [(m.resource_type, m.resource_id, m.brokerServiceUrl, m.brokerServiceUrlTls) for m in moved]


PRODUCER, CONSUMER = pb.CommandTopicMigrated.Producer, pb.CommandTopicMigrated.Consumer
URLS = GREEN.broker_service_url, GREEN.broker_service_url_tls


async def refused(made: Client, *command: Any, **fields: Any) -> list[tuple[pb.BaseCommand, bytes]]:
    came = await made.do(frame(*command, topic=TOPIC, request_id=77, **fields))
    (error,) = [c.error for c, _ in came if c.type == K.ERROR]
    assert (error.request_id, error.error) == (77, pb.ServiceNotReady)
    return came


def test_producers_go_at_once_and_those_who_come_are_sent_on() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker)
        await made.producer(1)
        await publish(made, 3)
        migrate(broker)
        came = await made.news()
        assert kinds(came) == [K.TOPIC_MIGRATED, K.CLOSE_PRODUCER] and told(came) == [(PRODUCER, 1, *URLS)]
        assert told(await refused(made, K.PRODUCER, producer_id=2)) == [(PRODUCER, 2, *URLS)]
        migrate(broker, None)
        await made.producer(2)

    with_broker(test)


def test_what_is_on_its_way_is_answered_before_its_producer_goes() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker)
        await made.producer(1)
        await made.subscribe(1)
        broker.ledger().hold = True
        assert await made.do(send(1, 0, entry(b"m0"))) == []
        migrate(broker)
        broker.topics.gates.tick()
        assert await made.news() == [], "the consumer waits for what is on its way, and the producer for its receipt"
        broker.ledger().release()
        came = await made.news()
        assert kinds(came) == [K.SEND_RECEIPT, K.TOPIC_MIGRATED, K.CLOSE_PRODUCER] and len(receipts(came)) == 1
        broker.topics.gates.tick()
        assert await made.news() == []
        (message,) = await made.flow(10)
        came = await made.do(
            frame(K.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message[0].message_id])
        )
        broker.topics.gates.tick()
        came += await made.news()
        assert kinds(came) == [K.TOPIC_MIGRATED, K.CLOSE_CONSUMER] and told(came) == [(CONSUMER, 1, *URLS)]

    with_broker(test)


def test_nothing_is_published_by_whatever_way() -> None:
    async def test(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC, create=True)
        migrate(broker)
        failures: list[HeliographError] = []
        topic.publish(Run([b"x"], [1]), lambda _: None, failures.append)
        assert isinstance(failures[0], RegionPassive) and failures[0].url == URLS[0]

    with_broker(test)


def test_a_backlog_of_links_keeps_producers_until_it_is_delivered() -> None:
    async def test(broker: Broker) -> None:
        left = [1]
        broker.links.stats = lambda topic=None: [SimpleNamespace(target="eu", backlog_entries=left[0])]  # type: ignore[method-assign]
        made = await client(broker)
        await made.producer(1)
        migrate(broker)
        assert kinds(await made.news()) == [K.CLOSE_PRODUCER]
        assert told(await refused(made, K.PRODUCER, producer_id=1)) == []
        left[0] = 0
        assert told(await refused(made, K.PRODUCER, producer_id=1)) == [(PRODUCER, 1, *URLS)]

    with_broker(test)


def test_consumers_go_once_their_subscription_has_nothing_left() -> None:
    async def test(broker: Broker) -> None:
        made = await client(broker)
        await made.producer(1)
        await made.subscribe(1, name="behind", kind=1)
        await publish(made, 2)
        await made.subscribe(2, name="done", kind=1)
        migrate(broker)
        assert [c.close_producer.producer_id for c, _ in await made.news() if c.type == K.CLOSE_PRODUCER] == [1]
        broker.topics.gates.tick()
        assert told(await made.news()) == [(CONSUMER, 2, *URLS)]
        await made.subscribe(3, name="behind", kind=1)
        got = ids(await made.flow(10, 3)) + ids(await made.flow(10, 1))
        assert len(got) == 2
        for consumer in (1, 3):
            for ledger, number in got:
                one = pb.MessageIdData(ledgerId=ledger, entryId=number)
                await made.do(frame(K.ACK, consumer_id=consumer, ack_type=pb.CommandAck.Individual, message_id=[one]))
        broker.topics.gates.tick()
        assert sorted(told(await made.news())) == [(CONSUMER, 1, *URLS), (CONSUMER, 3, *URLS)]
        assert told(await refused(made, K.SUBSCRIBE, subscription="behind", subType=1, consumer_id=4)) == [
            (CONSUMER, 4, *URLS)
        ]
        latest = {"subscription": "new", "subType": 1, "consumer_id": 5, "initialPosition": pb.CommandSubscribe.Latest}
        assert told(await refused(made, K.SUBSCRIBE, **latest)) == [(CONSUMER, 5, *URLS)]
        assert sorted((await broker.topics.get(TOPIC, create=False)).subscriptions) == ["behind", "done"], (
            "there is the way back; no others are made"
        )

    with_broker(test)


@pytest.mark.parametrize("on_its_way", [False, True])
def test_what_links_bring_later_holds_no_consumer(on_its_way: bool) -> None:
    """Though nobody has looked at its subscription by then."""

    async def test(broker: Broker) -> None:
        made = await client(broker)
        await made.producer(1)
        await made.subscribe(1, kind=1)
        broker.ledger().hold = on_its_way
        await made.do(send(1, 0, entry(b"m0")))
        migrate(broker)
        broker.ledger().hold = False
        broker.ledger().release()
        await made.news()
        broker.ledger().append_run(Run([entry(b"late")], [len(entry(b"late"))]), lambda *_: None, None)
        await settle()
        (first, late) = await made.flow(10)
        broker.topics.gates.tick()
        assert told(await made.news()) == []
        await made.do(frame(K.ACK, consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[first[0].message_id]))
        broker.topics.gates.tick()
        assert told(await made.news()) == [(CONSUMER, 1, *URLS)]
        assert late[0].message_id.entryId == 1

    with_broker(test)


def test_a_topic_that_is_not_there_is_not_made() -> None:
    async def test(broker: Broker) -> None:
        migrate(broker)
        made = await client(broker)
        assert told(await refused(made, K.PRODUCER, producer_id=1)) == [(PRODUCER, 1, *URLS)]
        assert told(await refused(made, K.SUBSCRIBE, subscription="s", subType=1, consumer_id=1)) == [
            (CONSUMER, 1, *URLS)
        ]
        assert not await broker.topics.exists(TOPIC)
        assert told(await refused(await client(broker, 19), K.PRODUCER, producer_id=1)) == [], (
            "it does not know the command"
        )

    with_broker(test)


@pytest.mark.parametrize(("regions", "sent_on"), [(("us",), True), (("eu",), False)])
def test_a_namespace_alone_goes_to_where_the_region_would(regions: tuple[str, ...], sent_on: bool) -> None:
    async def test(broker: Broker) -> None:
        broker.view.known["public/other"] = NamespacePolicies(regions=("us",))
        made = await client(broker)
        await made.producer(1)
        await made.producer(2, topic="persistent://public/other/t")
        migrate_namespace(broker, *regions)
        await settle()
        assert await made.news() == [], "nobody has said to where"
        migrate(broker, ClusterMigration(broker_service_url=GREEN.broker_service_url))
        assert told(await made.news()) == ([(PRODUCER, 1, URLS[0], "")] if sent_on else [])
        migrate_namespace(broker)
        await made.producer(3)

    with_broker(test)
