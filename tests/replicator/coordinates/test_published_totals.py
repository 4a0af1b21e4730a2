"""Outbox: totals and points against a list of every run."""

from __future__ import annotations

import random

from heliograph.model.positions import BEFORE_ALL
from replicator.coordinates.published_totals import DUMPED_MAX, POINTS_MAX, REST_MAX, PublishedTotals


def test_newest_runs_are_exact_older_ones_err_to_the_safe_side_and_a_dump_stays_small() -> None:
    for seed in range(10):
        rng, outbox = random.Random(seed), PublishedTotals()
        outbox.follow(True)
        runs: list[tuple[tuple[int, int], tuple[int, int], tuple[int, int, int], int]] = []
        ledger, entry, totals = 1, 0, (0, 0, 0)
        for i in range(rng.choice((50, 900, 4000))):
            if rng.random() < 0.05:
                ledger, entry = ledger + rng.randrange(1, 4), 0
            entry += rng.randrange(3)  # entries of other regions lie between
            count = rng.randrange(1, 5)
            outbox.add(ledger, entry, count, 2 * count, 10 * count, 1000 + i)
            totals = (totals[0] + count, totals[1] + 2 * count, totals[2] + 10 * count)
            runs.append(((ledger, entry), (ledger, entry + count - 1), totals, 1000 + i))
            entry += count
        assert outbox.totals == totals and len(outbox._points) <= POINTS_MAX
        again = PublishedTotals()
        again.load(outbox.dump())
        assert again.totals == totals and len(again._points) <= DUMPED_MAX
        resting = PublishedTotals()
        resting.load(outbox.dump())
        resting.rest()
        assert len(resting._points) <= REST_MAX and not resting.fine
        for box in (outbox, again, resting):
            for index, (first, last, done, time_ms) in enumerate(runs):
                assert box.at(last) <= done
                assert box.oldest_ms((done[0] - 1, 0, 0)) <= time_ms, "an age is never too small"
                assert last <= box.last_at(last) <= last
                before = runs[index - 1][1] if index else BEFORE_ALL
                assert box.last_at((first[0], first[1] - 1)) >= before, "what may have been published is named"
        for _, last, done, time_ms in runs[-POINTS_MAX // 4 :]:
            assert outbox.at(last) == done and outbox.oldest_ms((done[0] - 1, 0, 0)) == time_ms
        assert outbox.oldest_ms(totals) == 0


def test_more_points_than_are_kept_here_are_read_and_become_fewer() -> None:
    """As a link's state says them to a topic that is loaded before its links are made."""
    linked = PublishedTotals()
    linked.follow(True)
    for number in range(1000):
        linked.add(1, number, 1, 1, 1, number)
    again = PublishedTotals()
    again.load(linked.dump())
    for number in range(1000, 1010):
        again.add(1, number, 1, 1, 1, number)
    assert len(again._points) <= REST_MAX and again.totals[0] == 1010 and again.at((1, 1009)) == again.totals
    linked.follow(False)
    assert len(linked._points) <= REST_MAX and linked.at((1, 999)) == linked.totals


def test_nothing_is_older_than_it_is_for_one_wrong_time_behind_it() -> None:
    outbox, limit = PublishedTotals(), 1000
    outbox.follow(True)
    times = (990, 995, 5000, 5001, 7, 8, 9, 5002)  # a clock was set back, and right again
    for number, time_ms in enumerate(times):
        outbox.add(1, number, 1, 1, 1, time_ms)
    assert outbox.last_before(limit) == (1, 0), "the second point may go on until the third begins"
    assert outbox.last_before(limit, (1, 1)) == BEFORE_ALL
    assert outbox.last_before(6000) == (1, len(times) - 2)
    assert outbox.last_before(6000, (1, 3)) == (1, len(times) - 2), "what lies before is not looked at"
    assert outbox.last_before(6) == BEFORE_ALL
