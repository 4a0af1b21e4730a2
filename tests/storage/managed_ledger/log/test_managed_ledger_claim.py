"""The claim on a topic: it marks the ledger that its former owner left open in the same write, and nothing of either
where somebody was quicker.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, Put
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, scenario, until


class Noted(EmbeddedStore):
    """What is written, and what is read."""

    def __init__(self, region: Region) -> None:
        super().__init__(region.machine)
        self.writes: list[list[str]] = []
        self.reads: list[str] = []

    async def txn(self, ops: Sequence[Op]) -> int:
        self.writes.append([op.key for op in ops])
        return await super().txn(ops)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self.reads.append(key)
        return await super().get(key)


async def abandoned(region: Region, *names: str) -> int:
    """A topic whose owner was killed with an open ledger, which is returned."""
    first = Broker(region)
    ledger = await first.open()
    first.append(ledger, *names)
    await until(lambda: len(first.done) == len(names))
    first.factory.abandon()
    return ledger.last_confirmed[0]


def test_a_takeover_writes_twice_and_reads_the_ledger_once() -> None:
    async def work(region: Region) -> None:
        number = keys.ledger(await abandoned(region, "a", "b"))
        meta = Noted(region)
        second = Broker(region, meta)
        again = await second.open()
        assert meta.writes == [[keys.managed_ledger(TOPIC), number], [number]], (
            "the claim with the mark, and the end of the ledger"
        )
        assert meta.reads.count(number) == 1
        assert second.state.seen == ["a", "b"] and [name for *_, name in await read_all(again)] == ["a", "b"]

    scenario(work)


def test_a_writer_that_records_another_ensemble_meanwhile_loses_its_ledger_all_the_same() -> None:
    class Slow(Noted):
        """The former owner changes its ledger's ensemble between our read and our write, once."""

        changed = False

        async def txn(self, ops: Sequence[Op]) -> int:
            if not self.changed and len(ops) == 2 and isinstance(ops[1], Put):
                self.changed = True
                stored = self.machine.get(ops[1].key)
                assert stored is not None and LedgerMetadata.decode(stored[0]).state == LedgerState.OPEN
                await EmbeddedStore(self.machine).put(ops[1].key, stored[0])
            return await super().txn(ops)

    async def work(region: Region) -> None:
        number = await abandoned(region, "a")
        meta = Slow(region)
        second = Broker(region, meta)
        await second.open()
        assert second.state.seen == ["a"] and meta.changed
        found = region.machine.get(keys.ledger(number))
        assert found is not None and LedgerMetadata.decode(found[0]).state == LedgerState.CLOSED

    scenario(work)


def test_a_ledger_that_was_marked_by_an_earlier_try_is_recovered() -> None:
    async def work(region: Region) -> None:
        number = await abandoned(region, "a")
        found = region.machine.get(keys.ledger(number))
        assert found is not None
        metadata = LedgerMetadata.decode(found[0])
        dying = Broker(region)
        await dying.pool.ready()
        await dying.factory._claim(TOPIC, None)  # and there it dies
        marked = region.machine.get(keys.ledger(number))
        assert marked is not None and LedgerMetadata.decode(marked[0]).state == LedgerState.IN_RECOVERY
        assert metadata.state == LedgerState.OPEN
        third = Broker(region)
        await third.open()
        assert third.state.seen == ["a"]

    scenario(work)
