"""The topics of a broker, found by the range of a bundle: as if each of them was looked at."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.bundles import HASHES, BundleTable
from heliograph.model.topic_names import TopicName, topic_hash
from region_node.topics.serving.loaded_topics import Loaded
from tests.region_node.faces.pulsar.harness import Broker, with_broker


@pytest.mark.parametrize("seed", range(8))
def test_ranges_are_as_if_each_was_looked_at(seed: int) -> None:
    rng, loaded, plain = random.Random(seed), Loaded(), dict[str, Any]()
    for _ in range(600):
        name = TopicName.parse(f"persistent://public/n{rng.randrange(3)}/t{rng.randrange(80)}")
        if rng.random() < 0.6:
            topic: Any = SimpleNamespace(name=name, text=str(name))  # also in the place of one that is there
            loaded[topic.text] = plain[topic.text] = topic
        else:
            assert loaded.pop(str(name), None) is plain.pop(str(name), None)
        assert dict(loaded) == plain
        namespace, (low, high) = f"public/n{rng.randrange(3)}", sorted(rng.randrange(HASHES) for _ in range(2))
        of = sorted((topic_hash(text), text) for text, topic in plain.items() if topic.name.namespace == namespace)
        assert [topic.text for topic in loaded.of(namespace)] == [text for _, text in of]
        assert [topic.text for topic in loaded.between(namespace, low, high)] == [
            text for at, text in of if low <= at < high
        ]
        assert len(loaded.between(namespace, 0, HASHES)) == len(of)
    for text in list(plain):
        loaded.pop(text)
    assert not loaded and not loaded._spaces


def test_topics_of_one_hash_are_apart() -> None:
    loaded = Loaded()
    first, second = "persistent://public/default/plumless", "persistent://public/default/buckeroo"
    topics: list[Any] = [SimpleNamespace(name=TopicName.parse(text), text=text) for text in (first, second)]
    at = topic_hash(first)
    assert at == topic_hash(second)
    for gone, left in (topics, topics[::-1]):
        loaded[first], loaded[second] = topics
        assert loaded.pop(gone.text) is gone and loaded.between("public/default", at, at + 1) == [left]


def test_when_bundles_have_changed_only_what_is_another_s_goes_and_one_topic_a_bundle_is_asked_for() -> None:
    async def test(broker: Broker) -> None:
        table = BundleTable.equal(3).split(0, [1 << 29])  # the bundles in the order of their hashes: 0, 3, 1, 2
        broker.topics._bundles = lambda namespace: table
        names = [f"persistent://public/default/t{number}" for number in range(40)]
        for name in names:
            await broker.topics.get(name, create=True)
        asked: list[str] = []

        def owned(topic: str) -> bool:
            asked.append(topic)
            return table.of(topic) != 2

        broker.owned = owned
        await broker.topics.unload_strays("public/default")
        assert len(asked) == 4 and sorted(broker.topics.loaded) == sorted(name for name in names if table.of(name) != 2)
        await broker.topics.unload_bundle("public/default", 1)
        assert sorted(broker.topics.loaded) == sorted(name for name in names if table.of(name) in (0, 3))

    with_broker(test)
