"""Placement: racks first, then free space, and never a refusal because of either."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from heliograph.model.errors import NotEnoughBookies
from heliograph.model.ledger_metadata import ANYWHERE, Affinity, LedgerMetadata
from local_meta import keys
from storage.ledger.bookies.bookie_labels import Labels
from storage.ledger.bookies.placement import Candidate, adheres, choose
from storage.ledger.recovery.ledger_recovery import recover_ledger
from storage.ledger.writing.ledger_creation import create_ledger
from storage.ledger.writing.ledger_handle import LedgerHandle
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, run_of, until


def named(*labels: str, free: int = 0) -> list[Candidate]:
    return [Candidate(f"b{index}", label, free) for index, label in enumerate(labels)]


@pytest.mark.parametrize("seed", range(50))
def test_no_rack_twice_while_there_are_others(seed: int) -> None:
    rng = random.Random(seed)
    candidates = named(*(rng.choice("xyz") for _ in range(6)))
    rack = {c.bookie: c.rack for c in candidates}
    for count in range(1, 7):
        chosen = choose(candidates, count, (), rng)
        assert len(set(chosen)) == len(chosen) == count
        assert len({rack[b] for b in chosen}) == min(count, len(set(rack.values())))
    beside = rng.choice("xyz")
    (one,) = choose(candidates, 1, [beside], rng)
    assert rack[one] != beside or set(rack.values()) == {beside}


def test_too_few_racks_or_candidates_are_no_refusal() -> None:
    rng = random.Random(1)
    assert len(choose(named("x", "x", "x"), 2, ["x"], rng)) == 2
    assert len(choose(named("x", "y"), 3, (), rng)) == 2
    assert choose([], 1, (), rng) == []


def test_without_labels_each_is_a_rack_of_its_own() -> None:
    rng = random.Random(1)
    assert {tuple(sorted(choose(named("", "", "x"), 2, [""], rng))) for _ in range(100)} == {
        ("b0", "b1"),
        ("b0", "b2"),
        ("b1", "b2"),
    }


def test_a_suspect_is_last_even_in_a_rack_of_its_own() -> None:
    rng = random.Random(1)
    candidates = [Candidate("a", "x"), Candidate("b", "x"), Candidate("c", "y", suspicious=True)]
    for _ in range(50):
        assert sorted(choose(candidates, 2, (), rng)) == ["a", "b"]
    assert "c" in choose(candidates, 3, (), rng)


def test_more_free_space_is_chosen_more_often_but_not_always() -> None:
    rng = random.Random(1)
    candidates = [
        Candidate("small", free_bytes=1),
        Candidate("double", free_bytes=2),
        Candidate("huge", free_bytes=10_000),
        Candidate("unknown"),
    ]
    seen = Counter(choose(candidates, 1, (), rng)[0] for _ in range(6000))
    assert 400 < seen["small"] < 600 and 400 < seen["unknown"] < 600
    assert 850 < seen["double"] < 1150 and 3700 < seen["huge"] < 4300


def test_ensembles_and_spares_keep_to_the_racks_that_bookies_say() -> None:
    async def work(region: Region, writer: Writer) -> None:
        racks = {name: "xy"[index % 2] for index, name in enumerate(region.bookies)}
        for name, bookie in region.bookies.items():
            await bookie.register(writer.context.meta, rack=racks[name])
        for _ in range(10):
            handle = await writer.open()
            first, second = handle.metadata.fragments[-1][1]
            assert {racks[first], racks[second]} == {"x", "y"}
            handle.append_run(run_of("a"))
            await writer.reach(0)
            region.bookies[first].crash()
            handle.append_run(run_of("b"))
            await writer.reach(1)
            assert {racks[b] for b in handle.metadata.fragments[-1][1]} == {
                "x",
                "y",
            } and first not in handle.metadata.fragments[-1][1]
            region.bookies[first].start()
            await region.bookies[first].register(writer.context.meta, rack=racks[first])

    scenario(work, bookies=6)


def test_news_of_free_space_alone_does_not_clear_a_suspicion() -> None:
    async def work(region: Region, writer: Writer) -> None:
        pool, bookie = writer.context.pool, region.bookies["b0"]
        pool.suspect("b0")
        await bookie.register(writer.context.meta, free_bytes=5)
        await writer.context.meta.get("/x")
        assert pool.spare(["b1", "b2"]) is None
        await bookie.register(writer.context.meta, free_bytes=5)  # as after a restart
        await writer.context.meta.get("/x")
        assert pool.spare(["b1", "b2"]) == "b0"

    scenario(work)


def test_a_bookie_of_an_earlier_version_than_the_region_is_read_from_and_gets_nothing_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(region: Region, writer: Writer) -> None:
        pool, meta, level = writer.context.pool, writer.context.meta, 5
        pool._region_level = lambda: level
        for name, spoken in (("b0", 6), ("b1", 6), ("b2", 5)):
            await region.bookies[name].register(meta, level=spoken)
        await meta.get("/x")
        assert pool.writable() == ["b0", "b1", "b2"] and not caplog.records
        level = 6
        assert pool.writable() == ["b0", "b1"] and pool.registered("b2") and pool.spare(["b0", "b1"]) is None
        with pytest.raises(NotEnoughBookies):
            pool.pick(3)
        await region.bookies["b2"].register(meta, level=5)
        await meta.get("/x")
        assert [vars(record)["bookie"] for record in caplog.records if record.message == "bookie.older"] == ["b2"]
        await region.bookies["b2"].register(meta, level=6)
        await meta.get("/x")
        assert pool.spare(["b0", "b1"]) == "b2"

    scenario(work)


async def relabelled(region: Region, writer: Writer, racks: str, groups: Sequence[str] = ()) -> dict[str, str]:
    for index, bookie in enumerate(region.bookies.values()):
        await bookie.register(writer.context.meta, rack=racks[index], group=groups[index] if groups else "")
    await asyncio.sleep(0.01)
    return dict(zip(region.bookies, racks, strict=True))


def test_very_many_that_wait_for_a_bookie_are_woken_some_at_a_time() -> None:
    async def work(region: Region, writer: Writer) -> None:
        pool, woken = writer.context.pool, list[int]()
        stops = [pool.on_change(partial(woken.append, number)) for number in range(1000)]
        pool._waiters.wake()
        assert woken == list(range(256))
        stops[999]()
        pool._waiters.wake()  # those that have not had their turn yet are called once for both
        await asyncio.sleep(0.01)
        assert woken[:999] == list(range(999)) and woken[999:] == list(range(256))

    scenario(work)


def test_what_an_operator_says_of_a_bookie_counts_above_its_own_word() -> None:
    async def work(region: Region, writer: Writer) -> None:
        pool, meta, changes = writer.context.pool, writer.context.meta, list[None]()
        await relabelled(region, writer, "xxxy", ("", "slow", "", ""))
        stop = pool.on_change(lambda: changes.append(None))
        await meta.put(keys.bookie_labels("b3"), Labels(rack="x").encode())
        await asyncio.sleep(0.01)
        assert changes and pool.rack("b3") == "x"
        with pytest.raises(NotEnoughBookies, match="racks_min is 2"):
            pool.pick(2)
        await meta.put(keys.bookie_labels("b1"), Labels(rack="z", group="fast").encode())
        await asyncio.sleep(0.01)
        assert all("b1" in pool.pick(2) for _ in range(20)), "the only one that is not on x"
        assert pool.group("b1") == "fast" and pool.pick(1, 1, Affinity(("fast",))) == ("b1",)
        with pytest.raises(NotEnoughBookies):
            pool.pick(1, 1, Affinity(("slow",)))
        await meta.put(keys.bookie_labels("b1"), b"of a later format")
        await region.bookies["b1"].register(
            meta, rack="x", group="slow"
        )  # its own word does not take the operator's back
        await asyncio.sleep(0.01)
        assert (pool.rack("b1"), pool.group("b1")) == ("z", "fast"), (
            "what was heard last holds where a value can't be read"
        )
        await meta.delete(keys.bookie_labels("b1"))
        await asyncio.sleep(0.01)
        assert (pool.rack("b1"), pool.group("b1")) == ("x", "slow")
        stop()

    scenario(work, bookies=4, racks_min=2)


def test_in_hard_mode_no_ledger_is_made_and_no_spare_taken_on_too_few_racks() -> None:
    async def work(region: Region, writer: Writer) -> None:
        racks = await relabelled(region, writer, "xxxy")
        handle = await writer.open()
        ensemble = handle.metadata.fragments[0][1]
        assert {racks[b] for b in ensemble} == {"x", "y"}
        handle.append_run(run_of("a"))
        await writer.reach(0)
        (only,) = [b for b in ensemble if racks[b] == "y"]
        region.bookies[only].crash()
        handle.append_run(run_of("b"))
        await asyncio.sleep(1.0)
        assert handle.lac == 0 and handle.metadata.fragments[-1][1] == ensemble, (
            "another x would be a spare, and is none"
        )
        await region.bookies[only].unregister(writer.context.meta)
        await asyncio.sleep(0.01)
        with pytest.raises(NotEnoughBookies, match="racks_min is 2: start bookies on other racks"):
            await writer.open()
        region.bookies[only].start()
        await region.bookies[only].register(writer.context.meta, rack="y")
        await writer.reach(1)

    scenario(work, bookies=4, racks_min=2)


def test_a_ledger_is_kept_to_its_groups_also_by_spares_and_recovery() -> None:
    async def work(region: Region, writer: Writer) -> None:
        groups = ["fast", "fast", "fast", "slow", "slow", ""]
        await relabelled(region, writer, "abcdef", groups)
        group = dict(zip(region.bookies, groups, strict=True))
        fast, both = Affinity(("fast",)), Affinity(("fast",), ("slow",))
        metadata, version = await create_ledger(writer.context, 2, 2, 2, affinity=fast)
        assert LedgerMetadata.decode(metadata.encode()) == metadata and metadata.encode()[0] == 2
        handle = LedgerHandle(writer.context, metadata, version, on_lac=lambda: None, on_failed=writer.failed.append)
        for name in "abc":
            handle.append_run(run_of(name))
            await until(lambda: handle.lac == handle.last_appended)
            lost = handle.metadata.fragments[-1][1][0]
            region.bookies[lost].crash()
            region.bookies[lost].start()
        handle.append_run(run_of("d"))
        await until(lambda: handle.lac == 3)
        assert {group[b] for _, ensemble in handle.metadata.fragments for b in ensemble} == {"fast"}
        assert (await recover_ledger(writer.context, handle.ledger)).affinity == fast
        await asyncio.sleep(130)  # until none is in quarantine
        for _ in range(10):
            (ensemble,) = [
                bookies for _, bookies in (await create_ledger(writer.context, 4, 2, 2, affinity=both))[0].fragments
            ]
            assert sorted(group[b] for b in ensemble).count("fast") == 3 and "" not in [group[b] for b in ensemble]
        with pytest.raises(NotEnoughBookies, match="of the groups none are needed"):
            await create_ledger(writer.context, 2, 2, 2, affinity=Affinity(("none",)))
        assert len((await create_ledger(writer.context, 6, 2, 2))[0].fragments[0][1]) == 6, "without an affinity: any"

    scenario(work, bookies=6)


def test_what_lies_on_too_few_racks_or_outside_of_its_groups_is_found() -> None:
    rack, group = {"a": "x", "b": "x", "c": "y", "d": ""}, {"a": "g", "b": "g", "c": "h", "d": "g"}

    def found(*ensemble: str, wanted: int = 2, affinity: Affinity = ANYWHERE, write: int = 2) -> bool:
        metadata = LedgerMetadata(
            1, write, 1, ((0, ensemble),), stride=4 if len(ensemble) > write else 0, affinity=affinity
        )
        return adheres(metadata, wanted, lambda b: rack.get(b, ""), group.get)

    assert (
        found("a", "c") and not found("a", "b") and found("a", "b", wanted=1) and found("a", "d") and found("a", "gone")
    )
    assert not found("a", "b", "c") and found("a", "c", "b", "d"), "of a striped ledger each write set"
    assert not found("a", "c", affinity=Affinity(("g",))) and found("a", "c", affinity=Affinity(("g",), ("h",)))
    assert found("a", "gone", affinity=Affinity(("g",)))
