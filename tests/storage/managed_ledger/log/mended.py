"""A damaged ledger of a topic that is mended by an owner who dies at some step of it, from one seed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.wire.run import Run
from local_meta import keys
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from tests.storage.managed_ledger.flaky_store import FlakyStore
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, small, until

QUORUMS = (2, 2, 2)


class Elsewhere:
    """Another place that has every entry: their bytes, and not the message index of this region."""

    def __init__(self, entries: dict[tuple[int, int], Run]) -> None:
        self.entries, self.asked = entries, list[int]()
        self.lacks: set[tuple[int, int]] = set()

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        self.asked.append(first)
        found: list[tuple[int, Run]] = []
        for entry in range(first, min(last, first + 3) + 1):
            run = self.entries.get((ledger, entry))
            if run is None or (ledger, entry) in self.lacks:
                break
            found.append((entry, run))
        return found


async def topic_with_ledgers(region: Region, broker: Broker, count: int = 33) -> tuple[ManagedLedger, Elsewhere]:
    """Three closed ledgers, and an open one; what each entry is, one run each."""
    ledger = await broker.open(quorums=QUORUMS)
    for number in range(count):
        broker.append(ledger, f"n{number}")
        await until(lambda: len(broker.done) == number + 1)  # noqa: B023
    entries: dict[tuple[int, int], Run] = {}
    position = ledger.first_position()
    while found := await ledger.read(position, 1, 1):
        at, first, run = found[0]
        bare = copy(run)
        bare.first_index = -1
        entries[at, first] = bare
        position = (at, first + 1)
    return ledger, Elsewhere(entries)


def evict(broker: Broker) -> None:
    broker.cache.byte_bound = 0
    broker.cache.reserve(1)
    broker.cache.byte_bound = 1 << 20
    broker.cache.reserve(-1)


def lose(region: Region, ledger: int, entries: Sequence[int] | None = None) -> None:
    """Every copy of it, or of these entries."""
    for bookie in region.bookies.values():
        held = bookie.ledgers.get(ledger)
        if held is not None:
            for entry in list(held.blocks) if entries is None else entries:
                held.blocks.pop(entry, None)


def one_crash(seed: int) -> None:
    with Simulation(seed=f"mend-{seed}") as sim:
        rng = sim.rng("test")

        async def main() -> None:
            region = Region(sim, 5)
            await region.start()
            broker = Broker(region, settings=small())
            ledger, source = await topic_with_ledgers(region, broker)
            wanted, numbers = broker.done, [info.ledger for info in ledger.ledgers()]
            await ledger.close()
            meta = EmbeddedStore(region.machine)
            number = rng.choice(numbers[:3])
            if rng.random() < 0.5:
                await meta.delete(keys.ledger(number))
            if rng.random() < 0.4:
                gone = region.bookies[rng.choice(sorted(region.bookies))]
                gone.crash()
                await gone.unregister(meta)
            lose(region, number, None if rng.random() < 0.5 else rng.sample(range(10), 4))
            for _ in range(rng.randrange(1, 6)):  # brokers that die over it, and one that does not
                dying = Broker(region, FlakyStore(region.machine, rng, trouble=rng.choice([0.0, 0.2])))
                await dying.pool.ready()
                attempt = asyncio.ensure_future(dying.factory.refill(TOPIC, number, source, QUORUMS))
                await asyncio.wait([attempt], timeout=rng.uniform(0.0, 0.2))
                attempt.cancel()
                await asyncio.gather(attempt, return_exceptions=True)
            last = Broker(region)
            await last.pool.ready()
            assert (await last.factory.refill(TOPIC, number, source, QUORUMS)).missing == ()
            assert await last.factory.damaged(TOPIC, number) == []
            assert await read_all(await last.open()) == wanted

        sim.run(main(), limit_s=600)
