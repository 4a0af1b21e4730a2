"""What topics are asked by their names: which there are, and which of them may have a schema."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.kv.metadata_store import Put
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantQuota
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.call_parameters import called
from region_node.faces.admin.tenancy import bundle_quotas, namespace_backlogs, namespaces
from region_node.faces.admin.topics import topics
from region_node.schemas.schema_registry import AHEAD_MAX
from region_node.topics.serving.named_topics import joined
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, with_broker
from tests.region_node.schemas.definitions import INT, OPTIONAL, avro

NAME = TopicName.parse(TOPIC)
CLOSED = NamespacePolicies(regions=("us",), policies={"autoTopicCreation": {"allowAutoTopicCreation": False}})


def test_a_topic_that_nobody_could_make_gets_no_schema() -> None:
    async def test(broker: Broker) -> None:
        topics = broker.topics
        assert await topics.new_schema(NAME, avro(INT)) == 0, "a client may make it"
        broker.view.set("public/default", CLOSED)
        with pytest.raises(NotFound, match="create the topic first"):
            await topics.new_schema(NAME, avro(INT, OPTIONAL))
        await topics.get(TOPIC, create=True)
        assert await topics.new_schema(NAME, avro(INT, OPTIONAL)) == 1
        await topics.unload(TOPIC)
        assert await topics.new_schema(NAME, avro(INT)) == 0, "it is stored"
        parted = TopicName.parse("persistent://public/default/p")
        broker.view.counts[str(parted)] = 2
        assert await topics.new_schema(parted.with_partition(1), avro(INT)) == 0

    with_broker(test)


def test_schemas_ahead_of_their_topics_have_a_bound() -> None:
    async def test(broker: Broker) -> None:
        topics = broker.topics
        await topics.new_schema(TopicName.parse(f"{TOPIC}0"), avro(INT))
        ((prefix, _),) = [key.rsplit("/", 1) for key, *_ in await broker.meta.range("/schemas/", "/schemas0")]
        for start in range(2, AHEAD_MAX, 1000):  # as many of other topics, but one
            numbers = range(start, min(start + 1000, AHEAD_MAX))
            await broker.meta.txn([Put(f"{prefix}{number}/{0:016x}", b"") for number in numbers])
        await topics.new_schema(TopicName.parse(f"{TOPIC}1"), avro(INT))
        with pytest.raises(NotAllowed, match="create the topic first"):
            await topics.new_schema(NAME, avro(INT))
        await topics.get(TOPIC, create=True)
        assert await topics.new_schema(NAME, avro(INT)) == 0
        broker.view.quotas["public"] = TenantQuota(max_topics=1)
        with pytest.raises(NotAllowed, match="may have 1"):
            await topics.new_schema(TopicName.parse(f"{TOPIC}0"), avro(INT, OPTIONAL))

    with_broker(test)


def test_a_list_of_very_many_partitions_lets_others_go_on() -> None:
    async def test(broker: Broker) -> None:
        broker.view.counts |= {f"{TOPIC}{index}": 1000 for index in range(4)} | {f"{TOPIC}-one": 2}
        await broker.topics.get(f"{TOPIC}0-partition-7", create=True)
        turns, listing = 0, asyncio.ensure_future(broker.topics.listed("public/default"))
        while not listing.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 4
        assert listing.result() == sorted(set(listing.result())) and len(listing.result()) == 4002

    with_broker(test)


class Name(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: str) -> bool:
        Name.compared += 1
        return str(self) < str(other)


@pytest.mark.parametrize(
    "listed",
    [
        lambda broker: broker.topics.stored("public/default"),
        lambda broker: broker.topics.topics("public/default"),
        lambda broker: broker.topics.listed("public/default"),
        lambda broker: called(namespaces.topics, admin_of(broker), request("public/default")),
        lambda broker: called(topics.list_plain, admin_of(broker), request("public/default")),
    ],
    ids=["stored", "topics", "listed", "of a namespace", "plain"],
)
def test_a_list_that_comes_sorted_is_not_sorted_again(
    listed: Callable[[Broker], Awaitable[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [Name(f"{TOPIC}-{index:03}") for index in range(100)]

    async def test(broker: Broker) -> None:
        async def sorted_names(_: str) -> list[str]:
            return list(names)

        monkeypatch.setattr(broker.topics._factory, "names", sorted_names)
        Name.compared = 0
        assert await listed(broker) == names and not Name.compared

    with_broker(test)


def test_what_is_joined_with_a_list_is_sorted_and_there_once() -> None:
    names = [Name(f"{TOPIC}-{index:03}") for index in range(100)]
    Name.compared = 0
    more = [f"{TOPIC}-0501", f"{TOPIC}-0101"]
    assert joined(names, [*names[7:9], *more]) == sorted([*map(str, names), *more])
    assert Name.compared <= 130
    assert joined(names, []) is names and joined([], ["b", "a", "b"]) == ["a", "b"]


def test_a_list_beside_tombstones_lets_others_go_on() -> None:
    async def test(broker: Broker) -> None:
        names = [f"{TOPIC}-{index:04}" for index in range(1000)]
        broker.factory.ledgers |= dict.fromkeys(names)
        broker.topics.tombstones = {names[1]: None}
        broker.topics.tombstone_of = lambda name: "gone" if str(name) == names[1] else ""
        assert await turns_of(broker.topics.topics("public/default"), [names[0], *names[2:]]) >= 3

    with_broker(test)


@pytest.mark.parametrize("listed", [topics.list_plain, namespace_backlogs._topics, namespaces.delete_bundle])
def test_the_list_of_a_bundle_lets_others_go_on(
    listed: Callable[[Any, Any], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: Broker) -> None:
        names = [f"{TOPIC}-{index:04}" for index in range(1000)]
        broker.factory.ledgers |= dict.fromkeys(names)
        deleted: list[str] = []

        async def delete(_: Any, doomed: list[str]) -> None:
            deleted.extend(doomed)

        monkeypatch.setattr(namespaces, "delete_topics", delete)

        async def found() -> list[str]:
            return [str(name) for name in await called(listed, admin, asked) or deleted]

        admin, asked = admin_of(broker), request("public/default", bundle="second", force="true")
        admin.bundle = lambda request: ("public/default", 1)
        asked.match_info["bundle"] = "second"
        assert await turns_of(found(), names[1::2]) >= 3

    with_broker(test)


def test_looking_for_the_largest_bundle_lets_others_go_on() -> None:
    async def test(broker: Broker) -> None:
        broker.factory.ledgers |= dict.fromkeys(f"{TOPIC}-{index:04}" for index in range(1001))
        asked = request("public/default")
        asked.match_info["bundle"] = "LARGEST"
        assert await turns_of(bundle_quotas._chosen(admin_of(broker), asked), ("public/default", 0)) >= 3

    with_broker(test)


async def turns_of(listing: Awaitable[Any], wanted: Any) -> int:
    """How often others had a turn before the list was there."""
    turns, listed = 0, asyncio.ensure_future(listing)
    while not listed.done():
        await asyncio.sleep(0)
        turns += 1
    assert listed.result() == wanted
    return turns


def admin_of(broker: Broker) -> Any:
    """Of one bundle every topic with an even last digit, of the other the rest."""
    table = SimpleNamespace(
        count=2, of=lambda topic: int(topic[-1]) % 2, named=lambda wanted: ["first", "second"].index(wanted)
    )
    return SimpleNamespace(
        topics=broker.topics,
        table=lambda namespace: table,
        namespace=lambda request: request.match_info["namespace"],
        policies=lambda namespace: None,
    )


def request(namespace: str, **query: str) -> Any:
    return SimpleNamespace(match_info={"namespace": namespace, "domain": "persistent"}, query=query)


def test_lists_of_a_namespace_that_are_asked_for_at_once_are_read_once() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        factory: Any = broker.topics._factory
        reads, read = list[str](), factory.names

        async def counted(namespace: str) -> list[str]:
            reads.append(namespace)
            names: list[str] = await read(namespace)
            return names

        factory.names = counted
        lists = await asyncio.gather(*(broker.topics.listed("public/default") for _ in range(50)))
        assert lists == [[TOPIC]] * 50 and reads == ["public/default"]
        lists[0].append("x")  # each has its own
        assert lists[1] == [TOPIC]

    with_broker(test)
