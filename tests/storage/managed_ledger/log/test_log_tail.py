"""The end of a topic: runs in order, over any number of ledgers, whatever becomes of their bookies."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from geo_tests.sim.loop import SimFailure
from heliograph.model.errors import (
    HeliographError,
    LedgerFenced,
    NotEnoughBookies,
    TopicClosed,
)
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.ledger_context import LedgerSettings
from storage.ledger.writing.ledger_handle import LedgerHandle
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.managed_ledger.world import Broker, Region, read_all, scenario, small, until


def test_rollover_keeps_the_order_and_never_blocks_an_append() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=small())
        ledger = await broker.open()
        for i in range(200):
            broker.append(ledger, f"{i}")
            if i % 3 == 0:
                await asyncio.sleep(0.001)
        await until(lambda: len(broker.done) == 200)
        assert [name for *_, name in broker.done] == [str(i) for i in range(200)]
        positions = [(at, entry) for at, entry, _ in broker.done]
        assert positions == sorted(positions) and len(ledger.ledgers()) >= 3
        assert await read_all(ledger) == broker.done
        for cut in (0, 1, 57, 199):
            assert ledger.entries_between((-1, -1), positions[cut]) == cut + 1
            assert ledger.entries_between(positions[cut], ledger.last_confirmed) == 199 - cut
            assert ledger.position_after(positions[0], cut) == positions[cut]
        for before, after in itertools.pairwise(positions):
            assert ledger.next_position(before) == after == await ledger.first_from((before[0], before[1] + 1))
        assert await ledger.first_from((positions[-1][0], positions[-1][1] + 1)) is None
        other = Broker(region)
        again = await other.open()
        assert await read_all(again) == broker.done
        assert [i for i in again.ledgers() if not i.closed_ms] == []
        assert [(i.ledger, i.entries, i.size_bytes) for i in again.ledgers()] == [
            (i.ledger, i.entries, i.size_bytes) for i in ledger.ledgers()
        ]

    scenario(work)


def test_a_lost_ledger_is_closed_at_its_lac_before_its_runs_are_sent_elsewhere() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, ledger_settings=LedgerSettings(add_timeout_s=60.0, lost_after_s=1.0))
        ledger = await broker.open()
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        first = broker.done[0][0]
        sent: list[int] = []

        def on_add(_: FakeBookie, at: int) -> None:
            if at > first:
                stored = region.machine.get(keys.ledger(first))
                assert stored is not None
                metadata = LedgerMetadata.decode(stored[0])
                assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 0)
                sent.append(at)

        for bookie in region.bookies.values():
            bookie.on_add = on_add
        open_ledger = ledger._end().open_ledger
        assert open_ledger is not None
        hung = region.bookies[open_ledger.metadata.fragments[0][1][0]]
        hung.silent = True
        for name in "bcd":
            broker.append(ledger, name)
        await asyncio.sleep(0.5)
        assert len(broker.done) == 1
        await asyncio.sleep(1)
        hung.silent = False
        await until(lambda: len(broker.done) == 4)
        assert sent and [name for *_, name in broker.done] == list("abcd") and not broker.failed
        head = ledger.ledgers()[0]
        assert head.entries == 1 and head.closed_ms
        again = Broker(region)
        assert await read_all(await again.open()) == broker.done

    scenario(work)


def test_an_owner_whose_ledger_was_taken_sends_nothing_elsewhere() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, ledger_settings=LedgerSettings(add_timeout_s=60.0, lost_after_s=1.0))
        ledger = await broker.open()
        errors: list[HeliographError] = []
        ledger.on_failed = errors.append
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        for bookie in region.bookies.values():
            bookie.silent = True
        broker.append(ledger, "b")
        await asyncio.sleep(0.01)
        stored = region.machine.get(keys.ledger(broker.done[0][0]))
        assert stored is not None
        taken = replace(LedgerMetadata.decode(stored[0]), state=LedgerState.IN_RECOVERY)
        await broker.meta.put(keys.ledger(taken.ledger), taken.encode())
        await until(lambda: bool(errors))
        assert isinstance(errors[0], LedgerFenced) and [name for name, _ in broker.failed] == ["b"]
        assert [i for b in region.bookies.values() for i in b.ledgers if i != taken.ledger] == []

    scenario(work)


def test_without_bookies_runs_wait_then_fail_and_the_next_ones_are_taken_again() -> None:
    async def work(region: Region) -> None:
        broker = Broker(
            region,
            settings=ManagedLedgerSettings(pending_timeout_s=5.0),
            ledger_settings=LedgerSettings(lost_after_s=1.0),
        )
        ledger = await broker.open()
        for bookie in region.bookies.values():
            bookie.crash()
            await bookie.unregister(broker.meta)
        broker.append(ledger, "a", "b")
        broker.append(ledger, "c")
        await asyncio.sleep(3)
        assert not broker.failed and ledger.pending_bytes == 3
        await asyncio.sleep(5)
        assert [name for name, _ in broker.failed] == ["a", "b", "c"]
        assert isinstance(broker.failed[0][1], NotEnoughBookies) and ledger.failed is None and ledger.next_index == 0
        for bookie in region.bookies.values():
            bookie.start()
            await bookie.register(broker.meta)
        broker.append(ledger, "d")
        await until(lambda: len(broker.done) == 1)
        assert await read_all(ledger) == broker.done

    scenario(work)


def test_more_waiting_bytes_than_the_bound_fail_all_that_wait() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region, settings=ManagedLedgerSettings(pending_bytes_max=1000))
        ledger = await broker.open()
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        for bookie in region.bookies.values():
            bookie.silent = True
        for i in range(12):
            broker.append(ledger, str(i), pad=100)
        for bookie in region.bookies.values():
            bookie.silent = False
        await until(lambda: len(broker.failed) == 12)
        broker.append(ledger, "b")
        await until(lambda: len(broker.done) == 2)
        assert [name for *_, name in await read_all(await Broker(region).open())] == ["a", "b"]

    scenario(work)


def test_a_run_for_which_there_was_no_memory_ends_the_topic_with_all_that_wait() -> None:
    """Some bookies may have it: what follows would be confirmed in its place."""

    async def work(region: Region) -> None:
        broker = Broker(region)
        ledger = await broker.open()
        errors: list[HeliographError] = []
        ledger.on_failed = errors.append
        broker.append(ledger, "a")
        await until(lambda: len(broker.done) == 1)
        for bookie in region.bookies.values():
            bookie.silent = True
        broker.append(ledger, "b")

        def sealer(run: Run, first: int) -> Run:
            raise MemoryError

        handle = ledger._end().open_ledger
        assert handle is not None
        handle._sealer = sealer  # type: ignore[assignment]
        with pytest.raises(MemoryError):
            broker.append(ledger, "c")
        broker.append(ledger, "d")
        assert [type(error) for error in errors] == [TopicClosed]
        assert [name for name, _ in broker.failed] == ["b", "d"] and ledger.pending_bytes == 0
        for bookie in region.bookies.values():
            bookie.silent = False
        assert [name for *_, name in await read_all(await Broker(region).open())] in (["a"], ["a", "b"])

    scenario(work)


def test_a_run_that_waited_for_a_ledger_fails_where_there_is_no_memory_to_send_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers: list[Broker] = []

    async def work(region: Region) -> None:
        brokers.append(broker := Broker(region))
        ledger = await broker.open()

        def append_run(handle: LedgerHandle, run: Run) -> int:
            raise MemoryError

        monkeypatch.setattr(LedgerHandle, "append_run", append_run)
        broker.append(ledger, "a")
        broker.append(ledger, "b")
        await asyncio.sleep(10)

    with pytest.raises(SimFailure, match="MemoryError"):  # as a fault that nobody expected is told
        scenario(work)
    assert [(name, type(error)) for name, error in brokers[0].failed] == [("a", TopicClosed), ("b", TopicClosed)]
