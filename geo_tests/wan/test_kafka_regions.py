"""A consumer group moves to another region, and goes on at the right message, whatever its offset is there."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from geo_tests.wan.instance import Instance, eventually

ck = pytest.importorskip("confluent_kafka")
admin_module = pytest.importorskip("confluent_kafka.admin")

pytestmark = pytest.mark.wan
DEADLINE_S = 60.0
VERSIONS = b"\0\0\0\x0b\0\x12\0\0\0\0\0\x07\0\x01c"


def speaks_kafka(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as raw:
            raw.sendall(VERSIONS)
            return raw.recv(8)[4:8] == b"\0\0\0\x07"
    except OSError:
        return False


def kafka_address(instance: Instance, region: str) -> str:
    """Of the region's only broker: the one of its listening ports that speaks Kafka's protocol."""
    pid = next(row["pid"] for row in instance.status()["regions"][region]["processes"] if "-broker-" in row["name"])
    ports = [c.laddr.port for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return f"127.0.0.1:{next(port for port in ports if speaks_kafka(port))}"


def send(address: str, topic: str, values: list[bytes], **settings: Any) -> None:
    failed: list[Any] = []
    made = ck.Producer({"bootstrap.servers": address, "acks": "all", "log_level": 0, **settings})
    for value in values:
        made.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert made.flush(DEADLINE_S) == 0 and not failed, failed


def consumer(address: str, group: str, topic: str) -> Any:
    made = ck.Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0})
    made.subscribe([topic])
    return made


def take(made: Any, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in made.consume(count - len(found), 0.5) if message.error() is None]
    assert len(found) == count, f"{len(found)} of {count} messages came"
    return found


def test_a_group_goes_on_in_another_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA__PORT", "0")
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA__NAMESPACE", "public/moving")
    monkeypatch.setenv("HELIOGRAPH_BROKER__KAFKA__REBALANCE_DELAY_MS", "0")
    instance = Instance(tmp_path / "data", regions=("us", "eu"), wan="none")
    try:
        instance.namespace("public/moving", ["us", "eu"], deduplication=False)
        us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
        send(eu, "orders", [b"eu-%d" % i for i in range(30)])  # so that offsets of the two regions are not the same
        first = consumer(us, "arrived", "orders")
        take(first, 30)
        first.close()
        send(us, "orders", [b"us-%d" % i for i in range(400)], **{"linger.ms": 50})
        reader = consumer(us, "group/one", "orders")
        done = {m.value() for m in take(reader, 257)}
        position = reader.position([ck.TopicPartition("orders", 0)])[0].offset
        reader.commit(asynchronous=False)
        reader.close()
        assert position == 257

        def followed() -> bool:
            other = ck.Consumer({"bootstrap.servers": eu, "group.id": "group/one", "log_level": 0})
            try:
                return bool(other.committed([ck.TopicPartition("orders", 0)], timeout=30)[0].offset == 257)
            finally:
                other.close()

        eventually(followed, "the group's position in eu")
        there = consumer(eu, "group/one", "orders")
        rest = take(there, 430 - 257)
        there.close()
        values = {b"eu-%d" % i for i in range(30)} | {b"us-%d" % i for i in range(400)}
        assert done | {m.value() for m in rest} == values and not done & {m.value() for m in rest}, "each message once, by one of the two"
    finally:
        instance.down()
