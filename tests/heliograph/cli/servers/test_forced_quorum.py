"""What a person is told before the quorum is forced, and that nothing is done without a yes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.cli.servers.forced_quorum import force_quorum, plan_lines, rejoin
from heliograph.cli.servers.metadata_members import members
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError, NotAllowed

PLAN = {
    "voters": ["eu", "us"],
    "lost": ["us"],
    "majority": 2,
    "others_may_decide": False,
    "silent_s": {"us": 42.5},
    "generation": 1,
    "term": 3,
    "last_index": 812,
    "committed": 810,
    "applied": 810,
    "writers": ["us/us-broker-0"],
    "wait_s": 6.0,
    "refused": [],
}


class Asked:
    def __init__(self, **changed: Any) -> None:
        self.plan: dict[str, Any] | None = {**PLAN, **changed}
        self.asked: list[tuple[str, Any, bool]] = []
        self.timeout_s = 30.0

    def ask(self, method: str, path: str, given: Any, options: dict[str, bool]) -> dict[str, Any]:
        self.asked.append((path, given, options["dry_run"]))
        return {"node": "eu", "plan": self.plan, "generation": 1, "changed": True}


def test_the_plan_says_it_in_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    asked: Any = Asked()
    force_quorum(asked, Output(), ["us"], dry_run=True)
    told = capsys.readouterr().out
    for words in (
        "us (silent for 42.5 s)",
        "2 voters 2 are",
        "through 812, of term 3",
        "810 are known",
        "other 2 count",
    ):
        assert words in told
    assert "nothing that was answered" in told and "up to 6 s for leases of us/us-broker-0" in told
    assert "--active REGION" in "\n".join(plan_lines("eu", {**PLAN, "others_may_decide": True}))
    assert [dry for *_, dry in asked.asked] == [True]


def test_nothing_is_done_that_is_refused_or_without_a_yes(capsys: pytest.CaptureFixture[str]) -> None:
    refused: Any = Asked(refused=["us leads"])
    with pytest.raises(NotAllowed, match="us leads"):
        force_quorum(refused, Output(), ["us"], yes=True)
    assert "refused: us leads" in capsys.readouterr().out
    asked: Any = Asked()
    with pytest.raises(ConfigError, match="nothing was done"):
        force_quorum(asked, Output(), ["us"])
    assert [dry for *_, dry in (*refused.asked, *asked.asked)] == [True, True]


def test_it_is_done_and_given_again_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked: Any = Asked()
    force_quorum(asked, Output(), ["us,oslo", "ap"], lost_are_stopped=True, yes=True)
    assert "eu decides alone, in generation 1" in capsys.readouterr().out
    assert asked.asked[1][1:] == ({"lost": ["us", "oslo", "ap"], "lost_are_stopped": True}, False)
    asked.plan = None
    force_quorum(asked, Output(), ["us"], yes=True)
    assert "nothing to do: eu decides alone" in capsys.readouterr().out and len(asked.asked) == 3


def test_a_member_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    asked: Any = Asked()
    rejoin(asked, Output(), "us")
    assert "us votes" in capsys.readouterr().out
    assert asked.asked[0][0] == "/heliograph/v1/config/members/us/rejoin"


def test_a_member_that_was_left_behind_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    rest: Any = SimpleNamespace(
        ask=lambda *_: {"node": "us", "leader": None, "members": [], "superseded": True, "writes": {"count": 0}}
    )
    members(rest, Output(), config=True)
    assert "heliograph config rejoin us" in capsys.readouterr().out
