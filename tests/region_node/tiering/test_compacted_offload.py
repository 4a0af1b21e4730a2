"""Level 2: compacted ledgers in an object store, with brokers that die at any moment of it, or are replaced and go
on.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.ledger_metadata import LedgerMetadata, OffloadRecord, OffloadState
from heliograph.wire.run import Run
from local_meta import keys
from region_node.compaction.compacted_view import CURSOR, read_properties
from region_node.tiering.offload_metrics import TierMetrics
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.tiered.objects.object_names import LEDGER, parse
from storage.tiered.offload.offload_plan import OffloadPolicy
from storage.tiered.offload.topic_manifest import TopicManifest
from storage.tiered.reading.topic_restore import Restored, restore_topic
from tests.region_node.compaction.world import (
    TOPIC,
    Owner,
    Row,
    latest,
    ledgers_without_topic,
    made_up,
    rows_of,
    settled,
)
from tests.region_node.tiering.tiered_owner import TieredOwner
from tests.storage.managed_ledger.world import Region, until
from tests.storage.tiered.world import OFF, more

OTHER = "persistent://public/default/other"


def compacted_objects(objects: dict[str, bytes], ledgers: set[int]) -> set[int]:
    """Ledgers of objects that are none of the log's."""
    found = {name.number for key in objects if (name := parse(key)) is not None and name.kind == LEDGER}
    return found - ledgers


def log_ledgers(owner: Owner) -> set[int]:
    return {info.ledger for info in owner.topic.ledger.ledgers()}


def test_what_is_compacted_is_read_from_the_store_and_goes_when_it_is_replaced() -> None:
    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        owner = TieredOwner(region, sim, objects)
        topic = await owner.open()
        rows: list[Row] = []
        before: set[int] = set()
        for turn in range(3):
            fresh = made_up(random.Random(turn), 60, len(rows))
            assert await owner.publish(fresh)
            rows += fresh
            assert await owner.compact() == "SUCCESS", topic.compaction().error
            await settled(owner)
            assert before & compacted_objects(objects, log_ledgers(owner)) == set(), "what was replaced is deleted"
            reader = topic.compaction().view
            first = (await reader.read((-1, -1), 1, 1))[0][:2]
            await owner.tiered()
            assert {row[1:] for row in await rows_of(topic.compaction().view)} == latest(rows)
            assert (await reader.read((-1, -1), 1, 1))[0][:2] == first
            compacted = topic.compaction().view.compacted
            assert compacted is not None and compacted.offloaded and topic.compaction().ledger_stats()["offloaded"]
            assert await ledgers_without_topic(owner.broker.meta) == set(), "no local copy is left"
            before = compacted_objects(objects, log_ledgers(owner))
            assert before == {compacted.ledger}
            assert await topic.compaction().view.last() is not None
            assert owner.tiering.collector is not None
            swept = [*await owner.tiering.collector.sweep(), *await owner.tiering.collector.sweep()]
            assert compacted_objects(dict.fromkeys(swept, b""), set()) == set()
        manifests = owner.tiering.collector.collected
        await topic.truncate()
        assert compacted_objects(objects, log_ledgers(owner)) == set()
        shown = {
            name: value
            for name, _, _, value in TierMetrics(owner.tiering, owner.broker.cold, sim.clock()).samples("us")
        }
        assert shown["pulsar_ledgeroffloader_delete_offload_ops"] == manifests + 3, (
            "two that were replaced, and the last one"
        )

    with Simulation(seed="offloaded") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_a_broker_that_died_before_its_local_copy_was_gone_is_cleaned_up_after(monkeypatch: pytest.MonkeyPatch) -> None:
    async def first(machine: Machine) -> None:
        owners.append(TieredOwner(region, sim, objects))

    async def main() -> None:
        await region.start()
        machine, other = sim.machine("first"), sim.machine("second")
        await machine.start(first)
        topic = await machine.ask(owners[0].open)
        rows = [("a", "1"), ("b", "2"), ("a", "3")]
        assert await machine.ask(owners[0].publish, rows) and await machine.ask(owners[0].compact) == "SUCCESS"
        monkeypatch.setattr(topic._compactor, "_delete", lambda ledgers: asyncio.Event().wait())
        owners[0].tiering.tick()
        await until(lambda: topic.compaction().view.compacted.offloaded)
        await asyncio.sleep(1)
        machine.kill()
        local = await ledgers_without_topic(EmbeddedStore(region.machine))
        assert len(local) == 1
        await other.start(first)
        await other.ask(owners[1].open)
        await other.ask(settled, owners[1])
        assert await ledgers_without_topic(EmbeddedStore(region.machine)) == set()
        assert {row[1:] for row in await other.ask(rows_of, owners[1].topic.compaction().view)} == latest(rows)

    owners: list[TieredOwner] = []
    objects: dict[str, bytes] = {}
    with Simulation(seed="left") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_what_is_being_compacted_is_not_named_anew_meanwhile() -> None:
    async def main() -> None:
        await region.start()
        owner = TieredOwner(region, sim, {})
        topic = await owner.open()
        assert await owner.publish([("a", "1"), ("b", "2")]) and await owner.compact() == "SUCCESS"
        compacted = topic.compaction().view.compacted
        assert compacted is not None and await owner.publish([("a", "3")])
        topic.compact()
        assert owner.offload.ledgers(TOPIC) == [] and not await owner.offload.set_offload(
            TOPIC, compacted.ledger, OffloadRecord("ab", "us")
        )
        await until(lambda: topic.compaction().status != "RUNNING")
        assert not await owner.offload.set_offload(TOPIC, compacted.ledger, OffloadRecord("ab", "us")), (
            "it was replaced"
        )
        assert {row[1:] for row in await rows_of(topic.compaction().view)} == {("a", "3"), ("b", "2")}

    with Simulation(seed="meanwhile") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_nothing_is_offloaded_that_an_older_broker_would_take_for_lost() -> None:
    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        owner = TieredOwner(region, sim, objects, allowed=False)
        topic = await owner.open()
        await owner.publish([("a", "1"), ("b", "2"), ("a", "3")])
        assert await owner.compact() == "SUCCESS"
        await owner.tiered()
        assert (
            compacted_objects(objects, log_ledgers(owner)) == set()
            and topic.compaction().view.compacted.offload is None
        )

    with Simulation(seed="older") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


