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
from replicator.dedup.producer_dedup import Producers
from replicator.health.link_causes import Cause
from replicator.log.routing_trees import Tree, TreeBook
from replicator.manager.configured_relays import ConfiguredRelays, Leaderships
from tests.broken_rules import BrokenRules
from tests.replicator.audit.audit_world import Damaged
from tests.replicator.link_instance import Instance

NAMES = ("us", "eu", "ap")
STAR = {"kind": "star", "center": "eu"}


def play(scenario: Callable[[Instance], Coroutine[Any, Any, None]], leaderships: Leaderships | None = None) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            instance = Instance(sim, NAMES, leaderships=leaderships)
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
        self.here, self.decided = known, newest
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while the answer is on its way."""

    def known(self, namespace: str) -> int:
        return self.here

    async def newest(self, namespace: str) -> int:
        self.asked += 1
        if self.decided < 0:
            raise MetadataUnavailable("no leader")
        newest = self.decided
        self.meanwhile()
        await asyncio.sleep(0.01)
        return newest


async def believe(instance: Instance, leadership: int) -> Producers:
    """Loads what an earlier version believed, as a topic does, and returns it."""
    us = instance.regions["us"]
    producers = us.log.state.producers
    producers.load([{"p": 3}, {"q": [[0, 9]]}, {}, leadership])
    us.brokers[0].machine.run(us.brokers[0].links.relays.obey, us.log, {})
    await asyncio.sleep(0.1)
    return producers


@pytest.mark.parametrize(("known", "newest", "left"), [(5, 5, 0), (5, 9, 9), (5, -1, 9), (9, -1, 9)])
def test_a_leadership_that_was_believed_and_does_not_exist_is_disowned(known: int, newest: int, left: int) -> None:
    """Not where only the copy here is late."""

    async def scenario(instance: Instance) -> None:
        producers = await believe(instance, 9)
        assert producers.leadership == left
        assert producers.last_sequence("q", 9) == (9 if left else -1) and producers.last_sequence("p", 5) == 3

    play(scenario, Registered(known, newest))


def test_one_that_is_registered_while_it_is_asked_is_not_disowned() -> None:
    """The answer is older than what the copy here has heard since."""
    registered = Registered(5, 5)

    async def scenario(instance: Instance) -> None:
        def begins() -> None:
            registered.here = 6
            producers = instance.regions["us"].log.state.producers
            producers.load([{}, {"q": [[0, 4]]}, {}, 6])

        registered.meanwhile = begins
        producers = await believe(instance, 1 << 60)
        assert producers.leadership == 6 and producers.last_sequence("q", 6) == 4

    play(scenario, registered)


def test_whoever_decides_is_asked_until_there_is_an_answer_and_one_topic_at_a_time() -> None:
    registered = Registered(5, -1)

    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        producers = await believe(instance, 1 << 60)
        for _ in range(100):
            us.brokers[0].machine.run(us.brokers[0].links.relays.obey, us.log, {})
        await asyncio.sleep(20)
        assert producers.leadership == 1 << 60 and 3 < registered.asked < 20
        registered.decided = 5
        await asyncio.sleep(10)
        assert producers.leadership == 0 and producers.last_sequence("q", 1 << 60) == -1
        asked = registered.asked
        await asyncio.sleep(20)
        assert registered.asked == asked

    play(scenario, registered)


def test_nothing_is_asked_for_a_topic_that_was_unloaded() -> None:
    registered = Registered(5, -1)

    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        producers = await believe(instance, 9)
        us.brokers[0].machine.run(us.brokers[0].links.relays.forget, us.log)
        await asyncio.sleep(5)
        asked, registered.decided = registered.asked, 5
        await asyncio.sleep(20)
        assert registered.asked == asked and producers.leadership == 9

    play(scenario, registered)


def test_who_publishes_under_a_leadership_disowns_no_newer_one() -> None:
    """A broker that stood still publishes under the one before: nothing of that is confirmed, and what was stored of
    the newer one is known still.
    """

    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        us.log.state.producers.load([{}, {"q": [[0, 9]]}, {}, 9])
        us.log.stand_behind(SimpleNamespace(leadership=5, epoch=6))
        us.publish(1)
        await asyncio.sleep(1)
        producers = us.log.state.producers
        assert producers.leadership == 9 and producers.last_sequence("q", 9) == 9

    play(scenario)
