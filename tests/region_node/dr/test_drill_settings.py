"""What would make a drill of no use, or a burden, is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.dr.drill_settings import DrillSettings


@pytest.mark.parametrize(
    "wrong",
    (
        {"topics_max": 0},
        {"topics_max": 10_001},
        {"latency_before_s": -1.0},
        {"latency_times_max": 0.9},
        {"latency_more_ms_max": -0.1},
    ),
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"broker.drill.{name}"):
        DrillSettings(**wrong)
