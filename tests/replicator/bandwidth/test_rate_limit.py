"""The rate of a link: kept over any time, obeyed while messages wait, and no stall."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from replicator.bandwidth.rate_limit import Pace
from replicator.manager.link_manager import LinkSettings
from replicator.sending.link_sender import SenderSettings
from tests.replicator.link_instance import Instance


def rate(messages: int = -1, size_bytes: int = -1) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }


def test_no_rate_is_no_pace() -> None:
    assert Pace.of(None) is None and Pace.of(rate()) is None and Pace.of(rate(0, 0)) is None


@pytest.mark.parametrize(("messages", "size_bytes"), [(100, -1), (-1, 50_000), (100, 10_000)])
def test_over_any_time_no_more_than_the_rate(messages: int, size_bytes: int) -> None:
    pace = Pace.of(rate(messages, size_bytes))
    assert pace is not None
    now, sent, sent_bytes = 1000.0, 0, 0
    while now < 1100:
        if (wait := pace.wait_s(now)) > 0:
            now += wait
            continue
        count = min(7, pace.entries_max)
        pace.spend(count, count * 100, now)
        sent, sent_bytes = sent + count, sent_bytes + count * 100
        assert messages < 0 or sent <= messages * (now - 1000 + 0.1) + 7.1
        assert size_bytes < 0 or sent_bytes <= size_bytes * (now - 1000 + 0.1) + 701
    assert (messages > 0 and sent >= messages * 99) or (size_bytes > 0 and sent_bytes >= size_bytes * 99)


def test_a_slowed_link_trickles_and_is_no_stall() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        broker = us.brokers[0]
        broker.machine.run(broker.links.obey, us.log, {"replicatorDispatchRate": rate(10)})
        began = instance.sim.now()
        for _ in range(5):
            us.publish(100)
        for _ in range(9):
            await asyncio.sleep(5)
            held = len(eu.bodies())
            assert held <= 10 * (instance.sim.now() - began) + 3 and held >= 10 * (instance.sim.now() - began) - 15
            stats = us.link("eu")
            assert stats.connected and stats.slowed and stats.restarts == 0 and stats.backlog_messages > 0
        slower = {**rate(1), "ratePeriodInSecond": 10}
        broker.machine.run(broker.links.obey, us.log, {"replicatorDispatchRate": slower})
        await asyncio.sleep(25)  # far longer than a link may stand still
        assert us.link("eu").restarts == 0 and held < len(eu.bodies()) < held + 20
        broker.machine.run(broker.links.obey, us.log, {})
        await asyncio.sleep(2)
        assert len(eu.bodies()) == 500 and not us.link("eu").slowed

    with Simulation(1) as sim:

        async def main() -> None:
            settings = LinkSettings(sender=SenderSettings(stalled_after_s=3.0))
            instance = Instance(sim, ("us", "eu"), 1, settings)
            sim.network.latency("us", "eu", 0.01, 0.02)
            await instance.load()
            await scenario(instance)

        sim.run(main(), limit_s=300)
