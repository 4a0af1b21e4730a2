"""What a chaos run leaves behind says what was done, how often, and what was wrong."""

from __future__ import annotations

import json
from pathlib import Path

from geo_tests.wan.chaos_report import Event, Summary, lines, write


def summary(*wrong: str) -> Summary:
    events = [Event("cut", "us-eu", 1.5), Event("cut", "eu-ap", 2.5), Event("wipe-bookie", "us-bookie-0", 0.5)]
    return Summary(
        seed=3,
        regions=["us", "eu", "ap"],
        bookies=3,
        began=1_700_000_000.0,
        took_s=120.0,
        events=events,
        messages=9000,
        compared={"at risk": 20, "limbo": 2},
        wrong=list(wrong),
    )


def test_a_terminal_is_told_the_count_of_each_kind_and_of_each_report() -> None:
    said = lines(summary("us's messages in eu: 3 lost"))
    assert "3 faults of 2 kinds, 9000 messages, slowest recovery 2.5 s after cut at eu-ap" in said
    assert "cut 2, wipe-bookie 1" in said and "at risk 20, limbo 2" in said
    assert said.endswith("WRONG: us's messages in eu: 3 lost")
    assert "WRONG" not in lines(summary())


def test_both_files_say_the_same(tmp_path: Path) -> None:
    write(summary(), tmp_path / "reports" / "chaos")
    told = json.loads((tmp_path / "reports" / "chaos.json").read_text())
    assert told["kinds"] == {"cut": 2, "wipe-bookie": 1} and told["compared"] == {"at risk": 20, "limbo": 2}
    assert told["wrong"] == [] and told["events"][0] == {"kind": "cut", "where": "us-eu", "took_s": 1.5}
    page = (tmp_path / "reports" / "chaos.md").read_text()
    assert "| cut | 2 | 2.5 |" in page and "| at risk | 20 |" in page and "Nothing was wrong." in page
    assert f"Commit {told['commit']}" in page
    write(summary("one"), tmp_path / "reports" / "chaos")
    assert "- one" in (tmp_path / "reports" / "chaos.md").read_text()
