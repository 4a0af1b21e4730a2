"""A run keeps or breaks its promises by what the regions do; whatever ends it, its faults are ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.model.errors import ConfigError
from region_node.chaos.conductor import ChaosRun
from region_node.chaos.faults import BegunFault, StepFaults
from region_node.chaos.report import ChaosReport
from region_node.chaos.scenario import ScenarioStep, scenario_of
from tests.region_node.chaos.memory_regions import Faulty, MemoryRegions

CUT = '[[step]]\nfault = "cut"\nbetween = ["us", "eu"]\nfor_s = 0.4\n'
UNLOAD = '[[step]]\nfault = "unload"\nfor_s = 0.1\n'


class InMemory(StepFaults):
    """Cuts ways of regions in memory. begun, ended: kinds, in their order."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.begun: list[str] = []
        self.ended: list[str] = []

    def begin(self, step: ScenarioStep) -> BegunFault:
        self.begun.append(step.fault)
        if step.fault == "command":
            raise ConfigError("no such pod")
        regions = self._regions
        assert isinstance(regions, MemoryRegions)
        ways = [("us", "eu"), ("eu", "us")] if step.fault == "cut" else []
        regions.cut |= set(ways)

        def heal() -> None:
            self.ended.append(step.fault)
            regions.heal()

        return BegunFault(where="us-eu", heal=heal, cut=ways)


def run_of(
    text: str, regions: MemoryRegions, folder: Path, say: Callable[[str], None] = lambda _: None
) -> tuple[ChaosRun, InMemory]:
    scenario = scenario_of("patience_s = 1\n[load]\nrate_per_s = 100\n" + text, "s.toml")
    faults = InMemory(scenario, regions, regions.names, folder)
    return ChaosRun(scenario, regions, regions.names, faults, "run", say, lull_s=0.2), faults


def report_of(text: str, faulty: Faulty | None, folder: Path, **more: bool) -> ChaosReport:
    regions = MemoryRegions(["us", "eu"], faulty, **{"deduplication": True, **more})
    run, faults = run_of(text, regions, folder)
    found = run.run()
    assert sorted(faults.begun) == sorted(faults.ended) and not regions.cut
    assert bool(regions.acked) is not found.kept, "subscriptions stay where somebody has to look at them"
    return found


@pytest.mark.slow
def test_a_run_without_fault_of_the_regions_keeps_every_promise(tmp_path: Path) -> None:
    said: list[str] = []
    regions = MemoryRegions(["us", "eu"], deduplication=True)
    run, _ = run_of(CUT + UNLOAD, regions, tmp_path, said.append)
    found = run.run()
    assert found.kept and found.broken == [] and found.compared["at risk"] > 0 and not found.not_compared
    assert [one.fault for one in found.faults] == ["cut", "unload"] and all(one.whole_s for one in found.faults)
    for region in regions.names:
        row = found.published[region]
        assert row["sent"] == row["acknowledged"] > 0 and row["refused"] == 0
        assert found.read[region]["messages"] == sum(each["sent"] for each in found.published.values())
    assert len(said) == 4 and "whole again" in said[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faulty", "more", "promises"),
    [
        (Faulty(lost=b"-7"), "", {"kept", "whole again"}),
        (Faulty(doubled=b"-7"), "", {"once"}),
        (Faulty(swapped=b"-7"), "", {"in order"}),
        (Faulty(risk=lambda messages: messages and messages - 1), "", {"risk"}),
        (Faulty(forgets=True), "", {"acknowledged"}),
    ],
)
def test_each_promise_that_is_broken_is_found(
    tmp_path: Path, faulty: Faulty | None, more: str, promises: set[str]
) -> None:
    found = report_of(more + CUT, faulty, tmp_path)
    assert not found.kept and {one.promise for one in found.broken} == promises


class Unreadable(MemoryRegions):
    """The copy of eu cannot be read."""

    def read_on(self, region: str, topic: str, after: Any | None) -> Iterator[Any]:
        if region == "eu":
            raise pulsar.Timeout("no answer")
        return super().read_on(region, topic, after)


@pytest.mark.slow
def test_a_copy_that_cannot_be_read_in_the_end_is_broken(tmp_path: Path) -> None:
    run, _ = run_of(UNLOAD, Unreadable(["us", "eu"], deduplication=True), tmp_path)
    assert [str(one) for one in run.run().broken] == ["the copy in eu: it cannot be read: no answer"]


@pytest.mark.slow
def test_a_producer_that_repeats_breaks_nothing_with_deduplication(tmp_path: Path) -> None:
    assert report_of("repeat_every = 5\n" + UNLOAD, None, tmp_path).kept


@pytest.mark.slow
def test_reports_of_a_cut_that_is_not_alone_are_not_compared(tmp_path: Path) -> None:
    both = CUT.replace("for_s = 0.4", "at_s = 0.1\nfor_s = 0.6") + UNLOAD.replace("for_s", "at_s = 0.4\nfor_s")
    found = report_of(both, None, tmp_path)
    assert found.kept and not found.compared and "unload began meanwhile" in found.not_compared[0]
    assert [one.whole_s for one in found.faults] == [None, None]


@pytest.mark.slow
def test_what_is_at_risk_is_not_compared_where_repeats_are_stored(tmp_path: Path) -> None:
    found = report_of("repeat_every = 5\ndeduplication = false\n" + CUT, None, tmp_path)
    assert {one.promise for one in found.broken} == {"once"} and "sends messages twice" in found.not_compared[0]


@pytest.mark.slow
def test_a_run_that_cannot_go_on_ends_its_faults_and_its_subscriptions(tmp_path: Path) -> None:
    text = CUT.replace("for_s = 0.4", "at_s = 0.1\nfor_s = 9") + '[[step]]\nfault = "command"\nrun = "x"\nat_s = 0.4\n'
    regions = MemoryRegions(["us", "eu"], deduplication=True)
    run, faults = run_of(text, regions, tmp_path)
    with pytest.raises(ConfigError, match="no such pod"):
        run.run()
    assert faults.ended == ["cut"] and not regions.cut and not regions.acked
