"""Level 2: compaction over a real managed ledger, with brokers that die at any moment of it, or are replaced and go
on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from geo_tests.sim.simulation import Machine, Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op
from heliograph.model.errors import AlreadyExists, OutcomeUnknown
from heliograph.model.ledger_metadata import OffloadRecord
from heliograph.wire.run import Run
from local_meta.keys import LEDGERS
from region_node.compaction.compacted_view import CURSOR, properties_of, read_properties
from region_node.compaction.compacted_writer import delete_ledgers
from region_node.compaction.settings import CompactorSettings
from replicator.log.transaction_buffer import ABORT, COMMIT, TransactionBuffer, marker_run
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.sealing.cipher import WITH_HEADER
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
from tests.region_node.faces.pulsar.codec import entry
from tests.storage.managed_ledger.world import Region, until
from tests.storage.sealing.world import Config, leaks


def test_latest_of_each_key_then_the_log_at_the_same_positions() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim, keys_max=4)
        topic = await owner.open()
        rng = random.Random(1)
        rows: list[Row] = []
        for turn in range(4):
            for _ in range(6):
                fresh = made_up(rng, 20, len(rows))
                assert await owner.publish(fresh)
                rows += fresh
            where = {value: position for position, _, value in await rows_of(topic.ledger) if value}
            assert await owner.compact() == "SUCCESS", topic.compaction().error
            found = await rows_of(topic.compaction().view)
            assert {row[1:] for row in found} == latest(rows)
            assert [row[0] for row in found] == sorted(where[value] for _, _, value in found)
            assert len(await ledgers_without_topic(owner.broker.meta)) == (1 if found else 0), f"turn {turn}"
        assert len(await rows_of(topic.ledger)) == len(rows)
        tail = made_up(rng, 5, len(rows))
        await owner.publish(tail)
        assert [row[1:] for row in await rows_of(topic.compaction().view)][-5:] == tail
        # every position of the topic leads to the first entry that is left at or behind it
        all_of_it = [row[0] for row in await rows_of(topic.compaction().view)]
        for position, _, _ in await rows_of(topic.ledger):
            pieces = await topic.compaction().view.read(position, 1, 1)
            assert pieces[0][:2] == next(at for at in all_of_it if at >= position)

    with Simulation(seed="compaction") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_what_transactions_published_counts_once_it_is_committed() -> None:
    def part(number: int, key: str, value: str) -> Run:
        made = entry(value.encode(), partition_key=key)
        return Run([made], [len(made)], transaction=(0, number))

    async def main() -> None:
        await region.start()
        owner = Owner(region, sim)
        owner.transactions = TransactionBuffer()
        topic = await owner.open()
        assert await owner.publish([("a", "1"), ("b", "1"), ("c", "1")])
        for number, key, action in ((1, "a", ABORT), (2, "b", COMMIT)):
            await owner.transact(part(number, key, f"by {number}"))
            await owner.transact(marker_run((0, number), action, number))
        await owner.transact(part(3, "c", "by 3"))
        assert await owner.publish([("b", "behind")])
        assert await owner.compact() == "SUCCESS", topic.compaction().error
        view = topic.compaction().view
        assert [row[1:] for row in await rows_of(view)] == [("a", "1"), ("c", "1"), ("b", "by 2")], (
            "up to the open one, without the aborted one"
        )
        await owner.transact(marker_run((0, 3), COMMIT, 4))
        assert await owner.compact() == "SUCCESS", topic.compaction().error
        assert [row[1:] for row in await rows_of(view)] == [("a", "1"), ("c", "by 3"), ("b", "behind")]

    with Simulation(seed="transactions") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_trimming_takes_nothing_that_is_not_compacted() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim)
        topic = await owner.open()
        rows = made_up(random.Random(2), 200, 0)
        for at in range(0, 100, 20):
            assert await owner.publish(rows[at : at + 20])
        assert await owner.compact() == "SUCCESS"
        topic.ledger.set_retention(0, 0)
        for at in range(100, 200, 20):
            assert await owner.publish(rows[at : at + 20])
        await asyncio.sleep(5)
        assert len(await rows_of(topic.ledger)) < 200
        found = {row[1:] for row in await rows_of(topic.compaction().view)}
        assert latest(rows) <= found
        assert await owner.compact() == "SUCCESS"
        assert {row[1:] for row in await rows_of(topic.compaction().view)} == latest(rows)
        await topic.truncate()
        assert await rows_of(topic.compaction().view) == []
        await settled(owner)
        assert await ledgers_without_topic(owner.broker.meta) == set()

    with Simulation(seed="trimming") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_a_compacted_ledger_is_sealed_and_says_that_all_of_it_is() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim, sealing=await Config().sealing(region))
        topic = await owner.open()
        await owner.publish([("a", "secret1"), ("a", "secret2"), ("b", "secret3")])
        assert await owner.compact() == "SUCCESS", topic.compaction().error
        compacted = topic.compaction().view.compacted
        assert compacted is not None
        metadata = await ledger_metadata(owner.broker.factory.context, compacted.ledger)
        assert metadata.seal_form == WITH_HEADER and not leaks(region, "secret")
        assert [row[1:] for row in await rows_of(topic.compaction().view)] == [("a", "secret2"), ("b", "secret3")]

    with Simulation(seed="sealed") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_a_compacted_ledger_that_is_lost_leaves_the_log() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim)
        topic = await owner.open()
        await owner.publish([("a", "1"), ("a", "2"), ("b", "3")])
        assert await owner.compact() == "SUCCESS"
        compacted = topic.compaction().view.compacted
        assert compacted is not None
        await delete_ledgers(
            owner.broker.factory.context, owner.broker.meta, [compacted.ledger]
        )  # as a restored region, whose metadata names what is gone
        topic.compaction().view._metadata = None
        assert [row[2] for row in await rows_of(topic.compaction().view)] == ["1", "2", "3"]

    with Simulation(seed="lost") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


@pytest.mark.parametrize("seed", range(60))
def test_a_crash_at_any_step_changes_nothing_or_all(seed: int) -> None:
    rng = random.Random(seed)
    rows: list[Row] = []

    async def life(machine: Machine) -> None:
        owners.append(Owner(region, sim, keys_max=rng.choice([3, 1000])))

    async def open_one(number: int) -> tuple[Machine, Owner]:
        machine = sim.machine(f"broker-{number}")
        await machine.start(life)
        await machine.ask(owners[-1].open)
        return machine, owners[-1]

    async def check(machine: Machine, owner: Owner) -> None:
        """Nothing is lost: what is the latest of its key is there, or a later one is; and nothing is left over."""
        view = owner.topic.compaction().view
        found = await machine.ask(rows_of, view)
        values = {row[1:] for row in found}
        assert latest(rows) <= values, f"lost {latest(rows) - values}"
        assert latest([row[1:] for row in found]) == latest(rows)
        await machine.ask(settled, owner)
        cursor = owner.topic.ledger.cursors.get(CURSOR)
        compacted, garbage = read_properties(cursor.properties) if cursor is not None else (None, [])
        named = {compacted.ledger} if compacted is not None and compacted.ledger >= 0 else set()
        assert await ledgers_without_topic(EmbeddedStore(region.machine)) == named | {g for g in garbage if g in named}

    async def main() -> None:
        await region.start()
        for number in range(6):
            machine, owner = await open_one(number)
            await check(machine, owner)
            for _ in range(rng.randrange(1, 5)):
                fresh = made_up(rng, rng.randrange(1, 30), len(rows))
                if await machine.ask(owner.publish, fresh):
                    rows.extend(fresh)
            machine.run(owner.topic.compact)
            if rng.random() < 0.2:
                bookie = rng.choice(list(region.bookies.values()))
                bookie.crash()
                await asyncio.sleep(rng.random())
                bookie.start()
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 1.0]) * rng.random() * 2)
            if rng.random() < 0.6:
                machine.kill()
            # else it goes on, and is fenced by the next
        machine, owner = await open_one(6)
        await asyncio.sleep(20)  # zombies have ended
        await check(machine, owner)
        machine.run(owner.topic.compact)
        await until(lambda: owner.topic.compaction().status != "RUNNING")
        assert owner.topic.compaction().status == "SUCCESS", owner.topic.compaction().error
        assert {row[1:] for row in await machine.ask(rows_of, owner.topic.compaction().view)} == latest(rows)
        await check(machine, owner)

    with Simulation(seed=f"crash-{seed}") as sim:
        owners: list[Owner] = []
        region = Region(sim)
        sim.run(main(), limit_s=3600)


def test_what_is_published_meanwhile_is_not_lost() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim, keys_max=2, cache_bytes=4096)
        topic = await owner.open()
        rng = random.Random(3)
        rows = made_up(rng, 100, 0)
        for at in range(0, 100, 20):
            await owner.publish(rows[at : at + 20])
        topic.compact()
        while topic.compaction().status == "RUNNING":
            fresh = made_up(rng, 3, len(rows))
            assert await owner.publish(fresh)
            rows += fresh
        assert len(rows) > 110, "nothing was published while it ran"
        found = [row[1:] for row in await rows_of(topic.compaction().view)]
        assert latest(rows) <= set(found) and latest(found) == latest(rows)

    with Simulation(seed="meanwhile") as sim:
        region = Region(sim, delay_s=0.05)
        sim.run(main(), limit_s=600)


def test_the_log_is_held_from_the_first_moment() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim, keys_max=2, cache_bytes=4096)
        topic = await owner.open()
        await topic.ledger.open_cursor("slow", (-1, -1))
        topic.ledger.set_retention(0, 0)
        rows = made_up(random.Random(4), 300, 0)
        for at in range(0, 300, 20):
            await owner.publish(rows[at : at + 20])
        topic.compact()
        await until(lambda: CURSOR in topic.ledger.cursors)
        await topic.ledger.delete_cursor("slow")  # nobody else wants the log any more
        await until(lambda: topic.compaction().status != "RUNNING")
        assert topic.compaction().status == "SUCCESS", topic.compaction().error
        assert {row[1:] for row in await rows_of(topic.compaction().view)} == latest(rows)

    with Simulation(seed="held") as sim:
        region = Region(sim, delay_s=0.05)
        sim.run(main(), limit_s=600)


def test_what_an_earlier_owner_left_is_swept_while_a_compaction_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim)
        topic = await owner.open()
        assert await owner.publish([("a", "1"), ("b", "2"), ("a", "3")])
        cursor = await topic.ledger.open_cursor(CURSOR, (-1, -1), properties=properties_of(None, [999]))
        compactor, held = topic._compactor, asyncio.Event()
        assert compactor is not None
        delete = compactor._delete

        async def slow(ledgers: list[int]) -> None:
            await held.wait()
            await delete(ledgers)

        moved = cursor.ack_cumulative

        def to_horizon(position: tuple[int, int]) -> None:
            moved(position)
            held.set()

        monkeypatch.setattr(compactor, "_delete", slow)
        monkeypatch.setattr(cursor, "ack_cumulative", to_horizon)
        assert await owner.compact() == "SUCCESS"
        await settled(owner)
        await cursor.flushed()
        compacted = topic.compaction().view.compacted
        assert compacted is not None and await ledgers_without_topic(owner.broker.meta) == {compacted.ledger}
        assert await compactor.stored(TOPIC) == (compacted, [compacted.ledger])

    with Simulation(seed="swept") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_a_truncation_is_not_undone_by_an_offload_or_a_compaction_meanwhile() -> None:
    async def main() -> None:
        await region.start()
        owner = Owner(region, sim)
        topic = await owner.open()
        assert await owner.publish([("a", "1"), ("b", "2"), ("a", "3")])
        assert await owner.compact() == "SUCCESS"
        compacted, compactor = topic.compaction().view.compacted, topic._compactor
        assert compacted is not None and compactor is not None
        truncating = asyncio.ensure_future(topic.truncate())
        await asyncio.sleep(0.001)
        assert not truncating.done()
        assert not await compactor.set_offload(topic, compacted.ledger, OffloadRecord("ab", "us"))
        with pytest.raises(AlreadyExists, match="is being truncated"):
            topic.compact()
        await topic.truncate()  # as often as anybody asks
        await truncating
        await settled(owner)
        await topic.ledger.cursors[CURSOR].flushed()
        assert topic.compaction().view.compacted is None and await compactor.stored(TOPIC) == (None, [])
        assert await rows_of(topic.compaction().view) == []
        assert await owner.publish([("a", "4")]) and await owner.compact() == "SUCCESS"
        assert [row[1:] for row in await rows_of(topic.compaction().view)] == [("a", "4")]

    with Simulation(seed="truncated") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)


class Pausing(EmbeddedStore):
    """Stops at one write, before or after it is carried out, until it is told to go on; what was carried out is then
    said to be unknown.
    """

    def __init__(self, region: Region, wanted: str, *, after: bool) -> None:
        super().__init__(region.machine)
        self.wanted, self.after = wanted, after
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def _stop(self, what: str) -> bool:
        if self.wanted not in what or self.reached.is_set():
            return False
        self.reached.set()
        await self.go_on.wait()
        return True

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        if not self.after:
            await self._stop(key)
        return await super().put(key, value, expected=expected, lease=lease)

    async def txn(self, ops: Sequence[Op]) -> int:
        version = await super().txn(ops)
        if self.after and await self._stop(str(ops)):
            raise OutcomeUnknown("the answer was lost")
        return version


@pytest.mark.parametrize("after", [False, True])
def test_an_owner_that_is_replaced_neither_leaves_a_ledger_nor_takes_one_away(after: bool) -> None:
    """Replaced just before it makes its ledger, or when its change has landed and it cannot know."""

    async def first(machine: Machine) -> None:
        store = Pausing(region, "CompactedThrough", after=after)
        stores.append(store)
        owners.append(Owner(region, sim, store))
        await owners[0].open()

    async def second(machine: Machine) -> None:
        owners.append(Owner(region, sim))
        await owners[1].open()

    async def main() -> None:
        await region.start()
        machine, other = sim.machine("first"), sim.machine("second")
        await machine.start(first)
        store, owner = stores[0], owners[0]
        rows = [("a", "1"), ("b", "2"), ("a", "3")]
        assert await machine.ask(owner.publish, rows)
        if not after:
            store.wanted = LEDGERS
        machine.run(owner.topic.compact)
        await store.reached.wait()
        await other.start(second)
        await asyncio.sleep(1)
        store.go_on.set()
        await asyncio.sleep(30)
        view = owners[1].topic.compaction().view
        assert {row[1:] for row in await other.ask(rows_of, view)} == (latest(rows) if after else set(rows))
        assert len(await ledgers_without_topic(EmbeddedStore(region.machine))) == int(after)

    with Simulation(seed=f"replaced-{after}") as sim:
        owners: list[Owner] = []
        stores: list[Pausing] = []
        region = Region(sim)
        sim.run(main(), limit_s=600)


def test_messages_without_a_key_stay_where_that_is_set() -> None:
    async def main() -> None:
        await region.start()
        kept: list[tuple[str, ...]] = []
        for retain in (False, True):
            owner = Owner(region, sim)
            owner.settings = CompactorSettings(retain_null_key=retain)
            topic = await owner.open()
            assert await owner.publish([("k", "old"), ("k", "new"), (None, "none")])
            assert await owner.compact() == "SUCCESS", topic.compaction().error
            kept.append(tuple(sorted(value for _, _, value in await rows_of(topic.compaction().view))))
        assert kept == [("new",), ("new", "none")], "what is compacted away does not come back"

    with Simulation(seed="null keys") as sim:
        region = Region(sim)
        sim.run(main(), limit_s=600)
