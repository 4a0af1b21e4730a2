"""What of a topic goes into which write, what is written again after which failure, and when an owner gives way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Check, Delete, Op, Put
from heliograph.model.errors import CorruptData, HeliographError, LedgerFenced, MetadataUnavailable, NotAllowed
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, ManagedLedgerMetadata
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from local_meta import keys
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.log.topic_record import Stored, TopicRecord
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.metadata.metadata_flusher import FLUSH_S
from tests.storage.managed_ledger.world import TOPIC

KEY, OWNER, SETTINGS = keys.managed_ledger(TOPIC), 77, ManagedLedgerSettings(checkpoint_entries=10, checkpoint_bytes=99)
A_WRITE = 400
"""Cursors, and deletions of cursors, in one write."""


class Requests:
    """In place of a flusher: what was asked of it."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.dropped = 0

    def request(self, member: object, delay_s: float = FLUSH_S) -> None:
        self.delays.append(delay_s)

    def drop(self, member: object) -> None:
        self.dropped += 1

    def taken(self) -> list[float]:
        found, self.delays = self.delays, []
        return found


class Host:
    """A managed ledger of one open ledger. `gone`: ledgers whose trim is prepared; `pages`, `gone_pages`: what changes
    of its pages.
    """

    def __init__(self) -> None:
        self.topic, self.owner = TOPIC, OWNER
        self.failed, self.cursors = cast("HeliographError | None", None), dict[str, Cursor]()
        self.gone: list[LedgerMetadata] = []
        self.pages: dict[int, bytes] = {}
        self.gone_pages: list[int] = []
        self.stored: list[Stored] = []
        self.asked: list[tuple[str, Any]] = []
        self.through: Position = (5, 3)

    def form(self, trimmed: int) -> ManagedLedgerMetadata:
        self.asked.append(("form", trimmed))
        return ManagedLedgerMetadata((LedgerInfo(5, 4),), b"state", self.through, owner=OWNER)

    def page_changes(self, trimmed: int) -> tuple[dict[int, bytes], list[int]]:
        self.asked.append(("pages", trimmed))
        return self.pages, self.gone_pages

    def on_pages_not_written(self, pages: Sequence[int]) -> None:
        self.asked.append(("pages not written", list(pages)))

    def take_trim(self, cursors: Iterable[Cursor], left: Collection[str]) -> tuple[bool, list[LedgerMetadata]]:
        if not self.gone:
            return False, []
        self.asked.append(("trim", (len(list(cursors)), len(left))))
        return not left, [] if left else self.gone

    def on_stored(self, stored: Stored) -> None:
        self.stored.append(stored)

    def on_trim_put_off(self, taken: bool) -> None:
        self.asked.append(("put off", taken))

    def trim_soon(self) -> None:
        self.asked.append(("soon", None))

    def on_record_lost(self, error: HeliographError) -> None:
        self.failed = error

    def taken(self) -> list[tuple[str, Any]]:
        found, self.asked = self.asked, []
        return found


class World:
    """One record, over a store in memory. `write` carries out what it collects."""

    def __init__(self) -> None:
        self.store, self.host, self.flusher = EmbeddedStore(), Host(), Requests()
        self.pauses: list[int] = []
        self.stored = ManagedLedgerMetadata((LedgerInfo(5),), b"", (5, -1), owner=OWNER)
        context = SimpleNamespace(meta=self.store, pause_s=self._pause_s)
        self.parts = SimpleNamespace(
            flusher=self.flusher, settings=SETTINGS, loop=asyncio.get_running_loop(), context=context
        )

    def _pause_s(self, attempt: int) -> float:
        self.pauses.append(attempt)
        return 1.0

    async def begin(self) -> TopicRecord:
        version = await self.store.put(KEY, self.stored.encode())
        self.record = TopicRecord(self.stored, version, self.host, cast("SharedParts", self.parts))
        return self.record

    def cursor(self, name: str = "c", *, durable: bool = True) -> Cursor:
        catalog = Catalog([LedgerInfo(5, 4)])

        async def never(_: Cursor) -> None:
            raise AssertionError

        made = Cursor(
            name,
            catalog,
            (5, -1),
            durable=durable,
            properties={},
            request_flush=lambda _: None,
            wait_flushed=never,
        )
        self.host.cursors[name] = made
        return made

    async def write(self) -> list[Op]:
        ops = list(self.record.collect())
        if ops:
            self.record.on_written(await self.store.txn(ops))
        return ops


