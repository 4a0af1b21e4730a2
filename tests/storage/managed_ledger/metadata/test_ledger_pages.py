"""Pages of ledgers: the catalog against a plain one; crashes at every write of metadata; a topic of very many ledgers;
older formats; whole runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv import metadata_store
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import VALUE_BYTES_MAX, Op, Put
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
)
from heliograph.model.ledger_metadata import PAGED, LedgerInfo, ManagedLedgerMetadata, OffloadRecord, OffloadState, pack
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from local_meta import keys
from replicator.audit.bookie_copies import BookieCopies
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.damaged_ledgers import stored_info
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata import ledger_pages
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS, Catalog
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector
from tests.broken_rules import BrokenRules
from tests.geo_tests.sim.mutants import of_a_range_only_its_first_page_is_read
from tests.storage.managed_ledger.histories import Model
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, run_of, until

MANY = 60_000


def gone(ledger: int) -> LedgerInfo:
    """A ledger of three messages that only an object store has."""
    record = OffloadRecord(f"{ledger:032x}", "region", OffloadState.LOCAL_GONE, "", 300, 40, 1_000 * ledger + 5)
    return LedgerInfo(ledger, 3, 300, 1_000 * ledger + 1, 3 * ledger, record)


def scenario(work: Callable[[Region], Awaitable[None]], page_ledgers: int = PAGE_LEDGERS) -> None:
    with Simulation(seed=1) as sim:

        async def main() -> None:
            region = Region(sim, page_ledgers=page_ledgers)
            await region.start()
            await work(region)

        sim.run(main(), limit_s=100_000)


class Counting(EmbeddedStore):
    """Counts pages that are read, and keeps what is written."""

    def __init__(self, machine: KvMachine) -> None:
        super().__init__(machine)
        self.pages_read = 0
        self.heads: list[int] = []
        self.pages_written: list[int] = []

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        rows = await super().range(start, end, limit=limit)
        self.pages_read += sum(key.startswith(keys.LEDGER_PAGES) for key, _, _ in rows)
        return rows

    async def txn(self, ops: Sequence[Op]) -> int:
        puts = [op for op in ops if isinstance(op, Put)]
        self.heads += [len(op.value) for op in puts if op.key.startswith(keys.MANAGED_LEDGERS)]
        self.pages_written += [keys.ledger_of(op.key) for op in puts if op.key.startswith(keys.LEDGER_PAGES)]
        return await super().txn(ops)


async def page_keys(region: Region) -> list[int]:
    rows = region.machine.under(keys.LEDGER_PAGES)
    return [keys.ledger_of(key) for key, _, _ in rows]


# -- the catalog -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_catalog_with_pages_answers_as_one_without(seed: int) -> None:
    rng, page_ledgers = random.Random(seed), random.Random(seed).randrange(1, 5)
    paged, plain, ledger = Catalog(), Catalog(), 0
    for _ in range(60):
        match rng.randrange(8):
            case 0 if plain.count > 1:
                dropped = rng.randrange(1, plain.count)
                pages_gone = paged.page_changes(dropped, page_ledgers=page_ledgers)[1]
                kept = paged.forms(dropped)[0]
                assert paged.closed_ms(dropped) == plain.closed_ms(dropped) == plain.infos()[dropped - 1].closed_ms
                paged.drop_first(dropped)
                plain.drop_first(dropped)
                assert paged.forms(0)[0] == kept and not {page.key for page in kept} & set(pages_gone), (
                    "what was to be stored is what is left"
                )
            case 1:
                paged.seal(page_ledgers)
            case 2 if plain.count > 1:
                at = rng.choice(plain.infos()[:-1]).ledger
                record = OffloadRecord(f"{rng.getrandbits(32):08x}", "r", rng.choice(list(OffloadState)))
                assert paged.set_offload(at, record) and plain.set_offload(at, record)
            case _:
                if plain.ids:
                    for catalog in (paged, plain):
                        catalog.close_last(ledger + 1)
                ledger += rng.randrange(1, 4)
                size = rng.randrange(1, 6)
                for catalog in (paged, plain):
                    catalog.append(LedgerInfo(ledger, first_index=ledger))
                    catalog.grow(size, 10 * size)
        assert paged.infos() == plain.infos() and paged.count == plain.count
        assert (paged.entries, paged.size_bytes, paged.last) == (plain.entries, plain.size_bytes, plain.last)
        assert (paged.first_index, paged.stored_bytes) == (plain.first_index, plain.stored_bytes)
        front = rng.randrange(1, plain.count + 2) if plain.count else 1
        assert paged.front(front) == plain.infos()[:front]
        some = rng.randrange(ledger + 2)
        assert [i for i in paged.infos_from(some) if i.ledger >= some] == [i for i in plain.infos() if i.ledger >= some]
        left_out = [i for i in plain.infos() if i not in paged.unsettled()]
        assert all(i.offload is not None and i.offload.state is OffloadState.LOCAL_GONE for i in left_out)
        probes: list[Position] = [(rng.randrange(-1, ledger + 2), rng.choice([-1, 0, 2, 9])) for _ in range(8)]
        for probe in probes:
            assert paged.at_or_after(probe) == plain.at_or_after(probe) and paged.at_or_before(
                probe
            ) == plain.at_or_before(probe)
            assert paged.next(probe) == plain.next(probe) and paged.info(probe[0]) == plain.info(probe[0])
            assert paged.entries_of(probe[0]) == plain.entries_of(probe[0]) and paged.offload_of(
                probe[0]
            ) == plain.offload_of(probe[0])
            assert paged.entries_between(probe, probes[0]) == plain.entries_between(probe, probes[0])
            assert paged.bytes_between(probe, probes[0]) == plain.bytes_between(probe, probes[0])
            assert paged.position_at(paged.rank(probe)) == plain.position_at(plain.rank(probe))


def test_of_a_page_that_was_not_read_nothing_is_left_out_silently() -> None:
    known = Catalog([gone(i) for i in range(12)])
    while known.seal(3):
        pass
    unread = Catalog(known.recent(), known.last, known.forms(0)[0])
    assert (
        unread.unread(4)
        and not unread.unread(11)
        and unread.entries == 36
        and unread.first_index == 0
        and unread.next((-1, -1)) == (0, 0)
    )
    for ask in (
        unread.infos,
        lambda: unread.infos_from(2),
        lambda: unread.info(4),
        lambda: unread.entries_of(4),
        lambda: unread.closed(4),
    ):
        with pytest.raises(MetadataUnavailable, match="try again"):
            ask()  # type: ignore[operator]
    probes: list[Position] = [(ledger, entry) for ledger in range(12) for entry in (-1, 0, 2)]
    said, true = ([catalog.entries_between((-1, -1), probe) for probe in probes] for catalog in (unread, known))
    assert said == sorted(said) and all(b - 9 <= a <= b for a, b in zip(said, true, strict=True)), (
        "an estimate, in order"
    )
    assert unread.next((2, 2)) in {(2, 3), (3, 0)}
    assert unread.bounded(4, 2) == 2 == known.bounded(4, 2)


# -- crashes -----------------------------------------------------------------------------------------------------------


class Dying(EmbeddedStore):
    """The `at`-th write is the last one: it is applied or not, and nobody hears which."""

    def __init__(self, machine: KvMachine, at: int, applied: bool) -> None:
        super().__init__(machine)
        self.left, self.applied = at, applied

    async def _pass(self) -> None:
        await super()._pass()
        if self.left < 0:
            raise MetadataUnavailable("dead")

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        return await self.txn([Put(key, value, expected, lease)])

    async def txn(self, ops: Sequence[Op]) -> int:
        self.left -= 1
        if self.left >= 0:
            return await super().txn(ops)
        if self.applied and self.left == -1:
            await EmbeddedStore(self.machine).txn(ops)
        raise OutcomeUnknown("died")


@pytest.mark.parametrize("applied", [False, True])
def test_a_crash_at_any_write_of_metadata_loses_and_doubles_no_ledger(applied: bool) -> None:
    """Ledgers are made, sealed into pages, said to be offloaded, and trimmed, by one owner after the other, each of
    which dies at its n-th write.
    """

    async def life(region: Region, broker: Broker, at: int, made: dict[Position, str], acked: list[Position]) -> None:
        log = await broker.open()
        there = {(ledger, entry): name for ledger, entry, name in await read_all(log)}
        await log.whole()
        found, first = log.ledgers(), log.first_position()
        assert [i.ledger for i in found] == sorted({i.ledger for i in found}) and len(there) == log.entries == sum(
            i.entries for i in found
        )
        assert all(there.get(p) == name for p, name in made.items() if p >= first), "a confirmed entry is not there"
        assert all(p <= acked[-1] for p in made if p < first), "trimmed, and not acknowledged"
        cursor = await log.open_cursor("c", (-1, -1))
        log.set_retention(0, 0)
        for turn in range(12):
            broker.append(log, f"{at}-{turn}a", f"{at}-{turn}b")
            await until(lambda: len(broker.done) + len(broker.failed) >= 2 * turn + 2)  # noqa: B023
            made.update({(ledger, entry): name for ledger, entry, name in broker.done})
            await log.whole()
            closed = [i for i in log.ledgers() if i.closed_ms]
            if closed and turn % 3 == 0:
                await log.set_offload(closed[len(closed) // 2].ledger, OffloadRecord(f"{at:04x}{turn:04x}", "region"))
            if turn % 5 == 4 and len(closed) > 9:
                acked.append(max(acked[-1], (closed[1].ledger, closed[1].entries - 1)))
                cursor.ack_cumulative(acked[-1])
                await cursor.flushed()

    async def work(region: Region) -> None:
        made: dict[Position, str] = {}
        acked: list[Position] = [(-1, -1)]
        for at in range(2, 32):
            broker = Broker(
                region,
                Dying(region.machine, at, applied),
                ManagedLedgerSettings(ledger_entries_max=2, close_timeout_s=0.2),
            )
            living = asyncio.ensure_future(life(region, broker, at, made, acked))
            await asyncio.wait([living], timeout=10.0)
            assert broker.meta.left < 0, "it was to die"  # type: ignore[attr-defined]
            broker.factory.abandon()
            await asyncio.wait([living], timeout=30.0)
            made.update({(ledger, entry): name for ledger, entry, name in broker.done})
            if living.done():
                assert living.exception() is None or isinstance(living.exception(), HeliographError), living.exception()
            living.cancel()
        other = Broker(region)
        log = await other.open()
        await log.whole()
        there = {(ledger, entry): name for ledger, entry, name in await read_all(log)}
        assert all(there.get(p) == name for p, name in made.items() if p >= log.first_position())
        stored = await stored_topic(EmbeddedStore(region.machine), TOPIC)
        assert stored is not None and len(await page_keys(region)) > 3
        head = await EmbeddedStore(region.machine).get(keys.managed_ledger(TOPIC))
        assert head is not None and [p.key for p in ManagedLedgerMetadata.decode(head[0]).pages] == await page_keys(
            region
        ), "a page is nobody's"
        assert await OrphanCollector(other.factory.context, 0.0).sweep(1.0) is not None
        assert {(a, b): c for a, b, c in await read_all(log)} == there, "a ledger of a page was taken for an orphan"

    scenario(work, page_ledgers=3)


@pytest.mark.parametrize("seed", range(20))
def test_owners_that_die_and_zombies_with_pages_of_two(seed: int) -> None:
    owners_with_pages(seed)


def owners_with_pages(seed: int) -> None:
    """Pages of two ledgers, three of them an answer of the metadata."""
    with Simulation(seed=f"pages-{seed}") as sim:
        model = Model(sim, sim.rng("model"), page_ledgers=2)
        sim.run(model.run(60), limit_s=3600)


def test_a_range_of_which_only_the_first_answer_is_read_is_found(broken: BrokenRules) -> None:
    of_a_range_only_its_first_page_is_read(broken)
    broken.setattr(ledger_pages, "pages_between", metadata_store.pages_between)
    broken.look(owners_with_pages, range(20), AssertionError, HeliographError)


# -- very many ---------------------------------------------------------------------------------------------------------


class Cold:
    """An object store's reader that has every ledger of `gone`."""

    async def read(
        self, topic: str, ledger: int, record: OffloadRecord, first: int, last: int, max_bytes: int
    ) -> list[tuple[int, Run]]:
        assert record.attempt == f"{ledger:032x}"
        run = run_of(*(f"{ledger}-{entry}" for entry in range(first, last + 1)))
        run.first_index = 3 * ledger + first
        return [(first, run)]


