"""ManagedLedgerFactory: which cursors a topic has, and which go with it, however many, and wherever it is cut off."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import RANGE_LIMIT, Delete, Op, Put
from heliograph.model.errors import LedgerFenced, MetadataUnavailable, OutcomeUnknown
from heliograph.model.ledger_metadata import LedgerMetadata
from local_meta import keys
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, scenario, until


async def with_cursors(region: Region, count: int) -> dict[str, bytes]:
    """A topic with so many cursors, which nobody has open; what is stored of them, by key."""
    broker = Broker(region)
    ledger = await broker.open()
    await ledger.open_cursor("c", (-1, -1))
    broker.append(ledger, "a", "b")
    await until(lambda: len(broker.done) == 2)
    await ledger.close()
    found = await broker.meta.get(keys.cursor(TOPIC, "c"))
    assert found is not None
    stored = {keys.cursor(TOPIC, f"c{number}"): found[0] for number in range(count)}
    puts: list[Op] = [Put(key, blob) for key, blob in stored.items()]
    for start in range(0, count, 1000):
        await broker.meta.txn(puts[start : start + 1000])
    return stored


def cursors_left(region: Region) -> int:
    return len(region.machine.under(keys.cursors(TOPIC)))


def test_ten_thousand_cursors_and_more_are_found_and_deleted() -> None:
    async def work(region: Region) -> None:
        await with_cursors(region, RANGE_LIMIT + 3)
        broker = Broker(region)
        ledger = await broker.open()
        assert len(ledger.cursors) == RANGE_LIMIT + 4
        await broker.factory.delete(TOPIC)
        assert not cursors_left(region) and not await broker.factory.exists(TOPIC)

    scenario(work)


def test_a_topic_that_names_a_ledger_without_a_record_is_deleted() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=ManagedLedgerSettings(ledger_entries_max=10))
        ledger = await broker.open()
        for number in range(35):
            broker.append(ledger, f"n{number}")
        await until(lambda: len(broker.done) == 35)
        await ledger.close()
        first = broker.done[0][0]
        await broker.meta.delete(keys.ledger(first))
        await Broker(region).factory.delete(TOPIC)
        assert not await broker.factory.exists(TOPIC) and not region.machine.under("/ledgers/")

    scenario(work)


class Dying(EmbeddedStore):
    """The process ends after some writes."""

    def __init__(self, region: Region, writes: int) -> None:
        super().__init__(region.machine)
        self.left = writes

    async def txn(self, ops: Sequence[Op]) -> int:
        if not self.left:
            raise MetadataUnavailable("the process is dead")
        self.left -= 1
        return await super().txn(ops)


@pytest.mark.parametrize("writes", range(8))
def test_a_deletion_that_is_cut_off_leaves_no_cursor_to_the_topic_made_again(writes: int) -> None:
    async def work(region: Region) -> None:
        await with_cursors(region, 1200)
        dying = Broker(region, Dying(region, writes))
        cut_off = False
        try:
            await dying.factory.delete(TOPIC)
        except MetadataUnavailable:
            cut_off = True
        dying.factory.abandon()
        assert cut_off == (writes < 5), "the claim, three times cursors, the topic"
        broker = Broker(region)
        if await broker.factory.exists(TOPIC):
            await broker.factory.delete(TOPIC)
        assert not cursors_left(region)
        assert not (await broker.open()).cursors

    scenario(work)


def test_a_topic_that_is_made_has_no_cursor_of_another_one_of_its_name() -> None:
    """What an earlier version left, or a restore that was cut off; also where it is not known at once whether the topic
    was made.
    """

    class Unsure(EmbeddedStore):
        unsure = True

        async def txn(self, ops: Sequence[Op]) -> int:
            made = await super().txn(ops)
            if self.unsure:
                self.unsure = False
                raise OutcomeUnknown("no answer")
            return made

    async def work(region: Region) -> None:
        stored = await with_cursors(region, 3)
        for meta in (EmbeddedStore(region.machine), Unsure(region.machine)):
            await Broker(region).factory.delete(TOPIC)
            for key, blob in stored.items():
                await EmbeddedStore(region.machine).put(key, blob)
            broker = Broker(region, meta)
            ledger = await broker.open()
            assert not ledger.cursors and not cursors_left(region)
            await ledger.close()

    scenario(work)


def test_a_deletion_that_another_broker_overtakes_deletes_no_cursor_of_its() -> None:
    class Overtaken(EmbeddedStore):
        overtaken = False

        async def txn(self, ops: Sequence[Op]) -> int:
            if any(isinstance(op, Delete) for op in ops) and not self.overtaken:
                self.overtaken = True
                await other.open()
            return await super().txn(ops)

    other: Broker

    async def work(region: Region) -> None:
        nonlocal other
        await with_cursors(region, 3)
        other = Broker(region)
        with pytest.raises(LedgerFenced):
            await Broker(region, Overtaken(region.machine)).factory.delete(TOPIC)
        assert cursors_left(region) == 4

    scenario(work)


def test_who_judged_an_earlier_opening_deletes_nothing() -> None:
    """A broker that stood still while another one opened the topic, and gave receipts."""

    async def work(region: Region) -> None:
        late, owner = Broker(region), Broker(region)
        judged = await late.open()
        ledger = await owner.open()
        owner.append(ledger, "a")
        await until(lambda: len(owner.done) == 1)
        asked: list[str] = []

        async def claimed() -> list[int]:
            asked.append("claimed")
            return []

        with pytest.raises(LedgerFenced):
            await late.factory.delete(TOPIC, claimed, owner=judged.owner)
        assert not asked
        owner.append(ledger, "b")
        await until(lambda: len(owner.done) == 2)
        again = await owner.open()
        with pytest.raises(LedgerFenced):
            await owner.factory.delete(TOPIC, owner=ledger.owner)
        assert again.failed is None, "what is open here since is left in peace"
        await owner.factory.delete(TOPIC, claimed, owner=again.owner)
        assert asked and not await owner.factory.exists(TOPIC)

    scenario(work)


@pytest.mark.parametrize("overtaken", [False, True])
def test_ledgers_that_the_metadata_does_not_name_go_while_the_topic_is_held(overtaken: bool) -> None:
    async def work(region: Region) -> None:
        broker, other = Broker(region), Broker(region)
        await broker.open()
        for number, topic in ((100, ""), (101, "persistent://public/default/another")):
            made = LedgerMetadata(number, 2, 2, ((0, ("b1", "b2")),), topic=topic)
            await broker.meta.put(keys.ledger(number), made.encode())

        async def claimed() -> list[int]:
            if overtaken:
                await other.open()
            return [100, 101, 102]

        if overtaken:
            with pytest.raises(LedgerFenced):
                await broker.factory.delete(TOPIC, claimed)
        else:
            await broker.factory.delete(TOPIC, claimed)
        left = [await broker.meta.get(keys.ledger(number)) is not None for number in (100, 101)]
        assert left == [overtaken, True], "one that names a topic is not this one's"

    scenario(work)


def test_what_repairs_read_and_what_is_kept_for_readers_that_lag_is_bounded_as_is_set() -> None:
    async def work(region: Region) -> None:
        settings = ManagedLedgerSettings(read_ahead_cache_bytes=4096, mend_bytes_per_s=1000)
        factory = Broker(region, settings=settings).factory
        assert factory.ahead.byte_bound == 4096
        begun = region.sim.now()
        for _ in range(5):
            await factory._parts.mending.take(1000)
        assert region.sim.now() - begun == pytest.approx(4.0, abs=0.1)

    scenario(work)
