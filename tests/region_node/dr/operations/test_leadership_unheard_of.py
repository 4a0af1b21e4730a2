"""A namespace that is made active in a region that is cut off, and is failed over before that region hears of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from geo_tests.sim.leadership import DriftingClock, FarStore
from geo_tests.sim.loop import run_alone
from heliograph.kv.metadata_store import Put
from heliograph.model.configuration.leadership import Writer, writer
from heliograph.model.errors import NotAllowed, OutcomeUnknown
from region_node.dr.leadership.write_leases import WriteLeases
from region_node.dr.operations.operation import FAILOVER
from tests.region_node.dr.operations.world import NS, Interrupted, View, World, steps


@dataclass(frozen=True, slots=True)
class Outcome:
    """`confirming`: the regions in which a message would be confirmed. `passed`: what the failover says it has done."""

    confirming: list[str]
    passed: dict[str, str]
    refused: str = ""


def confirms(leases: WriteLeases) -> bool:
    gate = leases.gate(NS)
    return gate is None or gate.open


async def failed_over_unheard(force: bool = False) -> Outcome:
    """us is cut off; the namespace is made active in us, where nobody hears it, and is failed over to eu."""
    world, rng = World(), random.Random(1)
    brokers: dict[str, tuple[FarStore, WriteLeases]] = {}
    for region in ("us", "eu"):
        far = FarStore(world.store, rng)
        leases = WriteLeases(
            far,
            region=region,
            broker=region,
            clock=DriftingClock(1.0),
            url_of=lambda _: "",
            beside=lambda region=region: [region],  # type: ignore[misc]
        )
        await leases.start()
        brokers[region] = far, leases
    assert confirms(brokers["us"][1]) and confirms(brokers["eu"][1]), "it is active-active"
    brokers["us"][0].cut = True
    world.down.add("us")
    passed: dict[str, str] = {}
    refused = ""
    try:
        await world.conductor.switching.begin(NS, "us", {})
        await asyncio.sleep(30)
        assert not confirms(brokers["eu"][1]), "eu has heard of it"
        operation = await world.conductor.begin(FAILOVER, NS, "eu", "op", force=force)
        for _ in range(30):
            if not operation.running:
                break
            operation = await world.conductor.advance(NS)
            await asyncio.sleep(1)
        passed = {name: text for name, _, text in operation.steps}
    except NotAllowed as error:  # whoever refuses it confirms nothing twice
        refused = str(error)
    await asyncio.sleep(10)
    confirming = [region for region, (_, leases) in brokers.items() if confirms(leases)]
    for _, leases in brokers.values():
        await leases.stop()
    return Outcome(confirming, passed, refused)


def test_two_regions_never_confirm_after_a_failover_from_a_region_that_heard_of_nothing() -> None:
    """In a namespace that is active in one region, one region at a time confirms, whatever the other one has heard.

    A broker that has never heard of any leadership has no lease whose end could be waited for, and knows no reason not
    to confirm: a failover is refused, in numbers.
    """
    outcome = run_alone(failed_over_unheard(), limit_s=300)
    assert len(outcome.confirming) < 2, outcome
    assert "us: no broker has a lease" in outcome.refused and "--force" in outcome.refused
    assert "eu:" not in outcome.refused, "eu has heard of it"


def test_a_failover_does_not_say_of_a_region_that_it_confirms_nothing_while_it_does() -> None:
    """The fence of a failover is passed once the old region confirms nothing any more, and people act upon that."""
    outcome = run_alone(failed_over_unheard(), limit_s=300)
    assert "us" not in outcome.confirming or "fence" not in outcome.passed, outcome


def test_who_says_it_twice_is_told_who_goes_on() -> None:
    outcome = run_alone(failed_over_unheard(force=True), limit_s=300)
    assert set(outcome.passed) >= {"fence", "flip", "open"} and outcome.confirming == ["us", "eu"]
    assert outcome.passed["fence"] == (
        "us is fenced for whoever has heard of it; the others go on until they hear: us: no broker has a lease, none "
        "has said that it knows of it"
    )


def told(world: World, region: str, name: str, lease: int, *beside: str, since: int = 10_000) -> Put:
    return Put(writer(region, name, lease), Writer(since=since, beside=beside or None).encode())


def test_a_region_has_heard_once_each_of_its_brokers_has_and_that_stays() -> None:
    """Of a broker that others have beside them and that has no lease nobody knows what it heard; one that does not know
    yet who is beside it counts for nothing; a region that has heard may be lost, one by one.
    """

    async def main() -> None:
        world = World()
        switching, both = world.conductor.switching, ("us", "eu")
        await switching.begin(NS, "us", {})
        assert await switching.settle(NS, both) == {"us": ([], 0), "eu": ([], 0)}
        await world.store.txn([told(world, "us", "a", 1)])
        assert (await switching.settle(NS, both))["us"] == (["a.1"], 1), "it does not know who is beside it"
        await world.store.txn([told(world, "us", "a", 1, "a", "b.c")])
        assert (await switching.settle(NS, both))["us"] == (["b.c"], 2)
        await world.store.txn([told(world, "us", "b.c", 2, "a", "b.c", since=0)])
        assert (await switching.settle(NS, both))["us"] == (["b.c.2"], 2)
        assert (await world.leadership()).heard == ()
        await world.store.txn([told(world, "us", "b.c", 2, "a", "b.c")])
        assert list(await switching.settle(NS, both)) == ["eu"] and (await world.leadership()).heard == ("us",)
        for key in (writer("us", "a", 1), writer("us", "b.c", 2)):
            await world.store.delete(key)
        await world.store.txn([told(world, "eu", "a", 3, "a")])
        assert not await switching.settle(NS, both), "us had heard, and is lost"
        assert list(await switching.unheard(NS, ("us", "eu", "ap"))) == ["ap"], "a region that joins later"
        await switching.end(NS)
        await switching.begin(NS, "us", {})
        assert list(await switching.unheard(NS, both)) == ["us"], "another leadership, of which us may not know"

    run_alone(main())


def test_a_change_of_what_is_promised_makes_no_new_leadership() -> None:
    async def main() -> None:
        world = World()
        await world.begin()
        assert not await world.conductor.switching.settle(NS, ("us", "eu"))
        record = await world.conductor.switching.begin(NS, "us", {"rpo_s": 5.0})
        assert record.heard == ("eu", "us")
        done = await steps(world, FAILOVER)
        assert done.state == "done" and (await world.leadership()).heard == ("eu", "us")
        assert "unheard" not in done.report

    run_alone(main())


@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("after", (False, True), ids=("lost", "answer-lost"))
def test_a_forced_failover_that_is_interrupted_at_any_write_goes_on(at: int, after: bool) -> None:
    """Nobody of us has said that it knows; once it was forced no step asks again."""

    async def main() -> None:
        store = Interrupted(0, after)
        world = World(store)
        await world.conductor.switching.begin(NS, "us", {})
        await world.obey("eu")
        with pytest.raises(NotAllowed, match="us: no broker has a lease"):
            await world.conductor.begin(FAILOVER, NS, "eu", "op")
        store.at, store.writes = at, 0
        for _ in range(60):
            try:
                found, _ = await world.make().operation(NS)
                if found is None:
                    await world.make().begin(FAILOVER, NS, "eu", "op", force=True)
                found = await world.make().advance(NS)
            except OutcomeUnknown:
                continue
            if not found.running:
                break
            await world.obey("eu")
        assert (await world.leadership()).active == "eu" and found.state == "done"
        assert "us: no broker" in found.report["unheard"]

    run_alone(main())


def test_a_failover_under_way_that_comes_to_wait_for_a_region_is_forced_by_the_same_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A region joins the namespace in the middle, and is not heard of."""

    async def main() -> None:
        world = World()
        await world.begin()
        await world.conductor.begin(FAILOVER, NS, "eu", "op")
        assert (await world.conductor.advance(NS)).step == "fence"
        monkeypatch.setattr(View, "regions", ("us", "eu", "ap"))
        for _ in range(3):
            await world.obey("us")
            found = await world.conductor.advance(NS)
        assert found.step == "fence" and "ap: no broker has a lease" in found.waiting
        with pytest.raises(NotAllowed, match="ap: no broker"):
            await world.conductor.begin(FAILOVER, NS, "eu", "op")
        await world.conductor.begin(FAILOVER, NS, "eu", "op", force=True)
        assert (await world.conductor.advance(NS)).step == "boundary"

    run_alone(main())


def test_a_planned_switchover_does_not_begin_before_everybody_has_heard() -> None:
    async def main() -> None:
        world = World()
        await world.conductor.switching.begin(NS, "us", {})
        await world.obey("eu")
        await world.conductor.begin("switchover", NS, "eu", "op")
        found = await world.conductor.advance(NS)
        assert found.step == "check" and "us: no broker has a lease" in found.waiting
        assert (await world.leadership()).state == "open", "nothing is closed"
        await world.obey("us")
        assert (await world.conductor.advance(NS)).step == "drain"

    run_alone(main())
