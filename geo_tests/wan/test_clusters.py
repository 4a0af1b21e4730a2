"""Two regions, and a Pulsar cluster behind one of them: messages and subscriptions cross both ways, each message once,
whatever dies.

The cluster is another Heliograph, which is told nothing but that: to each side the other one is a Pulsar cluster,
spoken to in Pulsar's protocol alone. Against a real one: tests/system/test_interop.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph
from region_node.chaos.streams import NumberedStream
from region_node.commands.demo import _rest as rest

pytestmark = pytest.mark.long

NAMESPACE = "public/linked"


@pytest.fixture(scope="module")
def cloud(pair: Instance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Behind region us of `pair` it is a cluster called `cloud`; to it, region us is a cluster called `us`."""
    made = Instance(tmp_path_factory.mktemp("cloud") / "data", regions=("cloud",), wan="none")
    try:
        for here, name, there, gateway in ((pair, "cloud", made, "us"), (made, "us", pair, "cloud")):
            other = there.state["regions"][name]
            addresses = ("--url", other["admin_url"], "--broker-url", other["service_url"])
            heliograph("clusters", "create", name, *addresses, "--gateway", gateway, "--admin", here.admin(gateway))
        yield made
    finally:
        rest("POST", f"{pair.admin('us')}/admin/v2/namespaces/{NAMESPACE}/replication", ["us", "eu"])
        made.down()


@pytest.fixture(scope="module")
def linked(pair: Instance, cloud: Instance) -> tuple[Instance, Instance]:
    pair.namespace(NAMESPACE, ["us", "eu"])
    rest("POST", f"{pair.admin('us')}/admin/v2/namespaces/{NAMESPACE}/replication", ["us", "eu", "cloud"])
    cloud.namespace(NAMESPACE, ["cloud"])
    rest("POST", f"{cloud.admin('cloud')}/admin/v2/namespaces/{NAMESPACE}/replication", ["cloud", "us"])
    return pair, cloud


def same_everywhere(pair: Instance, cloud: Instance, topic: str, streams: list[NumberedStream]) -> None:
    for stream in streams:
        stream.finish()
    sent = sum(stream.sent for stream in streams)
    for instance, region in ((pair, "us"), (pair, "eu"), (cloud, "cloud")):

        def whole(instance: Instance = instance, region: str = region) -> list[str] | None:
            found = instance.read_all(region, topic)
            return found if len(found) >= sent else None

        copy = eventually(whole, f"{sent} messages in {region}")
        for stream in streams:
            assert [body for body in copy if body.startswith(f"{stream.region}-")] == stream.bodies(), (
                f"{stream.region}'s messages in {region}"
            )
        assert len(copy) == sent


def test_messages_cross_both_ways_once_and_in_order_through_kills(linked: tuple[Instance, Instance]) -> None:
    pair, cloud = linked
    topic = f"persistent://{NAMESPACE}/orders"
    streams = [
        NumberedStream(pair, "us", topic),
        NumberedStream(pair, "eu", topic),
        NumberedStream(cloud, "cloud", topic),
    ]
    for stream in streams:
        stream.publish(100)
    eventually(lambda: len(cloud.read_all("cloud", topic)) > 200, "what both regions published, in the cluster")
    owner = next(name for name in ("us-broker-0", "us-broker-1") if owns(pair, name, topic))
    for instance, broker in ((cloud, "cloud-broker-0"), (pair, owner)):
        heliograph("process", "kill", broker, "--data", str(instance.data))
        for stream in streams:
            stream.publish(100)
        heliograph("process", "start", broker, "--data", str(instance.data))
        for stream in streams:
            stream.publish(100)
    same_everywhere(pair, cloud, topic, streams)

    def whole_again() -> bool:
        links = [row for row in pair.status()["links"] if row["topic"] == topic and row["target"] == "cloud"]
        return len(links) == 1 and links[0]["source"] == "us" and links[0]["cause"] == "none" and links[0]["connected"]

    eventually(whole_again, "one link to the cluster, from its gateway")


def owns(instance: Instance, broker: str, topic: str) -> bool:
    bundle = rest("GET", f"{instance.admin('us')}/lookup/v2/topic/{topic.replace('://', '/')}")
    ports = next(row["ports"] for row in instance.status()["regions"]["us"]["processes"] if row["name"] == broker)
    return str(bundle["brokerUrl"]).rpartition(":")[2] in {str(port) for port in ports.values()}


def test_a_replicated_subscription_goes_on_at_either_side(linked: tuple[Instance, Instance]) -> None:
    pair, cloud = linked
    topic = f"persistent://{NAMESPACE}/jobs"
    streams = [NumberedStream(pair, "us", topic), NumberedStream(cloud, "cloud", topic)]
    here, there = (
        instance.client(region).subscribe(
            topic, "work", initial_position=pulsar.InitialPosition.Earliest, replicate_subscription_state_enabled=True
        )
        for instance, region in ((pair, "us"), (cloud, "cloud"))
    )
    for consumer in (here, there):
        for stream in streams:
            stream.publish(20)
            stream.finish()
        other = there if consumer is here else here
        acknowledge(consumer)
        side = (cloud, "cloud") if other is there else (pair, "us")

        def followed(
            streams: list[NumberedStream] = streams, side: tuple[Instance, str] = side, consumer: Any = consumer
        ) -> bool:
            """Only what is newer than the newest snapshot comes again there; a message now and then makes new
            snapshots.
            """
            streams[0].publish(1)
            acknowledge(consumer)
            return backlog(side[0], side[1], topic) <= 8

        eventually(followed, f"acknowledgements in {side[1]}")


def acknowledge(consumer: Any) -> None:
    """Everything that is there now."""
    try:
        while True:
            consumer.acknowledge(consumer.receive(timeout_millis=500))
    except pulsar.Timeout:
        return


def backlog(instance: Instance, region: str, topic: str) -> int:
    stats = rest("GET", f"{instance.admin(region)}/admin/v2/{topic.replace('://', '/')}/stats")
    return int(stats["subscriptions"]["work"]["msgBacklog"])


def test_a_cluster_that_a_namespace_names_stays(linked: tuple[Instance, Instance]) -> None:
    pair, _ = linked
    refused = heliograph("clusters", "delete", "cloud", "--admin", pair.admin("us"), check=False)
    assert refused.returncode != 0 and f"still used by namespace {NAMESPACE}" in refused.stderr + refused.stdout
    taken = heliograph(
        "clusters",
        "create",
        "eu",
        "--gateway",
        "us",
        "--broker-url",
        "pulsar://127.0.0.1:1",
        "--admin",
        pair.admin("us"),
        check=False,
    )
    assert taken.returncode != 0 and "name of a region" in taken.stderr + taken.stdout
    assert "cloud" in heliograph("clusters", "list", "--admin", pair.admin("eu")).stdout
