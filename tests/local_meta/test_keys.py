"""Keys of the local metadata: names come back, number order is key order, a bundle is one range."""

from __future__ import annotations

import pytest

from heliograph.kv.metadata_store import prefix_end
from heliograph.model.bundles import BundleTable
from heliograph.model.topic_names import bundle_of
from local_meta import keys

TOPICS = [f"persistent://t/ns/{name}" for name in ("a", "a/b", "a%2Fb", "ü", "x-partition-3", " ", "a" * 200)] + [
    f"persistent://t/ns/topic-{number}" for number in range(300)
]


def test_names_come_back() -> None:
    for topic in TOPICS:
        assert keys.topic_of(keys.managed_ledger(topic)) == topic
        for cursor in ("sub", "sub/with/slashes", "pulsar.repl.eu", "%", "ü"):
            key = keys.cursor(topic, cursor)
            assert (keys.topic_of(key), keys.cursor_of(key)) == (topic, cursor)
    assert keys.owner_of(keys.owner("t/ns", 17)) == ("t/ns", 17)
    assert keys.id_of(keys.bookie("us-bookie/0")) == "us-bookie/0"
    assert keys.ledger_of(keys.ledger(12)) == 12


def test_no_name_spills_over() -> None:
    assert len({keys.managed_ledger(topic) for topic in TOPICS}) == len(TOPICS)
    assert keys.cursor("persistent://t/ns/a", "b/c") != keys.cursor("persistent://t/ns/a/b", "c")
    assert not keys.managed_ledger("persistent://t/ns2/a").startswith(keys.managed_ledgers("t/ns"))
    assert not keys.cursor("persistent://t/ns/ab", "x").startswith(keys.cursors("persistent://t/ns/a"))


def test_number_order_is_key_order() -> None:
    numbers = [0, 1, 9, 10, 99, 1 << 40, (1 << 63) - 1]
    assert sorted(keys.ledger(number) for number in numbers) == [keys.ledger(number) for number in numbers]
    assert sorted(keys.owner("t/ns", number) for number in range(4096)) == [
        keys.owner("t/ns", number) for number in range(4096)
    ]


@pytest.mark.parametrize("bundles", [1, 2, 3, 4, 7, 64, 4096])
def test_a_bundle_is_one_range(bundles: int) -> None:
    for topic in TOPICS:
        table, bundle = BundleTable.equal(bundles), bundle_of(topic, bundles)
        for index in {0, bundles - 1, bundle, max(bundle - 1, 0), min(bundle + 1, bundles - 1)}:
            start, end = keys.managed_ledgers_between("t/ns", *table.range(index))
            assert (start <= keys.managed_ledger(topic) < end) == (index == bundle)
            start, end = keys.cursors_between("t/ns", *table.range(index))
            assert (start <= keys.cursor(topic, "s") < end) == (index == bundle)
    table = BundleTable.equal(bundles)
    start, _ = keys.managed_ledgers_between("t/ns", *table.range(0))
    _, end = keys.managed_ledgers_between("t/ns", *table.range(bundles - 1))
    assert start == keys.managed_ledgers("t/ns") + "00000000" and end == prefix_end(keys.managed_ledgers("t/ns"))