class Elsewhere:
    """A region that has other ledgers under all the numbers that the lost one has given out, logs' and others'."""

    def __init__(self, sim: Simulation, objects: dict[str, bytes]) -> None:
        self.region = Region(sim)
        self.region.rng = sim.rng("elsewhere")
        self.sim, self.objects = sim, objects
        self.ledgers: dict[str, bytes] = {}

    async def begin(self, entries: dict[int, int]) -> TieredOwner:
        """entries: how many each of those that are not logs' has."""
        await self.region.start()
        owner = TieredOwner(self.region, self.sim, self.objects, policy=OFF)
        await owner.broker.pool.ready()
        other = await owner.broker.open(OTHER)
        await more(owner.broker, other, 0, 85)
        first = other.ledgers()[0].ledger
        for number, count in entries.items():
            made = replace(await ledger_metadata(owner.broker.factory.context, first), ledger=number, topic="")
            if number not in {info.ledger for info in other.ledgers()}:
                await owner.broker.meta.put(keys.ledger(number), replace(made, last_entry=count - 1).encode())
        self.ledgers = {key: blob for key, blob, _ in await self._rows(owner)}
        return owner

    async def restore(self, owner: TieredOwner) -> Restored:
        broker = owner.broker
        return await restore_topic(
            broker.meta,
            broker.stores,
            broker.cold,
            TOPIC,
            Anything(),
            nothing_around,
            adapt=partial(owner.offload.adapt, TOPIC, ""),
        )

    async def untouched(self, owner: TieredOwner) -> None:
        """Every ledger of another topic is there."""
        now = {key: blob for key, blob, _ in await self._rows(owner)}
        assert {key: now.get(key) for key in self.ledgers} == self.ledgers

    @staticmethod
    async def _rows(owner: TieredOwner) -> list[tuple[str, bytes, int]]:
        return await owner.broker.meta.range(keys.LEDGERS, prefix_end(keys.LEDGERS))


