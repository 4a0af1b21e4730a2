"""`heliograph dr set --auto` and `heliograph dr hold`: what words ask for, and which calls they become."""

from __future__ import annotations

from typing import Any, cast

import pytest

from heliograph.cli.regions import disaster_recovery
from heliograph.cli.regions.automatic_failover import automatic_of, hold, seconds_of
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError
from tests.region_node.dr.operations.world import NS

PATH = f"/heliograph/v1/dr/{NS}"


class Asked:
    """Answers what the namespace is, and keeps what is asked."""

    def __init__(self, mode: str = "active-passive") -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.mode = mode

    def get(self, path: str) -> Any:
        return {"mode": self.mode, "slo": {"rpo_s": 5.0}, "active": "us"}

    def put(self, path: str, given: Any) -> Any:
        self.calls.append(("PUT", path, given))
        return {"active": "us", "epoch": 1, "to": [], "hold_s": 600.0, **given}

    def delete(self, path: str) -> Any:
        self.calls.append(("DELETE", path, None))


def test_words_are_values() -> None:
    assert automatic_of(["after=30s"]) == {"after_s": 30}
    asked = ["after=1m to=eu,ap", "hold=10m", "max_risk=100", "max_risk=5s"]
    assert automatic_of(asked) == {
        "after_s": 60,
        "to": ["eu", "ap"],
        "hold_s": 600,
        "risk_messages": 100,
        "risk_s": 5,
    }
    assert automatic_of(["off"]) is None and seconds_of("--for", "2h") == 7200


@pytest.mark.parametrize(
    ("words", "says"),
    (
        (["to=eu"], "--auto after=30s"),
        (["after=30"], "expected a number and one of s, m, h, d, w, as 7d$"),
        (["after=30s", "off"], "off alone"),
        (["after=30s", "before=2s"], "expected after="),
        (
            ["after=30s", "max_risk=much"],
            "max_risk much: expected a number and one of s, m, h, d, w, as 7d, so old; "
            "or a number alone, as 100, so many messages$",
        ),
    ),
)
def test_what_is_no_value_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        automatic_of(words)


def test_it_is_set_with_the_region_or_alone_and_promises_stay(capsys: pytest.CaptureFixture[str]) -> None:
    def calls(mode: str, **given: Any) -> list[tuple[str, str, Any]]:
        asked = Asked(mode)
        disaster_recovery.set_active(cast(Any, asked), Output(), NS, **given)
        return asked.calls

    wanted = ("PUT", f"{PATH}/automatic", {"after_s": 30})
    kept = ("PUT", PATH, {"active": "us", "slo": {"rpo_s": 5.0}})
    assert calls("active-passive", active="us", auto=["after=30s"]) == [kept, wanted]
    assert "once its active region was lost for 30 s" in capsys.readouterr().out
    assert calls("active-active", active="us", auto=["after=30s"]) == [
        ("PUT", PATH, {"active": "us", "slo": {}}),
        wanted,
    ]
    assert calls("active-passive", auto=["after=30s"]) == [wanted]
    assert calls("active-passive", auto=["off"]) == [("DELETE", f"{PATH}/automatic", None)]
    assert calls("active-passive", active="us") == [("PUT", PATH, {"active": "us", "slo": {}})]
    with pytest.raises(ConfigError, match="--active"):
        calls("active-passive")


def test_regions_that_could_not_take_over_now_are_named_when_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    why = "broker eu-1 has no admin port that it can be asked at: set broker.admin_port there"

    class Status(Asked):
        def get(self, path: str) -> Any:
            cannot = {"target": {"unreachable": why}}
            return {**super().get(path), "targets": {"eu": cannot, "ap": {"target": {}}, "sa": cannot}}

    for to, named in (([], ["eu", "sa"]), (["to=eu,ap"], ["eu"]), (["to=ap"], [])):
        disaster_recovery.set_active(cast(Any, Status()), Output(), NS, auto=["after=30s", *to])
        said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
        assert said == [f"warning: {region} could not take over now: {why}" for region in named]


def test_a_hold_is_of_one_namespace_or_of_all() -> None:
    asked = Asked()
    rest = cast(Any, asked)
    hold(rest, Output(), NS, lasts="1h")
    hold(rest, Output(), everything=True, lasts="30m")
    hold(rest, Output(), NS, lasts="off")
    assert asked.calls == [
        ("PUT", f"{PATH}/hold", {"for_s": 3600}),
        ("PUT", "/heliograph/v1/dr/hold", {"for_s": 1800}),
        ("DELETE", f"{PATH}/hold", None),
    ]
    for wrong in ({}, {"namespace": NS, "everything": True}):
        with pytest.raises(ConfigError, match="--all"):
            hold(rest, Output(), **wrong)  # type: ignore[arg-type]


def test_status_shows_whether_it_does_and_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {"mode": "active-passive", "active": "us", "epoch": 7, "state": "open", "operation": None, "asks": ""}
    automatic = {"after_s": 30.0, "to": ["eu"], "hold_s": 600.0, "held": "anna holds it for 60 s", "lost_s": 44.0}

    class Status(Asked):
        def get(self, path: str) -> Any:
            return {**shown, "targets": {}, "automatic": self.automatic}

    status = Status()
    for status.automatic, words in (  # type: ignore[attr-defined]
        (None, ["automatic failover off"]),
        ({**automatic, "said": "no majority"}, ["lost for 30 s", "anna holds it", "44 s", "no majority"]),
    ):
        disaster_recovery.status(cast(Any, status), Output(), NS)
        said = " ".join(capsys.readouterr().out.split())
        assert all(word in said for word in words), said
