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
        client.protocol.login.principal = Principal(role="root")
        await create(client, "a", "b", "c")
        seen = {f"persistent://public/default/{topic}": {"ann": ["consume"]} for topic in ("a", "c")}

        def granted(policies: NamespacePolicies) -> NamespacePolicies:
            return replace(policies, topic_permissions=seen)

        await face.admin.update_namespace("public/default", granted)
        await settle()
        client.protocol.login.principal = Principal(role="ann")
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
        client.protocol.login.principal = Principal(role="stranger")
        passes = 0

        async def names(_: object = None) -> list[TopicName]:
            return [TopicName.parse(each) for each in MANY]

        monkeypatch.setattr(face.broker.cluster, "names", names)
        request = Request(BY_NAME[name], version, 1, "", fields, b"")
        answering = asyncio.ensure_future(SERVED[name].handler(client.protocol, request))
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
        assert client.protocol.client_software == "n" * 256
        await client.ask("api_versions", 3, {**said, "client_software_name": "java"})
        assert client.protocol.client_software == "java 1"

    with_face(test)
