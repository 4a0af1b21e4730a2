"""A drain leaves room for who publishes: no more in flight than its rate needs, and short turns of the event loop while
anything is appended.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.wire.run import Run
from replicator.bandwidth.drain_throttle import DrainThrottle
from replicator.bandwidth.send_window import PASS_BYTES, SHORT_PASS_BYTES, AppendActivity, Window
from replicator.manager.link_manager import LinkSettings
from replicator.sending.link_sender import SenderSettings
from replicator.sending.outgoing_runs import Send
from storage.managed_ledger.append_counts import Appends
from tests.replicator.link_instance import Instance

_MB = 1_000_000


def test_a_window_is_what_the_rate_needs_on_that_way() -> None:
    window = Window()
    assert window.fit(0, 1.0, None) is None, "the way is not known: as much as the target offers"
    near = window.fit(0, 1.0, 1.0)
    assert near is not None and 2 * _MB < near < 6 * _MB
    far = Window().fit(0, 1.0, 100.0)
    assert far is not None and far > 16 * _MB, "a long way is kept full"
    faster = window.fit(400 * _MB, 1.0, 1.0)
    assert faster is not None and faster > 5 * near, "no bound for a link that is so fast"
    resting = [window.fit(400 * _MB, 1.0, 1.0) for _ in range(60)]
    assert resting[0] is not None and resting[0] > 4 * near and resting[-1] == near, (
        "what it reached once is forgotten slowly"
    )


def test_publishing_is_live_for_a_moment_after_each_run() -> None:
    runs = 5
    publishing = AppendActivity(lambda: runs)
    assert not publishing.live(1.0), "what was appended before it looked is over"
    runs += 1
    assert publishing.live(2.0) and publishing.live(2.2) and not publishing.live(2.3)


@pytest.mark.parametrize("live", [False, True])
def test_a_drain_gives_the_loop_back_after_each_turn(live: bool) -> None:
    with Simulation(3) as sim:

        async def scenario() -> None:
            instance = Instance(sim, ("us", "eu"))
            await instance.load()
            us, eu = instance.regions["us"], instance.regions["eu"]
            links = us.brokers[0].links
            us.publish(1)
            await asyncio.sleep(3)
            us.ledger.cache = False  # everything is read as what was fetched ahead is: without a wait
            sim.network.cut("us", "eu")
            for _ in range(60):
                us.publish(30, body_bytes=1000)
            await asyncio.sleep(10)
            ticks = 0

            def appended() -> int:
                nonlocal ticks
                ticks += live
                return ticks

            links.publishing = AppendActivity(appended)
            sim.network.heal("us", "eu")
            loop, core, sent = asyncio.get_running_loop(), us.outgoing("eu").core, Counter[int]()
            turn, take = 0, core.take

            def next_turn() -> None:
                nonlocal turn
                turn += 1
                if core.read_at <= us.ledger.last_confirmed:
                    loop.call_soon(next_turn)

            def counted(ledger: int, first: int, run: Run, now: float) -> list[Send]:
                if not sent:
                    loop.call_soon(next_turn)
                sent[turn] += run.size_bytes
                return list(take(ledger, first, run, now))

            core.take = counted
            await asyncio.sleep(20)
            assert not us.link("eu").backlog_entries and eu.bodies() == us.bodies()
            assert SHORT_PASS_BYTES / 2 < max(sent.values()) <= (SHORT_PASS_BYTES if live else PASS_BYTES) + 40_000

        sim.run(scenario(), limit_s=120)


@pytest.mark.parametrize("live", [False, True])
def test_a_drain_is_slowed_beside_publishers_for_whom_it_is_dear(live: bool) -> None:
    """The link alone brings 2.5 MB a second: so much fits into its window on that way."""
    with Simulation(5) as sim:

        async def scenario() -> None:
            settings = LinkSettings(sender=SenderSettings(window_bytes=256 << 10), drain_floor_bytes_per_s=100_000.0)
            instance = Instance(sim, ("us", "eu"), settings=settings)
            sim.network.latency("us", "eu", 0.05, 0.05)
            await instance.load()
            us, eu = instance.regions["us"], instance.regions["eu"]
            links, loop = us.brokers[0].links, asyncio.get_running_loop()
            appends = Appends()
            links.yielding = DrainThrottle(
                appends,
                100_000.0,
                links.clock.monotonic,
                lambda after_s: links._run_later(links.yielding.run, after_s),
                start_bytes_per_s=200_000.0,
            )
            us.publish(1)
            await asyncio.sleep(3)
            sim.network.cut("us", "eu")
            await asyncio.sleep(10)
            for _ in range(200):
                us.publish(30, body_bytes=500)
            first = sent = us.outgoing("eu").core.bytes_sent
            sent_at = loop.time()

            def publishes() -> None:
                nonlocal sent, sent_at
                before, sent = sent, us.outgoing("eu").core.bytes_sent
                sent_at = loop.time() if sent > before else sent_at
                appends.of(us.log.topic).confirmed(1, 100, 2, 0.02 if loop.time() - sent_at < 0.1 else 0.0015)
                loop.call_later(0.02, publishes)

            if live:
                publishes()
            sim.network.heal("us", "eu")
            while us.outgoing("eu").core.bytes_sent == first:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.02)
            began, slowed = loop.time(), 0
            while us.link("eu").backlog_entries:
                await asyncio.sleep(0.1)
                slowed += us.link("eu").slowed
            took = loop.time() - began
            assert eu.bodies() == us.bodies()
            if live:
                assert took > 5 and slowed > 30, (took, slowed)
            else:
                assert took < 3 and not slowed, (took, slowed)

        sim.run(scenario(), limit_s=300)
