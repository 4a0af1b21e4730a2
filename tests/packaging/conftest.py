"""Both wheels of this checkout, and an environment with nothing but them, what they want, and the official client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import lock

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / "requirements" / "server.txt"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    _run(sys.executable, ROOT / "tools" / "wheels.py", folder)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def programs(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder of programs."""
    folder = tmp_path_factory.mktemp("environment") / "bin"
    _run(sys.executable, "-m", "venv", folder.parent)
    locked = lock.read((ROOT / "requirements" / "lock.txt").read_text())
    clients = folder.parent / "clients.txt"
    clients.write_text("\n".join(one.text for one in locked if one.name in ("pulsar-client", "certifi")))
    _run(folder / "python", "-m", "pip", "install", "-q", "--require-hashes", "-r", SERVER, "-r", clients)
    _run(folder / "python", "-m", "pip", "install", "-q", "--no-index", *wheels)
    return folder


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