async def store_many(region: Region, count: int, cursors: dict[str, Position]) -> None:
    """As a restore from an object store does it, or an owner of the topic over the years."""
    meta, catalog = EmbeddedStore(region.machine), Catalog([gone(i) for i in range(count)])
    while catalog.seal(region.page_ledgers) and catalog.history is not None:
        for key, blob in catalog.history.take_changed().items():
            await meta.put(keys.ledger_page(TOPIC, key), blob)
    pages, infos = catalog.forms(0)
    form = ManagedLedgerMetadata(infos, b"", catalog.last, next_index=3 * count, owner=9, pages=pages)
    await meta.put(keys.managed_ledger(TOPIC), form.encode())
    await meta.next_ids(keys.LEDGER_IDS, at_least=count)
    for name, mark in cursors.items():
        await meta.put(keys.cursor(TOPIC, name), pack([*mark, [], {}]))


def test_sixty_thousand_ledgers_are_opened_without_their_pages_read_anywhere_and_trimmed() -> None:
    async def work(region: Region) -> None:
        await store_many(region, MANY, {"near": (MANY - 2, 1)})
        meta = Counting(region.machine)
        broker = Broker(region, meta, ManagedLedgerSettings(sweep_s=0.5))
        broker.factory.cold = Cold()
        log = await broker.open()
        assert meta.pages_read == 0 and log.entries == 3 * MANY and log.cursors["near"].backlog_entries == 4
        assert log.first_index == 0 and log.first_position() == (0, 0)
        assert log.position_before((MANY, 0)) == (MANY - 1, 2) and log.position_before((MANY - 1, 1)) == (MANY - 1, 0)
        assert log.position_before((0, 0)) == (-1, -1)
        with pytest.raises(MetadataUnavailable, match="try again"):
            log.position_before((700, 0))
        with pytest.raises(MetadataUnavailable, match="try again"):
            log.ledgers()
        await until(lambda: meta.pages_read > 0)
        assert len(log.ledgers()) == MANY, "who asks again is answered"
        broker.factory.abandon()

        meta = Counting(region.machine)
        broker = Broker(region, meta, ManagedLedgerSettings(sweep_s=0.5))
        broker.factory.cold = Cold()
        log = await broker.open()
        old = await log.read((12_345, 2), 10, 1 << 20)
        assert [(ledger, first, run.first_index) for ledger, first, run in old] == [(12_345, 2, 37_037)]
        assert meta.pages_read == 1, "one page was searched"
        over = await log.read((511, 3), 10, 1 << 20)
        assert over[0][:2] == (512, 0), "from one page into the next"
        assert meta.pages_read <= 3

        broker.append(log, "a")
        await until(lambda: broker.done)
        assert max(meta.heads) < 100_000 and meta.pages_written == [], "what is written does not grow with the ledgers"
        await log.whole()
        assert log._catalog.history is not None and len(log.ledgers()) == MANY + 1
        pages = log._catalog.history.pages
        await until(lambda: not any(page.unpacked for page in pages))
        assert len(log.ledgers()) == MANY + 1, "they take little memory while nobody asks, and still answer"
        log.set_retention(0, 0)
        await until(lambda: log.first_position()[0] > 2_100, 600.0)
        log.set_retention(-1, -1)
        await log.close()
        assert [key for key in await page_keys(region) if key < 2_048] == [] == meta.pages_written, (
            "pages go whole; none is written for that"
        )
        again = await Broker(region).open()
        assert (again.entries, again.first_position()) == (log.entries, log.first_position()) and again.cursors[
            "near"
        ].backlog_entries == 5

    scenario(work)


