"""How many partitions Kafka's clients may make."""

from __future__ import annotations

from heliograph.model.configuration.configuration_records import TenantQuota
from region_node.faces.kafka.error_codes import Code
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import ORDERS, create
from tests.region_node.faces.pulsar.harness import settle


async def quota(face: Face, topics: int) -> None:
    await face.admin.change_tenant_quota("public", lambda _: TenantQuota(max_topics=topics))
    await settle(20)


def test_a_client_adds_no_more_partitions_than_there_is_room_for() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders", partitions=2)
        await quota(face, 5)

        async def grow(count: int) -> int:
            rows = [{"name": "orders", "count": count, "assignments": []}]
            asked = {"topics": rows, "timeout": 1000, "validate_only": False}
            code: int = (await client.ask("create_partitions", 1, asked))["results"][0]["error_code"]
            return code

        assert await grow(6) == Code.POLICY_VIOLATION and face.view.partitions(str(ORDERS)) == 2
        assert await grow(5) == 0 and face.view.partitions(str(ORDERS)) == 5

    with_face(run)


def test_the_partitions_of_a_topic_that_a_client_makes_are_counted_before_it_is_made() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await quota(face, 5)
        rows = [
            {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
            for name, count in (("large", 6), ("orders", 5))
        ]
        answer = await client.ask("create_topics", 7, {"topics": rows, "timeout": 1000})
        assert [row["error_code"] for row in answer["topics"]] == [Code.POLICY_VIOLATION, 0]
        assert face.view.partitions(str(ORDERS)) == 5

    with_face(run)


def test_what_is_only_validated_asks_for_room_too() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders", partitions=2)
        await quota(face, 5)
        for count, code in ((4, Code.POLICY_VIOLATION), (3, 0)):
            row = {"name": "new", "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
            asked = {"topics": [row], "timeout": 1000, "validate_only": True}
            assert (await client.ask("create_topics", 7, asked))["topics"][0]["error_code"] == code
            rows = [{"name": "orders", "count": 2 + count, "assignments": []}]
            asked = {"topics": rows, "timeout": 1000, "validate_only": True}
            assert (await client.ask("create_partitions", 1, asked))["results"][0]["error_code"] == code
        assert face.view.partitions(str(ORDERS)) == 2

    with_face(run)
