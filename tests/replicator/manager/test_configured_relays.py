"""By whom another region's entries come is believed as configured here, or as their own region says; whoever brings
them a second too early comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import MetadataUnavailable
from replicator.health.link_causes import Cause
from replicator.log.routing_trees import Tree, TreeBook
from replicator.manager.configured_relays import ConfiguredRelays
from tests.broken_rules import BrokenRules
from tests.replicator.audit.audit_world import Damaged
from tests.replicator.link_instance import Instance

NAMES = ("us", "eu", "ap")
STAR = {"kind": "star", "center": "eu"}


def play(scenario: Callable[[Instance], Coroutine[Any, Any, None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, NAMES)
            for a, b in (("us", "eu"), ("eu", "ap"), ("us", "ap")):
                sim.network.latency(a, b, 0.01, 0.02)
            await instance.load()
            await scenario(instance)
            assert all(not region.faults for region in instance.regions.values())

        sim.run(main(), limit_s=300)


def test_a_topology_that_is_known_here_last_stops_nothing_for_good() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        instance.choose(STAR, ("eu", "ap"))
        await asyncio.sleep(0.1)
        ap.publish(5)
        eu.publish(2)
        await asyncio.sleep(4)
        link = eu.link("us")
        assert (link.state, link.cause) == ("waiting", Cause.ORIGIN_REFUSED) and link.remedy
        assert "eu may not speak to us of origin 3.1." in link.cause_text and "(of region ap)" in link.cause_text
        assert len(eu.bodies()) == 7 and us.log.vector.prefix(ap.log.origin) == (-1, -1)
        assert link.backlog_entries and us.brokers[0].links.incoming.region("eu").refused_claims > 2
        instance.choose(STAR, ("us",))
        ap.publish(3)
        await asyncio.sleep(8)
        assert sorted(us.bodies()) == sorted(eu.bodies()) == sorted(ap.bodies()) and len(us.bodies()) == 10
        assert eu.link("us").state == "open" and not eu.link("us").backlog_entries

    play(scenario)


def local_to_the_origin(instance: Instance) -> Coroutine[Any, Any, None]:
    async def scenario() -> None:
        Damaged(instance)  # what others ask is read from each region's store
        us, _, ap = instance.regions.values()
        instance.choose(STAR, ("ap",))
        await asyncio.sleep(0.1)
        ap.publish(5)
        await asyncio.sleep(8)
        assert len(us.bodies()) == 5 and ap.link("us").run_bytes == 0, "it came by way of eu, as ap has said"

    return scenario()


def test_what_only_the_origin_is_told_it_says_itself() -> None:
    play(local_to_the_origin)


def test_mutant_the_origin_is_not_asked(broken: BrokenRules) -> None:
    broken.setattr(ConfiguredRelays, "_ask", lambda *_: None)
    with broken.found():
        play(local_to_the_origin)


def test_the_origin_does_not_confirm_what_it_has_not_planted() -> None:
    async def scenario(instance: Instance) -> None:
        Damaged(instance)
        us, _, ap = instance.regions.values()
        ap.publish(1)
        await asyncio.sleep(1)
        relays, log, origin = us.brokers[0].links.relays, us.log, ap.log.origin
        book = TreeBook()
        book.note(origin, (0, 0), Tree("ap", {"us": "eu"}, whole=True))
        record = book.record(origin, (0, 0))
        for _ in range(3):
            assert "ap itself has not said so" in us.brokers[0].machine.run(relays.refusal, log, "eu", origin, record)
            await asyncio.sleep(2)
        routes = {"replicationTopology": STAR, "replicationRoutes": {"eu": ["us"]}}
        us.brokers[0].machine.run(relays.obey, log, routes)
        assert "no route leads from ap to us" in relays.refusal(log, "eu", origin, record)
        us.brokers[0].machine.run(relays.obey, log, {"replicationTopology": STAR})
        assert relays.refusal(log, "eu", origin, record) == ""

    play(scenario)


class Registered:
    """What the copy of the configuration here knows, and what whoever decides about it knows."""

    def __init__(self, known: int, newest: int) -> None:
        self._known, self._newest = known, newest

    def known(self, namespace: str) -> int:
        return self._known

    async def newest(self, namespace: str) -> int:
        if self._newest < 0:
            raise MetadataUnavailable("no leader")
        return self._newest


@pytest.mark.parametrize(("known", "newest", "left"), [(5, 5, 0), (5, 9, 9), (5, -1, 9), (9, -1, 9)])
def test_a_leadership_that_was_believed_and_does_not_exist_is_disowned(known: int, newest: int, left: int) -> None:
    """Not where only the copy here is late."""

    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        producers = us.log.state.producers
        producers.load([{"p": 3}, {"q": [[0, 9]]}, {}, 9])
        relays = us.brokers[0].links.relays
        relays.leaderships = Registered(known, newest)
        us.brokers[0].machine.run(relays.obey, us.log, {})
        await asyncio.sleep(0.1)
        assert producers.leadership == left
        assert producers.last_sequence("q", 9) == (9 if left else -1) and producers.last_sequence("p", 5) == 3

    play(scenario)


def test_who_publishes_under_a_leadership_disowns_a_newer_one() -> None:
    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        us.log.state.producers.load([{}, {"q": [[0, 9]]}, {}, 1 << 60])
        us.log.stand_behind(SimpleNamespace(leadership=5, epoch=5))
        us.publish(1)
        await asyncio.sleep(1)
        assert us.log.state.producers.leadership == 5 and us.log.last_sequence("q") == -1

    play(scenario)