def test_an_audit_reads_the_pages_that_it_needs_and_no_page_for_one_ledger_of_the_end() -> None:
    """Its first question, not the second, is answered: an audit that hears "try again" is over."""

    async def work(region: Region) -> None:
        await store_many(region, 40, {})
        meta = Counting(region.machine)
        broker = Broker(region, meta)
        broker.factory.cold = Cold()
        log: Any = SimpleNamespace(ledger=await broker.open())
        copies = BookieCopies(broker.factory.context)
        ((first, run),) = await copies.read(log, 39, 1, 2, 1 << 20)
        assert (first, run.count, meta.pages_read) == (1, 2, 0)
        ((first, run),) = await copies.read(log, 4, 0, 2, 1 << 20)
        assert (first, run.count, run.first_index, meta.pages_read) == (0, 3, 12, 1)
        assert await copies.extents(log) == [(ledger, 0, 3) for ledger in range(40)]
        with pytest.raises(NoSuchLedger):
            await copies.replace(log, 77, [])

    scenario(work, page_ledgers=3)


def test_a_cursor_far_back_has_the_pages_that_it_needs() -> None:
    async def work(region: Region) -> None:
        await store_many(region, 40, {"far": (17, 0)})
        meta = Counting(region.machine)
        broker = Broker(region, meta)
        log = await broker.open()
        assert 0 < meta.pages_read < 8 and log.cursors["far"].backlog_entries == 40 * 3 - 17 * 3 - 1
        log.cursors["far"].ack_cumulative((25, 9))
        assert log.cursors["far"].mark_delete == (25, 2)
        early = await log.open_cursor("early", (2, 1), durable=False)
        assert early.backlog_entries == 40 * 3 - 8 and early.read_position == (2, 2)
        cursor = Cursor(
            "x", log._catalog, (-1, -1), durable=False, properties={}, request_flush=lambda _: None, wait_flushed=_never
        )
        cursor.ack([(0, 0)])
        assert cursor.mark_delete == (0, 0)

    scenario(work, page_ledgers=3)


