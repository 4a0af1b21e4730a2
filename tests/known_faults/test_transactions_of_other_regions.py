"""A region that is cut off in the middle of its own transaction, and the links between the others."""

from __future__ import annotations

import asyncio

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.wire.run import Run
from replicator.log.replicated_entries import checked_and_addressed
from tests.known_faults.region_stories import given
from tests.replicator.link_instance import Instance, play
from tests.replicator.link_world import entry


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="an open transaction of another region stops a link, which would not send any of it",
)
def test_a_region_that_is_cut_off_in_a_transaction_holds_up_no_other_link() -> None:
    """The loss of a region stops only what comes from that region: what the others publish goes on to reach each other.

    us has half of a transaction of eu when eu falls silent. From the place of that half on, the link from us to ap
    sends nothing, although it carries no message of eu at all: each region sends its own. Right would be that a link
    waits for transactions of its own region alone.
    """
    lacking: list[int] = []

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(2)
        assert len(ap.bodies()) == 3
        for other in ("us", "ap"):
            sim.network.cut("eu", other)
        parts = [entry(body, "eu-producer", body) for body in range(4)]
        txn = Run(parts, [len(part) for part in parts], transaction=(1, 5))
        checksums, _ = checked_and_addressed(txn, frozenset(("us",)))
        half = txn.as_replicated(eu.log.origin, 1, 0, checksums).cut(0, 2)
        end = eu.log.vector.prefix(eu.log.origin)
        us.brokers[0].machine.run(
            us.log.append_replicated, end, half, lambda _: None, lambda error: us.faults.append(repr(error))
        )
        await asyncio.sleep(1)
        assert us.log.state.transactions is not None and us.log.state.transactions.open, "the half of it has arrived"
        us.publish(5)
        await asyncio.sleep(30)
        own = [body for body in us.bodies() if body // 1_000_000 == us.info.number]
        assert len(own) == 8
        lacking.extend(sorted(set(own) - set(ap.bodies())))

    with given():
        play(scenario)
    assert not lacking, f"ap lacks {lacking} of us, which it can reach"
