"""Isolation policies: who may serve a namespace; random policies and brokers beside a plain reading of the rules; the
values; the groups of brokers.
"""

from __future__ import annotations

import asyncio
import random
import re

import msgpack
import pytest

from geo_tests.sim.simulation import Machine, Simulation
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData, NotAllowed
from local_meta import keys
from region_node.placement.isolation.broker_isolation import Isolation, IsolationPolicy, together
from region_node.placement.isolation.isolation_rules import IsolationRules, names_of
from region_node.placement.ownership.broker_records import BrokerRecord

NAMESPACES = [f"{tenant}/{name}" for tenant in ("bank", "shop", "it") for name in ("a", "b")]
BROKERS = {f"broker-{n}": (f"broker-{n}", f"10.0.0.{n}:8080", f"10.0.0.{n}") for n in range(6)}


def policy(namespaces: str, primary: str, secondary: str = "", least: int = 1) -> IsolationPolicy:
    return IsolationPolicy(
        namespaces=(namespaces,), primary=(primary,), secondary=(secondary,) if secondary else (), min_available=least
    )


def live(*numbers: int) -> dict[str, tuple[str, ...]]:
    return {f"broker-{n}": BROKERS[f"broker-{n}"] for n in numbers}


def test_a_namespace_goes_to_its_primary_brokers_and_others_keep_off_them() -> None:
    made = Isolation()
    made.put("bank", policy("bank/.*", r"broker-[01]", r"broker-2"))
    assert made.permitted("bank/a", live(0, 1, 2, 3)) == ["broker-0", "broker-1"]
    assert made.permitted("shop/a", live(0, 1, 2, 3)) == ["broker-2", "broker-3"], (
        "a secondary broker serves others as well"
    )
    assert made.permitted("bank/a", live(2, 3)) == ["broker-2"], "no primary one lives"
    assert made.permitted("bank/a", live(3, 4)) == ["broker-3", "broker-4"], (
        "none of its brokers lives: better served by others than by none"
    )
    assert made.permitted("shop/a", live(0, 1)) == ["broker-0", "broker-1"], "the same for who has no policy"
    made.put("bank", None)
    assert made.permitted("bank/a", live(0, 3)) == ["broker-0", "broker-3"] == made.permitted("shop/a", live(0, 3))


def test_secondary_brokers_serve_too_below_the_least_number_of_primary_ones() -> None:
    made = Isolation()
    made.put("bank", policy("bank/.*", r"broker-[012]", r"broker-3", least=2))
    assert made.permitted("bank/a", live(0, 1, 3)) == ["broker-0", "broker-1"]
    assert made.permitted("bank/a", live(0, 3, 4)) == ["broker-0", "broker-3"]


def test_the_first_policy_by_its_name_counts_and_a_regex_fits_the_whole_name() -> None:
    made = Isolation()
    made.put("b", policy(".*", "broker-1"))
    made.put("a", policy("bank/a", "broker-0"))
    assert made.policy_of("bank/a") == "a" and made.policy_of("bank/ab") == "b"
    assert made.permitted("bank/a", {"broker-0": ("broker-0",), "broker-01": ("broker-01",)}) == ["broker-0"]


def test_a_broker_goes_by_its_id_its_address_or_its_host() -> None:
    record = BrokerRecord("broker-1", admin_url="http://10.0.0.1:8080")
    assert names_of(record) == ("broker-1", "10.0.0.1:8080", "10.0.0.1")
    for regex in ("broker-1", r"10\.0\.0\.1", r"10\.0\.0\.1:8080"):
        assert policy(".*", regex).is_primary(names_of(record))
    assert not policy(".*", r"10\.0\.0").is_primary(names_of(record))


