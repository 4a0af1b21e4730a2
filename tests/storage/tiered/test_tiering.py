"""Tiering, step by step: what a crash after each one leaves, who reads what, what is collected, and what a missing or
damaged object says.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.model.errors import (
    AlreadyExists,
    BookieUnavailable,
    CorruptData,
    NoSuchObject,
    StoreRefused,
    StoreUnavailable,
)
from heliograph.model.ledger_metadata import ManagedLedgerMetadata, OffloadState
from heliograph.model.positions import AFTER_ALL
from local_meta import keys
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.objects.object_format import Index
from storage.tiered.objects.object_names import MANIFEST, ObjectName, parse
from storage.tiered.objects.object_names import key as object_key
from storage.tiered.offload.offload_plan import OffloadPolicy, stored
from storage.tiered.offload.topic_manifest import TopicManifest
from storage.tiered.reading.topic_restore import manifests
from tests.storage.managed_ledger.world import TOPIC, Region, names_of, read_all
from tests.storage.tiered.world import (
    AT_ONCE,
    OFF,
    FakeStore,
    Steps,
    TierBroker,
    filled,
    more,
    settled,
    simulated,
    until,
)

WANTED = [f"e{i}" for i in range(45)]


def states(ledger: ManagedLedger) -> list[int]:
    return [-1 if info.offload is None else int(info.offload.state) for info in ledger.ledgers()]


def ledger_objects(objects: dict[str, bytes]) -> list[str]:
    return sorted(key for key in objects if "/ledger/" in key)


async def names(ledger: ManagedLedger, step: int = 7) -> list[str]:
    return [name for *_, name in await read_all(ledger, step)]


def test_offloaded_ledgers_leave_the_bookies_and_read_the_same() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        before = await read_all(ledger)
        await settled(broker, ledger)
        assert states(ledger) == [OffloadState.LOCAL_GONE] * 4 + [-1]
        gone = [info.ledger for info in ledger.ledgers()[:4]]
        await until(lambda: not any(bookie.holds(at) for bookie in region.bookies.values() for at in gone))
        for step in (1, 7, 100):
            assert await read_all(ledger, step) == before
        other = TierBroker(region, store, OFF)
        again = await other.open()
        assert await read_all(again) == before and other.state.seen == WANTED
        assert (again.entries, again.size_bytes, again.next_index) == (45, ledger.size_bytes, 45)

    simulated(work)


def crash_run(die_at: int) -> list[str]:
    """One broker offloads and dies at that step; the next one goes on. Returns the steps taken."""
    taken: list[str] = []

    async def work(sim: Simulation, region: Region) -> None:
        objects: dict[str, bytes] = {}
        machine = sim.machine("first")
        steps = Steps()
        made: list[TierBroker] = []

        async def life(_: Machine) -> None:
            made.append(TierBroker(region, FakeStore(objects, steps), OFF, steps))

        await machine.start(life)
        first = made[0]
        ledger = await machine.ask(lambda: filled(first))
        await machine.ask(lambda: ledger.open_cursor("c", (ledger.ledgers()[0].ledger, 3)))
        steps.done.clear()
        steps.die_at, steps.die = die_at, machine.kill
        first.policy = AT_ONCE

        async def offload() -> None:
            await first.tiering.start()
            await settled(first, ledger)

        try:
            await machine.ask(offload, limit_s=120.0)
        except TimeoutError:
            assert die_at >= 0
        taken.extend(steps.done)
        second = TierBroker(region, FakeStore(objects), AT_ONCE)
        await second.tiering.start()
        again = await second.open()
        assert await names(again) == WANTED, "something was lost by the crash"
        assert second.state.seen == WANTED and again.cursors["c"].mark_delete == (again.ledgers()[0].ledger, 3)
        await settled(second, again)
        assert await names(again) == WANTED
        assert states(again)[:4] == [OffloadState.LOCAL_GONE] * 4
        assert len(ledger_objects(objects)) <= len(again.ledgers()) + 1, "more than one object too many"
        assert second.tiering.collector is not None
        for _ in range(2):
            await second.tiering.collector.sweep()
        named = sorted(info.offload.attempt for info in again.ledgers() if info.offload is not None)
        assert sorted(key.rpartition("-")[2] for key in ledger_objects(objects)) == named
        assert 1 <= sum("/manifest/" in key for key in objects) <= 2
        assert await names(again) == WANTED

    simulated(work)
    return taken


def test_a_crash_at_every_step_loses_nothing_and_leaves_one_object_at_most() -> None:
    taken = crash_run(-1)
    assert sum("put ledger" in step for step in taken) == 8 and sum("put manifest" in step for step in taken) >= 2
    assert sum("metadata" in step for step in taken) >= 2 * 12
    for die_at in range(len(taken)):
        crash_run(die_at)


def test_a_command_offloads_whole_ledgers_before_a_position_and_keeps_the_local_copy_for_its_lag() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, OffloadPolicy(deletion_lag_ms=60_000))
        await broker.tiering.start()
        ledger = await filled(broker)
        third = ledger.ledgers()[2].ledger
        broker.tiering.offload(ledger, (third, 5))
        with pytest.raises(AlreadyExists):
            broker.tiering.offload(ledger, AFTER_ALL)
        assert broker.tiering.status(TOPIC).state == "RUNNING"
        await until(lambda: broker.tiering.status(TOPIC).state == "SUCCESS")
        assert states(ledger) == [1, 1, -1, -1, -1]
        reads = len(store.reads)
        assert await names(ledger) == WANTED and len(store.reads) == reads  # the local copy is used while it is there
        broker.tiering.offload(ledger, AFTER_ALL)
        await until(lambda: broker.tiering.status(TOPIC).state == "SUCCESS")
        assert states(ledger) == [1, 1, 1, 1, -1]
        await asyncio.sleep(61)
        await settled(broker, ledger)
        assert states(ledger) == [2, 2, 2, 2, -1]

    simulated(work)


def test_an_object_that_did_not_arrive_whole_is_never_called_stored() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        class Torn(FakeStore):
            async def put(self, key: str, body: object) -> None:
                await super().put(key, body)  # type: ignore[arg-type]
                blob = bytearray(self.objects[key])
                blob[len(blob) // 2] ^= 1
                self.objects[key] = bytes(blob)

        broker = TierBroker(region, Torn({}), AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        broker.tiering.tick()
        await until(lambda: broker.tiering.status(TOPIC).state == "ERROR")
        assert "did not arrive as it was sent" in broker.tiering.status(TOPIC).error
        assert not any(stored(info) for info in ledger.ledgers())
        assert await names(ledger) == WANTED
        broker.tiering.tick()
        assert broker.tiering.status(TOPIC).state == "ERROR"  # it waits before it tries again
        other = TierBroker(region, broker.store, OFF)
        again = await other.open()
        assert states(again)[0] == OffloadState.BEGUN
        for bookie in region.bookies.values():
            bookie.crash()
        with pytest.raises(BookieUnavailable):  # what was only begun is no copy
            await read_all(again)

    simulated(work)


def test_failed_attempts_stay_counted_when_a_later_one_succeeds() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        class Away(FakeStore):
            away = True

            async def put(self, key: str, body: object) -> None:
                if self.away:
                    raise StoreUnavailable("away")
                await super().put(key, body)  # type: ignore[arg-type]

        store = Away({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        await until(lambda: broker.tiering.failures() == {TOPIC: 2}, 300.0)
        assert broker.tiering.errors() == {TOPIC: 2}
        store.away = False
        await until(lambda: broker.tiering.status(TOPIC).state == "SUCCESS", 300.0)
        assert (
            broker.tiering.failures() == {}
            and broker.tiering.errors() == {TOPIC: 2}
            and any(stored(info) for info in ledger.ledgers())
        )
        status = broker.tiering.statuses()[TOPIC]
        assert status.store_errors == 2 and status.offloaded_bytes == broker.tiering.offloaded_bytes > 0

    simulated(work)


def test_the_local_copy_stays_where_the_object_has_gone_meanwhile() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, OffloadPolicy(threshold_bytes=0, deletion_lag_ms=60_000))
        await broker.tiering.start()
        ledger = await filled(broker)
        await settled(broker, ledger)
        for key in ledger_objects(store.objects):
            del store.objects[key]
        await asyncio.sleep(61)
        broker.tiering.tick()
        await until(lambda: broker.tiering.status(TOPIC).state == "ERROR")
        assert states(ledger) == [1, 1, 1, 1, -1] and await names(ledger) == WANTED

    simulated(work)


@pytest.mark.parametrize(
    "damage", ["missing", "another topic's", "block", "index", "footer", "cut", "swapped", "refused", "silent"]
)
def test_damage_is_told_and_never_read(damage: str) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        first = TierBroker(region, store, AT_ONCE)
        await first.tiering.start()
        await settled(first, await filled(first))
        broker = TierBroker(region, store, OFF)
        ledger = await broker.open()
        key, other = ledger_objects(store.objects)[:2]
        whole = store.objects[key]
        blob = bytearray(whole)
        expected: type[Exception] = CorruptData
        if damage == "missing":
            del store.objects[key]
            expected = NoSuchObject
        elif damage == "swapped":
            store.objects[key] = store.objects[other]
        elif damage == "another topic's":
            index = Index.decode(whole, len(whole))
            store.objects[key] = (
                whole[: index.end]
                + Index(index.ledger, index.entries, TOPIC[:-1] + "u", index.rows(), index.end).encode()
            )
            assert len(store.objects[key]) == len(whole)
        elif damage == "cut":
            store.objects[key] = whole[:-1]
        elif damage in ("refused", "silent"):
            expected = StoreRefused if damage == "refused" else StoreUnavailable
            store.fail = expected("no")
        else:
            blob[{"block": 300, "index": -90, "footer": -3}[damage]] ^= 4
            store.objects[key] = bytes(blob)
        with pytest.raises(expected) as caught:
            await read_all(ledger)
        if expected in (CorruptData, NoSuchObject):
            for word in (TOPIC, str(ledger.ledgers()[0].ledger), key):
                assert word in str(caught.value)
        store.objects[key], store.fail = whole, None
        await asyncio.sleep(2)
        assert await names(ledger) == WANTED

    simulated(work)


def test_what_the_bookies_have_lost_is_read_from_the_store_as_far_as_that_goes() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        first = TierBroker(region, store, OffloadPolicy(threshold_bytes=0, deletion_lag_ms=-1))
        await first.tiering.start()
        ledger = await filled(first)
        await settled(first, ledger)
        await ledger.close()
        broker = TierBroker(region, store, OFF)
        again = await broker.open()
        assert states(again) == [1, 1, 1, 1, -1]
        for bookie in region.bookies.values():
            bookie.crash()
        found = []
        position = again.first_position()
        with pytest.raises(BookieUnavailable):
            while pieces := await again.read(position, 7, 1 << 20):
                found += [name for _, _, run in pieces for name in names_of(run)]
                position = (pieces[-1][0], pieces[-1][1] + pieces[-1][2].count)
        assert found == WANTED[:40]

    simulated(work)


def test_a_broker_without_a_store_says_what_is_missing() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        first = TierBroker(region, store, AT_ONCE)
        await first.tiering.start()
        await settled(first, await filled(first))
        bare = TierBroker(region, store, OFF)
        bare.factory.cold = None
        ledger = await bare.open()
        with pytest.raises(StoreRefused, match=r"broker\.tiered\.store"):
            await read_all(ledger)
        bare = TierBroker(region, store, OFF)
        bare.stores.own_url = ""
        await bare.tiering.start()
        with pytest.raises(StoreRefused, match=r"broker\.tiered\.store"):
            await read_all(await bare.open())
        with pytest.raises(StoreRefused, match=r"broker\.tiered\.store"):
            bare.tiering.offload(ledger, AFTER_ALL)

    simulated(work)


def test_trimmed_ledgers_and_deleted_topics_are_collected_on_the_second_look() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        collector = broker.tiering.collector
        assert collector is not None
        ledger = await filled(broker)
        await settled(broker, ledger)
        cursor = await ledger.open_cursor("c", (-1, -1))
        ledger.set_retention(0, 0)
        cursor.ack_cumulative((ledger.ledgers()[1].ledger, 9))
        await until(lambda: len(ledger.ledgers()) == 3)
        assert await names(ledger) == WANTED[20:]
        assert await collector.sweep() == []
        assert len(await collector.sweep()) >= 2 and len(ledger_objects(store.objects)) == 2
        assert await names(ledger) == WANTED[20:]
        foreign = ledger_objects(store.objects)[0].replace("us-", "eu-", 1)
        store.objects[foreign] = b"another region's"
        await ledger.close()
        await broker.factory.delete(TOPIC)
        assert await collector.sweep() == []
        await collector.sweep()
        assert [key for key in store.objects if parse(key) is not None] == [foreign]

    simulated(work)


def test_nothing_is_collected_for_another_metadata() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        await settled(broker, ledger)
        count = len(store.objects)
        await broker.meta.delete(keys.managed_ledger(TOPIC))
        await broker.meta.put(keys.INSTANCE, b"restored from a backup")
        assert broker.tiering.collector is not None
        for _ in range(3):
            assert await broker.tiering.collector.sweep() == []
        assert len(store.objects) == count

    simulated(work)


def test_what_is_being_uploaded_is_not_collected() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        class Swept(FakeStore):
            async def put(self, key: str, body: object) -> None:
                await super().put(key, body)  # type: ignore[arg-type]
                assert broker.tiering.collector is not None
                for _ in range(3 if parse(key) is not None else 0):
                    await broker.tiering.collector.sweep()

        store = Swept({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        await settled(broker, ledger)
        assert states(ledger) == [2, 2, 2, 2, -1] and await names(ledger) == WANTED

    simulated(work)


def test_a_fenced_owner_commits_nothing() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        zombie = TierBroker(region, store, AT_ONCE)
        await zombie.tiering.start()
        ledger = await filled(zombie)
        zombie.tiering.tick()
        await until(lambda: states(ledger)[0] == OffloadState.BEGUN)
        second = TierBroker(region, store, OFF)
        again = await second.open()
        await until(lambda: zombie.tiering.status(TOPIC).state == "ERROR")
        found = await second.meta.get(keys.managed_ledger(TOPIC))
        assert found is not None
        assert not any(stored(info) for info in ManagedLedgerMetadata.decode(found[0]).ledgers)
        assert await names(again) == WANTED
        second.policy = AT_ONCE
        await second.tiering.start()
        await settled(second, again)
        assert await names(again) == WANTED and states(again)[:4] == [2, 2, 2, 2]

    simulated(work)


def test_a_reader_that_reads_on_is_served_by_long_ranges_ahead_of_it() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        first = TierBroker(region, store, AT_ONCE)
        await first.tiering.start()
        await settled(first, await filled(first))
        broker = TierBroker(region, store, OFF)
        ledger = await broker.open()
        store.reads.clear()
        assert await names(ledger, 1) == WANTED
        key = ledger_objects(store.objects)[0]
        body = [(start, stop) for name, start, stop in store.reads if name == key and stop < len(store.objects[key])]
        assert len(body) <= 5 and max(stop - start for start, stop in body) > 512
        assert broker.cold.hits >= 20
        store.reads.clear()
        assert await names(ledger, 1) == WANTED
        indexes = sum(stop == len(store.objects[name]) for name, _, stop in store.reads)
        assert indexes <= 4

    simulated(work)


def test_two_ranges_are_on_their_way_ahead_of_a_reader_and_one_where_many_objects_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store, under_way, most = FakeStore({}), Counter[str](), 0
        read = store.read

        async def counted(key: str, start: int, stop: int) -> memoryview:
            nonlocal most
            under_way[key] += 1
            most = max(most, under_way[key])
            try:
                return await read(key, start, stop)
            finally:
                under_way[key] -= 1

        first = TierBroker(region, store, AT_ONCE)
        await first.tiering.start()
        ledger = await first.open()
        for number in range(30):
            first.append(ledger, f"e{number}", pad=300)
            await until(lambda: len(first.done) == number + 1)  # noqa: B023
        await until(lambda: ledger.ledgers()[-1].entries == 0)
        await settled(first, ledger)
        monkeypatch.setattr(store, "read", counted)
        store.reads.clear()
        for objects, wanted in (1, 2), (3, 1):
            broker = TierBroker(region, store, OFF)
            ledger = await broker.open()
            most = 0
            for entry in range(10):
                for info in ledger.ledgers()[:objects]:
                    ((_, first, run),) = await ledger.read((info.ledger, entry), 1, 1 << 20)
                    assert (first, run.count) == (entry, 1)
            assert most == wanted
            fetched = sum(stop - start for key, start, stop in store.reads if key == store.reads[0][0])
            assert objects > 1 or fetched <= len(store.objects[store.reads[0][0]]), "nothing is fetched twice"
            store.reads.clear()

    simulated(work)


def test_the_manifest_keeps_a_state_that_does_not_reach_beyond_what_is_stored() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        await settled(broker, ledger)
        await more(broker, ledger, 45, 83)
        await settled(broker, ledger)
        newest = max(
            (name.number, key) for key in store.objects if (name := parse(key)) is not None and name.kind == MANIFEST
        )[1]
        manifest = TopicManifest.decode(store.objects[newest])
        covered = [state for state in manifest.states if state[0] <= manifest.end]
        assert covered and covered[-1][1].decode().split(",") == WANTED

    simulated(work)


def test_manifests_of_one_version_are_in_the_order_in_which_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements alone give the topic's metadata no other version."""

    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, AT_ONCE)
        await broker.tiering.start()
        ledger = await filled(broker)
        cursor = await ledger.open_cursor("c", (-1, -1))
        await settled(broker, ledger)
        version, first = ledger.stored_form()[1], ledger.ledgers()[0].ledger
        as_before = ObjectName(broker.tiering.holder, TOPIC, MANIFEST, version, "f" * 32)
        store.objects[object_key(as_before)] = b"of a broker that gave random names"
        step = 0
        for told in ("wall_ms", "latest_ms"):  # it is put back all the time
            monkeypatch.setattr(broker.tiering._clock, told, lambda: 1_000_000 - step * 1000)
        for step in range(9):
            before = set(store.objects)
            cursor.ack_cumulative((first, step))
            await cursor.flushed()
            await settled(broker, ledger)
            (made,) = set(store.objects) - before
            (rows,) = (await manifests(store)).values()
            assert rows[-1][1] == made and rows[-1][0].number == version, f"{step}: another one counts as the newest"
        assert broker.tiering.collector is not None
        for _ in range(2):
            await broker.tiering.collector.sweep()
        assert [key for key in store.objects if "/manifest/" in key] == [key for _, key, _ in rows[-2:]]

    simulated(work)


