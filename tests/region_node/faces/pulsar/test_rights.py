"""Who may what, once it is known: produce, consume, ask; what only links may send; rights that go. Raw frames over a
broker's face, storage is fake.
"""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.configuration.acl_records import AclRecord
from heliograph.model.configuration.configuration_records import TenantInfo
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.commands.command_rights import CommandRight as R
from region_node.faces.pulsar.commands.command_table import SERVED
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, K, settle
from tests.region_node.faces.pulsar.secured import View, asking, client, codes, run

ALL = set(asking())
PRODUCES_NOT = {"produce", "new schema", "join"}
CONSUMES_NOT = PRODUCES_NOT | {"consume", "join with acks"}


@pytest.mark.parametrize(
    ("role", "policies", "allowed"),
    [
        ("root", {}, ALL),
        ("boss", {}, ALL),
        ("stranger", {}, set()),
        ("nobody", {}, set()),
        ("a", {"permissions": {"a": ["produce"]}}, ALL - {"consume", "join with acks"}),
        ("a", {"permissions": {"a": ["consume"]}}, ALL - PRODUCES_NOT),
        ("a", {"permissions": {"a": ["functions", "sources", "sinks", "packages"]}}, set()),
        ("a", {"topic_permissions": {TOPIC: {"a": ["produce", "consume"]}}}, ALL - {"list", "watch"}),
        ("a", {"topic_permissions": {TOPIC + "2": {"a": ["produce", "consume"]}}}, set()),
        ("a", {"permissions": {"a": ["consume"]}, "subscription_permissions": {"s": ["b"]}}, ALL - CONSUMES_NOT),
        ("boss", {"subscription_permissions": {"s": ["b"]}}, ALL),
        (
            "a",
            {"permissions": {"a": ["consume"]}, "subscription_permissions": {"t": ["b"], "s": ["a"]}},
            ALL - PRODUCES_NOT,
        ),
        ("a", {"permissions": {"a": ["consume"]}, "policies": {"subscriptionAuthMode": "Prefix"}}, ALL - CONSUMES_NOT),
        ("s", {"permissions": {"s": ["consume"]}, "policies": {"subscriptionAuthMode": "Prefix"}}, ALL - PRODUCES_NOT),
    ],
)
def test_who_may_what(secret: str, role: str, policies: dict[str, Any], allowed: set[str]) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(**policies)
        made = await client(broker, role)
        for name, command in asking().items():
            came = codes(await made.do(command))
            assert (pb.AuthorizationError not in came) is (name in allowed), (name, came)

    run(secret, test)


