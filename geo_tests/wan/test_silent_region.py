"""A whole region stops without a word (SIGSTOP: every connection stays open): what the survivors say of it."""

from __future__ import annotations

import os
import signal

import pulsar
import pytest

from geo_tests.wan.disaster import Load, active_passive, dr, stopped_pids
from geo_tests.wan.instance import Instance, eventually, heliograph, rest

pytestmark = pytest.mark.long

NAMESPACE = "public/silent"
TOPIC = f"persistent://{NAMESPACE}/orders"


def test_what_survivors_say_of_a_region_that_fell_silent(trio: Instance) -> None:
    """Soon, with what they know themselves, and since when they know nothing more. Once it goes on, so does
    everything.
    """
    active_passive(trio, NAMESPACE, "us")
    load = Load(trio.client("us"), TOPIC, "orders")
    load.wait_for(50)
    held = rest("GET", f"{trio.admin('eu')}/heliograph/v1/dr/{NAMESPACE}")
    assert held["targets"]["eu"]["can_switch"] and not held["targets"]["eu"]["target"]["silent_s"]
    stopped = {row["pid"] for row in trio.status()["regions"]["us"]["processes"] if row["pid"]}
    stopped_pids.update(stopped)
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)

        def silent() -> bool:
            told = dr(trio, "eu", "status", NAMESPACE)["targets"]["eu"]
            return bool(told["target"]["silent_s"] > 5)

        eventually(silent, "eu knows that it hears nothing")
        told = dr(trio, "eu", "status", NAMESPACE)
        assert told["active"] == "us" and not told["configuration"], "two of three regions are a majority"
        for target in told["targets"].values():
            assert "within 2 s" in target["source"]["unreachable"], "patience ended it, and no time-out of a connection"
        link = rest("GET", f"{trio.admin('eu')}/heliograph/v1/topics/{NAMESPACE}/orders/risk")
        for side in (link["not_yet_here"]["us"], link["not_yet_elsewhere"]["us"]):
            assert not side["connected"] and side["silent_s"] > 5
        assert link["not_yet_here"]["us"]["age_s_max"] > 5
        said = heliograph("dr", "failover", NAMESPACE, "--to", "eu", "--dry-run", "--admin", trio.admin("eu")).stdout
        assert "us does not answer" in said and "nothing heard for" in said
        forced = dr(trio, "eu", "failover", NAMESPACE, "--to", "eu", "--yes")
        assert forced["state"] == "done" and forced["report"]["before"]["silent_s"] > 5
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        load.end()
    eventually(
        lambda: dr(trio, "us", "status", NAMESPACE)["targets"]["us"]["can_switch"], "us is heard, and hears, again"
    )
    dr(trio, "eu", "rejoin", NAMESPACE, "--region", "us")
    reader = trio.client("eu").create_reader(TOPIC, pulsar.MessageId.earliest)
    found = set()
    while reader.has_message_available():
        found.add(int(reader.read_next(timeout_millis=60_000).data()))
    assert set(load.confirmed) <= found, "what was acknowledged stays"
