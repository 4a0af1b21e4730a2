"""What a namespace's automatic failover may be set to, what holds it up and for how long, and what is too much at
risk.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.leadership import OPEN
from heliograph.model.errors import NotAllowed
from region_node.dr.operations import automatic_policy
from region_node.dr.operations.automatic_policy import (
    Automatic,
    automatic,
    forget_automatic,
    held,
    hold,
    release,
    too_much_at_risk,
)
from region_node.dr.operations.operation_steps import forget_operations
from tests.region_node.dr.operations.world import NS, TOPIC, World, alone, lack, steps


@pytest.mark.parametrize(
    ("wanted", "says"),
    (
        ({"after_s": 9.0}, r"after 10 s \(longer than its leases last, 6 s\)"),
        ({"after_s": 30.0, "hold_s": 5.0}, "hold=5s: it can be 30 s to 86400 s"),
        ({"after_s": 30.0, "to": ("eu", "mars")}, "the namespace is not in mars; it is in us, eu"),
        ({"after_s": 30.0, "risk_messages": -1}, "max_risk"),
    ),
)
def test_what_cannot_be_is_refused_with_a_sentence(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(NotAllowed, match=says):
        Automatic(**wanted).check(("us", "eu"), 6.0)


def test_it_is_longer_than_the_leases_that_there_are_and_reads_back_as_it_was_written() -> None:
    with pytest.raises(NotAllowed, match="after 21 s"):
        Automatic(after_s=20.0).check(("us", "eu"), 20.0)
    with pytest.raises(NotAllowed, match="no other region"):
        Automatic(after_s=20.0).check(("us",), 6.0)
    whole = Automatic(after_s=30.0, to=("eu", "ap"), risk_messages=0, risk_s=2.5, by="anna")
    whole.check(("us", "eu", "ap"), 6.0)
    assert Automatic.decode(whole.encode()) == whole


def test_a_hold_ends_by_the_configurations_clock_and_an_operator_ends_it_sooner() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await hold(store, NS, 60.0, "anna", now_ms=-7)
        assert await held(store, NS) == "anna holds it for 60 s" and await held(store, "t/other") == ""
        await asyncio.sleep(59)
        assert await held(store, NS)
        await asyncio.sleep(2)
        assert await held(store, NS) == ""
        await hold(store, "", 60.0, "bert", now_ms=0)
        assert await held(store, NS) == await held(store, "t/other") == "bert holds it for 60 s"
        assert not await release(store, NS) and await held(store, NS), "it is not of this namespace alone"
        assert await release(store, "") and not await release(store, "") and not await held(store, NS)
        for wrong in (0.0, 86_401.0):
            with pytest.raises(NotAllowed, match="up to 24 h"):
                await hold(store, NS, wrong, "anna", now_ms=0)

    run_alone(main())


@pytest.mark.parametrize("kind", ("failover", "switchover"))
def test_every_move_of_such_a_namespace_holds_it_and_of_no_other(kind: str) -> None:
    async def main() -> None:
        for wanted in (None, Automatic(after_s=30.0, hold_s=100.0)):
            world = World()
            await world.begin()
            if wanted is not None:
                await world.store.put(automatic(NS), wanted.encode())
            await steps(world, kind)
            record = await world.leadership()
            assert (record.active, record.state) == ("eu", OPEN)
            assert await held(world.store, NS) == ("" if wanted is None else f"a {kind} to eu holds it for 100 s")
            await asyncio.sleep(101)
            assert await held(world.store, NS) == ""

    run_alone(main())


def test_a_move_does_not_end_at_what_cannot_be_read() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        await world.store.put(automatic(NS), b"no JSON")
        await steps(world, "failover")
        assert await held(world.store, NS) == "a failover to eu holds it for 600 s"

    run_alone(main())


def test_a_flip_that_waits_leaves_no_lease_behind() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        await world.store.put(automatic(NS), Automatic(after_s=30.0).encode())
        op = await world.conductor.begin("failover", NS, "eu", "op")
        for _ in range(40):
            op = await world.conductor.advance(NS)
        assert op.step == "fence" and not world.store.machine.held
        await world.obey("us")
        for _ in range(3):
            op = await world.conductor.advance(NS)
        assert len(world.store.machine.held) == 1
        await forget_operations(world.store, NS)
        assert not await world.store.get(automatic(NS)) and await held(world.store, NS) == ""

    run_alone(main())


def facts(**lacks: Any) -> dict[str, Any]:
    topic = {"vector": {}, "links": {}, "lacks": {"us": {**lack(age_s=0.0), **lacks}}, "subscriptions": {}}
    return {"region": "eu", "namespace": NS, "missing": [], "topics": {TOPIC: topic}, "unopened": alone("us")}


def test_a_region_that_lacks_more_than_is_allowed_or_does_not_know_does_not_take_over() -> None:
    behind = facts(messages=11, age_s=34.0, age_s_max=34.0, silent_s=30.0, connected=False)
    assert too_much_at_risk(Automatic(after_s=30), behind, "us") == "", "nobody has said how much is too much"
    assert too_much_at_risk(Automatic(after_s=30, risk_messages=11, risk_s=4), behind, "us") == ""
    assert "lacks 11 messages, and max_risk is 10" in too_much_at_risk(
        Automatic(after_s=30, risk_messages=10), behind, "us"
    )
    assert "waited for 4.0 s, and max_risk is 3 s" in too_much_at_risk(Automatic(after_s=30, risk_s=3), behind, "us"), (
        "the silence itself is none of it"
    )
    there = {**facts(), "unopened": alone("us", ago_s=30.0, messages=11, age_s=34.0)}
    assert "lacks 11 messages" in too_much_at_risk(Automatic(after_s=30, risk_messages=10), there, "us")
    assert "waited for 4.0 s" in too_much_at_risk(Automatic(after_s=30, risk_s=3), there, "us")
    more = {**facts(), "unopened": alone("us", whole=False)}
    for unknown in (facts(messages=None), {**facts(), "missing": ["persistent://t/n/y"]}, more):
        assert "not known" in too_much_at_risk(Automatic(after_s=30, risk_messages=10), unknown, "us")


def test_who_wants_no_automatic_failover_any_more_ends_nobodys_hold() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await store.put(automatic(NS), Automatic(after_s=30.0).encode())
        await hold(store, NS, 60.0, "anna", now_ms=0)
        assert await forget_automatic(store, NS) and not await forget_automatic(store, NS)
        assert await held(store, NS) == "anna holds it for 60 s"
        await forget_operations(store, NS)
        assert await held(store, NS) == "", "what comes under its name is another one"

    run_alone(main())


@pytest.mark.parametrize("namespace", (NS, ""))
def test_a_hold_is_not_made_shorter_unawares(namespace: str) -> None:
    async def main() -> None:
        store = EmbeddedStore()
        await hold(store, namespace, 3600.0, "anna", now_ms=0)
        with pytest.raises(NotAllowed, match="3000 s of that are left"):
            await hold(store, namespace, 60.0, "bert", now_ms=600_000)
        assert "anna" in await held(store, NS)
        await hold(store, namespace, 60.0, "bert", now_ms=3_550_000)
        assert await held(store, NS) == "bert holds it for 60 s"

    run_alone(main())


def test_keys_of_a_namespace_are_no_others() -> None:
    assert automatic_policy.operators_key("") != automatic_policy.operators_key("all/all")
    assert set(automatic_policy.hold_keys("a/b")) & set(automatic_policy.hold_keys("a/bc")) == {
        automatic_policy.ALL_HELD
    }
