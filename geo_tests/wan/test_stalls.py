"""Links that meet a fault say which one, what is at risk meanwhile on both sides, and go on by themselves with nothing lost and nothing twice."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.test_links import Stream, assert_same_everywhere


def published(instance: Instance, name: str, count: int = 50) -> tuple[str, Stream]:
    """A topic with messages of us that eu has, too."""
    topic = f"persistent://public/geo/{name}"
    stream = Stream(instance, "us", topic)
    stream.publish(count)
    stream.finish()
    eventually(lambda: (row := instance.links(topic).get(("us", "eu"))) and row["connected"] and not row["backlog_messages"], "drained")
    return topic, stream


def risk(instance: Instance, region: str, topic: str) -> dict[str, Any]:
    answer: dict[str, Any] = rest("GET", f"{instance.admin(region)}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/risk")
    return answer


def causes(instance: Instance, topic: str) -> list[str]:
    return [event["cause"] for event in instance.links(topic)[("us", "eu")]["history"]]


def test_black_hole_without_a_reset(pair: Instance) -> None:
    """Nothing is refused and nothing closed: only silence. Both sides tell the risk; the cause is shown with its remedy, in status and metrics."""
    topic, stream = published(pair, "black-hole")
    proxies = pair.proxies("link", "us", "eu")
    for proxy in proxies:
        pair.toxiproxy.black_hole(proxy.name, "upstream")
        proxy.add_toxic(name="hole_back", type="timeout", stream="downstream", attributes={"timeout": 0})
    try:
        began = time.monotonic()
        stream.publish(30)
        stream.finish()
        taken = time.monotonic()
        row = eventually(lambda: (row := pair.links(topic).get(("us", "eu"))) and not row["connected"] and row, "noticed")
        assert "heartbeat-lost" in [event["cause"] for event in row["history"]] and row["remedy"], row
        asked = time.monotonic()
        here, there = risk(pair, "us", topic)["not_yet_elsewhere"]["eu"], risk(pair, "eu", topic)["not_yet_here"]["us"]
        assert here["messages"] == 30 and here["bytes"] > 0 and asked - taken - 1 < here["age_s"] < time.monotonic() - began + 1
        assert there["silent_s"] > asked - began - 1.5 and there["age_s_max"] >= there["silent_s"] - 1.5
    finally:
        for proxy in proxies:
            pair.toxiproxy.heal(proxy.name)
    assert_same_everywhere(pair, topic, [stream])
    eventually(lambda: abs(risk(pair, "eu", topic)["not_yet_here"]["us"]["clock_offset_ms"]) < 100, "two processes on one clock")
    scraped = urllib.request.urlopen(f"{pair.admin('eu')}/metrics", timeout=60).read().decode()
    assert 'heliograph_replication_latency_seconds_bucket{cluster="eu",remote_cluster="us",le="+Inf"}' in scraped


def test_a_slow_peer_is_no_stall(pair: Instance) -> None:
    topic, stream = published(pair, "slow-peer")
    before = causes(pair, topic)
    proxies = pair.proxies("link", "us", "eu")
    for proxy in proxies:
        proxy.add_toxic(name="narrow", type="bandwidth", stream="upstream", attributes={"rate": 20})
    try:
        stream.publish(800)
        stream.finish()
        eventually(lambda: pair.links(topic).get(("us", "eu"), {}).get("backlog_messages") == 0, "it drains, slowly", 150)
    finally:
        for proxy in proxies:
            pair.toxiproxy.heal(proxy.name)
    assert causes(pair, topic) == before
    assert_same_everywhere(pair, topic, [stream])


def test_a_peer_that_refuses_then_one_that_is_restarted(pair: Instance) -> None:
    topic, stream = published(pair, "refused")
    broker = next(p["name"] for p in pair.status()["regions"]["eu"]["processes"] if "broker" in p["name"])
    heliograph("process", "kill", broker, "--data", str(pair.data))
    try:
        stream.publish(20)
        stream.finish()
        eventually(lambda: pair.links(topic).get(("us", "eu"), {}).get("connected") is False, "noticed")
        assert set(causes(pair, topic)) & {"connection-lost", "unreachable"}
    finally:
        heliograph("process", "start", broker, "--data", str(pair.data))
    assert_same_everywhere(pair, topic, [stream])


def test_the_topic_is_deleted_at_the_target(pair: Instance) -> None:
    """The link makes it again there, and everything that the source still has arrives once more, each message once."""
    topic, stream = published(pair, "deleted-there")
    rest("DELETE", f"{pair.admin('eu')}/admin/v2/persistent/public/geo/deleted-there?force=true")
    stream.publish(20)
    assert_same_everywhere(pair, topic, [stream])
    assert "moved" in causes(pair, topic)
