"""What Kafka's tools say about rights is in force for both protocols, comes back as it was said, and goes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.security.acls import (
    ALL,
    ALLOW,
    ANY,
    DESCRIBE,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    TOPIC,
    WRITE,
)
from region_node.security.authentication.principal import ROLE_CHARS_MAX, Principal
from region_node.security.authorization.authorization_service import Action, Authorization
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face, with_face

NAMESPACE, NAME = "public/default", "persistent://public/default/t"
GROUP, DENY = 3, 2


def secured(face: Face) -> tuple[Client, Client]:
    """root, who administers, and bob, who does not."""
    settings = SecuritySettings(anonymous_role="nobody", authorization=True, super_users=("root",))
    face.broker.security = replace(face.broker.security, rights=Authorization(settings, face.view))
    root, bob = Client(face.listener), Client(face.listener)
    root.protocol.login.principal, bob.protocol.login.principal = Principal(role="root"), Principal(role="bob")
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
    answer = await client.ask("describe_acls", 2, asked)
    assert answer["error_code"] == 0, answer
    for found in answer["resources"]:
        assert (found["resource_type"], found["pattern_type"]) == (TOPIC, LITERAL)
        assert all((acl["host"], acl["permission_type"]) == ("*", ALLOW) for acl in found["acls"])
    return [
        (found["resource_name"], acl["principal"], acl["operation"])
        for found in answer["resources"]
        for acl in found["acls"]
    ]


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


def test_each_operation_grants_what_it_says_and_nothing_else() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        rights, topic = face.broker.security.rights, TopicName.parse(NAME)
        roles = {READ: "reader", WRITE: "writer", ALL: "both", DESCRIBE: "looker"}
        assert await create(root, *(wanted(operation=o, principal=f"User:{r}") for o, r in roles.items())) == [0] * 4
        for role, may in (
            ("reader", (0, 1)),
            ("writer", (1, 0)),
            ("both", (1, 1)),
            ("looker", (0, 0)),
            ("bob", (0, 0)),
        ):
            who = Principal(role=role)
            assert (rights.may(who, Action.PRODUCE, topic), rights.may(who, Action.CONSUME, topic)) == may
        assert policies(face).permissions == {} and list(policies(face).topic_permissions) == [NAME]
        assert await described(root, about()) == [
            ("t", "User:both", WRITE),
            ("t", "User:both", READ),
            ("t", "User:reader", READ),
            ("t", "User:writer", WRITE),
        ]

    with_face(run)


def test_a_star_grants_on_every_topic_of_the_namespace() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        assert await create(root, wanted("*"), wanted("*", READ), wanted("*"), wanted("t", READ)) == [0] * 4
        found = policies(face)
        assert found.permissions == {"bob": ["produce", "consume"]} and found.topic_permissions == {
            NAME: {"bob": ["consume"]}
        }
        every, one = [("*", "User:bob", WRITE), ("*", "User:bob", READ)], [("t", "User:bob", READ)]
        assert await described(root, about()) == every + one
        assert await described(root, about("*")) == every and await described(root, about("t")) == one
        assert await described(root, about("t", pattern_type_filter=LITERAL)) == one
        assert await described(root, about("t", pattern_type_filter=MATCH)) == every + one, "whatever touches it"
        assert await described(root, about("other", pattern_type_filter=MATCH)) == every

    with_face(run)


@pytest.mark.parametrize(
    "row",
    (
        {"resource_type": GROUP},
        {"resource_type": ANY},
        {"resource_pattern_type": PREFIXED},
        {"resource_pattern_type": MATCH},
        {"permission_type": DENY},
        {"permission_type": ANY},
        {"host": "10.0.0.1"},
        {"operation": ANY},
        {"operation": 5},
        {"operation": 9},
        {"principal": "bob"},
        {"principal": "Group:bob"},
        {"principal": "User:"},
        {"principal": "User:*"},
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
        assert sorted(policies(face).topic_permissions[NAME]) == sorted(names)

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
        assert policies(face).topic_permissions == {NAME: {"bob": ["produce"]}}

    with_face(run)


FILTERS: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 3),
    ({"resource_type_filter": TOPIC}, 3),
    ({"resource_type_filter": GROUP}, 0),
    ({"pattern_type_filter": LITERAL}, 3),
    ({"pattern_type_filter": MATCH}, 3),
    ({"pattern_type_filter": PREFIXED}, 0),
    ({"principal_filter": "User:bob"}, 2),
    ({"principal_filter": "bob"}, 0),
    ({"host_filter": "*"}, 3),
    ({"host_filter": "10.0.0.1"}, 0),
    ({"operation": READ}, 1),
    ({"operation": WRITE}, 2),
    ({"operation": ALL}, 0),
    ({"permission_type": ALLOW}, 3),
    ({"permission_type": DENY}, 0),
    ({"resource_name_filter": "t"}, 2),
    ({"resource_name_filter": "u"}, 1),
    ({"resource_name_filter": "v"}, 0),
)


@pytest.mark.parametrize(("asked", "count"), FILTERS)
def test_what_is_described_is_what_is_deleted(asked: dict[str, Any], count: int) -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        await create(root, wanted("t", ALL), wanted("u", WRITE, "User:ann"))
        found, everything = await described(root, about(**asked)), await described(root, about())
        assert len(everything) == 3 and len(found) == count
        assert await delete(root, about(**asked)) == [found]
        assert await described(root, about()) == [row for row in everything if row not in found]

    with_face(run)


def test_what_is_deleted_goes_alone_and_leaves_nothing_empty() -> None:
    async def run(face: Face) -> None:
        root, _ = secured(face)
        await create(root, wanted("*", ALL), wanted("*", ALL, "User:ann"), wanted("t", ALL), wanted("u", READ))
        await delete(root, about("*", principal_filter="User:bob", operation=WRITE))
        assert policies(face).permissions == {"bob": ["consume"], "ann": ["produce", "consume"]}
        await delete(root, about("*", principal_filter="User:bob"), about("t"))
        assert policies(face).permissions == {"ann": ["produce", "consume"]}
        assert policies(face).topic_permissions == {"persistent://public/default/u": {"bob": ["consume"]}}
        assert await delete(root, about("t")) == [[]], "twice"

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
