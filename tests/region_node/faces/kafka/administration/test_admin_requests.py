"""Administration by Kafka's clients goes by the tenant that a topic is of, whatever the listener's is, and is written
down.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.wire.kafka.message_codec import BY_NAME, Request
from region_node.faces.kafka.connection.request_table import SERVED
from region_node.faces.kafka.error_codes import Code
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face

SECURITY = SecuritySettings(authorization=True, anonymous_role="nobody", super_users=("root",))
CLUSTER, TOPIC = Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED
SECRET, OWN = "victim/ns/secret", "orders"


def acl(topic: str, role: str = "mallory") -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": topic,
        "resource_pattern_type": 3,
        "principal": f"User:{role}",
        "host": "*",
        "operation": 2,
        "permission_type": 3,
    }


def new(topic: str) -> dict[str, Any]:
    return {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


def described(topic: str) -> dict[str, Any]:
    return {"resource_type": 2, "resource_name": topic, "configuration_keys": None}


def setting(topic: str) -> dict[str, Any]:
    return {"resource_type": 2, "resource_name": topic, "configs": [{"name": "retention.ms", "value": "1000"}]}


def added(topic: str) -> dict[str, Any]:
    one = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
    return {"resource_type": 2, "resource_name": topic, "configs": [one]}


def parts(topic: str) -> list[dict[str, Any]]:
    return [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}]


CALLS: dict[str, Any] = {
    "create_topics": lambda topic: (7, {"topics": [new(topic)], "timeout": 1000}),
    "create_partitions": lambda topic: (
        1,
        {"topics": [{"name": topic, "count": 3, "assignments": None}], "timeout": 1000, "validate_only": False},
    ),
    "alter_configs": lambda topic: (1, {"resources": [setting(topic)], "validate_only": False}),
    "incremental_alter_configs": lambda topic: (1, {"resources": [added(topic)], "validate_only": False}),
    "describe_configs": lambda topic: (1, {"resources": [described(topic)], "include_synonyms": False}),
    "create_acls": lambda topic: (1, {"creations": [acl(topic)]}),
    "delete_records": lambda topic: (1, {"topics": parts(topic), "timeout": 1000}),
    "delete_topics": lambda topic: (1, {"topic_names": [topic], "timeout": 1000}),
}
"""In an order in which the topic's own admin can do all of them. Name -> its version and fields."""


def codes(answer: Any) -> list[int]:
    if isinstance(answer, dict):
        own = [answer["error_code"]] if "error_code" in answer else []
        return own + [code for value in answer.values() for code in codes(value)]
    return [code for each in answer for code in codes(each)] if isinstance(answer, list) else []


async def opened() -> Face:
    face = Face(security=SECURITY)
    await face.start()
    await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us",), admin_roles=("pub-admin",)))
    await face.admin.create_tenant("victim", TenantInfo(allowed_regions=("us",), admin_roles=("victor",)))
    await face.admin.create_namespace("victim/ns", NamespacePolicies(regions=("us",)))
    return face


def client(face: Face, role: str) -> Client:
    made = Client(face.listener)
    made.protocol.session.login.principal = Principal(role=role)
    return made


async def ask(face: Face, role: str, name: str, topic: str) -> list[int]:
    version, fields = CALLS[name](topic)
    return [code for code in codes(await client(face, role).ask(name, version, fields)) if code]


@pytest.mark.parametrize("name", CALLS)
def test_the_admin_of_the_listeners_tenant_is_nobody_in_another(name: str) -> None:
    async def run() -> None:
        face = await opened()
        if name != "create_topics":
            assert await ask(face, "victor", "create_topics", SECRET) == []
        for role in ("pub-admin", "mallory"):
            assert await ask(face, role, name, SECRET) in ([TOPIC], [CLUSTER])
        assert await ask(face, "victor", name, SECRET) == []
        await face.close()

    asyncio.run(run())


def test_the_admin_of_a_tenant_does_all_of_it_and_a_super_user_too() -> None:
    async def run() -> None:
        face = await opened()
        for role, topic in (("pub-admin", OWN), ("victor", SECRET), ("root", SECRET), ("root", OWN)):
            for name in CALLS:
                assert await ask(face, role, name, topic) == [], (role, name)
        await face.close()

    asyncio.run(run())


def test_a_topic_that_is_deleted_by_its_id_keeps_its_name_from_whoever_may_not() -> None:
    async def run() -> None:
        face = await opened()
        made = await client(face, "victor").ask("create_topics", 7, {"topics": [new(SECRET)], "timeout": 1000})
        wanted = {"topics": [{"name": None, "topic_id": made["topics"][0]["topic_id"]}], "timeout": 1000}
        (row,) = (await client(face, "pub-admin").ask("delete_topics", 6, wanted))["responses"]
        assert (row["error_code"], row["name"]) == (TOPIC, None)
        (row,) = (await client(face, "victor").ask("delete_topics", 6, wanted))["responses"]
        assert (row["error_code"], row["name"]) == (0, SECRET)
        await face.close()

    asyncio.run(run())


