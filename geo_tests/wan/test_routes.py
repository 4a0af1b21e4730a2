"""One-way replication by policy: messages go where a route leads, acknowledgements of replicated subscriptions go both
ways all the same.
"""

from __future__ import annotations

import pulsar

from geo_tests.wan.instance import Instance, eventually, rest
from region_node.chaos.streams import NumberedStream


def test_one_way_data_and_acknowledgements_both_ways(pair: Instance) -> None:
    pair.namespace("public/one-way", ["us", "eu"])
    base = f"{pair.admin('us')}/admin/v2/namespaces/public/one-way"
    rest("POST", f"{base}/replicationRoutes", {"us": ["eu"]})
    rest("POST", f"{base}/replicatedSubscriptions", True)
    for region in ("us", "eu"):
        path = f"{pair.admin(region)}/admin/v2/namespaces/public/one-way"
        eventually(lambda path=path: rest("GET", f"{path}/replicatedSubscriptions") is True, "the policies are known")
    topic = "persistent://public/one-way/t"
    here, there = NumberedStream(pair, "us", topic), NumberedStream(pair, "eu", topic)
    consumer = pair.client("us").subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    for stream in (here, there):
        stream.publish(20)
        stream.finish()
    eventually(lambda: len(pair.read_all("eu", topic)) == 40, "eu has both")
    for _ in range(15):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    assert set(pair.links(topic)) == {("us", "eu")} and pair.read_all("us", topic) == here.bodies()

    def left() -> int | None:
        found = rest("GET", f"{pair.admin('eu')}/admin/v2/persistent/public/one-way/t/stats")["subscriptions"].get("s")
        return None if found is None else found["msgBacklog"]

    eventually(lambda: left() == 5 + 20, "eu has the subscription, with what us acknowledged")
