"""A query that moves: several regions publish, links carry each origin in its order, and the query reads wherever it
likes, also a batch again.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from heliograph.client.block_reader import TopicSnapshot
from heliograph.model.coordinates import Coordinate
from heliograph.model.errors import ConfigError, MetadataUnavailable, Trimmed
from heliograph.model.positions import BEFORE_ALL
from heliograph.spark.scan.offsets import TopicPlace, Watermarks, begin, between, decode, encode, end, limited
from heliograph.spark.scan.region_moves import CoordinateRange, advanced, first_unread, plan
from heliograph.wire.run import Run
from tests.heliograph.spark.scan.moving_regions import NAMES, TOPIC, Region, World


def latest(region: Region, start: TopicPlace, max_bytes: int) -> TopicPlace:
    """As `HeliographStreamReader.latestOffset`, for one topic."""
    snapshot = region.snapshot()
    first = start.at if start.here(snapshot) else first_unread(region, snapshot, start.vector or {}, may_lose=False)
    stops = limited({TOPIC: between(snapshot, first, end(snapshot), may_lose=True)}, max_bytes)
    at = stops.get(TOPIC)
    return start if at is None else advanced(start, snapshot, at, region.vector(TOPIC, (at[0], at[1] - 1)))


def logged(place: TopicPlace) -> TopicPlace:
    """Through the checkpoint's JSON, and the same text again."""
    text = json.dumps(encode({TOPIC: place}))
    found = decode(json.loads(text))
    assert found == {TOPIC: place} and json.dumps(encode(found)) == text
    return found[TOPIC]