def test_a_brokers_settings_are_for_the_admins_of_the_listeners_tenant() -> None:
    async def run() -> None:
        face = await opened()
        wanted = {"resources": [{"resource_type": 4, "resource_name": "0", "configuration_keys": None}]}
        told = {
            role: codes(await client(face, role).ask("describe_configs", 1, {**wanted, "include_synonyms": False}))[0]
            for role in ("mallory", "victor", "pub-admin", "root")
        }
        assert told == {"mallory": CLUSTER, "victor": CLUSTER, "pub-admin": 0, "root": 0}
        await face.close()

    asyncio.run(run())


def test_each_change_is_in_the_audit_log_and_no_read() -> None:
    async def run() -> None:
        face = await opened()
        for name in CALLS:
            await ask(face, "victor", name, SECRET)
        await ask(face, "pub-admin", "create_acls", SECRET)
        told = [(each["role"], each["method"], each["path"], each["status"]) for each in face.audit.newest(100)]
        changes = [name for name in CALLS if not name.startswith("describe")]
        assert told == [
            *(("victor", "KAFKA", name, 0) for name in changes),
            ("pub-admin", "KAFKA", "create_acls", CLUSTER),
        ]
        assert SECRET in str(face.audit.newest(1)[0]["given"]) and len(face.audit._refused.records) == 1
        await face.close()

    asyncio.run(run())


def test_the_audit_log_has_no_passwords_of_kafka_users() -> None:
    async def run() -> None:
        face = await opened()
        made = {"name": "ann", "mechanism": 1, "iterations": 4096, "salt": b"NaCl", "salted_password": b"p" * 32}
        await client(face, "root").ask("alter_user_scram_credentials", 0, {"deletions": [], "upsertions": [made]})
        (told,) = face.audit.newest(10)
        assert told["path"] == "alter_user_scram_credentials" and "ppp" not in str(told) and "ann" in str(told)
        await face.close()

    asyncio.run(run())


class Counted(str):
    """A name that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


async def refused_while(face: Face, name: str, version: int, fields: dict[str, Any]) -> int:
    """How often others have had their turn while a request of somebody without a right was refused."""
    session = client(face, "mallory").protocol.session
    turns, asked = 0, Request(BY_NAME[name], version, 1, "c", fields, b"")
    answering = asyncio.ensure_future(SERVED[name].handler(session, asked))
    while not answering.done():
        await asyncio.sleep(0)
        turns += 1
    assert set(codes(answering.result())) <= {TOPIC, CLUSTER, Code.GROUP_AUTHORIZATION_FAILED}
    return turns


def test_each_name_of_a_request_is_compared_with_no_other() -> None:
    async def run() -> None:
        face, count = await opened(), 2_000
        Counted.compared = 0
        wanted = {"topics": [new(Counted(f"t{number}")) for number in range(count)], "timeout": 1000}
        await refused_while(face, "create_topics", 7, wanted)
        assert Counted.compared <= 10 * count
        await face.close()

    asyncio.run(run())


MANY: dict[str, tuple[int, Any]] = {
    "create_topics": (7, lambda names: {"topics": [new(name) for name in names], "timeout": 1000}),
    "delete_topics": (1, lambda names: {"topic_names": names, "timeout": 1000}),
    "create_partitions": (
        1,
        lambda names: {"topics": [{"name": n, "count": 3, "assignments": None} for n in names], "validate_only": False},
    ),
    "alter_configs": (1, lambda names: {"resources": [setting(name) for name in names], "validate_only": False}),
    "incremental_alter_configs": (1, lambda names: {"resources": [added(n) for n in names], "validate_only": False}),
    "describe_configs": (1, lambda names: {"resources": [described(name) for name in names]}),
    "create_acls": (1, lambda names: {"creations": [acl(name) for name in names]}),
    "delete_records": (1, lambda names: {"topics": [part for name in names for part in parts(name)]}),
    "metadata": (5, lambda names: {"topics": [{"name": name} for name in names]}),
    "find_coordinator": (4, lambda names: {"key_type": 0, "coordinator_keys": names}),
    "list_offsets": (
        1,
        lambda names: {"topics": [{"name": n, "partitions": [{"partition_index": 0, "timestamp": -1}]} for n in names]},
    ),
    "add_partitions_to_txn": (0, lambda names: {"topics": [{"name": name, "partitions": [0]} for name in names]}),
}


@pytest.mark.parametrize("name", MANY)
def test_a_request_of_many_rows_lets_others_go_on(name: str) -> None:
    async def run() -> None:
        face = await opened()
        version, fields = MANY[name]
        few = await refused_while(face, name, version, fields(["victim/ns/t"]))
        many = await refused_while(face, name, version, fields([f"victim/ns/t{number}" for number in range(1_100)]))
        assert many - few >= 4
        await face.close()

    asyncio.run(run())
