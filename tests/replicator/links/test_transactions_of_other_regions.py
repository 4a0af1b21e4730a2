"""A region that is cut off in the middle of its own transaction, and the links between the others."""

from __future__ import annotations

import asyncio

from geo_tests.sim.simulation import Simulation
from heliograph.wire.run import Run
from replicator.health.link_causes import Cause
from replicator.log.replicated_entries import checked_and_addressed, received
from replicator.log.transaction_buffer import ABORT, COMMIT, marker_run
from tests.replicator.link_instance import Instance, TestRegion, play
from tests.replicator.link_transactions import append, publish, shown
from tests.replicator.link_world import entry


def half_arrives(source: TestRegion, target: TestRegion) -> None:
    """Two of four entries of a transaction; the rest, and its end, are still on their way."""
    parts = [entry(body, f"{source.name}-other", body) for body in range(4)]
    txn = Run(parts, [len(part) for part in parts], transaction=(1, 5))
    checksums, _ = checked_and_addressed(txn, frozenset((target.name,)))
    half = txn.as_replicated(source.log.origin, 1, 0, checksums).cut(0, 2)
    end = source.log.vector.prefix(source.log.origin)
    target.brokers[target.owner].machine.run(
        target.log.append_replicated, end, half, lambda _: None, lambda error: target.faults.append(repr(error))
    )


def test_a_region_that_is_cut_off_in_a_transaction_holds_up_no_other_link() -> None:
    """The loss of a region stops only what comes from that region: what the others publish goes on to reach each other.

    us has half of a transaction of eu when eu falls silent. From the place of that half on, the link from us to ap
    carries no message of eu at all: each region sends its own. It waits for transactions of its own region alone.
    """

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu, ap = instance.regions.values()
        us.publish(3)
        await asyncio.sleep(2)
        assert len(ap.bodies()) == 3
        for other in ("us", "ap"):
            sim.network.cut("eu", other)
        half_arrives(eu, us)
        await asyncio.sleep(1)
        assert us.log.state.transactions is not None and us.log.state.transactions.open, "the half of it has arrived"
        us.publish(5)
        await asyncio.sleep(30)
        own = [body for body in us.bodies() if body // 1_000_000 == us.info.number]
        assert len(own) == 8
        lacking = sorted(set(own) - set(ap.bodies()))
        assert not lacking, f"ap lacks {lacking} of us, which it can reach"
        assert us.link("ap").cause == Cause.NONE

    play(scenario)


def test_a_link_waits_for_its_own_regions_transaction_and_names_it_beside_one_of_another() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu, ap = instance.regions.values()
        for other in ("us", "ap"):
            sim.network.cut("eu", other)
        half_arrives(eu, us)
        await asyncio.sleep(1)
        before, mine = publish(us, None), publish(us, (0, 1), 2)
        behind = publish(us, None)
        await asyncio.sleep(10)
        assert shown(ap) == before
        stats = us.link("ap")
        assert stats.cause == Cause.TRANSACTION_OPEN and "0:1" in stats.cause_text
        append(us, marker_run((0, 1), COMMIT, 2))
        gone = publish(us, (0, 2), 2)
        await asyncio.sleep(10)
        assert shown(ap) == [*before, *mine, *behind]
        append(us, marker_run((0, 2), ABORT, 3))
        last = publish(us, None)
        await asyncio.sleep(10)
        assert shown(ap) == [*before, *mine, *behind, *last] and not set(gone) & set(ap.bodies())
        assert us.link("ap").cause == Cause.NONE

    play(scenario)


def test_a_region_on_the_way_passes_on_half_of_a_transaction_which_is_shown_once_its_end_is_there() -> None:
    """eu goes by us to ap. What us publishes reaches ap while eu is away with the other half."""

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu, ap = instance.regions.values()
        instance.choose({"kind": "chain", "regions": ["eu", "us", "ap"]})
        await asyncio.sleep(2)
        first = publish(eu, None)
        await asyncio.sleep(5)
        assert shown(ap) == first
        mine = publish(eu, (0, 1), 5)
        await asyncio.sleep(1)
        ledger, at, run = next(piece for piece in eu.store.runs() if piece[2].transaction == (0, 1))
        checksums, _ = checked_and_addressed(run, frozenset(("us",)))
        half = run.as_replicated(eu.log.origin, ledger, at, checksums).cut(0, 3)
        us.brokers[0].machine.run(
            us.log.append_replicated,
            (ledger, at - 1),
            received(half, "eu"),
            lambda _: None,
            lambda error: us.faults.append(repr(error)),
        )
        for other in ("us", "ap"):
            sim.network.cut("eu", other)
        await asyncio.sleep(5)
        own = publish(us, None, 3)
        await asyncio.sleep(20)
        assert set(own) <= set(ap.bodies()) and not set(shown(ap)) & set(mine)
        append(eu, marker_run((0, 1), COMMIT, 2))
        for other in ("us", "ap"):
            sim.network.heal("eu", other)
        await asyncio.sleep(30)
        assert sorted(shown(ap)) == sorted(shown(us)) == sorted([*first, *mine, *own])

    play(scenario)