@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_policies_somebody_may_and_only_who_the_rules_name(seed: int) -> None:
    rng = random.Random(seed)
    made = Isolation()
    for _ in range(30):
        name = rng.choice("abc")
        if rng.random() < 0.3:
            made.put(name, None)
        else:
            first, second = (
                f"broker-[{''.join(map(str, rng.sample(range(6), rng.randrange(1, 4))))}]" for _ in range(2)
            )
            made.put(
                name, policy(rng.choice(["bank/.*", "shop/a", ".*/b", ".*"]), first, second, least=rng.randrange(4))
            )
        brokers = live(*rng.sample(range(6), rng.randrange(1, 7)))
        for namespace in NAMESPACES:
            found = made.permitted(namespace, brokers)
            assert found and found == sorted(set(found)) and set(found) <= set(brokers)
            rule = next(
                (
                    made.policies[name]
                    for name in sorted(made.policies)
                    if re.fullmatch(made.policies[name].namespaces[0], namespace)
                ),
                None,
            )
            if rule is None:
                free = {b for b in brokers if not any(re.fullmatch(p.primary[0], b) for p in made.policies.values())}
                assert set(found) == (free or set(brokers))
                continue
            primary = {b for b in brokers if re.fullmatch(rule.primary[0], b)}
            spare = {b for b in brokers if re.fullmatch(rule.secondary[0], b)} - primary
            fails_over = len(primary) < max(rule.min_available, 1)
            assert set(found) == ((primary | spare if fails_over else primary) or set(brokers))


@pytest.mark.parametrize("seed", range(50))
def test_brokers_are_together_that_bundles_may_move_between(seed: int) -> None:
    rng = random.Random(seed)
    brokers = list(BROKERS)
    sets = [rng.sample([*brokers, "gone"], rng.randrange(1, 4)) for _ in range(rng.randrange(4))]
    groups = together(brokers, sets)
    assert sorted(b for group in groups for b in group) == brokers
    reach = {b: {b} for b in brokers}
    for _ in brokers:
        for one in sets:
            known = set(one) - {"gone"}
            for b in brokers:
                if reach[b] & known:
                    reach[b] |= known
    assert {frozenset(group) for group in groups} == {frozenset(reached) for reached in reach.values()}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"namespaces": ()}, "namespaces: at least one"),
        ({"primary": ()}, "primary: at least one"),
        ({"primary": ("(",)}, "is no regex"),
        ({"secondary": ("",)}, "1 to 500 characters"),
        ({"namespaces": ("x" * 501,)}, "1 to 500 characters"),
        ({"primary": ("x",) * 101}, "at most 100"),
        ({"min_available": -1}, "min_limit"),
        ({"usage_threshold": 101}, "usage_threshold"),
    ],
)
def test_what_is_no_policy_is_refused_with_a_sentence(fields: dict[str, object], says: str) -> None:
    given: dict[str, object] = {"namespaces": ("a",), "primary": ("b",)} | fields
    with pytest.raises(NotAllowed, match=re.escape(says)):
        IsolationPolicy(**given)  # type: ignore[arg-type]


def test_values_come_back_as_they_were_and_bad_ones_are_refused() -> None:
    made = policy("bank/.*", "b", "c", 2)
    assert IsolationPolicy.decode(made.encode()) == made
    for blob in (
        b"",
        b"\xff",
        made.encode()[:-1],
        msgpack.packb({"format": 99}),
        msgpack.packb({"format": 1}),
        msgpack.packb([1]),
    ):
        with pytest.raises(CorruptData):
            IsolationPolicy.decode(blob)


def test_the_rules_follow_the_metadata_and_keep_what_they_cannot_read_as_it_was() -> None:
    async def scenario() -> None:
        table = KvMachine()
        found: list[object] = []

        async def main(machine: Machine) -> None:
            store, view = EmbeddedStore(table), ConfigView(EmbeddedStore(KvMachine()))
            await IsolationRules(store, view, "us").put("bank", policy("bank/.*", "a"))
            rules = IsolationRules(EmbeddedStore(table), view, "us")
            await rules.start()
            brokers = {name: BrokerRecord(name) for name in "ab"}
            found.append(rules.permitted("bank/x", brokers))
            found.append(rules.permitted("shop/x", brokers))
            found.append(rules.permitted("bank/x", {"b": brokers["b"]}))
            await store.put(keys.isolation("bank"), b"\x81\xa6format\x63")
            await asyncio.sleep(0.1)
            found.append(rules.permitted("bank/x", brokers))
            assert rules.permitted("shop/x", brokers) == ["b"]
            await rules.delete("bank")
            await asyncio.sleep(0.1)
            found.append(rules.permitted("bank/x", brokers))

        await sim.machine("a").start(main)
        assert found == [["a"], ["b"], ["b"], ["a"], ["a", "b"]]

    with Simulation(1) as sim:
        sim.run(scenario(), limit_s=60)
