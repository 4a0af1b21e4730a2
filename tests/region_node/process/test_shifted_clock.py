"""A wall clock that tests make wrong, in a running process; and who refuses that."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import Clock, SystemClock
from region_node.process.settings import ProcessSettings
from region_node.process.shifted_clock import VARIABLE, clock_of, set_ahead

DAY_MS = 86_400_000
SETTINGS = ProcessSettings(region="us", node_id="us-bookie-0")


def off_ms(clock: Clock) -> int:
    """By how many whole minutes' ms the wall is ahead of this machine's."""
    return round((clock.wall_ms() - time.time_ns() // 1_000_000) / 60_000) * 60_000


def test_without_the_variable_the_clock_is_the_machines() -> None:
    assert type(clock_of(SETTINGS, {})) is SystemClock
    assert type(clock_of(SETTINGS, {VARIABLE: ""})) is SystemClock


def test_it_is_right_until_somebody_sets_it_and_jumps_while_it_is_used(tmp_path: Path) -> None:
    clock = clock_of(SETTINGS, {VARIABLE: str(tmp_path)})
    assert off_ms(clock) == 0
    for ahead_ms in (DAY_MS, -365 * DAY_MS, 0):
        set_ahead(tmp_path, "us-bookie-0", ahead_ms)
        assert off_ms(clock) == ahead_ms
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    set_ahead(tmp_path, "us-bookie-0", DAY_MS)
    assert 0 <= clock.monotonic() - before < 60_000, "the monotonic clock stays right"


def test_it_is_what_was_set_before_the_start_and_each_node_has_its_own(tmp_path: Path) -> None:
    set_ahead(tmp_path, "us-bookie-0", -DAY_MS)
    found = [clock_of(replace(SETTINGS, node_id=name), {VARIABLE: str(tmp_path)}) for name in ("us-bookie-0", "b")]
    assert [off_ms(clock) for clock in found] == [-DAY_MS, 0]


def test_who_can_be_reached_from_elsewhere_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=VARIABLE):
        clock_of(replace(SETTINGS, bind="0.0.0.0"), {VARIABLE: str(tmp_path)})
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="unset it"):
        clock_of(SETTINGS, {VARIABLE: str(tmp_path / "nowhere")})
