"""What is cheap to watch: every module says what it is, and its tests lie where it does; nothing is a junk drawer,
nothing speaks of the workplace, nothing is left over.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("heliograph", "global_config", "local_meta", "storage", "replicator", "region_node")
DRAWERS = {"util", "utils", "helper", "helpers", "common", "misc", "base"}
WORKPLACE = re.compile(
    "|".join((r"/w[o]rk/", r"\bT[O]DO\b", r"\bF[I]XME\b", r"\bX[X]X\b", r"NotImplementedErr[o]r\(\)"))
)


def sources() -> list[Path]:
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py")) if not p.name.endswith("_pb2.py")]


def test_every_module_says_what_it_is() -> None:
    silent = [p for p in sources() if p.read_text().strip() and ast.get_docstring(ast.parse(p.read_text())) is None]
    assert not silent, silent


def test_no_junk_drawers() -> None:
    assert not [p for p in sources() if p.stem in DRAWERS]


def test_nothing_speaks_of_the_workplace() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if (
            path.suffix in (".py", ".md", ".toml", ".txt", ".conf", ".xml")
            and path.exists()
            and WORKPLACE.search(path.read_text())
        ):
            found.append(name)
    assert not found, found


def test_the_tests_that_documents_name_are_there() -> None:
    """A rule that says what holds it must not outlive that. (Decisions tell what was; they are not changed.)"""
    files = [p for folder in ("tests", "geo_tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    there = {p.name for p in files} | {name for p in files for name in re.findall(r"def (test_\w+)", p.read_text())}
    missing = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.parent.name != "decisions":
            named = re.findall(r"`(?:[\w/]+/)?(test_\w+(?:\.py)?)`", page.read_text())
            missing += [f"{page.relative_to(ROOT)}: {name}" for name in named if name not in there]
    assert not missing, missing


def test_versions_agree() -> None:
    wanted = re.search(r'version = "([^"]+)"', (ROOT / "pyproject.toml").read_text())
    server = (ROOT / "packaging" / "server" / "pyproject.toml").read_text()
    assert wanted is not None
    assert f'version = "{wanted[1]}"' in server and f"heliograph=={wanted[1]}" in server
    assert f'__version__ = "{wanted[1]}"' in (ROOT / "heliograph" / "__init__.py").read_text()
