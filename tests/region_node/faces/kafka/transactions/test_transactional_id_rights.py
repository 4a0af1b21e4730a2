"""A transactional id is the role's that first initialised it: others cannot fence its producer, write as it, or end
what it has begun; its coordinator may change meanwhile.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import crc32c
import pytest

from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.acl_records import AclRecord
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.wire.kafka.record_batches import TRANSACTIONAL, build_batch
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.faces.kafka.transactions.transactional_id_expiration import OWNERS
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from region_node.transactions.coordinators.transaction_service import Transactions
from tests.region_node.faces.kafka.harness import Client, Face
from tests.region_node.faces.kafka.transactions.harness import anew, with_transactions
from tests.region_node.faces.pulsar.harness import settle

SECURITY = SecuritySettings(authorization=True, anonymous_role="nobody", super_users=("root",))
REFUSED = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
ID, TOPIC, GROUP = "payments", "paid", "accounts"
OTHERS = ["nil", "bob"]
DAY_S = 86_400


async def prepare(face: Face, transactions: KafkaTransactions) -> None:
    """ "ann" and "bob" may produce and consume all of the listener's namespace, "cora" consume it, "nil" nothing."""
    face.broker.transactions = transactions
    await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us",), admin_roles=("pub-admin",)))
    both = ["produce", "consume"]
    policies = NamespacePolicies(regions=("us",), permissions={"ann": both, "bob": both, "cora": ["consume"]})
    await face.admin.update_namespace("public/default", lambda _: policies)
    new = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    await client(face, "root").ask("create_topics", 7, {"topics": [new], "timeout": 1000})


def client(face: Face, role: str) -> Client:
    made = Client(face.listener)
    made.protocol.session.login.principal = Principal(role=role)
    return made


async def begin(face: Face, role: str, name: str = ID) -> dict[str, Any]:
    asked = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    return await client(face, role).ask("init_producer_id", 3, asked)


def codes(answer: Any) -> list[int]:
    if isinstance(answer, dict):
        own = [answer["error_code"]] if "error_code" in answer else []
        return own + [code for value in answer.values() for code in codes(value)]
    return [code for each in answer for code in codes(each)] if isinstance(answer, list) else []


