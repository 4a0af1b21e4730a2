"""Ownership on virtual time: several brokers over one metadata table; takeover, unload, drain, lost leases, lookups."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.model.errors import HeliographError, NotAllowed, NotFound, NotOwner
from heliograph.model.topic_names import bundle_of
from local_meta import keys
from region_node.placement.ownership.broker_records import OwnerRecord
from region_node.placement.ownership.ownership_core import OwnershipSettings
from tests.region_node.placement.ownership.world import NAMESPACE, TOPICS, World, run


@pytest.mark.parametrize("seed", range(5))
def test_every_broker_names_the_same_owner(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start("a", "b", "c")
        for topic in TOPICS:
            urls = [await world.served_by(name, topic) for name in ("a", "b", "c", "a")]
            assert len(set(urls)) == 1
            owner = urls[0].removeprefix("pulsar://").partition(":")[0]
            assert world.brokers[owner].owns(topic)
        assert set(world.owners()) == {bundle_of(topic, 4) for topic in TOPICS}

    run(seed, scenario)


def test_listener_names_are_mapped_and_an_unknown_one_is_refused_by_its_text() -> None:
    async def scenario(world: World) -> None:
        await world.start("a")
        assert (await world.lookup("a", TOPICS[0], "link-eu")).url_tls == "pulsar+ssl://proxy-a:1"
        assert (await world.lookup("a", TOPICS[0], "link-ap")).url_tls == "pulsar+ssl://a:6700"
        with pytest.raises(NotOwner, match=r"^the broker do not have test listener$"):
            await world.lookup("a", TOPICS[0], "test")

    run(1, scenario)


def test_a_namespace_that_is_not_there_or_not_here_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.start("a", regions=("eu",))
        with pytest.raises(NotFound, match="public/none"):
            await world.lookup("a", "persistent://public/none/t")
        with pytest.raises(NotAllowed, match="not served in region us, but in eu"):
            await world.lookup("a", TOPICS[0])
        with pytest.raises(NotFound):
            await world.ask("a", world.brokers["a"].partitions, "persistent://public/none/t", True)

    run(1, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_broker_is_followed_within_the_lease_and_one_second(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start("a", regions=("us", "eu"))
        await asyncio.sleep(1)
        assert set(world.owners().values()) == {"a"}
        await world.boot("b")
        await world.boot("c")
        await asyncio.sleep(5.0 + seed / 10)
        world.sim.machine("a").kill()
        killed = world.sim.now()
        await world.until(lambda: "a" not in world.owners().values() and len(world.owners()) == 4)
        assert world.sim.now() - killed <= 4.0
        loaded = {bundle for broker, event, (_, bundle) in world.events if event == "loaded" and broker != "a"}
        await asyncio.sleep(0.1)
        assert loaded == {0, 1, 2, 3}
        for topic in TOPICS:
            assert await world.served_by("b", topic) == await world.served_by("c", topic)

    run(seed, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_an_unloaded_bundle_moves_within_a_second_and_is_closed_before_it_is_released(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start("a")
        topic = TOPICS[0]
        assert await world.served_by("a", topic) == "pulsar://a:6650"
        await world.boot("b")
        world.hosts["a"].unload_s = 0.3
        began = world.sim.now()
        await world.ask("a", world.brokers["a"].unload_bundle, NAMESPACE, bundle_of(topic, 4))
        assert await world.served_by("a", topic) == "pulsar://b:6650"
        assert world.sim.now() - began < 0.3 + 1.0
        assert ("a", "closed, still owned", (NAMESPACE, bundle_of(topic, 4))) in world.events
        assert not world.brokers["a"].owns(topic)

    run(seed, scenario)


def test_a_lone_broker_takes_its_unloaded_bundle_back() -> None:
    async def scenario(world: World) -> None:
        await world.start("a")
        await world.served_by("a", TOPICS[0])
        await world.ask("a", world.brokers["a"].unload_bundle, NAMESPACE, bundle_of(TOPICS[0], 4))
        assert await world.served_by("a", TOPICS[0]) == "pulsar://a:6650"

    run(1, scenario)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_a_transfer_moves_a_bundle_where_it_was_sent_and_lookups_wait_for_it(seed: int, asked: str) -> None:
    async def scenario(world: World) -> None:
        await world.start("a")
        topic, index = TOPICS[0], bundle_of(TOPICS[0], 4)
        await world.served_by("a", topic)
        await world.boot("b")
        await world.boot("c")
        world.hosts["a"].unload_s = 0.3
        move = asyncio.ensure_future(world.ask(asked, world.brokers[asked].transfer, NAMESPACE, index, "c"))
        await asyncio.sleep(0.1)
        assert world.owners() == {index: "a"}, "closed before it is assigned"
        assert [await world.served_by(name, topic) for name in ("a", "b", "c")] == ["pulsar://c:6650"] * 3
        assert await move is True and world.owners() == {index: "c"}
        assert [event[:2] for event in world.events] == [("a", "loaded"), ("a", "closed, still owned"), ("c", "loaded")]
        assert world.brokers["c"].owns(topic) and not world.brokers["a"].owns(topic)
        assert world.hosts["a"].sent_to == [("pulsar://c:6650", "")]

    run(seed, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_transfer_to_a_broker_that_dies_meanwhile_leaves_the_bundle_to_the_others(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start("a", "b", "c")
        topic, index = TOPICS[0], bundle_of(TOPICS[0], 4)
        await world.served_by("a", topic)
        owner = world.owners()[index]
        to = next(name for name in "abc" if name != owner)
        world.hosts[owner].unload_s = 8.0
        move = asyncio.ensure_future(world.ask(owner, world.brokers[owner].transfer, NAMESPACE, index, to))
        await asyncio.sleep(0.2)
        world.sim.machine(to).kill()
        assert await move is False
        await world.until(lambda: world.owners().get(index, to) != to)

    run(seed, scenario)


def test_a_transfer_to_nobody_and_of_what_nobody_owns_says_so() -> None:
    async def scenario(world: World) -> None:
        await world.start("a", "b")
        with pytest.raises(NotFound, match="there is no broker x in region us; there are a, b"):
            await world.ask("a", world.brokers["a"].transfer, NAMESPACE, 0, "x")
        with pytest.raises(NotOwner, match="no owner"):
            await world.ask("a", world.brokers["a"].transfer, NAMESPACE, 0, "b")

    run(1, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_a_drain_hands_everything_over(seed: int) -> None:
    async def scenario(world: World) -> None:
        await world.start("a", regions=("us", "eu"))
        await asyncio.sleep(1)
        await world.boot("b")
        await asyncio.sleep(1)
        began = world.sim.now()
        await world.ask("a", world.brokers["a"].drain, 10.0)
        assert world.sim.now() - began < 1.0
        await world.until(lambda: sorted(world.owners().items()) == [(index, "b") for index in range(4)])
        assert world.sim.now() - began < 1.0
        assert all(event != "closed" for _, event, _ in world.events), "each bundle was closed while it was still owned"
        assert [record.broker for record in world.brokers["b"].brokers()] == ["b"]
        assert await world.served_by("b", TOPICS[0]) == "pulsar://b:6650"

    run(seed, scenario)


def test_a_draining_broker_is_not_chosen_any_more() -> None:
    async def scenario(world: World) -> None:
        await world.start("a", "b")
        world.hosts["a"].unload_s = world.hosts["b"].unload_s = 2.0
        for topic in TOPICS:
            await world.served_by("b", topic)
        drain = asyncio.ensure_future(world.ask("a", world.brokers["a"].drain, 10.0))
        await asyncio.sleep(0.5)
        assert world.brokers["a"].owned() == [] and [record.broker for record in world.brokers["b"].brokers()] == ["b"]
        await drain

    run(1, scenario)


def test_a_bundle_is_released_in_time_though_a_topic_does_not_close() -> None:
    async def scenario(world: World) -> None:
        world.settings = OwnershipSettings(unload_timeout_s=2.0)
        await world.start("a")
        await world.served_by("a", TOPICS[0])
        world.hosts["a"].unload_s = 1000.0
        began = world.sim.now()
        await world.ask("a", world.brokers["a"].unload_bundle, NAMESPACE, bundle_of(TOPICS[0], 4))
        assert world.sim.now() - began <= 2.1 and not world.brokers["a"].owns(TOPICS[0])

    run(1, scenario)


def test_a_lookup_waits_for_an_owner_as_long_as_is_set() -> None:
    async def scenario(world: World) -> None:
        world.settings = OwnershipSettings(lookup_timeout_s=0.25)
        await world.start("a")
        world.stores["a"].unavailable = "no leader"
        began = world.sim.now()
        with pytest.raises(HeliographError):
            await world.lookup("a", TOPICS[0], authoritative=True)
        assert world.sim.now() - began <= 0.3

    run(1, scenario)


def test_a_drain_ends_in_time_though_a_topic_does_not_close() -> None:
    async def scenario(world: World) -> None:
        await world.start("a")
        await world.served_by("a", TOPICS[0])
        world.hosts["a"].unload_s = 1000.0
        began = world.sim.now()
        await world.ask("a", world.brokers["a"].drain, 3.0)
        assert world.sim.now() - began <= 3.1

    run(1, scenario)


def test_a_lost_lease_closes_every_bundle_and_the_broker_comes_back_with_a_new_one() -> None:
    async def scenario(world: World) -> None:
        await world.start("a", regions=("us", "eu"))
        await asyncio.sleep(1)
        (lease,) = {OwnerRecord.decode(v).lease for _, v, _ in world.local.under(keys.OWNERS)}
        world.stores["a"].expire(lease)
        await asyncio.sleep(5)
        closed = {bundle for broker, event, (_, bundle) in world.events if event.startswith("closed")}
        assert closed == {0, 1, 2, 3}
        assert set(world.owners().values()) == {"a"} and len(world.owners()) == 4
        assert {OwnerRecord.decode(v).lease for _, v, _ in world.local.under(keys.OWNERS)} != {lease}

    run(1, scenario)


def test_topics_are_served_on_while_the_metadata_is_away_and_ended_after_the_grace() -> None:
    async def scenario(world: World) -> None:
        world.settings = OwnershipSettings(lease_ttl_ms=30_000, lease_grace_s=15.0)
        await world.start("a")
        await world.served_by("a", TOPICS[0])
        world.stores["a"].unavailable = "no leader"
        await asyncio.sleep(8)
        assert world.brokers["a"].owns(TOPICS[0])
        await asyncio.sleep(16)
        assert not world.brokers["a"].owns(TOPICS[0])
        world.stores["a"].unavailable = None
        await asyncio.sleep(5)
        assert await world.served_by("a", TOPICS[0]) == "pulsar://a:6650"

    run(1, scenario)


def test_a_restarted_broker_clears_what_its_killed_life_left() -> None:
    async def scenario(world: World) -> None:
        await world.start("a", regions=("us", "eu"))
        await asyncio.sleep(1)
        world.sim.machine("a").kill()
        killed = world.sim.now()
        await world.boot("a")
        await world.until(lambda: all(world.brokers["a"].owns(topic) for topic in TOPICS))
        assert world.sim.now() - killed < 1.0

    run(1, scenario)
