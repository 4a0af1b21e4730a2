"""Groups are used by the role that made them, by whoever may consume all their topics, and by admins of the tenants
that they belong to; by nobody else, also behind a change of coordinator.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.acl_records import AclRecord
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.topic_names import TopicName
from heliograph.runtime import throttle
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups.committed_offsets import OFFSETS, Committed, Row
from region_node.faces.kafka.groups.coordinated_group import OWNERS, GroupAccess, owner_key
from region_node.faces.kafka.groups.group_coordinator import GROUPS, GroupCoordinator, group_key
from region_node.faces.kafka.groups.group_regions import ROWS_A_TOPIC
from region_node.faces.kafka.groups.group_rights import ANSWERS_MAX
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.authorization_service import Action
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face
from tests.region_node.faces.pulsar.harness import settle

SECURITY = SecuritySettings(authorization=True, anonymous_role="nobody", super_users=("root",))
GROUP, TOPIC = Code.GROUP_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED
PAID, SENT = "victim/ns/paid", "victim/ns/sent"
WAGES, BONUS = "wages", "bonus"
"""Of the listener's own namespace."""
CONNECT: dict[str, Any] = {"kind": "connect", "metadata": b"\0\0\0\4http"}
"""A member that names no topics."""
WORKER = "w"


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


async def opened(security: SecuritySettings | None = SECURITY) -> Face:
    """One in which "ann" may consume both of the victim's topics, "sue" one of them, "pat" produce there, "mallory"
    consume elsewhere, "victor" administer the victim, and "nil" nothing.
    """
    face = Face(security=security)
    await face.start()
    await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us",), admin_roles=("pub-admin",)))
    await face.admin.create_tenant("victim", TenantInfo(allowed_regions=("us",), admin_roles=("victor",)))
    paid, sent = f"persistent://{PAID}", f"persistent://{SENT}"
    policies = NamespacePolicies(
        regions=("us",),
        permissions={"pat": ["produce"]},
        topic_permissions={
            paid: {"ann": ["consume"], "sue": ["consume"], WORKER: ["consume"]},
            sent: {"ann": ["consume"]},
        },
    )
    await face.admin.create_namespace("victim/ns", policies)
    await face.admin.create_tenant("mallory", TenantInfo(allowed_regions=("us",)))
    own = NamespacePolicies(regions=("us",), permissions={"mallory": ["consume", "produce"]})
    await face.admin.create_namespace("mallory/ns", own)
    for topic in (PAID, SENT):
        new = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await client(face, "root").ask("create_topics", 7, {"topics": [new], "timeout": 1000})
    return face


async def at_home() -> Face:
    """The same with topics of the listener's own tenant, and with grants nowhere else: "ann" may consume both, "sue"
    one of them.
    """
    face = await opened()
    wages, bonus = (f"persistent://public/default/{name}" for name in (WAGES, BONUS))
    grants = {wages: {"ann": ["consume"], "sue": ["consume"]}, bonus: {"ann": ["consume"]}}
    await face.admin.update_namespace("public/default", lambda found: replace(found, topic_permissions=grants))
    await face.admin.update_namespace("victim/ns", lambda found: replace(found, topic_permissions={}))
    for topic in (WAGES, BONUS):
        new = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await client(face, "root").ask("create_topics", 7, {"topics": [new], "timeout": 1000})
    return face


def client(face: Face, role: str) -> Client:
    made = Client(face.listener)
    made.protocol.session.login.principal = Principal(role=role)
    return made


def joining(
    group: str, *topics: str, member: str = "", kind: str = "consumer", metadata: bytes | None = None
) -> dict[str, Any]:
    protocols = [{"name": "range", "metadata": subscription(*topics) if metadata is None else metadata}]
    session = {"session_timeout": 30_000, "rebalance_timeout": 30_000}
    return {"group_id": group, "member_id": member, "protocol_type": kind, "protocols": protocols, **session}


async def join(face: Face, role: str, group: str, *topics: str, **more: Any) -> dict[str, Any]:
    """Its first member, with an assignment."""
    who = client(face, role)
    answer = await who.ask("join_group", 3, joining(group, *topics, **more))
    if not answer["error_code"]:
        own = {"member_id": answer["member_id"], "assignment": b"all"}
        asked = {"group_id": group, "generation_id": answer["generation_id"], "member_id": answer["member_id"]}
        assert (await who.ask("sync_group", 3, {**asked, "assignments": [own]}))["error_code"] == 0
    return answer


