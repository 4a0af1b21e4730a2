"""What clients are answered in an active-passive namespace, request by request."""

from __future__ import annotations

from typing import Any

from heliograph.model.configuration.kafka_brokers import KafkaBrokerInfo, kafka_broker
from heliograph.model.configuration.leadership import Leadership
from region_node.faces.kafka.cluster.kafka_nodes import A_REGION, node_url
from region_node.faces.kafka.cluster.leading_regions import SETTLES_S
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups.consumer_group import GroupMember
from region_node.faces.kafka.log.partition_log import KafkaLog
from region_node.faces.kafka.session.client_epochs import JOINS_S
from region_node.topics.serving.topic_ids import NO_ID
from tests.region_node.faces.kafka.cluster.leaderships import Leaderships
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import create, metadata, produce
from tests.region_node.faces.pulsar.harness import settle

N = "public/default"
EU = A_REGION + 3


async def other_region(face: Face) -> None:
    """eu, the second region, has a broker."""
    await face.admin.create_region("eu")
    info = KafkaBrokerInfo(listeners={"kafka": node_url(3, "eu.example", 9093)}, namespace=N)
    await face.config.put(kafka_broker("eu", "b", 1), info.encode())
    await settle(10)


async def filled(face: Face, client: Client) -> None:
    """The topic t has a record."""
    (topic,) = await create(client, "t")
    answer = await client.ask("produce", 13, produce(topic))
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


async def read(client: Client, epoch: int = -1) -> dict[str, Any]:
    part = {"partition": 0, "current_leader_epoch": epoch, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {
        "max_wait": 0,
        "min_bytes": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    row: dict[str, Any] = (await client.ask("fetch", 12, fields))["responses"][0]["partitions"][0]
    return row


async def end_of(client: Client, epoch: int, current: int = -1) -> tuple[int, int, int]:
    """(error, leader epoch, end) of OffsetForLeaderEpoch."""
    part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    answer = await client.ask("offset_for_leader_epoch", 4, {"topics": [{"topic": "t", "partitions": [part]}]})
    row = answer["topics"][0]["partitions"][0]
    return row["error_code"], row["leader_epoch"], row["end_offset"]


async def latest(client: Client, epoch: int = -1) -> tuple[int, int, int]:
    part = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [part]}]}
    row = (await client.ask("list_offsets", 5, fields))["topics"][0]["partitions"][0]
    return row["error_code"], row["leader_epoch"], row["offset"]


async def coordinators(client: Client) -> tuple[int, int, str]:
    answer = await client.ask("find_coordinator", 3, {"key": "g", "key_type": 0})
    return answer["error_code"], answer["node_id"], answer["host"]


def test_in_an_active_active_namespace_nothing_is_said_of_other_regions() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await other_region(face)
        await filled(face, client)
        answer = await client.ask("metadata", 13, {"topics": [{"name": "t"}]})
        assert [node["node_id"] for node in answer["brokers"]] == [0]
        (row,) = answer["topics"]
        assert row["topic_id"] != NO_ID and row["partitions"][0]["leader_epoch"] == 0
        assert (await read(client, 7))["error_code"] == 0, "epochs mean nothing there"
        assert await end_of(client, 5) == (0, 0, 1) and await latest(client) == (0, 0, 1)

    with_face(run, leading=Leaderships())


def test_a_passive_region_leads_to_the_active_one_and_serves_nobody() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        heard.say("eu", 1)
        (row,) = await metadata(client, {"name": "t"})
        assert row["partitions"][0]["error_code"] == Code.LEADER_NOT_AVAILABLE
        assert (await coordinators(client))[0] == Code.COORDINATOR_NOT_AVAILABLE
        await other_region(face)
        answer = await client.ask("metadata", 13, {"topics": [{"name": "t"}]})
        assert [node["node_id"] for node in answer["brokers"]] == [0, EU]
        (row,) = answer["topics"]
        assert row["topic_id"] == NO_ID, "the active region gives its own"
        assert (row["partitions"][0]["leader_id"], row["partitions"][0]["leader_epoch"]) == (EU, face.leading.epoch(N))
        assert await coordinators(client) == (0, EU, "eu.example")
        heard.say("us", 2)
        for name, version, fields in (("metadata", 13, {"topics": []}), ("describe_cluster", 1, {"endpoint_type": 1})):
            answer = await client.ask(name, version, {"include_cluster_authorized_operations": False, **fields})
            known = [node.get("node_id", node.get("broker_id")) for node in answer["brokers"]]
            assert known == [0, EU], "where to go on if us is lost"
        heard.say("eu", 3)
        for code in ((await read(client))["error_code"], (await end_of(client, 0))[0], (await latest(client))[0]):
            assert code == Code.NOT_LEADER_OR_FOLLOWER
        beat = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
        assert (await client.ask("heartbeat", 4, beat))["error_code"] == Code.NOT_COORDINATOR

    with_face(run, leading=heard)


