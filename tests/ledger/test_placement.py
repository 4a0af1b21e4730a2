"""Placement: racks first, then free space, and never a refusal because of either."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from storage.ledger.placement import Candidate, choose
from tests.ledger.test_ledger import Writer, scenario
from tests.managed_ledger.world import Region, run_of


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
    assert {tuple(sorted(choose(named("", "", "x"), 2, [""], rng))) for _ in range(100)} == {("b0", "b1"), ("b0", "b2"), ("b1", "b2")}


def test_a_suspect_is_last_even_in_a_rack_of_its_own() -> None:
    rng = random.Random(1)
    candidates = [Candidate("a", "x"), Candidate("b", "x"), Candidate("c", "y", suspicious=True)]
    for _ in range(50):
        assert sorted(choose(candidates, 2, (), rng)) == ["a", "b"]
    assert "c" in choose(candidates, 3, (), rng)


def test_more_free_space_is_chosen_more_often_but_not_always() -> None:
    rng = random.Random(1)
    candidates = [Candidate("small", free_bytes=1), Candidate("double", free_bytes=2), Candidate("huge", free_bytes=10_000), Candidate("unknown")]
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
            assert {racks[b] for b in handle.metadata.fragments[-1][1]} == {"x", "y"} and first not in handle.metadata.fragments[-1][1]
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
