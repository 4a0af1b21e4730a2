"""Runs the suite in two steps: what is only computation, on both cores; then what has real processes, which mostly wait, two files at a time.

`--system` runs what needs a real peer or a long build instead; anything else is handed to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pytest(title: str, *arguments: str) -> int:
    print(f"== {title}", flush=True)
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}).returncode


def main() -> int:
    arguments = sys.argv[1:]
    if "--system" in arguments:
        arguments.remove("--system")
        return pytest("with a real peer", "-m", "system", "--durations=5", *arguments)
    first = pytest("units and simulations", "-n", "2", "-m", "not wan and not system", "--durations=10", *arguments)
    second = pytest("real processes", "-n", "2", "--dist", "loadfile", "-m", "wan and not system", "--durations=10", *arguments)
    return first or second


if __name__ == "__main__":
    sys.exit(main())
