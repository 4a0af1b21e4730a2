"""A topic whose receipts mean two regions: with real clients, also while the other region is cut off."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, rest
from geo_tests.wan.test_links import Stream, assert_same_everywhere, cut


def durability(instance: Instance, topic: str) -> dict[str, Any]:
    answer: dict[str, Any] = rest("GET", f"{instance.admin('us')}/heliograph/v1/topics/{topic.removeprefix('persistent://')}/durability")
    return answer


@pytest.mark.timeout(120)
def test_receipts_mean_two_regions_and_what_does_not_is_listed(pair: Instance) -> None:
    topic = "persistent://public/geo/durable"
    stream = Stream(pair, "us", topic)
    stream.publish(5)
    stream.finish()
    rest("POST", f"{pair.admin('us')}/admin/v2/persistent/public/geo/durable/durability", {"regions": 2, "degradeAfterMs": 3000})
    eventually(lambda: durability(pair, topic)["regions"] == 2, "the policy holds")
    stream.publish(100)
    stream.finish()
    told = durability(pair, topic)
    assert told["affected_messages"] == 0 and not told["degraded"]
    assert len(pair.read_all("eu", topic)) == stream.sent, "a receipt means that eu has it"
    heal = cut(pair)
    try:
        stream.publish(30)
        stream.finish()
        told = durability(pair, topic)
        scraped = urllib.request.urlopen(f"{pair.admin('us')}/metrics", timeout=10).read().decode()
        assert 'heliograph_durability_degraded_topics{cluster="us"}' in scraped
        assert told["degraded"] and told["affected_messages"] == 30 and not any(a["arrived_since"] for a in told["affected"]), told
    finally:
        heal()
    told = eventually(lambda: not (found := durability(pair, topic))["degraded"] and found, "it goes back by itself")
    assert told["affected_messages"] == 30 and all(a["arrived_since"] for a in told["affected"])
    stream.publish(10)
    assert_same_everywhere(pair, topic, [stream])
    assert durability(pair, topic)["affected_messages"] == 30
