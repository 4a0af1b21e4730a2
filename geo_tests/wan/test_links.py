"""Links between real regions: faults of the network, in each shape that Toxiproxy has, end in the same messages on both
sides, each once, in order.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph, rest

COUNT = 300


class Stream:
    """Publishes numbered messages from one region, and knows which were acknowledged. `repeats`: those whose receipt names no position.

    The C++ client that is given no first sequence takes the broker's last one whenever it connects and has no receipt yet, and so begins anew behind
    messages that it has sent: what follows are repeats, and not stored. With a first sequence it never does: what is missing then was lost.
    """

    def __init__(self, instance: Instance, region: str, topic: str, first_sequence: int | None = 1) -> None:
        self.region, self.sent, self.acked = region, 0, 0
        self.repeats: set[int] = set()
        settings = {
            "batching_enabled": False,
            "block_if_queue_full": True,
            "send_timeout_millis": 0,
            "initial_sequence_id": first_sequence,
        }
        self._producer = instance.client(region).create_producer(topic, f"p-{region}", **settings)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._producer.send_async(f"{self.region}-{self.sent}".encode(), partial(self._acked, self.sent))
            self.sent += 1

    def _acked(self, number: int, result: Any, where: Any) -> None:
        if "Ok" in str(result):
            if where.ledger_id() < 0:
                self.repeats.add(number)
            self.acked += 1

    def bodies(self) -> list[str]:
        return [f"{self.region}-{n}" for n in range(self.sent)]

    def finish(self) -> None:
        self._producer.flush()
        eventually(lambda: self.acked == self.sent, f"{self.region}: all acknowledged")


def missing(stream: Stream, copy: list[str]) -> str:
    """What is wrong with a region's copy of what the stream published; "": nothing."""
    mine = [int(body.rpartition("-")[2]) for body in copy if body.startswith(f"{stream.region}-")]
    if mine == list(range(stream.sent)):
        return ""
    lost, twice = sorted(set(range(stream.sent)) - set(mine)), len(mine) - len(set(mine))
    repeats = f", {len(stream.repeats & set(lost))} of them answered as repeats" if lost else ""
    what = f"{len(lost)} lost ({lost[0]} to {lost[-1]})" if lost else "none lost"
    return f"{what}{repeats}, {twice} twice, in order: {mine == sorted(mine)}"


def drained(instance: Instance, topic: str) -> bool:
    """Between all regions, each way. A link that is not open yet may not know what it has left."""
    rows, regions = instance.links(topic), len(instance.state["regions"])
    return len(rows) == regions * (regions - 1) and all(
        row["connected"] and row["backlog_messages"] == 0 for row in rows.values()
    )


def assert_same_everywhere(instance: Instance, topic: str, streams: list[Stream]) -> None:
    for stream in streams:
        stream.finish()
    eventually(lambda: drained(instance, topic), "links drained")
    for region in ("us", "eu"):
        copy = instance.read_all(region, topic)
        for stream in streams:
            assert [b for b in copy if b.startswith(stream.region)] == stream.bodies(), (
                f"{stream.region}'s messages in {region}"
            )
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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_a_fault_ends_without_help(pair: Instance, fault: Callable[[Instance], Callable[[], None]]) -> None:
    topic = f"persistent://public/geo/{fault.__name__}"
    streams = [Stream(pair, region, topic) for region in ("us", "eu")]
    for stream in streams:
        stream.publish(COUNT)
    eventually(
        lambda: len(pair.links(topic)) == 2 and all(r["connected"] for r in pair.links(topic).values()), "both links up"
    )
    heal = fault(pair)
    try:
        began = time.monotonic()
        while time.monotonic() < began + 3:
            for stream in streams:
                stream.publish(20)
            eventually(
                lambda: all(s.acked >= s.sent - 200 for s in streams), "publishing goes on while the link is bent"
            )
    finally:
        heal()
    assert_same_everywhere(pair, topic, streams)


def test_backlog_and_age_are_true_while_the_link_is_down(pair: Instance) -> None:
    topic = "persistent://public/geo/risk"
    stream = Stream(pair, "us", topic)
    stream.publish(10)
    stream.finish()
    eventually(lambda: pair.links(topic).get(("us", "eu"), {}).get("backlog_messages") == 0, "drained")
    heal = cut(pair)
    try:
        began = time.monotonic()
        stream.publish(50)
        stream.finish()
        taken = time.monotonic()

        def old() -> bool:
            row = pair.links(topic).get(("us", "eu"))
            return row is not None and not row["connected"] and row["age_s"] > 2.0

        eventually(old, "the age grows")
        asked = time.monotonic()
        row = pair.links(topic)[("us", "eu")]
        assert asked - taken - 1 < row["age_s"] < time.monotonic() - began + 1, (
            "as old as its oldest message, to a second"
        )
        assert row["backlog_messages"] == 50 and row["backlog_bytes"] > 0
        assert not row["connected"] and row["cause"]
    finally:
        heal()
    eventually(lambda: pair.links(topic).get(("us", "eu"), {}).get("connected"), "the link is back")

    def flowing() -> bool:
        """Both ends tell of it in Pulsar's words."""
        stream.publish(5)
        told = {
            r: rest("GET", f"{pair.admin(r)}/admin/v2/persistent/public/geo/risk/stats")["replication"]
            for r in ("us", "eu")
        }
        going, coming = told["us"]["eu"], told["eu"]["us"]
        assert not coming["msgRateOut"] and not going["msgRateIn"]
        return bool(min(going["msgRateOut"], going["msgThroughputOut"], coming["msgRateIn"], coming["msgThroughputIn"]))

    eventually(flowing, "rates of the link")
    assert_same_everywhere(pair, topic, [stream])


