"""The policy `replicationTopology` through real managers, connections, and receivers: who delivers to whom, and who
helps where a region on the way is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from geo_tests.sim.simulation import Simulation
from replicator.sending.link_sender import LinkSender
from tests.broken_rules import BrokenRules
from tests.replicator.link_instance import Instance

NAMES = ("us", "eu", "ap", "sa")
CHAIN = {"kind": "chain", "regions": list(NAMES)}


def play(scenario: Callable[[Instance], Coroutine[Any, Any, None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, NAMES)
            for i, a in enumerate(NAMES):
                for b in NAMES[i + 1 :]:
                    sim.network.latency(a, b, 0.01, 0.02)
            await instance.load()
            await scenario(instance)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=300)


def carried(instance: Instance, source: str) -> dict[str, int]:
    return {target: instance.regions[source].link(target).run_bytes for target in NAMES if target != source}


def same_everywhere(instance: Instance) -> None:
    bodies = [sorted(region.bodies()) for region in instance.regions.values()]
    assert all(one == bodies[0] for one in bodies) and len(set(bodies[0])) == len(bodies[0])
    for region in instance.regions.values():
        for target in NAMES:
            assert target == region.name or region.link(target).backlog_entries == 0


def test_a_chain_hands_on_and_the_way_back_to_a_mesh_loses_nothing() -> None:
    async def scenario(instance: Instance) -> None:
        instance.choose(CHAIN)
        await asyncio.sleep(2)
        for region in instance.regions.values():
            region.publish(20)
            region.publish(5, ("sa",))
        await asyncio.sleep(6)
        held = [len(region.bodies()) for region in instance.regions.values()]
        assert held == [85, 85, 85, 100], "what only sa gets is shown where it was published, and there"
        us = carried(instance, "us")
        assert us["eu"] > 0 and us["ap"] == us["sa"] == 0, us
        assert instance.regions["us"].link("sa").backlog_entries == 0, "the end of the way is seen from its beginning"
        for topology in ({"kind": "star", "center": "ap"}, None):
            instance.choose(topology)
            for _ in range(10):
                for region in instance.regions.values():
                    region.publish(3)
                await asyncio.sleep(0.05)
            await asyncio.sleep(6)
        assert [len(region.bodies()) for region in instance.regions.values()] == [325, 325, 325, 340]
        assert all(instance.regions["us"].link(target).backlog_entries == 0 for target in NAMES[1:])
        assert carried(instance, "us")["sa"] > 0

    play(scenario)


def test_a_parent_that_hears_last_of_its_tree_knows_what_its_targets_told_it_before() -> None:
    async def scenario(instance: Instance) -> None:
        sa = instance.regions["sa"]
        sa.publish(5)
        await asyncio.sleep(2)
        instance.sim.network.cut("eu", "sa")
        instance.choose({"kind": "star", "center": "eu"}, ("sa",))
        await asyncio.sleep(4)
        us, eu = instance.regions["us"].log.state.trees, instance.regions["eu"].log.state.trees
        assert sa.log.origin in us and not eu, "us has the record, and has told so, before eu knows of any tree"
        sa.publish(10)
        await asyncio.sleep(1)
        assert len(instance.regions["us"].bodies()) == len(instance.regions["ap"].bodies()) == 5, (
            "the rest waits for eu"
        )
        instance.sim.network.heal("eu", "sa")
        await asyncio.sleep(10)
        assert len(instance.regions["us"].bodies()) == 15
        same_everywhere(instance)

    play(scenario)


def without(instance: Instance, name: str) -> None:
    for other in NAMES:
        if other != name:
            instance.sim.network.cut(other, name)


def around(instance: Instance) -> Coroutine[Any, Any, None]:
    async def scenario() -> None:
        instance.choose(CHAIN)
        await asyncio.sleep(2)
        us = instance.regions["us"]
        us.publish(10)
        await asyncio.sleep(3)
        without(instance, "eu")
        us.publish(10)
        await asyncio.sleep(5)
        assert len(instance.regions["ap"].bodies()) == 10 and us.link("ap").backlog_entries == 10, (
            "it waits, and its origin knows"
        )
        instance.choose({"kind": "mesh"}, ("us", "ap", "sa"))
        us.publish(10)
        await asyncio.sleep(20)
        assert len(instance.regions["ap"].bodies()) == len(instance.regions["sa"].bodies()) == 30
        for other in NAMES:
            if other != "eu":
                instance.sim.network.heal(other, "eu")
        await asyncio.sleep(20)
        same_everywhere(instance)

    return scenario()


def test_where_a_region_on_the_way_is_gone_another_topology_brings_the_rest() -> None:
    play(around)


def test_mutant_nobody_takes_over(broken: BrokenRules) -> None:
    broken.setattr(LinkSender, "take_over", lambda *_: None)
    with broken.found():
        play(around)
