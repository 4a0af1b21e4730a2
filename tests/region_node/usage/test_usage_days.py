"""Usage by day: every difference is added once, to its day, whatever becomes of brokers and of the metadata's answers;
the month's report is their sum.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.runtime.clock import CautiousClock, Clocks
from region_node.usage.settings import UsageSettings
from region_node.usage.tenant_usage import Usage
from region_node.usage.usage_days import DAYS, UsageDay, UsageDays, check_month, day_of, days_of
from tests.region_node.live import provisioned, until
from tests.region_node.rest_client import Rest
from tests.region_node.topics.fake_storage import FakeClock
from tests.storage.managed_ledger.flaky_store import FlakyStore

NOON_MS = 1_795_262_400_000  # 2026-11-21 12:00 UTC


class DayClock(FakeClock):
    """`later_ms`: how far the calendar is ahead of the first noon."""

    later_ms = 0

    def wall_ms(self) -> int:
        return NOON_MS + self.later_ms


def broker(
    name: str, store: EmbeddedStore, clock: DayClock, stored: dict[str, int] | None = None
) -> tuple[Usage, UsageDays]:
    usage = Usage()

    async def sizes() -> dict[str, int]:
        return stored or {}

    return usage, UsageDays(
        store, usage, sizes, broker=name, clocks=Clocks(clock, CautiousClock(clock)), settings=UsageSettings()
    )


def test_a_day_is_kept_for_as_long_as_is_set() -> None:
    async def run() -> None:
        clock, store = DayClock(), EmbeddedStore(KvMachine())
        settings = UsageSettings(days_kept=40)
        days = UsageDays(
            store, Usage(), _nothing, broker="b", clocks=Clocks(clock, CautiousClock(clock)), settings=settings
        )
        for day in ("2026-10-11", "2026-10-12", "2026-11-20"):
            await store.put(f"{DAYS}{day}/a", b"used")
        clock.later_ms = 400 * 86_400_000  # the wall clock is set wrong while it runs
        await days.forget()
        assert [key for key, _, _ in await store.range(DAYS, f"{DAYS}~")] == [
            f"{DAYS}2026-10-12/a",
            f"{DAYS}2026-11-20/a",
        ]

    asyncio.run(run())


async def _nothing() -> dict[str, int]:
    return {}


async def totals(machine: KvMachine) -> dict[tuple[str, str], dict[str, int]]:
    return {(day, tenant): used.sums() for day, tenant, used in await days_of(EmbeddedStore(machine), "2026-11")}


@pytest.mark.parametrize("seed", range(40))
def test_each_difference_is_added_once_over_lost_answers_and_restarts(seed: int) -> None:
    async def run() -> None:
        rng, machine, clock = random.Random(seed), KvMachine(), DayClock()
        store = FlakyStore(machine, rng, trouble=0.3, delay_s=0.0005)
        brokers = {name: broker(name, store, clock) for name in ("b0", "b1")}
        wanted: dict[str, int] = {}
        for _ in range(25):
            name = rng.choice(sorted(brokers))
            usage, days = brokers[name]
            count = rng.randrange(5)
            tenant = rng.choice(("a", "b"))
            usage.of(tenant).messages_in += count
            wanted[tenant] = wanted.get(tenant, 0) + count
            if rng.random() < 0.7:
                await asyncio.gather(*(each.write() for _, each in brokers.values()))
            if rng.random() < 0.1:  # it drains, and starts again
                await _settled(days)
                brokers[name] = broker(name, store, clock)
        for _, days in brokers.values():
            await _settled(days)
        await asyncio.sleep(3)  # what came late has come
        found = {tenant: row["messages_in"] for (_, tenant), row in (await totals(machine)).items()}
        assert found == {tenant: count for tenant, count in wanted.items() if count}

    run_alone(run())


async def _settled(days: UsageDays) -> None:
    for _ in range(200):
        await days.write()
        if not days.waiting:
            return
    raise AssertionError("never written")


def test_what_waits_over_midnight_belongs_to_the_day_it_was_counted_on() -> None:
    async def run() -> None:
        machine, clock = KvMachine(), DayClock()
        store = FlakyStore(machine, random.Random(1), trouble=1.0, delay_s=0.0)
        stored = {"a": 1000}
        usage, days = broker("b0", store, clock, stored)
        usage.of("a").bytes_in += 7
        clock.now += 60
        await days.write()
        clock.later_ms += 86_400_000
        usage.of("a").bytes_in += 1
        await days.write()  # counted until now, and so of the first day
        usage.of("a").bytes_in += 5
        store.trouble = 0.0
        clock.now += 10
        await _settled(days)
        found = await totals(machine)
        assert {key: (row["bytes_in"], row["storage_byte_seconds"]) for key, row in found.items()} == {
            ("2026-11-21", "a"): (8, 60_000),
            ("2026-11-22", "a"): (5, 10_000),
        }

    run_alone(run())


def test_old_days_go_and_an_unreadable_one_stops_nobody() -> None:
    async def run() -> None:
        machine, clock = KvMachine(), DayClock()
        store = EmbeddedStore(machine)
        for day in ("2025-10-16", "2025-10-17", "2026-11-20"):
            await store.put(f"{DAYS}{day}/a", UsageDay(bytes_in=1).encode())
        await store.put(f"{DAYS}{day_of(NOON_MS)}/a", b"broken")
        usage, days = broker("b0", store, clock)
        usage.of("a").bytes_in += 1
        usage.of("b").bytes_in += 2
        await days.forget()
        await days.write()
        kept = [key.removeprefix(DAYS) for key, _, _ in await store.range(DAYS, "/usage/days0")]
        assert kept == ["2025-10-17/a", "2026-11-20/a", "2026-11-21/a", "2026-11-21/b"] and not days.waiting
        assert [used.bytes_in for _, _, used in await days_of(store, "2026-11", "b")] == [2]
        with pytest.raises(CorruptData):
            await days_of(store, "2026-11")

    run_alone(run())


@pytest.mark.parametrize("text", ["2026", "2026-13", "2026-1", "../x", ""])
def test_a_month_is_checked(text: str) -> None:
    with pytest.raises(NotAllowed, match="2026-11"):
        check_month(text)


def test_the_report_of_a_real_broker_survives_its_restart(tmp_path: Path) -> None:
    with provisioned(tmp_path, usage={"write_s": 3600.0}) as region:
        body = {
            "schemaVersion": 0,
            "producerName": "p",
            "messages": [{"payload": base64.b64encode(b"12345").decode()}] * 3,
        }

        def published() -> bool:
            return int(Rest(region.admin_url())("POST", "/topics/persistent/public/default/orders", body)[0]) == 200

        assert published()
        assert region.processes["us-broker-0"].terminate() == 0, "draining writes what was counted"
        region.broker(0, usage={"write_s": 1.0}).wait_ready()
        until(published)

        def asked(*more: str) -> subprocess.CompletedProcess[str]:
            command = [
                sys.executable,
                "-m",
                "heliograph.cli.main",
                "tenants",
                "usage",
                "--admin",
                region.admin_url(),
                *more,
            ]
            return subprocess.run(command, capture_output=True, text=True, timeout=240)

        def report(*more: str) -> str:
            done = asked(*more)
            assert done.returncode == 0, done.stderr
            return done.stdout

        def counted() -> bool:
            total: int = sum(row["messages_in"] for row in json.loads(report("--json")))
            return total == 6

        until(counted, 60)
        (row,) = csv.DictReader(io.StringIO(report("--csv", "--tenant", "public")))
        assert (row["region"], row["tenant"], row["messages_in"]) == ("us", "public", "6") and int(
            row["bytes_in"]
        ) >= 30
        assert "public" in report("--by-day")
        assert Rest(region.admin_url())("POST", "/admin/v2/clusters/us", {"serviceUrl": region.admin_url()})[0] == 204
        assert "us,public" in report("--csv", "--all-regions")
        report("--plot", str(tmp_path / "usage.svg"))
        assert "public: " in (tmp_path / "usage.svg").read_text()
        assert Rest(region.admin_url())("POST", "/admin/v2/clusters/us", {"serviceUrl": "http://127.0.0.1:1"})[0] == 204
        silent = asked("--csv", "--all-regions")
        assert silent.returncode == 1 and "without region us" in silent.stderr
        wrong = asked("--month", "2026-13")
        assert wrong.returncode == 2 and "expected one such as 2026-11" in wrong.stderr
