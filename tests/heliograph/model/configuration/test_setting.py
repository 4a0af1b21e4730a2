"""Marks of settings: which values they allow, and how a bound is said."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from heliograph.model.configuration.setting import SettingMark, check_bounds, marks, must_be_set, setting
from heliograph.model.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Pump:
    name: str = field(metadata=must_be_set())
    port: int = setting(0, least=0, most=65535, means="none")
    rest_s: float = setting(1.0, "s", above=0, most=600)
    share: float = setting(0.1, least=0, below=1)
    count: int | None = setting(None, least=1)
    way: str = setting("up", one_of=("up", "down"))
    labels: dict[str, str] = setting({}, theirs="pumpLabels")
    inside: int = 7

    def __post_init__(self) -> None:
        check_bounds(self, "broker.pump")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"port": -1}, "broker.pump.port must be 0 (none) to 65535, not -1"),
        ({"port": 65536}, "broker.pump.port must be 0 (none) to 65535, not 65536"),
        ({"rest_s": 0.0}, "broker.pump.rest_s must be above 0, at most 600, not 0"),
        ({"rest_s": 600.5}, "broker.pump.rest_s must be above 0, at most 600, not 600.5"),
        ({"share": 1.0}, "broker.pump.share must be 0 to below 1, not 1"),
        ({"count": 0}, "broker.pump.count must be 1 or more, not 0"),
        ({"way": "left"}, "broker.pump.way must be one of up, down, not 'left'"),
    ],
)
def test_a_value_out_of_bounds_is_one_sentence(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Pump(name="a", **change)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_bounds_themselves_are_allowed() -> None:
    Pump(name="a", port=65535, rest_s=600.0, share=0.0, count=1, way="down")


def test_a_field_with_a_mark_is_an_operators() -> None:
    assert set(marks(Pump)) == {"name", "port", "rest_s", "share", "count", "way", "labels"}
    assert marks(Pump)["labels"].theirs == "pumpLabels" and marks(SettingMark) == {}


def test_a_dict_is_of_each_instance() -> None:
    one = Pump(name="a")
    one.labels["x"] = "y"
    assert Pump(name="b").labels == {}
