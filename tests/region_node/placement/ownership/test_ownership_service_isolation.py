"""Isolation on virtual time: brokers that may not serve a namespace neither take its bundles nor are given them, while
a permitted one lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.model.topic_names import bundle_of
from region_node.placement.isolation.broker_isolation import IsolationPolicy
from region_node.placement.isolation.isolation_rules import IsolationRules
from region_node.placement.ownership.broker_records import BrokerRecord
from tests.region_node.placement.ownership.world import NAMESPACE, TOPICS, World, run


def isolate(world: World, primary: str, secondary: str = "", least: int = 1) -> IsolationRules:
    """All brokers of the world read the same rules, which have one policy for its namespace."""
    rules = IsolationRules(None, None, "us")  # type: ignore[arg-type]  # nothing is watched or written here
    world.permit = rules.permitted
    change(rules, primary, secondary, least)
    return rules


def change(rules: IsolationRules, primary: str, secondary: str = "", least: int = 1) -> None:
    others = (secondary,) if secondary else ()
    made = IsolationPolicy(namespaces=("public/.*",), primary=(primary,), secondary=others, min_available=least)
    rules._on_policy("/isolation/p", made.encode(), 1)


@pytest.mark.parametrize("seed", range(5))
def test_lookups_at_any_broker_end_at_a_permitted_one(seed: int) -> None:
    async def scenario(world: World) -> None:
        isolate(world, "[bc]")
        await world.start("a", "b", "c", "d")
        sent = await world.lookup("a", TOPICS[0], authoritative=True)
        assert sent.redirect and sent.url in ("pulsar://b:6650", "pulsar://c:6650"), "a takes it for nobody"
        for topic in TOPICS:
            urls = {await world.served_by(name, topic) for name in "abcd"}
            assert len(urls) == 1 and urls <= {"pulsar://b:6650", "pulsar://c:6650"}
            assert await world.ask("a", world.brokers["a"].owner, topic) in (
                world.brokers["b"].record,
                world.brokers["c"].record,
            )

    run(seed, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_after_a_crash_a_permitted_broker_follows_and_a_secondary_one_once_none_is_left(seed: int) -> None:
    async def scenario(world: World) -> None:
        isolate(world, "[ab]", "c")
        await world.start("a", "d", "e", regions=("us", "eu"))
        await world.until(lambda: len(world.owners()) == 4 and set(world.owners().values()) == {"a"})
        await world.boot("b")
        await world.boot("c")
        await asyncio.sleep(5)
        assert set(world.owners().values()) == {"a"}
        for dies, follows in (("a", "b"), ("b", "c")):
            killed = world.sim.now()
            world.sim.machine(dies).kill()
            await world.until(lambda dies=dies: dies not in world.owners().values() and len(world.owners()) == 4)  # type: ignore[misc]
            assert set(world.owners().values()) == {follows}, "the others kept off"
            assert world.sim.now() - killed <= 4.0
        world.sim.machine("c").kill()
        await world.until(lambda: len(world.owners()) == 4 and set(world.owners().values()) <= {"d", "e"})

    run(seed, scenario)


def test_who_may_not_takes_over_when_the_permitted_one_dies_before_it_has() -> None:
    async def scenario(world: World) -> None:
        isolate(world, "b")
        await world.start("a")
        topic = TOPICS[0]
        assert await world.served_by("a", topic) == "pulsar://a:6650", "b does not live yet"
        slow = world.settings = type(world.settings)(takeover_delay_s=60.0)
        await world.boot("b")
        world.settings = type(slow)()
        await world.boot("c")
        world.sim.machine("a").kill()
        await asyncio.sleep(8)
        assert bundle_of(topic, 4) not in world.owners(), "c keeps off while b lives"
        world.sim.machine("b").kill()
        await world.until(lambda: world.owners().get(bundle_of(topic, 4)) == "c")

    run(1, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_a_draining_broker_hands_its_bundles_to_permitted_ones(seed: int) -> None:
    async def scenario(world: World) -> None:
        isolate(world, "[ac]")
        await world.start("a", "b", "d", regions=("us", "eu"))
        await world.until(lambda: len(world.owners()) == 4)
        await world.boot("c")
        await world.ask("a", world.brokers["a"].drain, 10.0)
        assert world.owners() == dict.fromkeys(range(4), "c")
        assert world.hosts["a"].sent_to == [("pulsar://c:6650", "")] * 4

    run(seed, scenario)


def test_an_operator_cannot_move_a_bundle_where_it_may_not_be() -> None:
    async def scenario(world: World) -> None:
        isolate(world, "[ac]")
        await world.start("a", "b", "c")
        bundle = bundle_of(TOPICS[0], 4)
        owner = (await world.served_by("a", TOPICS[0])).removeprefix("pulsar://")[0]
        with pytest.raises(
            NotAllowed,
            match=rf"^broker b may not serve bundle {NAMESPACE}/{bundle}, by .* isolation policies .*: a, c may$",
        ):
            await world.ask("b", world.brokers["b"].transfer, NAMESPACE, bundle, "b")
        other = "c" if owner == "a" else "a"
        assert await world.ask("b", world.brokers["b"].transfer, NAMESPACE, bundle, other)
        assert world.owners()[bundle] == other

    run(2, scenario)


def test_bundles_are_misplaced_by_a_change_of_policy_until_they_have_moved() -> None:
    async def scenario(world: World) -> None:
        rules = isolate(world, "a")
        await world.start("a", "b", regions=("us", "eu"))
        await world.until(lambda: len(world.owners()) == 4)
        assert world.brokers["b"].misplaced() == []
        change(rules, "b")
        found = [((NAMESPACE, index), "a") for index in range(4)]
        assert sorted(world.brokers["a"].misplaced()) == found == sorted(world.brokers["b"].misplaced())
        world.hosts["a"].unload_s = 1.0
        moving = asyncio.ensure_future(world.ask("a", world.brokers["a"].transfer, NAMESPACE, 2, "b"))
        await asyncio.sleep(0.5)
        assert sorted(world.brokers["b"].misplaced()) == [one for one in found if one[0][1] != 2], "it is on its way"
        assert await moving
        assert sorted(world.brokers["a"].misplaced()) == [one for one in found if one[0][1] != 2]
        world.sim.machine("a").kill()
        await asyncio.sleep(5)
        assert world.brokers["b"].misplaced() == []

    run(3, scenario)


def test_a_broker_is_known_by_its_address_too() -> None:
    rules = IsolationRules(None, None, "us")  # type: ignore[arg-type]
    change(rules, r"a:8080")
    live: Mapping[str, BrokerRecord] = {name: BrokerRecord(name, admin_url=f"http://{name}:8080") for name in "ab"}
    assert rules.permitted(NAMESPACE, live) == ["a"] and rules.permitted("other/x", live) == ["b"]
