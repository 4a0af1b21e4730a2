"""Deadlines of many groups: the nearest comes first, however often they move, and what is kept does not grow."""

from __future__ import annotations

import random

from region_node.faces.kafka.groups.group_deadlines import GroupDeadlines


def test_the_nearest_comes_first_and_one_that_moved_back_when_it_comes() -> None:
    deadlines = GroupDeadlines()
    assert deadlines.nearest() is None and deadlines.due(1e9) == []
    for group, at in (("a", 5.0), ("b", 3.0), ("c", 9.0), ("b", 7.0), ("c", 4.0), ("d", None)):
        deadlines.tell(group, at)
    assert deadlines.nearest() == 3.0, "it moved back: it is told when it comes"
    assert deadlines.due(4.0) == ["b", "c"] and deadlines.nearest() == 5.0
    deadlines.forget("a")
    assert deadlines.nearest() is None and deadlines.due(99.0) == []


def test_what_is_kept_does_not_grow() -> None:
    deadlines, now = GroupDeadlines(), 0.0
    for group in range(100):
        deadlines.tell(f"g{group}", 1_000.0)
    for _ in range(2_000):  # a short rebalance, and a long session behind it, again and again
        now += 0.1
        deadlines.tell("g0", now + 0.05)
        assert deadlines.due(now + 0.06) == ["g0"]
        deadlines.tell("g0", now + 500.0)
        assert len(deadlines) <= 2 * 100 + 65


def test_every_deadline_comes_in_its_order() -> None:
    rng, deadlines, told = random.Random(7), GroupDeadlines(), dict[str, float]()
    for _ in range(500):
        group, at = f"g{rng.randrange(40)}", rng.random()
        deadlines.tell(group, at)
        told[group] = min(at, told.get(group, 2.0))
    assert deadlines.due(1.0) == sorted(told, key=lambda group: told[group])
