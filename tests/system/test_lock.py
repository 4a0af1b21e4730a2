"""The locked versions against the index: none was taken back by its makers since, and they are of today's
requirements.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_no_locked_version_was_taken_back() -> None:
    command = [sys.executable, str(ROOT / "tools" / "lock.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    if "did not answer" in done.stdout:
        pytest.skip(done.stdout.strip())
