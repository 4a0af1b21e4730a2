"""Pulsar connections with authentication and authorisation on: raw frames over a broker's face, storage is fake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import Unauthenticated
from heliograph.model.policies import NamespacePolicies, TenantInfo
from heliograph.wire import pulsar_pb2 as pb
from region_node.pulsar.identity import REFRESH
from region_node.pulsar.requests import HANDLERS
from region_node.pulsar.revoking import Revoking
from region_node.security.authentication import Ports, build_authentication
from region_node.security.authorization import Authorization
from region_node.security.principal import Credentials, Principal
from region_node.security.service import Security
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.pulsar.codec import entry, frame, send
from tests.pulsar.harness import TOPIC, Broker, Client, K, settle
from tests.security.issuer import SECRET, by_hand, secret_token
from tests.security.test_tokens import beside

Test = Callable[[Broker], Awaitable[None]]
NOW = 1000
Came = list[tuple[pb.BaseCommand, bytes]]


class View:
    """The broker's fake view, with tenants."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.tenants = {"public": TenantInfo(admin_roles=("boss",)), "other": TenantInfo(admin_roles=("stranger",))}

    def namespace(self, name: str) -> NamespacePolicies | None:
        return self.broker.view.namespace(name)

    def tenant(self, name: str) -> TenantInfo | None:
        return self.tenants.get(name)

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self.broker.view.on_change(callback)

    def grant(self, **fields: Any) -> None:
        self.broker.view.set("public/default", replace(self.broker.view.namespaces["public/default"], **fields))


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return str(path)


def run(secret: str, test: Callable[[Broker, View], Awaitable[None]], *, settings: dict[str, Any] | None = None, **security: Any) -> None:
    async def body() -> None:
        broker = Broker(**(settings or {}))
        view = View(broker)
        own = SecuritySettings(
            **{
                "authentication": ("token", "tls"),
                "tokens": (TokenSettings(algorithms=("HS256",), secret_file=secret),),
                "authorization": True,
                "super_users": ("root",),
                "proxy_roles": ("proxy",),
                **security,
            }
        )
        authentication = build_authentication(own, Ports(clock=broker.clock, rng=random.Random(1), fetch=_no_fetch, offload=beside))
        broker.listener.security = Security(authentication, Authorization(own, view))
        revoking = Revoking(broker.listener, view)
        try:
            await test(broker, view)
        finally:
            revoking.close()
            await broker.close()

    asyncio.run(body())


async def _no_fetch(url: str) -> bytes:
    raise OSError(url)


def connecting(data: bytes = b"", method: str = "token", *, refresh: bool = True, **fields: Any) -> bytes:
    flags = {"feature_flags": {"supports_auth_refresh": refresh}}
    return frame(K.CONNECT, client_version="t", protocol_version=19, auth_method_name=method, auth_data=data, **flags, **fields)


async def client(broker: Broker, role: str, **claims: Any) -> Client:
    made = Client(broker.listener)
    came = await made.do(connecting(secret_token(sub=role, **claims)))
    assert [c.type for c, _ in came] == [K.CONNECTED], came
    return made


def error(came: Came) -> tuple[int, str]:
    (found,) = [c.error for c, _ in came if c.type == K.ERROR]
    return found.error, found.message


async def refused(broker: Broker, *frames: bytes) -> str:
    made = Client(broker.listener)
    code, text = error(await made.do(*frames))
    assert code == pb.AuthenticationError and made.transport.closing
    return text


# -- CONNECT


