"""What Kafka's tools say about rights is in force for both protocols, comes back as it was said, and goes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from global_config import keys
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.security.acl_filters import (
    ALL,
    ALLOW,
    ANY,
    CLUSTER,
    CREATE,
    DELETE,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    MATCH,
    NAME_CHARS_MAX,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
)
from region_node.security.authentication.principal import ROLE_CHARS_MAX, Principal
from region_node.security.authorization.authorization_service import Action, Authorization
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.pulsar.harness import settle

NAMESPACE, NAME = "public/default", "persistent://public/default/t"
T = TopicName.parse(NAME)


def secured(face: Face) -> tuple[Client, Client]:
    """root, who administers, and bob, who does not."""
    settings = SecuritySettings(anonymous_role="nobody", authorization=True, super_users=("root",))
    face.broker.security = replace(face.broker.security, rights=Authorization(settings, face.view))
    root, bob = Client(face.listener), Client(face.listener)
    for client, role in ((root, "root"), (bob, "bob")):
        client.protocol.session.login.principal = Principal(role=role)
    return root, bob


def wanted(name: str = "t", operation: int = WRITE, principal: str = "User:bob", **fields: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": ALLOW,
        **fields,
    }


def about(name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **fields,
    }


async def create(client: Client, *rows: dict[str, Any]) -> list[int]:
    answer = await client.ask("create_acls", 2, {"creations": list(rows)})
    return [row["error_code"] for row in answer["results"]]


async def described(client: Client, asked: dict[str, Any]) -> list[tuple[str, str, int]]:
    """(topic, principal, operation) of each."""
    return [(row["resource_name"], row["principal"], row["operation"]) for row in await rows(client, asked)]


async def rows(client: Client, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """As they would be created."""
    answer = await client.ask("describe_acls", 2, asked)
    assert answer["error_code"] == 0, answer
    found = []
    for resource in answer["resources"]:
        of = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
        found += [{**of, "resource_pattern_type": resource["pattern_type"], **acl} for acl in resource["acls"]]
    return found


async def delete(client: Client, *asked: dict[str, Any]) -> list[list[tuple[str, str, int]]]:
    answer = await client.ask("delete_acls", 2, {"filters": list(asked)})
    assert all(row["error_code"] == 0 for row in answer["filter_results"]), answer
    return [
        [(acl["resource_name"], acl["principal"], acl["operation"]) for acl in row["matching_acls"]]
        for row in answer["filter_results"]
    ]


def policies(face: Face) -> NamespacePolicies:
    found = face.view.namespace(NAMESPACE)
    assert found is not None
    return found


def tenant(face: Face) -> TenantInfo:
    found = face.view.tenant("public")
    assert found is not None
    return found


async def grant(face: Face, name: str, role: str, *actions: str) -> None:
    """As REST does it; name `*`: of the namespace."""

    def granted(found: NamespacePolicies) -> NamespacePolicies:
        if name == "*":
            return replace(found, permissions={**found.permissions, role: list(actions)})
        return replace(found, topic_permissions={**found.topic_permissions, name: {role: list(actions)}})

    await face.admin.update_namespace(NAMESPACE, granted)
    await settle(5)


def may(face: Face, role: str, host: str = "") -> set[str]:
    rights, who = face.broker.security.rights, Principal(role=role, host=host)
    asked = {
        "produce": rights.may(who, Action.PRODUCE, T),
        "consume": rights.may(who, Action.CONSUME, T),
        "look up": rights.may_look_up(who, T),
    }
    return {name for name, allowed in asked.items() if allowed}


def test_each_operation_allows_what_it_says_and_comes_back_as_it_was_said() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        roles = {READ: "reader", WRITE: "writer", ALL: "both", DESCRIBE: "looker", CREATE: "maker"}
        said = [wanted(operation=o, principal=f"User:{r}") for o, r in roles.items()]
        assert await create(root, *said) == [0] * 5
        assert may(face, "reader") == {"consume", "look up"} and may(face, "writer") == {"produce", "look up"}
        assert may(face, "both") == {"produce", "consume", "look up"} and may(face, "looker") == {"look up"}
        assert may(face, "maker") == may(face, "bob") == set()
        assert policies(face).permissions == policies(face).topic_permissions == {}, "grants are another thing"
        found = await rows(root, about())
        assert len(found) == 5 and all(row in said for row in found)

    with_face(run)


def test_what_is_denied_is_refused_whatever_else_allows_and_in_all_protocols() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        await grant(face, NAME, "bob", "produce", "consume")
        assert may(face, "bob") == {"produce", "consume", "look up"}
        assert await create(root, wanted(permission_type=DENY), wanted()) == [0, 0]
        assert may(face, "bob") == {"consume", "look up"} and may(face, "ann") == set()
        assert may(face, "root") == {"produce", "consume", "look up"}
        await delete(root, about(permission_type=DENY))
        assert may(face, "bob") == {"produce", "consume", "look up"}
        assert await create(root, wanted("*", ALL, "User:*", permission_type=DENY)) == [0]
        assert may(face, "bob") == set() and may(face, "root") == {"produce", "consume", "look up"}

    with_face(run)


def test_an_admin_of_the_tenant_is_refused_nothing_in_it() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        await face.admin.update_tenant("public", replace(tenant(face), admin_roles=("boss",)))
        assert await create(root, wanted("*", ALL, "User:*", permission_type=DENY)) == [0]
        assert may(face, "boss") == {"produce", "consume", "look up"} and may(face, "bob") == set()

    with_face(run)


def test_a_prefix_and_a_star_and_a_host() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        assert await create(root, wanted("t", READ, "User:*", resource_pattern_type=PREFIXED)) == [0]
        rights = face.broker.security.rights
        for name, allowed in (("t", True), ("tt", True), ("t-partition-3", True), ("s", False)):
            topic = TopicName.parse(f"persistent://public/default/{name}")
            assert rights.may(Principal(role="bob"), Action.CONSUME, topic) is allowed, name
        other = TopicName.parse("persistent://public/other/t")
        assert not rights.may(Principal(role="bob"), Action.CONSUME, other)
        assert await create(root, wanted("*", WRITE, host="10.0.0.1"), wanted(permission_type=DENY, host="::1")) == [
            0,
            0,
        ]
        assert may(face, "bob", "10.0.0.1") == {"produce", "consume", "look up"}
        assert may(face, "bob", "10.0.0.2") == {"consume", "look up"}
        assert await create(root, wanted()) == [0]
        assert may(face, "bob", "10.0.0.2") == {"produce", "consume", "look up"}
        assert may(face, "bob", "::1") == {"consume", "look up"}

    with_face(run)


def test_what_nobody_grants_an_acl_allows() -> None:
    """CreateTopics and its like are an admin's, else."""

    async def run(face: Face) -> None:
        root, bob = secured(face)
        made = {
            "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]
        }
        asked: dict[str, Any] = {**made, "timeout": 5000, "validate_only": True}
        answer = await bob.ask("create_topics", 4, asked)
        assert answer["topics"][0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
        assert await create(root, wanted("n", CREATE, resource_pattern_type=PREFIXED)) == [0]
        answer = await bob.ask("create_topics", 4, asked)
        assert answer["topics"][0]["error_code"] == 0
        assert await create(root, wanted("new", CREATE, "User:*", permission_type=DENY)) == [0]
        answer = await bob.ask("create_topics", 4, asked)
        assert answer["topics"][0]["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED

    with_face(run)


def test_metadata_makes_no_topic_whose_making_an_acl_refuses() -> None:
    async def run(face: Face) -> None:
        root, bob = secured(face)
        await create(
            root, wanted("*", ALL), wanted("no", CREATE, "User:*", permission_type=DENY, resource_pattern_type=PREFIXED)
        )
        codes = {}
        for name in ("yes", "nope"):
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
            answer = await bob.ask("metadata", 8, asked)
            codes[name] = answer["topics"][0]["error_code"]
        assert codes == {"yes": 0, "nope": Code.UNKNOWN_TOPIC_OR_PARTITION}

    with_face(run)


@pytest.mark.parametrize(
    ("operations", "made"),
    [((DESCRIBE,), False), ((DELETE,), False), ((DESCRIBE, CREATE), True), ((READ,), True), ((WRITE,), True)],
)
def test_metadata_makes_no_topic_for_who_may_only_see_it(operations: tuple[int, ...], made: bool) -> None:
    async def test(face: Face) -> None:
        root, bob = secured(face)
        assert set(await create(root, *(wanted("t", operation) for operation in operations))) == {0}
        asked = {"topics": [{"name": "t", "topic_id": bytes(16)}], "allow_auto_topic_creation": True}
        answer = await bob.ask("metadata", 4, asked)
        expected = 0 if made else Code.UNKNOWN_TOPIC_OR_PARTITION
        assert [row["error_code"] for row in answer["topics"]] == [expected]

    with_face(test)


def test_a_star_is_every_topic_of_the_namespace() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        assert await create(root, wanted("*"), wanted("*", READ), wanted("*"), wanted("t", READ)) == [0] * 4
        more = wanted("t", resource_pattern_type=PREFIXED, operation=DELETE), wanted("public/other/*", READ)
        assert await create(root, *more) == [0, Code.UNKNOWN_TOPIC_OR_PARTITION], "there is no such namespace"
        await face.admin.create_namespace("public/other", NamespacePolicies(regions=("us",)))
        assert await create(root, *more) == [0, 0]
        every, one = [("*", "User:bob", READ), ("*", "User:bob", WRITE)], [("t", "User:bob", READ)]
        prefix, other = [("t", "User:bob", DELETE)], [("public/other/*", "User:bob", READ)]
        assert sorted(await described(root, about())) == sorted(every + one + prefix + other)
        assert await described(root, about("*")) == every and await described(root, about("t")) == one + prefix
        assert await described(root, about("t", pattern_type_filter=LITERAL)) == one
        assert await described(root, about("t", pattern_type_filter=PREFIXED)) == prefix
        assert await described(root, about("public/other/*")) == other
        match = {"pattern_type_filter": MATCH}
        assert await described(root, about("t", **match)) == every + one + prefix, "whatever touches it"
        assert await described(root, about("to", **match)) == every + prefix
        assert await described(root, about("other", **match)) == every
        assert await described(root, about("public/other/t", **match)) == other

    with_face(run)


@pytest.mark.parametrize(
    "row",
    (
        {"resource_type": CLUSTER},
        {"resource_type": ANY},
        {"resource_type": 7},
        {"resource_type": GROUP, "operation": CREATE},
        {"resource_type": TRANSACTIONAL_ID, "operation": READ},
        {"resource_type": GROUP, "operation": READ, "resource_name": "a\nb"},
        {"resource_name": ""},
        {"resource_type": GROUP, "operation": READ, "resource_name": "g" * (NAME_CHARS_MAX + 1)},
        {"resource_pattern_type": MATCH},
        {"resource_pattern_type": ANY},
        {"permission_type": ANY},
        {"host": "a.example"},
        {"host": ""},
        {"operation": ANY},
        {"operation": 9},
        {"operation": 12},
        {"principal": "bob"},
        {"principal": "Group:bob"},
        {"principal": "User:"},
        {"principal": "User:a\nb"},
        {"principal": "User:" + "b" * (ROLE_CHARS_MAX + 1)},
    ),
)
def test_what_has_no_meaning_here_is_refused_by_itself(row: dict[str, Any]) -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        refused = Code.INVALID_REQUEST
        assert await create(root, wanted("a"), {**wanted("b"), **row}, wanted("c")) == [0, refused, 0]
        assert [name for name, *_ in await described(root, about())] == ["a", "c"]

    with_face(run)


def test_the_longest_role_and_one_with_a_space_are_roles() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        names = ["b" * ROLE_CHARS_MAX, "a role"]
        assert await create(root, *(wanted(principal=f"User:{name}") for name in names)) == [0, 0]
        assert [row["principal"] for row in await rows(root, about())] == [
            "User:a role",
            "User:" + "b" * ROLE_CHARS_MAX,
        ]

    with_face(run)


def test_only_who_administers_sees_and_changes_them_and_only_where_rights_are_asked_for() -> None:
    async def run(face: Face) -> None:
        open_to_all = Client(face.listener)
        assert await create(open_to_all, wanted()) == [Code.SECURITY_DISABLED]
        root, bob = secured(face)
        await create(root, wanted())
        refused = Code.CLUSTER_AUTHORIZATION_FAILED
        assert await create(bob, wanted(operation=READ), wanted()) == [refused, refused]
        answer = await bob.ask("describe_acls", 2, about())
        assert (answer["error_code"], answer["resources"]) == (refused, [])
        answer = await bob.ask("delete_acls", 2, {"filters": [about()]})
        assert [(row["error_code"], row["matching_acls"]) for row in answer["filter_results"]] == [(refused, [])]
        assert may(face, "bob") == {"produce", "look up"}

    with_face(run)


FILTERS: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 7),
    ({"resource_type_filter": TOPIC}, 5),
    ({"resource_type_filter": GROUP}, 1),
    ({"resource_type_filter": TRANSACTIONAL_ID}, 1),
    ({"resource_type_filter": CLUSTER}, 0),
    ({"pattern_type_filter": LITERAL}, 5),
    ({"pattern_type_filter": MATCH}, 7),
    ({"pattern_type_filter": PREFIXED}, 2),
    ({"pattern_type_filter": 0}, 0),
    ({"principal_filter": "User:bob"}, 5),
    ({"principal_filter": "User:*"}, 1),
    ({"principal_filter": "bob"}, 0),
    ({"host_filter": "*"}, 6),
    ({"host_filter": "10.0.0.1"}, 1),
    ({"host_filter": "::ffff:10.0.0.1"}, 1),
    ({"host_filter": "10.0.0.2"}, 0),
    ({"operation": READ}, 2),
    ({"operation": WRITE}, 3),
    ({"operation": ALL}, 1),
    ({"permission_type": ALLOW}, 6),
    ({"permission_type": DENY}, 1),
    ({"resource_name_filter": "t"}, 3),
    ({"resource_name_filter": "public/default/t"}, 3),
    ({"resource_name_filter": "t", "pattern_type_filter": MATCH}, 5),
    ({"resource_name_filter": "u"}, 1),
    ({"resource_name_filter": "v"}, 0),
    ({"resource_name_filter": "g-1", "pattern_type_filter": MATCH}, 3),
    ({"resource_name_filter": "*"}, 2),
)


