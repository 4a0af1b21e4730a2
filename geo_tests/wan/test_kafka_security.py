"""Who may do what over Kafka's protocol: passwords, tokens, bare tokens of old clients, TLS; the same principals and
grants as in Pulsar.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.kafka_support import DEADLINE_S, admin_module, ck, secure_region, token
from tests.region_node.region_processes import Region

pytestmark = pytest.mark.wan
WRONG = "not-her-password-4711"


@pytest.fixture(name="region", scope="module")
def _region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with secure_region(tmp_path_factory.mktemp("kafka-security")) as made:
        yield made


def address(region: Region, tls: bool = False) -> str:
    return f"127.0.0.1:{region.processes['us-broker-0'].ports['kafka_tls' if tls else 'kafka']}"


def login(region: Region, user: str, password: str, **more: Any) -> dict[str, Any]:
    fields = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }
    return {"bootstrap.servers": address(region), **fields, **more}


def sent(settings: dict[str, Any], topic: str, value: bytes = b"x") -> Any:
    """None, or the error that the producer was told."""
    told: list[Any] = []
    made = ck.Producer({**settings, "message.timeout.ms": int(DEADLINE_S * 1000)})
    made.produce(topic, value, on_delivery=lambda error, message: told.append(error))
    made.flush(DEADLINE_S)
    return told[0]


def test_who_may_and_who_may_not(region: Region) -> None:
    root = admin_module.AdminClient(login(region, "root", "r"))
    for future in root.create_topics([admin_module.NewTopic("rights", 1, 1)]).values():
        future.result(DEADLINE_S)
    assert sent(login(region, "ann", "a"), "rights") is None
    assert sent(login(region, "bob", "b"), "rights").code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    reader = ck.Consumer({**login(region, "bob", "b"), "group.id": "g", "auto.offset.reset": "earliest"})
    reader.subscribe(["rights"])
    deadline = time.monotonic() + DEADLINE_S
    message = None
    while message is None and time.monotonic() < deadline:
        message = reader.poll(1.0)
    assert message is not None and message.error() is None and message.value() == b"x"
    reader.close()
    ann = admin_module.AdminClient(login(region, "ann", "a"))
    with pytest.raises(ck.KafkaException) as caught:
        for future in ann.create_topics([admin_module.NewTopic("hers", 1, 1)]).values():
            future.result(DEADLINE_S)
    assert caught.value.args[0].code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_acls_allow_and_refuse(region: Region) -> None:
    acl, kinds = admin_module, admin_module.ResourceType
    root = acl.AdminClient(login(region, "root", "r"))
    for future in root.create_topics([acl.NewTopic("granted", 1, 1)]).values():
        future.result(DEADLINE_S)
    assert sent(login(region, "bob", "b"), "granted").code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    fields = ("*", acl.AclOperation.WRITE, acl.AclPermissionType.ALLOW)
    wanted = acl.AclBinding(kinds.TOPIC, "granted", acl.ResourcePatternType.LITERAL, "User:bob", *fields)
    for future in root.create_acls([wanted]).values():
        future.result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while (error := sent(login(region, "bob", "b"), "granted")) is not None and time.monotonic() < deadline:
        assert error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert error is None
    one = acl.AclBindingFilter(
        kinds.TOPIC,
        "granted",
        acl.ResourcePatternType.LITERAL,
        None,
        None,
        acl.AclOperation.ANY,
        acl.AclPermissionType.ANY,
    )
    assert root.describe_acls(one).result(DEADLINE_S) == [wanted]
    group = acl.AclBinding(kinds.GROUP, "g", acl.ResourcePatternType.LITERAL, "User:bob", *fields)
    with pytest.raises(ck.KafkaException):  # there is no writing to a group
        next(iter(root.create_acls([group]).values())).result(DEADLINE_S)
    refused = ("127.0.0.1", acl.AclOperation.ALL, acl.AclPermissionType.DENY)
    denied = acl.AclBinding(kinds.TOPIC, "grant", acl.ResourcePatternType.PREFIXED, "User:*", *refused)
    match = acl.AclBindingFilter(
        kinds.TOPIC,
        "granted",
        acl.ResourcePatternType.MATCH,
        "User:*",
        None,
        acl.AclOperation.ANY,
        acl.AclPermissionType.DENY,
    )
    for future in root.create_acls([denied]).values():
        future.result(DEADLINE_S)
    while (error := sent(login(region, "bob", "b"), "granted")) is None and time.monotonic() < deadline:
        pass
    assert error is not None and error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert sent(login(region, "root", "r"), "granted") is None, "a super user is refused nothing"
    for future in root.delete_acls([match]).values():
        assert future.result(DEADLINE_S) == [denied]
    while (error := sent(login(region, "bob", "b"), "granted")) is not None and time.monotonic() < deadline:
        pass
    assert error is None
    for future in root.delete_acls([one]).values():
        assert future.result(DEADLINE_S) == [wanted]
    while (error := sent(login(region, "bob", "b"), "granted")) is None and time.monotonic() < deadline:
        pass
    assert error is not None and error.code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_token_in_place_of_a_password_and_tls(region: Region) -> None:
    settings = login(region, "anybody", f"token:{token('ann')}")
    assert sent(settings, "by-token") is None
    folder = region.folder / "tls"
    fields = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert sent({**settings, **fields, "bootstrap.servers": address(region, tls=True)}, "by-token") is None


def test_a_certificate_is_who_its_common_name_says(region: Region) -> None:
    folder = region.folder / "tls"

    def by(name: str) -> dict[str, Any]:
        files = {
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": f"{name}.pem",
            "ssl.key.location": f"{name}.key",
        }
        fields = {
            "bootstrap.servers": address(region, tls=True),
            "security.protocol": "SSL",
            "ssl.endpoint.identification.algorithm": "none",
            "log_level": 0,
        }
        return {**fields, **{key: str(folder / file) for key, file in files.items()}}

    root = admin_module.AdminClient(login(region, "root", "r"))
    for future in root.create_topics([admin_module.NewTopic("by-certificate", 1, 1)]).values():
        future.result(DEADLINE_S)
    assert sent(by("config.us"), "by-certificate") is None
    assert sent(by("bookie.us"), "by-certificate").code() == ck.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_bearer_tokens(region: Region) -> None:
    fields = {
        "bootstrap.servers": address(region),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token("ann"), time.time() + 600),
        "log_level": 0,
    }
    assert sent(fields, "by-bearer") is None


def test_a_wrong_password_is_refused(region: Region) -> None:
    errors: list[Any] = []
    client = ck.Producer(login(region, "ann", WRONG, error_cb=errors.append))
    deadline = time.monotonic() + DEADLINE_S
    while not errors and time.monotonic() < deadline:
        client.poll(0.2)
    assert errors and errors[0].code() == ck.KafkaError._AUTHENTICATION


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(region: Region, mechanism: str) -> None:
    """The user `ann` of this kind is the role `ann`, with its grants; who is no super user makes none."""
    kind = getattr(admin_module.ScramMechanism, mechanism.replace("-", "_"))
    info = admin_module.ScramCredentialInfo(kind, 8192)
    made = admin_module.UserScramCredentialUpsertion("ann", info, b"scram-password")
    root = admin_module.AdminClient(login(region, "root", "r"))
    for future in root.alter_user_scram_credentials([made]).values():
        future.result(DEADLINE_S)
    assert kind in [
        each.mechanism
        for each in root.describe_user_scram_credentials(["ann"])["ann"].result(DEADLINE_S).scram_credential_infos
    ]
    fields = {"sasl.mechanism": mechanism}
    assert sent(login(region, "ann", "scram-password", **fields), "by-scram") is None
    for user, password in (("ann", WRONG), ("nobody", "scram-password")):
        errors: list[Any] = []
        client = ck.Producer(login(region, user, password, error_cb=errors.append, **fields))
        deadline = time.monotonic() + DEADLINE_S
        while not errors and time.monotonic() < deadline:
            client.poll(0.2)
        assert errors and errors[0].code() == ck.KafkaError._AUTHENTICATION
    ann = admin_module.AdminClient(login(region, "ann", "a"))
    with pytest.raises(ck.KafkaException):
        next(
            iter(
                ann.alter_user_scram_credentials(
                    [admin_module.UserScramCredentialUpsertion("root", info, b"x")]
                ).values()
            )
        ).result(DEADLINE_S)
    for future in root.alter_user_scram_credentials([admin_module.UserScramCredentialDeletion("ann", kind)]).values():
        future.result(DEADLINE_S)
    assert sent(login(region, "ann", "a"), "by-scram") is None


def test_clients_before_1_0_send_bare_tokens(region: Region) -> None:
    host, port = address(region).split(":")

    def ask(raw: socket.socket, data: bytes) -> bytes:
        raw.sendall(len(data).to_bytes(4, "big") + data)
        out = b""
        while len(out) < 4 or len(out) < 4 + int.from_bytes(out[:4], "big"):
            more = raw.recv(65536)
            if not more:
                return b"closed"
            out += more
        return out[4:]

    handshake = struct.pack(">hhih", 17, 0, 1, 1) + b"c" + struct.pack(">h", 5) + b"PLAIN"
    metadata = struct.pack(">hhih", 3, 0, 2, 1) + b"c" + bytes(4)
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
        assert ask(raw, handshake)[4:6] == b"\0\0"
        assert ask(raw, b"\0ann\0a") == b""
        assert ask(raw, metadata)[:4] == b"\0\0\0\2"
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
        ask(raw, handshake)
        assert ask(raw, b"\0ann\0" + WRONG.encode()) == b"closed"
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
        assert ask(raw, metadata) == b"closed"


def test_nothing_secret_is_logged(region: Region) -> None:
    text = Path(region.processes["us-broker-0"].log_path).read_text()
    assert "Traceback" not in text, text[-3000:]
    assert token("ann") not in text and WRONG not in text
