"""Tasks: bundles of entry ranges of about equal size, over any number of topics.

Is: pure. A partition of Spark's is a bundle, never one topic: a thousand tiny topics would be a thousand tasks. Isn't:
which entries a batch reads (`offsets`).
Invariants: every entry is in one bundle; ranges keep their order within a topic; the same ranges give the same bundles.
"""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from heliograph.client.block_reader import TopicSnapshot
from heliograph.spark.scan.offsets import EntryRange
from heliograph.spark.scan.region_moves import CoordinateRange


class Bundle(InputPartition):
    """What one task reads. kept: by topic, what of it is wanted; all of it where the topic is not named."""

    def __init__(
        self, ranges: tuple[EntryRange, ...], snapshots: dict[str, TopicSnapshot], kept: dict[str, CoordinateRange]
    ) -> None:
        super().__init__(None)
        self.ranges, self.kept = ranges, kept
        self.snapshots = {topic: _small(snapshot) for topic, snapshot in snapshots.items()}


def _small(snapshot: TopicSnapshot) -> TopicSnapshot:
    """Without what only the planner needs: it travels with every task."""
    return TopicSnapshot(snapshot.topic, (), snapshot.last, snapshot.own, snapshot.regions, snapshot.past)


def even(size_bytes: int, task_bytes: int, tasks_min: int) -> int:
    """How many tasks there should be at least: a whole multiple of `tasks_min`, which is the cores that run them, so
    that none waits for a last round.
    """
    return max(1, -(-size_bytes // (task_bytes * tasks_min))) * tasks_min


def pack(ranges: list[EntryRange], task_bytes: int, tasks_min: int) -> list[tuple[EntryRange, ...]]:
    """Splits and packs ranges into bundles of about equal size, at least `tasks_min` where there are enough entries."""
    total = sum(r.size_bytes for r in ranges)
    tasks = max(tasks_min, -(-total // task_bytes))
    limit = max(1, -(-total // tasks))
    bundles: list[tuple[EntryRange, ...]] = []
    current: list[EntryRange] = []
    room = limit
    for whole in ranges:
        first, left = whole.first, whole.size_bytes
        while first <= whole.last:
            count = whole.last - first + 1
            each = max(1, left // count)
            taken = min(count, max(1, room // each))
            size = left if taken == count else each * taken
            current.append(EntryRange(whole.topic, whole.ledger, first, first + taken - 1, size))
            first, left, room = first + taken, left - size, room - size
            if room <= 0:
                bundles.append(tuple(current))
                current, room = [], limit
    if current:
        bundles.append(tuple(current))
    return bundles


def bundles(
    ranges: list[EntryRange],
    snapshots: dict[str, TopicSnapshot],
    kept: dict[str, CoordinateRange],
    task_bytes: int,
    tasks_min: int,
) -> list[InputPartition]:
    """At least one, be it empty: Spark wants a partition. Ranges of a topic without a snapshot count in the cutting,
    and are not read.
    """
    packed = [tuple(r for r in b if r.topic in snapshots) for b in pack(ranges, task_bytes, tasks_min)]
    made = [
        Bundle(b, {r.topic: snapshots[r.topic] for r in b}, {r.topic: kept[r.topic] for r in b if r.topic in kept})
        for b in packed
    ]
    return [*made] or [Bundle((), {}, {})]
