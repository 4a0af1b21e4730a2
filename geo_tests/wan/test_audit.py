"""The audit between real regions: what every bookie of one region has lost of a topic comes back from the other region,
under the same ids.
"""

from __future__ import annotations

import json

import pytest

from geo_tests.wan.damaged_copies import audit, damage, restart_bookies
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.streams import assert_same_everywhere
from heliograph.model.errors import ConfigError
from region_node.chaos.streams import NumberedStream

pytestmark = pytest.mark.long


def test_entries_that_every_bookie_lost_come_back_in_place(pair: Instance) -> None:
    topic = "persistent://public/geo/audited"
    streams = [  # no other topic has messages of such names
        NumberedStream(pair, region, topic, name=f"audited-{region}") for region in ("us", "eu")
    ]
    for _ in range(4):
        for stream in streams:
            stream.publish(50)
            stream.finish()
    assert_same_everywhere(pair, topic, streams)
    for region in ("us", "eu"):
        whole = audit(pair, region, topic)
        assert whole["found"] == {} and whole["entries"] >= 400, whole
    restart_bookies(pair, "eu")
    for body in (b"audited-us-120", b"audited-eu-60"):
        damage(pair, "eu", body)
    report = eventually(
        lambda: not (found := audit(pair, "eu", topic))["error"] and found, "the broker reads from its bookies again"
    )
    assert report["found"].get("unreadable", 0) >= 2 and report["left"] == 0, report
    coordinates = {finding["coordinate"].split(".")[0] for finding in report["findings"]}
    assert coordinates == {"1", "2"}, "own entries, and the other region's"
    again = audit(pair, "eu", topic)
    assert again["found"] == {} and again["entries"] == report["entries"] + sum(report["found"].values())
    assert_same_everywhere(pair, topic, streams)


def test_what_the_source_lost_before_it_was_sent_is_given_up_by_a_person(pair: Instance) -> None:
    topic, us = "persistent://public/geo/given-up", pair.admin("us")
    path = topic.removeprefix("persistent://")
    producer = pair.client("us").create_producer(topic, batching_enabled=False)
    bodies = [f"given-up-{n:03}" for n in range(40)]
    producer.send(bodies[0].encode())
    eventually(lambda: pair.read_all("eu", topic) == bodies[:1], "the link is up")
    try:
        for proxy in pair.proxies("link", "us", "eu"):
            pair.toxiproxy.cut(proxy.name)
        for body in bodies[1:]:
            producer.send(body.encode())
        rest("PUT", f"{us}/admin/v2/persistent/{path}/unload")
        restart_bookies(pair, "us")
        damage(pair, "us", b"given-up-020")
    finally:
        for proxy in pair.proxies("link", "us", "eu"):
            pair.toxiproxy.heal(proxy.name)

    def waits() -> bool:
        try:
            links = rest("GET", f"{us}/heliograph/v1/topics/{path}/links")["links"]
        except ConfigError:  # nobody has the topic at this moment
            return False
        return any(link["cause"] == "storage" for link in links)

    command = ("topics", "give-up", topic, "--region", "eu", "--json", "--admin", us)
    eventually(waits, "the link stands before what is lost")
    (would,) = json.loads(
        eventually(lambda: waits() and heliograph(*command, "--dry-run", check=False).stdout, "which entries those are")
    )
    (ledger, first), (_, last) = would["first"], would["last"]
    assert first <= last and would["dry_run"]
    eventually(
        lambda: (
            (done := heliograph(*command, check=False)).returncode == 0
            and json.loads(done.stdout)[0]["first"] == [ledger, first]
        ),
        "it is given up",
    )
    left = eventually(
        lambda: (found := pair.read_all("eu", topic))[-1:] == bodies[-1:] and found, "what is behind them arrives"
    )
    gone = [body for body in bodies if body not in left]
    assert (
        "given-up-020" in gone
        and len(gone) == last - first + 1
        and left == [body for body in bodies if body not in gone]
    )
    vector = rest("GET", f"{pair.admin('eu')}/heliograph/v1/topics/{path}/vectors")["regions"]["eu"]["origins"]
    assert any(origin["missing"] for origin in vector), vector
