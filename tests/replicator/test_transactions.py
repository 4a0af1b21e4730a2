"""Transactions over links, by real managers and receivers: what is not committed is shown nowhere, and nothing
committed is missing, through any fault.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.wire.run import TxnId
from replicator.health.link_causes import Cause
from replicator.log.replicated_entries import checked_and_addressed
from replicator.log.transaction_buffer import ABORT, COMMIT, marker_run
from tests.replicator.link_instance import Instance, play
from tests.replicator.link_transactions import append, publish, shown


def test_a_link_waits_for_an_open_transaction_and_says_so() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        before = publish(us, None)
        mine, behind = publish(us, (0, 1), 3), publish(us, None, 2)
        await asyncio.sleep(40)
        assert shown(us) == shown(eu) == before
        stats = us.link("eu")
        assert stats.connected and stats.cause == Cause.TRANSACTION_OPEN and "0:1" in stats.cause_text and stats.remedy
        assert stats.restarts == 0 and stats.backlog_entries == 5, "the watchdog lets it wait"
        append(us, marker_run((0, 1), COMMIT, 2))
        await asyncio.sleep(3)
        assert shown(us) == shown(eu) == [*before, *mine, *behind]
        assert us.link("eu").cause == Cause.NONE and us.link("eu").backlog_entries == 0
        assert eu.log.vector.prefix(us.log.origin) == us.log.vector.prefix(us.log.origin)

    play(scenario, names=("us", "eu"))


def test_what_was_aborted_does_not_travel_and_the_vector_passes_it() -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        publish(us, (0, 1), 3)
        behind = publish(us, None, 2)
        append(us, marker_run((0, 1), ABORT, 2))
        await asyncio.sleep(5)
        assert shown(us) == shown(eu) == behind
        held = [run for _, _, run in eu.store.runs() if not run.flags]
        assert sum(run.count for run in held) == 2
        assert eu.log.vector.prefix(us.log.origin) == us.log.vector.prefix(us.log.origin)

    play(scenario, names=("us", "eu"))


def test_half_of_a_transaction_that_has_arrived_is_not_shown() -> None:
    """What the target stored when the source was lost in the middle: entries without the end."""

    async def scenario(instance: Instance, sim: Simulation) -> None:
        us, eu = instance.regions.values()
        before, mine = publish(us, None), publish(us, (0, 1), 5)
        await asyncio.sleep(1)
        first = next(run for _, _, run in us.store.runs() if run.transaction == (0, 1))
        half = first.as_replicated(us.log.origin, 1, 1, checked_and_addressed(first, frozenset(("eu",)))[0]).cut(0, 3)
        eu.brokers[0].machine.run(
            eu.log.append_replicated, (1, 0), half, lambda _: None, lambda error: eu.faults.append(repr(error))
        )
        behind = publish(eu, None)
        await asyncio.sleep(30)
        assert shown(eu) == before and eu.log.state.transactions.open
        append(us, marker_run((0, 1), COMMIT, 2))
        await asyncio.sleep(30)
        assert shown(eu) == [*before, *mine[:3], *behind, *mine[3:]]

    play(scenario, names=("us", "eu"))


@pytest.mark.parametrize("seed", range(12))
def test_no_region_ever_shows_what_is_not_committed_or_leaves_a_hole(seed: int) -> None:
    async def scenario(instance: Instance, sim: Simulation) -> None:
        rng = random.Random(seed)
        us, eu = instance.regions.values()
        parts: dict[tuple[str, TxnId], list[int]] = {}
        ended: dict[tuple[str, TxnId], int] = {}
        plain: set[int] = set()

        def check() -> None:
            for region in (us, eu):
                seen = shown(region)
                assert len(seen) == len(set(seen))
                last = {
                    name: max((b for b in seen if b // 1_000_000 == r.info.number), default=0)
                    for name, r in instance.regions.items()
                }
                for key, bodies in parts.items():
                    visible = set(bodies) & set(seen)
                    assert not visible or ended.get(key) == COMMIT, f"{region.name} shows {key}, which is not committed"
                    assert not visible or visible == {b for b in bodies if b <= last[key[0]]}, (
                        f"{region.name} shows {key} with a hole"
                    )

        for turn in range(80):
            region = rng.choice((us, eu))
            mine = [key for key in parts if key[0] == region.name and key not in ended]
            match rng.randrange(7):
                case 0:
                    parts[region.name, (0, turn + 1)] = publish(region, (0, turn + 1), rng.randrange(1, 4))
                case 1 | 2 if mine:
                    key = rng.choice(mine)
                    parts[key] += publish(region, key[1], rng.randrange(1, 4))
                case 3 if mine:
                    key = rng.choice(mine)
                    ended[key] = rng.choice((COMMIT, COMMIT, ABORT))
                    append(region, marker_run(key[1], ended[key], 0))
                case 4:
                    plain |= set(publish(region, None, rng.randrange(1, 3)))
                case 5 if rng.random() < 0.4:
                    sim.network.cut("us", "eu")
                case 6 if rng.random() < 0.4:
                    await region.move(1 - region.owner)
                case _:
                    sim.network.heal("us", "eu")
            await asyncio.sleep(0.2 * rng.random())
            check()
        sim.network.heal("us", "eu")
        for name, txn in [key for key in parts if key not in ended]:
            ended[name, txn] = COMMIT
            append(instance.regions[name], marker_run(txn, COMMIT, 0))
        await asyncio.sleep(40)
        check()
        wanted = plain | {body for key, bodies in parts.items() if ended[key] == COMMIT for body in bodies}
        assert set(shown(us)) == set(shown(eu)) == wanted

    play(scenario, seed=seed, names=("us", "eu"), brokers=2)
