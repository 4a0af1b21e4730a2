"""What a timer that comes late tells."""

from __future__ import annotations

from heliograph.runtime.standstill import LATE_S, stood_still_s


def test_a_busy_process_has_not_stood_still_and_a_stopped_one_knows_for_how_long() -> None:
    assert stood_still_s(10.0, 9.0) == stood_still_s(10.0, 10.0) == stood_still_s(10.0, 10.0 + LATE_S / 2) == 0.0
    assert stood_still_s(10.0, 16.0) == 6.0