def test_only_brokers_and_super_users_end_transactions_in_a_topic(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce", "consume"]})
        for role, allowed in (("root", True), ("a", False), ("stranger", False)):
            made = await client(broker, role)
            came = await made.do(
                frame(K.END_TXN_ON_PARTITION, topic=TOPIC, request_id=1, txnid_least_bits=1, txnid_most_bits=0)
            )
            assert (came[-1][0].endTxnOnPartitionResponse.error != pb.AuthorizationError) is allowed

    run(secret, test)


def test_a_role_without_any_grant_begins_no_transaction(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce"]}, topic_permissions={TOPIC: {"b": ["consume"]}})
        for role, allowed in (("root", True), ("boss", True), ("a", True), ("b", True), ("nil", False)):
            made = await client(broker, role)
            came = await made.do(frame(K.NEW_TXN, request_id=1, tc_id=0, txn_ttl_millis=1000))
            assert (came[-1][0].newTxnResponse.error != pb.AuthorizationError) is allowed, role

    run(secret, test)


def test_what_is_asked_here_is_what_names_a_topic_or_a_namespace() -> None:
    named = {R.LOOK_UP, R.PRODUCE, R.CONSUME, R.LIST, R.OWN_TXN_PRODUCE, R.OWN_TXN_CONSUME}
    wanted = {row.kind for row in SERVED.values() if row.right in named}
    assert {frame_kind(command) for command in asking().values()} == wanted


def frame_kind(data: bytes) -> int:
    return pb.BaseCommand.FromString(data[8:]).type


def test_a_grant_on_a_partitioned_topic_holds_for_its_partitions(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(topic_permissions={TOPIC: {"a": ["produce"]}})
        made = await client(broker, "a")
        await made.producer(topic=TOPIC + "-partition-3")
        came = await made.do(frame(K.PRODUCER, topic=TOPIC + "-other", producer_id=2, request_id=9))
        assert codes(came) == [pb.AuthorizationError]

    run(secret, test)


def test_a_producer_makes_no_subscription_that_it_could_not_consume(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce"]})
        made = await client(broker, "a")
        came = await made.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, initial_subscription_name="s"))
        assert codes(came) == [pb.AuthorizationError] and not broker.factory.ledgers

    run(secret, test)


def test_a_refusal_makes_no_topic(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "nobody")
        for command in asking().values():
            await made.do(command)
        assert not broker.factory.ledgers

    run(secret, test)


# -- what only links may send


@pytest.mark.parametrize("alone", [True, False])
def test_not_even_a_super_user_may_say_where_a_message_came_from(secret: str, alone: bool) -> None:
    """On a link the same bytes are taken: there the certificate has proved the replicator."""

    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "root")
        await made.producer(1)
        await made.do(send(1, 0, entry(b"first")))
        forged = entry(b"x", sequence=1, replicated_from="eu")
        came = await made.do(send(1, 1, forged), *([] if alone else [send(1, 2, entry(b"y", sequence=2))]))
        assert [c.send_error.error for c, _ in came if c.type == K.SEND_ERROR] == [pb.NotAllowedError]
        assert len(broker.ledger().positions()) == 1

    run(secret, test)


def test_a_private_command_from_a_client_ends_its_connection(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "root")
        await made.do(b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\xe9\x07\x00")
        assert made.transport.closing

    run(secret, test)


# -- grants that go


def test_a_revoked_grant_closes_what_is_open_and_nothing_else(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        both = {"a": ["produce", "consume"], "b": ["produce", "consume"]}
        view.grant(permissions=both)
        one, other = await client(broker, "a"), await client(broker, "b")
        for made in (one, other):
            await made.producer(1)
            await made.subscribe(1, kind=1)
        view.grant(permissions={**both, "a": ["produce"]})
        assert [c.type for c, _ in await one.news()] == [K.CLOSE_CONSUMER] and not await other.news()
        view.grant(permissions={"b": both["b"]})
        assert [c.type for c, _ in await one.news()] == [K.CLOSE_PRODUCER] and not await other.news()
        assert codes(await one.do(*(asking(7)[name] for name in ("produce", "consume")))) == [pb.AuthorizationError] * 2
        topic = next(iter(broker.topics.loaded.values()))
        assert len(topic.producers.producers) == 1 and len(topic.subscriptions["s"].consumers) == 1
        came = await other.do(send(1, 0, entry(b"still")))
        assert [c.type for c, _ in came] == [K.SEND_RECEIPT]
        came = await one.do(send(1, 0, entry(b"gone")))
        assert not came and len(broker.ledger().positions()) == 1

    run(secret, test)


def test_a_tenants_admin_who_goes_is_closed_too(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "boss")
        await made.producer(1)
        view.infos["public"] = TenantInfo(admin_roles=("next",))
        for callback in list(broker.view.callbacks):
            callback("/tenants/public")
        assert [c.type for c, _ in await made.news()] == [K.CLOSE_PRODUCER]

    run(secret, test)


@pytest.mark.parametrize("turns", range(12))
def test_a_grant_that_goes_while_something_is_being_made(secret: str, turns: int) -> None:
    """After any number of turns of the loop: it is refused, or closed as soon as it is there."""

    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce", "consume"]})
        made = await client(broker, "a")
        made.raw(asking(1)["produce"] + asking(2)["consume"])
        await settle(turns)
        view.grant(permissions={})
        kinds = [c.type for c, _ in await made.news()]
        assert K.ERROR in kinds or {K.CLOSE_PRODUCER, K.CLOSE_CONSUMER} <= set(kinds)
        for topic in broker.topics.loaded.values():
            assert not topic.producers.producers and not any(s.consumers for s in topic.subscriptions.values())

    run(secret, test)


def test_a_watcher_whose_grant_goes_loses_its_connection(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["consume"]})
        made = await client(broker, "a")
        assert [c.type for c, _ in await made.do(asking()["watch"])] == [K.WATCH_TOPIC_LIST_SUCCESS]
        view.grant(permissions={})
        await made.news()
        assert made.transport.closing

    run(secret, test)


def test_an_acl_of_kafkas_that_refuses_closes_what_is_open_and_refuses_what_comes(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce", "consume"]})
        made = await client(broker, "a")
        made.raw(asking(1)["produce"] + asking(2)["consume"])
        await made.news()
        view.refuse(AclRecord("topic", "literal", TOPIC, "*", "*", "write", False))
        assert [c.type for c, _ in await made.news()] == [K.CLOSE_PRODUCER], "who consumes goes on"
        assert [c.type for c, _ in await made.do(asking(3)["produce"])] == [K.ERROR]
        view.refuse(AclRecord("topic", "prefixed", TOPIC, "a", "127.0.0.1", "read", False))
        assert [c.type for c, _ in await made.news()] == [K.CLOSE_CONSUMER]
        view.refuse()
        assert K.PRODUCER_SUCCESS in [c.type for c, _ in await made.do(asking(4)["produce"])]

    run(secret, test)


@pytest.mark.parametrize(
    ("operation", "makes"), [("describe", False), ("delete", False), ("create", False), ("read", True), ("write", True)]
)
def test_who_may_only_look_up_a_topic_does_not_make_it_by_asking_for_its_partitions(
    secret: str, operation: str, makes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: Broker, view: View) -> None:
        asked: list[bool] = []

        async def partitions(topic: str, create: bool) -> int:
            asked.append(create)
            return 0

        monkeypatch.setattr(broker.listener.broker.lookup, "partitions", partitions)
        of_bob = AclRecord("topic", "literal", TOPIC, "a", "*", operation, True)
        view.refuse(of_bob, of_bob._replace(operation="describe"))
        made = await client(broker, "a")
        await made.do(asking(1)["partitions"])
        assert asked == [makes]

    run(secret, test)


def test_a_change_of_other_policies_rechecks_nobody(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce"]})
        made = await client(broker, "a")
        await made.producer(1)
        monkeypatch.setattr(
            "region_node.faces.pulsar.connection.revoked_rights.recheck", lambda *_: pytest.fail("rechecked")
        )
        view.grant(bundles=8)

    run(secret, test)