class Anything:
    """A `RestoredState` of which nothing is asked."""

    def begin(self, blob: bytes, *, whole: bool) -> None: ...

    def replay(self, ledger: int, first: int, run: Run) -> None: ...

    def end(self, last: tuple[int, int]) -> bytes:
        return b""


async def nothing_around(manifest: TopicManifest) -> list[str]:
    return []


@pytest.mark.parametrize("of_logs", [True, False])
@pytest.mark.parametrize("kept", ["object", "both", "bookies"])
def test_a_restored_topic_reads_and_deletes_no_ledger_that_is_not_its_own(
    kept: str, of_logs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kept: where what is compacted lies. of_logs: its number is that of another topic's log; else of something else's
    ledger.
    """
    read: list[int] = []

    async def looked_at(context: LedgerContext, ledger: int) -> LedgerMetadata:
        found = await ledger_metadata(context, ledger)
        read.append(ledger)
        return found

    async def leave(*_: object) -> None: ...

    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        policy = OffloadPolicy(threshold_bytes=0, deletion_lag_ms=0 if kept == "object" else -1)
        lost = TieredOwner(region, sim, objects, allowed=kept != "bookies", policy=policy)
        topic = await lost.open()
        rows: list[Row] = []
        with monkeypatch.context() as patch:
            patch.setattr(topic._compactor, "_sweep", leave)  # so that garbage is named
            for turn in range(2 if of_logs else 4):
                fresh = made_up(random.Random(turn), 10 if of_logs else 40, len(rows))
                assert await lost.publish(fresh)
                rows += fresh
                assert await lost.compact() == "SUCCESS", topic.compaction().error
            await topic.ledger.roll_over()
            await lost.tiered()
        compacted, garbage = read_properties(topic.ledger.cursors[CURSOR].properties)
        assert compacted is not None and garbage and compacted.ledger > max(garbage[:-1], default=-1)
        lost.broker.factory.abandon()
        kept_objects = dict(objects)

        elsewhere = Elsewhere(sim, objects)
        owner = await elsewhere.begin(dict.fromkeys([*garbage, compacted.ledger], compacted.entries))
        assert all(keys.ledger(number) in elsewhere.ledgers for number in [*garbage, compacted.ledger])
        told = await elsewhere.restore(owner)
        assert bool(told.notes) == (kept == "bookies"), told.notes
        monkeypatch.setattr("region_node.compaction.compacted_view.ledger_metadata", looked_at)
        restored = await owner.open()
        view = restored.compaction().view
        await settled(owner)
        await elsewhere.untouched(owner)
        found = [row[1:] for row in await rows_of(view)]
        assert latest(found) == latest(rows) and (kept == "bookies" or set(found) == latest(rows))
        fresh = made_up(random.Random(9), 15, len(rows))
        assert await owner.publish(fresh)
        assert await owner.compact() == "SUCCESS", restored.compaction().error
        await settled(owner)
        assert {row[1:] for row in await rows_of(view)} == latest(rows + fresh)
        assert view.compacted is not None and keys.ledger(view.compacted.ledger) not in elsewhere.ledgers
        assert view.compacted.ledger > compacted.ledger
        await elsewhere.untouched(owner)
        await restored.truncate()
        assert restored._compactor is not None

        async def beside() -> list[int]:
            return (await restored._compactor.stored(TOPIC))[1]

        await owner.broker.factory.delete(TOPIC, beside)
        await elsewhere.untouched(owner)
        assert not {keys.ledger(number) for number in read} & set(elsewhere.ledgers)
        assert {key: objects.get(key) for key in kept_objects} == kept_objects, "another region's objects"

    with Simulation(seed="restored") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


@pytest.mark.parametrize("step", ["deleted", "truncated", "compacted"])
def test_a_restored_topic_that_goes_at_once_takes_no_other_ledger_along(step: str) -> None:
    async def main() -> None:
        await region.start()
        objects: dict[str, bytes] = {}
        lost = TieredOwner(region, sim, objects)
        topic = await lost.open()
        assert await lost.publish([("a", "1"), ("b", "2"), ("a", "3")])
        assert await lost.compact() == "SUCCESS"
        await topic.ledger.roll_over()
        await lost.tiered()
        compacted = topic.compaction().view.compacted
        assert compacted is not None and compacted.offloaded
        lost.broker.factory.abandon()
        elsewhere = Elsewhere(sim, objects)
        owner = await elsewhere.begin({compacted.ledger: compacted.entries})
        await elsewhere.restore(owner)
        restored = await owner.open()
        assert restored._compactor is not None
        if step == "truncated":
            await restored.truncate()
        elif step == "compacted":
            assert await owner.publish([("a", "4")]) and await owner.compact() == "SUCCESS"
        numbers = (await restored._compactor.stored(TOPIC))[1]
        assert compacted.ledger not in numbers
        await owner.broker.factory.delete(TOPIC, partial(asyncio.sleep, 0, numbers))
        await settled(owner)
        await elsewhere.untouched(owner)

    with Simulation(seed="gone at once") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


@pytest.mark.parametrize("seed", range(15))
def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(seed: int) -> None:
    rng = random.Random(seed)
    rows: list[Row] = []
    objects: dict[str, bytes] = {}

    async def life(machine: Machine) -> None:
        owners.append(TieredOwner(region, sim, objects))

    async def open_one(number: int) -> tuple[Machine, TieredOwner]:
        machine = sim.machine(f"broker-{number}")
        await machine.start(life)
        await machine.ask(owners[-1].open)
        return machine, owners[-1]

    async def check(machine: Machine, owner: TieredOwner) -> None:
        found = await machine.ask(rows_of, owner.topic.compaction().view)
        assert latest([row[1:] for row in found]) == latest(rows), "what is the latest of its key is there"
        cursor = owner.topic.ledger.cursors.get(CURSOR)
        compacted = read_properties(cursor.properties)[0] if cursor is not None else None
        if compacted is not None and compacted.offload is not None and compacted.offload.state != OffloadState.BEGUN:
            assert compacted.ledger in compacted_objects(objects, set())

    async def busy(owner: TieredOwner) -> None:
        while True:
            owner.tiering.tick()
            await asyncio.sleep(0.02)

    async def main() -> None:
        await region.start()
        for number in range(5):
            machine, owner = await open_one(number)
            await check(machine, owner)
            machine.run(lambda: asyncio.ensure_future(busy(owner)))  # noqa: B023
            for _ in range(rng.randrange(1, 4)):
                fresh = made_up(rng, rng.randrange(1, 30), len(rows))
                if await machine.ask(owner.publish, fresh):
                    rows.extend(fresh)
                if owner.topic.compaction().status != "RUNNING":
                    machine.run(owner.topic.compact)
                await asyncio.sleep(rng.choice([0.0, 0.02, 0.1, 0.3]) * rng.random() * 2)
            if rng.random() < 0.6:
                machine.kill()
            # else it goes on, and is fenced by the next
        machine, owner = await open_one(5)
        await asyncio.sleep(30)  # zombies have ended
        await check(machine, owner)
        await machine.ask(owner.compact)
        await machine.ask(settled, owner)
        await machine.ask(owner.tiered)
        await check(machine, owner)
        assert await ledgers_without_topic(EmbeddedStore(region.machine)) == set(), "no local copy is left"
        collector = owner.tiering.collector
        assert collector is not None
        await machine.ask(collector.sweep)
        await machine.ask(collector.sweep)
        compacted = owner.topic.compaction().view.compacted
        wanted = {compacted.ledger} if compacted is not None and compacted.ledger >= 0 else set()
        assert compacted_objects(objects, log_ledgers(owner)) == wanted
        await check(machine, owner)

    with Simulation(seed=f"crash-{seed}") as sim:
        owners: list[TieredOwner] = []
        region = Region(sim)
        sim.run(main(), limit_s=3600)
