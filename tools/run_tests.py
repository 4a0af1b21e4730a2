"""Runs the suite in two steps: what is only computation, on both cores; then what has real processes, which mostly
wait, four files at a time, the long ones first.

`--system` runs what needs a real peer or a long build instead; `--oracle` what a real Pulsar must answer as we do;
anything else is handed to pytest.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDE_BY_SIDE = (
    "tests/system/test_same_as_pulsar.py",
    "tests/system/test_pulsar_admin.py",
    "tests/system/test_java_client.py",
)


def pytest(title: str, *arguments: str, **environment: str) -> int:
    print(f"== {title}", flush=True)
    command = [sys.executable, "-m", "pytest", "--tb=short", *arguments]
    # With `CI` set pytest prints every compared value whole: one failed test then hides the reasons of all others in a
    # log of limited length.
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    return subprocess.run(command, cwd=ROOT, env={**inherited, "PYTHONHASHSEED": "0", **environment}).returncode


def main() -> int:
    arguments = sys.argv[1:]
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as a shell's background jobs have it, and all that they start: tests interrupt programs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "--system" in arguments:
        arguments.remove("--system")
        return pytest("with a real peer", "-n", "3", "--dist", "loadfile", "-m", "system", "--durations=10", *arguments)
    if "--oracle" in arguments:
        arguments.remove("--oracle")
        alone = pytest(
            "our behaviour tests, against Apache Pulsar",
            "-m",
            "either",
            "--durations=5",
            *arguments,
            HELIOGRAPH_ORACLE="pulsar",
        )
        return pytest("both, side by side", "-m", "system", "--durations=5", *SIDE_BY_SIDE, *arguments) or alone
    first = pytest(
        "units and simulations",
        "-n",
        "2",
        "--dist",
        "worksteal",
        "-m",
        "not wan and not system",
        "--durations=10",
        *arguments,
    )
    second = pytest(
        "real processes",
        "-n",
        "4",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "-m",
        "wan and not system",
        "--durations=10",
        *(arguments or ("geo_tests", "tests")),
    )
    return first or second


if __name__ == "__main__":
    sys.exit(main())
