"""What a client hears of its consumers without asking."""

from __future__ import annotations

from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, kinds, with_broker


def test_who_is_active_is_told_with_the_first_permits() -> None:
    """Before them Go's client still looks at the answer to SUBSCRIBE, and would drop it."""

    async def test(broker: Broker) -> None:
        client = await broker.client()
        subscribe = frame(
            K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=2, consumer_id=1, consumer_name="a", request_id=5
        )
        assert kinds(await client.do(subscribe)) == [K.SUCCESS]
        ((told, _),) = await client.do(frame(K.FLOW, consumer_id=1, messagePermits=1))
        assert told.active_consumer_change.is_active and told.active_consumer_change.consumer_id == 1
        second = frame(
            K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=2, consumer_id=2, consumer_name="b", request_id=6
        )
        early = frame(K.FLOW, consumer_id=2, messagePermits=1)  # asked for before the answer came
        assert kinds(await client.do(second, early)) == [K.SUCCESS, K.ACTIVE_CONSUMER_CHANGE]
        came = await client.do(frame(K.CLOSE_CONSUMER, consumer_id=1, request_id=7))
        assert [c.active_consumer_change.is_active for c, _ in came if c.type == K.ACTIVE_CONSUMER_CHANGE] == [True]

    with_broker(test)


def test_the_consumers_of_a_connection_that_ends_are_news_to_others_once() -> None:
    async def test(broker: Broker) -> None:
        ending, other = await broker.client(), await broker.client()
        for number in range(20):
            await ending.subscribe(number, TOPIC, kind=2, consumer_name=f"a{number:02}")
        await other.subscribe(1, TOPIC, kind=2, consumer_name="b")
        await other.do(frame(K.FLOW, consumer_id=1, messagePermits=1))
        ending.protocol.connection_lost(None)
        told = [c.active_consumer_change.is_active for c, _ in await other.news() if c.type == K.ACTIVE_CONSUMER_CHANGE]
        assert told == [True]

    with_broker(test)
