"""Offsets of groups on their way to the metadata: what is answered is stored, whoever else writes and whatever fails;
many commits are few writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, Put
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import HeliographError, NotAllowed, VersionConflict
from region_node.faces.kafka.groups import committed_offsets
from region_node.faces.kafka.groups.committed_offsets import Committed, Row, decode, encode, size_of
from region_node.faces.kafka.groups.offset_commits import Commits
from region_node.runtime.logged_tasks import logged_tasks
from tests.storage.managed_ledger.flaky_store import FlakyStore

GROUPS = ("one", "two/β")


async def stored(machine: KvMachine, group: str) -> dict[tuple[str, int], Row]:
    found = Committed(EmbeddedStore(machine), group)
    await found.load()
    return found.rows


@pytest.mark.parametrize("seed", range(60))
def test_what_is_answered_is_stored(seed: int) -> None:
    """Two brokers believe that they coordinate the same groups; each partition has one member that commits, through one
    or the other.
    """
    with Simulation(seed) as sim:
        rng, machine = sim.rng("commits"), KvMachine()
        trouble = rng.choice([0.0, 0.1])
        brokers = []
        for number in range(2):
            store = FlakyStore(machine, random.Random(f"{seed}/{number}"), trouble=trouble)
            groups = {group: Committed(store, group) for group in GROUPS}
            brokers.append((Commits(store, logged_tasks().spawn), groups))
        answered = 0

        async def member(group: str, partition: int) -> None:
            nonlocal answered
            key, sure = (f"topic-{partition % 2}", partition * 100), -1  # some share a key of the metadata
            for offset in range(8):
                commits, groups = brokers[0] if rng.random() < 0.8 else brokers[1]
                try:
                    await commits.put(groups[group], {key: Row(offset, -1, "ä" * offset, int(sim.now() * 1000) + 1)})
                except HeliographError:
                    pass  # it may be written, or not
                else:
                    sure, answered = offset, answered + 1
                found = (await stored(machine, group)).get(key)
                assert (-1 if found is None else found.offset) >= sure, f"partition {partition} of {group}"
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() / 50)

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                for group in GROUPS:
                    for partition in range(6):
                        tasks.create_task(member(group, partition))

        sim.run(main(), limit_s=600)
        assert answered == 96 or trouble
        for committed in (each for _, groups in brokers for each in groups.values()):
            assert committed.size_bytes == size_of(committed.rows.values())


def test_many_commits_are_few_writes() -> None:
    with Simulation("few") as sim:
        machine = KvMachine()
        store = FlakyStore(machine, sim.rng("store"))
        commits, committed = Commits(store, logged_tasks().spawn), Committed(store, "g")

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                for partition in range(500):
                    tasks.create_task(commits.put(committed, {("t", partition): Row(partition, -1, "", 1)}))
            assert commits.commits == 500 and commits.writes <= 3
            assert {key[1]: row.offset for key, row in (await stored(machine, "g")).items()} == {
                index: index for index in range(500)
            }

        sim.run(main(), limit_s=60)


class Racing(EmbeddedStore):
    """Somebody else writes each key right before."""

    async def txn(self, ops: Sequence[Op]) -> int:
        for op in ops:
            assert isinstance(op, Put)
            await super().txn([Put(op.key, encode({9: Row(1, -1, "", 1)}))])
        return await super().txn(ops)


def test_who_loses_again_and_again_is_told() -> None:
    async def main() -> None:
        store = Racing()
        with pytest.raises(HeliographError):
            await Commits(store, logged_tasks().spawn).put(Committed(store, "g"), {("t", 0): Row(5, -1, "", 1)})
        assert set(await stored(store.machine, "g")) == {("t", 9)}

    asyncio.run(main())


def test_a_commit_that_cannot_be_written_is_not_answered_as_if_it_were() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        commits, committed = Commits(store, logged_tasks().spawn), Committed(store, "g")
        await commits.put(committed, {("t", 0): Row(5, -1, "", 1)})
        store.unavailable = "gone"
        with pytest.raises(HeliographError):
            await commits.put(committed, {("t", 0): Row(9, -1, "", 2)})
        store.unavailable = None
        assert committed.rows["t", 0].offset == 5 and (await stored(store.machine, "g"))["t", 0].offset == 5
        await commits.put(committed, {("t", 0): Row(9, -1, "", 3)})
        assert (await stored(store.machine, "g"))["t", 0].offset == 9

    asyncio.run(main())


def test_a_commit_that_is_too_large_for_one_write_keeps_nobody_else_from_committing() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        commits, groups = Commits(store, logged_tasks().spawn), [Committed(store, f"g{n}") for n in range(3)]
        many = {(f"topic-{number}", 0): Row(number, -1, "", 1) for number in range(1_100)}
        wide = {("t", number): Row(number, -1, "m" * 4_096, 1) for number in range(256)}  # more than a value may have
        results = await asyncio.gather(
            commits.put(groups[0], many),
            commits.put(groups[1], {("t", 0): Row(7, -1, "", 1)}),
            commits.put(groups[2], {**wide, ("u", 0): Row(8, -1, "", 1)}),
            *(commits.put(groups[1], {(f"u{n}", 0): Row(7, -1, "m" * 4_000, 1)}) for n in range(300)),
            return_exceptions=True,
        )
        assert [type(result) for result in results if result is not None] == [NotAllowed]
        assert isinstance(results[2], NotAllowed)
        assert await stored(store.machine, "g0") == many and len(await stored(store.machine, "g1")) == 301
        assert set(await stored(store.machine, "g2")) == {("u", 0)}
        assert commits.writes < 20

    asyncio.run(main())


def test_a_chunk_that_no_write_can_have_holds_up_no_other_group() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        commits, wide = Commits(store, logged_tasks().spawn), Committed(store, "wide")
        small = [commits.put(Committed(store, f"g{n}"), {("t", 0): Row(7, -1, "", 1)}) for n in range(50)]
        large = commits.put(wide, {("t", number): Row(number, -1, "m" * 4_096, 1) for number in range(256)})
        results = await asyncio.gather(large, *small, return_exceptions=True)
        assert isinstance(results[0], NotAllowed) and not any(results[1:]) and not wide.rows
        assert commits.writes == 1

    asyncio.run(main())


def test_a_group_that_another_broker_has_written_keeps_few_others_from_going_together() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        commits, groups = Commits(store, logged_tasks().spawn), [Committed(store, f"g{n}") for n in range(128)]
        await Committed(store, "g77").put({("t", 1): Row(3, -1, "", 1)})
        await asyncio.gather(*(commits.put(group, {("t", 0): Row(7, -1, "", 2)}) for group in groups))
        assert set(await stored(store.machine, "g77")) == {("t", 0), ("t", 1)}
        assert {(await stored(store.machine, f"g{n}"))["t", 0].offset for n in range(128)} == {7}
        assert commits.writes == 16

    asyncio.run(main())


def test_roles_take_turns() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        commits = Commits(store, logged_tasks().spawn)
        large = {("t", number): Row(number, -1, "m" * 4_000, 1) for number in range(200)}

        async def done(name: str, rows: dict[tuple[str, int], Row], who: str) -> int:
            await commits.put(Committed(store, name), rows, who)
            return commits.writes

        flood = [done(f"a{number}", large, "ann") for number in range(10)]
        others = [done(f"b{number}", {("t", 0): Row(7, -1, "", 1)}, "bob") for number in range(100)]
        after = await asyncio.gather(*flood, *others)
        assert max(after[10:]) <= 2 and max(after) == 5, "the second write is under way when who was in the first hears"

    asyncio.run(main())


def test_a_coordinator_that_stood_still_writes_nothing_over_what_its_successor_has_committed_since() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        old, new = Committed(store, "g"), Committed(store, "g")
        commits = Commits(store, logged_tasks().spawn)
        await commits.put(old, {("t", 0): Row(1, -1, "", 1_000)})
        await new.load()
        await new.put({("t", 0): Row(9, -1, "", 3_000)})
        first = asyncio.create_task(
            commits.put(old, {("t", 0): Row(5, -1, "", 2_000), ("t", 1): Row(6, -1, "", 2_000)})
        )
        await asyncio.sleep(0)
        waiting = asyncio.create_task(commits.put(old, {("t", 0): Row(7, -1, "", 2_500)}))
        for late in (first, waiting):
            with pytest.raises(VersionConflict):
                await late
        found = {key: row.offset for key, row in (await stored(store.machine, "g")).items()}
        assert found == {("t", 0): 9, ("t", 1): 6} and old.rows["t", 0].offset == 9
        await commits.put(old, {("t", 0): Row(5, -1, "", 2_800)})  # who asks by now knows of the later one
        assert (await stored(store.machine, "g"))["t", 0].offset == 5

    asyncio.run(main())


def test_what_is_known_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store, decoded = EmbeddedStore(), list[int]()
        one, other = Committed(store, "g"), Committed(store, "g")
        rows = {("t", index): Row(index, -1, "", 1) for index in range(600)}
        await one.put(rows)
        await other.load()
        assert other.rows == rows

        def counted(blob: bytes) -> dict[int, Row]:
            decoded.append(len(decode(blob)))
            return decode(blob)

        monkeypatch.setattr(committed_offsets, "decode", counted)
        changes = other.key_changes
        await other.load()
        assert not decoded and other.key_changes == changes, "nothing has changed"
        await one.put({("t", 300): Row(7, -1, "", 2)})
        await other.load()
        assert decoded == [256] and other.rows[("t", 300)].offset == 7 and other.key_changes == changes
        await one.delete([("t", 599), ("t", 3)])
        await one.put({("u", 0): Row(8, -1, "", 2)})
        await other.load()
        assert other.rows == one.rows and len(other.rows) == 599 and other.key_changes > changes
        await one.delete([("u", 0)])
        changes = other.key_changes
        await other.load()
        assert other.rows == one.rows and ("u", 0) not in other.rows and other.key_changes > changes
        decoded.clear()
        fresh = Committed(store, "g")
        await fresh.read([("t", 300)])
        assert decoded == [256] and fresh.rows[("t", 300)].offset == 7, "of one partition its chunk is read"

    asyncio.run(run())


def test_others_have_their_turn_while_offsets_are_read() -> None:
    async def run() -> None:
        store, turns = EmbeddedStore(), [0]
        one, other = Committed(store, "g"), Committed(store, "g")
        await one.put({(f"t{number}", index): Row(1, -1, "", 1) for number in range(8) for index in range(200)})

        async def count() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        await other.load()
        task.cancel()
        assert turns[0] >= 6 and len(other.rows) == 1600

    asyncio.run(run())


def test_what_is_committed_while_it_is_read_stays() -> None:
    class Late(EmbeddedStore):
        """Somebody commits between what was read, and its answer."""

        between: Coroutine[Any, Any, None] | None = None

        async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
            rows = await super().range(start, end, limit=limit)
            if (work := self.between) is not None:
                self.between = None
                await work
            return rows

    async def run() -> None:
        store = Late()
        one = Committed(store, "g")
        await one.put({("t", 0): Row(1, -1, "", 1)})
        store.between = one.put({("t", 0): Row(2, -1, "", 2)})
        await one.load()
        assert one.rows == {("t", 0): Row(2, -1, "", 2)}
        await one.put({("t", 1): Row(3, -1, "", 3)})
        assert (await stored(store.machine, "g")) == {("t", 0): Row(2, -1, "", 2), ("t", 1): Row(3, -1, "", 3)}

    asyncio.run(run())
