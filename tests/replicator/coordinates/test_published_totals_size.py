"""What a topic costs a broker in memory once its clients have sent for a while."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

from geo_tests.sim.simulation import Simulation
from heliograph.wire.run import Run
from replicator.coordinates.published_totals import POINTS_MAX, REST_MAX
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from tests.replicator.link_instance import Instance, play

DOCUMENTED_BYTES = 18 << 10
"""Of a loaded topic with clients at work, all in all."""
TOPICS, RUNS = 4, 1000


def filled() -> TopicState:
    state = TopicState(region=1, epoch=1, rng=random.Random(4), deduplication=False, settings=DedupSettings())
    for number in range(RUNS):
        state.confirm_local(100_000, number, Run([b"x"], [1], time_ms=1_700_000_000_000 + number))
    return state


def test_a_topic_without_links_does_not_grow_with_what_is_sent() -> None:
    """A loaded topic with clients at work takes 18 KiB of a broker's memory, also where it was reloaded."""
    filled()  # what is made once
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        states = [filled() for _ in range(TOPICS)]
        taken = (tracemalloc.get_traced_memory()[0] - before) // len(states)
    finally:
        tracemalloc.stop()
    assert taken <= DOCUMENTED_BYTES // 2, f"{taken} bytes a topic after {RUNS} runs"


def test_a_topic_whose_links_have_everything_keeps_little_and_one_that_is_cut_off_keeps_its_backlogs_age() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us = instance.regions["us"]
        outbox = us.log.state.outbox
        began = {}
        for turn in range(300):
            us.publish(1)
            if turn == 150:
                sim.network.cut("us", "ap")
                began["cut"] = sim.now()
            await asyncio.sleep(0.05)
        await asyncio.sleep(10)
        assert REST_MAX < len(outbox._points) <= POINTS_MAX
        age_s = (us.brokers[0].clock.wall_ms() - us.outgoing("ap").oldest_ms()) / 1000
        assert sim.now() - began["cut"] <= age_s + 0.5 and age_s <= 1.5 * (sim.now() - began["cut"])
        sim.network.heal("us", "ap")
        await asyncio.sleep(30)
        assert len(instance.regions["ap"].bodies()) == 300
        assert len(outbox._points) <= REST_MAX and us.outgoing("ap").oldest_ms() == us.outgoing("eu").oldest_ms() == 0

    play(scenario)