def offsets(*topics: str) -> list[dict[str, Any]]:
    part = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "", "committed_leader_epoch": -1}
    return [{"name": topic, "partitions": [part]} for topic in topics]


async def commit(face: Face, role: str, group: str, *topics: str, joined: dict[str, Any] | None = None) -> list[int]:
    of = {"generation_id_or_member_epoch": -1, "member_id": ""}
    if joined is not None:
        of = {"generation_id_or_member_epoch": joined["generation_id"], "member_id": joined["member_id"]}
    wanted = {"group_id": group, **of, "group_instance_id": None, "topics": offsets(*topics)}
    return codes(await client(face, role).ask("offset_commit", 7, wanted))


def test_what_a_role_has_committed_leaves_room_for_others() -> None:
    """And what it has committed already, it commits again."""

    async def run() -> None:
        face = await opened()
        face.broker.settings = replace(face.broker.settings, group_offsets_bytes_max=10_000)
        face.broker.coordinator = coordinator = GroupCoordinator(face.broker)

        async def says(role: str, group: str, size: int) -> int:
            topics = offsets(PAID)
            topics[0]["partitions"][0]["committed_metadata"] = "x" * size
            of = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
            answer = await client(face, role).ask("offset_commit", 7, {**of, "topics": topics})
            return codes(answer)[0]

        full = Code.POLICY_VIOLATION
        assert [await says("ann", group, 3_000) for group in ("a", "b", "a")] == [0, full, 0]
        assert await says("sue", "s", 3_000) == 0
        assert [await says("ann", "a", size) for size in (4_000, 10)] == [full, 0], "less is taken, whatever is free"
        assert await says("ann", "b", 2_000) == 0
        assert coordinator.shares.taken[1] == sum(held.offsets.size_bytes for held in coordinator._held.values())
        await face.broker.coordinator.delete("a")
        await face.broker.coordinator.delete("b")
        await face.broker.coordinator.delete("s")
        assert coordinator.shares.taken == (0, 0)
        await face.close()

    asyncio.run(run())


def test_a_role_leaves_places_to_others() -> None:
    async def run() -> None:
        face = await opened()
        face.broker.settings = replace(face.broker.settings, groups_max=6)
        face.broker.coordinator = coordinator = GroupCoordinator(face.broker)
        full = Code.POLICY_VIOLATION
        assert [(await commit(face, "ann", f"a{n}", PAID))[0] for n in range(5)] == [0, 0, 0, full, full]
        assert [(await commit(face, "sue", f"s{n}", PAID))[0] for n in range(2)] == [0, full]
        await coordinator.delete("a1")
        assert [(await commit(face, "sue", f"s{n}", PAID))[0] for n in range(2)] == [0, 0]
        assert coordinator.shares.taken[0] == len(coordinator) == 4
        await face.close()

    asyncio.run(run())


def codes(answer: Any) -> list[int]:
    if isinstance(answer, dict):
        own = [answer["error_code"]] if "error_code" in answer else []
        return own + [code for value in answer.values() for code in codes(value)]
    return [code for each in answer for code in codes(each)] if isinstance(answer, list) else []


