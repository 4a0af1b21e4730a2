"""Releases for hosts: folders of wheels, of this checkout under a version of the test's own, with all that they want.

Is: what `wheels` of the Terraform modules names, and what `install.sh` installs without an index. Isn't: the
installing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cache import once
from tests.system import programs

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "terraform" / "modules" / "region" / "scripts" / "install.sh"
_PARTS = (
    "heliograph",
    "pyspark_heliograph.py",
    "global_config",
    "local_meta",
    "storage",
    "replicator",
    "region_node",
    "packaging",
    "tools",
    "requirements",
)
_VERSIONED = ("pyproject.toml", "packaging/server/pyproject.toml", "heliograph/__init__.py")


def dependencies() -> Path:
    """Wheels of all that the servers want, fetched once for a lock file."""
    locked = ROOT / "requirements" / "server.txt"

    def fetch(scratch: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(scratch)]
        command += ["--only-binary", ":all:", "--require-hashes", "-r", str(locked)]
        try:
            programs.fetch(command, scratch)
        except subprocess.SubprocessError as error:
            pytest.skip(f"the wheels that hosts install cannot be fetched here: {programs.reason(error)}")

    return once(f"wheels-{programs.digest(locked)}", fetch)


def wheels(folder: Path, version: str) -> Path:
    """A folder with everything that a host installs; of this checkout, called `version`."""
    source = folder / "source"
    for part in [*_PARTS, "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / part, source / part)
    for name in _VERSIONED:
        text = (source / name).read_text()
        assert "0.1.0" in text
        (source / name).write_text(text.replace("0.1.0", version))
    shutil.copytree(dependencies(), folder / "wheels", copy_function=_linked)
    subprocess.run(
        [sys.executable, str(source / "tools" / "wheels.py"), str(folder / "wheels")], check=True, capture_output=True
    )
    return folder / "wheels"


def _linked(source: str, target: str) -> None:
    """The cache of fetched wheels may lie on another disk than the test's folder."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)
