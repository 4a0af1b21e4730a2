"""What is told of topics that a target may not have at all: by the source, over the wire, and at the target."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import LinkError, PeerError
from heliograph.runtime.clock import SystemClock
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import LinkHeartbeat
from heliograph.wire.links.unopened_topics import ROWS_MAX, UnopenedRow, UnopenedTopics
from region_node.dr.operations.namespace_facts import lacking, merged, unopened_facts
from replicator.health.incoming_stats import IncomingStats
from replicator.health.link_causes import Cause
from replicator.health.unopened_topics import BROKERS_MAX, FORGET_S, LINKS_MAX, UnopenedLinks, UnopenedThere
from replicator.receiving.link_receiver import LinkReceiver
from replicator.receiving.link_session import LinkSession
from tests.replicator.link_instance import TOPIC, Instance, play

NAMESPACE = TOPIC.split("://")[1].rpartition("/")[0]


def said(instance: Instance, region: str, source: str) -> dict[str, Any]:
    """What the region says that it lacks of the source, in topics that it does not have."""
    broker = instance.regions[region].brokers[0]
    told = unopened_facts(broker.links.incoming, (NAMESPACE,), broker.clock.wall_ms(), broker.clock.monotonic())
    found: dict[str, Any] = lacking(merged(region, [{"topics": {}, "unopened": told}], [], NAMESPACE), source)
    return found


def test_a_target_knows_how_much_lies_in_a_topic_that_it_cannot_make() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        await asyncio.sleep(2)
        assert said(instance, "eu", "us")["untold"] == "" and said(instance, "eu", "us")["messages"] == 0
        eu.refusal = LinkError(Cause.METADATA, "its metadata is away")
        await us.move(1)
        us.publish(17)
        await asyncio.sleep(12)
        found = said(instance, "eu", "us")
        assert (found["unopened_topics"], found["messages"], found["untold"]) == (1, 17, "")
        assert abs(found["age_s_max"] - 12) < 2 and not found["silent_s"]
        sim.network.cut("us", "eu")
        await asyncio.sleep(20)
        found = said(instance, "eu", "us")
        assert found["messages"] == 17 and abs(found["silent_s"] - 20) < 2.5
        sim.network.heal("us", "eu")
        eu.refusal = None
        await asyncio.sleep(12)
        assert said(instance, "eu", "us")["messages"] == said(instance, "eu", "us")["unopened_topics"] == 0

    play(scenario, names=("us", "eu"), brokers=2)


class NeverOpened:
    """A link to eu that nobody answered."""

    target = "eu"

    def __init__(self, entries: int) -> None:
        self.entries = entries

    def backlog(self) -> tuple[tuple[int, int, int], int]:
        return (self.entries, 2 * self.entries, 10 * self.entries), 1000 - self.entries


def counted(*links: tuple[NeverOpened, str]) -> UnopenedTopics:
    here = UnopenedLinks("us", "b", lambda: 0)
    for link, topic in links:
        here.add(link, topic)
    assert here.told("ap") == UnopenedTopics("us", "b"), "of another target nothing"
    return here.told("eu")


def test_a_source_counts_by_namespace_what_its_target_never_opened() -> None:
    here = UnopenedLinks("us", "b", lambda: 5)
    first, second = NeverOpened(3), NeverOpened(4)
    for link, topic in ((first, "a/b/x"), (second, "a/b/y"), (NeverOpened(0), "a/b/z"), (NeverOpened(1), "a/c/x")):
        here.add(link, f"persistent://{topic}")
    rows = {"a/b": UnopenedRow(2, 14, 70, 991), "a/c": UnopenedRow(1, 2, 10, 994)}
    assert here.told("eu") == UnopenedTopics("us", "b", True, rows)
    here.remove(first)
    assert here.told("eu").rows["a/b"] == UnopenedRow(1, 8, 40, 991)


def test_what_is_beyond_the_bounds_is_told_as_not_all() -> None:
    many = [(NeverOpened(1), f"persistent://a/b/{number}") for number in range(LINKS_MAX + 1)]
    assert counted(*many[:-1]).whole and not counted(*many).whole
    assert counted(*many).rows["a/b"].messages == 2 * LINKS_MAX
    wide = [(NeverOpened(1 + number % 7), f"persistent://a/n{number}/x") for number in range(ROWS_MAX + 90)]
    told = counted(*wide)
    assert counted(*wide[:ROWS_MAX]).whole and not told.whole and len(told.rows) == ROWS_MAX
    left = {f"a/n{number}" for number in range(ROWS_MAX + 90)} - set(told.rows)
    assert all(int(name[3:]) % 7 <= 2 for name in left), "the fewest messages are left out"


TOLD = UnopenedTopics("us", "b", False, {"t/n": UnopenedRow(1, 2, 3, 4)})


def content(beat: LinkHeartbeat) -> tuple[int, memoryview]:
    return wire.command_content(b"".join(map(bytes, wire.heartbeat_frame(beat)))[8:])


def test_a_region_speaks_for_itself_alone() -> None:
    async def main() -> None:
        for peer, known in (("us", 1), ("", 1), ("us", None), ("ap", 1)):
            incoming = IncomingStats()
            receiver = LinkReceiver(
                LinkSession(lambda _: None, peer=peer),
                None,  # type: ignore[arg-type]  # no stream is opened
                SystemClock(),
                region="eu",
                region_number=lambda _, known=known: known,  # type: ignore[misc]
                relays=None,  # type: ignore[arg-type]
                incoming=incoming,
            )
            beat = LinkHeartbeat(1, 0, 0, unopened=TOLD)
            if peer == "ap":
                with pytest.raises(PeerError, match="speaks for us"):
                    receiver.on_frame(*content(beat), b"")
                assert not incoming.regions
                continue
            receiver.on_frame(*content(beat), b"")
            found = {name: [told for _, told in one.unopened.told.values()] for name, one in incoming.regions.items()}
            assert found == ({} if known is None else {"us": [TOLD]})
            receiver.connection_lost()

    run_alone(main())


def test_brokers_that_say_nothing_while_others_do_are_forgotten() -> None:
    there = UnopenedThere()
    for number in range(BROKERS_MAX + 20):
        there.take(UnopenedTopics("us", f"b{number}"), 1.0)
    assert len(there.told) == BROKERS_MAX and "b19" not in there.told
    there.take(UnopenedTopics("us", "b20"), 1.0 + FORGET_S)
    assert len(there.told) == BROKERS_MAX, "each may only be about to speak"
    there.take(UnopenedTopics("us", "b20"), 1.5 + FORGET_S)
    assert list(there.told) == ["b20"]