def asked(group: str, joined: dict[str, Any]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Whatever somebody may want of a group whose only member has joined."""
    member = {"member_id": joined["member_id"], "group_instance_id": None}
    of = {"group_id": group, "generation_id": joined["generation_id"], **member}
    committed = {"group_id": group, "generation_id_or_member_epoch": joined["generation_id"], **member}
    return {
        "join_group": (3, joining(group, member=joined["member_id"])),
        "sync_group": (3, {**of, "assignments": []}),
        "heartbeat": (3, of),
        "offset_commit": (7, {**committed, "topics": offsets(PAID)}),
        "offset_fetch": (5, {"group_id": group, "topics": None}),
        "offset_delete": (0, {"group_id": group, "topics": [{"name": PAID, "partitions": [{"partition_index": 0}]}]}),
        "describe_groups": (4, {"groups": [group]}),
        "leave_group": (3, {"group_id": group, "members": [member]}),
        "delete_groups": (1, {"groups_names": [group]}),
    }


@pytest.mark.parametrize("role", ["nil", "pat", "mallory", "sue", "pub-admin"])
def test_a_role_that_may_not_consume_all_its_topics_can_do_nothing_with_a_group(role: str) -> None:
    async def run() -> None:
        face = await opened()
        joined = await join(face, "ann", "orders", PAID, SENT)
        assert await commit(face, "ann", "orders", PAID, joined=joined) == [0]
        for name, (version, fields) in asked("orders", joined).items():
            answer = await client(face, role).ask(name, version, fields)
            assert {code for code in codes(answer) if code} == {GROUP}, name
            assert not any(answer.get(field) for field in ("members", "topics")) or name == "offset_commit", name
        told = await client(face, role).ask("describe_groups", 4, {"groups": ["orders"]})
        assert told["groups"][0]["members"] == [] and told["groups"][0]["group_state"] == "Dead"
        listed = await client(face, role).ask("list_groups", 2, {})
        assert listed == {**listed, "error_code": 0, "groups": []}
        held = await face.broker.coordinator.held("orders")
        assert list(held.group.members) == [joined["member_id"]] and list(held.offsets.rows) == [(PAID, 0)]
        await face.close()

    asyncio.run(run())


@pytest.mark.parametrize("role", ["ann", "victor", "root"])
def test_its_owner_and_admins_use_a_group(role: str) -> None:
    async def run() -> None:
        face = await opened()
        joined = await join(face, "ann", "orders", PAID, SENT)
        assert [each["group_id"] for each in (await client(face, role).ask("list_groups", 2, {}))["groups"]] == [
            "orders"
        ]
        calls = asked("orders", joined)
        for name in ("heartbeat", "describe_groups", "leave_group"):
            version, fields = calls[name]
            assert set(codes(await client(face, role).ask(name, version, fields))) == {0}, name
        await face.close()

    asyncio.run(run())


def test_a_member_names_only_topics_that_it_may_consume() -> None:
    async def run() -> None:
        face = await opened()
        assert (await join(face, "sue", "own", PAID, SENT))["error_code"] == GROUP
        assert (await join(face, "nil", "own"))["error_code"] == GROUP
        assert (await join(face, "nil", "own", **CONNECT))["error_code"] == GROUP
        assert await rows_under(face.meta, GROUPS) == await rows_under(face.meta, OWNERS) == []
        assert (await join(face, "sue", "own", PAID))["error_code"] == 0
        await face.close()

    asyncio.run(run())


def test_offsets_are_committed_and_seen_by_who_consumes_their_topics_and_deleted_by_admins() -> None:
    async def run() -> None:
        face = await opened()
        assert await commit(face, "sue", "alone", PAID, SENT) == [0, TOPIC]
        assert await commit(face, "mallory", "alone", PAID) == [GROUP]
        assert await commit(face, "ann", "alone", SENT) == [0]
        own = await join(face, "ann", "hers", PAID, SENT)
        assert await commit(face, "ann", "hers", PAID, SENT, joined=own) == [0, 0]
        policies = face.view.namespace("victim/ns")
        assert policies is not None
        await face.admin.update_namespace(
            "victim/ns", lambda found: replace(found, topic_permissions={f"persistent://{PAID}": {"ann": ["consume"]}})
        )
        ann = client(face, "ann")
        everything = await ann.ask("offset_fetch", 5, {"group_id": "hers", "topics": None})
        assert [topic["name"] for topic in everything["topics"]] == [PAID], "the owner goes on with what it may consume"
        wanted = [{"name": topic, "partition_indexes": [0]} for topic in (PAID, SENT)]
        rows = (await ann.ask("offset_fetch", 5, {"group_id": "hers", "topics": wanted}))["topics"]
        told = [(part["committed_offset"], part["error_code"]) for row in rows for part in row["partitions"]]
        assert told == [(7, 0), (-1, TOPIC)]
        gone = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in (PAID, SENT)]
        left = {"group_id": "hers", "members": [{"member_id": own["member_id"], "group_instance_id": None}]}
        await ann.ask("leave_group", 3, left)
        for role in ("ann", "pub-admin"):
            refused = await client(face, role).ask("offset_delete", 0, {"group_id": "hers", "topics": gone})
            assert codes(refused) == [GROUP], role
        assert len((await face.broker.coordinator.held("hers")).offsets.rows) == 2, "who uses it deletes nothing of it"
        victor = client(face, "victor")
        assert codes(await victor.ask("offset_delete", 0, {"group_id": "hers", "topics": gone})) == [0, 0, 0]
        assert not (await face.broker.coordinator.held("hers")).offsets.rows
        await face.close()

    asyncio.run(run())


def test_offsets_that_came_past_the_coordinator_say_of_which_topics_a_group_is() -> None:
    async def run() -> None:
        face = await opened()
        everything, kept = {"group_id": "orders", "topics": None}, [(PAID, 0), (SENT, 0)]
        left = {"member_id": (await join(face, "ann", "orders", PAID))["member_id"], "group_instance_id": None}
        await client(face, "ann").ask("leave_group", 3, {"group_id": "orders", "members": [left]})
        held = await face.broker.coordinator.held("orders")
        await Committed(face.meta, "orders").put({key: Row(7, -1, "", 1) for key in kept})
        assert (await client(face, "sue").ask("list_groups", 2, {}))["groups"] == []
        for role in ("sue", "nil"):
            held.offsets.forget(kept)  # as before it was asked for
            assert await commit(face, role, "orders", PAID) == [GROUP], role
            held.offsets.forget(kept)
            assert codes(await client(face, role).ask("offset_fetch", 5, everything)) == [GROUP], role
        held.offsets.forget(kept[1:])
        told = await client(face, "sue").ask("offset_fetch", 5, everything)
        assert codes(told) == [GROUP], "a topic that was not known of"
        told = await client(face, "ann").ask("offset_fetch", 5, everything)
        assert [topic["name"] for topic in told["topics"]] == [PAID, SENT]
        held.offsets.forget(kept)
        assert codes(await client(face, "victor").ask("delete_groups", 1, {"groups_names": ["orders"]})) == [0]
        assert await rows_under(face.meta, OFFSETS) == []
        await face.close()

    asyncio.run(run())


def test_a_grant_that_goes_puts_its_role_out_of_the_group() -> None:
    async def run() -> None:
        face = await opened()
        await join(face, "ann", "orders", PAID)
        version, fields = asked("orders", {"member_id": "?", "generation_id": 1})["heartbeat"]
        assert codes(await client(face, "sue").ask("heartbeat", version, fields)) == [Code.UNKNOWN_MEMBER_ID]
        await face.admin.update_namespace("victim/ns", lambda found: replace(found, topic_permissions={}))
        assert codes(await client(face, "sue").ask("heartbeat", version, fields)) == [GROUP]
        assert codes(await client(face, "ann").ask("heartbeat", version, fields)) == [GROUP], "it has no grant at all"
        await face.close()

    asyncio.run(run())


def test_the_owner_of_a_group_without_topics_is_known_to_the_next_coordinator() -> None:
    async def run() -> None:
        face = await opened()
        joined = await join(face, WORKER, "connectors", **CONNECT)
        assert joined["error_code"] == 0
        face.broker.coordinator.close()
        face.broker.coordinator = GroupCoordinator(face.broker)
        for role, told in (("ann", GROUP), ("sue", GROUP), ("victor", 0), (WORKER, 0), ("pub-admin", GROUP)):
            version, fields = asked("connectors", joined)["heartbeat"]
            assert codes(await client(face, role).ask("heartbeat", version, fields)) == [told], role
        version, fields = asked("connectors", joined)["leave_group"]
        assert set(codes(await client(face, WORKER).ask("leave_group", version, fields))) == {0}
        again = await join(face, "ann", "connectors", **CONNECT)
        assert again["error_code"] == 0, "a group without members and offsets is nobody's"
        version, fields = asked("connectors", again)["heartbeat"]
        assert codes(await client(face, WORKER).ask("heartbeat", version, fields)) == [GROUP]
        await face.close()

    asyncio.run(run())


def test_a_group_of_before_owners_were_written_down_is_its_next_members() -> None:
    async def run() -> None:
        face = await opened()
        joined = await join(face, WORKER, "connectors", **CONNECT)
        await face.meta.delete(f"{OWNERS}connectors")
        face.broker.coordinator.close()
        face.broker.coordinator = GroupCoordinator(face.broker)
        version, fields = asked("connectors", joined)["heartbeat"]
        for role, told in ((WORKER, 0), ("ann", 0), ("nil", GROUP)):
            assert codes(await client(face, role).ask("heartbeat", version, fields)) == [told], role
        await join(face, WORKER, "connectors", member=joined["member_id"], **CONNECT)
        assert codes(await client(face, "ann").ask("heartbeat", version, fields)) == [GROUP]
        await face.close()

    asyncio.run(run())


def test_a_group_is_deleted_by_who_administers_its_topics_and_its_owner_goes_with_it() -> None:
    async def run() -> None:
        face = await opened()
        for role, told in (("ann", GROUP), ("mallory", GROUP), ("victor", 0)):
            joined = await join(face, "ann", "orders", PAID)
            assert await commit(face, "ann", "orders", PAID, joined=joined) == [0]
            version, fields = asked("orders", joined)["leave_group"]
            await client(face, "ann").ask("leave_group", version, fields)
            assert codes(await client(face, role).ask("delete_groups", 1, {"groups_names": ["orders"]})) == [told]
        for prefix in (GROUPS, OWNERS, OFFSETS):
            assert await rows_under(face.meta, prefix) == []
        await face.close()

    asyncio.run(run())


def test_where_nothing_is_authorized_everybody_uses_every_group_and_no_owner_is_kept() -> None:
    async def run() -> None:
        face = await opened(security=None)
        joined = await join(face, "ann", "orders", PAID, SENT)
        for name, (version, fields) in asked("orders", joined).items():
            told = set(codes(await client(face, "nil").ask(name, version, fields)))
            assert not told & {GROUP, TOPIC}, name
        assert await rows_under(face.meta, OWNERS) == []
        await face.close()

    asyncio.run(run())


async def told(face: Face, *said: tuple[str, str, bool]) -> None:
    """ACLs of groups that begin with g, and no others: (role, operation, whether it allows)."""
    records = tuple(AclRecord("group", "prefixed", "g", role, "*", operation, allow) for role, operation, allow in said)
    await face.admin.acls.change("public", lambda _: records)
    await settle(5)


def test_a_list_loads_no_group_whose_name_alone_keeps_it_from_the_role() -> None:
    async def run() -> None:
        face = await at_home()
        for group in ("g1", "g2", "orders"):
            await Committed(face.meta, group).put({(WAGES, 0): Row(7, -1, "", 1)})  # nobody has asked for them yet
        loaded, get = list[str](), face.meta.get

        async def noted(key: str) -> Any:
            loaded.append(key)
            return await get(key)

        face.meta.get = noted  # type: ignore[method-assign]

        async def listed(role: str) -> list[str]:
            return [row["group_id"] for row in (await client(face, role).ask("list_groups", 3, {}))["groups"]]

        assert await listed("nil") == [] and not [key for key in loaded if key.startswith(GROUPS)]
        await told(face, ("sue", "describe", False), ("nil", "describe", True))
        assert await listed("sue") == ["orders"]
        assert [key for key in loaded if key.startswith(GROUPS)] == [group_key("orders")]
        assert await listed("nil") == ["g1", "g2"] and await listed("pub-admin") == ["g1", "g2", "orders"]
        await face.close()

    asyncio.run(run())


def test_a_list_loads_no_group_with_offsets_of_a_topic_that_the_role_may_not_consume() -> None:
    async def run() -> None:
        face = await opened()
        for group in ("paid-1", "paid-2"):
            await Committed(face.meta, group).put({(PAID, 0): Row(7, -1, "", 1)})
        for number in range(50):
            await Committed(face.meta, f"both-{number}").put(
                {(PAID, 0): Row(7, -1, "", 1), (SENT, 0): Row(7, -1, "", 1)}
            )
        await Committed(face.meta, "hers").put({(SENT, 0): Row(7, -1, "", 1)})
        access = GroupAccess()
        access.owner = "sue"
        await face.meta.put(owner_key("hers"), access.dump())
        loaded, get = list[str](), face.meta.get

        async def noted(key: str) -> Any:
            loaded.append(key)
            return await get(key)

        face.meta.get = noted  # type: ignore[method-assign]

        async def listed(role: str) -> list[str]:
            return [row["group_id"] for row in (await client(face, role).ask("list_groups", 3, {}))["groups"]]

        assert await listed("mallory") == [] and not [key for key in loaded if key.startswith(GROUPS)]
        assert await listed("sue") == ["hers", "paid-1", "paid-2"]
        asked_for = [key for key in loaded if key.startswith(GROUPS)]
        assert asked_for == [group_key(group) for group in ("hers", "paid-1", "paid-2")]
        assert len(await listed("ann")) == 53, "who may consume all of them has them loaded"
        await face.close()

    asyncio.run(run())


def test_an_acl_allows_a_group_and_another_refuses_it() -> None:
    async def run() -> None:
        face = await at_home()
        joined = await join(face, "ann", "g1", WAGES, BONUS)
        beat = {"group_id": "g1", "generation_id": joined["generation_id"], "member_id": joined["member_id"]}

        async def beats(role: str) -> int:
            return int((await client(face, role).ask("heartbeat", 3, beat))["error_code"])

        async def listed(role: str) -> list[str]:
            answer = await client(face, role).ask("list_groups", 3, {})
            return [row["group_id"] for row in answer["groups"]]

        assert await beats("sue") == GROUP and await listed("sue") == []
        await told(face, ("sue", "describe", True))
        assert await beats("sue") == GROUP and await listed("sue") == ["g1"]
        await told(face, ("sue", "read", True))
        assert await beats("sue") == 0 and await listed("sue") == ["g1"]
        assert (await join(face, "sue", "g1", BONUS))["error_code"] == GROUP, "a topic that it may not consume"
        await told(face, ("*", "read", False), ("sue", "all", True))
        assert [await beats(role) for role in ("sue", "ann", "pub-admin", "root")] == [GROUP, GROUP, 0, 0]
        assert await listed("sue") == ["g1"]
        assert (await join(face, "ann", "g2", WAGES))["error_code"] == GROUP, "one that nobody has"
        await told(face)
        assert [await beats(role) for role in ("sue", "ann")] == [GROUP, 0]
        await face.close()

    asyncio.run(run())


def test_an_acl_lets_a_role_delete_a_group() -> None:
    async def run() -> None:
        face = await at_home()
        commit = {"group_id": "g1", "generation_id": -1, "member_id": "", "topics": offsets(WAGES)}
        answer = await client(face, "ann").ask("offset_commit", 7, commit)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0

        async def deleted(role: str) -> int:
            answer = await client(face, role).ask("delete_groups", 1, {"groups_names": ["g1"]})
            return int(answer["results"][0]["error_code"])

        assert await deleted("ann") == GROUP
        await told(face, ("*", "delete", False), ("ann", "all", True))
        assert await deleted("ann") == await deleted("victor") == await deleted("sue") == GROUP
        await told(face, ("ann", "delete", True))
        assert await deleted("ann") == 0
        await face.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("role", "topics", "own", "other"),
    [
        ("ann", (PAID, SENT), "victor", "pub-admin"),
        (WORKER, (), "victor", "pub-admin"),
        ("cat", (WAGES,), "pub-admin", "victor"),
        ("cat", (), "pub-admin", "victor"),
        ("cat", (PAID, WAGES), "root", "victor"),
        ("cat", (PAID, WAGES), "root", "pub-admin"),
    ],
)
def test_admins_rule_over_groups_of_their_own_tenants_alone(
    role: str, topics: tuple[str, ...], own: str, other: str
) -> None:
    """Two tenants at one listener, and neither is more there than the other."""

    async def run() -> None:
        face = await opened()
        in_namespace = {} if PAID in topics and role == "cat" else {"cat": ["consume"]}
        named = {f"persistent://public/default/{WAGES}": {"cat": ["consume"]}}
        await face.admin.update_namespace(
            "public/default", lambda found: replace(found, permissions=in_namespace, topic_permissions=named)
        )
        if PAID in topics and role == "cat":
            await face.admin.update_namespace(
                "victim/ns", lambda found: replace(found, permissions={"cat": ["consume"]})
            )
        new = {"name": WAGES, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await client(face, "root").ask("create_topics", 7, {"topics": [new], "timeout": 1000})
        joined = await join(face, role, "g1", *topics, **({} if topics else CONNECT))
        assert joined["error_code"] == 0

        async def listed(who: str) -> list[str]:
            answer = await client(face, who).ask("list_groups", 3, {})
            return [row["group_id"] for row in answer["groups"]]

        for who, told in ((other, GROUP), (own, 0)):
            for name in ("heartbeat", "describe_groups"):
                assert set(codes(await client(face, who).ask(name, *asked("g1", joined)[name]))) == {told}, (who, name)
            assert await listed(who) == (["g1"] if who == own else [])
        left = asked("g1", joined)["leave_group"]
        assert codes(await client(face, other).ask("leave_group", *left)) == [GROUP]
        if topics:
            assert set(await commit(face, role, "g1", *topics, joined=joined)) == {0}
            assert set(codes(await client(face, own).ask("leave_group", *left))) == {0}
            for who, told in ((other, GROUP), (own, 0)):
                assert codes(await client(face, who).ask("delete_groups", 1, {"groups_names": ["g1"]})) == [told]
        await face.close()

    asyncio.run(run())


def test_acls_of_the_listeners_tenant_say_nothing_of_another_tenants_group() -> None:
    async def run() -> None:
        face = await opened()
        joined = await join(face, "ann", "g1", PAID, SENT)
        beat = asked("g1", joined)["heartbeat"]
        await told(face, ("*", "all", False), ("mallory", "all", True))
        for role, code in (("ann", 0), ("victor", 0), ("mallory", GROUP), ("sue", GROUP), ("pub-admin", GROUP)):
            assert codes(await client(face, role).ask("heartbeat", *beat)) == [code], role
        found = {"coordinator_keys": ["g1"], "key_type": 0}
        assert set(codes(await client(face, "ann").ask("find_coordinator", 4, found))) == {0}
        await told(face, ("*", "all", True))
        for role in ("mallory", "sue"):
            assert codes(await client(face, role).ask("heartbeat", *beat)) == [GROUP], role
            assert codes(await client(face, role).ask("delete_groups", 1, {"groups_names": ["g1"]})) == [GROUP], role
            assert (await client(face, role).ask("list_groups", 3, {}))["groups"] == [], role
        await told(face, ("*", "read", False))
        assert (await join(face, "ann", "g2", PAID))["error_code"] == 0, "nor of one that it makes"
        await face.close()

    asyncio.run(run())


def test_an_acl_refuses_a_group_that_has_also_topics_of_its_tenant_and_allows_none() -> None:
    async def run() -> None:
        face = await opened()
        named = {f"persistent://public/default/{WAGES}": {"ann": ["consume"]}}
        await face.admin.update_namespace("public/default", lambda found: replace(found, topic_permissions=named))
        await told(face, ("ann", "read", False))
        assert (await join(face, "ann", "g1", PAID, WAGES))["error_code"] == GROUP
        await told(face, ("sue", "read", True))
        joined = await join(face, "ann", "g1", PAID, WAGES)
        beat = asked("g1", joined)["heartbeat"]
        assert joined["error_code"] == 0 and codes(await client(face, "sue").ask("heartbeat", *beat)) == [GROUP]
        await told(face, ("ann", "read", False))
        assert codes(await client(face, "ann").ask("heartbeat", *beat)) == [GROUP]
        await face.close()

    asyncio.run(run())


def test_a_grant_gives_no_say_over_what_its_role_has() -> None:
    """Any admin can give one to a role of another tenant."""

    async def run() -> None:
        face = await opened()
        joined = await join(face, WORKER, "g1", **CONNECT)
        beat = asked("g1", joined)["heartbeat"]
        await face.admin.update_namespace(
            "public/default", lambda found: replace(found, permissions={WORKER: ["consume"], "cat": ["consume"]})
        )
        await told(face, ("*", "all", False))
        for role, code in ((WORKER, 0), ("pub-admin", GROUP), ("victor", GROUP), ("cat", GROUP), ("root", 0)):
            assert codes(await client(face, role).ask("heartbeat", *beat)) == [code], role
        await face.close()

    asyncio.run(run())


def test_what_another_tenant_opens_to_every_role_makes_it_no_owner_of_an_empty_group() -> None:
    async def run() -> None:
        face = await opened()
        every = AclRecord("topic", "all", "victim/ns", "*", "*", "read", True)
        await face.admin.acls.change("victim", lambda _: (every,))
        await settle(5)
        assert (await join(face, "nil", "g1"))["error_code"] == GROUP
        joined = await join(face, "nil", "g1", PAID)
        assert joined["error_code"] == 0, "one of topics that it may consume"
        assert await commit(face, "nil", "g1", PAID, joined=joined) == [0], "and goes on with"
        await told_by("public", face, AclRecord("topic", "all", "public/default", "*", "*", "read", True))
        assert (await join(face, "nil", "g2"))["error_code"] == 0, "the listener's own tenant says so"
        await face.close()

    asyncio.run(run())


async def told_by(tenant: str, face: Face, *records: AclRecord) -> None:
    await face.admin.acls.change(tenant, lambda _: records)
    await settle(5)


def test_an_answer_is_found_once_for_all_hosts_where_no_acl_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        face = await opened()
        await join(face, "ann", "g1", PAID)
        held, rights, found = await face.broker.coordinator.held("g1"), face.broker.group_rights, list[str]()
        answer = rights._answer

        async def counted(principal: Principal, *rest: Any) -> bool:
            found.append(principal.host)
            return await answer(principal, *rest)

        monkeypatch.setattr(rights, "_answer", counted)
        hosts = [f"10.0.0.{n}" for n in range(5)]
        who = [Principal(role=WORKER, host=host) for host in hosts]
        held.access.forget()
        assert all([await rights.may(each, held) for each in who]) and len(found) == 1
        await told_by("victim", face, AclRecord("topic", "all", "victim/ns", WORKER, hosts[1], "read", False))
        assert [await rights.may(each, held) for each in who] == [True, False, True, True, True]
        found.clear()
        for n in range(5 * ANSWERS_MAX):
            assert await rights.may(who[n % 2], held) is (n % 2 == 0)
            await rights.may(Principal(role=WORKER, host=f"10.1.{n >> 8}.{n & 255}"), held)
            assert len(held.access.allowed) + len(held.access.allowed_before) <= ANSWERS_MAX
        assert not {*found} & {*hosts[:2]}, "what is asked again and again is not found again"
        await face.close()

    asyncio.run(run())


class Turns:
    """Counts what happens in each turn of the loop."""

    def __init__(self) -> None:
        self.now, self.seen = 0, dict[str, Counter[int]]()
        self._task = asyncio.get_running_loop().create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    def noted(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        seen = self.seen[name] = Counter[int]()

        def counted(*given: Any) -> Any:
            seen[self.now] += len(given[0]) if isinstance(given[0], list) else 1
            return work(*given)

        return counted

    def end(self) -> None:
        self._task.cancel()


def test_many_topics_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(f"{PAID}-{number}" for number in range(600))

    def nobody_waits(topics: Iterable[TopicName], group: str) -> str:
        return ""

    async def run(face: Face) -> None:
        rights, leadership, turns = face.broker.group_rights, face.broker.group_leadership, Turns()
        monkeypatch.setattr(rights, "_name", turns.noted("parsed", rights._name))
        monkeypatch.setattr(leadership, "_name", turns.noted("named", leadership._name))
        monkeypatch.setattr(leadership, "_waits", turns.noted("waits", nobody_waits))
        asks = turns.noted("asks", lambda topic: None)

        def may(principal: Principal, action: Action, topic: TopicName) -> bool:
            asks(topic)
            return True

        monkeypatch.setattr(rights._rights, "may", may)
        joined = await join(face, "ann", "g", *many)
        assert joined["error_code"] == 0
        fields = {"group_id": "g", "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
        roles = ("sue", "sue", "sue", WORKER)  # each role is looked up once, whoever asks meanwhile
        asked = [client(face, role).ask("heartbeat", 2, fields) for role in roles]
        assert {answer["error_code"] for answer in await asyncio.gather(*asked)} == {0}
        face.broker.coordinator.tick()
        await settle(100)
        turns.end()
        assert {name: sum(seen.values()) for name, seen in turns.seen.items()} == {
            "parsed": 1200,  # what it names, then what the group is about
            "named": 1200,  # likewise
            "waits": 1200,
            "asks": 600 * 3,  # at the join, then for each of the other roles
        }
        most = throttle.ROWS // ROWS_A_TOPIC
        assert max(count for seen in turns.seen.values() for count in seen.values()) <= most

    async def whole() -> None:
        face = await opened()
        try:
            await run(face)
        finally:
            await face.close()

    asyncio.run(whole())
