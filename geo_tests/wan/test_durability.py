"""A topic whose receipts mean two regions: with real clients, also while the other region is cut off."""

from __future__ import annotations

import urllib.request
from typing import Any

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.streams import assert_same_everywhere, cut
from heliograph.model.errors import ConfigError
from region_node.chaos.streams import NumberedStream


def durability(instance: Instance, topic: str) -> dict[str, Any]:
    answer: dict[str, Any] = rest(
        "GET", f"{instance.admin('us')}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/durability"
    )
    return answer


def test_receipts_mean_two_regions_and_what_does_not_is_listed(pair: Instance) -> None:
    topic = "persistent://public/geo/durable"
    stream = NumberedStream(pair, "us", topic)
    stream.publish(5)
    stream.finish()
    rest(
        "POST",
        f"{pair.admin('us')}/admin/v2/persistent/public/geo/durable/durability",
        {"regions": 2, "degradeAfterMs": 100_000},
    )
    eventually(lambda: durability(pair, topic)["regions"] == 2, "the policy holds")
    stream.publish(100)
    stream.finish()
    told = durability(pair, topic)
    assert told["affected_messages"] == 0 and not told["degraded"]
    assert len(pair.read_all("eu", topic)) == stream.sent, "a receipt means that eu has it"
    policy = f"{pair.admin('us')}/admin/v2/persistent/public/geo/durable/durability"
    rest("POST", policy, {"regions": 2, "degradeAfterMs": 3000})
    eventually(lambda: durability(pair, topic)["degrade_after_s"] == 3, "it waits for three seconds from now on")
    heal = cut(pair)
    try:
        stream.publish(30)
        stream.finish()
        told = durability(pair, topic)
        scraped = urllib.request.urlopen(f"{pair.admin('us')}/metrics", timeout=60).read().decode()
        assert 'heliograph_durability_degraded_topics{cluster="us"}' in scraped
        assert (
            told["degraded"]
            and told["affected_messages"] == 30
            and not any(a["arrived_since"] for a in told["affected"])
        ), told
    finally:
        heal()
    told = eventually(lambda: not (found := durability(pair, topic))["degraded"] and found, "it goes back by itself")
    assert told["affected_messages"] == 30 and all(a["arrived_since"] for a in told["affected"])
    rest("POST", policy, {"regions": 2, "degradeAfterMs": 100_000})
    eventually(lambda: durability(pair, topic)["degrade_after_s"] == 100, "and is patient again")
    stream.publish(10)
    assert_same_everywhere(pair, topic, [stream])
    assert durability(pair, topic)["affected_messages"] == 30


def test_the_list_survives_the_broker(pair: Instance) -> None:
    """SIGKILL of the owner while eu is cut off and the topic is degraded."""
    topic = "persistent://public/geo/durable-list"
    stream = NumberedStream(pair, "us", topic)
    stream.publish(5)
    stream.finish()
    rest(
        "POST",
        f"{pair.admin('us')}/admin/v2/{topic.replace('://', '/')}/durability",
        {"regions": 2, "degradeAfterMs": 2000},
    )
    eventually(lambda: durability(pair, topic)["regions"] == 2, "the policy holds")
    port = int(
        rest("GET", f"{pair.admin('us')}/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"].rpartition(":")[2]
    )
    owner = next(p["name"] for p in pair.status()["regions"]["us"]["processes"] if p["ports"].get("service") == port)
    heal = cut(pair)
    try:
        stream.publish(30)
        stream.finish()
        assert durability(pair, topic)["affected_messages"] == 30
        heliograph("process", "kill", owner, "--data", str(pair.data))
        told = eventually(
            lambda: found if (found := shown(pair, topic)).get("affected") else None, "the other broker shows it", 60
        )
        assert told["affected_messages"] >= 30 and not any(a["arrived_since"] for a in told["affected"]), told
    finally:
        heal()
        heliograph("process", "start", owner, "--data", str(pair.data))
    eventually(
        lambda: all(a["arrived_since"] for a in shown(pair, topic).get("affected", [{"arrived_since": False}])),
        "and that it has arrived",
        60,
    )
    assert_same_everywhere(pair, topic, [stream])


def shown(instance: Instance, topic: str) -> dict[str, Any]:
    """Empty while nobody has the topic."""
    try:
        return durability(instance, topic)
    except (ConfigError, OSError):
        return {}
