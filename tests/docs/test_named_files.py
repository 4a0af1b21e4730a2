"""Every module and every test that a page names is there: evidence that nobody finds is none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(
    r"(?<![\w/.])(?P<path>(?:tests|geo_tests|storage|replicator|region_node|heliograph|global_config|local_meta"
    r"|benchmarks|tools)/[\w/]+\.py)(?:::(?P<test>\w+))?"
)


def faults(page: str, text: str, root: Path = ROOT) -> list[str]:
    """What a page names and nobody finds. A path may be given below tests/, as a table's heading says; `test_some_*`
    names all that begin so.
    """
    found = []
    for named in NAMED.finditer(text):
        places = [place for place in (root / named["path"], root / "tests" / named["path"]) if place.exists()]
        if not places:
            found.append(f"{page}: {named['path']}")
        elif named["test"] and not re.search(rf"def {named['test']}", places[0].read_text()):
            found.append(f"{page}: {named[0]}")
    return found


def test_what_pages_name_is_there() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [fault for page in pages for fault in faults(str(page.relative_to(ROOT)), page.read_text())]
    assert not found, found


def test_what_is_not_there_is_seen(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_it() -> None: ...\n")
    assert faults("p", "`tests/test_a.py`, `tests/test_a.py::test_it`", tmp_path) == []
    assert faults("p", "`tests/test_b.py` and `tests/test_a.py::test_no`", tmp_path) == [
        "p: tests/test_b.py",
        "p: tests/test_a.py::test_no",
    ]
