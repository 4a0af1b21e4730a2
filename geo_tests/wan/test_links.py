"""Links between real regions: faults of the network, in each shape that Toxiproxy has, end in the same messages on both sides, each once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually

COUNT = 300


class Stream:
    """Publishes numbered messages from one region, and knows which were acknowledged."""

    def __init__(self, instance: Instance, region: str, topic: str) -> None:
        self.region, self.sent, self.acked = region, 0, 0
        self._producer = instance.client(region).create_producer(topic, f"p-{region}", batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0)

    def publish(self, count: int) -> None:
        def acked(result: Any, _: Any) -> None:
            self.acked += "Ok" in str(result)

        for _ in range(count):
            self._producer.send_async(f"{self.region}-{self.sent}".encode(), acked)
            self.sent += 1

    def bodies(self) -> list[str]:
        return [f"{self.region}-{n}" for n in range(self.sent)]

    def finish(self) -> None:
        self._producer.flush()
        eventually(lambda: self.acked == self.sent, f"{self.region}: all acknowledged")


def assert_same_everywhere(instance: Instance, topic: str, streams: list[Stream]) -> None:
    for stream in streams:
        stream.finish()
    eventually(lambda: all(r["backlog_messages"] == 0 for r in instance.links(topic).values()) and len(instance.links(topic)) == 2, "links drained")
    for region in ("us", "eu"):
        copy = instance.read_all(region, topic)
        for stream in streams:
            assert [b for b in copy if b.startswith(stream.region)] == stream.bodies(), f"{stream.region}'s messages in {region}"
        assert len(copy) == sum(s.sent for s in streams)


def cut(instance: Instance) -> Callable[[], None]:
    proxies = instance.proxies("link", "us", "eu") + instance.proxies("link", "eu", "us")
    for proxy in proxies:
        instance.toxiproxy.cut(proxy.name)
    return lambda: [instance.toxiproxy.heal(p.name) for p in proxies]  # type: ignore[return-value,func-returns-value]


def cut_one_way(instance: Instance) -> Callable[[], None]:
    proxies = instance.proxies("link", "us", "eu")
    for proxy in proxies:
        instance.toxiproxy.black_hole(proxy.name, "upstream")
    return lambda: [instance.toxiproxy.heal(p.name) for p in proxies]  # type: ignore[return-value,func-returns-value]


def lose_receipts(instance: Instance) -> Callable[[], None]:
    proxies = instance.proxies("link", "us", "eu")
    for proxy in proxies:
        proxy.add_toxic(name="hole_downstream", type="timeout", stream="downstream", attributes={"timeout": 0})
    return lambda: [instance.toxiproxy.heal(p.name) for p in proxies]  # type: ignore[return-value,func-returns-value]


def reset(instance: Instance) -> Callable[[], None]:
    proxies = instance.proxies("link", "us", "eu") + instance.proxies("link", "eu", "us")
    for proxy in proxies:
        instance.toxiproxy.reset(proxy.name)
        instance.toxiproxy.cut(proxy.name)
        proxy.enable() if hasattr(proxy, "enable") else None
    return lambda: [instance.toxiproxy.heal(p.name) for p in proxies]  # type: ignore[return-value,func-returns-value]


def slow(instance: Instance) -> Callable[[], None]:
    proxies = instance.proxies("link", "us", "eu") + instance.proxies("link", "eu", "us")
    for proxy in proxies:
        instance.toxiproxy.latency(proxy.name, 150, 60)
    return lambda: [instance.toxiproxy.latency(p.name, 10, 2) for p in proxies]  # type: ignore[return-value,func-returns-value]


FAULTS = (cut, cut_one_way, lose_receipts, reset, slow)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_fault_ends_without_help(pair: Instance, fault: Callable[[Instance], Callable[[], None]]) -> None:
    topic = f"persistent://public/geo/{fault.__name__}"
    streams = [Stream(pair, region, topic) for region in ("us", "eu")]
    for stream in streams:
        stream.publish(COUNT)
    eventually(lambda: len(pair.links(topic)) == 2 and all(r["connected"] for r in pair.links(topic).values()), "both links up")
    heal = fault(pair)
    try:
        began = time.monotonic()
        while time.monotonic() < began + 3:
            for stream in streams:
                stream.publish(20)
            eventually(lambda: all(s.acked >= s.sent - 200 for s in streams), "publishing goes on while the link is bent")
    finally:
        heal()
    assert_same_everywhere(pair, topic, streams)


@pytest.mark.timeout(180)
def test_backlog_and_age_are_true_while_the_link_is_down(pair: Instance) -> None:
    topic = "persistent://public/geo/risk"
    stream = Stream(pair, "us", topic)
    stream.publish(10)
    stream.finish()
    eventually(lambda: pair.links(topic).get(("us", "eu"), {}).get("backlog_messages") == 0, "drained")
    heal = cut(pair)
    try:
        stream.publish(50)
        stream.finish()
        began = time.monotonic()
        eventually(lambda: pair.links(topic)[("us", "eu")]["age_s"] > 2.0, "the age grows")
        row = pair.links(topic)[("us", "eu")]
        assert abs(row["age_s"] - (time.monotonic() - began)) < 1.5
        assert row["backlog_messages"] == 50 and row["backlog_bytes"] > 0
        assert not row["connected"] and row["cause"]
    finally:
        heal()
    assert_same_everywhere(pair, topic, [stream])


@pytest.mark.timeout(180)
def test_owner_killed_then_back(pair: Instance) -> None:
    """SIGKILL of the broker in us that owns the topic: the other takes over, the link goes on, nothing acknowledged is lost."""
    from geo_tests.wan.instance import heliograph, rest

    topic = "persistent://public/geo/owner"
    streams = [Stream(pair, region, topic) for region in ("us", "eu")]
    for stream in streams:
        stream.publish(COUNT)
        stream.finish()

    def owner() -> str:
        try:
            port = int(rest("GET", f"{pair.admin('us')}/lookup/v2/topic/persistent/public/geo/owner")["brokerUrl"].rpartition(":")[2])
        except Exception:
            return ""
        return next((p["name"] for p in pair.status()["regions"]["us"]["processes"] if p["ports"].get("service") == port), "")

    first = owner()
    heliograph("process", "kill", first, "--data", str(pair.data))
    try:
        for stream in streams:
            stream.publish(COUNT)
        eventually(lambda: owner() not in ("", first), "the other broker takes over", 15)
        assert_same_everywhere(pair, topic, streams)
    finally:
        heliograph("process", "start", first, "--data", str(pair.data))


@pytest.mark.timeout(240)
def test_a_stopped_instance_continues_where_it_was(pair: Instance) -> None:
    topic = "persistent://public/geo/again"
    streams = [Stream(pair, region, topic) for region in ("us", "eu")]
    for stream in streams:
        stream.publish(COUNT)
        stream.finish()
    before = {region: stream.bodies() for region, stream in zip(("us", "eu"), streams, strict=True)}
    pair.down()
    pair.up()
    eventually(lambda: len(pair.links(topic)) == 2 and all(r["backlog_messages"] == 0 for r in pair.links(topic).values()), "links drained again")
    for region in ("us", "eu"):
        copy = pair.read_all(region, topic)
        for origin, bodies in before.items():
            assert [b for b in copy if b.startswith(origin)] == bodies