def test_a_store_that_does_not_answer_is_asked_seldom_and_comes_back_by_itself() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        first = TierBroker(region, store, AT_ONCE)
        await first.tiering.start()
        await settled(first, await filled(first))
        broker = TierBroker(region, store, OFF)
        ledger = await broker.open()
        store.fail, asked = StoreUnavailable("no answer"), 0
        places = [(info.ledger, 0) for info in ledger.ledgers()[:4]]
        for _ in range(200):
            results = await asyncio.gather(
                *(ledger.read(place, 5, 1 << 20) for place in places), return_exceptions=True
            )
            assert all(isinstance(result, StoreUnavailable) for result in results)
            asked += sum("no answer" in str(result) for result in results)
            await asyncio.sleep(0.05)
        assert 5 <= asked <= 12, "four at first, then one now and then"
        store.fail = None
        await asyncio.sleep(2)
        assert await names(ledger) == WANTED

    simulated(work)


@pytest.mark.parametrize(
    ("what", "error"), [("missing", NoSuchObject), ("cut", CorruptData), ("refused", StoreRefused)]
)
def test_a_store_that_has_answered_is_silent_no_more_whatever_it_said(what: str, error: type[Exception]) -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        first = TierBroker(region, store, AT_ONCE)
        await first.tiering.start()
        await settled(first, await filled(first))
        broker = TierBroker(region, store, OFF)
        ledger = await broker.open()
        bad, good = ((info.ledger, 0) for info in ledger.ledgers()[:2])
        store.fail = StoreUnavailable("no answer")
        with pytest.raises(StoreUnavailable, match="no answer"):
            await ledger.read(bad, 5, 1 << 20)
        await asyncio.sleep(2)
        key = ledger_objects(store.objects)[0]
        store.fail = StoreRefused("not with these credentials") if what == "refused" else None
        store.objects[key] = store.objects[key][:10]
        if what == "missing":
            del store.objects[key]
        with pytest.raises(error):
            await ledger.read(bad, 5, 1 << 20)
        store.fail = None
        assert await ledger.read(good, 5, 1 << 20), "another one's object is there"

    simulated(work)


def test_a_local_copy_whose_metadata_is_gone_already_is_no_hindrance() -> None:
    async def work(sim: Simulation, region: Region) -> None:
        store = FakeStore({})
        broker = TierBroker(region, store, OffloadPolicy(threshold_bytes=0, deletion_lag_ms=60_000))
        await broker.tiering.start()
        ledger = await filled(broker)
        await settled(broker, ledger)
        broker.machine_clock.offset_ms = 60_000
        await settled(broker, ledger)
        assert states(ledger) == [1, 1, 1, 1, -1], "a clock that jumps ends no lag"
        await broker.meta.delete(keys.ledger(ledger.ledgers()[0].ledger))
        await asyncio.sleep(61)
        await settled(broker, ledger)
        assert states(ledger) == [2, 2, 2, 2, -1] and await names(ledger) == WANTED

    simulated(work)
