"""Planting: what is written down of trees has a bound, and nothing is forgotten that some region needs."""

from __future__ import annotations

import random

import pytest

from heliograph.model.positions import BEFORE_ALL
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.routing_trees import ORIGIN_BYTES_MAX, RECORDS_MAX, REGION_BYTES_MAX, Tree, TreeBook
from replicator.log.topic_state import TopicState
from replicator.log.tree_planting import CHANGES_MAX, plant
from tests.replicator.fake_ledger import FakeLedger, Store

EU = (2, 1, 7)


def wide(number: int, regions: int) -> dict[str, str]:
    return {f"{number}-{i:0100}": "eu" for i in range(regions)}


class Source:
    def __init__(self) -> None:
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=True, settings=DedupSettings())
        state.restore(b"")
        ledger = FakeLedger(Store("persistent://t/n/x"), state, auto=True)
        self.log = ReplicatedLog(ledger, state)  # type: ignore[arg-type]
        self.told = 0

    def plant(self, parents: dict[str, str]) -> bool:
        return plant(self.log, "us", parents, ["eu"], lambda: None)

    def target_holds_all(self) -> None:
        self.told += 1
        self.log.learn("eu", self.log.vector.copy(), self.told)

    def changes(self, regions: int) -> int:
        """Of so many regions, until one has to wait: how many were written down."""
        number = 0
        while number < CHANGES_MAX and self.plant(wide(number, regions)):
            number += 1
        return number


def test_what_a_region_would_refuse_is_not_written_down(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    assert source.plant({"ap": "eu"})
    with caplog.at_level("ERROR"):
        assert source.plant(wide(1, 200)), "it does not become smaller: nobody looks again"
    (record,) = caplog.records
    assert record.message == "link.tree_refused" and "16384 are allowed" in record.error  # type: ignore[attr-defined]
    newest = source.log.state.trees.newest(source.log.origin)
    assert newest is not None and newest.parents == {"ap": "eu"}


def test_what_the_epochs_of_a_region_take_together_is_not_exceeded(caplog: pytest.LogCaptureFixture) -> None:
    source, tree = Source(), Tree("us", wide(1, 60))
    for incarnation in range(REGION_BYTES_MAX // tree.size_bytes):
        source.log.state.trees.note((1, 0, incarnation), (0, 0), tree)
    with caplog.at_level("ERROR"):
        assert source.plant(wide(2, 60))
    assert [record.message for record in caplog.records] == ["link.tree_refused"]
    assert source.log.state.trees.newest(source.log.origin) is None
    assert source.plant(wide(2, 10)) and source.log.state.trees.newest(source.log.origin) is not None


def test_a_change_waits_where_a_tree_would_be_forgotten_that_a_region_needs() -> None:
    source = Source()
    assert source.plant(wide(99, 60))
    source.target_holds_all()
    needed = source.log.vector.prefix(source.log.origin)
    written = source.changes(60)
    assert 2 <= written < CHANGES_MAX
    governs = source.log.state.trees.following(source.log.origin, needed)
    assert governs is not None and governs.parents == wide(99, 60)
    for number in range(100, 140):
        source.target_holds_all()
        assert source.plant(wide(number, 60)), "a region that follows stops no change"
    newest = source.log.state.trees.newest(source.log.origin)
    assert newest is not None and newest.parents == wide(139, 60)


def test_what_is_kept_depends_on_the_newest_alone() -> None:
    """A region that began later knows the same trees, and so sends by the same."""
    rng = random.Random(3)
    for _ in range(20):
        trees = [Tree("us", wide(number, rng.choice((1, 20, 90, 150)))) for number in range(60)]
        book, late = TreeBook(), TreeBook()
        for number, tree in enumerate(trees):
            book.note(EU, (0, number), tree)
            if number == 40:
                late = TreeBook.load(book.dump())
            elif number > 40:
                late.note(EU, (0, number), tree)
        assert late.dump() == book.dump()
        sizes = [record.size_bytes for record in map(Tree.decode, (row[-1] for row in book.dump()[0]))]
        assert len(sizes) <= RECORDS_MAX and (sum(sizes) <= ORIGIN_BYTES_MAX or len(sizes) == 2)
        assert book.behind_bytes(EU, BEFORE_ALL) == sum(sizes)
        assert book.size_with(EU, (0, 59), trees[-1]) == sum(sizes)