def test_a_good_token_connects_and_says_that_it_can_be_renewed(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = Client(broker.listener)
        ((connected, _),) = await made.do(connecting(secret_token(sub="root")))
        assert connected.connected.feature_flags.supports_auth_refresh
        await made.producer()

    run(secret, test)


def test_every_bad_credential_is_an_authentication_error_and_the_end(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        for data in (b"", b"x", b"a.b.c", secret_token(secret=bytes(64), sub="root"), by_hand({"alg": "none"}, {"sub": "root"})):
            await refused(broker, connecting(data))
        assert "expired" in await refused(broker, connecting(secret_token(sub="root", exp=NOW - 60)))
        assert "algorithm" in await refused(broker, connecting(secret_token("HS512", sub="root")))
        assert "wants authentication" in await refused(broker, connecting(method="none"))
        assert "not open" in await refused(broker, connecting(b"a:b", method="basic"))
        assert "certificate" in await refused(broker, connecting(method="tls"))
        assert not broker.listener.connections

    run(secret, test)


def test_nothing_is_handled_before_the_client_is_known(secret: str) -> None:
    """What comes in the same read as CONNECT waits; of a client that is refused it is never looked at."""

    async def test(broker: Broker, view: View) -> None:
        producing = frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
        stored = send(1, 0, entry(b"x"))
        await refused(broker, connecting(b"bad") + producing + stored)
        await refused(broker, connecting(b"bad"), producing, connecting(secret_token(sub="root")))
        assert not broker.factory.ledgers
        made = Client(broker.listener)
        came = await made.do(connecting(secret_token(sub="root")) + producing + stored)
        assert [c.type for c, _ in came] == [K.CONNECTED, K.PRODUCER_SUCCESS, K.SEND_RECEIPT]

    run(secret, test)


def test_much_behind_a_connect_that_is_being_looked_at_closes(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = Client(broker.listener)
        made.raw(connecting(secret_token(sub="root")))
        pings = frame(K.PING) * 1000
        for _ in range(8):
            made.raw(pings)
        assert not [c for c, _ in await made.news() if c.type == K.PONG] and made.transport.closing

    run(secret, test)


def test_a_plug_in_that_does_not_answer_is_cut_by_the_handshake_time(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        class Never:
            async def identify(self, credentials: Credentials) -> Principal:
                await asyncio.Event().wait()
                raise Unauthenticated("never")

        broker.listener.security.authentication._providers["token"] = Never()
        made = Client(broker.listener)
        await made.do(connecting(b"x"))
        made.protocol.tick(NOW + 10)
        await settle()
        assert made.transport.closing

    run(secret, test)


def test_the_anonymous_role_is_a_role_like_any_other(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = Client(broker.listener)
        ((connected, _),) = await made.do(connecting(method="none"))
        assert connected.type == K.CONNECTED
        assert error(await made.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)))[0] == pb.AuthorizationError
        view.grant(permissions={"guest": ["produce"]})
        await made.producer(2)
        await refused(broker, connecting(b"wrong"))

    run(secret, test, anonymous_role="guest")


def test_the_common_name_of_a_certificate_is_the_role(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = Client(broker.listener)
        made.protocol.certificate = {"subject": ((("organizationName", "x"),), (("commonName", "root"),))}
        assert [c.type for c, _ in await made.do(connecting(method="tls"))] == [K.CONNECTED]
        assert made.protocol.identity.role == "root"
        for subject in ((), ((("commonName", "root"),), (("commonName", "other"),)), ((("commonName", ""),),)):
            made = Client(broker.listener)
            made.protocol.certificate = {"subject": subject}
            assert error(await made.do(connecting(method="tls")))[0] == pb.AuthenticationError

    run(secret, test)


def test_a_proxy_speaks_for_others_and_never_for_itself(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        proxy = secret_token(sub="proxy")
        for original in ("", "proxy"):
            made = Client(broker.listener)
            code, _ = error(await made.do(connecting(proxy, original_principal=original)))
            assert code == pb.AuthorizationError and made.transport.closing
        made = Client(broker.listener)
        code, _ = error(await made.do(connecting(secret_token(sub="alice"), original_principal="root")))
        assert code == pb.AuthorizationError  # alice is no proxy: else everybody could be root
        made = Client(broker.listener)
        assert [c.type for c, _ in await made.do(connecting(proxy, original_principal="alice"))] == [K.CONNECTED]
        producing = frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)
        for granted, allowed in (({"alice": ["produce"]}, False), ({"proxy": ["produce"]}, False), ({"alice": ["produce"], "proxy": ["produce"]}, True)):
            view.grant(permissions=granted)
            came = await made.do(producing)
            assert (came[0][0].type == K.PRODUCER_SUCCESS) is allowed

    run(secret, test)


# -- renewal


def test_a_client_is_asked_before_its_token_expires_and_goes_on_with_the_new_one(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "root", exp=NOW + 60)
        broker.clock.now = NOW + 29.0
        made.protocol.tick(broker.clock.now)
        assert not await made.news()
        broker.clock.now = NOW + 30.0
        made.protocol.tick(broker.clock.now)
        ((challenge, _),) = await made.news()
        assert challenge.type == K.AUTH_CHALLENGE
        assert (challenge.authChallenge.challenge.auth_method_name, challenge.authChallenge.challenge.auth_data) == ("token", REFRESH)
        made.protocol.tick(broker.clock.now + 1)
        assert not await made.news()  # once is enough for a while
        fresh = secret_token(sub="root", exp=NOW + 600)
        await made.do(frame(K.AUTH_RESPONSE, response={"auth_method_name": "token", "auth_data": fresh}))
        broker.clock.now = NOW + 61.0
        made.protocol.tick(broker.clock.now)
        await made.news()
        assert not made.transport.closing
        await made.producer()

    run(secret, test)


@pytest.mark.parametrize("answer", ["none", "bad", "other role", "expired"])
def test_without_a_good_answer_the_connection_ends(secret: str, answer: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "root", exp=NOW + 20)
        made.protocol.tick(NOW)
        ((challenge, _),) = await made.news()
        assert challenge.type == K.AUTH_CHALLENGE
        data = {"bad": b"x.y.z", "other role": secret_token(sub="alice", exp=NOW + 600), "expired": secret_token(sub="root", exp=NOW - 60)}
        if answer != "none":
            assert error(await made.do(frame(K.AUTH_RESPONSE, response={"auth_data": data[answer]})))[0] == pb.AuthenticationError
        else:
            broker.clock.now = NOW + 20.0
            made.protocol.tick(broker.clock.now)
            assert error(await made.news())[0] == pb.AuthenticationError
        assert made.transport.closing

    run(secret, test)


def test_a_client_that_knows_no_renewal_is_closed_when_its_token_expires(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = Client(broker.listener)
        await made.do(connecting(secret_token(sub="root", exp=NOW + 20), refresh=False))
        made.protocol.tick(NOW + 10)
        assert not await made.news()
        broker.clock.now = NOW + 20.0
        made.protocol.tick(broker.clock.now)
        assert error(await made.news())[0] == pb.AuthenticationError

    run(secret, test)


def test_an_answer_that_nobody_asked_for_changes_nothing(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = await client(broker, "alice", exp=NOW + 600)
        await made.do(frame(K.AUTH_RESPONSE, response={"auth_data": secret_token(sub="root")}))
        assert made.protocol.identity.role == "alice" and not made.transport.closing

    run(secret, test)


# -- rights


def asking(request: int = 1) -> dict[str, bytes]:
    return {
        "produce": frame(K.PRODUCER, topic=TOPIC, producer_id=request, request_id=request),
        "consume": frame(K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=1, consumer_id=request, request_id=request),
        "look up": frame(K.LOOKUP, topic=TOPIC, request_id=request),
        "partitions": frame(K.PARTITIONED_METADATA, topic=TOPIC, request_id=request),
        "schema": frame(K.GET_SCHEMA, topic=TOPIC, request_id=request),
        "new schema": frame(K.GET_OR_CREATE_SCHEMA, topic=TOPIC, request_id=request, schema={"name": "x", "schema_data": b"", "type": pb.Schema.String}),
        "list": frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=request, mode=0),
        "watch": frame(K.WATCH_TOPIC_LIST, namespace="public/default", topics_pattern=".*", watcher_id=request, request_id=request),
        "join": frame(K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], request_id=request),
        "join with acks": frame(K.ADD_SUBSCRIPTION_TO_TXN, subscription=[pb.Subscription(topic=TOPIC, subscription="s")], request_id=request),
    }


def codes(came: Came) -> list[int]:
    """Error codes, wherever a response carries them."""
    found = []
    for c, _ in came:
        for name in ("error", "lookupTopicResponse", "partitionMetadataResponse", "addPartitionToTxnResponse", "addSubscriptionToTxnResponse"):
            if c.HasField(name) and getattr(c, name).HasField("error"):
                found.append(getattr(c, name).error)
        for name in ("getSchemaResponse", "getOrCreateSchemaResponse"):
            if c.HasField(name) and getattr(c, name).HasField("error_code"):
                found.append(getattr(c, name).error_code)
    return found


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
        ("a", {"permissions": {"a": ["consume"]}, "subscription_permissions": {"t": ["b"], "s": ["a"]}}, ALL - PRODUCES_NOT),
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
            came = await made.do(frame(K.END_TXN_ON_PARTITION, topic=TOPIC, request_id=1, txnid_least_bits=1, txnid_most_bits=0))
            assert (came[-1][0].endTxnOnPartitionResponse.error != pb.AuthorizationError) is allowed

    run(secret, test)


def test_every_command_has_a_decision_who_may_send_it() -> None:
    """A new command stands in one of these lists before it is taken: by what is its sender checked?"""
    checked_by_topic_or_namespace = {
        K.LOOKUP, K.PARTITIONED_METADATA, K.PRODUCER, K.SUBSCRIBE, K.GET_SCHEMA, K.GET_OR_CREATE_SCHEMA, K.GET_TOPICS_OF_NAMESPACE, K.WATCH_TOPIC_LIST,
        K.ADD_PARTITION_TO_TXN, K.ADD_SUBSCRIPTION_TO_TXN,
    }  # fmt: skip
    of_something_open_on_this_connection = {
        K.CLOSE_PRODUCER, K.CLOSE_CONSUMER, K.ACK, K.REDELIVER_UNACKNOWLEDGED_MESSAGES, K.UNSUBSCRIBE, K.SEEK, K.GET_LAST_MESSAGE_ID, K.CONSUMER_STATS,
        K.WATCH_TOPIC_LIST_CLOSE,
    }  # fmt: skip
    of_the_connection = {K.CONNECT, K.PING, K.PONG, K.AUTH_RESPONSE}
    of_the_roles_own_transactions = {K.TC_CLIENT_CONNECT_REQUEST, K.NEW_TXN, K.END_TXN}
    refused_to_everybody = {
        K.SCALABLE_TOPIC_LOOKUP, K.SCALABLE_TOPIC_SUBSCRIBE, K.SCALABLE_TOPIC_CLOSE, K.WATCH_SCALABLE_TOPICS, K.WATCH_SCALABLE_TOPICS_CLOSE,
    }  # fmt: skip
    of_brokers_and_super_users = {K.END_TXN_ON_PARTITION, K.END_TXN_ON_SUBSCRIPTION}
    known = (
        checked_by_topic_or_namespace
        | of_something_open_on_this_connection
        | of_the_connection
        | of_the_roles_own_transactions
        | of_brokers_and_super_users
        | refused_to_everybody
    )
    assert set(HANDLERS) == known, set(HANDLERS) ^ known
    assert {frame_kind(command) for command in asking().values()} == checked_by_topic_or_namespace


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
        link = Client(broker.listener, link=True)
        await link.do(frame(K.CONNECT, client_version="t", protocol_version=19))
        await link.producer(1)
        assert [c.type for c, _ in await link.do(send(1, 1, forged))] == [K.SEND_RECEIPT]

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
        view.tenants["public"] = TenantInfo(admin_roles=("next",))
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


def test_a_change_of_other_policies_rechecks_nobody(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, view: View) -> None:
        view.grant(permissions={"a": ["produce"]})
        made = await client(broker, "a")
        await made.producer(1)
        monkeypatch.setattr("region_node.pulsar.revoking.recheck", lambda *_: pytest.fail("rechecked"))
        view.grant(bundles=8)

    run(secret, test)


# -- fuzz


def test_any_connect_is_answered_or_closed_and_harms_nobody(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        bystander = await client(broker, "root")
        await bystander.producer(1)
        rng = random.Random(11)
        good = connecting(secret_token(sub="root"), original_principal="") + asking()["produce"]
        for _ in range(400):
            data = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            made = Client(broker.listener)
            made.raw(bytes(data[: rng.randrange(1, len(data) + 1)]))
            came = await made.news()
            if made.protocol.connected:
                assert made.protocol.identity.principal is not None and came[0][0].type == K.CONNECTED
            else:
                assert all(c.type == K.ERROR for c, _ in came)
            made.transport.abort()
        assert [c.type for c, _ in await bystander.do(send(1, 0, entry(b"x")))] == [K.SEND_RECEIPT]

    run(secret, test)
