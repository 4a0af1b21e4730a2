"""A bookie that loses power at any moment, again and again: what it acknowledged is there, and nothing else."""

from __future__ import annotations

import pytest

from geo_tests.sim.simulation import Simulation
from tests.storage.bookie.lives import Lives, a_directory_fails, a_disk_fills, many_lives


@pytest.mark.slow
@pytest.mark.parametrize("platter", ["journal", "ledgers"])
def test_power_is_cut_in_each_operation_of_a_history(platter: str) -> None:
    """The same history each time, one operation further, and two once most kinds of operations have been."""
    cut = 0
    finished = False
    while not finished:
        cut += 1 if cut < 40 else 2
        with Simulation("history") as sim:
            lives = Lives(sim)

            async def main(lives: Lives = lives, cut: int = cut) -> bool:
                finished = await lives.run(90, platter, cut)
                await lives.run(20)
                await lives.run(0)
                return finished

            finished = sim.run(main())
    assert cut > 40, f"the history was too short: {cut}"


SHAPES = [(1, 1)] * 30 + [(1, 3), (2, 4), (3, 3)] * 7
"""(journal directories, ledger directories)."""


@pytest.mark.parametrize(("seed", "shape"), list(enumerate(SHAPES)))
def test_many_lives(seed: int, shape: tuple[int, int]) -> None:
    many_lives(seed, shape)


@pytest.mark.parametrize("seed", range(12))
def test_a_directory_fails_in_one_of_many_lives(seed: int) -> None:
    """Its syncs fail from some moment on, until the process is gone; afterwards it works again, and is asked only if
    nobody knows that it failed.
    """
    a_directory_fails(seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_disk_fills_in_each_of_many_lives(seed: int) -> None:
    """Its client opens another writer for each ledger that was refused, at once, on the same connection."""
    a_disk_fills(seed)


def test_the_history_reaches_what_it_should() -> None:
    """Flushes, recycled segments, fences, and deletions happen in it."""
    with Simulation("reach") as sim:
        lives = Lives(sim)

        async def main() -> None:
            await lives.run(400)
            await lives.run(0)

        sim.run(main())
        model = lives.model
        assert model.fenced and model.deleted and sum(map(len, model.acked.values())) > 500
        assert lives.counts["ledgers rename"] > 10 and lives.counts["journal write"] > 100
        segments = [name for name in sim.machine("b0").platter("journal").names() if name.startswith("segment-")]
        assert len(segments) < 12, "segments are recycled"