@pytest.mark.parametrize(("asked", "count"), FILTERS)
def test_what_is_described_is_what_is_deleted(asked: dict[str, Any], count: int) -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        said = [
            wanted("t", ALL),
            wanted("t", WRITE, "User:*", permission_type=DENY),
            wanted("u", WRITE, "User:ann", host="::ffff:10.0.0.1"),
            wanted("*", READ),
            wanted("g", READ, resource_type=GROUP, resource_pattern_type=PREFIXED),
            wanted("*", WRITE, resource_type=TRANSACTIONAL_ID),
            wanted("t", DESCRIBE, resource_pattern_type=PREFIXED),
        ]
        assert await create(root, *said) == [0] * 7
        found, everything = await described(root, about(**asked)), await described(root, about())
        assert len(everything) == 7 and len(found) == count
        assert [sorted(one) for one in await delete(root, about(**asked))] == [sorted(found)]
        left = list(everything)
        for row in found:
            left.remove(row)
        assert await described(root, about()) == left

    with_face(run)


def test_a_grant_is_shown_as_what_it_is_worth_and_can_be_deleted() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        for role in ("bob", "ann"):
            await grant(face, "*", role, "produce", "consume")
        await grant(face, NAME, "bob", "produce", "consume")
        await create(root, wanted())
        assert len(await rows(root, about())) == 6, "what is said twice is shown once"
        await delete(root, about("*", principal_filter="User:bob", operation=WRITE))
        assert policies(face).permissions == {"bob": ["consume"], "ann": ["produce", "consume"]}
        assert await delete(root, about("t", operation=WRITE)) == [[("t", "User:bob", WRITE)]]
        await delete(root, about("*", principal_filter="User:bob"), about("t"))
        assert policies(face).permissions == {"ann": ["produce", "consume"]}
        assert policies(face).topic_permissions == {}
        assert await delete(root, about("t")) == [[]], "twice"

    with_face(run)