def play(work: Callable[[World, TopicRecord], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await work(world, await world.begin())

    run_alone(main())


def ledger(number: int, *, there: bool = True) -> LedgerMetadata:
    return LedgerMetadata(number, 2, 2, ((0, ("b0", "b1")),) if there else ())


def run_of(count: int, size: int = 1) -> Run:
    return Run([b"x" * size] * count, [size] * count, time_ms=9)


def test_nothing_is_written_where_nothing_was_asked_for() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        waiter = record._waiter()
        assert await world.write() == [] and waiter.done() and world.host.taken() == []

    play(work)


def test_the_metadata_goes_against_the_version_that_this_owner_wrote_last() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        versions = [record.version]
        for _ in range(3):
            record.change(2.0)
            (put,) = await world.write()
            assert isinstance(put, Put) and (put.key, put.expected) == (KEY, versions[-1])
            versions.append(record.version)
        assert len(set(versions)) == 4 and record.through == (5, 3) and world.flusher.taken() == [2.0] * 3
        assert [(stored.ledger, stored.through) for stored in world.host.stored] == [(5, (5, 3))] * 3
        assert await world.write() == []

    play(work)


def test_a_cursor_goes_with_a_check_of_that_version_and_never_without() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        cursor, before = world.cursor(), record.version
        record.change_cursor(cursor)
        assert record.waits(cursor)
        ops = record.collect()
        assert ops[0] == Check(KEY, before) and isinstance(ops[1], Put) and len(ops) == 2
        assert ops[1].key == keys.cursor(TOPIC, "c") == cursor.key
        assert record.waits(cursor), "it is on its way"
        record.on_written(await world.store.txn(ops))
        assert not record.waits(cursor) and (cursor.writes, cursor.write_errors) == (1, 0)
        assert record.version == before and not world.host.stored, "a check changes no version"
        record.change_cursor(cursor)
        record.change()
        assert [type(op) for op in await world.write()] == [Put, Put], "a change checks it itself"

    play(work)


def test_a_cursor_that_is_no_more_that_of_its_name_is_not_written_nor_that_of_a_topic_that_failed() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        former = world.cursor()
        world.cursor()
        record.change_cursor(former)
        assert await world.write() == [] and not world.flusher.taken()
        world.host.failed = LedgerFenced("gone")
        record.change_cursor(world.host.cursors["c"])
        record.change()
        assert await world.write() == []

    play(work)


def test_very_many_cursors_go_in_several_writes_and_waiters_wait_for_the_last() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for number in range(2 * A_WRITE + 1):
            record.change_cursor(world.cursor(f"c{number}"))
        waiting = asyncio.ensure_future(record.written())
        await asyncio.sleep(0)
        world.flusher.taken()
        for count in (A_WRITE, A_WRITE, 1):
            assert not waiting.done()
            assert len(await world.write()) == 1 + count
            assert bool(world.flusher.taken()) == (count != 1), "what is left is asked for"
            await asyncio.sleep(0)
        await waiting

    play(work)


@pytest.mark.parametrize("fails", [None, 0, 1], ids=["all arrive", "the first fails", "the second fails"])
def test_who_waits_does_not_wait_for_what_changes_meanwhile(fails: int | None) -> None:
    """A write takes six cursors of ten, and those have changed again before the next one."""

    async def work(world: World, record: TopicRecord) -> None:
        cursors = [world.cursor(f"c{number}") for number in range(10)]
        for cursor in cursors:
            cursor.properties["x"] = "y" * 200_000
            record.change_cursor(cursor)
        record.delete_cursor(world.cursor("gone"))
        del world.host.cursors["gone"]
        stored: set[str] = set()
        waiting = asyncio.ensure_future(record.written())
        await asyncio.sleep(0)
        for attempt in range(9):
            ops = list(record.collect())
            names = [op.key for op in ops if isinstance(op, Put)]
            assert len(names) == 6
            if attempt == fails:
                record.on_not_written()
            else:
                record.on_written(await world.store.txn(ops))
                stored.update(names)
            for cursor in cursors:
                record.change_cursor(cursor)
            await asyncio.sleep(0)
            if waiting.done():
                break
        assert waiting.done() and len(stored) == 10 and attempt == {None: 1, 0: 2, 1: 3}[fails]

    play(work)


def test_large_cursors_fill_a_write_and_one_goes_in_any_case() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for name in ("a", "b", "c"):
            cursor = world.cursor(name)
            cursor.properties["x"] = "y" * ((1 << 20) - 100)
            record.change_cursor(cursor)
        assert [len(await world.write()) for _ in range(3)] == [3, 2, 0], "until it is beyond 1 MiB"

    play(work)


def test_a_large_cursor_is_written_seldom_and_no_more_seldom_than_once_a_second() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        cursor = world.cursor()
        for size, delay_s in ((0, FLUSH_S), (1 << 10, FLUSH_S), (1 << 19, 0.5), (1 << 24, 1.0)):
            cursor.stored_bytes = size
            record.change_cursor(cursor)
            assert world.flusher.taken() == [delay_s]

    play(work)


def test_between_two_writes_of_cursors_lies_the_pace_that_was_set() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        cursor = world.cursor()
        record.set_pace(5.0)
        record.change_cursor(cursor)
        assert world.flusher.taken() == [FLUSH_S], "the first goes at once"
        await world.write()
        await asyncio.sleep(2.0)
        record.set_pace(5.0)
        assert not world.flusher.taken(), "nothing waits"
        record.change_cursor(cursor)
        assert world.flusher.taken() == [pytest.approx(3.0)]
        record.set_pace(9.0)
        assert world.flusher.taken() == [FLUSH_S], "what waits by the former pace"
        record.change_cursor(cursor)
        assert world.flusher.taken() == [pytest.approx(7.0)], "counted from the last write"
        record.set_pace(0.0)
        world.flusher.taken()
        record.change_cursor(cursor)
        assert world.flusher.taken() == [FLUSH_S]

    play(work)


def test_who_waits_for_a_write_hurries_it_where_nothing_else_does() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for paced, waits, asked in ((0.0, False, [FLUSH_S]), (0.0, True, []), (5.0, True, [FLUSH_S])):
            record.set_pace(paced)
            if waits:
                record.change_cursor(world.cursor())
            world.flusher.taken()
            waiting = asyncio.ensure_future(record.written())
            await asyncio.sleep(0)
            assert world.flusher.taken() == asked
            await world.write()
            await waiting

    play(work)


def test_who_waits_hears_what_closed_the_topic() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        waiting = asyncio.ensure_future(record.written())
        await asyncio.sleep(0)
        world.host.failed = LedgerFenced("another owner")
        record.end()
        assert world.flusher.dropped == 1
        for late in (waiting, asyncio.ensure_future(record.written())):
            with pytest.raises(LedgerFenced):
                await late

    play(work)


def test_who_waits_for_a_write_that_is_on_its_way_is_let_go_at_the_end() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        record.change()
        waiting = asyncio.ensure_future(record.written())
        await asyncio.sleep(0)
        record.collect()
        record.end()
        await asyncio.sleep(0)
        assert waiting.done()

    play(work)


def test_a_deleted_cursor_goes_at_once_and_not_if_it_is_there_again() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        cursor = world.cursor()
        record.change_cursor(cursor)
        world.flusher.taken()
        del world.host.cursors["c"]
        record.delete_cursor(cursor)
        assert world.flusher.taken() == [0.0]
        assert await world.write() == [Check(KEY, record.version), Delete(keys.cursor(TOPIC, "c"))]
        record.delete_cursor(world.cursor("d"))
        record.cursor_there("d")
        record.delete_cursor(world.cursor("e", durable=False))
        assert await world.write() == []

    play(work)


def test_very_many_deletions_go_in_several_writes() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for number in range(A_WRITE + 1):
            record.delete_cursor(world.cursor(f"c{number}"))
        world.flusher.taken()
        assert [len(await world.write()) for _ in range(3)] == [1 + A_WRITE, 2, 0]

    play(work)


def test_a_trim_goes_with_every_cursor_that_allows_it() -> None:
    """What of the cursors is left for a later write might not be durable when the ledgers are gone."""

    async def work(world: World, record: TopicRecord) -> None:
        world.host.gone = [ledger(3), ledger(4, there=False)]
        for number in range(A_WRITE + 1):
            record.change_cursor(world.cursor(f"c{number}"))
        record.change()
        await world.write()
        assert world.host.taken() == [("trim", (A_WRITE, 1)), ("pages", 0), ("form", 0), ("soon", None)]
        assert not world.host.stored[-1].trimming
        ops = await world.write()
        assert world.host.taken() == [("trim", (1, 0)), ("pages", 2), ("form", 2), ("soon", None)], "by itself"
        assert ops[1:-1] == [Delete(keys.ledger(3))], "the other one has no record"
        assert [m.ledger for m in world.host.stored[-1].trimmed] == [3, 4] and world.host.stored[-1].trimming

    play(work)


def test_pages_go_with_the_metadata_and_again_where_it_was_not_written() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        world.host.pages, world.host.gone_pages = {1: b"one"}, [0]
        record.change()
        ops = record.collect()
        assert ops[1:] == [Put(keys.ledger_page(TOPIC, 1), b"one"), Delete(keys.ledger_page(TOPIC, 0))]
        world.host.taken()
        record.on_not_written()
        assert world.host.taken() == [("pages not written", [1, 0])]

    play(work)


def test_everything_that_was_not_written_is_written_the_next_time() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        cursor, other = world.cursor(), world.cursor("d")
        record.discard(ledger(1))
        record.change()
        record.change_cursor(cursor)
        del world.host.cursors["d"]
        record.delete_cursor(other)
        waiter = record._waiter()
        wanted = record.collect()
        record.discard(ledger(2))
        later = record._waiter()
        record.on_not_written()
        assert (cursor.writes, cursor.write_errors) == (0, 1) and not waiter.done() and not later.done()
        ops = await world.write()
        assert len(wanted) == 4 and len(ops) == 5
        assert ops[1:3] == [Delete(keys.ledger(1)), Delete(keys.ledger(2))] and ops[3:] == wanted[2:]
        assert waiter.done() and later.done() and cursor.writes == 1

    play(work)


def test_what_changed_meanwhile_is_not_undone_by_what_was_not_written() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        replaced, back = world.cursor(), world.cursor("d")
        record.change_cursor(replaced)
        del world.host.cursors["d"]
        record.delete_cursor(back)
        record.collect()
        world.cursor()
        world.cursor("d")
        record.on_not_written()
        assert await world.write() == [], "the cursor of that name is another one, and the other one is there again"

    play(work)


def test_a_trim_that_was_not_written_is_put_off() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for gone, cursor, put_off in (([], False, []), ([], True, [False]), ([ledger(3)], False, [True])):
            world.host.gone = gone
            record.change()
            if cursor:
                record.change_cursor(world.cursor())
            record.collect()
            record.on_not_written()
            assert [taken for what, taken in world.host.taken() if what == "put off"] == put_off
            world.host.gone = []
            await world.write()
        world.host.taken()
        record.on_not_written()
        assert world.host.taken() == [], "nothing is on its way"

    play(work)


def test_a_checkpoint_is_due_after_so_many_entries_or_bytes_and_no_more_often_than_set() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for count, size, due in ((9, 1, False), (1, 1, True), (1, 98, False), (1, 1, True), (1, 99, True)):
            record.on_appended(run_of(count, size))
            record.checkpoint_if_due()
            assert bool(world.flusher.taken()) == due
            if due:
                await world.write()
        await asyncio.sleep(0.4)
        record.on_appended(run_of(10))
        record.checkpoint_if_due()
        assert world.flusher.taken() == [pytest.approx(0.6)], "a second lies between"
        await asyncio.sleep(5)
        record.checkpoint_if_due()
        assert world.flusher.taken() == [FLUSH_S]

    play(work)


def test_a_checkpoint_is_asked_for_where_something_was_appended() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        record.checkpoint()
        assert not world.flusher.taken()
        record.on_appended(run_of(1))
        record.checkpoint()
        assert world.flusher.taken() == [FLUSH_S]
        assert record.published_ms == 9 and record.dated({"a": "b"}, 4)["heliograph.published"] == "4 9"

    play(work)


def test_the_last_write_of_an_owner_that_goes_is_one_if_there_is_anything_to_say() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        await record.flush(record.through, 1.0)
        assert not world.flusher.taken()
        for ask, last in (
            (lambda: None, (5, 9)),
            (record.change, (5, 3)),
            (lambda: record.change_cursor(world.cursor()), (5, 3)),
            (lambda: record._delete_later("c"), (5, 3)),
        ):
            ask()
            world.flusher.taken()
            flushing = asyncio.ensure_future(record.flush(last, 1.0))
            await asyncio.sleep(0)
            assert world.flusher.taken() == [0.0]
            await world.write()
            await flushing
        record.change()
        began = asyncio.get_running_loop().time()
        await record.flush(record.through, 1.5)
        assert asyncio.get_running_loop().time() == began + 1.5, "it waits no longer"

    play(work)


def test_what_is_refused_closes_the_topic() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        record.change()
        record.collect()
        record.on_refused(NotAllowed("too large"))
        assert isinstance(world.host.failed, NotAllowed)

    play(work)


@pytest.mark.parametrize("arrived", (True, False))
def test_a_write_of_which_nobody_knows_is_settled_by_what_stands_there(arrived: bool) -> None:
    """The one before said the same of the topic: what stands there does not tell by itself."""

    async def work(world: World, record: TopicRecord) -> None:
        record.change()
        await world.write()
        world.host.stored.clear()
        record.change()
        cursor = world.cursor()
        record.change_cursor(cursor)
        waiter, before = record._waiter(), record.version
        ops = record.collect()
        if arrived:
            await world.store.txn(ops)
        assert await record.settle() == (not arrived)
        assert (record.version != before) == waiter.done() == bool(world.host.stored) == bool(cursor.writes) == arrived
        if not arrived:
            assert len(await world.write()) == 2 and waiter.done()
        assert world.host.failed is None

    play(work)


def test_a_write_of_cursors_of_which_nobody_knows_is_followed_by_one_of_the_metadata() -> None:
    """So a late one of ours fails its check."""

    async def work(world: World, record: TopicRecord) -> None:
        record.change_cursor(world.cursor())
        late = record.collect()
        assert await record.settle()
        ops = await world.write()
        assert [type(op) for op in ops] == [Put, Put]
        with pytest.raises(HeliographError):
            await world.store.txn(late)

    play(work)


def test_what_came_meanwhile_is_written_after_what_had_arrived() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        for later in (
            record.change,
            lambda: record.change_cursor(world.cursor()),
            lambda: record.delete_cursor(world.cursor("d")),
        ):
            record.change()
            await world.store.txn(record.collect())
            later()
            assert await record.settle()
            await world.write()

    play(work)


@pytest.mark.parametrize("owner", (None, OWNER + 1))
def test_an_owner_that_was_replaced_or_whose_topic_is_gone_writes_no_more(owner: int | None) -> None:
    async def work(world: World, record: TopicRecord) -> None:
        if owner is None:
            await world.store.delete(KEY)
        else:
            await world.store.put(KEY, replace(world.stored, owner=owner).encode())
        record.change()
        record.collect()
        assert not await record.settle()
        assert isinstance(world.host.failed, LedgerFenced)
        assert ("deleted" if owner is None else "another owner") in str(world.host.failed)
        assert record.collect() == [] and not await record.settle()

    play(work)


def test_a_record_that_cannot_be_read_closes_its_topic_and_no_other_ones_write() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        await world.store.put(KEY, b"garbage")
        record.change()
        record.collect()
        assert not await record.settle()
        assert isinstance(world.host.failed, CorruptData)

    play(work)


def test_what_stands_there_is_asked_for_until_there_is_an_answer() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        record.change()
        record.collect()
        world.store.unavailable = "no majority"
        settling = asyncio.ensure_future(record.settle())
        await asyncio.sleep(3.5)
        assert not settling.done() and world.pauses == [1, 2, 3, 4]
        world.store.unavailable = None
        assert await settling

    play(work)


def test_a_topic_that_closes_meanwhile_asks_no_more() -> None:
    async def work(world: World, record: TopicRecord) -> None:
        world.store.unavailable = "no majority"
        settling = asyncio.ensure_future(record.settle())
        await asyncio.sleep(1.5)
        world.host.failed = MetadataUnavailable("closed")
        assert not await settling

    play(work)