def calls(producer: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Each request of one transaction, in their order."""
    own = {"transactional_id": ID, "producer_id": producer["producer_id"], "producer_epoch": producer["producer_epoch"]}
    part = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    offsets = {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [part]}]}
    return {
        "add_partitions_to_txn": (3, {**own, "topics": [{"name": TOPIC, "partitions": [0]}]}),
        "add_offsets_to_txn": (3, {**own, "group_id": GROUP}),
        "txn_offset_commit": (
            3,
            {**own, **offsets, "generation_id": -1, "member_id": "", "group_instance_id": None},
        ),
        "end_txn": (3, {**own, "committed": True}),
    }


def batch(producer: dict[str, Any], sequence: int, attributes: int = TRANSACTIONAL) -> bytes:
    made = bytearray(build_batch([(1, None, b"value", ())], attributes=attributes))
    struct.pack_into(">qhi", made, 43, producer["producer_id"], producer["producer_epoch"], sequence)
    struct.pack_into(">I", made, 17, crc32c.crc32c(bytes(made[21:])))
    return bytes(made)


def producing(producer: dict[str, Any], sequence: int, name: str | None = ID) -> dict[str, Any]:
    part = {"index": 0, "records": batch(producer, sequence)}
    data = [{"name": TOPIC, "partition_data": [part]}]
    return {"transactional_id": name, "acks": -1, "timeout": 1000, "topic_data": data}


@pytest.mark.parametrize("role", OTHERS)
def test_another_role_neither_fences_a_producer_nor_touches_its_transaction(role: str) -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        assert producer["error_code"] == 0
        for name, (version, fields) in calls(producer).items():
            assert (await begin(face, role))["error_code"] == REFUSED
            told = set(codes(await client(face, role).ask(name, version, fields)))
            assert told <= {REFUSED, Code.TOPIC_AUTHORIZATION_FAILED} and 0 not in told, name
            assert set(codes(await client(face, "ann").ask(name, version, fields))) == {0}, name

    with_transactions(run, security=SECURITY)


def test_only_its_owner_writes_as_a_transactional_producer() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        version, fields = calls(producer)["add_partitions_to_txn"]
        await client(face, "ann").ask("add_partitions_to_txn", version, fields)
        for sequence, (role, name, told) in enumerate(
            [("ann", ID, 0), ("bob", ID, REFUSED), ("bob", None, REFUSED), ("ann", ID, 0), ("bob", ID, REFUSED)]
        ):
            at = (0, 0, 0, 1, 1)[sequence]
            answer = await client(face, role).ask("produce", 7, producing(producer, at, name))
            assert codes(answer) == [told], sequence
        assert (await face.broker.log(TOPIC, 0)).high_watermark == 2

    with_transactions(run, security=SECURITY)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_request_that_names_a_partition_twice_writes_into_nobodys_transaction(loaded: bool) -> None:
    """What was found out about the later batch would hold for the earlier one too."""

    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        anns, bobs = await begin(face, "ann"), await begin(face, "bob", "bobs")
        version, fields = calls(anns)["add_partitions_to_txn"]
        await client(face, "ann").ask("add_partitions_to_txn", version, fields)
        of_bob = {"transactional_id": "bobs", **{name: bobs[name] for name in ("producer_id", "producer_epoch")}}
        await client(face, "bob").ask("add_partitions_to_txn", version, {**fields, **of_bob})
        assert codes(await client(face, "ann").ask("produce", 7, producing(anns, 0))) == [0]
        if loaded:  # else his transaction is not known at the partition yet
            assert codes(await client(face, "bob").ask("produce", 7, producing(bobs, 0, "bobs"))) == [0]
        before = (await face.broker.log(TOPIC, 0)).high_watermark
        parts = [{"index": 0, "records": batch(anns, 1)}, {"index": 0, "records": batch(bobs, int(loaded))}]
        data = [{"name": TOPIC, "partition_data": parts}]
        twice = {"transactional_id": "bobs", "acks": -1, "timeout": 1000, "topic_data": data}
        assert codes(await client(face, "bob").ask("produce", 7, twice)) == [Code.INVALID_REQUEST] * 2
        apart = {**twice, "topic_data": [{"name": TOPIC, "partition_data": [part]} for part in parts]}
        assert codes(await client(face, "bob").ask("produce", 7, apart)) == [Code.INVALID_REQUEST] * 2
        assert (await face.broker.log(TOPIC, 0)).high_watermark == before

    with_transactions(run, security=SECURITY)


def test_a_batch_outside_the_transaction_that_its_producer_has_open_is_refused() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer, ann = await begin(face, "ann"), client(face, "ann")
        version, fields = calls(producer)["add_partitions_to_txn"]
        await ann.ask("add_partitions_to_txn", version, fields)
        assert codes(await ann.ask("produce", 7, producing(producer, 0))) == [0]
        for name in (None, ID):
            outside = producing(producer, 1, name)
            outside["topic_data"][0]["partition_data"][0]["records"] = batch(producer, 1, attributes=0)
            assert codes(await ann.ask("produce", 7, outside)) == [Code.INVALID_TXN_STATE], name
        assert codes(await ann.ask("produce", 7, producing(producer, 1))) == [0]
        version, fields = calls(producer)["end_txn"]
        assert codes(await ann.ask("end_txn", version, fields)) == [0]
        outside = producing(producer, 2, None)
        outside["topic_data"][0]["partition_data"][0]["records"] = batch(producer, 2, attributes=0)
        assert codes(await ann.ask("produce", 7, outside)) == [0], "none is open any more"

    with_transactions(run, security=SECURITY)


def test_who_may_produce_nowhere_makes_no_transactional_id_and_admins_use_every_one() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        for role in ("nil", "cora"):
            assert (await begin(face, role))["error_code"] == REFUSED
        first = await begin(face, "ann")
        for role in ("pub-admin", "root"):
            assert (await begin(face, role))["error_code"] == 0
        again = await begin(face, "ann")
        assert (again["error_code"], again["producer_epoch"]) == (0, first["producer_epoch"] + 3), "it is still hers"
        assert (await begin(face, "bob"))["error_code"] == REFUSED

    with_transactions(run, security=SECURITY)


def test_the_next_coordinator_knows_the_owner_and_a_new_producer_number_keeps_it() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        face.broker.transactions = after = anew(face, service)
        assert (await begin(face, "bob"))["error_code"] == REFUSED
        record = await after._get(ID)
        assert record is not None
        await after._put(ID, type(record)(record.producer, (1 << 15) - 2, record.timeout_ms, version=record.version))
        again = await begin(face, "pub-admin")
        assert again["error_code"] == 0 and again["producer_id"] != producer["producer_id"]
        assert (await begin(face, "bob"))["error_code"] == REFUSED
        assert (await begin(face, "ann"))["error_code"] == 0

    with_transactions(run, security=SECURITY)


def test_an_id_of_before_owners_were_written_down_is_who_initialises_it_next() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        for key, _, _ in await rows_under(face.meta, OWNERS):
            await face.meta.delete(key)
        face.broker.transactions = anew(face, service)
        for name in ("add_partitions_to_txn", "end_txn"):
            version, fields = calls(producer)[name]
            assert set(codes(await client(face, "nil").ask(name, version, fields))) != {0}, name
            assert set(codes(await client(face, "ann").ask(name, version, fields))) == {0}, name
            if name == "add_partitions_to_txn":
                assert codes(await client(face, "ann").ask("produce", 7, producing(producer, 0))) == [0]
        assert (await begin(face, "ann"))["error_code"] == 0
        assert (await begin(face, "bob"))["error_code"] == REFUSED

    with_transactions(run, security=SECURITY)


def test_an_owner_goes_with_its_idle_id() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        await begin(face, "ann")
        await begin(face, "bob", "other")
        for _ in range(2):
            face.clock.now += 8 * DAY_S
            await transactions.recover()
        assert await rows_under(face.meta, OWNERS) == []
        assert (await begin(face, "bob"))["error_code"] == 0

    with_transactions(run, security=SECURITY)


def test_offsets_under_an_id_that_is_not_the_producers_are_refused() -> None:
    """They would never be let go, and hold stable reads of the group's offsets for ever."""

    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        made = calls(producer)
        await client(face, "ann").ask("add_offsets_to_txn", *made["add_offsets_to_txn"])
        version, fields = made["txn_offset_commit"]
        answer = await client(face, "ann").ask("txn_offset_commit", version, {**fields, "transactional_id": "none"})
        assert codes(answer) == [Code.INVALID_PRODUCER_ID_MAPPING]
        assert await transactions.unstable(GROUP) == set()

    with_transactions(run, security=SECURITY)


def test_where_nothing_is_authorized_everybody_uses_every_id_and_no_owner_is_kept() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        for name, (version, fields) in calls(producer).items():
            assert set(codes(await client(face, "nil").ask(name, version, fields))) == {0}, name
        assert (await begin(face, "bob"))["error_code"] == 0
        assert await rows_under(face.meta, OWNERS) == []

    with_transactions(run)


async def told(face: Face, *said: tuple[str, str, bool]) -> None:
    """ACLs of writing under transactional ids, and no others: (role, id, whether it allows)."""
    records = tuple(
        AclRecord("transactional-id", "literal", name, role, "*", "write", allow) for role, name, allow in said
    )
    await face.admin.acls.change("public", lambda _: records)
    await settle(5)


def test_an_acl_allows_an_id_and_another_refuses_it() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        version, fields = calls(producer)["add_partitions_to_txn"]
        await client(face, "ann").ask("add_partitions_to_txn", version, fields)
        await told(face, ("bob", ID, True))
        assert codes(await client(face, "bob").ask("produce", 7, producing(producer, 0))) == [0]
        assert codes(await client(face, "bob").ask("end_txn", *calls(producer)["end_txn"])) == [0]
        assert (await begin(face, "nil"))["error_code"] == REFUSED
        again = await begin(face, "bob")
        assert (again["error_code"], again["producer_id"]) == (0, producer["producer_id"])
        await told(face, ("bob", ID, True), ("*", ID, False))
        assert [(await begin(face, role))["error_code"] for role in ("bob", "ann", "pub-admin")] == [
            REFUSED,
            REFUSED,
            0,
        ]
        await told(face)
        assert [(await begin(face, role))["error_code"] for role in ("bob", "ann")] == [REFUSED, 0]

    with_transactions(run, security=SECURITY)


def test_an_acl_that_refuses_an_id_nobody_has_is_obeyed_and_one_that_allows_it_too() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        await told(face, ("ann", "new", False), ("nil", "new", True))
        assert (await begin(face, "ann", "new"))["error_code"] == REFUSED
        assert (await begin(face, "nil", "other"))["error_code"] == REFUSED
        assert (await begin(face, "nil", "new"))["error_code"] == 0

    with_transactions(run, security=SECURITY)


def test_nobody_writes_as_a_producer_by_saying_another_id() -> None:
    """Neither who is allowed that other one, nor who is refused the producer's own."""

    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        producer = await begin(face, "ann")
        assert (await begin(face, "bob", "bobs"))["error_code"] == 0
        await client(face, "ann").ask("add_partitions_to_txn", *calls(producer)["add_partitions_to_txn"])
        await told(face, ("bob", "bobs", True))
        assert codes(await client(face, "bob").ask("produce", 7, producing(producer, 0, "bobs"))) == [REFUSED]
        assert codes(await client(face, "ann").ask("produce", 7, producing(producer, 0))) == [0]
        await told(face, ("ann", ID, False))
        assert codes(await client(face, "ann").ask("produce", 7, producing(producer, 1, "bobs"))) == [REFUSED]
        assert codes(await client(face, "ann").ask("produce", 7, producing(producer, 1))) == [REFUSED]
        assert (await face.broker.log(TOPIC, 0)).high_watermark == 1

    with_transactions(run, security=SECURITY)


def test_what_another_tenant_opens_to_every_role_claims_no_id_here() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        await face.admin.create_tenant("shop", TenantInfo(allowed_regions=("us",)))
        await face.admin.create_namespace("shop/live", NamespacePolicies(regions=("us",)))
        for namespace, told in (("shop/live", REFUSED), ("public/default", 0)):
            await open_to_all(face, namespace)
            assert (await begin(face, "nil", "free"))["error_code"] == told, namespace

    with_transactions(run, security=SECURITY)


async def shop(face: Face) -> None:
    """Another tenant at the same listener: "boss" administers it, "tess" may produce and consume there."""
    await face.admin.create_tenant("shop", TenantInfo(allowed_regions=("us",), admin_roles=("boss",)))
    both = {"tess": ["produce", "consume"]}
    await face.admin.create_namespace("shop/live", NamespacePolicies(regions=("us",), permissions=both))


@pytest.mark.parametrize(("role", "own", "other"), [("tess", "boss", "pub-admin"), ("ann", "pub-admin", "boss")])
def test_admins_rule_over_ids_of_their_own_tenants_roles_alone(role: str, own: str, other: str) -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        await shop(face)
        made = calls(await begin(face, role))
        for name in ("add_offsets_to_txn", "end_txn"):
            assert set(codes(await client(face, other).ask(name, *made[name]))) == {REFUSED}, name
        assert (await begin(face, other))["error_code"] == REFUSED
        assert (await begin(face, own))["error_code"] == (await begin(face, "root"))["error_code"] == 0
        assert (await begin(face, role))["error_code"] == 0, "it is still its own"

    with_transactions(run, security=SECURITY)


def test_acls_and_grants_of_the_listeners_tenant_give_no_say_over_another_tenants_ids() -> None:
    async def run(face: Face, service: Transactions, transactions: KafkaTransactions) -> None:
        await prepare(face, transactions)
        await shop(face)
        assert (await begin(face, "tess"))["error_code"] == 0
        await told(face, ("*", ID, False), ("*", "new", False))
        assert [(await begin(face, "tess", name))["error_code"] for name in (ID, "new")] == [0, 0]
        await told(face, ("bob", ID, True))
        assert (await begin(face, "bob"))["error_code"] == REFUSED
        both = {"tess": ["produce", "consume"]}
        await face.admin.update_namespace("public/default", lambda found: replace(found, permissions=both))
        await told(face, ("*", ID, False))
        told_to = [(await begin(face, role))["error_code"] for role in ("tess", "pub-admin", "boss", "root")]
        assert told_to == [0, REFUSED, REFUSED, 0], "who has grants of two tenants is neither's alone"

    with_transactions(run, security=SECURITY)


async def open_to_all(face: Face, namespace: str) -> None:
    """By an ACL of its topics, and its tenant has no others."""
    every = AclRecord("topic", "all", namespace, "*", "*", "all", True)
    await face.admin.acls.change(namespace.partition("/")[0], lambda _: (every,))
    await settle(5)