def test_the_audit_log_says_what_was_made_what_was_deleted_and_what_was_refused() -> None:
    async def run(face: Face) -> None:
        root, bob = secured(face)
        await create(root, wanted(permission_type=DENY), wanted("u"))
        assert "User:bob" in str(face.audit.newest(1)[0]["given"])
        await delete(root, about("t"))
        (told,) = face.audit.newest(1)
        assert (told["role"], told["path"], told["status"]) == ("root", "delete_acls", 0)
        (before,) = told["before"]
        assert (before["resource_name"], before["principal"], before["permission_type"]) == ("t", "User:bob", DENY)
        await bob.ask("delete_acls", 2, {"filters": [about("u")]})
        (told,) = face.audit.newest(1)
        assert (told["role"], told["status"]) == ("bob", Code.CLUSTER_AUTHORIZATION_FAILED) and "before" not in told

    with_face(run)


def test_grants_that_kafka_has_no_word_for_are_neither_shown_nor_deleted() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        own = {"bob": ["functions", "consume"], "ann": ["packages"]}

        def granted(found: NamespacePolicies) -> NamespacePolicies:
            return replace(found, permissions=own, topic_permissions={NAME: own})

        await face.admin.update_namespace(NAMESPACE, granted)
        assert await described(root, about()) == [("*", "User:bob", READ), ("t", "User:bob", READ)]
        await delete(root, about())
        left = {"bob": ["functions"], "ann": ["packages"]}
        assert policies(face).permissions == left and policies(face).topic_permissions == {NAME: left}

    with_face(run)