def test_leaders_of_another_namespace_are_shown_where_the_listeners_own_is_everywhere() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await other_region(face)
        policies = face.view.namespace(N)
        assert policies is not None
        await face.admin.create_namespace("public/led", policies)
        await settle(10)
        await create(client, "public/led/t", "t")
        heard.say("eu", 1, "public/led")
        for topic, nodes in (("t", [0]), ("public/led/t", [0, EU])):
            answer = await client.ask("metadata", 13, {"topics": [{"name": topic}]})
            assert [node["node_id"] for node in answer["brokers"]] == nodes

    with_face(run, leading=heard)


def test_the_leader_epoch_is_given_with_offsets_and_batches_and_is_asked_for() -> None:
    heard = Leaderships()
    heard.records[N] = Leadership(active="us", epoch=3)

    async def run(face: Face) -> None:
        client, own = Client(face.listener), face.leading.epoch(N)
        await filled(face, client)
        assert (await read(client, own))["error_code"] == 0
        log = await face.broker.log("t", 0)
        (head, _) = log.batches(await log.fetch(0, 1000), 0, 1000)
        assert int.from_bytes(head[12:16], "big") == own
        assert await latest(client, own) == (0, own, 1) and await end_of(client, own, own) == (0, own, 1)
        for epoch, code in ((own - 1, Code.FENCED_LEADER_EPOCH), (own + 1, Code.UNKNOWN_LEADER_EPOCH)):
            assert (await read(client, epoch))["error_code"] == code
            assert (await latest(client, epoch))[0] == code and (await end_of(client, own, epoch))[0] == code
        assert await end_of(client, own + 2) == (0, -1, -1)

    with_face(run, leading=heard)


def test_an_offset_of_another_region_is_validated_late_and_then_in_vain() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        epochs = list[int]()
        for active, epoch in (("us", 1), ("eu", 2), ("us", 3)):
            heard.say(active, epoch)
            epochs.append(face.leading.epoch(N))
        assert await end_of(client, epochs[0]) == (0, epochs[0], 1), "us has numbered it so"
        assert (await end_of(client, epochs[1]))[0] == Code.LEADER_NOT_AVAILABLE
        face.clock.now += JOINS_S
        assert await end_of(client, epochs[1]) == (0, -1, -1), "the client sets itself anew"

    with_face(run, leading=heard)


def test_who_was_connected_when_the_namespace_became_active_passive_goes_on() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        face.clock.now += 1
        heard.say("us", 1)
        face.clock.now += 1
        assert await end_of(client, 0) == (0, 0, 1)
        assert (await end_of(Client(face.listener), 0))[0] == Code.LEADER_NOT_AVAILABLE

    with_face(run, leading=heard)


def test_an_offset_is_committed_and_fetched_with_the_epoch_that_it_is_of() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        heard.say("eu", 1)
        old = face.leading.epoch(N)
        heard.say("us", 2)
        own = face.leading.epoch(N)

        async def commit(epoch: int) -> int:
            part = {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": epoch,
                "committed_metadata": "",
            }
            fields = {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [{"name": "t", "partitions": [part]}],
            }
            answer = await client.ask("offset_commit", 8, fields)
            return int(answer["topics"][0]["partitions"][0]["error_code"])

        assert await commit(old) == Code.FENCED_LEADER_EPOCH, "it is a number of eu"
        assert await commit(own) == 0 and await commit(-1) == Code.COORDINATOR_LOAD_IN_PROGRESS
        face.clock.now += JOINS_S
        assert await commit(-1) == 0
        asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "require_stable": False}
        (part,) = (await client.ask("offset_fetch", 7, asked))["topics"][0]["partitions"]
        assert (part["committed_offset"], part["committed_leader_epoch"]) == (1, own)

    with_face(run, leading=heard)


