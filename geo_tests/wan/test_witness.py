"""Two regions and a witness: one of the regions is lost as a whole, with its vote; what was active there fails over,
and the region comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from geo_tests.wan.disaster import active_passive, dr, takes
from geo_tests.wan.instance import Instance, eventually, rest
from region_node.instance.control import STARTED_S, call
from region_node.instance.launch import alive

NAMESPACE, TOPIC = "public/two", "persistent://public/two/orders"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path / "data", regions=("us", "eu"), wan="none", witness="oslo")
    pids = made.pids()
    try:
        yield made
    finally:
        made.down()
    assert not [pid for pid in pids if alive(pid)]


def publish(instance: Instance, region: str, bodies: list[str]) -> None:
    producer = instance.client(region).create_producer(TOPIC, batching_enabled=False)
    for body in bodies:
        producer.send(body.encode())
    producer.close()


def test_the_active_region_of_two_is_lost_with_its_vote(instance: Instance) -> None:
    eu, data = instance.admin("eu"), instance.data
    assert sorted(rest("GET", f"{eu}/admin/v2/clusters")) == ["eu", "us"], "a witness is no region"
    rows = rest("GET", f"{eu}/heliograph/v1/config/members")["members"]
    assert {row["member"]: (row["role"], row["witness"]) for row in rows} == {
        "eu": ("voter", False),
        "us": ("voter", False),
        "oslo": ("voter", True),
    }
    active_passive(instance, NAMESPACE, "us")
    before, after = [f"us-{n}" for n in range(20)], [f"eu-{n}" for n in range(20)]
    publish(instance, "us", before)
    eventually(lambda: instance.read_all("eu", TOPIC) == before, "eu has a copy")
    lost = [row["name"] for row in instance.status()["regions"]["us"]["processes"]]
    for name in lost:
        call(data, "kill", process=name)
    found = dr(instance, "eu", "failover", NAMESPACE, "--to", "eu", "--yes")
    assert found["state"] == "done"
    eventually(lambda: takes(instance, "eu", NAMESPACE), "eu takes messages")
    publish(instance, "eu", after)
    with ThreadPoolExecutor(len(lost)) as pool:
        list(pool.map(lambda name: call(data, "start", timeout_s=STARTED_S, process=name), lost))
    assert dr(instance, "eu", "rejoin", NAMESPACE, "--region", "us")["state"] == "done"
    eventually(lambda: instance.read_all("us", TOPIC) == before + after, "us has what it missed")
