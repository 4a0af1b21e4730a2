"""What was revoked, at Kafka's door: PLAIN, OAUTHBEARER, SCRAM, mutual TLS, and connections that stand; and that a
proxy role, which has nobody there to speak for, comes in by none of them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from heliograph.model.configuration.revocations import ProvenBy
from heliograph.model.errors import MetadataUnavailable
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.security.scram import user_of
from region_node.security.authentication.client_certificates import CertificateProvider
from region_node.security.authentication.principal import Credentials, Principal
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.pulsar.harness import settle
from tests.region_node.security.authentication.revoking import RevokedHere

SALT, PASSWORD, ROUNDS = b"salt", b"secret", 4096
SALTED = hashlib.pbkdf2_hmac("sha256", PASSWORD, SALT, ROUNDS)


class Tokens:
    """A token is its id; whoever has it is `app`."""

    async def identify(self, credentials: Credentials) -> Principal:
        return Principal(role="app", proof=ProvenBy(token=credentials.data.decode()))


class Passwords:
    async def identify(self, credentials: Credentials) -> Principal:
        user = credentials.data.partition(b":")[0].decode()
        return Principal(role=user, proof=ProvenBy(user=user))


def guarded(face: Face) -> RevokedHere:
    authentication = face.broker.security.authentication
    authentication.open = False
    authentication._providers = {"token": Tokens(), "basic": Passwords(), "tls": CertificateProvider()}
    here = RevokedHere(authentication)
    here.revocations.on_change(face.listener.end_revoked, "kafka")
    return here


async def signed_in(face: Face, mechanism: str, data: bytes) -> tuple[Client, dict[str, Any]]:
    made = Client(face.listener)
    assert (await made.ask("sasl_handshake", 1, {"mechanism": mechanism}))["error_code"] == 0
    return made, await made.ask("sasl_authenticate", 1, {"auth_bytes": data})


async def by_scram(face: Face, user: str) -> tuple[Client, dict[str, Any]]:
    bare = f"n={user},r=own"
    made, first = await signed_in(face, "SCRAM-SHA-256", f"n,,{bare}".encode())
    challenge = first["auth_bytes"].decode()
    nonce = challenge.split(",")[0].removeprefix("r=")
    last = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
    key = hmac.digest(SALTED, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{challenge},{last}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    return made, await made.ask("sasl_authenticate", 1, {"auth_bytes": f"{last},p={proof}".encode()})


class Crowded:
    """Too many wait before."""

    async def identify(self, credentials: Credentials) -> Principal:
        assert credentials.host == "127.0.0.1", "addresses take turns"
        raise MetadataUnavailable("try again")


def test_who_cannot_be_known_now_is_not_told_that_the_password_is_wrong() -> None:
    async def test(face: Face) -> None:
        guarded(face)
        face.broker.security.authentication._providers = {"basic": Crowded()}
        made = Client(face.listener)
        await made.ask("sasl_handshake", 1, {"mechanism": "PLAIN"})
        made.raw(request("sasl_authenticate", 1, {"auth_bytes": b"\0ann\0x"}))
        await settle(20)
        assert made.protocol.closed and not made.answers()

    with_face(test)


@pytest.mark.parametrize(
    ("mechanism", "kind", "name", "revoked", "good"),
    [
        ("PLAIN", "user", "ann", b"\0ann\0x", b"\0bob\0x"),
        ("PLAIN", "token", "t1", b"\0any\0token:t1", b"\0any\0token:t2"),
        ("OAUTHBEARER", "token", "t1", b"n,,\x01auth=Bearer t1\x01\x01", b"n,,\x01auth=Bearer t2\x01\x01"),
    ],
)
def test_what_was_revoked_signs_nobody_in_and_ends_what_stands(
    mechanism: str, kind: str, name: str, revoked: bytes, good: bytes
) -> None:
    async def test(face: Face) -> None:
        here = guarded(face)
        standing, answer = await signed_in(face, mechanism, revoked)
        other, _ = await signed_in(face, mechanism, good)
        assert answer["error_code"] == 0
        await here.add(kind, name)
        await settle()
        assert standing.transport.closing and not other.transport.closing
        late, answer = await signed_in(face, mechanism, revoked)
        assert answer["error_code"] == Code.SASL_AUTHENTICATION_FAILED and "revoked" in answer["error_message"]
        assert late.session.login.principal is None and late.transport.closing
        assert (await signed_in(face, mechanism, good))[1]["error_code"] == 0
        assert here.revocations.closed == {"kafka": 1}
        here.stop()

    with_face(test)


def test_a_user_of_scram(caplog: pytest.LogCaptureFixture) -> None:
    async def test(face: Face) -> None:
        here, users = guarded(face), face.broker.scram
        for user in ("ann", "bob"):
            await users.put(user, "SCRAM-SHA-256", user_of("SCRAM-SHA-256", ROUNDS, SALT, SALTED))
        standing, answer = await by_scram(face, "ann")
        assert answer["error_code"] == 0
        await here.add("user", "ann")
        await settle()
        assert standing.transport.closing
        with caplog.at_level("INFO"):
            _, answer = await by_scram(face, "ann")
        assert answer["error_code"] == Code.SASL_AUTHENTICATION_FAILED and "revoked" in answer["error_message"]
        assert "authentication.revoked" in [record.msg for record in caplog.records]
        assert (await by_scram(face, "bob"))[1]["error_code"] == 0
        await here.lift("user", "ann")
        assert (await by_scram(face, "ann"))[1]["error_code"] == 0
        here.stop()

    with_face(test)


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-256"])
def test_a_proxy_role_speaks_for_itself_by_no_mechanism(mechanism: str) -> None:
    async def test(face: Face) -> None:
        guarded(face)
        face.broker.security.authentication._proxies = frozenset({"app", "gate"})
        await face.broker.scram.put("gate", mechanism, user_of("SCRAM-SHA-256", ROUNDS, SALT, SALTED))
        if mechanism.startswith("SCRAM"):
            made, answer = await by_scram(face, "gate")
        else:
            data = b"\0gate\0x" if mechanism == "PLAIN" else b"n,,\x01auth=Bearer t1\x01\x01"
            made, answer = await signed_in(face, mechanism, data)
        assert answer["error_code"] == Code.SASL_AUTHENTICATION_FAILED and "proxy" in answer["error_message"]
        assert made.session.login.principal is None and made.transport.closing

    with_face(test)


def test_a_client_by_its_certificate() -> None:
    async def test(face: Face) -> None:
        here = guarded(face)

        async def connected(number: str) -> Client:
            made = Client(face.listener)
            made.protocol.sign_in({"subject": ((("commonName", "app"),),), "serialNumber": number})
            await settle()
            return made

        standing, other = await connected("0A"), await connected("0B")
        assert standing.protocol.session.login.principal is not None
        await here.add("certificate", "a")
        await settle()
        assert standing.transport.closing and not other.transport.closing
        late = await connected("0A")
        assert late.protocol.session.login.principal is None
        # it may still be another by SASL
        answer = await late.ask("sasl_handshake", 1, {"mechanism": "OAUTHBEARER"})
        assert answer["error_code"] == 0
        here.stop()

    with_face(test)


def test_whoever_signs_in_is_known_by_its_address_too() -> None:
    """An ACL may name it."""

    async def test(face: Face) -> None:
        here = guarded(face)
        await face.broker.scram.put("ann", "SCRAM-SHA-256", user_of("SCRAM-SHA-256", ROUNDS, SALT, SALTED))
        by_certificate = Client(face.listener)
        by_certificate.protocol.sign_in({"subject": ((("commonName", "app"),),), "serialNumber": "0A"})
        await settle()
        by_password, _ = await signed_in(face, "PLAIN", b"\0ann\0x")
        for made in (by_certificate, by_password, (await by_scram(face, "ann"))[0]):
            assert made.protocol.session.login.principal is not None
            assert made.protocol.session.login.principal.host == "127.0.0.1"
        here.stop()

    with_face(test)


@pytest.mark.parametrize(
    ("mechanism", "good", "large"),
    [
        ("PLAIN", b"\0ann\0x", bytes(65_537)),
        ("PLAIN", b"\0ann\0x", b"\0ann\0" + b"x" * 65_536),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer t\x01\x01", b"n,,\x01auth=Bearer " + b"t" * 65_536 + b"\x01\x01"),
    ],
)
def test_who_signs_in_again_brings_no_more_than_the_first_time(mechanism: str, good: bytes, large: bytes) -> None:
    """Before it has signed in its whole request has a bound."""

    async def test(face: Face) -> None:
        here = guarded(face)
        client, answer = await signed_in(face, mechanism, good)
        assert answer["error_code"] == 0
        answer = await client.ask("sasl_authenticate", 1, {"auth_bytes": large})
        assert answer["error_code"] == Code.SASL_AUTHENTICATION_FAILED
        assert "credentials of 65" in answer["error_message"] and client.transport.closing
        here.stop()

    with_face(test)
