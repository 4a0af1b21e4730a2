"""Restore: a topic from the object store alone, in a region that never heard of it; and what stands in the way of
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import AlreadyExists, CorruptData, NoSuchObject, NotAllowed, NotFound
from heliograph.model.ledger_metadata import LedgerInfo, ManagedLedgerMetadata, OffloadRecord, OffloadState
from heliograph.model.positions import AFTER_ALL
from heliograph.wire.run import Run
from local_meta import keys
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.metadata.ledger_catalog import PAGE_LEDGERS, Catalog
from storage.tiered.offload.object_claims import claim_to_restore
from storage.tiered.offload.object_collector import ObjectCollector
from storage.tiered.offload.offload_plan import OffloadPolicy
from storage.tiered.offload.topic_manifest import TopicManifest
from storage.tiered.reading.topic_restore import Restored, _local_gone, restore_topic
from tests.storage.managed_ledger.world import TOPIC, Names, Region, names_of, read_all
from tests.storage.tiered.world import AT_ONCE, OFF, FakeStore, TierBroker, filled, more, settled, simulated, until

OTHER = "persistent://public/default/other"
OF_NOBODY: dict[str, Any] = {"request_flush": None, "wait_flushed": None}
"""What a cursor needs that is only encoded."""


class NamesState:
    """A `RestoredState` over the names of the entries."""

    def __init__(self) -> None:
        self.names = Names()
        self.whole: bool | None = None

    def begin(self, blob: bytes, *, whole: bool) -> None:
        self.whole = whole
        self.names.restore(blob if whole else b"")

    def replay(self, ledger: int, first: int, run: Run) -> None:
        self.names.replay(ledger, first, run)

    def end(self, last: tuple[int, int]) -> bytes:
        return self.names.snapshot()


async def lost_region(
    sim: Simulation, region: Region, *, entries: int = 45
) -> tuple[FakeStore, list[tuple[int, int, str]]]:
    """A topic offloaded by a region that is gone; (its store, what it held of closed ledgers)."""
    store = FakeStore({})
    broker = TierBroker(region, store, AT_ONCE)
    await broker.tiering.start()
    ledger = await filled(broker)
    await ledger.open_cursor("behind", (ledger.ledgers()[1].ledger, 4))
    ahead = await ledger.open_cursor("ahead", (-1, -1))
    ahead.ack_cumulative(ledger.last_confirmed)
    holes = await ledger.open_cursor("holes", (-1, -1), properties={"a": "b"})
    holes.ack([(ledger.ledgers()[0].ledger, entry) for entry in (3, 5, 6)])
    await settled(broker, ledger)
    if entries > 45:
        await more(broker, ledger, 45, entries)
        await settled(broker, ledger)
    kept = [row for row in await read_all(ledger) if row[0] < ledger.ledgers()[-1].ledger]
    broker.factory.abandon()
    return store, kept


async def empty_region(sim: Simulation, store: FakeStore, page_ledgers: int = PAGE_LEDGERS) -> TierBroker:
    region = Region(sim, page_ledgers=page_ledgers)
    region.rng = sim.rng(f"region at {sim.now()}")  # chance that no other region has had
    await region.start()
    broker = TierBroker(region, store, OFF)
    await broker.pool.ready()
    return broker


async def restored(broker: TierBroker, state: NamesState | None = None, **options: Any) -> Restored:
    return await restore_topic(
        broker.meta,
        broker.stores,
        broker.cold,
        TOPIC,
        state or NamesState(),
        nothing_around,
        page_ledgers=broker.region.page_ledgers,
        **options,
    )


async def nothing_around(manifest: TopicManifest) -> list[str]:
    assert manifest.topic == TOPIC
    return []


@pytest.mark.parametrize(("entries", "page_ledgers"), [(45, 512), (83, 512), (83, 2)])
def test_a_topic_comes_back_with_positions_cursors_and_exactly_the_state_of_what_is_there(
    entries: int, page_ledgers: int
) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, kept = await lost_region(sim, region, entries=entries)
        broker = await empty_region(sim, store, page_ledgers)
        state = NamesState()
        told = await restored(broker, state)
        assert (told.topic, told.entries, told.ledgers) == (TOPIC, len(kept), len({at for at, _, _ in kept}))
        assert told.cursors == ("ahead", "behind", "holes") and state.whole is (entries > 45)
        assert told.policies == broker.policies and told.last == kept[-1][:2]
        ledger = await broker.open(create=False)
        assert (ledger._catalog.history is not None) == (page_ledgers == 2)
        assert await read_all(ledger) == kept
        assert broker.state.seen == [name for *_, name in kept] and broker.state.replayed == 0
        assert ledger.next_index == len(kept)
        first, second = ledger.ledgers()[0].ledger, ledger.ledgers()[1].ledger
        assert ledger.cursors["behind"].mark_delete == (second, 4)
        assert ledger.cursors["ahead"].mark_delete <= ledger.last_confirmed == kept[-1][:2]
        assert ledger.cursors["holes"].acked_ranges == [(first, 3, 3), (first, 5, 6)] and ledger.cursors[
            "holes"
        ].properties == {"a": "b"}
        broker.append(ledger, "new")
        await until(lambda: len(broker.done) == 1)
        assert broker.done[0][0] > max(at for at, _, _ in kept)
        again = TierBroker(broker.region, store, OFF)
        assert [name for *_, name in await read_all(await again.open())] == [*(name for *_, name in kept), "new"]

    simulated(work, page_ledgers=page_ledgers)


def test_a_second_object_of_a_ledger_is_not_the_restored_topics() -> None:
    """It was being sealed anew when the manifest was made; nobody here would let that one go."""
    stored = OffloadRecord("ab", "us.1", OffloadState.STORED, data_key=7, also="cd")
    found = _local_gone(LedgerInfo(5, 10, 100, 1, 0, stored), "file://them").offload
    assert found == OffloadRecord("ab", "us.1", OffloadState.LOCAL_GONE, "file://them", data_key=7)


def test_a_region_with_older_brokers_gets_no_pages() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, kept = await lost_region(sim, region)
        broker = await empty_region(sim, store, 2)
        await restored(broker, NamesState(), may_page=False)
        stored = await broker.meta.get(keys.managed_ledger(TOPIC))
        assert (
            stored is not None
            and len(ManagedLedgerMetadata.decode(stored[0]).ledgers) == len({at for at, _, _ in kept}) >= 4
        )

    simulated(work, page_ledgers=2)


def test_ids_that_another_topic_of_the_region_has_too_are_no_danger() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, kept = await lost_region(sim, region)
        broker = await empty_region(sim, store)
        other = await broker.open(OTHER)
        for i in range(45):
            broker.append(other, f"o{i}")
            await until(lambda: len(broker.done) == i + 1)  # noqa: B023
        wanted = await read_all(other)
        await restored(broker)
        ledger = await broker.open()
        shared = {info.ledger for info in ledger.ledgers()} & {info.ledger for info in other.ledgers()}
        assert shared, "the test is to have ids that both topics use"
        assert await read_all(ledger) == kept and await read_all(other) == wanted
        broker.policy = OffloadPolicy(threshold_bytes=0, deletion_lag_ms=-1)
        await broker.tiering.start()
        await settled(broker, other)
        for at in shared:
            for info in other.ledgers():
                if info.ledger == at and info.offload is not None:
                    runs = await broker.cold.read(OTHER, at, info.offload, 0, info.entries - 1, 1 << 20)
                    found = [name for _, run in runs for name in names_of(run)]
                    assert found and found == [name for where, _, name in wanted if where == at][: len(found)]
        assert await read_all(ledger) == kept
        for cursor in ledger.cursors.values():
            cursor.ack_cumulative(ledger.last_confirmed)
        ledger.set_retention(0, 0)
        await until(lambda: len(ledger.ledgers()) == 1)
        for at in shared:
            assert (await ledger_metadata(broker.factory.context, at)).topic == OTHER
        fresh = TierBroker(broker.region, store, OFF)
        assert await read_all(await fresh.open(OTHER)) == wanted
        await broker.factory.delete(TOPIC)
        assert await read_all(await TierBroker(broker.region, store, OFF).open(OTHER)) == wanted

    simulated(work)


def test_a_damaged_manifest_gives_way_to_the_one_before() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, kept = await lost_region(sim, region, entries=65)
        keys_of = sorted(key for key in store.objects if "/manifest/" in key)
        store.objects[keys_of[-1]] = store.objects[keys_of[-1]][:-1]
        broker = await empty_region(sim, store)
        told = await restored(broker)
        assert told.notes and keys_of[-1] in told.notes[0]
        ledger = await broker.open()
        found = await read_all(ledger)
        assert 0 < len(found) <= len(kept) and found == kept[: len(found)]
        for key in keys_of:
            store.objects[key] = b"?"
        with pytest.raises(CorruptData, match="no manifest"):
            await restored(await empty_region(sim, store))

    simulated(work)


@pytest.mark.parametrize("what", ["missing", "damaged"])
@pytest.mark.parametrize("entries", [45, 83])
def test_nothing_is_written_where_an_object_is_not_whole(what: str, entries: int) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, _ = await lost_region(sim, region, entries=entries)
        key = sorted(key for key in store.objects if "/ledger/" in key)[1]
        whole = store.objects[key]
        if what == "missing":
            del store.objects[key]
        else:
            store.objects[key] = whole[:-1] + b"?"
        broker = await empty_region(sim, store)
        with pytest.raises(NoSuchObject if what == "missing" else CorruptData, match=key):
            await restored(broker)
        assert await broker.meta.get(keys.managed_ledger(TOPIC)) is None
        store.objects[key] = whole
        await restored(broker)

    simulated(work)


def test_a_topic_comes_back_with_more_cursors_than_one_transaction_takes() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, _ = await lost_region(sim, region)
        key = max(key for key in store.objects if "/manifest/" in key)
        manifest = TopicManifest.decode(store.objects[key])
        blob = dict(manifest.cursors)["behind"]
        cursor = Cursor("", Catalog([], (-1, -1)), (-1, -1), durable=True, properties={}, **OF_NOBODY)
        cursor.restore(blob)
        cursor.properties = {"of a large one": "x" * (900 << 10)}
        many = [(f"large {number}", cursor.encode()) for number in range(6)]
        many += [(f"small {number}", blob) for number in range(450)]
        store.objects[key] = replace(manifest, cursors=tuple(many)).encode()
        broker = await empty_region(sim, store)
        told = await restored(broker)
        assert set(told.cursors) == {name for name, _ in many}
        found = (await broker.open(create=False)).cursors
        assert set(found) == set(told.cursors) and found["large 5"].properties == cursor.properties

    simulated(work)


async def deleted_topic(region: Region) -> tuple[TierBroker, list[tuple[int, int, str]], ObjectCollector]:
    """A topic that was offloaded and deleted; (its broker, what objects hold of it, who has noted these by now)."""
    broker = TierBroker(region, FakeStore({}), AT_ONCE)
    await broker.tiering.start()
    ledger = await filled(broker)
    await settled(broker, ledger)
    kept = [row for row in await read_all(ledger) if row[0] < ledger.ledgers()[-1].ledger]
    broker.factory.abandon()
    await broker.meta.delete(keys.managed_ledger(TOPIC))
    collector = broker.tiering.collector
    assert collector is not None and await collector.sweep() == []
    again = TierBroker(region, broker.store, OFF)
    await again.pool.ready()
    return again, kept, collector


def test_objects_of_a_topic_that_is_being_restored_stay() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        broker, kept, collector = await deleted_topic(region)

        async def sweep(_: TopicManifest) -> list[str]:
            assert await collector.sweep() == []
            return []

        told = await restore_topic(broker.meta, broker.stores, broker.cold, TOPIC, NamesState(), sweep)
        for _ in range(2):
            await collector.sweep()
        assert told.entries == len(kept) and await read_all(await broker.open(create=False)) == kept
        assert await broker.meta.range(keys.TIER_CLAIMS, keys.TIER_CLAIMS + "~") == []

    simulated(work)


def test_no_restore_begins_while_objects_of_its_topic_are_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        broker, _, collector = await deleted_topic(region)
        delete, refused = broker.store.delete, list[str]()

        async def meanwhile(names: Sequence[str]) -> None:
            if any("/ledger/" in name for name in names):
                with pytest.raises(NotAllowed, match="being deleted just now"):
                    await restored(broker)
                refused.extend(names)
            await delete(names)

        monkeypatch.setattr(broker.store, "delete", meanwhile)
        assert await collector.sweep() == refused != []
        with pytest.raises(NotFound):
            await restored(broker)

    simulated(work)


def test_a_restore_that_crashed_keeps_objects_no_longer_than_its_lease_and_is_begun_anew() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        broker, kept, collector = await deleted_topic(region)
        await claim_to_restore(broker.meta, TOPIC, await broker.meta.grant(60_000))
        assert await collector.sweep() == []
        assert (await restored(broker)).entries == len(kept)
        await broker.meta.delete(keys.managed_ledger(TOPIC))
        await claim_to_restore(broker.meta, TOPIC, await broker.meta.grant(60_000))
        for _ in range(2):
            assert await collector.sweep() == []
        await asyncio.sleep(61)
        assert await collector.sweep() != []

    simulated(work)


def test_a_restore_whose_claim_is_gone_writes_no_topic() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        broker, _, _ = await deleted_topic(region)

        async def overtaken(_: TopicManifest) -> list[str]:
            await claim_to_restore(broker.meta, TOPIC, await broker.meta.grant(60_000))
            return []

        with pytest.raises(NotAllowed, match="another restore"):
            await restore_topic(broker.meta, broker.stores, broker.cold, TOPIC, NamesState(), overtaken)
        assert await broker.meta.get(keys.managed_ledger(TOPIC)) is None

    simulated(work)


def test_what_stands_in_the_way_is_said() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, kept = await lost_region(sim, region)
        with pytest.raises(NotFound, match="heliograph tier list"):
            await restored(await empty_region(sim, FakeStore({})))
        broker = await empty_region(sim, store)
        await broker.open()
        with pytest.raises(AlreadyExists, match="delete it first"):
            await restored(broker)
        holder = next(iter(store.objects)).split("/")[0]
        for key, blob in list(store.objects.items()):
            store.objects[key.replace(holder, "eu-0123456789abcdef", 1)] = blob
        broker = await empty_region(sim, store)
        with pytest.raises(NotAllowed, match="--holder"):
            await restored(broker)
        assert (await restored(broker, holder=holder)).holder == holder
        assert await read_all(await broker.open()) == kept

    simulated(work)


def test_a_restored_topic_is_offloaded_further_and_restored_again() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, kept = await lost_region(sim, region)
        broker = await empty_region(sim, store)
        await restored(broker)
        broker.policy = AT_ONCE
        await broker.tiering.start()
        ledger = await broker.open()
        for i in range(15):
            broker.append(ledger, f"n{i}")
            await until(lambda: len(broker.done) == i + 1)  # noqa: B023
        await until(lambda: sum(info.closed_ms > 0 for info in ledger.ledgers()) == 5)
        await settled(broker, ledger)
        held = await read_all(ledger)
        assert broker.tiering.collector is not None
        before = set(store.objects)
        for _ in range(2):
            await broker.tiering.collector.sweep()
        assert {key for key in before if not key.startswith(broker.tiering.holder)} <= set(store.objects)
        third = await empty_region(sim, store)
        told = await restored(third, holder=broker.tiering.holder)
        assert told.entries == len(kept) + ledger.ledgers()[4].entries
        assert await read_all(await third.open()) == held[: told.entries]

    simulated(work)


def test_a_topic_can_be_stored_as_it_is_now_and_restored_with_all_of_it() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, OFF)
        await broker.tiering.start()
        ledger = await filled(broker)
        cursor = await ledger.open_cursor("c", (-1, -1))
        cursor.ack_cumulative(ledger.position_after((-1, -1), 43))
        broker.tiering.offload(ledger, AFTER_ALL, roll_over=True)
        await broker.tiering.idle()
        held = await read_all(ledger)
        assert len(held) == 45 and ledger.ledgers()[-1].entries == 0
        for number in range(3):  # again, with nothing new: no further ledger comes of it
            broker.tiering.offload(ledger, AFTER_ALL, roll_over=True)
            await broker.tiering.idle()
            assert len(ledger.ledgers()) == 6, number
        fresh = await empty_region(sim, store)
        state = NamesState()
        told = await restored(fresh, state)
        assert told.entries == 45 and not told.notes and state.whole is True and state.names.replayed == 0
        again = await fresh.open()
        assert await read_all(again) == held and again.cursors["c"].backlog_entries == 2

    simulated(work)


def test_a_busy_topic_is_stored_with_a_state_of_what_is_stored() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        class Busy(FakeStore):
            async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
                broker.append(ledger, "meanwhile")
                await super().put(key, body)

        store = Busy({})
        broker = TierBroker(region, store, OFF)
        await broker.tiering.start()
        ledger = await filled(broker)
        broker.tiering.offload(ledger, AFTER_ALL, roll_over=True)
        await broker.tiering.idle()
        fresh = await empty_region(sim, store)
        state = NamesState()
        told = await restored(fresh, state)
        assert state.whole is True and told.entries >= 45
        again = await fresh.open()
        assert [name for *_, name in await read_all(again)] == fresh.state.seen

    simulated(work)
