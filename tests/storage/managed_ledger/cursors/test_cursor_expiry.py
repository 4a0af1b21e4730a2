"""Expiry: cursors move over what is too old, too much, or given up; trimming follows; nothing younger goes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import CorruptData, EntriesLost, NotEnoughBookies, NotFound, StorageError, StoreRefused
from heliograph.model.ledger_metadata import LedgerInfo
from storage.managed_ledger.cursors import cursor_expiry
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.managed_ledger.world import Broker, Region, read_all, until

SMALL = ManagedLedgerSettings(ledger_entries_max=10, checkpoint_entries=16, pending_timeout_s=3.0)


def simulate(main: Coroutine[Any, Any, None], sim: Simulation) -> None:
    sim.run(main, limit_s=600)


async def filled(
    sim: Simulation, settings: ManagedLedgerSettings = SMALL, *, bookies: int = 3
) -> tuple[Region, Broker, ManagedLedger]:
    """100 entries, one each second, over ten ledgers."""
    region = Region(sim, bookies)
    await region.start()
    broker = Broker(region, settings=settings)
    log = await broker.open()
    for number in range(100):
        broker.append(log, f"n{number}", pad=100)
        await asyncio.sleep(1.0)
    await until(lambda: len(broker.done) == 100)
    return region, broker, log


@pytest.mark.parametrize("seed", range(6))
def test_what_is_older_goes_and_nothing_younger(seed: int) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            _, broker, log = await filled(sim)
            rng = random.Random(seed)
            now = sim.clock().wall_ms()
            names = {"a", "b", "c"}
            for name in sorted(names | {"untouched"}):
                cursor = await log.open_cursor(name, (-1, -1))
                for at, entry, _ in rng.sample(broker.done, 20):
                    cursor.ack([(at, entry)])
            all_runs = await log.read(log.first_position(), 1000, 1 << 20)
            age: dict[tuple[int, int], int] = {}
            position = log.first_position()
            while runs := await log.read(position, 1000, 1 << 20):
                for at, first, run in runs:
                    age.update({(at, first + i): run.time_ms for i in range(run.count)})
                position = (runs[-1][0], runs[-1][1] + runs[-1][2].count)
            assert all_runs and len(age) == 100
            for limit in sorted(now - rng.randrange(110_000) for _ in range(8)):
                before = {name: [p for p in age if not log.cursors[name].is_acked(p)] for name in names}
                given_up = await log.expire_before(limit, names)
                for name in names:
                    cursor = log.cursors[name]
                    wanted = [p for p in before[name] if age[p] >= limit]
                    assert [p for p in age if not cursor.is_acked(p)] == wanted, "exactly what is older has gone"
                    assert given_up.get(name, 0) == len(before[name]) - len(wanted)
                    assert (await log.oldest_unacked_ms(name) or None) == min((age[p] for p in wanted), default=None)
            assert log.cursors["untouched"].backlog_entries == 80
            with pytest.raises(NotFound):
                await log.oldest_unacked_ms("nobody")

        simulate(main(), sim)


def test_a_long_backlog_costs_a_few_reads_and_a_young_one_costs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(seed=2) as sim:

        async def main() -> None:
            _, broker, log = await filled(sim, ManagedLedgerSettings(ledger_entries_max=1000))
            await log.open_cursor("c", (-1, -1))
            reads: list[int] = []
            read = ManagedLedger.read

            async def count(self: ManagedLedger, position: tuple[int, int], entries: int, size: int) -> Any:
                reads.append(entries)
                return await read(self, position, entries, size)

            monkeypatch.setattr(ManagedLedger, "read", count)
            now = sim.clock().wall_ms()
            assert await log.expire_before(now - 1_000_000, ["c"]) == {} and reads == [1]
            assert (await log.expire_before(now - 50_000, ["c"]))["c"] in (50, 51) and len(reads) <= 10
            reads.clear()
            assert len(broker.done) - log.cursors["c"].backlog_entries in (50, 51)

        simulate(main(), sim)


@pytest.mark.parametrize("call", range(1, 8))
def test_what_is_acknowledged_and_trimmed_while_ages_are_read_moves_nothing_further(
    call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of any of the reads: what is counted from a place that is gone lies elsewhere."""
    with Simulation(seed=call) as sim:

        async def main() -> None:
            _, _, log = await filled(sim)
            cursor = await log.open_cursor("c", (-1, -1))
            log.set_retention(0, 0)
            positions = [(at, first + i) for at, first, run in await everything(log) for i in range(run.count)]
            limit = {p: run.time_ms for p, run in zip(positions, await each_run(log), strict=True)}[positions[60]]
            read, calls = cursor_expiry._time_ms, 0

            async def meddled(log: Any, position: tuple[int, int]) -> int:
                nonlocal calls
                calls += 1
                if calls == call:
                    cursor.ack_cumulative(positions[34])
                    await cursor.flushed()
                    await until(lambda: log.first_position()[0] > positions[10][0])
                return await read(log, position)

            monkeypatch.setattr(cursor_expiry, "_time_ms", meddled)
            await log.expire_before(limit, ["c"])
            assert positions[34] <= cursor.mark_delete < positions[60] or calls < call
            assert cursor.mark_delete < positions[60], "nothing younger goes"

        simulate(main(), sim)


