"""docs/failures.md names every known failure and every promise, and only tests that there are, and that `make test`
runs, or where they are marked `long` `make test-system`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import seeds

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
ROWS = {"G": 41, "U": 16}
_NEAR = "geo_tests/wan"
"""Where a file is that is named without its folder."""
_ELSEWHERE = ("tests/system/", "benchmarks/")
"""What wants root, a real peer, or a quiet machine."""


@pytest.mark.parametrize(("kind", "count"), ROWS.items())
def test_every_one_has_a_row_and_a_test_or_says_that_it_has_none(kind: str, count: int) -> None:
    rows = dict(re.findall(rf"^\| {kind}(\d+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE))
    assert sorted(map(int, rows)) == list(range(1, count + 1))
    for number, row in rows.items():
        test = row.split("|")[-1]
        assert ".py" in test or "**none" in test, f"{kind}{number} names no test"


def test_it_says_how_many_worlds_there_are() -> None:
    text = PAGE.read_text()
    passive = seeds.PASSIVE_WORLDS + seeds.SMALL_PASSIVE_WORLDS
    worlds = (seeds.WORLDS, passive, seeds.SUBSCRIPTION_WORLDS)
    links = seeds.LINKS + seeds.TREES
    assert (
        sum(worlds) >= 180 and f"runs {sum(worlds)} whole instances" in text and f"{links} seeds of links alone" in text
    )
    lost = (f"In {seeds.LOST_DISK_WORLDS} further ones", f"In {seeds.VOTER_WORLDS} others each region has three")
    assert all(words in text for words in lost)
    assert [
        int(count) for count in re.findall(r"^\| (\d+) \|", text.partition("## Simulated")[2], re.MULTILINE)
    ] == list(worlds)


def test_it_says_how_many_broken_rules_are_found() -> None:
    text = PAGE.read_text()
    worlds = ast.parse((ROOT / "tests/geo_tests/sim/test_world.py").read_text())
    (mutants,) = (
        node.value
        for node in worlds.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "MUTANTS"
    )
    assert isinstance(mutants, ast.Dict) and f"({len(mutants.keys)} broken rules, each found)" in text
    leadership = ROOT / "tests/region_node/dr/leadership"
    for name, said in (("leadership_simulation", "nine"), ("subscription_leadership", "five")):
        tree = ast.parse((leadership / f"test_{name}.py").read_text())
        (rules,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "_mutants")
        count = sum(isinstance(node, ast.FunctionDef) for node in rules.body)
        assert count == {"five": 5, "nine": 9}[said] and f"test_{name}.py` ({said} mutants)" in text


def test_the_tests_that_it_names_are_there() -> None:
    for line in PAGE.read_text().splitlines():
        known = ""
        for path, name in re.findall(
            r"`([\w/]*\.py)?(?:::)?(test_\w+)?(?:\[[^`]*)?`", line.rsplit("|", 2)[-2] if line.startswith("|") else ""
        ):
            if path:
                file = ROOT / path if "/" in path else ROOT / _NEAR / path
                assert file.exists(), f"{path} is not there"
                assert not path.startswith(_ELSEWHERE), f"{path}: it wants what a machine may not have"
                known = file.read_text()
            if name:
                assert f"def {name}" in known, f"{path or line[:8]}: there is no {name}"
