"""Anti-affinity: random groups, domains, and permitted brokers; what the division promises holds for each."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from global_config.admin import ConfigAdmin
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.model.errors import CorruptData, NotAllowed
from local_meta import keys
from region_node.placement.isolation.anti_affinity import FailureDomain, divide
from region_node.placement.isolation.broker_isolation import IsolationPolicy
from region_node.placement.isolation.isolation_rules import IsolationRules
from region_node.placement.ownership.broker_records import BrokerRecord

BROKERS = [f"b{n}" for n in range(8)]


def domains(shares: dict[str, list[str]], domain_of: dict[str, str]) -> dict[str, set[str]]:
    return {
        namespace: {domain_of.get(broker, f"alone {broker}") for broker in found} for namespace, found in shares.items()
    }


def test_two_namespaces_have_a_domain_each_and_all_its_brokers() -> None:
    domain_of = {"b0": "east", "b1": "east", "b2": "west", "b3": "west"}
    shares = divide(dict.fromkeys(("t/x", "t/y"), BROKERS[:4]), domain_of)
    assert sorted(shares.values()) == [["b0", "b1"], ["b2", "b3"]]
    assert sorted(map(len, divide(dict.fromkeys(("t/x", "t/y"), BROKERS[:4]), {}).values())) == [2, 2], (
        "without domains each broker is one"
    )


def test_a_namespace_alone_in_its_group_has_all_brokers() -> None:
    assert divide({"t/x": BROKERS}, {"b0": "east"}) == {"t/x": BROKERS}


def test_more_namespaces_than_domains_share_them_evenly() -> None:
    shares = divide({f"t/{n}": BROKERS[:3] for n in range(31)}, {})
    assert all(len(found) == 1 for found in shares.values())
    assert sorted(sum(1 for found in shares.values() if broker in found) for broker in BROKERS[:3]) == [10, 10, 11]


def test_what_each_may_have_decides_before_what_each_would_like() -> None:
    """Whoever can go nowhere else has its place, in whatever order they come."""
    for names in itertools.permutations(("t/a", "t/b", "t/c")):
        shares = divide(dict(zip(names, (["b0"], ["b0", "b1"], ["b1", "b2"]), strict=True)), {})
        assert [shares[name] for name in names] == [["b0"], ["b1"], ["b2"]]


@pytest.mark.parametrize("seed", range(300))
def test_the_division_keeps_its_promises(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"t/{n}" for n in range(rng.randrange(1, 6))]
    permitted = {name: rng.sample(BROKERS, rng.randrange(1, 9)) for name in names}
    domain_of = {broker: rng.choice(["east", "west", "b0"]) for broker in BROKERS if rng.random() < 0.5}
    shares = divide(permitted, domain_of)
    assert shares == divide({name: sorted(permitted[name]) for name in reversed(names)}, domain_of), "in any order"
    used = domains(shares, domain_of)
    could = domains(permitted, domain_of)
    assert all(found and set(found) <= set(permitted[name]) for name, found in shares.items())
    assert all(
        set(shares[name]) == {b for b in permitted[name] if domain_of.get(b, f"alone {b}") in used[name]}
        for name in names
    ), "whole domains"
    assert set().union(*used.values()) == set().union(*could.values()), "none is left over"
    suffice = any(
        len(set(chosen)) == len(names) for chosen in itertools.product(*(sorted(could[name]) for name in names))
    )
    if suffice:
        assert sum(map(len, used.values())) == len(set().union(*used.values())), "none is shared"


def test_the_rules_divide_the_groups_of_a_region_among_what_its_policies_leave() -> None:
    found: list[object] = []

    async def main(machine: Machine) -> None:
        store, config = EmbeddedStore(KvMachine()), EmbeddedStore(KvMachine())
        admin, view = ConfigAdmin(config), ConfigView(config)
        await admin.ensure_region(RegionInfo(name="us", number=1))
        await admin.ensure_region(RegionInfo(name="eu", number=2))
        await admin.create_tenant("t", TenantInfo(allowed_regions=("us", "eu")))
        for name, region in (("x", "us"), ("y", "us"), ("far", "eu"), ("other", "us")):
            group = {} if name == "other" else {"antiAffinity": "g"}
            await admin.create_namespace(f"t/{name}", NamespacePolicies(regions=(region,), policies=group))
        await view.ready()
        rules = IsolationRules(store, view, "us")
        await rules.start()
        live = {name: BrokerRecord(name, admin_url=f"http://{name}:8080") for name in ("a", "b", "c", "d", "e")}
        await rules.put_domain("east", FailureDomain(("a", "b:8080")))
        await rules.put_domain("west", FailureDomain(("c", "d")))
        await rules.put("p", IsolationPolicy(namespaces=("t/([xy]|far)",), primary=("[abcd]",)))
        await asyncio.sleep(0.1)
        found.append(sorted(rules.permitted(name, live) for name in ("t/x", "t/y")))
        found.append(rules.permitted("t/other", live))
        await store.put(keys.failure_domain("west"), b"\x81\xa6format\x63")
        await asyncio.sleep(0.1)
        found.append(sorted(rules.permitted(name, live) for name in ("t/x", "t/y")))
        found.append(
            rules.permitted("t/x", {name: live[name] for name in "ab"})
            == rules.permitted("t/y", {name: live[name] for name in "ab"})
        )
        assert len(rules.permitted("t/x", live)) == 2
        await admin.update_namespace("t/y", lambda policies: replace(policies, policies={}))
        await asyncio.sleep(0.1)
        found.append([rules.permitted(name, live) for name in ("t/x", "t/y")])

    async def scenario() -> None:
        await sim.machine("a").start(main)
        assert found == [[["a", "b"], ["c", "d"]], ["e"], [["a", "b"], ["c", "d"]], True, [["a", "b", "c", "d"]] * 2]

    with Simulation(1) as sim:
        sim.run(scenario(), limit_s=60)


def test_values_come_back_as_they_were_and_bad_ones_are_refused() -> None:
    made = FailureDomain(("a", "b"))
    assert FailureDomain.decode(made.encode()) == made
    for blob in (b"", b"\xff", made.encode()[:-1], b"\x81\xa6format\x63", b"\x81\xa6format\x01", b"\x91\x01"):
        with pytest.raises(CorruptData):
            FailureDomain.decode(blob)
    with pytest.raises(NotAllowed):
        FailureDomain(("",))