def test_a_namespace_that_is_not_there_has_none() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        await create(root, wanted())
        await face.admin.delete_namespace(NAMESPACE)
        assert await described(root, about()) == []

    with_face(run)


def test_who_may_see_a_group_or_an_id_by_an_acl_finds_its_coordinator() -> None:
    async def test(face: Face) -> None:
        root, bob = secured(face)

        async def found(kind: int, key: str = "mine") -> int:
            answer = await bob.ask("find_coordinator", 4, {"key_type": kind, "coordinator_keys": [key]})
            return int(answer["coordinators"][0]["error_code"])

        refused = (Code.GROUP_AUTHORIZATION_FAILED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        cases = (0, GROUP, (DESCRIBE, READ, DELETE, ALL)), (1, TRANSACTIONAL_ID, (DESCRIBE, WRITE, ALL))
        for kind, resource, operations in cases:
            of = {"resource_type": resource}
            for operation in operations:
                assert await found(kind) == refused[kind]
                assert await create(root, wanted("mine", operation, **of)) == [0]
                await settle(5)
                assert await found(kind) not in refused
                somewhere = kind == 0 and operation in (READ, ALL)
                assert (await found(kind, "another") in refused) is not somewhere, "a right to consume is one anywhere"
                await create(root, wanted("mine", ALL, "User:*", permission_type=DENY, **of))
                await settle(5)
                assert await found(kind) == refused[kind]
                await delete(root, about(resource_type_filter=resource))
                await settle(5)
        await grant(face, "*", "bob", "consume")
        assert await found(0) not in refused and await found(1) not in refused
        for kind, resource, _ in cases:
            await create(root, wanted("mine", DESCRIBE, permission_type=DENY, resource_type=resource))
            await settle(5)
            assert await found(kind) == refused[kind] and await found(kind, "another") not in refused

    with_face(test)


def test_acls_that_cannot_be_read_are_told_and_deleted_by_who_wants_no_acls_at_all() -> None:
    async def test(face: Face) -> None:
        root, bob = secured(face)
        await grant(face, "*", "bob", "produce")
        await face.config.put(keys.acls("public"), b"?")
        await settle(5)
        assert may(face, "bob") == set() and may(face, "root") == {"produce", "consume", "look up"}
        answer = await root.ask("describe_acls", 2, about())
        assert answer["error_code"] and "AclBindingFilter.ANY" in answer["error_message"]
        for client, asked in ((root, about("t")), (bob, about())):
            answer = await client.ask("delete_acls", 2, {"filters": [asked]})
            assert answer["filter_results"][0]["error_code"] != 0 and may(face, "bob") == set()
        assert await delete(root, about()) == [[]]
        await settle(5)
        assert may(face, "bob") == {"produce", "look up"}, "grants have stayed"
        assert await delete(root, about()) == [[("*", "User:bob", WRITE)]]

    with_face(test)
