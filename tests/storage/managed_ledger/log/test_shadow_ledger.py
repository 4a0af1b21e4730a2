"""ShadowLedger: what it shows of its source while that is written, changes owners, is trimmed, terminated, or
deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, NotFound, TopicClosed
from heliograph.model.ledger_metadata import ManagedLedgerMetadata
from local_meta import keys
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.managed_ledger.log.shadow_ledger import ShadowLedger
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from tests.storage.managed_ledger.world import TOPIC, Broker, Names, Region, read_all, run_of, until

SHADOW = f"{TOPIC}-shadow"
SMALL = ManagedLedgerSettings(ledger_entries_max=10, checkpoint_entries=16)


def scenario(work: Callable[[Region], Awaitable[None]], *, seed: int = 1) -> None:
    with Simulation(seed=seed) as sim:

        async def main() -> None:
            region = Region(sim, 3)
            await region.start()
            await work(region)

        sim.run(main(), limit_s=900)


async def shadow_at(broker: Broker, *, create: bool = True) -> tuple[ShadowLedger, Names]:
    await broker.pool.ready()
    state = Names()
    return await broker.factory.open_shadow(SHADOW, TOPIC, state, (2, 2, 2), create=create), state


async def publish(broker: Broker, ledger: ManagedLedger, *names: str) -> None:
    for start in range(0, len(names), 4):  # so that ledgers fill up one after the other
        wanted = len(broker.done) + len(names[start : start + 4])
        for name in names[start : start + 4]:
            broker.append(ledger, name)
        await until(lambda wanted=wanted: len(broker.done) == wanted)


async def all_of(ledger: ManagedLedger) -> list[tuple[int, int, str]]:
    return await read_all(ledger) if ledger.entries else []


def test_it_follows_through_rollovers_owners_and_its_own_reloads() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region, settings=SMALL), Broker(region)
        source = await source_broker.open()
        await publish(source_broker, source, *(f"early{i}" for i in range(25)))
        shadow, state = await shadow_at(shadow_broker)
        await publish(source_broker, source, *(f"late{i}" for i in range(25)))
        await until(lambda: shadow.entries == 50)
        assert await all_of(shadow) == source_broker.done
        assert state.seen == [name for *_, name in source_broker.done]
        assert shadow.next_index == source.next_index and shadow.size_bytes == source.size_bytes

        cursor = await shadow.open_cursor("s", (-1, -1))
        cursor.ack_cumulative(source_broker.done[29][:2])
        cursor.ack([source_broker.done[40][:2]])
        await cursor.flushed()
        assert cursor.backlog_entries == 19
        next_broker = Broker(region, settings=SMALL)  # the source's owner was replaced, without a word
        source = await next_broker.open()
        await publish(next_broker, source, "more")
        await until(lambda: shadow.entries == 51)
        third = Broker(region)
        again, _ = await shadow_at(third, create=False)
        assert again.entries >= 50 and again.cursors["s"].is_acked(source_broker.done[40][:2])
        await until(lambda: again.cursors["s"].backlog_entries == 20)
        assert await all_of(again) == [*source_broker.done, *next_broker.done]
        with pytest.raises(HeliographError):  # its owner of before stores nothing any more
            await shadow.open_cursor("late", (-1, -1))

    scenario(work)


def test_an_empty_ledger_that_the_sources_next_owner_drops_is_passed() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region, settings=SMALL), Broker(region)
        source = await source_broker.open()
        for i in range(25):
            source_broker.append(source, f"{i}")
        await until(lambda: len(source_broker.done) == 25)
        shadow, _ = await shadow_at(shadow_broker)
        for i in range(25):  # in the same ledger, and the next one is open and empty
            source_broker.append(source, f"{i}")
        await until(lambda: shadow.entries == 50 and len(shadow.ledgers()) == 2)
        next_broker = Broker(region, settings=SMALL)
        source = await next_broker.open()
        await publish(next_broker, source, "more")
        await until(lambda: shadow.entries == 51)
        assert await all_of(shadow) == [*source_broker.done, *next_broker.done]

    scenario(work)


def test_a_ledger_that_cannot_be_read_is_not_passed() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region, settings=SMALL), Broker(region)
        source = await source_broker.open()
        for _ in range(2):  # in one ledger, and the next one is open and empty
            wanted = len(source_broker.done) + 25
            for i in range(25):
                source_broker.append(source, f"{i}")
            await until(lambda wanted=wanted: len(source_broker.done) == wanted)
        shadow, _ = await shadow_at(shadow_broker)
        await until(lambda: shadow.entries == 50 and len(shadow.ledgers()) == 2)
        await source_broker.meta.delete(
            keys.ledger(shadow.ledgers()[-1].ledger)
        )  # as where only an object store has it by now
        await until(lambda: shadow.ended)

    scenario(work)


def test_nothing_of_the_source_is_written_or_freed() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region, settings=SMALL), Broker(region)
        source = await source_broker.open()
        await source.open_cursor("keeps", (-1, -1))
        await publish(source_broker, source, *(f"{i}" for i in range(25)))
        shadow, _ = await shadow_at(shadow_broker)
        await shadow.open_cursor("s", (-1, -1))
        shadow.set_retention(0, 0)
        for refused in (shadow.terminate(), shadow.truncate(), shadow.roll_over()):
            with pytest.raises(NotAllowed):
                await refused
        failed: list[HeliographError] = []
        shadow.append_run(run_of("x"), lambda *_: None, failed.append)
        assert isinstance(failed[0], NotAllowed)
        await shadow.delete_cursor("s")
        await asyncio.sleep(30)  # nobody holds anything here, and retention keeps nothing
        assert shadow.entries == 25 and await all_of(await Broker(region).open()) == source_broker.done
        source_broker = Broker(region, settings=SMALL)
        source = await source_broker.open()
        before = await all_of(source)
        with pytest.raises(MetadataUnavailable):  # whoever has not heard what it is
            await shadow_broker.factory.open(SHADOW, Names(), (2, 2, 2), create=False)
        await shadow_broker.factory.delete(SHADOW)
        assert not await shadow_broker.factory.exists(SHADOW)
        await publish(source_broker, source, "goes on")
        assert await all_of(source) == [*before, *source_broker.done]

    scenario(work)


def test_what_it_stores_names_its_source_and_no_ledger() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region, settings=SMALL), Broker(region)
        source = await source_broker.open()
        await publish(source_broker, source, *(f"{i}" for i in range(25)))
        shadow, _ = await shadow_at(shadow_broker)
        await shadow.close()
        found = await shadow_broker.meta.get(keys.managed_ledger(SHADOW))
        assert found is not None
        stored = ManagedLedgerMetadata.decode(found[0])
        assert (stored.ledgers, stored.properties["PULSAR.SHADOW_SOURCE"]) == ((), TOPIC)
        with pytest.raises(NotAllowed):
            await shadow_broker.factory.open_shadow(SHADOW, f"{TOPIC}-other", Names(), (2, 2, 2), create=False)
        with pytest.raises(NotAllowed):  # it has entries of its own
            await Broker(region).factory.open_shadow(TOPIC, SHADOW, Names(), (2, 2, 2), create=False)

    scenario(work)


def test_what_the_source_lets_go_is_passed_by_cursors() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region, settings=SMALL), Broker(region)
        source = await source_broker.open()
        held = await source.open_cursor("held", (-1, -1))
        await publish(source_broker, source, *(f"{i}" for i in range(35)))
        shadow, _ = await shadow_at(shadow_broker)
        cursor = await shadow.open_cursor("s", (-1, -1))
        await until(lambda: cursor.backlog_entries == 35)
        source.set_retention(0, 0)
        held.ack_cumulative(source_broker.done[30][:2])
        await until(lambda: source.entries < 20)
        await until(lambda: shadow.entries == source.entries)
        assert cursor.backlog_entries == shadow.entries
        assert await all_of(shadow) == await all_of(source)
        assert not shadow.ended

    scenario(work)


def test_an_end_of_the_source_closes_it_to_be_opened_as_it_is_then() -> None:
    async def work(region: Region) -> None:
        source_broker, shadow_broker = Broker(region), Broker(region)
        shadow, _ = await shadow_at(shadow_broker)  # before there is a source
        assert shadow.entries == 0
        source = await source_broker.open()
        await publish(source_broker, source, "one")
        await until(lambda: shadow.entries == 1)
        ends: list[HeliographError] = []
        shadow.on_failed = ends.append
        await source.terminate()
        await until(lambda: ends)
        assert isinstance(ends[0], TopicClosed)
        again, _ = await shadow_at(shadow_broker, create=False)
        assert again.terminated_at == source.last_confirmed and await all_of(again) == source_broker.done
        await source_broker.factory.delete(TOPIC)
        await until(lambda: again.ended)
        again, _ = await shadow_at(shadow_broker, create=False)
        assert (again.entries, again.terminated_at) == (0, None)
        source = await source_broker.open()
        await publish(source_broker, source, "made anew")
        await until(lambda: again.entries == 1)
        assert await all_of(again) == source_broker.done[-1:]
        with pytest.raises(NotFound):
            await Broker(region).factory.open_shadow(f"{SHADOW}-2", TOPIC, Names(), (2, 2, 2), create=False)

    scenario(work)


@pytest.mark.parametrize("seed", range(4))
def test_at_any_moment_it_shows_a_beginning_of_its_source(seed: int) -> None:
    async def work(region: Region) -> None:
        rng = random.Random(seed)
        source_broker = Broker(region, settings=SMALL)
        source = await source_broker.open()
        shadow_broker = Broker(region)
        shadow, state = await shadow_at(shadow_broker)
        history: list[tuple[int, int, str]] = []
        number = 0
        for _ in range(60):
            act = rng.random()
            if act < 0.6:
                names = [f"{number + i}" for i in range(rng.randint(1, 8))]
                number += len(names)
                for name in names:
                    source_broker.append(source, name)
                if rng.random() < 0.5:
                    await until(lambda source=source: source.pending_bytes == 0)
            elif act < 0.7:
                await until(lambda source=source: source.pending_bytes == 0)
                history += source_broker.done
                source_broker = Broker(region, settings=SMALL)
                source = await source_broker.open()
            elif act < 0.8:
                shadow_broker = Broker(region)
                shadow, state = await shadow_at(shadow_broker, create=False)
            else:
                await asyncio.sleep(rng.random())
            if shadow.ended:
                shadow, state = await shadow_at(shadow_broker, create=False)
            shown, there = await all_of(shadow), [*history, *source_broker.done]
            assert shown == there[: len(shown)] or len(shown) > len(there)
        await until(lambda: source.pending_bytes == 0)
        history += source_broker.done
        if shadow.ended:
            shadow, state = await shadow_at(shadow_broker, create=False)
        await until(lambda: shadow.entries == len(history))
        assert await all_of(shadow) == history
        assert state.seen == [name for *_, name in history]

    scenario(work, seed=seed)
