"""docs/security.md says of each line who shows it: tests that are there, or that there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
SHOWN = "shown by"
NOBODY = "not shown by a test"
_TEST = re.compile(r"`(?:([\w/]+\.py)::)?(test_\w+)`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def rows(text: str) -> list[tuple[str, str]]:
    """First and last cell of each row of the tables whose last column is who shows it."""
    found, counts = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            counts = False
        elif cells[-1] == SHOWN:
            counts = True
        elif counts and not set(line) <= set("|- "):
            found.append((cells[0], cells[-1]))
    return found


def faults(text: str, root: Path) -> list[str]:
    found = []
    for who, shown in rows(text):
        file, tests = "", _TEST.findall(shown)
        if not tests and NOBODY not in shown:
            found.append(f"{who}: names no test, and does not say that there is none")
        for path, name in tests:
            file = path or file
            if not file or not (root / file).is_file():
                found.append(f"{who}: {file or name} is not there")
            elif f"def {name}(" not in (root / file).read_text():
                found.append(f"{who}: {file} has no {name}")
    return found


def test_each_line_has_a_test_that_is_there_or_says_that_it_has_none() -> None:
    text = PAGE.read_text()
    assert len(rows(text)) >= 30 and not faults(text, ROOT), "\n".join(faults(text, ROOT))


def test_what_security_pages_lead_to_is_there() -> None:
    for page in (PAGE, ROOT / "SECURITY.md"):
        lost = [to for to in _LINK.findall(page.read_text()) if not (page.parent / to).exists()]
        assert not lost, (page.name, lost)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("`tests/test_a.py::test_one`, `test_two`", []),
        ("not shown by a test", []),
        ("", ["x: names no test, and does not say that there is none"]),
        ("`tests/test_b.py::test_one`", ["x: tests/test_b.py is not there"]),
        ("`tests/test_a.py::test_three`", ["x: tests/test_a.py has no test_three"]),
        ("`test_one`", ["x: test_one is not there"]),
    ],
)
def test_a_line_that_nobody_shows_is_found(tmp_path: Path, shown: str, said: list[str]) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_one(): ...\ndef test_two(): ...\n")
    text = f"| who | may | shown by |\n|---|---|---|\n| x | y | {shown} |\n\n| z | other |\n|---|---|\n| a | b |\n"
    assert faults(text, tmp_path) == said
