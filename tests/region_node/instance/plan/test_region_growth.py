"""Plans of an instance that grows and shrinks: names, numbers, ports, and what each node's settings say of the
group.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from heliograph.raft.membership import AddLearner, address_for, changed
from heliograph.raft.messages import Config
from region_node.instance.plan.layout import InstancePlan, load_plan, make_plan, node_settings, reach, save_plan
from region_node.instance.plan.region_growth import (
    address_of,
    admit,
    with_region,
    with_witness,
    without_region,
    without_witness,
)


def pair(wan: str = "default", *, proxied: bool = False) -> InstancePlan:
    return make_plan(["us", "eu"], brokers={"us": 1, "eu": 2}, bookies=2, wan=wan, proxied=proxied)


def ports(plan: InstancePlan) -> list[int]:
    own = {port for node in plan.nodes() for port in node.ports.values()} | {
        region.service_port for region in plan.regions
    }
    return sorted([*own, *(link.port for link in plan.links), plan.toxiproxy_port])


def test_a_plan_grows_without_changing_what_was_there(tmp_path: Path) -> None:
    before = pair()
    plan = with_region(before, "ap", brokers=2, bookies=3)
    assert (
        plan.regions[:2] == before.regions and plan.links[: len(before.links)] == before.links and not before.founders
    )
    ap = plan.region("ap")
    assert ap.number == 3 and len(ap.brokers) == 2 and len(ap.bookies) == 3 and ap.metadata.ports["raft"]
    assert len(set(ports(plan))) == len(ports(plan)), "no port twice"
    assert {(x.source, x.target) for x in plan.links} == {
        (a, b) for a in ("us", "eu", "ap") for b in ("us", "eu", "ap") if a != b
    }
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan


def test_founders_stay_the_first_voters_and_the_others_wait(tmp_path: Path) -> None:
    plan = with_region(pair(), "ap", brokers=1, bookies=2)
    told = {region.name: node_settings(tmp_path, plan, region.metadata)["config_node"] for region in plan.regions}
    assert {name: (sorted(each["peers"]), each["joining"]) for name, each in told.items()} == {
        "us": (["eu", "us"], False),
        "eu": (["eu", "us"], False),
        "ap": (["ap", "eu", "us"], True),
    }
    gone = without_region(plan, "eu")
    us = node_settings(tmp_path, gone, gone.region("us").metadata)["config_node"]
    assert sorted(us["peers"]) == ["eu", "us"], "who began it does not change"
    alone = without_region(gone, "ap")
    assert node_settings(tmp_path, alone, alone.region("us").metadata)["tls"], "and it still speaks TLS"


def test_each_region_is_told_its_own_way_to_the_new_one() -> None:
    plan = with_region(pair(), "ap", brokers=1, bookies=2)
    ap = plan.region("ap")
    address = address_of(plan, "ap")
    assert changed(Config(("eu", "us")), AddLearner("ap", address)).learners == ("ap",), "it is a good address"
    for source in ("us", "eu"):
        assert (
            address_for(source, address)
            == f"127.0.0.1:{reach(plan, source, 'config', ap.metadata)}"
            != f"127.0.0.1:{ap.metadata.ports['raft']}"
        )
    assert address_for("later", address) == f"127.0.0.1:{ap.metadata.ports['raft']}"
    near = with_region(pair(wan="none"), "ap", brokers=1, bookies=2)
    assert address_of(near, "ap") == f"127.0.0.1:{near.region('ap').metadata.ports['raft']}"


def test_a_region_that_joins_a_proxied_instance_is_proxied() -> None:
    inside = with_region(pair(proxied=True), "ap", brokers=1, bookies=2)
    doors = {link.name for link in inside.links if link.target == "ap" and "link" not in link.kind}
    assert {"client.ap", "client.ap-broker-0", "bookie.ap-bookie-1", "bookie-http.ap-bookie-1"} <= doors
    with pytest.raises(ConfigError, match="region 'brokers' cannot be told"):
        with_region(pair(proxied=True), "brokers", brokers=1, bookies=2)
    assert with_region(pair(), "brokers", brokers=1, bookies=2).region("brokers"), "else it is a name as any other"


def test_names_and_numbers_are_used_once() -> None:
    plan = without_region(with_region(pair(), "ap", brokers=1, bookies=2), "ap")
    assert [region.name for region in plan.regions] == ["us", "eu"] and not [
        x for x in plan.links if "ap" in (x.source, x.target)
    ]
    with pytest.raises(ConfigError, match="take another one"):
        with_region(plan, "ap", brokers=1, bookies=2)
    assert with_region(plan, "sa", brokers=1, bookies=2).region("sa").number == 4


def test_what_cannot_grow_or_shrink_says_why() -> None:
    alone = make_plan(["us"], brokers={"us": 1}, bookies=2, wan="none")
    with pytest.raises(ConfigError, match="begun with one region"):
        with_region(alone, "eu", brokers=1, bookies=2)
    with pytest.raises(ConfigError, match="the only region"):
        without_region(alone, "us")
    with pytest.raises(ConfigError, match="no region 'ap' here"):
        without_region(pair(), "ap")
    for name, brokers, bookies in (("AP/", 1, 2), ("ap", 0, 2), ("ap", 1, 1)):
        with pytest.raises(ConfigError):
            with_region(pair(), name, brokers=brokers, bookies=bookies)


# -- a witness --------------------------------------------------------------------------------------------------------


def test_a_witness_joins_and_leaves_and_the_regions_stay_as_they_were(tmp_path: Path) -> None:
    before = pair()
    plan = with_witness(before, "oslo")
    assert plan.regions == before.regions and plan.witness is not None and plan.witness.roles == ["config"]
    assert len(set(ports(plan))) == len(ports(plan)), "no port twice"
    new = plan.links[len(before.links) :]
    assert {(x.kind, x.source, x.target) for x in new} == {
        ("config", a, b) for a, b in (("us", "oslo"), ("oslo", "us"), ("eu", "oslo"), ("oslo", "eu"))
    }, "no link leads to it"
    told = node_settings(tmp_path, plan, plan.witness)["config_node"]
    assert told["joining"] and sorted(told["peers"]) == ["eu", "oslo", "us"]
    assert sorted(node_settings(tmp_path, plan, plan.region("us").metadata)["config_node"]["peers"]) == ["eu", "us"]
    assert address_for("us", address_of(plan, "oslo")) == f"127.0.0.1:{reach(plan, 'us', 'config', plan.witness)}"
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    gone = without_witness(plan)
    assert gone.witness is None and gone.links == before.links and gone.regions == before.regions
    assert gone.began_with() == ["us", "eu"]
    with pytest.raises(ConfigError, match="take another one"):
        with_region(gone, "oslo", brokers=1, bookies=2)
    with pytest.raises(ConfigError, match="another one"):
        with_witness(gone, "oslo")
    assert with_witness(gone, "bergen").witness


def test_a_region_joins_beside_a_witness() -> None:
    plan = with_region(with_witness(pair(), "oslo"), "ap", brokers=1, bookies=2)
    assert ("config", "ap", "oslo") in {(x.kind, x.source, x.target) for x in plan.links}
    assert not [x for x in plan.links if "oslo" in (x.source, x.target) and x.kind != "config"]
    assert sorted(node_settings(Path("/d"), plan, plan.region("ap").metadata)["config_node"]["peers"]) == [
        *("ap", "eu", "oslo", "us")
    ]


def test_a_witness_of_no_use_is_refused() -> None:
    three = with_region(pair(), "ap", brokers=1, bookies=2)
    with pytest.raises(ConfigError, match="makes an even number odd"):
        with_witness(three, "oslo")
    learner = with_region(pair(), "ap", brokers=1, bookies=2, voter=False)
    assert with_witness(learner, "oslo").witness, "a learner does not vote"
    plan = with_witness(pair(), "oslo")
    with pytest.raises(ConfigError, match=r"has the witness 'oslo'.*`heliograph witness leave` first"):
        with_witness(plan, "bergen")
    with pytest.raises(ConfigError, match="is, or was, the name of a witness"):
        with_region(plan, "oslo", brokers=1, bookies=2)
    for two in (plan, with_region(plan, "ap", brokers=1, bookies=2, voter=False)):
        with pytest.raises(ConfigError, match="`heliograph witness leave` first"):
            without_region(two, "eu")
    three = with_region(plan, "ap", brokers=1, bookies=2)
    assert [one.name for one in without_region(three, "eu").regions] == ["us", "ap"]
    with pytest.raises(ConfigError, match="has no witness"):
        without_witness(pair())
    for name in ("us", "A/"):
        with pytest.raises(ConfigError):
            with_witness(pair(), name)


class Forced:
    """The configuration of eu, which was forced to go on without us."""

    def __init__(self) -> None:
        self.verbs: list[str] = []

    async def get(self, key: str) -> tuple[bytes, int]:
        return b'{"format": 1, "addresses": {"us": ""}}', 5

    async def members(self, verb: str = "show", member: str = "", address: str = "") -> tuple[dict[str, Any], bool]:
        self.verbs.append(f"{verb} {member}".strip())
        return {"members": [{"member": "eu", "role": "voter"}]}, True


def test_a_region_that_was_left_behind_is_not_added_beside_what_it_holds() -> None:
    """An operator brings it back; a region that is new joins as ever."""
    store: Any = Forced()
    said: list[str] = []
    plan = with_region(pair(), "ap", brokers=1, bookies=2)
    asyncio.run(admit(store, plan, "us", said.append))
    assert store.verbs == ["show"] and "heliograph config rejoin us" in said[0]
    asyncio.run(admit(store, plan, "ap", said.append))
    assert store.verbs[1:] == ["show", "add ap", "promote ap"]