def test_offsets_of_topics_that_another_region_leads_are_not_fetched() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await settle(10)
        policies = face.view.namespace(N)
        assert policies is not None
        await face.admin.create_namespace("public/led", policies)
        await settle(10)
        await create(client, "public/led/t", "t")
        topics = [{"name": name, "partition_indexes": [0]} for name in ("t", "public/led/t")]
        heard.say("eu", 2, "public/led")
        answer = await client.ask("offset_fetch", 7, {"group_id": "g", "topics": topics, "require_stable": False})
        codes = [topic["partitions"][0]["error_code"] for topic in answer["topics"]]
        assert codes == [0, Code.UNSTABLE_OFFSET_COMMIT]

    with_face(run, leading=heard)


def test_nobody_joins_a_group_that_has_just_come_before_its_positions_may_have() -> None:
    heard = Leaderships()
    heard.records[N] = Leadership(active="eu", epoch=1)

    async def run(face: Face) -> None:
        client = Client(face.listener)
        join = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
            "reason": None,
        }
        heard.say("us", 2)
        assert (await client.ask("join_group", 9, join))["error_code"] == Code.COORDINATOR_LOAD_IN_PROGRESS
        face.clock.now += SETTLES_S
        assert (await client.ask("join_group", 9, join))["error_code"] == Code.MEMBER_ID_REQUIRED

    with_face(run, leading=heard)


def test_a_group_that_comes_back_has_no_members_of_before_and_one_that_only_moved_keeps_them() -> None:
    heard = Leaderships()
    heard.records[N] = Leadership(active="us", epoch=1)

    async def members(face: Face) -> int:
        held = await face.broker.coordinator.held("g")
        return len(held.group.members)

    async def run(face: Face) -> None:
        await settle(10)
        coordinator = face.broker.coordinator
        held = await coordinator.held("g")
        held.group.members["m"] = GroupMember("m", None, "c", "/h", 10.0, 10.0, [("range", b"")])
        held.group.changed = True
        await coordinator.settle(held)
        coordinator.close()  # its bundle is another broker's, and comes back
        assert await members(face) == 1
        heard.say("eu", 2)
        coordinator.tick()
        heard.say("us", 3)
        await settle(10)
        assert await members(face) == 0

    with_face(run, leading=heard)


def test_logs_are_opened_anew_under_each_leader_epoch() -> None:
    heard = Leaderships()

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await filled(face, client)
        before = await face.broker.log("t", 0)
        heard.say("us", 1)
        after = await face.broker.log("t", 0)
        assert after is not before and after.leader_epoch == face.leading.epoch(N)
        heard.say("us", 1)
        assert face.broker.loaded("t", 0) is after

    with_face(run, leading=heard)


def test_who_asks_while_the_leadership_moves_is_given_nothing_under_the_next_epoch() -> None:
    heard = Leaderships()
    heard.records[N] = Leadership(active="us", epoch=1)

    async def run(face: Face) -> None:
        client, own = Client(face.listener), face.leading.epoch(N)
        await filled(face, client)
        opened = face.broker.log

        async def moved(kafka: str, partition: int) -> KafkaLog:
            heard.say("eu", 2)
            return await opened(kafka, partition)

        for ask in (read, latest, lambda client, epoch: end_of(client, own, epoch)):
            for epoch in (own, -1):
                heard.say("us", 1)
                face.broker.log = moved  # type: ignore[method-assign]
                answer = await ask(client, epoch)
                face.broker.log = opened  # type: ignore[method-assign]
                code = answer["error_code"] if isinstance(answer, dict) else answer[0]
                assert code == Code.NOT_LEADER_OR_FOLLOWER

    with_face(run, leading=heard)
