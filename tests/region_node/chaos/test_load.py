"""The load has its namespace as the scenario wants it, publishes at its rate, and says when all is there."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.cli.rest import Rest, RestRefused
from heliograph.model.errors import ConfigError
from region_node.chaos.load import ChaosLoad, prepare
from region_node.chaos.regions import NotInTime
from region_node.chaos.scenario import Scenario, scenario_of
from tests.region_node.chaos.memory_regions import Faulty, MemoryRegions

NAMES = ["us", "eu"]
PATH = "/admin/v2/namespaces/public/chaos"


def scenario(more: str = "") -> Scenario:
    return scenario_of(f'patience_s = 1\n[load]\nrate_per_s = 200\n{more}\n[[step]]\nfault = "cut"\n', "s.toml")


class Absent(MemoryRegions):
    """A namespace that is not there until it is made."""

    def rest(self, region: str) -> Rest:
        inner = super().rest(region)
        outer = self

        class Asked(type(inner)):  # type: ignore[misc]
            def ask(self, method: str, path: str, body: Any = None, query: Any = None) -> Any:
                if method == "GET" and outer.replicated is None:
                    raise refused(404)
                if method == "PUT":
                    outer.replicated = body["replication_clusters"]
                return super().ask(method, path, body, query)

        return Asked(outer, region)


def refused(code: int) -> RestRefused:
    from email.message import Message
    from io import BytesIO
    from urllib.error import HTTPError

    return RestRefused(HTTPError("http://x", code, "no", Message(), BytesIO(b"{}")))


@pytest.mark.parametrize(("more", "deduplication"), [("", True), ("deduplication = false", False)])
def test_a_namespace_that_is_absent_is_made_replicated_with_deduplication(more: str, deduplication: bool) -> None:
    regions = Absent(NAMES)
    prepare(scenario(more), regions, NAMES)
    assert [(method, path.removeprefix(PATH)) for method, path, _ in regions.asked] == [
        ("PUT", ""),
        ("POST", "/retention"),
        ("POST", "/deduplication"),
    ]
    assert regions.replicated == NAMES and regions.deduplication is deduplication


def test_one_that_is_there_stays_as_it_is_unless_the_scenario_says_so() -> None:
    regions = MemoryRegions(NAMES, deduplication=True)
    prepare(scenario(), regions, NAMES)
    assert regions.asked == [] and regions.deduplication
    prepare(scenario("deduplication = false"), regions, NAMES)
    assert regions.asked == [("POST", f"{PATH}/deduplication", False)]


def test_a_region_that_the_namespace_has_not_is_named() -> None:
    regions = MemoryRegions(NAMES, deduplication=True)
    with pytest.raises(ConfigError, match=r"public/chaos is not replicated to ap: name the regions"):
        prepare(scenario(), regions, [*NAMES, "ap"])


@pytest.mark.slow
def test_all_that_is_published_is_there_when_it_has_settled() -> None:
    regions = MemoryRegions(NAMES, deduplication=True)
    load = ChaosLoad(scenario("keys = 4\nconsumers = 1"), regions, NAMES, "run")
    load.publish(0.3)
    load.settle()
    sent = {region: stream.sent for region, stream in load.streams.items()}
    assert sent["us"] == sent["eu"] > 0
    assert all(one.history.count(f"run-{region}") == sent[region] for one in load.subscriptions for region in NAMES)
    found = load.timeline.series()
    assert sum(count for _, count in found["read"]["us"]) == sum(sent.values()) and "us-eu" in found["at risk"]
    load.close()
    assert not regions.acked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (Faulty(lost=b"-3"), "the subscription in .. has all that is acknowledged"),
        (Faulty(risk=lambda messages: messages + 1), "us says that nothing is at risk"),
    ],
)
def test_what_never_comes_is_given_up_in_time(faulty: Faulty, said: str) -> None:
    load = ChaosLoad(scenario(), MemoryRegions(NAMES, faulty, deduplication=True), NAMES, "run")
    load.publish(0.2)
    with pytest.raises(NotInTime, match=said):
        load.settle()
    load.close()