def test_all_that_every_cursor_has_passed_goes_with_its_pages() -> None:
    async def work(region: Region) -> None:
        await store_many(region, 40, {"c": (37, 0)})
        broker = Broker(region, settings=ManagedLedgerSettings(sweep_s=0.5))
        log = await broker.open()
        log.set_retention(0, -1)
        await until(lambda: log.first_position() == (37, 0))
        assert await page_keys(region) == [] and log.entries == 9 and log.cursors["c"].backlog_entries == 8
        again = await Broker(region).open()
        assert again.ledgers() == log.ledgers() == [gone(37), gone(38), gone(39)]

    scenario(work, page_ledgers=3)


async def _never(_: Cursor) -> None: ...


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offloaded", [False, True])
def test_the_one_value_of_an_older_version_becomes_pages_with_the_first_write(offloaded: bool) -> None:
    async def work(region: Region) -> None:
        infos = tuple(
            gone(i) if offloaded else replace(gone(i), offload=None) for i in range(18_000 if offloaded else 30_000)
        )
        old = ManagedLedgerMetadata(infos, b"", (infos[-1].ledger, 2), next_index=3 * len(infos), owner=9)
        blob = old.encode()
        assert blob[0] == (2 if offloaded else 1) and 200_000 < len(blob) <= VALUE_BYTES_MAX
        meta = Counting(region.machine)
        await meta.put(keys.managed_ledger(TOPIC), blob)
        await meta.next_ids(keys.LEDGER_IDS, at_least=len(infos))
        broker = Broker(region, meta)
        log = await broker.open()
        assert log.ledgers() == list(infos) and not meta.pages_written
        broker.factory._parts.may_page = lambda: False
        await log.store_state()
        head = await meta.get(keys.managed_ledger(TOPIC))
        assert head is not None and head[0][0] == blob[0] and not meta.pages_written, (
            "an older broker of the region could not read it"
        )
        broker.factory._parts.may_page = lambda: True
        await log.store_state()
        head = await meta.get(keys.managed_ledger(TOPIC))
        assert head is not None and head[0][0] == PAGED and len(head[0]) < 100_000
        assert sorted(meta.pages_written) == list(range(0, len(infos) - 1023, 512)) == await page_keys(region), (
            "each is written once"
        )
        whole = await stored_topic(meta, TOPIC)
        assert whole is not None and whole[0].ledgers == infos and not whole[0].pages
        assert (await stored_info(broker.factory.context, TOPIC, 777)) == infos[777]
        broker.factory.abandon()
        again = await Broker(region).open()
        await again.whole()
        assert again.ledgers() == list(infos)

    scenario(work)