async def everything(log: ManagedLedger) -> list[tuple[int, int, Any]]:
    runs: list[tuple[int, int, Any]] = []
    position = log.first_position()
    while found := await log.read(position, 1000, 1 << 20):
        runs += found
        at, first, run = found[-1]
        position = log.next_position((at, first + run.count - 1))
    return runs


async def each_run(log: ManagedLedger) -> list[Any]:
    """For each entry, the run that it is in."""
    return [run for _, _, run in await everything(log) for _ in range(run.count)]


def test_an_expired_move_is_durable_and_trimming_follows() -> None:
    with Simulation(seed=3) as sim:

        async def main() -> None:
            region, _, log = await filled(sim)
            await log.open_cursor("c", (-1, -1))
            await log.expire_before(sim.clock().wall_ms() - 60_000, ["c"])
            mark = log.cursors["c"].mark_delete
            killed, log = log, await Broker(region, settings=SMALL).open()  # at once
            assert killed.failed is None and mark > (-1, -1) and log.cursors["c"].mark_delete == mark
            assert cursor_expiry.read_given_up(log.cursors["c"].properties) == [((-1, -1), mark)], (
                "it is known that nobody acknowledged that"
            )
            log.set_retention(0, 0)
            await until(lambda: log.entries <= 70)
            await log.expire_before(sim.clock().wall_ms() - 30_000, ["c"])
            mark = log.cursors["c"].mark_delete
            await until(lambda: log.entries <= 40)
            assert log.cursors["c"].backlog_entries in range(26, 32)
            other = Broker(region, settings=SMALL)  # takes over at once, as after a crash
            found = (await other.open()).cursors["c"]
            assert found.mark_delete == mark and cursor_expiry.read_given_up(found.properties) == [((-1, -1), mark)]

        simulate(main(), sim)


def test_a_backlog_is_brought_below_a_bound_and_not_further() -> None:
    with Simulation(seed=4) as sim:

        async def main() -> None:
            _, _, log = await filled(sim)
            cursor, held = await log.open_cursor("c", (-1, -1)), await log.open_cursor("held", (-1, -1))
            assert await log.drop_to(10_000, ["c"]) == {} and cursor.backlog_entries == 100
            assert await log.drop_to(2_550, ["c"]) == {"c": 75}
            assert cursor.backlog_entries == 25 and cursor.backlog_bytes == 2_500
            assert cursor_expiry.read_given_up(cursor.properties) == [((-1, -1), cursor.mark_delete)]
            assert (
                await log.drop_to(0, ["c"]) == {"c": 25} and cursor.backlog_entries == 0 and held.backlog_entries == 100
            )

        simulate(main(), sim)


