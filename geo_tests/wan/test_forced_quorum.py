"""Two regions without a witness: one is lost with its vote, the other is told to decide alone, what was active fails
over, and the lost one comes back, with its vote and everything that was published.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geo_tests.wan.disaster import dr, takes
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.two_regions import NAMESPACE, TOPIC, kill_all, publish, published_in_us, start_all, two_regions
from global_config.voters.forced_quorum import HEARD_S


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with two_regions(tmp_path / "data") as made:
        yield made


def test_one_of_two_regions_is_lost_and_the_other_decides_alone(instance: Instance) -> None:
    eu, data = instance.admin("eu"), instance.data
    force = ("config", "force-quorum", "--lost", "us", "--admin", eu)
    before, after = published_in_us(instance), [f"eu-{n}" for n in range(20)]
    refused = heliograph(*force, "--yes", check=False)
    assert refused.returncode and ("leads" in refused.stderr or "a majority is there" in refused.stderr)
    lost = kill_all(instance, "us")
    time.sleep(5)
    early = heliograph(*force, "--dry-run")
    assert "refused: us was heard" in early.stdout and "nothing that was answered" in early.stdout
    time.sleep(HEARD_S)
    assert "refused" not in heliograph(*force, "--dry-run").stdout
    assert "eu decides alone, in generation 1" in heliograph(*force, "--yes").stdout
    assert dr(instance, "eu", "failover", NAMESPACE, "--to", "eu", "--yes")["state"] == "done"
    eventually(lambda: takes(instance, "eu", NAMESPACE), "eu takes messages")
    publish(instance, "eu", after)
    rest("PUT", f"{eu}/admin/v2/tenants/one", {"allowedClusters": ["us", "eu"]})
    start_all(instance, lost)
    assert "us votes" in heliograph("config", "rejoin", "us", "--admin", eu).stdout
    assert dr(instance, "eu", "rejoin", NAMESPACE, "--region", "us")["state"] == "done"
    eventually(lambda: instance.read_all("us", TOPIC) == before + after, "us has what it missed")
    rest("PUT", f"{instance.admin('us')}/admin/v2/tenants/two", {"allowedClusters": ["us", "eu"]})
    rows = rest("GET", f"{eu}/heliograph/v1/config/members")["members"]
    assert {row["member"]: row["role"] for row in rows} == {"us": "voter", "eu": "voter"}
    assert list((data / "us" / "meta-0" / "config").glob("aside-*-log-*")), "what us held is kept"
