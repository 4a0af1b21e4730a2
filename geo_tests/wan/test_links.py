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

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.streams import assert_same_everywhere, cut, drained
from region_node.chaos.streams import NumberedStream, missing

COUNT = 300


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
    streams = [NumberedStream(pair, region, topic) for region in ("us", "eu")]
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
    stream = NumberedStream(pair, "us", topic)
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
    streams = [NumberedStream(pair, region, topic) for region in ("us", "eu")]
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
    streams = [NumberedStream(pair, region, topic) for region in ("us", "eu")]
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
    stream = NumberedStream(pair, "eu", topic)
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
        NumberedStream(pair, "eu", "persistent://public/geo/owned"),
        NumberedStream(pair, "eu", "persistent://public/geo/lent", first_sequence=None),
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
