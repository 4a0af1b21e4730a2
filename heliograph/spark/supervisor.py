"""The process that outlives a Spark driver: starts it, and starts it again when it or its JVM is gone; hands a stop on.

Is: one child in a process group of its own, with its JVM and workers. Isn't: what a query is; nothing of Spark is
imported here.
Invariants: two drivers of one job never run at once: all that is left of the old one's group is killed before the next
begins.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heliograph.spark.driver import AGAIN
from heliograph.spark.job_files.job_file import Job
from heliograph.spark.job_files.running_queries import say

_HEALTHY_S = 300.0
_LOOK_S = 0.2


def pauses(pause_max_s: float, failures: int) -> float:
    """Before the next start, after so many failures one behind another."""
    return min(pause_max_s, 2.0 ** min(failures - 1, 16))


def driver_command(path: Path) -> list[str]:
    return [sys.executable, "-m", "heliograph.spark.driver", str(path)]


def supervise(
    path: Path,
    job: Job,
    *,
    stopping: threading.Event,
    tell: Callable[..., Any] = say,
    command: Callable[[Path], list[str]] = driver_command,
) -> int:
    """Runs until all queries are done, the file turns out wrong, or `stopping` is set. Returns the exit code.

    command: how the driver of a job file is started.
    """
    failures = 0
    while True:
        begun = time.monotonic()
        child = subprocess.Popen(command(path), start_new_session=True)
        try:
            code = _wait(child, stopping, job.stop_s)
        finally:
            _end_group(child)
        if stopping.is_set():
            return 0 if code == 0 else 1
        if code != AGAIN and code >= 0:
            return code
        failures = 1 if time.monotonic() - begun > _HEALTHY_S else failures + 1
        pause = pauses(job.pause_max_s, failures)
        tell("driver.died", code=code, failures=failures, again_in_s=pause)
        if stopping.wait(pause):
            return 0


def _wait(child: subprocess.Popen[bytes], stopping: threading.Event, stop_s: float) -> int:
    while not stopping.wait(_LOOK_S):
        if (code := child.poll()) is not None:
            return code
    child.send_signal(signal.SIGTERM)
    try:
        return child.wait(stop_s)
    except subprocess.TimeoutExpired:
        say("driver.killed", after_s=stop_s)
        return 1


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """The driver, and what it left behind: its JVM, and Python workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
