"""In-place repair against garbage collection: a bookie with a surplus copy becomes a spare for that very ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from geo_tests.sim.premises import Premises, on_premises
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.throttle import Throttle
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.ledger.repair.in_place_repair import refill


class FarRegion:
    """A Source that takes its time, and has nothing in the end."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def read(self, topic: str, ledger: int, first: int, last: int, max_bytes: int) -> Sequence[tuple[int, Run]]:
        self.asked.set()
        await self.answers.wait()
        return ()


def test_what_a_refill_wrote_is_there_once_it_is_named() -> None:
    """A copy that is durable on a bookie, and named by the metadata then, can be read there.

    The bookie has been suspected to hold a surplus copy since before the repair; while that waits for other entries
    from another region, the second pass would give up what it wrote. A ledger under repair is marked for as long as
    that takes, as auto-recovery marks it, and nobody gives any of it up.
    """

    async def work(premises: Premises) -> None:
        owner = await premises.owner("first")
        ledger = await owner.open()
        await owner.append(ledger, *"abcdef")
        number = ledger.ledgers()[-1].ledger
        await owner.do(ledger.close)
        closed = await owner.do(lambda: ledger_metadata(owner.context, number))
        spare, kept = closed.fragments[0][1]
        # The spare was away and was replaced, and two bookies that are gone now held the rest.
        fragments = ((0, ("gone-1", kept)), (3, ("gone-1", "gone-2")))
        await owner.do(lambda: _store(owner.context.meta, replace(closed, fragments=fragments)))
        collector = premises.collector(spare)
        await premises.bookie(spare).machine.ask(collector.once)
        assert number in collector.surplus.since, "no suspect: the case is none"
        await asyncio.sleep(40.0)

        source = FarRegion()
        repair = asyncio.ensure_future(owner.do(lambda: refill(owner.context, number, source, Throttle(1 << 30))))
        await source.asked.wait()
        await asyncio.sleep(40.0)
        await premises.bookie(spare).machine.ask(collector.once)
        source.answers.set()
        await repair
        named = await owner.do(lambda: ledger_metadata(owner.context, number))
        assert spare in named.fragments[0][1]
        refused = ""
        try:
            await owner.do(lambda: owner.context.pool.client(spare).read(number, 0, 2, 1 << 20))
        except HeliographError as error:
            refused = repr(error)
        assert not refused, f"{spare} is named for entries 0 to 2, and says {refused}"

    on_premises(work, bookies=2)


async def _store(meta: MetadataStore, metadata: LedgerMetadata) -> None:
    await meta.put(keys.ledger(metadata.ledger), metadata.encode())
