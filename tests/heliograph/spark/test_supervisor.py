"""Whether a driver that ended is started again, by how it ended. What ends here is a small program, not Spark."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from heliograph.spark.driver import AGAIN
from heliograph.spark.job_files.job_file import Job
from heliograph.spark.supervisor import pauses, supervise

KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def ends(code: int) -> str:
    return f"import sys; sys.exit({code})"


@pytest.mark.parametrize(
    ("programs", "code"),
    [
        ([ends(0)], 0),
        ([ends(2)], 2),
        ([ends(AGAIN), ends(0)], 0),
        ([KILLED, ends(AGAIN), KILLED, ends(3)], 3),
    ],
)
def test_a_driver_that_died_or_asks_for_it_is_started_again_and_no_other(
    tmp_path: Path, programs: list[str], code: int
) -> None:
    left, told = list(programs), list[dict[str, Any]]()
    job = Job(name="j", master="local", conf={}, defaults={}, queries=(), pause_max_s=0.0)
    found = supervise(
        tmp_path / "job.toml",
        job,
        stopping=threading.Event(),
        tell=lambda event, **fields: told.append({"event": event, **fields}),
        command=lambda path: [sys.executable, "-c", left.pop(0)],
    )
    assert found == code and not left
    assert [one["failures"] for one in told] == list(range(1, len(programs)))


def test_one_that_is_told_to_stop_ends_and_is_not_started_again(tmp_path: Path) -> None:
    stopping, begun = threading.Event(), list[Path]()

    def command(path: Path) -> list[str]:
        begun.append(path)
        stopping.set()
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    job = Job(name="j", master="local", conf={}, defaults={}, queries=())
    assert supervise(tmp_path / "job.toml", job, stopping=stopping, command=command) == 1
    assert begun == [tmp_path / "job.toml"]


def test_pauses_double_up_to_what_the_job_says() -> None:
    assert [pauses(60.0, n) for n in (1, 2, 3, 6, 7, 1000)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
