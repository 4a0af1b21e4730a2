"""Tables of bundles: they always cover all hashes once, whatever is split, and are refused where they would not."""

from __future__ import annotations

import random
from itertools import pairwise

import msgpack
import pytest

from heliograph.model.bundles import BUNDLES_MAX, HASHES, BundleTable
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.topic_names import bundle_of


@pytest.mark.parametrize("count", [1, 3, 4, 7, 64, 4096])
def test_equal_ranges_are_those_of_the_arithmetic(count: int) -> None:
    table = BundleTable.equal(count)
    for index in range(500):
        topic = f"persistent://a/b/{index}"
        assert table.of(topic) == bundle_of(topic, count)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_split_every_hash_has_one_bundle_and_old_numbers_stay(seed: int) -> None:
    rng = random.Random(seed)
    table = BundleTable.equal(rng.choice((1, 3, 4)))
    topics = [f"persistent://a/b/{index}" for index in range(300)]
    for _ in range(30):
        bundle = rng.randrange(table.count)
        low, high = table.range(bundle)
        cuts = sorted({rng.randrange(low + 1, high - 1) for _ in range(rng.choice((1, 1, 3)))})
        before, table = table, table.split(bundle, cuts)
        assert BundleTable.decode(table.encode()) == table and table.base == before.base
        assert table.count == before.count + len(cuts) and table.range(bundle) == (low, cuts[0])
        for topic in topics:
            assert table.of(topic) == before.of(topic) or before.of(topic) == bundle
        ranges = sorted(table.range(index) for index in range(table.count))
        assert ranges[0][0] == 0 and ranges[-1][1] == HASHES and all(a[1] == b[0] for a, b in pairwise(ranges))
        assert [table.named(name) for name in table.names()] == list(table.ids)
    assert (
        table.boundaries()[0] == "0x00000000"
        and table.boundaries()[-1] == "0xffffffff"
        and len(table.boundaries()) == table.count + 1
    )
    assert table.named("0x1_0x2") is None


def test_what_cannot_be_split_says_why() -> None:
    table = BundleTable.equal(2)
    for cuts in ([], [0], [1 << 31], [5, 1 << 33]):
        with pytest.raises(NotAllowed, match="between its ends"):
            table.split(0, cuts)
    with pytest.raises(NotAllowed, match="no bundle 2"):
        table.split(2, [5])
    with pytest.raises(NotAllowed, match=f"at most {BUNDLES_MAX}"):
        BundleTable.equal(BUNDLES_MAX).split(0, [5])


def test_a_damaged_or_newer_table_is_refused() -> None:
    good = {"format": 1, "base": 1, "starts": [0, 9], "ids": [0, 1]}
    assert BundleTable.decode(msgpack.packb(good)).range(1) == (9, HASHES)
    for name, wrong in (
        ("format", 2),
        ("starts", [0]),
        ("starts", [1, 9]),
        ("starts", [0, 0]),
        ("starts", [0, 1 << 32]),
        ("ids", [0, 0]),
        ("ids", [1, 2]),
    ):
        with pytest.raises(CorruptData):
            BundleTable.decode(msgpack.packb(good | {name: wrong}))
    blob = BundleTable.equal(4).encode()
    for at in range(len(blob)):
        try:
            BundleTable.decode(blob[:at])
        except CorruptData:
            continue
        raise AssertionError(at)
