"""What an answer about topics tells of those that a client may not see."""

from __future__ import annotations

from dataclasses import replace

from heliograph.model.configuration.configuration_records import NamespacePolicies
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
