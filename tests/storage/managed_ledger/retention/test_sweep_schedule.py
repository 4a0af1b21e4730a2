"""The sweep of a broker's logs: it visits those that have something to do, all of them in time, and no others."""

from __future__ import annotations

import asyncio
import random

import pytest

from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.retention.ledger_retention import LedgerRetention
from storage.managed_ledger.retention.sweep_schedule import LATER_MAX_S, NEVER, Sweeping
from tests.storage.managed_ledger.world import Broker, Region, scenario, until

EACH_S = 0.5
SETTINGS = ManagedLedgerSettings(ledger_idle_s=1.0, sweep_s=EACH_S, ledger_age_max_s=20.0, ledger_entries_max=4)
RETENTIONS = ((0, 0), (1, 0), (1, -1), (-1, 0), (2, 1), (-1, -1))


def freeable(ledgers: list[ManagedLedger]) -> dict[str, int]:
    """Topic -> its oldest ledger, where that may go now; asked beside the logs, which hear nothing of it."""
    beside = [
        LedgerRetention(
            ledger, ledger._catalog, ledger._parts.context, ledger._parts.clock, int(SETTINGS.ledger_age_max_s * 1000)
        )
        for ledger in ledgers
    ]
    return {
        ledger.topic: ledger._catalog.ids[0]
        for ledger, keeping in zip(ledgers, beside, strict=True)
        if keeping._trimmable()
    }


@pytest.mark.parametrize("seed", range(16))
def test_whatever_may_go_goes_and_whoever_is_at_rest_is_not_visited(seed: int) -> None:
    rng = random.Random(seed)

    async def work(region: Region) -> None:
        broker = Broker(region, settings=SETTINGS)
        ledgers = [await broker.open(f"persistent://public/default/t{number}") for number in range(4)]
        for ledger in ledgers:
            ledger.set_retention(0, 0)
        for _ in range(24):
            ledger = rng.choice(ledgers)
            match rng.randrange(7):
                case 0 | 1 | 2:
                    broker.append(ledger, *(f"m{n}" for n in range(rng.randrange(1, 6))))
                case 3:
                    await ledger.open_cursor(f"c{rng.randrange(2)}", (-1, -1))
                case 4 if ledger.cursors:
                    rng.choice(list(ledger.cursors.values())).ack_cumulative(ledger.last_confirmed)
                case 5 if ledger.cursors:
                    await ledger.delete_cursor(rng.choice(list(ledger.cursors)))
                case _:
                    ledger.set_retention(*rng.choice(RETENTIONS))
            await asyncio.sleep(rng.choice((0.0, 0.1, 3.0, 70.0)))
            before = freeable(ledgers)
            await asyncio.sleep(4 * EACH_S)
            assert not before.items() & freeable(ledgers).items(), "time, or what was done, has freed it, and it stays"
        for ledger in ledgers:
            ledger.set_retention(0, 0)
        await until(lambda: not broker.factory._restless._touched and not broker.factory._restless._later, 300)
        assert all(ledger._tail is None and ledger._cache is None and ledger._retention is None for ledger in ledgers)
        broker.append(ledgers[0], "again")
        await until(lambda: bool(broker.factory._restless._touched))
        assert list(broker.factory._restless._touched) == [ledgers[0].topic]

    scenario(work, seed=seed, limit_s=3000)


def test_a_topic_with_an_open_ledger_is_visited_when_its_idle_time_is_over_and_not_at_each_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits: list[float] = []
    rest = ManagedLedger.rest

    def counted(ledger: ManagedLedger) -> float:
        visits.append(asyncio.get_running_loop().time())
        return rest(ledger)

    monkeypatch.setattr(ManagedLedger, "rest", counted)

    async def work(region: Region) -> None:
        broker = Broker(region, settings=ManagedLedgerSettings(ledger_idle_s=60.0, sweep_s=EACH_S))
        ledger = await broker.open()
        ledger.set_retention(0, 0)
        await ledger.open_cursor("c", (-1, -1))
        broker.append(ledger, "a")
        await asyncio.sleep(50)
        assert 1 <= len(visits) <= 4 and ledger._tail is not None, (
            "some for what was made and written, none while it waits"
        )
        broker.append(ledger, "b")
        await asyncio.sleep(60)
        assert not ledger.ledgers()[-1].closed_ms, "its time begins anew with each append"
        await until(lambda: ledger._tail is None)
        assert len(visits) <= 10

    scenario(work)


def test_retention_frees_what_is_old_beside_an_open_ledger() -> None:
    async def work(region: Region) -> None:
        broker = Broker(
            region, settings=ManagedLedgerSettings(ledger_idle_s=3600.0, sweep_s=EACH_S, ledger_entries_max=4)
        )
        ledger = await broker.open()
        ledger.set_retention(1, -1)
        broker.append(ledger, *(f"m{n}" for n in range(4)))
        await until(lambda: len(broker.done) == 4)
        broker.append(ledger, "last")
        await until(lambda: len(broker.done) == 5 and len(ledger.ledgers()) == 2)
        await asyncio.sleep(30)
        assert len(ledger.ledgers()) == 2
        await until(lambda: len(ledger.ledgers()) == 1, 40)
        assert ledger._tail is not None

    scenario(work)


def test_who_waits_for_a_time_is_visited_at_it_and_now_and_then_before() -> None:
    sweep = Sweeping(30.0)
    sweep.touch("a"), sweep.touch("b"), sweep.touch("c")
    assert sweep.due(0.0) == ["a", "b", "c"] and sweep.due(29.0) == []
    sweep.visited("a", 0.0, NEVER), sweep.visited("b", 0.0, 45.0), sweep.visited("c", 0.0, 1e9)
    found = {now: due for now in range(0, 1200, 30) if (due := sweep.due(float(now)))}
    assert found == {60: ["b"], LATER_MAX_S + 30: ["c"]}
    sweep.touch("d")
    sweep.visited("d", 0.0, NEVER)
    assert sweep.due(1e9) == [], "a visit that touches what it visits is not another reason"
