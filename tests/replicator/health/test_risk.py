"""What is at risk, told by both sides, also while nothing gets through; latency and clocks."""

from __future__ import annotations

import asyncio

from geo_tests.sim.simulation import Simulation
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import LinkHeartbeat, Risk, StreamBeat
from replicator.health.incoming_stats import BOUNDS_MS, IncomingLatency
from replicator.log.transaction_buffer import COMMIT, marker_run
from tests.replicator.link_instance import Instance, play
from tests.replicator.link_transactions import append, publish


def test_both_sides_know_what_is_missing_while_the_link_is_cut() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        us.publish(10)
        await asyncio.sleep(3)
        incoming = eu.log.incoming["us"]
        assert incoming.status(eu.brokers[0].clock.wall_ms()) == {
            **incoming.status(eu.brokers[0].clock.wall_ms()),
            "connected": True,
            "messages": 0,
            "age_s": 0.0,
            "age_s_max": 0.0,
        }
        began = sim.now()
        sim.network.cut("us", "eu")
        us.publish(7)
        for _ in range(6):
            await asyncio.sleep(5)
            link, there = us.link("eu"), incoming.status(eu.brokers[0].clock.wall_ms())
            assert link.backlog_messages == 7 and abs(link.age_s - (sim.now() - began)) < 1
            silent = there["silent_s"]
            assert isinstance(silent, float) and 0 <= silent - (sim.now() - began) < 2.2, (
                "what it heard last, it heard at most two beats before the cut"
            )
        assert not link.connected and link.cause != "none" and link.remedy
        sim.network.heal("us", "eu")
        await asyncio.sleep(12)
        assert us.link("eu").backlog_messages == 0 and us.link("eu").age_s == 0
        after = eu.log.incoming["us"].status(eu.brokers[0].clock.wall_ms())
        assert after["connected"] and after["messages"] == 0 and after["age_s"] == 0.0

    play(scenario, names=("us", "eu"))


def test_only_links_that_owe_something_are_asked_for_what_is_at_risk() -> None:
    """Also those that a cut finds idle, and those that have nothing to do as long as a transaction is open."""

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        links = us.brokers[0].links
        us.publish(10)
        await asyncio.sleep(25)
        assert links.at_risk() == {} and not links._active and not links._resting, "of an idle topic nothing is asked"
        sim.network.cut("us", "eu")
        await asyncio.sleep(10)
        began = sim.now()
        us.publish(7)
        for _ in range(3):
            await asyncio.sleep(5)
            assert us.link("eu").backlog_messages == 7 and abs(links.at_risk()[us.log.topic] - (sim.now() - began)) < 1
        sim.network.heal("us", "eu")
        await asyncio.sleep(25)
        assert links.at_risk() == {} and not links._active
        began = sim.now()
        publish(us, (0, 1), 2)
        for _ in range(4):
            await asyncio.sleep(8)
            assert (
                us.link("eu").cause == "transaction-open"
                and abs(links.at_risk()[us.log.topic] - (sim.now() - began)) < 1
            )
        assert not links._active, "it has nothing to do meanwhile"
        append(us, marker_run((0, 1), COMMIT, 0))
        await asyncio.sleep(25)
        assert len(eu.bodies()) == 19 and links.at_risk() == {} and not links._active and not links._resting
        assert eu.log.incoming["us"].at_risk_s(eu.brokers[0].clock.wall_ms(), sim.now()) == 0.0

    play(scenario, names=("us", "eu"))


def test_a_topic_whose_stream_has_ended_is_silent_although_its_connection_beats() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        us.publish(1)
        await asyncio.sleep(3)
        await us.brokers[0].machine.ask(us.brokers[0].links.detach, us.log)
        await asyncio.sleep(10)
        there = eu.log.incoming["us"].status(eu.brokers[0].clock.wall_ms())
        silent = there["silent_s"]
        assert not there["connected"] and isinstance(silent, float) and silent > 8 and there["age_s_max"] == silent

    play(scenario, names=("us", "eu"))


def test_the_target_is_told_how_much_it_lacks() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        us.publish(10)
        await asyncio.sleep(3)
        link = next(
            link for links in us.brokers[0].links._links.values() for link in links.values() if link.target == "eu"
        )
        assert link.core is not None
        window, link.core._window = link.core._window, 0  # the link is open, and sends nothing
        began = sim.now()
        us.publish(7)
        await asyncio.sleep(4)
        there = eu.log.incoming["us"].status(eu.brokers[0].clock.wall_ms())
        assert (there["connected"], there["messages"], there["bytes"]) == (True, 7, us.link("eu").backlog_bytes)
        age_s = there["age_s"]
        assert isinstance(age_s, float) and abs(age_s - (sim.now() - began)) < 0.2
        link.core._window = window
        link.pump()

    play(scenario, names=("us", "eu"))


def test_latency_and_age_are_right_although_clocks_are_not() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions["us"], instance.regions["eu"]
        us.brokers[0].clock.offset_ms = 5000
        await asyncio.sleep(4)  # heartbeats both ways
        heard = eu.brokers[0].links.incoming.regions["us"]
        assert 4900 <= heard.clock_offset_ms <= 5100 and 80 <= heard.rtt_ms <= 140
        assert -5100 <= us.link("eu").clock_offset_ms <= -4900, "each side says it of the other"
        before = list(heard.latency.counts)
        for _ in range(20):
            us.publish(3)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        grown = [after - b for after, b in zip(heard.latency.counts, before, strict=True)]
        assert sum(grown) == 60
        near = [count for bound, count in zip((*BOUNDS_MS, 1 << 30), grown, strict=True) if 25 <= bound <= 100]
        assert sum(near) == 60, f"one way takes 40 to 60 ms: {grown}"

    play(scenario, names=("us", "eu"))


def test_buckets() -> None:
    latency = IncomingLatency()
    for ms, messages in ((0.0, 1), (5.0, 2), (5.1, 4), (60_000.0, 8)):
        latency.add(ms, messages)
    cumulative = latency.cumulative()
    assert (
        cumulative[0] == (0.005, 3)
        and cumulative[1] == (0.01, 7)
        and cumulative[-1] == (float("inf"), 15)
        and latency.messages == 15
    )


def test_an_older_version_tells_no_risk() -> None:
    beat = LinkHeartbeat(1, 2, 3, (StreamBeat(1, None, {}, Risk(1, 2, 3, 4)), StreamBeat(2, None, {})))
    frame = b"".join(bytes(b) for b in wire.heartbeat_frame(beat))
    size = int.from_bytes(frame[4:8], "big")
    _, fields = wire.parse(*wire.command_content(memoryview(frame)[8 : 8 + size]))
    assert wire.read_heartbeat(fields) == beat and len(fields[4]) == 3
