"""A whole region by one command: its namespaces side by side, one that cannot be moved, and the way back."""

from __future__ import annotations

import json
from typing import Any

from geo_tests.wan.disaster import Load, dr, takes
from geo_tests.wan.instance import Instance, eventually, heliograph, rest

TENANT = "many"
MOVED = [f"{TENANT}/shop-{number}" for number in range(3)]
ALONE, AT_HOME = f"{TENANT}/alone", f"{TENANT}/at-home"


def test_what_can_be_moved_of_a_region_is_and_the_rest_says_why(pair: Instance) -> None:
    """One namespace has a producer that goes on, one is in us alone, one is at home in eu."""
    rest("PUT", f"{pair.admin('us')}/admin/v2/tenants/{TENANT}", {"allowedClusters": ["us", "eu"]})
    for name in (*MOVED, AT_HOME, ALONE):
        active = "eu" if name == AT_HOME else "us"
        pair.namespace(name, ["us"] if name == ALONE else ["us", "eu"])
        rest("PUT", f"{pair.admin(active)}/heliograph/v1/dr/{name}", {"active": active})
        eventually(lambda name=name, active=active: takes(pair, active, name), f"{name} takes messages")
    client = pair.client("us")
    for name in MOVED:
        client.create_producer(f"persistent://{name}/orders").send(b"0")
    load = Load(client, f"persistent://{MOVED[0]}/orders", "moved", first=1)
    try:
        moved_and_back(pair, load)
    finally:
        load.end()


def moved_and_back(pair: Instance, load: Load) -> None:
    words = ("switchover", "--region", "us", "--tenant", TENANT, "--to", "eu")

    def verdicts(plan: Any) -> dict[str, str]:
        return {row["namespace"]: row["verdict"] for row in plan["namespaces"]}

    wanted = {**dict.fromkeys(MOVED, "moves"), ALONE: "cannot"}
    planned = eventually(
        lambda: (plan := dr(pair, "us", *words, "--dry-run")) and verdicts(plan) == wanted and plan,
        "the links of all are up",
    )
    assert [part["some"] for part in planned["passed"]] == [[AT_HOME]]
    assert [row["disk"] is not None for row in planned["load"]["bookies"]] == [True] * 3
    assert "--yes" in dr(pair, "us", *words, check=False), "nothing is done without a yes"
    assert report(pair, "us", *words, code=1) == {**dict.fromkeys(MOVED, "done"), ALONE: "cannot"}
    for name in MOVED:
        eventually(lambda name=name: takes(pair, "eu", name), f"eu takes messages of {name}")
    assert takes(pair, "us", ALONE), "what could not be moved goes on"
    load.wait_for(20)
    assert report(pair, "us", *words, code=1) == {**dict.fromkeys(MOVED, "there"), ALONE: "cannot"}
    back = ("failback", "--region", "eu", "--tenant", TENANT, "--to", "us")
    assert report(pair, "eu", *back) == dict.fromkeys(MOVED, "done"), "what is at home in eu stays"
    load.wait_for(20)


def report(pair: Instance, region: str, *words: str, code: int = 0) -> dict[str, str]:
    done = heliograph("dr", *words, "--yes", "--json", "--admin", pair.admin(region), check=False)
    assert done.returncode == code, done.stderr
    return {row["namespace"]: row["result"] for row in json.loads(done.stdout)["namespaces"]}
