"""ManagedLedger on its happy paths: append, read, roll over, acknowledge, trim, close, and open again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from geo_tests.sim.loop import SimFailure
from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.errors import (
    HeliographError,
    LedgerFenced,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    TopicClosed,
    VersionConflict,
)
from heliograph.model.ledger_metadata import TRIMMED_MS, ManagedLedgerMetadata, unpack
from local_meta import keys
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.metadata.ledger_pages import stored_topic
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, scenario, small, until


def test_appends_are_confirmed_in_order_and_read_back_by_the_next_owner() -> None:
    async def work(region: Region) -> None:
        first = Broker(region)
        ledger = await first.open()
        for i in range(100):
            first.append(ledger, f"a{i}", f"b{i}")
        await until(lambda: len(first.done) == 200)
        wanted = [name for i in range(100) for name in (f"a{i}", f"b{i}")]
        assert [name for *_, name in first.done] == wanted
        assert [name for *_, name in await read_all(ledger)] == wanted
        assert ledger.next_index == 200
        second = Broker(region)
        again = await second.open()
        assert [name for *_, name in await read_all(again)] == wanted
        assert second.state.seen == wanted
        assert (again.next_index, again.entries, again.size_bytes) == (200, 200, ledger.size_bytes)

    scenario(work)


def test_an_idle_topic_has_no_open_ledger_and_nothing_to_replay() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()
        broker.append(ledger, "a", "b")
        await ledger.close()
        assert len(broker.done) == 2 and isinstance(ledger.failed, TopicClosed)
        ledger = await broker.open()
        assert broker.state.seen == ["a", "b"] and broker.state.replayed == 0
        assert ledger._tail is None
        assert ledger.next_index == 2 and ledger.last_confirmed == (broker.done[-1][0], 1)
        await asyncio.sleep(5)
        await ledger.close()
        assert (
            not len(broker.factory.context.tasks)
            and not broker.factory.context.ticker._active
            and not broker.factory._flusher._due
        )

    scenario(work)


def test_cursors_are_durable_and_trimming_follows_the_slowest() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger = await broker.open()
        ledger.set_retention(0, 0)
        slow = await ledger.open_cursor("slow", (-1, -1))
        fast = await ledger.open_cursor("fast", (-1, -1), properties={"p": "1"})
        for i in range(100):
            broker.append(ledger, str(i))
            await asyncio.sleep(0.002)
        await until(lambda: len(broker.done) == 100)
        positions = [(at, entry) for at, entry, _ in broker.done]
        held = [i.ledger for i in ledger.ledgers()]
        fast.ack_cumulative(positions[80])
        slow.ack(positions[:31] + positions[40:50])
        assert slow.mark_delete == positions[30] and slow.backlog_entries == 100 - 31 - 10
        await slow.flushed()
        await until(lambda: ledger.first_position() > positions[0])
        assert ledger.first_position() <= positions[31]
        gone = [x for x in held if x not in [i.ledger for i in ledger.ledgers()]]
        assert gone
        await until(lambda: all(not b.holds(ledger_id) for b in region.bookies.values() for ledger_id in gone))
        again = await Broker(region).open()
        slow, fast = again.cursors["slow"], again.cursors["fast"]
        assert (slow.mark_delete, slow.backlog_entries) == (positions[30], 59)
        assert (fast.mark_delete, fast.properties) == (positions[80], {"p": "1"})
        assert slow.is_acked(positions[45]) and not slow.is_acked(positions[50])
        runs = slow.unacked_runs(await again.read(positions[38], 100, 1 << 20))
        assert (runs[0][0], runs[0][1]) == positions[38]
        slow.reset(positions[10])
        assert slow.read_position == again.first_position()
        slow.ack_cumulative(positions[99])
        assert slow.backlog_entries == 0 and slow.mark_delete == positions[99]
        await again.delete_cursor("fast")
        await slow.flushed()
        assert list((await Broker(region).open()).cursors) == ["slow"]

    scenario(work)


def test_when_the_newest_trimmed_ledger_was_closed_is_stored_and_outlives_its_owner() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger = await broker.open()
        assert TRIMMED_MS not in ledger.properties
        cursor = await ledger.open_cursor("c", (-1, -1))
        for i in range(100):
            broker.append(ledger, str(i))
            await asyncio.sleep(0.002)
        await until(lambda: len(broker.done) == 100)
        closed = {info.ledger: info.closed_ms for info in ledger.ledgers()}
        ledger.set_retention(0, 0)
        for position in (broker.done[60][:2], broker.done[80][:2]):
            cursor.ack_cumulative(position)
            await cursor.flushed()
            await until(lambda: ledger.ledgers()[0].ledger == position[0])  # noqa: B023
            gone = max(closed[number] for number in closed if number < position[0])
            stored = await stored_topic(EmbeddedStore(region.machine), TOPIC)
            assert (
                stored is not None
                and ledger.properties == {TRIMMED_MS: str(gone)}
                and stored[0].properties[TRIMMED_MS] == str(gone)
            )
            assert stored[0].spans()[0] == (gone, closed[position[0]])
        again = await Broker(region).open()
        assert again.properties == ledger.properties

    scenario(work)


def test_retention_keeps_what_is_acknowledged() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small(sweep_s=10.0))
        ledger = await broker.open()
        ledger.set_retention(1, -1)
        for i in range(60):
            broker.append(ledger, str(i))
            await asyncio.sleep(0.002)
        await asyncio.sleep(30)
        assert ledger.entries == 60
        await asyncio.sleep(60)
        assert ledger.entries < 20

    scenario(work)


def test_state_is_checkpointed_between_rollovers() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=ManagedLedgerSettings(checkpoint_entries=16))
        ledger = await broker.open()
        for i in range(500):
            broker.append(ledger, str(i))
            await asyncio.sleep(0.01)
        await until(lambda: len(broker.done) == 500)
        other = Broker(region)
        await other.open()
        assert other.state.seen == [str(i) for i in range(500)]
        assert 0 < other.state.replayed < 160

    scenario(work)


def test_terminate_and_delete() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()
        broker.append(ledger, "a", "b")
        assert await ledger.terminate() == ledger.last_confirmed
        broker.append(ledger, "c")
        assert [name for name, _ in broker.failed] == ["c"] and isinstance(broker.failed[0][1], NotAllowed)
        again = await broker.open()
        broker.append(again, "d")
        assert [name for name, _ in broker.failed] == ["c", "d"] and len(await read_all(again)) == 2
        assert await broker.factory.exists(TOPIC) and await broker.factory.names("public/default") == [TOPIC]
        await broker.factory.delete(TOPIC)
        assert not await broker.factory.exists(TOPIC) and await broker.factory.names("public/default") == []
        await until(lambda: not any(b.holds(i) for b in region.bookies.values() for i in b.ledgers))
        with pytest.raises(NotFound):
            await broker.open(create=False)

    scenario(work)


def test_readers_at_the_tail_are_woken_once_a_turn_and_read_from_the_cache() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()
        woken: list[tuple[int, int]] = []
        stop = ledger.wake_on_append(lambda: woken.append(ledger.last_confirmed))
        broker.append(ledger, "a", "b", "c")
        broker.append(ledger, "d")
        await until(lambda: len(broker.done) == 4)
        await asyncio.sleep(0)
        assert 1 <= len(woken) <= 2 and woken[-1] == ledger.last_confirmed
        at = ledger.last_confirmed[0]
        found = ledger.cached((at, 1), 2, 1 << 20)
        assert [(first, run.count) for _, first, run in found] == [(1, 2)]
        found = ledger.cached((-1, -1), 4, 1 << 20)
        assert [(first, run.count) for _, first, run in found] == [(0, 3), (3, 1)]
        assert [(first, run.count) for _, first, run in ledger.cached((at, 0), 4, 2)] == [(0, 2)]
        assert ledger.cached((at, 4), 4, 99) == [] and await ledger.read((at, 4), 4, 99) == []
        stop()
        broker.append(ledger, "e")
        count = len(woken)
        await until(lambda: len(broker.done) == 5)
        await asyncio.sleep(0.1)
        assert len(woken) == count

    scenario(work)


def test_a_reader_at_the_tail_that_fails_is_told_and_keeps_no_other_asleep() -> None:
    woken: list[bool] = []

    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()

        def fail() -> None:
            raise RuntimeError("nobody expected this")

        ledger.wake_on_append(fail)
        ledger.wake_on_append(lambda: woken.append(True))
        broker.append(ledger, "a")
        await asyncio.sleep(10)

    with pytest.raises(SimFailure, match="nobody expected this"):
        scenario(work)
    assert woken


async def _with_three(
    region: Region, meta: EmbeddedStore | None = None
) -> tuple[Broker, ManagedLedger, Cursor, list[tuple[int, int]]]:
    """A broker with three entries and a cursor."""
    broker = Broker(region, meta)
    ledger = await broker.open()
    cursor = await ledger.open_cursor("c", (-1, -1))
    for name in "abc":
        broker.append(ledger, name)
    await until(lambda: len(broker.done) == 3)
    return broker, ledger, cursor, [(at, entry) for at, entry, _ in broker.done]


def test_an_owner_that_was_replaced_stores_no_cursor_any_more() -> None:
    async def work(region: Region) -> None:
        _, old, stale, positions = await _with_three(region)
        errors: list[HeliographError] = []
        old.on_failed = errors.append
        ledger = await Broker(region).open()
        ledger.cursors["c"].ack_cumulative(positions[2])
        await ledger.cursors["c"].flushed()
        stale.ack([positions[0]])
        with pytest.raises(LedgerFenced):
            await stale.flushed()
        assert isinstance(errors[0], LedgerFenced)
        assert (await Broker(region).open()).cursors["c"].mark_delete == positions[2]

    scenario(work)


class LateStore(EmbeddedStore):
    """One transaction is applied only when the test says so; its caller is told that nothing is known."""

    held: Sequence[Op] | None = None
    hold_next = False

    async def txn(self, ops: Sequence[Op]) -> int:
        if self.hold_next:
            self.hold_next, self.held = False, ops
            raise OutcomeUnknown("no answer")
        return await super().txn(ops)


def test_a_cursor_write_of_unknown_outcome_cannot_land_over_a_later_one() -> None:
    async def work(region: Region) -> None:
        meta = LateStore(region.machine)
        _, _, cursor, positions = await _with_three(region, meta)
        meta.hold_next = True
        cursor.ack([positions[0]])
        await until(lambda: meta.held is not None)
        cursor.ack_cumulative(positions[2])
        await cursor.flushed()
        assert meta.held is not None
        with pytest.raises(VersionConflict):
            await EmbeddedStore(region.machine).txn(meta.held)
        assert (await Broker(region).open()).cursors["c"].mark_delete == positions[2]

    scenario(work)


def test_who_finds_a_cursor_that_another_one_makes_waits_until_it_is_durable() -> None:
    async def work(region: Region) -> None:
        meta = EmbeddedStore(region.machine)
        ledger = await Broker(region, meta).open()
        meta.unavailable = "no leader"
        asked = [asyncio.ensure_future(ledger.open_cursor("c", (-1, -1))) for _ in range(3)]
        await asyncio.sleep(1)
        assert list(ledger.cursors) == ["c"] and not any(one.done() for one in asked)
        meta.unavailable = None
        assert len(set(map(id, await asyncio.gather(*asked)))) == 1
        assert list((await Broker(region).open()).cursors) == ["c"]

    scenario(work)


def test_a_closed_topic_holds_no_ack_sets_and_its_next_owner_has_them() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()
        cursor = await ledger.open_cursor("c", (-1, -1))
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        position = broker.done[0][:2]
        cursor.ack_batch(position, 0b110)
        await ledger.close()
        assert cursor.ack_set_bytes == 0 and not cursor.partly_acked
        assert (await Broker(region).open()).cursors["c"].partly_acked == {position: 0b110}

    scenario(work)


def test_closing_is_bounded_while_the_metadata_is_away() -> None:
    async def work(region: Region) -> None:
        meta = EmbeddedStore(region.machine)
        broker = Broker(region, meta)
        ledger = await broker.open()
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        meta.unavailable = "no leader"
        broker.append(ledger, "b")
        await asyncio.wait_for(ledger.close(), 20)
        assert len(broker.done) + len(broker.failed) == 2
        assert [name for *_, name in await read_all(await Broker(region).open())][: len(broker.done)] == [
            name for *_, name in broker.done
        ]
        fresh = await Broker(region, EmbeddedStore(region.machine)).open()
        await asyncio.wait_for(fresh.close(), 5)

    scenario(work)


def test_large_cursors_are_stored_over_several_writes_and_a_trim_waits_for_the_last() -> None:
    with Simulation(seed=9) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            broker = Broker(region, settings=small())
            log = await broker.open()
            for number in range(40):
                broker.append(log, f"n{number}")
                await asyncio.sleep(0.1)
            await until(lambda: len(broker.done) == 40)
            names = [f"c{i}" for i in range(12)]
            for name in names:
                await log.open_cursor(name, (-1, -1))
            marks: dict[str, list[tuple[int, tuple[int, int]]]] = {name: [] for name in names}
            firsts: list[tuple[int, int]] = []

            def on_cursor(key: str, value: bytes | None, version: int) -> None:
                fields = unpack("cursor", value or b"")
                marks[keys.cursor_of(key)].append((version, (fields[0], fields[1])))

            def on_topic(key: str, value: bytes | None, version: int) -> None:
                firsts.append((version, ManagedLedgerMetadata.decode(value or b"").ledgers[0].ledger))

            broker.meta.watch(keys.cursors(TOPIC), on_cursor)
            broker.meta.watch(keys.managed_ledger(TOPIC), on_topic)
            log.set_retention(0, 0)
            for name in names:
                log.cursors[name].set_properties(
                    {"x": (name * 200_000)[:500_000]}
                )  # together more than one transaction may hold
                log.cursors[name].ack_cumulative(broker.done[29][:2])
            log.trim_soon()
            for name in names:
                await log.cursors[name].flushed()
            await until(lambda: log.entries <= 20)
            assert firsts[-1][1] > firsts[0][1]
            for version, first in firsts:
                for name in names:
                    stored = (
                        max(mark for at, mark in marks[name] if at <= version) if firsts[0][1] < first else (first, 0)
                    )
                    assert stored[0] >= first - 1, (
                        "a ledger is gone, and after a crash now a cursor would stand before it"
                    )
            again = await Broker(region, settings=small()).open()
            for name in names:
                assert (
                    again.cursors[name].properties == {"x": (name * 200_000)[:500_000]}
                    and again.cursors[name].mark_delete == broker.done[29][:2]
                )

        sim.run(main(), limit_s=60)
