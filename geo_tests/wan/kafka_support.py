"""What tests of Kafka's listener have in common: a region that speaks it, its clients, and requests by hand.

Is: helpers around `tests.region_node.region_processes.Region`. Isn't: a test.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from heliograph.wire.kafka.message_codec import BY_NAME, decode_fields, encode_fields
from region_node.security.certificate_authority import ensure_certificates
from tests.region_node.region_processes import Region

ck = pytest.importorskip("confluent_kafka")
admin_module = pytest.importorskip("confluent_kafka.admin")

DEADLINE_S = 120.0
"""For what takes a second or two on a machine with nothing else to do."""
SECRET = b"0123456789abcdef0123456789abcdef"


def rest(region: Region, method: str, path: str, body: Any = None, broker: int = 0) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        region.admin_url(broker) + path, data, {"Content-Type": "application/json"}, method=method
    )
    urllib.request.urlopen(request, timeout=DEADLINE_S).read()


def get(region: Region, path: str) -> Any:
    return json.loads(urllib.request.urlopen(region.admin_url() + path, timeout=DEADLINE_S).read() or "null")


def prepare(region: Region, **kafka: Any) -> None:
    """With a folder as its object store, which nothing goes to unless a policy or somebody says so."""
    tiered = {"store": f"file://{region.folder}/objects", "tick_s": 0.2, "manifest_s": 0}
    region.start(kafka={"port": 0, "rebalance_delay_ms": 100, **kafka}, tiered=tiered, brokers=1)
    rest(region, "PUT", "/admin/v2/clusters/us", {})
    rest(region, "PUT", "/admin/v2/tenants/public", {"allowedClusters": ["us"]})
    rest(region, "PUT", "/admin/v2/namespaces/public/default")


def servers(region: Region, *brokers: int) -> str:
    return ",".join(f"127.0.0.1:{region.processes[f'us-broker-{b}'].ports['kafka']}" for b in brokers or (0,))


def create(region: Region, topic: str, partitions: int = 1, **config: str) -> None:
    client = admin_module.AdminClient({"bootstrap.servers": servers(region), "log_level": 0})
    for future in client.create_topics([admin_module.NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(DEADLINE_S)


def producer(region: Region, *brokers: int, **settings: Any) -> Any:
    """A request has as long as a test waits: one that times out earlier is sent again, and what is not idempotent may
    then be there twice.
    """
    fields = {
        "bootstrap.servers": servers(region, *brokers),
        "acks": "all",
        "request.timeout.ms": int(DEADLINE_S * 1000),
        "log_level": 0,
    }
    return ck.Producer({**fields, **{k.replace("_", "."): v for k, v in settings.items()}})


def send(made: Any, topic: str, values: list[bytes | None], **fields: Any) -> list[tuple[int, int]]:
    """(partition, offset) of each, in order."""
    out: dict[int, tuple[int, int]] = {}
    failed: list[Any] = []

    def delivered(index: int) -> Any:
        def told(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)
            else:
                out[index] = (message.partition(), message.offset())

        return told

    for index, value in enumerate(values):
        made.produce(topic, value, on_delivery=delivered(index), **fields)
    assert made.flush(DEADLINE_S) == 0
    assert not failed, failed
    return [out[index] for index in range(len(values))]


def consumer(region: Region, group: str, *brokers: int, **settings: Any) -> Any:
    fields = {
        "bootstrap.servers": servers(region, *brokers),
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    return ck.Consumer({**fields, **{k.replace("_", "."): v for k, v in settings.items()}})


def take(made: Any, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in made.consume(count - len(found), 0.5) if message.error() is None]
    assert len(found) == count, f"{len(found)} of {count} messages came"
    return found


class GroupMember(threading.Thread):
    """An application of a group: it reads, and commits what it has read, in a thread of its own.

    Members that share a thread stop each other: a commit waits behind its member's JoinGroup, and that for the others,
    which must be polled to give partitions back. `seen`: (partition, offset) -> value. `committed`: partition -> the
    highest offset whose commit was answered. `assigned`: its partitions as of its last read. `brokers`: how many it
    knew of then, once `count_brokers` is set. Nobody else may call its client meanwhile.
    """

    def __init__(self, client: Any, topic: str) -> None:
        super().__init__(daemon=True)
        self.client, self._topic = client, topic
        self.seen: dict[tuple[int, int], bytes] = {}
        self.committed: dict[int, int] = {}
        self.assigned: list[int] = []
        self.brokers, self.count_brokers = 0, False
        self.failed: BaseException | None = None
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.client.subscribe([self._topic])
            while not self._stop_asked.is_set():
                messages = [message for message in self.client.consume(200, 0.1) if message.error() is None]
                self.seen.update({(message.partition(), message.offset()): message.value() for message in messages})
                if messages:
                    self._commit()
                self.assigned = sorted(part.partition for part in self.client.assignment())
                if self.count_brokers:
                    self.brokers = len(self.client.list_topics(timeout=DEADLINE_S).brokers)
            self.client.close()
        except BaseException as error:
            self.failed = error
            raise

    def _commit(self) -> None:
        try:
            for part in self.client.commit(asynchronous=False):
                if part.error is None:
                    self.committed[part.partition] = max(self.committed.get(part.partition, -1), part.offset)
        except ck.KafkaException:
            pass  # a rebalance, or a coordinator that is gone: what was read comes again

    def partitions(self) -> list[int]:
        assert self.failed is None, self.failed
        return self.assigned

    def leave(self) -> None:
        self._stop_asked.set()
        self.join(2 * DEADLINE_S)
        assert not self.is_alive() and self.failed is None, self.failed


def transactional(region: Region, name: str, *brokers: int, **settings: Any) -> Any:
    made = producer(region, *brokers, transactional_id=name, **settings)
    made.init_transactions(DEADLINE_S)
    return made


def ask(raw: socket.socket, name: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """One request by hand, and its answer."""
    api = BY_NAME[name]
    head = struct.pack(">hhih", api.key, version, 1, -1) + (b"\0" if api.is_flexible(version) else b"")
    body = head + encode_fields(name, version, fields, answer=False)
    raw.sendall(len(body).to_bytes(4, "big") + body)
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = raw.recv(65536)
        assert more, "closed"
        data += more
    return decode_fields(name, version, data[9 if api.is_flexible(version) else 8 :], answer=True)


# -- who may -----------------------------------------------------------------------------------------------------------


def token(role: str) -> str:
    """A JWT that the region of `secure_region` believes."""
    from joserfc.jwk import OctKey

    joserfc_jwt = pytest.importorskip("joserfc.jwt")
    made: str = joserfc_jwt.encode({"alg": "HS256"}, {"sub": role}, OctKey.import_key(SECRET), algorithms=["HS256"])
    return made


@contextlib.contextmanager
def secure_region(folder: Path, *more_tokens: dict[str, Any], super_users: tuple[str, ...] = ()) -> Iterator[Region]:
    """A region that asks who is there: ann may do all with topics, bob only consume, root anything; passwords are their
    first letters. more_tokens: further sources of tokens; super_users: further ones.
    """
    passwords = {"ann": "a", "bob": "b", "root": "r"}
    lines = [
        f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n"
        for user, password in passwords.items()
    ]
    (folder / "users").write_text("".join(lines))
    (folder / "secret").write_bytes(SECRET)
    ensure_certificates(folder / "tls", ["us"])
    security = {
        "authentication": ["basic", "token", "tls"],
        "basic_file": str(folder / "users"),
        "tokens": [{"algorithms": ["HS256"], "secret_file": str(folder / "secret")}, *more_tokens],
        "authorization": True,
        "super_users": ["root", *super_users],
    }
    tls = {
        "ca": str(folder / "tls" / "ca.pem"),
        "server_cert": str(folder / "tls" / "broker.us.pem"),
        "server_key": str(folder / "tls" / "broker.us.key"),
    }
    with Region(folder) as made:
        made.start(brokers=0)
        ports = {"port": 0, "tls_port": 0, "admin_port": 0, "admin_tls_port": 0}
        fields = {**ports, "kafka": {"port": 0, "tls_port": 0, "rebalance_delay_ms": 0}}
        settings = made.settings("broker-0", ["broker"], **made.addresses, broker=fields, security=security)
        if not (folder / "tls" / "broker.us.pem").exists():
            pytest.fail(f"no broker certificate in {sorted(p.name for p in (folder / 'tls').iterdir())}")
        made.spawn({**settings, "tls": tls}).wait_ready()

        def rest(method: str, path: str, body: Any = None) -> None:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token('root')}"}
            request = urllib.request.Request(
                made.admin_url() + path, None if body is None else json.dumps(body).encode(), headers, method=method
            )
            urllib.request.urlopen(request, timeout=DEADLINE_S).read()

        rest("PUT", "/admin/v2/clusters/us", {})
        rest("PUT", "/admin/v2/tenants/public", {"allowedClusters": ["us"], "adminRoles": []})
        rest("PUT", "/admin/v2/namespaces/public/default")
        rest("POST", "/admin/v2/namespaces/public/default/permissions/ann", ["produce", "consume"])
        rest("POST", "/admin/v2/namespaces/public/default/permissions/bob", ["consume"])
        rest("POST", "/admin/v2/namespaces/public/default/permissions/config.us", ["produce", "consume"])
        yield made
