"""What happened is in the second in which it did; a second without anything is a zero, not a gap."""

from __future__ import annotations

from region_node.chaos.timeline import Timeline


def test_counts_latencies_and_levels_lie_in_their_seconds() -> None:
    made = Timeline()
    for at_s in (0.1, 0.9, 3.0):
        made.count("sent", "us", at_s)
    for milliseconds in range(1, 101):
        made.latency("us", 0.5, milliseconds / 1000)
    made.level("at risk", "us-eu", 1.2, 7)
    made.level("at risk", "us-eu", 1.8, 3)
    found = made.series()
    assert found["sent"] == {"us": [[0, 2], [1, 0], [2, 0], [3, 1]]}
    assert found["at risk"] == {"us-eu": [[1, 7]]}, "the highest of a second"
    assert [round(found[name]["us"][0][1]) for name in ("latency_ms_p50", "latency_ms_p99")] == [50, 99]


def test_of_a_run_without_anything_there_is_nothing() -> None:
    assert Timeline().series() == {}