@pytest.mark.parametrize("seed", range(60))
def test_a_query_that_moves_at_any_point_reads_everything_once(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    region = rng.choice(world.regions)
    place = TopicPlace(NAMES[region.number], begin(region.snapshot()), {})
    read: list[Coordinate] = []
    batches: list[tuple[TopicPlace, TopicPlace, list[Coordinate]]] = []
    moved = False
    for step in range(120):
        world.step()
        if step == 119:
            world.settle()
        elif rng.random() < 0.3:
            continue
        if rng.random() < 0.25:
            region, moved = rng.choice(world.regions), True
        stop = logged(latest(region, place, rng.choice([150, 900, 1 << 40]) if step < 119 else 1 << 40))
        if stop == place:
            continue
        found = region.read(place, stop, rng)
        batches.append((place, stop, found))
        read, place = read + found, stop
    assert moved and len(batches) > 20
    published = [row for region in world.regions for _, row in region.rows() if region.is_own(row[0])]
    assert sorted(read) == sorted(published), "nothing twice, nothing missing"
    for origin in {row[0] for row in read}:
        in_order = [row for row in read if row[0] == origin]
        assert in_order == sorted(in_order), "each origin in its order"
    for start, stop, found in batches:
        for again in world.regions:
            assert sorted(again.read(start, stop, rng)) == sorted(found), (
                "a batch that is run again reads the same, in every region that has it"
            )


def test_what_was_passed_is_forgotten_once_it_lies_behind() -> None:
    rng, world = random.Random(1), World(random.Random(1))
    us, eu, _ = world.regions
    for _ in range(10):
        us.publish()
    eu.publish()
    world.settle()
    half = latest(us, TopicPlace("us", begin(us.snapshot()), {}), 550)
    assert half.at == (3, 5) and not half.above
    moved = latest(eu, half, 1)
    assert eu.read(half, moved, rng) == [(eu.own, (6, 0))]
    assert (moved.region, moved.at, moved.above) == ("eu", (6, 1), {us.own: (3, 4)}), (
        "what was read in us comes next here"
    )
    done = latest(eu, moved, 1 << 40)
    assert eu.read(moved, done, rng) == [(us.own, (3, n)) for n in range(5, 10)]
    assert done.above == {} and done.vector == {us.own: (3, 9), eu.own: (6, 0)}


def test_an_interrupted_batch_waits_for_what_it_had_read() -> None:
    rng, world = random.Random(2), World(random.Random(2))
    us, eu, _ = world.regions
    for _ in range(10):
        us.publish()
    start = TopicPlace("us", begin(us.snapshot()), {})
    stop = latest(us, start, 1 << 40)
    with pytest.raises(MetadataUnavailable, match="has not arrived in region eu"):
        eu.read(start, stop, rng)
    world.carry(us, eu, 4)
    with pytest.raises(MetadataUnavailable, match="has not arrived in region eu"):
        eu.read(start, stop, rng)
    assert len(eu.read(start, stop, rng, lossy=True)) == 4
    world.carry(us, eu, 100)
    assert eu.read(start, stop, rng) == us.read(start, stop, rng)


@pytest.mark.parametrize("restored", [False, True])
def test_a_region_that_is_made_anew_is_another_one(restored: bool) -> None:
    """It was lost, and made anew or restored under its own name: what comes again into new ledgers was read before."""
    rng, world = random.Random(7), World(random.Random(7))
    us, eu, _ = world.regions
    for _ in range(10):
        us.publish()
        eu.publish()
    world.settle()
    start = TopicPlace("us", begin(us.snapshot()), {})
    half = logged(latest(us, start, 900))
    stop = logged(latest(us, half, 1 << 40))
    first, second = us.read(start, half, rng), us.read(half, stop, rng)
    assert half.own == us.own and second

    anew, old = Region(1), us.own
    anew.own, anew.ledgers = (1, 2, 99), {9: []}
    if restored:  # an older copy, under a new epoch
        anew.ledgers = {3: us.ledgers[3][:4], 9: []}
        anew.past, anew.held = [(old, (3, 3))], {old: (3, 3)}
    with pytest.raises(MetadataUnavailable, match="which has not arrived in region us"):
        anew.read(half, stop, rng)
    world.carry(eu, anew, 100)
    for row in us.ledgers[3]:  # eu sends it again
        if row[0] == old and row[1] > anew.held.get(old, BEFORE_ALL):
            anew.store(row)
    anew.publish()
    assert sorted(anew.read(half, stop, rng)) == sorted(second), "the batch that was interrupted has what it had"
    anew.trimmed = restored  # long ago: nothing of the new epoch was
    done = logged(latest(anew, stop, 1 << 40))
    assert anew.read(stop, done, rng) == [(anew.own, anew.last)], "and what was read does not come again"
    assert done.own == anew.own and latest(anew, done, 1 << 40) == done
    anew.new_epoch(rng)
    anew.publish()
    last = latest(anew, done, 1 << 40)
    assert done.here(anew.snapshot()) and anew.read(done, last, rng) == [(anew.own, anew.last)]
    assert sorted(first + second) == sorted(row for region in (us, eu) for _, row in region.rows() if region is us)


@pytest.mark.parametrize("kind", ["restored", "anew", "deleted"])
def test_a_lost_tail_that_nobody_else_published_to_is_passed_over_only_where_the_topic_was_deleted(kind: str) -> None:
    rng, us = random.Random(7), Region(1)
    for _ in range(10):
        us.publish()
    start = TopicPlace("us", begin(us.snapshot()), {})
    half = logged(latest(us, start, 500))
    stop = logged(latest(us, half, 1 << 40))
    anew = Region(1)
    anew.own = (1, 1, 99) if kind == "deleted" else (1, 2, 41 if kind == "restored" else 99)
    anew.ledgers = {3: us.ledgers[3][:7], 9: []} if kind == "restored" else {9 if kind == "deleted" else 3: []}
    if kind == "restored":
        anew.past, anew.held = [(us.own, (3, 6))], {us.own: (3, 6)}
    for _ in range(20):
        anew.publish()
    if kind == "deleted":
        assert anew.read(half, stop, rng) == []
    else:  # another region may have it
        with pytest.raises(MetadataUnavailable, match="which has not arrived in region us"):
            anew.read(half, stop, rng)
    assert len(anew.read(stop, logged(latest(anew, stop, 1 << 40)), rng)) == 20


def test_a_place_of_an_earlier_version_is_taken_by_its_regions_name() -> None:
    us = Region(1)
    us.publish()
    place = TopicPlace("us", (3, 1), {us.own: (3, 0)})
    assert "own" not in json.dumps(encode({TOPIC: place})) and logged(place).here(us.snapshot())
    assert not logged(replace(place, own=(1, 1, 9))).here(us.snapshot())


def test_an_interrupted_batch_waits_for_transactions_before_its_end() -> None:
    """What lies behind an open one is there, and nobody may read it yet: it would be left out."""
    world = World(random.Random(2))
    us, eu, _ = world.regions
    for _ in range(10):
        us.publish()
    start = TopicPlace("us", begin(us.snapshot()), {})
    stop = latest(us, start, 1 << 40)
    world.settle()
    whole = eu.snapshot()
    ((ledger, _, size),) = whole.ledgers
    open_ = replace(whole, ledgers=((ledger, 4, size),), last=(ledger, 3))
    with pytest.raises(MetadataUnavailable, match="which lies behind a transaction that is open in region eu"):
        plan(eu, open_, start, stop, eu.vector(TOPIC), may_lose=False, moved_may_lose=False)
    for held, lossy, count in ((whole, False, 10), (open_, True, 4)):
        ranges, _ = plan(eu, held, start, stop, eu.vector(TOPIC), may_lose=False, moved_may_lose=lossy)
        assert sum(r.last - r.first + 1 for r in ranges) == count


def test_a_copy_that_shows_less_than_it_did_is_waited_for() -> None:
    """As one does for a moment whose broker has died, and has not asked yet whether a transaction of several topics is
    over.
    """
    us = Region(1)
    for _ in range(10):
        us.publish()
    start, elsewhere, stop = (
        TopicPlace("us", (3, 2), {us.own: (3, 1)}),
        TopicPlace("eu", (6, 0), {us.own: (3, 1)}),
        TopicPlace("us", (3, 10), {us.own: (3, 9)}),
    )
    whole = us.snapshot()
    less = replace(whole, ledgers=((3, 6, 600),), last=(3, 5))
    for begun in (start, elsewhere):
        for shown, lossy, last in ((whole, False, 9), (less, True, 5)):
            ranges, _ = plan(us, shown, begun, stop, {}, may_lose=True, moved_may_lose=lossy)
            assert [(r.first, r.last) for r in ranges] == [(2, last)]
        with pytest.raises(
            MetadataUnavailable, match="batch up to 3:10, and region us shows no more than what is before 3:6"
        ):
            plan(us, less, begun, stop, {}, may_lose=True, moved_may_lose=False)


def test_a_batch_that_ends_in_what_is_not_meant_for_a_region_has_the_rest_there() -> None:
    rng, world = random.Random(5), World(random.Random(5))
    us, eu, _ = world.regions
    for _ in range(10):
        us.publish()
    start = TopicPlace("us", begin(us.snapshot()), {})
    stop = latest(us, start, 1 << 40)
    world.carry(us, eu, 8)
    eu.held[us.own] = (3, 9)  # a SKIP says that the last two do not come
    assert eu.read(start, stop, rng) == [(us.own, (3, n)) for n in range(8)]


def test_what_is_repaired_late_is_read_where_the_query_stays() -> None:
    rng, world = random.Random(6), World(random.Random(6))
    us, eu, _ = world.regions
    for _ in range(6):
        eu.publish()
    place = TopicPlace("us", begin(us.snapshot()), {})
    rows = [(eu.own, (6, n)) for n in (0, 2, 4, 5, 1, 3)]  # 1 and 3 were lost here, and come again out of their order
    read = []
    for row in rows:
        us.ledgers[3].append(row)
        us.held[eu.own] = max(row[1], us.held.get(eu.own, BEFORE_ALL))
        place, start = logged(latest(us, place, 1 << 40)), place
        assert place.vector == {eu.own: us.held[eu.own]}
        read += us.read(start, place, rng)
    assert read == rows


def test_what_the_other_region_deleted_unread_is_said() -> None:
    rng, world = random.Random(3), World(random.Random(3))
    us, eu, _ = world.regions
    for _ in range(10):
        us.publish()
    start = latest(us, TopicPlace("us", begin(us.snapshot()), {}), 500)
    world.settle()
    first = min(eu.ledgers)
    eu.roll(rng)
    us.publish()
    world.settle()
    del eu.ledgers[first]
    eu.trimmed = True
    with pytest.raises(Trimmed, match="fail_on_data_loss"):
        latest(eu, start, 1 << 40)
    assert first_unread(eu, eu.snapshot(), start.vector or {}, may_lose=True) == begin(eu.snapshot())
    assert latest(us, start, 1 << 40).region == "us"


def test_positions_of_format_1_stay_in_their_region() -> None:
    rng, world = random.Random(4), World(random.Random(4))
    us, eu, _ = world.regions
    for _ in range(4):
        us.publish()
    old = decode({"format": 1, "topics": {TOPIC: [3, 2]}})[TOPIC]
    assert us.read(old, TopicPlace("", (3, 4), None), rng) == us.read(
        old, TopicPlace("us", (3, 4), {us.own: (3, 3)}), rng
    )
    assert len(us.read(old, TopicPlace("us", (3, 4), {us.own: (3, 3)}), rng)) == 2
    with pytest.raises(ConfigError, match="once more"):
        eu.read(old, TopicPlace("us", (3, 4), {us.own: (3, 3)}), rng)


@pytest.mark.parametrize(
    ("above", "through", "kept"),
    [
        ({}, None, range(5)),
        ({(2, 1, 1): (7, 4)}, None, range(2, 5)),
        ({(2, 1, 1): (9, 0)}, None, range(0)),
        ({(2, 2, 1): (9, 0)}, {(2, 1, 1): (8, 0)}, range(4)),
        ({}, {}, range(0)),
    ],
)
def test_a_run_is_cut_at_the_marks(above: Watermarks, through: Watermarks | None, kept: range) -> None:
    run = Run([b"%d" % n for n in range(5)], [1] * 5, origin=(2, 1, 1), spans=((7, 3, 3), (8, 0, 2)))
    left = CoordinateRange(above, through).of(TopicSnapshot(TOPIC, (), (1, 1), (1, 1, 1), {}), 5, 10, run)
    assert (left is None) == (len(kept) == 0)
    if left is not None:
        assert left[0] == 10 + kept[0] and [bytes(part) for part in left[1].parts] == [b"%d" % n for n in kept]
