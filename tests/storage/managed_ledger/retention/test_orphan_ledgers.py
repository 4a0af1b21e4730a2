"""Ledgers that nobody names go after a grace; one that somebody names, or may still name, never does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, ManagedLedgerMetadata
from local_meta import keys
from storage.ledger.writing.ledger_creation import create_ledger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.managed_ledger.retention.orphan_ledgers import OrphanCollector, is_orphan
from tests.storage.managed_ledger.flaky_store import FlakyStore
from tests.storage.managed_ledger.world import TOPIC, Broker, Region, read_all, until

LEDGER = LedgerMetadata(7, 2, 2, ((0, ("a", "b")),), topic=TOPIC, owner=5)


def test_the_rule() -> None:
    others = ManagedLedgerMetadata((LedgerInfo(8),), owner=6)
    assert is_orphan(LEDGER, None) and is_orphan(LEDGER, others)
    assert not is_orphan(LEDGER, replace(others, owner=5)), "the opening that made it may still name it"
    assert not is_orphan(LEDGER, replace(others, ledgers=(LedgerInfo(7),)))
    assert not is_orphan(replace(LEDGER, topic=""), None), "whose it is, nobody knows"


def scenario(work: Callable[[Region], Awaitable[None]], seed: int = 1) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            await work(region)

        sim.run(main(), limit_s=2000)


async def ledgers(region: Region) -> list[int]:
    found = await EmbeddedStore(region.machine).range(keys.LEDGERS, prefix_end(keys.LEDGERS))
    return [keys.ledger_of(key) for key, _, _ in found]


def test_a_ledger_made_and_never_named_goes_after_the_grace_on_bookies_too() -> None:
    async def work(region: Region) -> None:
        broker, next_one = Broker(region), Broker(region)
        log = await broker.open()
        broker.append(log, "a")
        await until(lambda: len(broker.done) == 1)
        crashed, _ = await create_ledger(broker.factory.context, 2, 2, 2, topic=TOPIC, owner=log.owner)
        collector = OrphanCollector(next_one.factory.context, 60.0)
        assert await collector.sweep(0.0) == [] == await collector.sweep(100.0), "its maker has the topic"
        again = await next_one.open()
        assert await collector.sweep(200.0) == [] == await collector.sweep(259.0)
        assert await collector.sweep(260.0) == [crashed.ledger] and crashed.ledger not in await ledgers(region)
        assert all(crashed.ledger in region.bookies[b].deleted for b in crashed.fragments[0][1])
        assert [name for *_, name in await read_all(again)] == ["a"]

    scenario(work)


def test_what_a_deleted_topic_left_behind_goes() -> None:
    async def work(region: Region) -> None:
        broker = Broker(region)
        log = await broker.open()
        broker.append(log, "a")
        await until(lambda: len(broker.done) == 1)
        await EmbeddedStore(region.machine).delete(
            keys.managed_ledger(TOPIC)
        )  # a deletion that died after its first transaction
        collector = OrphanCollector(broker.factory.context, 1.0)
        assert await collector.sweep(0.0) == []
        assert len(await collector.sweep(1.0)) == 1 and await ledgers(region) == []

    scenario(work)


@pytest.mark.parametrize("seed", range(10))
def test_openings_that_fight_lose_nothing_to_the_collector(seed: int) -> None:
    """Without any grace, while owners change, ledgers roll over, and metadata writes fail or come late."""

    async def work(region: Region) -> None:
        rng = random.Random(seed)
        small = ManagedLedgerSettings(ledger_entries_max=5)
        brokers = [
            Broker(region, FlakyStore(region.machine, random.Random(rng.random()), trouble=0.05, delay_s=0.05), small)
            for _ in range(2)
        ]
        sweeper = Broker(region)
        await sweeper.pool.ready()
        collector = OrphanCollector(sweeper.factory.context, 0.0)
        ended = False

        async def sweep() -> None:
            while not ended:
                await collector.sweep(0.0)
                await asyncio.sleep(rng.uniform(0.0, 0.05))

        sweeping = asyncio.ensure_future(sweep())
        confirmed: list[tuple[int, int, str]] = []
        for life in range(12):
            broker = rng.choice(brokers)
            try:
                log = await broker.open()
            except HeliographError:
                continue
            log.set_retention(-1, -1)
            for number in range(rng.randrange(30)):
                broker.append(log, f"{life}-{number}")
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.uniform(0.0, 0.2))
        for broker in brokers:
            confirmed += broker.done
        for store in brokers:
            store.factory.abandon()
        log = await sweeper.open()
        log.set_retention(-1, -1)
        await asyncio.sleep(1.0)
        ended = True
        await sweeping
        found = await read_all(log)
        assert set(confirmed) <= set(found)
        assert set(await ledgers(region)) == {info.ledger for info in log.ledgers()}

    scenario(work, seed)
