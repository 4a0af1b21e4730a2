"""Runs the suite: what has real processes, which mostly wait, four files at a time, the long ones first; and what is
only computation in the time that they leave, on both cores.

`--system` runs instead what needs a real peer or a long build, and what is marked `long`; `--oracle` what a real Pulsar
must answer as we do; anything else is handed to pytest, and then the two come one after the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
SIDE_BY_SIDE = (
    "tests/system/test_same_as_pulsar.py",
    "tests/system/test_pulsar_admin.py",
    "tests/system/test_java_client.py",
)
NOTHING_CHOSEN = 5
"""What pytest returns where no test is of those that are asked for."""
UNITS = (
    *("-n", "2", "--dist", "worksteal", "-m", "not wan and not system and not long", "--durations=10"),
    "--timeout=1200",  # of a clock that runs on while they stand back
    "--timeout-method=thread",  # ends the worker: raised by a signal within a simulated task it ends that task alone
)
LONGEST = (
    "tests/system/test_terraform.py",
    "tests/system/test_go_client.py",
    "tests/system/test_spark_yarn.py",
    "tests/system/test_systemd.py",
    "tests/packaging/test_layout.py",
    "tests/system/test_spark_setup.py",
    "tests/system/test_spark_tables.py",
    "geo_tests/wan/test_runbook.py",
    "geo_tests/wan/test_spark_kills.py",
)
"""Of those with `--system`, begun first: whichever came last would leave the other workers with nothing to do."""
REAL = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "wan and not system and not long")
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""A JVM of a test ends before what its second compiler makes pays off: a small Spark job takes 35 s of CPU, not 59. To
check the bytes of classes that come from archives of known sums takes another eighth.
"""
WHERE = {"wan": ("geo_tests/wan",), "system": (), "long": ()}
"""Marker -> folders whose conftest gives it; everywhere else a test's file names it."""


def files(*markers: str) -> list[str]:
    """Where tests with one of `markers` are: collecting all others in each worker takes longer than many of them."""
    folders = [folder for marker in markers for folder in WHERE[marker]]
    found = [str(path.relative_to(ROOT)) for top in ("geo_tests", "tests") for path in (ROOT / top).rglob("test_*.py")]
    named = tuple(f"pytest.mark.{marker}" for marker in markers)
    return folders + sorted(
        path
        for path in found
        if not path.startswith(tuple(folders)) and any(name in (ROOT / path).read_text() for name in named)
    )


def in_order(files: list[str]) -> list[str]:
    """The longest first, and then those of Spark evenly between the others: Spark gives its Python workers 10 s to
    start, and several JVMs that start at once take longer on two cores.
    """
    long = [file for file in LONGEST if file in files]
    spark = [file for file in files if file not in long and "spark" in file]
    others = [file for file in files if file not in long and file not in spark]
    every = len(others) / len(spark) if spark else 0
    places = [(n, file) for n, file in enumerate(others)] + [(n * every, file) for n, file in enumerate(spark)]
    return long + [file for _, file in sorted(places)]


def started(*arguments: str, out: IO[bytes] | None = None, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "--tb=short", *arguments]
    # With `CI` set pytest prints every compared value whole: one failed test then hides the reasons of all others in a
    # log of limited length.
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    given = {"PYTHONHASHSEED": "0", "JAVA_TOOL_OPTIONS": JAVA, **inherited, **environment}
    return subprocess.Popen(command, cwd=ROOT, env=given, stdout=out)


def pytest(title: str, *arguments: str, **environment: str) -> int:
    print(f"== {title}", flush=True)
    return started(*arguments, **environment).wait()


def stand_back(pid: int) -> None:
    """`pid`, and what it starts, gets the time that nobody else wants, before what is built meanwhile (`.ci/run`)."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 12)


def both_at_once() -> int:
    with tempfile.TemporaryFile() as printed:
        units = started(*UNITS, out=printed)
        stand_back(units.pid)
        try:
            real = pytest("real processes", *REAL, "--durations=10", *files("wan"))
            print("== units and simulations, which ran beside them", flush=True)
            failed = units.wait()
        finally:
            units.terminate()
        printed.seek(0)
        sys.stdout.buffer.write(printed.read())
        sys.stdout.flush()
    return failed or real


def main() -> int:
    arguments = sys.argv[1:]
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as a shell's background jobs have it, and all that they start: tests interrupt programs
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "--system" in arguments:
        arguments.remove("--system")
        where = arguments or in_order(files("system", "long"))
        options = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "--durations=10")
        return pytest("real peers, long builds, long tests", *options, "-m", "system or long", *where)
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
    if not arguments:
        return both_at_once()
    first = pytest("units and simulations", *UNITS, *arguments)
    second = pytest("real processes", *REAL, *arguments)
    return max(code if code != NOTHING_CHOSEN or first == second else 0 for code in (first, second))


if __name__ == "__main__":
    sys.exit(main())
