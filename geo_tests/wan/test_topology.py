"""Four real regions: entries go on along a chain, the chain becomes a star and then a mesh while everybody publishes,
one link of it is cut; and each message is in each region once, in the order of its producer, under its origin's
coordinate, with nothing at risk in the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from geo_tests.wan.damaged_copies import audit
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.streams import drained
from region_node.chaos.streams import NumberedStream

pytestmark = pytest.mark.long

REGIONS = ("us", "eu", "ap", "sa")
NAMESPACE = "public/ways"


@pytest.fixture(scope="module")
def quartet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("quartet")
    near = {"rtt_ms": 10, "jitter_ms": 1}
    (folder / "wan.json").write_text(
        json.dumps({f"{a}-{b}": near for i, a in enumerate(REGIONS) for b in REGIONS[i + 1 :]})
    )
    instance = Instance(folder / "data", regions=REGIONS, wan=str(folder / "wan.json"))
    try:
        yield instance
    finally:
        instance.down()


def sent_directly(instance: Instance, topic: str) -> dict[str, int]:
    """Link -> bytes of runs that it has carried."""
    return {f"{source}-{target}": row["run_bytes"] for (source, target), row in instance.links(topic).items()}


def everything_everywhere(instance: Instance, topic: str, streams: list[NumberedStream]) -> bool:
    for stream in streams:
        stream.finish()
    eventually(lambda: drained(instance, topic), "nothing at risk", 150)
    for region in REGIONS:
        copy = instance.read_all(region, topic)
        for stream in streams:
            assert [body for body in copy if body.startswith(stream.region)] == stream.bodies(), (
                f"{stream.region}'s messages in {region}"
            )
        assert len(copy) == sum(stream.sent for stream in streams)
    return True


def choose(instance: Instance, value: Any) -> None:
    heliograph(
        "namespaces", "set", NAMESPACE, "replicationTopology", json.dumps(value), "--admin", instance.admin("us")
    )


@pytest.mark.timeout(600)
def test_a_chain_becomes_a_star_becomes_a_mesh_under_load(quartet: Instance) -> None:
    quartet.namespace(NAMESPACE, list(REGIONS))
    choose(quartet, {"kind": "chain", "regions": list(REGIONS)})
    for region in REGIONS:
        path = f"{quartet.admin(region)}/admin/v2/namespaces/{NAMESPACE}/replicationTopology"
        eventually(lambda path=path: (rest("GET", path) or {}).get("kind") == "chain", "the policy is known")
    topic = f"persistent://{NAMESPACE}/t"
    streams = [NumberedStream(quartet, region, topic) for region in REGIONS]
    for stream in streams:
        stream.publish(50)
    assert everything_everywhere(quartet, topic, streams)
    carried = sent_directly(quartet, topic)
    assert all(carried[edge] > 0 for edge in ("us-eu", "eu-us", "eu-ap", "ap-eu", "ap-sa", "sa-ap")), carried
    assert not any(carried[edge] for edge in ("us-ap", "us-sa", "eu-sa", "sa-us", "sa-eu", "ap-us")), (
        f"only neighbours in a chain deliver: {carried}"
    )

    reader = quartet.client("sa").create_reader(topic, pulsar.MessageId.earliest)
    froms = {reader.read_next(timeout_millis=60_000).data().decode()[:2] for _ in range(200)}
    assert froms == set(REGIONS)

    only = f"persistent://{NAMESPACE}/only"
    producer = quartet.client("us").create_producer(only)
    for n in range(20):
        producer.send(b"%d" % n, replication_clusters=["sa"])
    eventually(
        lambda: topics(quartet, "sa") >= {topic, only} and len(quartet.read_all("sa", only)) == 20,
        "what is for sa alone has gone through eu and ap",
    )
    for region in ("eu", "ap", "sa"):
        report = checked(quartet, region, only)
        assert report["found"] == {} and report["entries"] >= 20, f"what {region} only passes on is there: {report}"

    choose(quartet, {"kind": "star", "center": "ap"})
    for _ in range(6):
        for stream in streams:
            stream.publish(25)
    (proxy,) = quartet.proxies("link", "us", "ap")[:1]
    quartet.toxiproxy.cut(proxy.name)
    for stream in streams:
        stream.publish(25)
    quartet.toxiproxy.heal(proxy.name)
    assert everything_everywhere(quartet, topic, streams)
    before = sent_directly(quartet, topic)
    streams[0].publish(25)
    assert everything_everywhere(quartet, topic, streams)
    after = sent_directly(quartet, topic)
    assert after["us-eu"] == before["us-eu"] and after["ap-sa"] > before["ap-sa"], "what us publishes goes by ap now"

    choose(quartet, {"kind": "mesh"})
    for stream in streams:
        stream.publish(50)
    assert everything_everywhere(quartet, topic, streams)
    for region in REGIONS:
        report = checked(quartet, region, topic)
        assert report["found"] == {}, f"through every change of tree: {region}: {report}"


def checked(instance: Instance, region: str, topic: str) -> dict[str, Any]:
    """An audit that compared everything: where another region did not answer in time, the next one."""
    whole: dict[str, Any] = eventually(
        lambda: not (found := audit(instance, region, topic))["unchecked_ranges"] and found,
        f"{region} compared all of it",
    )
    return whole


def topics(instance: Instance, region: str) -> set[str]:
    return set(rest("GET", f"{instance.admin(region)}/admin/v2/persistent/{NAMESPACE}"))


def test_a_topology_that_leaves_somebody_out_is_refused_with_a_sentence(quartet: Instance) -> None:
    quartet.namespace("public/refused", list(REGIONS))
    done = heliograph(
        *(
            "namespaces",
            "set",
            "public/refused",
            "replicationTopology",
            json.dumps({"kind": "chain", "regions": ["us", "eu"]}),
        ),
        *("--admin", quartet.admin("us")),
        check=False,
    )
    assert done.returncode and "leaves out ap, sa" in done.stdout + done.stderr
