"""`make quick` chooses the tests nearest to a change, by path and by imports, and begins none after its time."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import quick

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("storage/bookie/journal/journal.py", "storage.bookie.journal.journal"),
        ("storage/bookie/journal/__init__.py", "storage.bookie.journal"),
        ("tests/test_quick.py", None),
        ("docs/architecture.md", None),
    ],
)
def test_only_files_of_the_product_are_modules(path: str, module: str | None) -> None:
    assert quick.module_of(path) == module


def test_a_module_is_tested_by_the_file_of_its_name_else_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "storage" / "bookie"
    folder.mkdir(parents=True)
    for name in ("test_journal.py", "test_journal_sync.py", "test_other.py", "world.py"):
        (folder / name).write_text("")
    named = quick.tests_of("storage.bookie.journal", tmp_path)
    assert named == ["tests/storage/bookie/test_journal.py", "tests/storage/bookie/test_journal_sync.py"]
    assert len(quick.tests_of("storage.bookie.nameless", tmp_path)) == 3
    assert len(quick.tests_of("storage.bookie.empty.deep", tmp_path)) == 3, "the nearest folder that has any"


def test_tests_that_import_a_changed_module_are_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_a.py").write_text("from storage.bookie.journal import Journal\n")
    (folder / "test_b.py").write_text("import storage.bookie.journal\n")
    (folder / "test_c.py").write_text("from storage.bookie import journal\n")
    (folder / "test_d.py").write_text("from storage.bookie import cookie\n")
    found = quick.importing_tests({"storage.bookie.journal"}, tmp_path)
    assert found == ["tests/test_a.py", "tests/test_b.py", "tests/test_c.py"]


def test_whoever_opens_a_module_is_told_its_tests(capsys: pytest.CaptureFixture[str]) -> None:
    found = quick.of_module("replicator.dedup.producer_dedup")
    assert "tests/replicator/dedup/test_producer_dedup_two_regions.py" in found["of its name, or of its folder"]
    assert all(not set(a) & set(b) for a, b in itertools.combinations(found.values(), 2)), "each is named once"
    assert quick._list("replicator/nowhere.py") == 2
    assert "name a file below heliograph" in capsys.readouterr().out


def test_the_nearest_come_first_and_what_matters_most_always() -> None:
    chosen = quick.choice(["storage/ledger/writing/ledger_append.py"])
    assert chosen[0] == "tests/storage/ledger/writing/test_ledger_append.py"
    assert set(quick.MOST) <= set(chosen) and len(chosen) == len(set(chosen))
    assert set(quick.choice([])) == set(quick.MOST)
    missing = [path for path in quick.MOST if not (ROOT / path).exists()]
    assert not missing, missing


def test_no_test_is_begun_after_the_time_is_up(tmp_path: Path) -> None:
    """And those that were not are counted, so that nobody takes them for passed."""
    (tmp_path / "test_three.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): assert False\n")
    for until, code, left in ((time.monotonic() + 600, 1, 0), (time.monotonic(), 0, 3)):
        told = tmp_path / f"left-{left}"
        environment = {
            **os.environ,
            "QUICK_UNTIL": str(until),
            "QUICK_LEFT": str(told),
            "PYTHONPATH": str(ROOT / "tools"),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "quick_budget", "-p", "no:cacheprovider", str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout
        assert (told.stat().st_size if told.exists() else 0) == left
