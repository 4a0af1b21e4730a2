"""How long what a region that left had not got is kept for it, whatever one clock says."""

from __future__ import annotations

import pytest

from heliograph.runtime.clock import CautiousClock
from replicator.manager.departed_regions import PROPERTY, Leaving
from tests.heliograph.runtime.wrong_clock import DAY_MS, Machine, ahead

TOPIC, REGION = "persistent://t/n/x", "eu"
GRACE_S = 3600.0


class Cursor:
    def __init__(self) -> None:
        self.properties: dict[str, str] = {}

    def set_properties(self, properties: dict[str, str]) -> None:
        self.properties = properties


class Broker:
    """One whose wall clock is so wrong. hears: the clock of another region, which is right."""

    def __init__(self, wrong_ms: int = 0, hears: bool = True) -> None:
        self.machine, self.over = Machine(wrong_ms), 0
        clock = CautiousClock(self.machine, lambda: [ahead()] if hears else [])
        self.leaving = Leaving(clock, GRACE_S, lambda _: True, self._over)

    def _over(self, topic: str, region: str) -> None:
        self.over += 1

    def at(self, passed_s: float) -> bool:
        """Whether the time of the region is over then."""
        self.machine.passed_s = passed_s
        self.leaving.tick()
        return bool(self.over)


@pytest.mark.parametrize("hears", (True, False))
@pytest.mark.parametrize("jump_ms", (0, DAY_MS))
def test_a_jump_ends_nothing(hears: bool, jump_ms: int) -> None:
    broker = Broker(hears=hears)
    broker.leaving.left(TOPIC, REGION, Cursor())
    assert not broker.at(10)
    broker.machine.wrong_ms = jump_ms
    assert not broker.at(20) and not broker.at(GRACE_S - 1) and broker.at(GRACE_S)


@pytest.mark.parametrize("stamps_ms", (0, -DAY_MS))
@pytest.mark.parametrize("judges_ms", (0, DAY_MS))
def test_one_wrong_clock_of_who_stamps_or_who_judges_ends_nothing(stamps_ms: int, judges_ms: int) -> None:
    """The topic moves between the two."""
    cursor = Cursor()
    Broker(stamps_ms).leaving.left(TOPIC, REGION, cursor)
    assert PROPERTY in cursor.properties
    broker = Broker(judges_ms)
    broker.leaving.left(TOPIC, REGION, cursor)
    assert not broker.over and not broker.at(GRACE_S - 1) and broker.at(GRACE_S)
