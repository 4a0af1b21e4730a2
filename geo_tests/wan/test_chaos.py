"""A short piece of the chaos run: five kinds of fault between and in three real regions, each over without help, and
the whole history checked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from geo_tests.wan.chaos import KINDS, run

pytestmark = pytest.mark.long


def test_faults_end_by_themselves_and_the_history_is_whole(tmp_path: Path) -> None:
    kinds = ("island", "kill-broker", "limit-data", "change-and-cut", "unmount-bookie")
    found = run(tmp_path, ("us", "eu", "ap"), kinds, seed=7, minutes=0.0)
    assert (
        found.wrong == []
        and sorted(found.kinds) == sorted(kinds)
        and found.compared["at risk"]
        and found.compared["limbo"]
    )


def test_there_are_at_least_twenty_kinds() -> None:
    assert len(KINDS) >= 20
