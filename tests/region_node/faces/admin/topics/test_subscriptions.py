"""Which topics come into being because somebody wants a subscription of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.topics import subscriptions
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker

CLOSED = NamespacePolicies(regions=("us",), policies={"autoTopicCreation": {"allowAutoTopicCreation": False}})
REQUEST: Any = SimpleNamespace(match_info={"subscription": "s"}, query={})


def test_a_topic_that_clients_may_not_make_is_not_made_for_a_subscription() -> None:
    async def test(broker: Broker) -> None:
        async def here(name: TopicName) -> str:
            return str(name)

        async def loaded(name: TopicName) -> Any:
            return broker.topics.loaded[str(name)]

        admin: Any = SimpleNamespace(topics=broker.topics, here=here, loaded=loaded, changed_also=lambda *_: None)
        broker.view.set("public/default", CLOSED)
        with pytest.raises(NotFound):
            await subscriptions.create(admin, REQUEST, TopicName.parse(TOPIC), None)
        assert not broker.factory.ledgers
        broker.view.counts["persistent://public/default/p"] = 1
        for topic in ("persistent://public/default/p-partition-0", TOPIC):
            await subscriptions.create(admin, REQUEST, TopicName.parse(topic), None)
            assert list(broker.topics.loaded[topic].subscriptions) == ["s"]
            broker.view.set("public/default", NamespacePolicies(regions=("us",)))

    with_broker(test)
