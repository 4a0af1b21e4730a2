"""The probe of silences sees each lie that it is there for, and none where nothing is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from heliograph.cli.rest import Rest
from region_node.chaos.checks import silence_reports as silence
from region_node.chaos.checks.silence_reports import SilenceReports

BEGAN = 1000.0
TOLD = {"connected": False, "silent_s": 10.0, "age_s_max": 10.0}


@dataclass
class Publisher:
    acked: int = 0
    name: str = "us"


@dataclass
class Regions:
    """us is silent; what eu says of it, and what each has."""

    here: dict[str, Any] = field(default_factory=lambda: dict(TOLD))
    elsewhere: dict[str, Any] = field(default_factory=lambda: dict(TOLD))
    arrived: int = 5

    def rest(self, region: str) -> Rest:
        return _Asked(self, region)

    def of(self, region: str) -> dict[str, int]:
        """As `RegionCopies`."""
        return {"us": self.arrived}


class _Asked(Rest):
    def __init__(self, regions: Regions, region: str) -> None:
        super().__init__("http://in-memory")
        self._regions, self._region = regions, region

    def ask(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        assert "/t/n/x/risk" in path
        if self._region == "us":
            return {"not_yet_here": {}, "not_yet_elsewhere": {"eu": self._regions.elsewhere}}
        return {"not_yet_here": {"us": self._regions.here}, "not_yet_elsewhere": {}}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock of the probe."""
    at = [BEGAN]
    monkeypatch.setattr(silence.time, "monotonic", lambda: at[0])
    return at


def probe(regions: Regions, now: list[float], acked: int) -> list[str]:
    """What it finds 10 s after the beginning; one message more was stored 1 s after it where `acked` is 6."""
    publisher = Publisher(5)
    found = SilenceReports(regions, "persistent://t/n/x", {"us": publisher}, [("us", "eu")], regions)  # type: ignore[arg-type,dict-item]
    publisher.acked, now[0] = acked, BEGAN + 1
    found.sample()
    found.said.clear()
    now[0] = BEGAN + 10
    found.sample()
    wrong, compared = found.verdict()
    assert compared == 5
    return wrong


def test_what_is_true_is_not_wrong(now: list[float]) -> None:
    assert probe(Regions(), now, acked=6) == []
    assert probe(Regions(here={**TOLD, "age_s_max": 0.0}), now, acked=5) == [], "nothing is missing"


@pytest.mark.parametrize(
    ("here", "what"),
    [
        ({"connected": True}, "is connected"),
        ({"silent_s": 7.0}, "nothing was heard for 7.0 s"),
        ({"silent_s": None}, "nothing was heard for 0.0 s"),
        ({"age_s_max": 6.0}, "6.0 s old"),
    ],
)
def test_each_lie_of_the_target_is_seen(now: list[float], here: dict[str, Any], what: str) -> None:
    (found,) = probe(Regions(here={**TOLD, **here}), now, acked=6)
    assert what in found and "eu says" in found


def test_a_source_that_says_connected_is_seen(now: list[float]) -> None:
    (found,) = probe(Regions(elsewhere={**TOLD, "connected": True}), now, acked=5)
    assert "us says that it is connected" in found


def test_a_probe_that_was_told_nothing_says_so(now: list[float]) -> None:
    regions = Regions()
    found = SilenceReports(regions, "t", {"us": Publisher()}, [("us", "eu")], regions)  # type: ignore[arg-type,dict-item]
    assert found.verdict() == (["no region said anything of a silence"], 0)
