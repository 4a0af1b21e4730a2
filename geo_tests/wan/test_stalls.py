"""Links that meet a fault say which one, what is at risk meanwhile on both sides, and go on by themselves with nothing
lost and nothing twice.
"""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.streams import assert_same_everywhere
from region_node.chaos.streams import NumberedStream


def published(instance: Instance, name: str, count: int = 50) -> tuple[str, NumberedStream]:
    """A topic with messages of us that eu has, too."""
    topic = f"persistent://public/geo/{name}"
    stream = NumberedStream(instance, "us", topic)
    stream.publish(count)
    stream.finish()
    eventually(
        lambda: (row := instance.links(topic).get(("us", "eu"))) and row["connected"] and not row["backlog_messages"],
        "drained",
    )
    return topic, stream


def risk(instance: Instance, region: str, topic: str) -> dict[str, Any]:
    answer: dict[str, Any] = rest(
        "GET", f"{instance.admin(region)}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/risk"
    )
    return answer


def causes(instance: Instance, topic: str) -> list[str]:
    return [event["cause"] for event in instance.links(topic)[("us", "eu")]["history"]]


def test_black_hole_without_a_reset(pair: Instance) -> None:
    """Nothing is refused and nothing closed: only silence. Both sides tell the risk; the cause is shown with its
    remedy, in status and metrics.
    """
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

        def noticed() -> dict[str, Any] | None:
            """It is told from 5 s of silence on, the connection is closed a moment later."""
            row = pair.links(topic).get(("us", "eu"))
            causes = [event["cause"] for event in row["history"]] if row else []
            return row if row and not row["connected"] and "heartbeat-lost" in causes else None

        row = eventually(noticed, "noticed")
        assert row["remedy"], row
        asked = time.monotonic()
        here, there = risk(pair, "us", topic)["not_yet_elsewhere"]["eu"], risk(pair, "eu", topic)["not_yet_here"]["us"]
        assert (
            here["messages"] == 30
            and here["bytes"] > 0
            and asked - taken - 1 < here["age_s"] < time.monotonic() - began + 1
        )
        assert there["silent_s"] > asked - began - 1.5 and there["age_s_max"] >= there["silent_s"] - 1.5
    finally:
        for proxy in proxies:
            pair.toxiproxy.heal(proxy.name)
    assert_same_everywhere(pair, topic, [stream])
    eventually(
        lambda: abs(risk(pair, "eu", topic)["not_yet_here"]["us"]["clock_offset_ms"]) < 100,
        "two processes on one clock",
    )
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
        eventually(
            lambda: pair.links(topic).get(("us", "eu"), {}).get("backlog_messages") == 0, "it drains, slowly", 150
        )
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
    rest("DELETE", f"{pair.admin('eu')}/admin/v2/persistent/public/geo/deleted-there?force=true&onlyHere=true")
    stream.publish(20)
    assert_same_everywhere(pair, topic, [stream])
    assert "moved" in causes(pair, topic)


def test_what_a_non_persistent_topic_does_not_send_is_counted(pair: Instance) -> None:
    """By region, in the topic's statistics and in the metrics of its broker; a persistent one beside it goes on as
    ever.
    """
    topic = "non-persistent://public/geo/dropped"
    stream = NumberedStream(pair, "eu", topic)
    stream.publish(25)
    stream.finish()
    stats = rest("GET", f"{pair.admin('eu')}/admin/v2/non-persistent/public/geo/dropped/stats")["replication"]
    assert {region: (row["msgDropCount"], row["connected"], row["cause"]) for region, row in stats.items()} == {
        "us": (25, False, "non-persistent")
    }
    scraped = urllib.request.urlopen(f"{pair.admin('eu')}/metrics", timeout=60).read().decode()
    (line,) = [
        line
        for line in scraped.splitlines()
        if line.startswith("heliograph_replication_unsent_messages_total{") and 'remote_cluster="us"' in line
    ]
    assert float(line.rpartition(" ")[2]) == 25
    kept, persistent = published(pair, "not-dropped", 5)
    assert_same_everywhere(pair, kept, [persistent])


def test_what_an_admin_deletes_before_it_has_arrived_is_named_with_its_reason(pair: Instance) -> None:
    """Truncated, and then deleted and made again at its source, while the link is cut: eu shows which coordinates it
    lacks, and why.
    """
    topic, stream = published(pair, "deleted-here", 10)
    path = f"{pair.admin('us')}/admin/v2/persistent/public/geo/deleted-here"
    for proxy in pair.proxies("link", "us", "eu"):
        proxy.disable()
    try:
        eventually(lambda: not pair.links(topic)[("us", "eu")]["connected"], "cut")
        stream.publish(20)
        stream.finish()
        rest("DELETE", f"{path}/truncate")
        stream.publish(5)
        stream.finish()
        rest("PUT", f"{path}/unload")  # another owner has not seen where the link stood
    finally:
        for proxy in pair.proxies("link", "us", "eu"):
            proxy.enable()
    eventually(
        lambda: pair.read_all("eu", topic) == [f"us-{n}" for n in (*range(10), *range(30, 35))],
        "what was published since",
    )
    (row,) = lacking(pair, topic)
    assert [one["reason"] for one in row["reasons"]] == ["deleted"] and len(row["missing"]) == 1
    coordinate = f"{row['origin']}:{row['missing'][0][1][0]}:{row['missing'][0][1][1]}"
    told = heliograph(
        "topics", "position", topic, coordinate, "--admin", pair.admin("eu"), "--json", check=False
    ).stdout
    assert json.loads(told)["status"] == json.loads(told)["reason"] == "deleted"
    assert "deleted" in heliograph("topics", "vector", topic, "--admin", pair.admin("eu")).stdout
    for proxy in pair.proxies("link", "us", "eu"):
        proxy.disable()
    try:
        eventually(lambda: not pair.links(topic)[("us", "eu")]["connected"], "cut again")
        stream.publish(5)
        stream.finish()
        rest("DELETE", f"{path}?force=true&onlyHere=true")
    finally:
        for proxy in pair.proxies("link", "us", "eu"):
            proxy.enable()
    stream.publish(3)  # its producer comes back, and so does the topic
    stream.finish()
    former = eventually(
        lambda: next(
            (r for r in lacking(pair, topic) if r["origin"] == row["origin"] and len(r["reasons"]) == 2), None
        ),
        "told",
    )
    assert [one["reason"] for one in former["reasons"]] == ["deleted", "deleted"]
    last = f"{row['origin']}:{former['through'][0]}:{former['through'][1]}"
    told = heliograph("topics", "position", topic, last, "--admin", pair.admin("eu"), "--json", check=False).stdout
    assert json.loads(told)["status"] == "deleted"
    eventually(
        lambda: pair.read_all("eu", topic)[-3:] == [f"us-{n}" for n in range(40, 43)],
        "what was published to the new one",
    )


def lacking(instance: Instance, topic: str) -> list[dict[str, Any]]:
    """Of which origins eu lacks something, as it tells."""
    answer = rest("GET", f"{instance.admin('eu')}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/vectors")
    return [row for row in answer["regions"]["eu"]["origins"] if row["missing"]]
