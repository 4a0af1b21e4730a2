"""An idle topic: its open ledger is closed by idleness and by age, and the parts that only a busy topic needs are given
up and made again.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.errors import MetadataUnavailable, NotEnoughBookies
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from storage.ledger.writing.ledger_handle import LedgerHandle
from storage.managed_ledger.log.log_tail import LogTail
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.managed_ledger.world import Broker, Region, read_all, scenario, until

IDLE = ManagedLedgerSettings(ledger_idle_s=2.0, sweep_s=0.5, ledger_age_max_s=60.0)


def open_handles() -> int:
    gc.collect()
    return sum(isinstance(thing, LedgerHandle) for thing in gc.get_objects())


async def state_of(region: Region, ledger: int) -> LedgerState:
    found = await EmbeddedStore(region.machine).get(keys.ledger(ledger))
    assert found is not None
    return LedgerMetadata.decode(found[0]).state


def test_the_ledger_of_an_idle_topic_is_closed_and_appending_goes_on_in_another() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=IDLE)
        ledger = await broker.open()
        cursor = await ledger.open_cursor("c", (-1, -1))
        woken: list[int] = []
        ledger.wake_on_append(lambda: woken.append(len(broker.done)))
        for turn in range(3):
            broker.append(ledger, f"a{turn}", f"b{turn}")
            await until(lambda: len(broker.done) == 2 * turn + 2)  # noqa: B023
            assert await read_all(ledger) == broker.done and open_handles() == 1
            number = ledger.last_confirmed[0]
            cursor.ack([ledger.last_confirmed])
            await until(lambda: bool(ledger.ledgers()[-1].closed_ms))
            await until(lambda: ledger._tail is None)
            assert await state_of(region, number) == LedgerState.CLOSED
            assert open_handles() == 0 and ledger._reader is None and ledger._retention is None
            assert ledger.next_index == ledger.confirmed_index == 2 * turn + 2
        assert await read_all(ledger) == broker.done and len(ledger.ledgers()) == 3
        assert len(woken) == 3, "who waits at the tail is woken whatever ledger it is"
        await cursor.flushed()
        other = Broker(region)
        again = await other.open()
        assert other.state.replayed == 0 and other.state.seen == [name for *_, name in broker.done]
        assert again.cursors["c"].acked_ranges == cursor.acked_ranges and await read_all(again) == broker.done

    scenario(work)


def test_of_very_many_topics_that_fall_idle_together_few_are_closed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    close: Callable[[LedgerHandle], Awaitable[LedgerMetadata]] = LedgerHandle.close
    closing = most = 0

    async def slow(self: LedgerHandle) -> LedgerMetadata:
        nonlocal closing, most
        closing += 1
        most = max(most, closing)
        await asyncio.sleep(0.3)
        try:
            return await close(self)
        finally:
            closing -= 1

    monkeypatch.setattr(LedgerHandle, "close", slow)

    async def work(region: Region) -> None:
        broker = Broker(region, settings=IDLE)
        logs = [await broker.open(f"persistent://public/default/t{number}") for number in range(300)]
        for log in logs:
            broker.append(log, "a")
        await until(lambda: len(broker.done) == 300)
        await until(lambda: all(log._tail is None for log in logs), 60.0)
        assert most == 64 and not broker.factory.context.background.closing
        broker.append(logs[0], "b")
        await until(lambda: len(broker.done) == 301)

    scenario(work)


def test_of_very_many_idle_ledgers_that_bookies_fail_at_once_few_are_closed_at_a_time_and_none_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close: Callable[[LedgerHandle], Awaitable[LedgerMetadata]] = LedgerHandle.close
    closing = most = 0

    async def slow(self: LedgerHandle) -> LedgerMetadata:
        nonlocal closing, most
        closing += 1
        most = max(most, closing)
        await asyncio.sleep(0.3)
        try:
            return await close(self)
        finally:
            closing -= 1

    monkeypatch.setattr(LedgerHandle, "close", slow)

    async def work(region: Region) -> None:
        broker = Broker(region)
        logs = [await broker.open(f"persistent://public/default/t{number}") for number in range(100)]
        for log in logs:
            broker.append(log, "a")
        await until(lambda: len(broker.done) == 100)
        for log in logs:
            assert log._tail is not None and log._tail.open_ledger is not None
            log._tail.open_ledger._fail(NotEnoughBookies("no spare is left"))
        broker.append(logs[99], "b")  # it waits for its turn, and for a ledger
        await until(lambda: all(log.ledgers()[0].closed_ms for log in logs))
        assert most == 16 and not broker.factory.context.background.closing
        await until(lambda: len(broker.done) == 101)
        assert [len(log.ledgers()) for log in logs] == [1] * 99 + [2]
        for log in logs:
            broker.append(log, "c")
        await until(lambda: len(broker.done) == 201)
        assert not broker.failed and all(log.failed is None for log in logs)
        assert [name for *_, name in await read_all(logs[99])] == ["a", "b", "c"] and [
            name for *_, name in await read_all(logs[0])
        ] == ["a", "c"]

    scenario(work)


def test_a_topic_with_many_ledgers_is_left_open_for_longer_but_not_above_the_age() -> None:
    async def work(region: Region) -> None:
        settings = ManagedLedgerSettings(ledger_idle_s=2.0, sweep_s=0.5, ledger_age_max_s=6.0)
        broker = Broker(region, settings=settings)
        ledger = await broker.open()
        opened: list[float] = []
        for turn in range(40):
            broker.append(ledger, f"a{turn}")
            opened.append(asyncio.get_running_loop().time())
            await until(lambda: ledger._tail is None)
        waits = [after - before for before, after in pairwise(opened)]
        assert waits[0] < 3.5 < waits[20] and max(waits) < 8.0
        assert len(ledger.ledgers()) == 40 and await read_all(ledger) == broker.done

    scenario(work)


def test_a_ledger_that_is_too_old_is_closed_without_an_append() -> None:
    async def work(region: Region) -> None:
        broker = Broker(
            region, settings=ManagedLedgerSettings(ledger_idle_s=1000.0, sweep_s=0.5, ledger_age_max_s=10.0)
        )
        ledger = await broker.open()
        broker.append(ledger, "a")
        await asyncio.sleep(9)
        assert not ledger.ledgers()[-1].closed_ms
        await until(lambda: bool(ledger.ledgers()[-1].closed_ms))
        assert len(ledger.ledgers()) == 1, "no ledger is made for nobody"

    scenario(work)


@pytest.mark.parametrize("seed", range(40))
def test_appends_that_come_while_the_ledger_is_being_closed_follow_in_order(seed: int) -> None:
    """Time goes on by steps as small as an answer of the metadata, so appends meet each step of the closing."""

    class Slow(EmbeddedStore):
        async def txn(self, ops: Sequence[Op]) -> int:
            await asyncio.sleep(rng.choice([0.001, 0.01, 0.2]))
            return await super().txn(ops)

        async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
            await asyncio.sleep(rng.choice([0.001, 0.01, 0.2]))
            if rng.random() < 0.1:
                raise MetadataUnavailable("not now")
            return await super().put(key, value, expected=expected, lease=lease)

    with Simulation(seed=f"rest-{seed}") as sim:
        rng = sim.rng("test")

        async def main() -> None:
            region = Region(sim)
            await region.start()
            broker = Broker(
                region,
                Slow(region.machine),
                ManagedLedgerSettings(ledger_idle_s=0.05, sweep_s=0.02, ledger_entries_max=30),
            )
            while True:
                try:
                    ledger = await broker.open()
                    break
                except MetadataUnavailable:
                    continue
            count = 0
            while count < 60:
                for _ in range(rng.randrange(1, 4)):
                    broker.append(ledger, f"{count}")
                    count += 1
                if rng.random() < 0.2:
                    await ledger.roll_over()
                await asyncio.sleep(rng.choice([0.001, 0.05, 0.07, 0.1, 0.3, 0.6]))
            await until(lambda: len(broker.done) == count)
            assert [name for *_, name in broker.done] == [str(i) for i in range(count)] and not broker.failed
            assert await read_all(ledger) == broker.done
            await until(lambda: ledger._tail is None)
            assert ledger.next_index == count and len(ledger.ledgers()) > 2
            await ledger.close()

        sim.run(main(), limit_s=600)


def test_without_metadata_an_idle_topic_does_not_fail_and_goes_on_afterwards() -> None:
    class Away(EmbeddedStore):
        away = False

        async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
            if self.away:
                raise MetadataUnavailable("no leader")
            return await super().put(key, value, expected=expected, lease=lease)

    async def work(region: Region) -> None:
        meta = Away(region.machine)
        broker = Broker(region, meta, IDLE)
        ledger = await broker.open()
        broker.append(ledger, "a")
        await asyncio.sleep(0.5)
        meta.away = True
        await asyncio.sleep(40)
        assert ledger.failed is None and not ledger.ledgers()[-1].closed_ms
        broker.append(ledger, "b")
        await asyncio.sleep(1)
        meta.away = False
        await until(lambda: len(broker.done) == 2)
        assert await read_all(ledger) == broker.done
        await until(lambda: ledger._tail is None)

    scenario(work)


def test_what_is_acknowledged_of_an_idle_topic_goes_as_if_its_ledger_were_open() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=IDLE)
        ledger = await broker.open()
        ledger.set_retention(0, 0)
        cursor = await ledger.open_cursor("c", (-1, -1))
        broker.append(ledger, "a", "b")
        await until(lambda: len(broker.done) == 2)
        cursor.ack_cumulative(ledger.last_confirmed)
        await until(lambda: ledger._tail is None)
        await asyncio.sleep(40)
        assert ledger.entries == 2, "a reader may go back, as it may in an open ledger"
        await asyncio.sleep(30)
        assert not ledger.ledgers() and ledger.last_confirmed == broker.done[-1][:2]
        assert not any(bookie.holds(number) for bookie in region.bookies.values() for number in bookie.ledgers)
        broker.append(ledger, "c")
        await until(lambda: len(broker.done) == 3)
        assert [name for *_, name in await read_all(ledger)] == ["c"] and cursor.backlog_entries == 1
        again = await Broker(region).open()
        assert again.next_index == 3 and again.cursors["c"].backlog_entries == 1

    scenario(work)


def test_what_is_at_rest_is_truncated_and_terminated() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=IDLE)
        ledger = await broker.open()
        broker.append(ledger, "a")
        await until(lambda: bool(broker.done) and ledger._tail is None)
        await ledger.truncate()
        await until(lambda: not ledger.ledgers())
        assert ledger._tail is None, "nothing was opened for it"
        broker.append(ledger, "b")
        await until(lambda: len(broker.done) == 2 and ledger._tail is None)
        assert await ledger.terminate() == broker.done[-1][:2]
        broker.append(ledger, "c")
        assert [name for name, _ in broker.failed] == ["c"]
        again = Broker(region)
        reopened = await again.open()
        again.append(reopened, "d")
        assert [name for name, _ in again.failed] == ["d"] and isinstance(reopened._tail, LogTail)

    scenario(work)
