"""On a cluster there is what the documentation names, and no more: all of the Spark package is imported with these
packages alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import importlib, pkgutil, sys
sys.path[:0] = sys.argv[1:]
import heliograph.spark
for module in pkgutil.walk_packages(heliograph.spark.__path__, "heliograph.spark."):
    importlib.import_module(module.name)
"""


def needed(packages: list[str]) -> set[str]:
    """With what they need themselves, as far as it is installed: some is of other systems."""
    found: set[str] = set()
    left = list(packages)
    while left:
        name = left.pop()
        try:
            requires = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            left += [re.split(r"[^\w.-]", each)[0] for each in requires if "extra ==" not in each]
    return found


def test_what_the_wheel_needs_on_a_cluster_is_what_is_said(tmp_path: Path) -> None:
    named = re.search(r"`pip install (pyarrow msgspec [\w ]+)`", (ROOT / "docs" / "spark.md").read_text())
    assert named is not None
    for name in needed([*named[1].split(), "pyspark"]):
        for top in {Path(str(file)).parts[0] for file in importlib.metadata.files(name) or ()} - {"..", "__pycache__"}:
            if not (tmp_path / top).exists():
                (tmp_path / top).symlink_to(str(importlib.metadata.distribution(name).locate_file(top)))
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr[-1500:]
