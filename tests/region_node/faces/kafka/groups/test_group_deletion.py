"""A group's positions that several regions have are deleted in one of them only by who says so, and in each they stay
deleted: docs/operating/deletion.md, the row of Kafka's groups.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.admin_paths import SUBSCRIPTION, path_of
from heliograph.model.configuration.configuration_records import TenantInfo
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups.committed_offsets import OFFSETS
from tests.region_node.faces.kafka.cluster.leaderships import Leaderships
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.harness import settle
from tests.region_node.topics.serving.deleting_regions import NAMESPACE, TOPIC, Region, with_regions

POSITION = "kafka.g"
PARTS = [str(TopicName.parse(TOPIC).with_partition(index)) for index in range(2)]


async def committed(client: Client) -> None:
    """The group has a position in each of two partitions; whoever owns them has heard of it."""
    parts = [{"partition_index": index, "committed_offset": 0, "committed_metadata": ""} for index in range(2)]
    of = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = await client.ask("offset_commit", 6, {**of, "topics": [{"name": "orders", "partitions": parts}]})
    assert [part["error_code"] for part in answer["topics"][0]["partitions"]] == [0, 0], answer
    await settle(100)


async def delete_group(client: Client) -> int:
    (row,) = (await client.ask("delete_groups", 2, {"groups_names": ["g"]}))["results"]
    code: int = row["error_code"]
    return code


async def delete_offsets(client: Client) -> list[int]:
    parts = [{"partition_index": index} for index in range(2)]
    asked = {"group_id": "g", "topics": [{"name": "orders", "partitions": parts}]}
    answer = await client.ask("offset_delete", 0, asked)
    assert answer["error_code"] == 0
    return [part["error_code"] for part in answer["topics"][0]["partitions"]]


async def offsets(client: Client) -> list[int]:
    asked = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0, 1]}]}
    (topic,) = (await client.ask("offset_fetch", 6, asked))["topics"]
    return [part["committed_offset"] for part in topic["partitions"]]


async def used(region: Region) -> Client:
    client = Client(region.face.listener)
    await committed(client)
    return client


def positions(region: Region) -> list[str]:
    """Partitions that have the group's subscription here."""
    return [part for part in PARTS if POSITION in region.topics.loaded[part].subscriptions]


def test_where_one_region_alone_has_them_they_go_at_once() -> None:
    async def test(us: Region, _: Region) -> None:
        await us.create(partitions=2)
        client = await used(us)
        assert await delete_offsets(client) == [0, 0] and await offsets(client) == [-1, -1]
        await committed(client)
        assert await delete_group(client) == 0
        assert not us.face.meta.machine.range(OFFSETS, OFFSETS[:-1] + "0")[0]
        assert await delete_group(client) == Code.GROUP_ID_NOT_FOUND

    with_regions(test, namespace=("us",))


@pytest.mark.parametrize("away", ["nobody", "a region", "the majority"])
def test_where_several_regions_have_them_kafkas_deletion_is_refused(
    away: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(us: Region, eu: Region) -> None:
        await us.create(partitions=2)
        clients = [await used(us), await used(eu)]
        if away == "the majority":
            us.store.unavailable = "no majority of the configuration answers"
        with caplog.at_level(logging.WARNING, "region_node.kafka"):
            assert await delete_group(clients[0]) == Code.POLICY_VIOLATION
            assert await delete_offsets(clients[0]) == [Code.POLICY_VIOLATION, Code.POLICY_VIOLATION]
        said = [record.__dict__ for record in caplog.records if record.message == "kafka.group_not_deleted"]
        assert len(said) == 2
        assert all(line["topics"] == ["orders"] and f"'{POSITION}' --only-here" in line["error"] for line in said)
        await settle(100)
        for region, client in zip((us, eu), clients, strict=True):
            assert await offsets(client) == [0, 0] and positions(region) == PARTS, "all is as it was"
        us.store.unavailable = None

    with_regions(test, heard=away != "a region")


def test_an_active_passive_namespace_has_no_other_rule_in_either_of_its_regions() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        await face.admin.create_region("eu")
        await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us", "eu")))
        await face.admin.update_namespace(NAMESPACE, lambda old: replace(old, regions=("us", "eu")))
        await settle(10)
        client = Client(face.listener)
        await create(client, "orders", partitions=2)
        heard.say("us", 1)
        face.clock.now += 60
        await committed(client)
        assert await delete_group(client) == Code.POLICY_VIOLATION
        assert await delete_offsets(client) == [Code.POLICY_VIOLATION, Code.POLICY_VIOLATION]
        heard.say("eu", 2)
        assert await delete_group(client) == Code.NOT_COORDINATOR, "the active region is to be asked, which refuses"
        answer = await client.ask("offset_delete", 0, {"group_id": "g", "topics": []})
        assert answer["error_code"] == Code.NOT_COORDINATOR

    with_face(run, leading=heard)


@pytest.mark.parametrize("unloaded", [False, True])
def test_what_is_deleted_in_each_region_by_its_subscriptions_is_gone_in_each(unloaded: bool) -> None:
    """As the refusal says. A committed offset that stayed would make the subscription again."""

    async def test(us: Region, eu: Region) -> None:
        await us.create(partitions=2)
        clients = {region.name: await used(region) for region in (us, eu)}
        for region in (us, eu):
            client = clients[region.name]
            path = path_of(SUBSCRIPTION, topic=TOPIC, subscription=POSITION)
            for part in PARTS:
                log: Any = region.topics.loaded[part].log
                log.sends = True
            status, answer = await region.rest("DELETE", path)
            assert status == 412 and "--only-here" in answer["reason"] and positions(region) == PARTS
            assert await region.rest("DELETE", f"{path}?onlyHere=true") == (204, None)
            await heard_again(region, unloaded)
            assert await offsets(client) == [-1, -1] and not positions(region)
            assert await delete_group(client) == Code.GROUP_ID_NOT_FOUND, "nothing of it is left"
        for region in (us, eu):
            await heard_again(region, unloaded)
            assert await offsets(clients[region.name]) == [-1, -1] and not positions(region)

    with_regions(test)


async def heard_again(region: Region, unloaded: bool) -> None:
    """Its broker begins anew with what is stored. unloaded: with its topics as well."""
    if unloaded:
        for part in PARTS:
            await region.topics.unload(part)
            await region.topics.get(part, create=False)
    held: Any = region.face.broker.positions
    held.close()
    await held.start()
    await settle(100)
    await held.look()
    await settle(100)


def test_what_a_group_has_in_namespaces_of_one_region_is_deleted_beside_what_is_refused() -> None:
    async def test(us: Region, _: Region) -> None:
        await us.create(partitions=2)
        own = f"persistent://{NAMESPACE.partition('/')[0]}/own/orders"
        assert (await us.rest("PUT", "/admin/v2/namespaces/public/own", {"replication_clusters": ["us"]}))[0] == 204
        await us.create(own, partitions=1)
        client = await used(us)
        parts = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
        of = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
        await client.ask("offset_commit", 6, {**of, "topics": [{"name": "public/own/orders", "partitions": parts}]})
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("orders", "public/own/orders")]
        answer = await client.ask("offset_delete", 0, {"group_id": "g", "topics": topics})
        codes = {topic["name"]: topic["partitions"][0]["error_code"] for topic in answer["topics"]}
        assert codes == {"orders": Code.POLICY_VIOLATION, "public/own/orders": 0}
        held = await us.face.broker.coordinator.known("g")
        assert {topic for topic, _ in held.offsets.rows} == {"orders"}

    with_regions(test)
