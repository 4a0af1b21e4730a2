"""Mending: what no bookie has comes back under the same ids, of loaded topics and of others, and a crash at any step
only puts it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.errors import CorruptData, EntriesLost, NoSuchLedger, NotAllowed
from heliograph.model.ledger_metadata import LedgerMetadata, ManagedLedgerMetadata, OffloadRecord, OffloadState
from local_meta import keys
from storage.ledger.repair.in_place_repair import Refilled, Runs
from tests.storage.managed_ledger.log.mended import QUORUMS, evict, lose, one_crash, topic_with_ledgers
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, scenario, small


def test_damaged_entries_of_a_loaded_topic_come_back_and_are_read_again() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        number = ledger.ledgers()[1].ledger
        assert await ledger.damaged(number) == []
        lose(region, number, [0, 3, 4])
        evict(broker)
        with pytest.raises(EntriesLost):
            await read_all(ledger)
        assert await ledger.damaged(number) == [(0, 0), (3, 4)]
        assert await ledger.damaged(number, 1, 3) == [(3, 3)]
        source.lacks = {(number, 4)}
        assert (await ledger.refill(number, source)).missing == ((4, 4),)
        assert await ledger.damaged(number) == [(4, 4)]
        source.lacks.clear()
        assert (await ledger.refill(number, source, 4, 4)).missing == ()
        assert await read_all(ledger) == broker.done
        position, index = ledger.first_position(), 0
        while found := await ledger.read(position, 1, 1):  # the index of each message is what it was
            assert found[0][2].first_index == index and found[0][2].time_ms > 0
            index, position = index + 1, (found[0][0], found[0][1] + 1)
        assert index == 33

    scenario(work)


def test_a_ledger_whose_metadata_is_lost_too_comes_back_and_what_bookies_still_hold_is_not_fetched() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        first, second = (info.ledger for info in ledger.ledgers()[:2])
        await ledger.close()
        meta = EmbeddedStore(region.machine)
        for number in (first, second):
            await meta.delete(keys.ledger(number))
        lose(region, second)
        broker = Broker(region)
        ledger = await broker.open()
        with pytest.raises(NoSuchLedger):
            await read_all(ledger)
        assert await ledger.damaged(first) == [(0, 9)]
        assert await ledger.refill(first, source) == Refilled() and not source.asked
        assert (await ledger.refill(second, source)).fetched_entries == ledger.ledgers()[1].entries
        assert [name for *_, name in await read_all(ledger)] == [f"n{number}" for number in range(33)]
        found = await meta.get(keys.ledger(second))
        assert found is not None and LedgerMetadata.decode(found[0]).topic == TOPIC

    scenario(work)


def test_topics_that_nobody_has_loaded_are_mended_too() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        numbers = [info.ledger for info in ledger.ledgers()]
        await ledger.close()
        lose(region, numbers[0])
        other = Broker(region)
        await other.pool.ready()
        assert await other.factory.damaged(TOPIC, numbers[0]) == [(0, 9)]
        done = await other.factory.refill(TOPIC, numbers[0], source, QUORUMS)
        assert (done.fetched_entries, done.missing) == (10, ()) and await other.factory.damaged(TOPIC, numbers[0]) == []
        with pytest.raises(NoSuchLedger, match="trimmed"):
            await other.factory.refill(TOPIC, 999, source, QUORUMS)
        assert [name for *_, name in await read_all(await other.open())] == [f"n{number}" for number in range(33)]

    scenario(work)


def test_a_bookie_that_has_deleted_the_ledger_is_replaced() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        number = ledger.ledgers()[0].ledger
        found = await EmbeddedStore(region.machine).get(keys.ledger(number))
        assert found is not None
        holders = LedgerMetadata.decode(found[0]).fragments[0][1]
        for name in holders:
            region.bookies[name].deleted.append(number)
        evict(broker)
        assert await ledger.damaged(number) == [(0, 9)]
        assert (await ledger.refill(number, source)).missing == ()
        assert await read_all(ledger) == broker.done
        found = await EmbeddedStore(region.machine).get(keys.ledger(number))
        assert found is not None and not set(holders) & set(LedgerMetadata.decode(found[0]).fragments[0][1])

    scenario(work, bookies=5)


def test_what_does_not_fit_between_its_neighbours_is_refused_before_anything_is_written() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        number = ledger.ledgers()[0].ledger
        lose(region, number, [4, 5])
        wrong = copy(source.entries[number, 4])
        wrong.counts = [2]
        source.entries[number, 4] = wrong
        with pytest.raises(CorruptData, match="they are others"):
            await ledger.refill(number, source, 4, 5)
        shifted = copy(source.entries[number, 4])
        shifted.counts, shifted.first_index = None, 17
        with pytest.raises(CorruptData, match="it is another's"):
            await ledger.refill(number, Runs([(4, shifted)]))
        assert await ledger.damaged(number) == [(4, 5)]
        assert not any(
            4 in bookie.ledgers[number].blocks for bookie in region.bookies.values() if number in bookie.ledgers
        )

    scenario(work)


def test_the_open_ledger_is_closed_first_and_what_an_object_store_keeps_is_refused() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        last = ledger.last_confirmed[0]
        assert await ledger.damaged(last) == []
        assert await ledger.refill(last, source) == Refilled()
        assert next(info for info in ledger.ledgers() if info.ledger == last).closed_ms
        record = OffloadRecord("aa", "us", OffloadState.LOCAL_GONE)
        await ledger.set_offload(last, record)
        with pytest.raises(NotAllowed, match="object store"):
            await ledger.refill(last, source)
        with pytest.raises(NoSuchLedger):
            await ledger.refill(10**6, source)

    scenario(work)


def test_a_ledger_that_was_trimmed_meanwhile_gets_no_metadata_again() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger, source = await topic_with_ledgers(region, broker)
        info = ledger.ledgers()[0]
        await ledger.close()
        meta = EmbeddedStore(region.machine)
        await meta.delete(keys.ledger(info.ledger))
        trims: list[int] = []

        class Trimming(EmbeddedStore):
            """The owner trims just before the ledger's metadata would be written anew."""

            async def txn(self, ops: Sequence[Op]) -> int:
                if not trims:
                    trims.append(1)
                    found = await self.get(keys.managed_ledger(TOPIC))
                    assert found is not None
                    stored = ManagedLedgerMetadata.decode(found[0])
                    await self.put(
                        keys.managed_ledger(TOPIC),
                        replace(stored, ledgers=stored.ledgers[1:]).encode(),
                        expected=found[1],
                    )
                return await super().txn(ops)

        other = Broker(region, Trimming(region.machine))
        await other.pool.ready()
        with pytest.raises(NoSuchLedger, match="trimmed"):
            await other.factory.refill(TOPIC, info.ledger, source, QUORUMS)
        assert trims
        assert await meta.get(keys.ledger(info.ledger)) is None

    scenario(work)


@pytest.mark.parametrize("seed", range(40))
def test_a_crash_at_any_step_only_puts_it_off(seed: int) -> None:
    one_crash(seed)
