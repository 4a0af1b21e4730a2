"""Producers of one name in two regions that both take messages: the same application, deployed twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.wire.run import Run
from tests.known_faults.region_stories import given
from tests.replicator.link_instance import Instance, TestRegion, play
from tests.replicator.link_world import entry

NAME = "orders"


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a message is confirmed and not stored where another region's producer of that name used its sequence",
)
def test_what_a_producer_is_confirmed_is_stored_whatever_another_region_calls_its_own() -> None:
    """A message that is confirmed lies in the log of the region that confirmed it. Deduplication leaves out only what
    is there already.

    The sequences of both producers begin at 0, as sequences do, and say nothing of each other. Where us has already
    sent its 10 to 29, those of eu are taken for them: answered with success, and stored in no region. Right would be to
    leave a message out only where it is proven to be the same, by its coordinate, or by its publish time and checksum,
    and to store it otherwise.
    """
    confirmed: list[int] = []
    held: list[int] = []

    def publish(region: TestRegion, first: int, count: int) -> None:
        bodies = [region.info.number * 1_000_000 + sequence for sequence in range(first, first + count)]
        parts = [entry(body, NAME, first + index) for index, body in enumerate(bodies)]
        run = Run(parts, [len(part) for part in parts], producers=((NAME, count, first, None),))

        def done(_: Any) -> None:
            confirmed.extend(bodies)

        def failed(error: Exception) -> None:
            region.faults.append(repr(error))

        region.brokers[region.owner].machine.run(region.log.publish, run, done, failed)

    async def scenario(instance: Instance, _: Simulation) -> None:
        us, eu = instance.regions.values()
        assert not eu.log.aliases, "both regions take messages"
        publish(eu, 0, 10)
        publish(us, 0, 80)
        await asyncio.sleep(5)
        assert len(eu.bodies()) == len(us.bodies()) == 90
        publish(eu, 10, 20)
        await asyncio.sleep(5)
        held.extend(eu.bodies())

    with given():
        play(scenario, names=("us", "eu"))
        assert len(confirmed) == 110
    lost = sorted(set(confirmed) - set(held))
    assert not lost, f"{len(lost)} confirmed messages are not in eu: {lost}"