def test_truncation_frees_everything_but_what_a_cursor_that_was_left_out_needs() -> None:
    with Simulation(seed=5) as sim:

        async def main() -> None:
            region, broker, log = await filled(sim, ManagedLedgerSettings(ledger_entries_max=30, checkpoint_entries=16))
            log.set_retention(-1, -1)
            await log.open_cursor("c", (-1, -1))
            link = await log.open_cursor("link", (-1, -1))
            assert await log.truncate(["c"]) == {"c": 100} and log.cursors["c"].mark_delete == log.last_confirmed
            await asyncio.sleep(1)
            assert log.entries == 100
            link.ack_cumulative(broker.done[59][:2])
            log.trim_soon()
            await until(lambda: log.entries == 40)
            assert await log.truncate() == {"link": 40}
            await until(lambda: log.entries == 0)
            for number in range(5):
                broker.append(log, f"more{number}")
            await until(lambda: len(broker.done) == 105)
            assert [name for *_, name in await read_all(log)] == [f"more{i}" for i in range(5)], (
                "retention holds what came later"
            )
            for bookie in region.bookies.values():
                assert not [
                    ledger for ledger in bookie.ledgers if bookie.holds(ledger) and ledger < log.first_position()[0]
                ]
            await log._end().roll()
            for cursor in log.cursors.values():
                cursor.ack_cumulative(log.last_confirmed)
            broker.append(log, "last")
            await until(lambda: len(broker.done) == 106)
            await asyncio.sleep(1)
            assert log.entries == 6, "also once it is acknowledged, and in a ledger that could go"
            await log.close()
            again = await Broker(region).open()
            assert [name for *_, name in await read_all(again)] == [*(f"more{i}" for i in range(5)), "last"]
            assert again.cursors["c"].mark_delete[0] >= 0 and again.cursors["c"].backlog_entries == 1

        simulate(main(), sim)


def test_truncation_of_an_empty_or_idle_topic_and_without_bookies() -> None:
    with Simulation(seed=6) as sim:

        async def main() -> None:
            region = Region(sim, 2)
            await region.start()
            broker = Broker(region, settings=SMALL)
            log = await broker.open()
            assert await log.truncate() == {}
            broker.append(log, "a")
            await until(lambda: len(broker.done) == 1)
            for bookie in region.bookies.values():
                await bookie.unregister(broker.meta)
                bookie.crash()
            with pytest.raises(NotEnoughBookies):
                await log.truncate()
            for bookie in region.bookies.values():
                bookie.start()
                await bookie.register(broker.meta)
            await log.truncate()
            await until(lambda: log.entries == 0)
            broker.append(log, "b")
            await until(lambda: len(broker.done) == 2)
            assert [name for *_, name in await read_all(log)] == ["b"]

        simulate(main(), sim)


class LossyLog:
    """Two closed ledgers of ten entries, and an open one, an entry a second; `unread`: what cannot be read, and why."""

    topic, last_confirmed = "t", (3, 9)
    infos: tuple[LedgerInfo, ...] = (
        LedgerInfo(1, 10, 10, 15_000, 0),
        LedgerInfo(2, 10, 10, 25_000, 10),
        LedgerInfo(3),
    )

    def __init__(self, unread: dict[tuple[int, int], StorageError]) -> None:
        self.unread = unread
        self.cursors = {"c": SimpleNamespace(backlog_entries=30, read_position=(1, 0))}

    @staticmethod
    def count(position: tuple[int, int]) -> int:
        return max(0, position[0] - 1) * 10 + position[1] + 1

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        return [info for info in self.infos if info.ledger >= ledger]

    def entries_between(self, after: tuple[int, int], upto: tuple[int, int]) -> int:
        return self.count(upto) - self.count(after)

    def position_after(self, position: tuple[int, int], count: int) -> tuple[int, int]:
        at = self.count(position) + count - 1
        return at // 10 + 1, at % 10

    def next_position(self, position: tuple[int, int]) -> tuple[int, int]:
        return self.position_after(position, 1)

    async def read(self, position: tuple[int, int], *_: int) -> list[tuple[int, int, Any]]:
        if position in self.unread:
            raise self.unread[position]
        return [(*position, SimpleNamespace(time_ms=self.count(position) * 1000))]


