"""What a client is told that signs in otherwise than it may, and who makes users that can."""

from __future__ import annotations

import hashlib

from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.session.login import MECHANISMS
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face, with_face

SECURITY = SecuritySettings(authorization=True, anonymous_role="ann", super_users=("root",))
SALTED = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096)
MADE = {"name": "ann", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": SALTED}


def test_a_mechanism_that_is_not_known_is_answered_with_those_that_are() -> None:
    async def test(face: Face) -> None:
        face.broker.security.authentication.open = False
        client = Client(face.listener)
        answer = await client.ask("sasl_handshake", 1, {"mechanism": "GSSAPI"})
        assert (answer["error_code"], answer["mechanisms"]) == (Code.UNSUPPORTED_SASL_MECHANISM, list(MECHANISMS))
        answer = await client.ask("sasl_authenticate", 1, {"auth_bytes": b"\0ann\0x"})
        assert answer["error_code"] == Code.ILLEGAL_SASL_STATE and "SaslHandshake" in answer["error_message"]
        assert not client.protocol.closed, "it may still choose one"

    with_face(test)


def test_only_a_super_user_makes_and_sees_users() -> None:
    async def test(face: Face) -> None:
        face.broker.security.authentication.open = False
        for role, code in (("boss", Code.CLUSTER_AUTHORIZATION_FAILED), ("root", Code.NONE)):
            client = Client(face.listener)
            client.protocol.session.login.principal = Principal(role=role)
            made = await client.ask("alter_user_scram_credentials", 0, {"deletions": [], "upsertions": [MADE]})
            seen = await client.ask("describe_user_scram_credentials", 0, {"users": None})
            assert ([row["error_code"] for row in made["results"]], seen["error_code"]) == ([code], code)
        assert [row["user"] for row in seen["results"]] == ["ann"]

    with_face(test, security=SECURITY)
