"""What was reported as at risk before a failover is held against what the region that was left had alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from heliograph.cli.rest import Rest
from heliograph.model.errors import ConfigError
from region_node.chaos.checks.failover_reports import FailoverFound, FailoverReports
from region_node.chaos.streams import NumberedStream, RegionCopies
from tests.region_node.chaos.memory_regions import Faulty, MemoryRegions

TOPIC = "persistent://public/chaos/t"


class Passive(MemoryRegions):
    """us is active until a failover to eu. tail: what a rejoin counts beside what there is; state: of an operation."""

    def __init__(self, faulty: Faulty, *, tail: int = 0, state: str = "done") -> None:
        super().__init__(["us", "eu"], faulty, deduplication=True)
        self.tail, self.state, self.operations = tail, state, list[tuple[str, str, str]]()

    def rest(self, region: str) -> Rest:
        return _Operations(self, region)


class _Operations(Rest):
    def __init__(self, regions: Passive, region: str) -> None:
        super().__init__("http://in-memory")
        self._regions, self._region = regions, region

    def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        regions = self._regions
        if path == "/heliograph/v1/dr":
            return {"namespaces": [{"namespace": "public/chaos", "writable_here": self._region != "us"}]}
        if path.endswith("/operations"):
            regions.operations.append((self._region, body["kind"], body["to"]))
            report = {"tail": {"messages": 7 + regions.tail}}
            return {"id": len(regions.operations), "state": regions.state, "step": "", "steps": [], "report": report}
        return MemoryRegions.rest(regions, self._region).get(path)


def moved(regions: Passive) -> FailoverFound:
    """Five messages are everywhere, seven in us alone."""
    stream = NumberedStream(regions, "us", TOPIC)
    stream.publish(5)
    regions.cut.add(("us", "eu"))
    stream.publish(7)
    return FailoverReports(regions, TOPIC, stream, RegionCopies(regions, TOPIC), still_s=0.0).move(
        "us", "eu", regions.heal, 10.0
    )


def test_the_truth_is_no_lie_and_the_tail_is_known() -> None:
    regions = Passive(Faulty())
    found = moved(regions)
    assert found.wrong == [] and found.compared == 2 and found.alone == set(range(5, 12))
    assert regions.operations == [("eu", "failover", "eu"), ("eu", "rejoin", "us")] and not regions.cut


@pytest.mark.parametrize("told", [6, 8])
def test_a_risk_that_was_told_wrong_is_seen(told: int) -> None:
    (wrong,) = moved(Passive(Faulty(risk=lambda messages: told))).wrong
    assert wrong == f"us said that {told} messages were at risk, 7 to 7 were there alone"


@pytest.mark.parametrize("more", [-1, 1])
def test_a_tail_that_was_counted_wrong_is_seen(more: int) -> None:
    (wrong,) = moved(Passive(Faulty(), tail=more)).wrong
    assert f"counted a tail of {7 + more} messages, 7 were there alone" in wrong


def test_an_operation_that_is_not_done_cannot_be_judged() -> None:
    with pytest.raises(ConfigError, match=r"failover of public/chaos to eu is cancelled: `heliograph dr status"):
        moved(Passive(Faulty(), state="cancelled"))
