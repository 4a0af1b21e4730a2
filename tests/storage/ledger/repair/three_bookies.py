"""Three bookies with all copies, for tests of what one of them lacks afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from tests.storage.ledger.repair.lost_bookie_worlds import SETTINGS, Worlds
from tests.storage.managed_ledger.world import read_all, until

THREE = (3, 3, 2)
QUICK = replace(SETTINGS, check_s=5.0)


def lacking(world: Worlds, metadata: LedgerMetadata, through: int) -> list[tuple[int, str]]:
    """(entry, bookie) of each copy that should be there, and is not."""
    bookies = world.region.bookies
    return [
        (entry, name)
        for entry in range(through + 1)
        for name in metadata.write_set(entry)
        if not bookies[name].holds(metadata.ledger) or entry not in bookies[name].ledgers[metadata.ledger].blocks
    ]


async def complete(world: Worlds, limit_s: float = 60.0) -> None:
    """Until every entry of every ledger has its copies, and nothing is marked."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while True:
        closed = [m for m in await world.ledgers() if m.state == LedgerState.CLOSED]
        missing = [(m.ledger, *one) for m in closed for one in lacking(world, m, m.last_entry)]
        if not missing and not await world.meta.range(keys.UNDERREPLICATED, prefix_end(keys.UNDERREPLICATED)):
            return
        assert asyncio.get_running_loop().time() < deadline, f"never complete: {missing[:5]}"
        await asyncio.sleep(0.2)


def three(
    work: Callable[[Worlds], Awaitable[None]],
    settings: AutoRecoverySettings = QUICK,
    *,
    bookies: int = 3,
    seed: int = 1,
    quorums: tuple[int, int, int] = THREE,
) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            world = Worlds(sim, bookies, settings, quorums)
            await world.start()
            world.meta.watch(
                keys.LEDGERS, lambda *_: world.broken.clear()
            )  # here Qw > Qa: a named bookie may lack what it missed
            await work(world)
            for part in world.parts:
                await part.stop()

        sim.run(main(), limit_s=2000)


def one_history_of_pauses(seed: int) -> None:
    async def work(world: Worlds) -> None:
        rng = random.Random(seed)
        broker = world.broker()
        log = await broker.open(quorums=world.quorums)
        log.set_retention(-1, -1)
        number = 0
        for _ in range(8):
            victim = rng.choice(sorted(world.region.bookies))
            await world.lose(victim)
            for _ in range(rng.randrange(1, 9)):
                broker.append(log, f"n{number}", pad=rng.choice((10, 200)))
                number += 1
                await asyncio.sleep(rng.choice((0.01, 0.3)))
            await world.back(victim)
            await asyncio.sleep(rng.choice((0.0, 0.5, 3.0)))
        await until(lambda: len(broker.done) == number)
        await log.close()
        await complete(world, 30.0)
        assert await read_all(log) == broker.done

    three(work, replace(QUICK, lost_after_s=1e6), seed=seed)
