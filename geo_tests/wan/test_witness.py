"""Two regions and a witness: one of the regions is lost as a whole, with its vote; what was active there fails over,
and the region comes back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.disaster import dr, takes
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from geo_tests.wan.two_regions import NAMESPACE, TOPIC, kill_all, publish, published_in_us, start_all, two_regions
from region_node.instance.control import call
from region_node.instance.launch import alive


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with two_regions(tmp_path / "data", witness="oslo") as made:
        yield made


def test_the_active_region_of_two_is_lost_with_its_vote(instance: Instance) -> None:
    eu = instance.admin("eu")
    assert sorted(rest("GET", f"{eu}/admin/v2/clusters")) == ["eu", "us"], "a witness is no region"
    rows = rest("GET", f"{eu}/heliograph/v1/config/members")["members"]
    assert {row["member"]: (row["role"], row["witness"]) for row in rows} == {
        "eu": ("voter", False),
        "us": ("voter", False),
        "oslo": ("voter", True),
    }
    before, after = published_in_us(instance), [f"eu-{n}" for n in range(20)]
    lost = kill_all(instance, "us")
    found = dr(instance, "eu", "failover", NAMESPACE, "--to", "eu", "--yes")
    assert found["state"] == "done"
    eventually(lambda: takes(instance, "eu", NAMESPACE), "eu takes messages")
    publish(instance, "eu", after)
    start_all(instance, lost)
    assert dr(instance, "eu", "rejoin", NAMESPACE, "--region", "us")["state"] == "done"
    eventually(lambda: instance.read_all("us", TOPIC) == before + after, "us has what it missed")


def members(instance: Instance) -> dict[str, dict[str, Any]]:
    rows = rest("GET", f"{instance.admin('eu')}/heliograph/v1/config/members")["members"]
    return {row["member"]: row for row in rows}


@pytest.mark.long
def test_a_witness_joins_forgets_all_and_leaves(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "data", regions=("us", "eu"), wan="none")
    data, folder = str(instance.data), instance.data / "oslo" / "witness"
    tenant = f"{instance.admin('eu')}/admin/v2/tenants/one"

    def votes() -> bool:
        row = members(instance).get("oslo", {})
        return bool(row.get("witness") and row["behind"] == 0 and row["silent_s"] < 1)

    def written() -> bool:
        rest("PUT", tenant, {"allowedClusters": ["us", "eu"]})
        return True

    try:
        heliograph("witness", "join", "oslo", "--data", data)
        eventually(votes, "it votes")
        call(instance.data, "kill", process="oslo-witness")
        kept = folder.rename(folder.with_name("kept"))
        shutil.copytree(instance.data / "us" / "meta-0", folder)
        refused = heliograph("process", "start", "oslo-witness", "--data", data, check=False)
        assert refused.returncode and "belongs to us-meta-0 of region us" in refused.stderr
        call(instance.data, "kill", process="oslo-witness")
        shutil.rmtree(folder)
        heliograph("process", "start", "oslo-witness", "--data", data)
        eventually(votes, "with an empty folder it has learnt all")
        shutil.rmtree(kept)
        lost = kill_all(instance, "us")
        eventually(written, "the configuration is written by eu and the witness")
        for name in lost:
            heliograph("process", "start", name, "--data", data)
        eventually(lambda: members(instance)["us"]["behind"] == 0, "us has what it missed")
        pid = instance.status()["witness"]["pid"]
        heliograph("witness", "leave", "--data", data)
        assert sorted(members(instance)) == ["eu", "us"] and not alive(pid) and "witness" not in instance.status()
    finally:
        instance.down()
