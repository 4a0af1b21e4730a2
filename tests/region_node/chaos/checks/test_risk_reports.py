"""What is reported as at risk during a cut is held against what is: too little and too much are both seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from region_node.chaos.checks.risk_reports import RiskReports
from region_node.chaos.streams import NumberedStream, RegionCopies
from tests.region_node.chaos.memory_regions import Faulty, MemoryRegions

TOPIC = "persistent://public/chaos/t"


def verdict(told: Callable[[int], int]) -> tuple[list[str], int]:
    """Of a cut, with seven messages behind it, of which `told` makes what is reported."""
    regions = MemoryRegions(["us", "eu"], Faulty(risk=told), deduplication=True)
    streams = {region: NumberedStream(regions, region, TOPIC, name=f"run-{region}") for region in regions.names}
    for stream in streams.values():
        stream.publish(5)
    risk = RiskReports(regions, TOPIC, streams, RegionCopies(regions, TOPIC))
    regions.cut |= {("us", "eu"), ("eu", "us")}
    risk.begin(sorted(regions.cut))
    for stream in streams.values():
        stream.publish(7)
    risk.sample()
    return risk.verdict()


def test_the_truth_is_no_lie() -> None:
    assert verdict(lambda messages: messages) == ([], 8)


@pytest.mark.parametrize("told", [lambda messages: messages - 1, lambda messages: messages + 1, lambda messages: 0])
def test_too_few_and_too_many_are_seen(told: Callable[[int], int]) -> None:
    wrong, _ = verdict(told)
    assert wrong and all("messages at risk are reported, 7 to 7 are" in what for what in wrong)


def test_a_cut_of_which_nobody_says_anything_is_wrong() -> None:
    regions = MemoryRegions(["us", "eu"], deduplication=True)
    streams = {region: NumberedStream(regions, region, TOPIC) for region in regions.names}
    risk = RiskReports(regions, TOPIC, streams, RegionCopies(regions, TOPIC))
    risk.begin([])
    assert risk.verdict() == (["no region said what is at risk while it was cut"], 0)
