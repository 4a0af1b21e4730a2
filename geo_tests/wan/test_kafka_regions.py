"""A consumer group moves to another region, and goes on at the right message, whatever its offset is there."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from geo_tests.wan.disaster import cut_off
from geo_tests.wan.instance import Instance, eventually
from geo_tests.wan.kafka_support import DEADLINE_S, ck, take

pytestmark = pytest.mark.wan
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


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """us and eu, near each other; public/moving lies in both."""
    folder = tmp_path_factory.mktemp("kafka-regions")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 2}}))
    fields = {"PORT": "0", "NAMESPACE": "public/moving", "REBALANCE_DELAY_MS": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fields.items():
            patch.setenv(f"HELIOGRAPH_BROKER__KAFKA__{name}", value)
        made = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"))
    try:
        made.namespace("public/moving", ["us", "eu"], deduplication=False)
        yield made
    finally:
        made.down()


def committed(address: str, group: str, topic: str) -> int:
    other = ck.Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    try:
        return int(other.committed([ck.TopicPartition(topic, 0)], timeout=30)[0].offset)
    finally:
        other.close()


def watermark(address: str, topic: str) -> int:
    other = ck.Consumer({"bootstrap.servers": address, "group.id": "nobody", "log_level": 0})
    try:
        return int(other.get_watermark_offsets(ck.TopicPartition(topic, 0), timeout=30)[1])
    finally:
        other.close()


def metric(instance: Instance, region: str, name: str, *labels: str) -> float:
    """The sum of what has these labels."""
    text = urllib.request.urlopen(f"{instance.admin(region)}/metrics", timeout=30).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{") and all(label in line for label in labels)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_group_goes_on_in_another_region(instance: Instance) -> None:
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
    eventually(lambda: committed(eu, "group/one", "orders") == 257, "the group's position in eu")
    there = consumer(eu, "group/one", "orders")
    rest = take(there, 430 - 257)
    there.close()
    values = {b"eu-%d" % i for i in range(30)} | {b"us-%d" % i for i in range(400)}
    assert done | {m.value() for m in rest} == values and not done & {m.value() for m in rest}, "each message once, by one of the two"


def test_where_both_regions_publish_the_repeats_are_counted(instance: Instance) -> None:
    """eu has written first what us cannot see; a group that reads all of us and goes to eu begins at that, and reads the rest again."""
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    send(us, "mixed", [b"first"])
    warm = consumer(eu, "warm", "mixed")
    take(warm, 1)
    warm.close()
    cut = instance.proxies("link", "eu", "us")
    for proxy in cut:
        instance.toxiproxy.cut(proxy.name)
    send(eu, "mixed", [b"eu-%d" % i for i in range(20)])
    send(us, "mixed", [b"us-%d" % i for i in range(50)], **{"linger.ms": 50})
    reader = consumer(us, "wanderers", "mixed")
    done = [m.value() for m in take(reader, 51)]
    reader.commit(asynchronous=False)
    reader.close()
    eventually(lambda: metric(instance, "eu", "heliograph_kafka_group_behind_repeats", 'group="wanderers"') == 50, "50 messages that would come again")
    assert committed(eu, "wanderers", "mixed") == 1
    there = consumer(eu, "wanderers", "mixed")
    rest = [m.value() for m in take(there, 70)]
    there.commit(asynchronous=False)
    there.close()
    for proxy in cut:
        instance.toxiproxy.heal(proxy.name)
    assert rest == [b"eu-%d" % i for i in range(20)] + [b"us-%d" % i for i in range(50)] and done == [b"first", *rest[20:]]
    eventually(lambda: metric(instance, "eu", "heliograph_kafka_group_repeats_total") == 50, "50 messages that came again")


def test_a_region_is_killed_under_load(instance: Instance) -> None:
    """Its group goes on in the other at the exact message of one of its commits; what is there is read without a gap. It comes last: us is gone."""
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    send(eu, "load", [b"before-%d" % i for i in range(7)])  # so that offsets of the two regions are not the same
    reader = consumer(us, "loaded", "load")
    assert len(take(reader, 7)) == 7
    reader.commit(asynchronous=False)
    made = ck.Producer({"bootstrap.servers": us, "acks": "all", "linger.ms": 5, "log_level": 0})
    count, begins = 0, {0}

    def write(more: int) -> None:
        nonlocal count
        for _ in range(more):
            made.produce("load", b"%d" % count)
            count += 1
        made.poll(0)

    while len(begins) < 12 or committed(eu, "loaded", "load") <= 300:
        write(50)
        messages = [m for m in reader.consume(70, 1.0) if m.error() is None]
        if messages:
            reader.commit(asynchronous=False)
            begins.add(int(messages[-1].value()) + 1)
    read = max(begins)
    write(2000)
    eventually(lambda: watermark(eu, "load") > 7 + read, "something that the group has not read")
    cut_off(instance, "us", cut=True)  # what the supervisor starts again is heard by nobody
    for row in instance.status()["regions"]["us"]["processes"]:
        if row["pid"]:
            os.kill(row["pid"], signal.SIGKILL)
    reader.close()
    there = consumer(eu, "loaded", "load")
    found: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    end = watermark(eu, "load") - 7
    while time.monotonic() < deadline and (not found or found[-1] < end - 1):
        found += [int(m.value()) for m in there.consume(500, 0.5) if m.error() is None]
    there.close()
    assert found[0] in begins, "where one of its commits was"
    assert found[0] >= 290 and found == list(range(found[0], end)), "from there on all that eu has, once, in order"