def test_what_is_said_of_an_object_goes_into_its_page_and_a_failed_write_is_made_again() -> None:
    async def work(region: Region) -> None:
        await store_many(region, 20, {})
        meta = Counting(region.machine)
        broker = Broker(region, meta)
        log = await broker.open()
        record = OffloadRecord("ab", "region", OffloadState.LOCAL_GONE)
        meta.unavailable = "no leader"
        setting = asyncio.ensure_future(log.set_offload(4, record))
        await asyncio.sleep(0.5)
        with pytest.raises(MetadataUnavailable):
            await setting
        meta.unavailable = None
        await log.whole()
        meta.unavailable = "no leader"
        setting = asyncio.ensure_future(log.set_offload(4, record))
        await asyncio.sleep(0.5)
        assert not setting.done()
        meta.unavailable = None
        await setting
        whole = await stored_topic(meta, TOPIC)
        assert (
            whole is not None
            and whole[0].ledgers[4] == replace(gone(4), offload=record)
            and whole[0].ledgers[5] == gone(5)
        )
        assert set(meta.pages_written) == {3}

    scenario(work, page_ledgers=3)


def test_a_page_that_is_lost_is_said_to_be_and_one_that_another_owner_trimmed_is_not() -> None:
    async def work(region: Region) -> None:
        await store_many(region, 20, {})
        meta = EmbeddedStore(region.machine)
        zombie, owner = Broker(region), Broker(region)
        former = await zombie.open()
        await owner.open()
        await meta.delete(keys.ledger_page(TOPIC, 3))
        with pytest.raises(LedgerFenced):
            await former.read((4, 0), 1, 1)
        assert isinstance(former.failed, LedgerFenced)
        with pytest.raises(CorruptData, match=r"ledgers 3 to 5.*backup"):
            await owner.factory.opened[0].read((4, 0), 1, 1)
        with pytest.raises(CorruptData, match="backup"):
            await stored_topic(meta, TOPIC)

    scenario(work, page_ledgers=3)


def test_a_deleted_topic_leaves_no_page() -> None:
    async def work(region: Region) -> None:
        await store_many(region, 20, {"c": (4, 0)})
        broker = Broker(region)
        await broker.open()
        await broker.factory.delete(TOPIC)
        assert await page_keys(region) == []

    scenario(work, page_ledgers=3)
