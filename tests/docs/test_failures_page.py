"""docs/failures.md names every known failure and every promise, and only tests that there are, and that `make test`
runs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.geo_tests.sim import test_passive_world, test_replicated_subscriptions, test_world
from tests.replicator import test_link_simulation, test_tree_simulation

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
ROWS = {"G": 41, "U": 16}
_FOLDERS = (
    "tests/replicator",
    "tests/dr",
    "tests/global_config",
    "tests/transactions",
    "geo_tests/wan",
    "tests/sim",
    "tests/kafka",
)
_ELSEWHERE = ("tests/system/", "benchmarks/")
"""What `make test` does not run."""


@pytest.mark.parametrize(("kind", "count"), ROWS.items())
def test_every_one_has_a_row_and_a_test_or_says_that_it_has_none(kind: str, count: int) -> None:
    rows = dict(re.findall(rf"^\| {kind}(\d+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE))
    assert sorted(map(int, rows)) == list(range(1, count + 1))
    for number, row in rows.items():
        test = row.split("|")[-1]
        assert ".py" in test or "**none" in test, f"{kind}{number} names no test"


def test_it_says_how_many_worlds_there_are() -> None:
    text = PAGE.read_text()
    passive = test_passive_world.PASSIVE_WORLDS + test_passive_world.SMALL_PASSIVE_WORLDS
    worlds = (test_world.WORLDS, passive, test_replicated_subscriptions.SUBSCRIPTION_WORLDS)
    links = test_link_simulation.LINKS + test_tree_simulation.TREES
    assert (
        sum(worlds) >= 500 and f"runs {sum(worlds)} whole instances" in text and f"{links} seeds of links alone" in text
    )
    assert [
        int(count) for count in re.findall(r"^\| (\d+) \|", text.partition("## Simulated")[2], re.MULTILINE)
    ] == list(worlds)


def test_the_tests_that_it_names_are_there() -> None:
    for line in PAGE.read_text().splitlines():
        known = ""
        for path, name in re.findall(
            r"`([\w/]*\.py)?(?:::)?(test_\w+)?(?:\[[^`]*)?`", line.rsplit("|", 2)[-2] if line.startswith("|") else ""
        ):
            if path:
                found = [ROOT / path] if "/" in path else [ROOT / folder / path for folder in _FOLDERS]
                existing = [file for file in found if file.exists()]
                assert existing, f"{path} is not there"
                assert not path.startswith(_ELSEWHERE), f"{path}: `make test` does not run it"
                known = "".join(file.read_text() for file in existing)
            if name:
                assert f"def {name}" in known, f"{path or line[:8]}: there is no {name}"
