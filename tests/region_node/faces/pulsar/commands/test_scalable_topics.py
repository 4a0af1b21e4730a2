"""Scalable topics, which there are none of: every command of theirs is answered."""

from __future__ import annotations

from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import Broker, K, with_broker


def test_scalable_topics_are_refused_and_nothing_else_ends() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        ((answer, _),) = await client.do(frame(K.SCALABLE_TOPIC_LOOKUP, session_id=4, topic="t"))
        assert (answer.scalableTopicUpdate.session_id, answer.scalableTopicUpdate.error) == (4, pb.NotAllowedError)
        wanted = frame(
            K.SCALABLE_TOPIC_SUBSCRIBE,
            request_id=5,
            topic="t",
            subscription="s",
            consumer_name="c",
            consumer_id=1,
            consumer_type=0,
        )
        ((answer, _),) = await client.do(wanted)
        assert (answer.scalableTopicSubscribeResponse.request_id, answer.scalableTopicSubscribeResponse.error) == (
            5,
            pb.NotAllowedError,
        )
        ((answer, _),) = await client.do(frame(K.WATCH_SCALABLE_TOPICS, watch_id=6, namespace="public/default"))
        assert (answer.watchScalableTopicsUpdate.watch_id, answer.watchScalableTopicsUpdate.error) == (
            6,
            pb.NotAllowedError,
        )
        closes = (
            frame(K.SCALABLE_TOPIC_CLOSE, session_id=4),
            frame(K.WATCH_SCALABLE_TOPICS_CLOSE, watch_id=6),
            frame(K.PING),
        )
        assert [c.type for c, _ in await client.do(*closes)] == [K.PONG]

    with_broker(test)
