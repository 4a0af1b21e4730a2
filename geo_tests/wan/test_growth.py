"""An instance grows and shrinks, by one command each, while messages and configuration writes go on: a region, a
broker, a bookie.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph, owners
from region_node.chaos.streams import NumberedStream
from region_node.commands.demo import _rest as rest
from region_node.instance.control import call

pytestmark = pytest.mark.long

LEFT = "persistent://public/geo/left"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """us and eu, 10 ms apart."""
    (tmp_path / "wan.json").write_text(json.dumps({pair: {"rtt_ms": 10} for pair in ("us-eu", "us-ap", "eu-ap")}))
    made = Instance(tmp_path / "data", regions=("us", "eu"), wan=str(tmp_path / "wan.json"))
    try:
        yield made
    finally:
        made.down()


def configure(url: str, value: Any) -> None:
    """A configuration write: again while no leader is elected, or somebody else changes the same part."""
    eventually(lambda: rest("POST", url, value) or True, f"POST {url}")


class Writers:
    """Messages into us and configuration writes through eu, all the time; every one must succeed, at the latest once a
    leader is elected.
    """

    def __init__(self, instance: Instance, stream: NumberedStream) -> None:
        self._stream, self._eu = stream, instance.admin("eu")
        self._ended = threading.Event()
        self.configured = 0
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=target) for target in (self._publish, self._configure)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        while not self._ended.wait(0.01):
            self._stream.publish(1)

    def _configure(self) -> None:
        while not self._ended.wait(0.25):
            try:
                configure(f"{self._eu}/admin/v2/namespaces/public/geo/messageTTL", 1_000_000 + self.configured)
                self.configured += 1
            except Exception as error:
                self.failed.append(repr(error))

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


class Follower(threading.Thread):
    """A consumer at work. `bodies`: what it was given, without what it is given again as its acknowledgment was under
    way when it connected anew.
    """

    def __init__(self, client: Any, topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = client.subscribe(topic, "follower", initial_position=pulsar.InitialPosition.Earliest)
        self.bodies: dict[str, None] = {}
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._consumer.receive(timeout_millis=500)
            except pulsar.Timeout:
                continue
            self.bodies.setdefault(message.data().decode())
            self._consumer.acknowledge(message)

    def finish(self, count: int) -> list[str]:
        try:
            eventually(lambda: len(self.bodies) >= count, "the consumer has all")
        finally:
            self._ended.set()
            self.join()
        return list(self.bodies)


def members(instance: Instance, region: str) -> dict[str, Any]:
    answer: dict[str, Any] = rest("GET", f"{instance.admin(region)}/heliograph/v1/config/members")
    return answer


def test_a_region_joins_and_leaves_under_writes(instance: Instance) -> None:
    data, us = str(instance.data), instance.admin("us")
    topic = "persistent://public/geo/growing"
    instance.namespace("public/geo", ["us", "eu"])
    rest("POST", f"{us}/admin/v2/namespaces/public/geo/permissions/ann", ["produce"])
    stream = NumberedStream(instance, "us", topic)
    follower = Follower(instance.client("us"), topic)
    writers = Writers(instance, stream)
    try:
        scale_out_and_in(instance, data, us, stream)
        grow_and_shrink(instance, data, us, topic, stream)
    finally:
        writers.end()
    stream.finish()
    assert follower.finish(stream.sent) == stream.bodies(), "the consumer at work had each in order"
    assert not writers.failed and writers.configured > 2, (
        writers.configured,
        writers.failed,
    )  # they went on; how fast is the machine's affair
    eventually(lambda: len(instance.read_all("eu", topic)) == stream.sent, "all of it in eu")
    assert instance.read_all("eu", topic) == stream.bodies() == instance.read_all("us", topic), "each once, in order"


def grow_and_shrink(instance: Instance, data: str, us: str, topic: str, stream: NumberedStream) -> None:
    heliograph("region", "join", "ap", "--data", data, "--bookies", "2")
    instance.state = call(instance.data, "status")
    report = members(instance, "ap")
    assert {row["member"]: row["role"] for row in report["members"]} == {"us": "voter", "eu": "voter", "ap": "voter"}
    configure(f"{us}/admin/v2/tenants/public", {"allowedClusters": ["us", "eu", "ap"]})
    configure(f"{us}/admin/v2/namespaces/public/geo/replication", ["us", "eu", "ap"])
    since = stream.sent
    copy = eventually(
        lambda: [n for n in numbers(instance, topic) if n >= since][:50], "what is published from now on arrives"
    )
    assert copy == list(range(since, since + len(copy))), "in order, each once"
    carried = f"{instance.admin('ap')}/admin/v2/namespaces/public/geo"
    assert (
        rest("GET", f"{carried}/permissions")["ann"] == ["produce"] and rest("GET", f"{carried}/deduplication") is True
    ), "with who may do what"

    left = published_where_us_cannot_hear_it(instance)
    moved = rest("POST", f"{us}/heliograph/v1/config/members/ap/lead")
    assert moved["changed"] or moved["leader"] == "ap"
    refused = heliograph("region", "leave", "ap", "--data", data, check=False)
    assert refused.returncode == 2 and "'public/geo' is in region 'ap': take it out there first" in refused.stderr
    configure(f"{us}/admin/v2/namespaces/public/geo/replication", ["us", "eu"])
    configure(f"{us}/admin/v2/tenants/public", {"allowedClusters": ["us", "eu"]})
    heliograph("region", "leave", "ap", "--data", data)
    eventually(lambda: instance.read_all("us", LEFT) == left, "what only eu had of it is in us, too")
    assert instance.read_all("eu", LEFT) == left
    report = members(instance, "us")
    assert (
        [row["member"] for row in report["members"]] == ["eu", "us"]
        and report["leader"] in ("eu", "us")
        and report["writes"]["count"] is not None
    )
    assert sorted(call(instance.data, "status")["regions"]) == ["eu", "us"] and (instance.data / "ap").is_dir()


def scale_out_and_in(instance: Instance, data: str, us: str, stream: NumberedStream) -> None:
    """A bookie and a broker more in us, and less: the broker that was alone, and the bookie that was added."""

    def on_the_new_bookie() -> bool:
        return bool(rest("GET", f"{us}/heliograph/v1/bookies/us-bookie-2/decommission")["open_ledgers_left"])

    before = names(instance)
    refused = heliograph("process", "remove", "us-bookie-0", "--data", data, check=False)
    assert refused.returncode == 2 and "process add bookie --region us" in refused.stderr
    said = heliograph("process", "add", "bookie", "--region", "us", "--data", data).stdout
    assert "us-bookie-2 is registered" in said
    client = instance.client("us")
    for number in range(30):
        client.create_producer(f"persistent://public/default/new-{number}").send(b"new")
        if on_the_new_bookie():
            break
    assert on_the_new_bookie(), "new ledgers are put on it, without anything else being done"

    heliograph("process", "add", "broker", "--region", "us", "--data", data)
    assert names(instance) == {*before, "us-bookie-2", "us-broker-1"}
    held = {bundle for bundle, owner in owners(instance, "public/geo").items() if owner == "us-broker-0"}
    assert held, "the publisher's bundle is somewhere"
    for bundle in held:
        heliograph("namespaces", "unload", "public/geo", "--bundle", bundle, "--to", "us-broker-1", "--admin", us)
    acked = stream.acked
    eventually(
        lambda: stream.acked > acked + 10 and owners(instance, "public/geo").get(next(iter(held))) == "us-broker-1",
        "it serves there",
    )

    heliograph("process", "remove", "us-broker-0", "--data", data)
    eventually(lambda: ids(f"{us}/heliograph/v1/status", "brokers") == ["us-broker-1"], "the brokers know it")
    assert set(owners(instance, "public/geo").values()) <= {"us-broker-1"}
    gone = json.loads(heliograph("process", "remove", "us-bookie-2", "--data", data, "--json").stdout)
    assert gone["done"] and Path(gone["data"]).is_dir()
    assert names(instance) == {*before, "us-broker-1"} - {"us-broker-0"}
    eventually(lambda: ids(f"{us}/heliograph/v1/bookies") == ["us-bookie-0", "us-bookie-1"], "and no mark is left")
    acked = stream.acked
    eventually(lambda: stream.acked > acked + 10, "it is published on")


def ids(url: str, part: str = "") -> list[str]:
    answer = rest("GET", url)
    return sorted(row["id"] for row in (answer[part] if part else answer))


def names(instance: Instance) -> set[str]:
    return {row["name"] for row in instance.status()["regions"]["us"]["processes"] if row["ready"]}


def published_where_us_cannot_hear_it(instance: Instance) -> list[str]:
    """In ap, and delivered to eu alone. Returns the bodies."""
    for proxy in instance.proxies("link", "ap", "us"):
        instance.toxiproxy.cut(proxy.name)
    producer = instance.client("ap").create_producer(LEFT, batching_enabled=False)
    bodies = [f"left-{n}" for n in range(30)]
    for body in bodies:
        producer.send(body.encode())
    eventually(lambda: instance.read_all("eu", LEFT) == bodies, "it is in eu")
    assert instance.read_all("us", LEFT) == []
    return bodies


def numbers(instance: Instance, topic: str) -> list[int]:
    """Of the messages in ap; none while its brokers have not heard yet that they serve the namespace, or are only
    starting to.
    """
    try:
        return [int(body.rpartition("-")[2]) for body in instance.read_all("ap", topic)]
    except pulsar.PulsarException:
        return []
