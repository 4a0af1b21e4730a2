"""A session of a client: how much it may have, and what ends with it."""

from __future__ import annotations

from region_node.faces.pulsar.session.pulsar_broker import ConnectionLimits
from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, kinds, with_broker


def test_producers_and_consumers_of_one_client_are_bounded_together() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        ((refused, _),) = await client.do(
            frame(K.SUBSCRIBE, topic=TOPIC, subscription="other", subType=0, consumer_id=2, request_id=9)
        )
        assert "2 producers and consumers are on this connection" in refused.error.message
        await client.do(frame(K.CLOSE_PRODUCER, producer_id=1, request_id=10))
        await client.subscribe(2, name="other")

    with_broker(test, limits=ConnectionLimits(clients_max=2))


def test_what_a_client_has_opened_ends_with_it() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1)
        watch = frame(
            K.WATCH_TOPIC_LIST,
            request_id=7,
            watcher_id=1,
            namespace="public/default",
            topics_pattern="public/default/.*",
        )
        assert kinds(await client.do(watch)) == [K.WATCH_TOPIC_LIST_SUCCESS]
        session = client.protocol.session
        assert session.producing.handles and session.consuming.handles and session.watchers.namespaces
        client.protocol.connection_lost(None)
        assert not (session.producing.handles or session.consuming.handles or session.watchers.namespaces)
        assert not broker.topics.loaded[TOPIC].producers.producers and session.closed

    with_broker(test)
