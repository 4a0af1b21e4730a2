"""A group whose turn is another region's: nobody joins, members commit and go, and all is as before when it is its turn
again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.message_codec import BY_NAME, Request
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups import group_regions
from region_node.faces.kafka.groups.group_regions import topics_of
from region_node.faces.kafka.groups.replicated_group_offsets import group_of, subscription_of
from region_node.faces.kafka.requests import group_requests
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.kafka.topic_requests import ORDERS, create
from tests.region_node.faces.kafka.transactions.harness import with_transactions
from tests.region_node.faces.pulsar.harness import settle


def subscription(*topics: str) -> bytes:
    return (
        struct.pack(">hi", 0, len(topics))
        + b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
        + b"\xff\xff\xff\xff"
    )


async def join(client: Client, member: str = "") -> dict[str, Any]:
    head = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member,
        "protocol_type": "consumer",
    }
    return await client.ask(
        "join_group", 3, {**head, "protocols": [{"name": "range", "metadata": subscription("orders")}]}
    )


async def commit(client: Client, member: str, generation: int) -> int:
    parts = [{"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}]
    of = {"group_id": "g", "generation_id_or_member_epoch": generation, "member_id": member}
    answer = await client.ask("offset_commit", 6, {**of, "topics": [{"name": "orders", "partitions": parts}]})
    code: int = answer["topics"][0]["partitions"][0]["error_code"]
    return code


async def heartbeat(client: Client, member: str, generation: int) -> int:
    code: int = (await client.ask("heartbeat", 2, {"group_id": "g", "generation_id": generation, "member_id": member}))[
        "error_code"
    ]
    return code


class Leads:
    """Says `why` nobody may work here, and notes who asks."""

    def __init__(self) -> None:
        self.why, self.asked = "", list[tuple[list[TopicName], str]]()
        self.counts: list[Callable[[str], int]] = []

    def waits(self, topics: Iterable[TopicName], subscription: str) -> str:
        self.asked.append((list(topics), group_of(subscription)))
        return self.why

    def count(self, held: Callable[[str], int]) -> None:
        self.counts.append(held)


def test_a_group_whose_turn_goes_commits_and_is_out_and_comes_back_with_it() -> None:
    leads = Leads()

    async def run(face: Face) -> None:
        client, coordinator = Client(face.listener), face.broker.coordinator
        await create(client, "orders")
        joined = await join(client)
        member, generation = joined["member_id"], joined["generation_id"]
        shares = [{"member_id": member, "assignment": b"all"}]
        await client.ask(
            "sync_group", 2, {"group_id": "g", "generation_id": generation, "member_id": member, "assignments": shares}
        )
        coordinator.tick()
        assert await heartbeat(client, member, generation) == Code.NONE and coordinator.members_of("g") == 1

        (held,) = leads.counts
        assert held(subscription_of("g")) == 1 and held(subscription_of("h")) == held("g") == 0
        leads.why = "it is active in eu"
        leads.asked.clear()
        coordinator.tick()
        await settle(50)
        assert leads.asked == [([ORDERS], "g")]
        assert await heartbeat(client, member, generation) == Code.REBALANCE_IN_PROGRESS
        assert await commit(client, member, generation) == Code.NONE, "what it has done counts"
        assert (await join(client, member))["error_code"] == Code.COORDINATOR_LOAD_IN_PROGRESS
        coordinator.tick()
        await settle(50)
        assert (
            await heartbeat(client, member, generation) == Code.UNKNOWN_MEMBER_ID and coordinator.members_of("g") == 0
        )
        assert (
            await commit(client, member, generation)
            == Code.COORDINATOR_LOAD_IN_PROGRESS
            == await commit(client, "", -1)
        )
        assert (await join(client))["error_code"] == Code.COORDINATOR_LOAD_IN_PROGRESS
        leads.why = ""
        assert (await join(client, member))["error_code"] == Code.UNKNOWN_MEMBER_ID, "an old member begins anew"
        again = await join(client)
        assert again["error_code"] == Code.NONE and again["generation_id"] > generation

    with_face(run, leadership=leads)


def test_who_may_not_consume_a_topic_asks_for_nobodys_turn() -> None:
    """Who asks counts as a consumer that waits: the group's region would be the one in which a stranger asked."""
    leads = Leads()

    async def run(face: Face, _: Transactions, transactions: KafkaTransactions) -> None:
        face.broker.transactions = transactions
        policies = NamespacePolicies(regions=("us",), permissions={"bob": ["produce"]})
        await face.admin.update_namespace("public/default", lambda _: policies)
        client = Client(face.listener)
        client.protocol.session.login.principal = Principal(role="bob")
        assert (await join(client))["error_code"] == Code.GROUP_AUTHORIZATION_FAILED
        assert await commit(client, "", -1) == Code.TOPIC_AUTHORIZATION_FAILED
        asked = {"transactional_id": "t", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        producer = await client.ask("init_producer_id", 3, asked)
        part = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
        of = {"transactional_id": "t", "producer_id": producer["producer_id"], "producer_epoch": 0, "group_id": "g"}
        answer = await client.ask("txn_offset_commit", 2, {**of, "topics": [{"name": "orders", "partitions": [part]}]})
        assert answer["topics"][0]["partitions"][0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert [topics for topics, _ in leads.asked if topics] == []

    security = SecuritySettings(authorization=True, anonymous_role="nobody", super_users=("root",))
    with_transactions(run, leadership=leads, security=security)


def test_a_turn_that_comes_back_at_once_throws_nobody_out() -> None:
    leads = Leads()

    async def run(face: Face) -> None:
        client, coordinator = Client(face.listener), face.broker.coordinator
        await create(client, "orders")
        joined = await join(client)
        for leads.why in ("it is active in eu", "", "it is active in eu"):
            coordinator.tick()
            await settle(20)
            assert coordinator.members_of("g") == 1
        assert joined["error_code"] == Code.NONE

    with_face(run, leadership=leads)


def test_topics_of_a_subscription_however_much_of_it_there_is() -> None:
    whole = subscription("orders", "tenant/ns/t")
    assert set(topics_of(whole)) == {"orders", "tenant/ns/t"}
    for end in range(len(whole)):
        list(topics_of(whole[:end]))


def test_topics_end_at_a_name_without_bytes() -> None:
    nameless = (
        struct.pack(">hi", 0, (1 << 31) - 1) + struct.pack(">h", 1) + b"a" + bytes(2) + struct.pack(">h", 1) + b"b"
    )
    assert set(topics_of(nameless)) == {"a"}


@pytest.mark.parametrize(
    ("protocols", "more"),
    [
        ([{"name": f"p{number}", "metadata": b""} for number in range(33)], {}),
        ([{"name": "range", "metadata": bytes(600_000)}, {"name": "other", "metadata": bytes(600_000)}], {}),
        ([{"name": name, "metadata": subscription(*["t"] * 25_001)} for name in ("range", "sticky")], {}),
        ([{"name": "range", "metadata": b""}], {"protocol_type": "c" * 1_050_000}),
        ([{"name": "range", "metadata": b""}], {"group_instance_id": "i" * 1_050_000}),
    ],
)
def test_who_joins_with_too_much_is_refused_before_it_is_parsed(
    protocols: list[dict[str, Any]], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(_: bytes) -> Iterator[str]:
        raise AssertionError("it was parsed")

    async def run(face: Face) -> None:
        monkeypatch.setattr(group_regions, "topics_of", parsed)
        head = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": ""}
        asked = {**head, "protocol_type": "consumer", "protocols": protocols, **more}
        answer = await Client(face.listener).ask("join_group", 6, asked)
        assert answer["error_code"] == Code.INVALID_REQUEST

    with_face(run)


def test_a_subscription_of_very_many_topics_and_metadata_of_another_kind_are_taken() -> None:
    """Who is no consumer says of itself what it wants, and names no topics by it."""

    async def run(face: Face) -> None:
        client, many = Client(face.listener), subscription(*(f"topic-number-{number}" for number in range(10_000)))
        for kind, metadata in (("consumer", many), ("connect", b"\0\1\0\x16http://10.0.0.1:8083/" + bytes(900_000))):
            head = {"group_id": kind, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": ""}
            protocols = [{"name": "range", "metadata": metadata}]
            asked = {**head, "protocol_type": kind, "protocols": protocols}
            assert (await client.ask("join_group", 3, asked))["error_code"] == 0, kind

    with_face(run)


def test_of_a_clients_id_only_so_much_is_part_of_its_members() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")
        fields = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription("orders")}],
        }
        asked = Request(BY_NAME["join_group"], 5, 1, "c" * 30_000, fields, b"")
        answer = await group_requests.join_group(client.protocol.session, asked)
        assert answer["error_code"] == Code.MEMBER_ID_REQUIRED and len(answer["member_id"]) == 256 + 33

    with_face(run)