def test_owner_killed_then_back(pair: Instance) -> None:
    """SIGKILL of the broker in us that owns the topic: the other takes over, the link goes on, nothing acknowledged is
    lost.
    """
    from geo_tests.wan.instance import heliograph, rest

    topic = "persistent://public/geo/owner"
    streams = [Stream(pair, region, topic) for region in ("us", "eu")]
    for stream in streams:
        stream.publish(COUNT)
        stream.finish()

    def owner() -> str:
        try:
            port = int(
                rest("GET", f"{pair.admin('us')}/lookup/v2/topic/persistent/public/geo/owner")["brokerUrl"].rpartition(
                    ":"
                )[2]
            )
        except Exception:
            return ""
        return next(
            (p["name"] for p in pair.status()["regions"]["us"]["processes"] if p["ports"].get("service") == port), ""
        )

    first = owner()
    heliograph("process", "kill", first, "--data", str(pair.data))
    try:
        for stream in streams:
            stream.publish(COUNT)
        eventually(lambda: owner() not in ("", first), "the other broker takes over")
        assert_same_everywhere(pair, topic, streams)
    finally:
        heliograph("process", "start", first, "--data", str(pair.data))


def test_a_stopped_instance_continues_where_it_was(pair: Instance) -> None:
    topic = "persistent://public/geo/again"
    streams = [Stream(pair, region, topic) for region in ("us", "eu")]
    for stream in streams:
        stream.publish(COUNT)
        stream.finish()
    before = {region: stream.bodies() for region, stream in zip(("us", "eu"), streams, strict=True)}
    pair.down()
    pair.up()
    eventually(lambda: drained(pair, topic), "links drained again")
    for region in ("us", "eu"):
        copy = pair.read_all(region, topic)
        for origin, bodies in before.items():
            assert [b for b in copy if b.startswith(origin)] == bodies


def test_a_promise_that_is_broken_and_kept_again_is_told(pair: Instance) -> None:
    """Where every region takes messages: an event, the audit log, a metric, and `dr status` say so while the link is
    cut.
    """
    namespace, topic = "public/promised", "persistent://public/promised/orders"
    pair.namespace(namespace, ["eu", "us"])
    admin = pair.admin("eu")
    heliograph("namespaces", "set", namespace, "slo", '{"rpo_s": 1}', "--admin", admin)
    stream = Stream(pair, "eu", topic)
    stream.publish(5)
    stream.finish()
    eventually(lambda: pair.read_all("us", topic) == stream.bodies(), "us has them")

    def told() -> list[str]:
        return [
            event["event"]
            for event in rest("GET", f"{admin}/heliograph/v1/dr")["events"]
            if event["namespace"] == namespace
        ]

    before = told()
    undo = cut(pair)
    try:
        stream.publish(5)
        eventually(lambda: told()[len(before) :][-1:] == ["slo.broken"], "the promise is broken")
        assert "broken" in heliograph("dr", "status", "--admin", admin).stdout
        shown = json.loads(heliograph("dr", "status", namespace, "--admin", admin, "--json").stdout)
        assert shown["slo"] == {"rpo_s": 1.0} and shown["slo_broken"] and shown["at_risk_s"] > 1
        metrics = urllib.request.urlopen(f"{admin}/metrics", timeout=30).read().decode()
        assert f'heliograph_dr_slo_broken{{cluster="eu",namespace="{namespace}"}} 1' in metrics
    finally:
        undo()
    eventually(lambda: told()[-1:] == ["slo.kept"], "and kept again")
    audit = rest("GET", f"{admin}/heliograph/v1/audit")["changes"]
    assert {"slo.broken", "slo.kept"} <= {entry["path"] for entry in audit if entry["method"] == "EVENT"}
    assert not json.loads(heliograph("dr", "status", namespace, "--admin", admin, "--json").stdout)["slo_broken"]


def test_a_client_that_begins_its_sequences_anew_is_told_from_a_loss(pair: Instance) -> None:
    """Its broker dies before the first receipt: with sequences of its own nothing is missing, without, what is missing
    was never taken.
    """
    owned, lent = (
        Stream(pair, "eu", "persistent://public/geo/owned"),
        Stream(pair, "eu", "persistent://public/geo/lent", first_sequence=None),
    )
    name, pid = next(
        (row["name"], row["pid"]) for row in pair.status()["regions"]["eu"]["processes"] if "broker" in row["name"]
    )
    os.kill(pid, signal.SIGSTOP)
    for stream in (owned, lent):
        stream.publish(5)
    heliograph("process", "kill", name, "--data", str(pair.data))
    heliograph("process", "start", name, "--data", str(pair.data))
    for stream in (owned, lent):
        stream.finish()
        stream.publish(5)
        stream.finish()
    assert missing(owned, pair.read_all("eu", "persistent://public/geo/owned")) == "" and owned.repeats == set()
    told = missing(lent, pair.read_all("eu", "persistent://public/geo/lent"))
    assert told == "5 lost (5 to 9), 5 of them answered as repeats, 0 twice, in order: True" and lent.repeats == set(
        range(5, 10)
    )