@pytest.mark.parametrize("error", [EntriesLost(1, 0, 9), CorruptData("bad"), StoreRefused("none")])
def test_what_cannot_be_read_is_as_old_as_the_end_of_its_ledger(error: StorageError) -> None:
    async def main() -> None:
        log: Any = LossyLog({(1, entry): error for entry in range(10)})
        assert await cursor_expiry.oldest_unacked_ms(log, "c") == 15_000
        assert await cursor_expiry._last_older(log, (-1, -1), 15_000) is None, "never early"
        assert await cursor_expiry._last_older(log, (-1, -1), 15_001) == (2, 4)
        for unread in [(1, 4), (1, 7), (2, 3), (3, 5), (3, 9)]:  # in the middle of the halving
            log = LossyLog({unread: error})
            for time_ms in range(0, 31_000, 500):
                found = await cursor_expiry._last_older(log, (-1, -1), time_ms)
                assert found is None or log.count(found) * 1000 < time_ms, "nothing younger goes"
                assert found != unread or time_ms > 25_000
        log = LossyLog({(1, 0): error})
        log.infos = (LedgerInfo(1),)
        with pytest.raises(type(error)):  # it is not known
            await cursor_expiry.oldest_unacked_ms(log, "c")

    asyncio.run(main())


class WrongLog(LossyLog):
    """Who wrote ledger 2 was far behind, at its end or all the time."""

    def __init__(self, wrong_from: int, closed_ms: int) -> None:
        super().__init__({})
        self.wrong_from = wrong_from
        first, second, third = LossyLog.infos
        self.infos = first, LedgerInfo(2, second.entries, second.size_bytes, closed_ms, second.first_index), third

    async def read(self, position: tuple[int, int], *_: int) -> list[tuple[int, int, Any]]:
        wrong = position[0] == 2 and position[1] >= self.wrong_from
        return [(*position, SimpleNamespace(time_ms=1 if wrong else self.count(position) * 1000))]


@pytest.mark.parametrize("wrong_from", (0, 3, 9, 10))
@pytest.mark.parametrize("closed_ms", (1, 25_000))
def test_what_another_broker_stamped_wrong_makes_nothing_before_it_older(wrong_from: int, closed_ms: int) -> None:
    async def main() -> None:
        log: Any = WrongLog(wrong_from, closed_ms)
        for time_ms in range(0, 10_500, 500):
            found = await cursor_expiry._last_older(log, (-1, -1), time_ms)
            assert found == ((1, (time_ms - 1) // 1000 - 1) if time_ms > 1000 else None)
        for time_ms in range(15_500, 31_000, 500):
            found = await cursor_expiry._last_older(log, (-1, -1), time_ms)
            assert found is not None and (found[0] == 2 or log.count(found) * 1000 < time_ms), "nothing younger goes"

    asyncio.run(main())


@pytest.mark.parametrize("stored", ["x", "[" * 60_000, '[["a", 0, 0, 0]]', "[[1]]", "7"])
def test_what_was_given_up_and_cannot_be_read_is_everything(stored: str) -> None:
    log: Any = SimpleNamespace(entries_between=lambda after, through: max(0, through[1] - after[1]))
    cursor: Any = SimpleNamespace(
        mark_delete=(1, 4), holes=0, acked_ranges=[], properties={cursor_expiry.GIVEN_UP: stored}
    )
    assert cursor_expiry._noted(log, cursor, (1, 9)) == [(-1, -1, 1, 9)], "too much, never too little"


@pytest.mark.parametrize("holes", (0, 1, 40, cursor_expiry._HOLES_MAX + 1))
def test_what_nobody_acknowledged_is_noted_in_a_bounded_number_of_ranges(holes: int) -> None:
    """Each second entry is acknowledged."""
    log: Any = SimpleNamespace(entries_between=lambda after, through: max(0, through[1] - after[1]))
    cursor: Any = SimpleNamespace(
        mark_delete=(1, -1), holes=holes, acked_ranges=[(1, 2 * n + 1, 2 * n + 1) for n in range(holes)], properties={}
    )
    upto = (1, 2 * holes + 4)
    noted = [((a, b), (c, d)) for a, b, c, d in cursor_expiry._noted(log, cursor, upto)]
    assert len(noted) <= cursor_expiry.GIVEN_UP_MAX and noted == sorted(noted)
    acked = {2 * n + 1 for n in range(holes)}
    named = {entry for (_, after), (_, through) in noted for entry in range(after + 1, through + 1)}
    assert named >= set(range(upto[1] + 1)) - acked and max(named) == upto[1], "never too little"
    if holes < cursor_expiry.GIVEN_UP_MAX:
        assert named.isdisjoint(acked), "nor too much where there is room"
