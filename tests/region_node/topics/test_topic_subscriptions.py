"""Subscriptions of a topic: what clients may give them."""

from __future__ import annotations

import base64

import msgpack
import pytest

from heliograph.model.errors import NotAllowed
from heliograph.model.positions import BEFORE_ALL
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker

HUGE = base64.b64encode(msgpack.packb([1, [[0, 1, None, [[1, 0, 1 << 60]], []]], []])).decode()


def test_a_client_gives_no_property_of_the_broker() -> None:
    async def test(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC, create=True)
        given = {"heliograph.transactions": "x"}
        with pytest.raises(NotAllowed, match="take another"):
            await topic.subscription("s", initial=BEFORE_ALL, properties=given)
        assert "s" not in topic.subscriptions and "s" not in topic.ledger.cursors
        made = await topic.subscription("s", initial=BEFORE_ALL, properties={"a": "b"})
        assert await topic.subscription("s", initial=BEFORE_ALL, properties=given) is made, "it is there already"
        made.cursor.set_properties({"a": "b", "heliograph.began": "1:1"})
        made.set_properties({"c": "d", "heliograph.began": "2:2", **given})
        assert made.cursor.properties == {"c": "d", "heliograph.began": "1:1"} and made.properties == {"c": "d"}

    with_broker(test)


@pytest.mark.parametrize("stored", ["x", HUGE])
def test_what_nobody_can_read_of_transactions_keeps_no_topic_from_loading(stored: str) -> None:
    async def test(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC, create=True)
        cursor = await topic.ledger.open_cursor("s", BEFORE_ALL, properties={"heliograph.transactions": stored})
        made = topic._subscription("s", cursor, durable=True)
        assert made.properties == {} and made.transactional is None and made.delivering is cursor

    with_broker(test)
