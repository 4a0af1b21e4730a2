"""What an answer about topics tells of those that a client may not see."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import ROWS
from heliograph.wire.kafka.message_codec import BY_NAME, Request
from region_node.faces.kafka.connection.request_table import SERVED
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.harness import settle

SECURITY = SecuritySettings(authorization=True, anonymous_role="ann", super_users=("root",))


def test_a_page_of_topics_does_not_name_the_next_one_where_it_may_not_be_seen() -> None:
    async def test(face: Face) -> None:
        client = Client(face.listener)
        client.protocol.session.login.principal = Principal(role="root")
        await create(client, "a", "b", "c")
        seen = {f"persistent://public/default/{topic}": {"ann": ["consume"]} for topic in ("a", "c")}

        def granted(policies: NamespacePolicies) -> NamespacePolicies:
            return replace(policies, topic_permissions=seen)

        await face.admin.update_namespace("public/default", granted)
        await settle()
        client.protocol.session.login.principal = Principal(role="ann")
        cursor, found = None, list[str]()
        for _ in range(3):
            asked = {"topics": [], "response_partition_limit": 1, "cursor": cursor}
            answer = await client.ask("describe_topic_partitions", 0, asked)
            found += [row["name"] for row in answer["topics"]]
            assert "'b'" not in str(answer), answer
            if (cursor := answer["next_cursor"]) is None:
                break
        assert found == ["a", "c"] and cursor is None

    with_face(test, security=SECURITY)


MANY = [f"t{n}" for n in range(12 * ROWS)]


@pytest.mark.parametrize(
    ("name", "version", "fields"),
    [
        ("metadata", 9, {"topics": [{"name": name} for name in MANY], "allow_auto_topic_creation": False}),
        ("metadata", 9, {"topics": None}),
        (
            "describe_topic_partitions",
            0,
            {"topics": [{"name": n} for n in MANY], "cursor": None, "response_partition_limit": 1},
        ),
        ("find_coordinator", 4, {"key_type": 0, "coordinator_keys": MANY}),
        ("describe_configs", 1, {"resources": [{"resource_type": 2, "resource_name": name} for name in MANY]}),
        (
            "list_offsets",
            1,
            {"topics": [{"name": n, "partitions": [{"partition_index": 0, "timestamp": -1}]} for n in MANY]},
        ),
    ],
)
def test_a_request_of_very_many_names_gives_the_loop_back(
    name: str, version: int, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a role that may see none of them, so that nothing else waits."""

    async def test(face: Face) -> None:
        client = Client(face.listener)
        client.protocol.session.login.principal = Principal(role="stranger")
        passes = 0

        async def names(_: object = None) -> list[TopicName]:
            return [TopicName.parse(each) for each in MANY]

        monkeypatch.setattr(face.broker.cluster, "names", names)
        request = Request(BY_NAME[name], version, 1, "", fields, b"")
        answering = asyncio.ensure_future(SERVED[name].handler(client.protocol.session, request))
        while not answering.done():
            await asyncio.sleep(0)
            passes += 1
        assert await answering and 10 <= passes <= 20

    with_face(test, security=SECURITY)


def test_of_what_a_client_says_that_it_is_only_so_much_is_kept() -> None:
    async def test(face: Face) -> None:
        client = Client(face.listener)
        said = {"client_software_name": "n" * 100_000, "client_software_version": "1"}
        await client.ask("api_versions", 3, said)
        assert client.protocol.session.client_software == "n" * 256
        await client.ask("api_versions", 3, {**said, "client_software_name": "java"})
        assert client.protocol.session.client_software == "java 1"

    with_face(test)


async def passes_of(client: Client, name: str, version: int, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """(how often the loop went round meanwhile, the answer)."""
    passes, request = 0, Request(BY_NAME[name], version, 1, "", fields, b"")
    answering = asyncio.ensure_future(SERVED[name].handler(client.protocol.session, request))
    while not answering.done():
        await asyncio.sleep(0)
        passes += 1
    answer = await answering
    assert answer is not None
    return passes, answer


def test_who_names_one_thing_many_times_is_told_of_it_once() -> None:
    """Else an answer is as many times larger than what was asked."""

    async def test(face: Face) -> None:
        client = Client(face.listener)
        (known,) = await create(client, "a", partitions=3)
        by_name, by_id = {"name": "a", "topic_id": bytes(16)}, {"name": None, "topic_id": known}
        answer = await client.ask("metadata", 12, {"topics": [by_name, by_name]})
        assert [len(row["partitions"]) for row in answer["topics"]] == [3]
        assert len((await client.ask("metadata", 12, {"topics": [by_id] * 5}))["topics"]) == 1
        answer = await client.ask("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g", "h", "g"]})
        assert [row["key"] for row in answer["coordinators"]] == ["g", "h"]
        assert len((await client.ask("describe_groups", 0, {"groups": ["g", "g"]}))["groups"]) == 1
        topic = {"resource_type": 2, "resource_name": "a"}
        for keys, found in ((["retention.ms"], {"retention.ms", "retention.bytes"}), (None, None)):
            resources = [{**topic, "configuration_keys": each} for each in (keys, ["retention.bytes"])]
            (row,) = (await client.ask("describe_configs", 1, {"resources": resources}))["results"]
            names = {config["name"] for config in row["configs"]}
            assert names == found if found else len(names) > 2

    with_face(test)


def test_of_a_group_that_is_named_twice_every_topic_is_told_once() -> None:
    async def test(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "a", "b")
        topics = [{"name": name, "partition_indexes": [0, 0]} for name in ("a", "b")]
        groups = [{"group_id": "g", "topics": [topic]} for topic in topics]
        (found,) = (await client.ask("offset_fetch", 8, {"groups": groups, "require_stable": False}))["groups"]
        assert [(row["name"], len(row["partitions"])) for row in found["topics"]] == [("a", 1), ("b", 1)]
        answer = await client.ask("offset_fetch", 7, {"group_id": "g", "topics": topics * 2, "require_stable": False})
        assert [(row["name"], len(row["partitions"])) for row in answer["topics"]] == [("a", 1), ("b", 1)]
        groups.append({"group_id": "g", "topics": None})
        (found,) = (await client.ask("offset_fetch", 8, {"groups": groups, "require_stable": False}))["groups"]
        assert not found["topics"], "all that it has committed"

    with_face(test)


def test_partitions_count_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(face: Face) -> None:
        client = Client(face.listener)
        names = [f"t{number}" for number in range(8)]
        await create(client, *names)

        async def partitions(_: TopicName) -> int:
            return ROWS

        monkeypatch.setattr(face.broker.cluster, "partitions", partitions)
        asked = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        few, answer = await passes_of(client, "metadata", 9, asked)
        assert few >= 8 and len(answer["topics"][7]["partitions"]) == ROWS
        wanted = [{"name": "t0", "partition_indexes": list(range(8 * ROWS))}]
        few, _ = await passes_of(client, "offset_fetch", 5, {"group_id": "g", "topics": wanted})
        assert few >= 8

    with_face(test)
