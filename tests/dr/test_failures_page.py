"""docs/failures.md names every known failure, and only tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "failures.md"
FAILURES = 41
_FOLDERS = ("tests/replicator", "tests/dr", "tests/global_config", "geo_tests/wan", "tests/sim", "tests/kafka")


def test_every_failure_has_a_row_and_a_test_or_says_that_it_has_none() -> None:
    rows = dict(re.findall(r"^\| G(\d+) \|(.*)\|$", PAGE.read_text(), re.MULTILINE))
    assert sorted(map(int, rows)) == list(range(1, FAILURES + 1))
    for number, row in rows.items():
        test = row.split("|")[-1]
        assert ".py" in test or "**none" in test, f"G{number} names no test"


def test_the_tests_that_it_names_are_there() -> None:
    for line in PAGE.read_text().splitlines():
        known = ""
        for path, name in re.findall(r"`([\w/]*\.py)?(?:::)?(test_\w+)?(?:\[[^`]*)?`", line.rsplit("|", 2)[-2] if line.startswith("|") else ""):
            if path:
                found = [ROOT / path] if "/" in path else [ROOT / folder / path for folder in _FOLDERS]
                existing = [file for file in found if file.exists()]
                assert existing, f"{path} is not there"
                known = "".join(file.read_text() for file in existing)
            if name:
                assert f"def {name}" in known, f"{path or line[:8]}: there is no {name}"
