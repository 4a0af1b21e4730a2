"""Who may connect: credentials with CONNECT, and their renewal; raw frames over a broker's face, storage is fake."""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.model.errors import Unauthenticated
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.client_identity import REFRESH
from region_node.security.authentication.principal import Credentials, Principal
from tests.region_node.faces.pulsar.codec import entry, frame, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, K, settle
from tests.region_node.faces.pulsar.secured import NOW, View, asking, client, connecting, error, refused, run
from tests.region_node.security.authentication.issuer import by_hand, secret_token
from tests.region_node.security.authentication.revoking import RevokedHere

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
        for data in (
            b"",
            b"x",
            b"a.b.c",
            secret_token(secret=bytes(64), sub="root"),
            by_hand({"alg": "none"}, {"sub": "root"}),
        ):
            await refused(broker, connecting(data))
        assert "expired" in await refused(broker, connecting(secret_token(sub="root", exp=NOW - 60)))
        assert "algorithm" in await refused(broker, connecting(secret_token("HS512", sub="root")))
        assert "wants authentication" in await refused(broker, connecting(method="none"))
        assert "not open" in await refused(broker, connecting(b"a:b", method="basic"))
        assert "certificate" in await refused(broker, connecting(method="tls"))
        assert not broker.listener.opened.all

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

        broker.listener.broker.security.authentication._providers["token"] = Never()
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
        assert (
            error(await made.do(frame(K.PRODUCER, topic=TOPIC, producer_id=1, request_id=1)))[0]
            == pb.AuthorizationError
        )
        view.grant(permissions={"guest": ["produce"]})
        await made.producer(2)
        await refused(broker, connecting(b"wrong"))

    run(secret, test, anonymous_role="guest")


def test_the_common_name_of_a_certificate_is_the_role(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        made = Client(broker.listener)
        made.protocol.certificate = {"subject": ((("organizationName", "x"),), (("commonName", "root"),))}
        assert [c.type for c, _ in await made.do(connecting(method="tls"))] == [K.CONNECTED]
        assert made.protocol.session.identity.role == "root"
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
        for granted, allowed in (
            ({"alice": ["produce"]}, False),
            ({"proxy": ["produce"]}, False),
            ({"alice": ["produce"], "proxy": ["produce"]}, True),
        ):
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
        assert (challenge.authChallenge.challenge.auth_method_name, challenge.authChallenge.challenge.auth_data) == (
            "token",
            REFRESH,
        )
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
        data = {
            "bad": b"x.y.z",
            "other role": secret_token(sub="alice", exp=NOW + 600),
            "expired": secret_token(sub="root", exp=NOW - 60),
        }
        if answer != "none":
            assert (
                error(await made.do(frame(K.AUTH_RESPONSE, response={"auth_data": data[answer]})))[0]
                == pb.AuthenticationError
            )
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
        assert made.protocol.session.identity.role == "alice" and not made.transport.closing

    run(secret, test)


# -- what was revoked


def test_a_revoked_token_is_refused_and_what_stands_by_it_is_closed(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        here = RevokedHere(broker.listener.broker.security.authentication)
        here.revocations.on_change(broker.listener.end_revoked, "pulsar")
        leaked, other = await client(broker, "root", jti="leaked"), await client(broker, "root", jti="other")
        await leaked.producer()
        await here.add("token", "leaked")
        code, text = error(await leaked.news())
        assert code == pb.AuthenticationError and "revoked" in text and leaked.transport.closing
        assert "revoked" in await refused(broker, connecting(secret_token(sub="root", jti="leaked")))
        await other.producer()
        assert not await other.news() and not other.transport.closing
        assert here.revocations.closed == {"pulsar": 1}
        await here.lift("token", "leaked")
        await client(broker, "root", jti="leaked")
        here.stop()

    run(secret, test)


def test_a_proxy_whose_token_is_revoked_speaks_for_nobody(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        here = RevokedHere(broker.listener.broker.security.authentication)
        here.revocations.on_change(broker.listener.end_revoked, "pulsar")
        made = Client(broker.listener)
        proxy = connecting(secret_token(sub="proxy", iat=NOW), original_principal="alice")
        assert [c.type for c, _ in await made.do(proxy)] == [K.CONNECTED]
        await here.add("subject", "proxy", before_ms=(NOW + 1) * 1000)
        assert error(await made.news())[0] == pb.AuthenticationError and made.transport.closing
        assert "revoked" in await refused(broker, proxy)
        here.stop()

    run(secret, test)


def test_a_revoked_token_renews_nothing(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        here = RevokedHere(broker.listener.broker.security.authentication)
        made = await client(broker, "root", exp=NOW + 20, jti="first")
        made.protocol.tick(NOW)
        ((challenge, _),) = await made.news()
        assert challenge.type == K.AUTH_CHALLENGE
        await here.add("token", "leaked")
        leaked = secret_token(sub="root", exp=NOW + 600, jti="leaked")
        code, text = error(await made.do(frame(K.AUTH_RESPONSE, response={"auth_data": leaked})))
        assert code == pb.AuthenticationError and "revoked" in text and made.transport.closing
        here.stop()

    run(secret, test)


def test_a_link_by_a_revoked_certificate_is_refused_and_one_that_stands_closed(secret: str) -> None:
    async def test(broker: Broker, view: View) -> None:
        here = RevokedHere(broker.listener.broker.security.authentication)
        here.revocations.on_change(broker.listener.end_revoked, "pulsar")
        connect = frame(K.CONNECT, client_version="link", protocol_version=21)
        standing, other, late = (Client(broker.listener, link=True) for _ in range(3))
        for made, number in ((standing, "0A"), (other, "0B"), (late, "0A")):
            made.protocol.certificate = {"subject": (), "serialNumber": number}
        assert [c.type for made in (standing, other) for c, _ in await made.do(connect)] == [K.CONNECTED] * 2
        await here.add("certificate", "0a")
        assert "revoked" in error(await standing.news())[1] and standing.transport.closing
        assert "revoked" in error(await late.do(connect))[1] and late.transport.closing
        assert not other.transport.closing
        here.stop()

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
                assert made.protocol.session.identity.principal is not None and came[0][0].type == K.CONNECTED
            else:
                assert all(c.type == K.ERROR for c, _ in came)
            made.transport.abort()
        assert [c.type for c, _ in await bystander.do(send(1, 0, entry(b"x")))] == [K.SEND_RECEIPT]

    run(secret, test)
