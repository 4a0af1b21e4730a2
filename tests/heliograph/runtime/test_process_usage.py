"""Cores and memory that this process may use: by its control groups, its pinning, and what is written in its
settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from heliograph.runtime.process_usage import allowed_cpus, cores, memory_limit_bytes, parse_cpus


def groups(tmp_path: Path, **files: str) -> tuple[Path, Path]:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "a.slice" / "b.service").mkdir(parents=True)
    own.write_text("12:cpu:/old\n0::/a.slice/b.service\n")
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root, own


@pytest.mark.parametrize("where", ["", "a.slice__", "a.slice__b.service__"])
def test_the_least_of_the_groups_around_it_counts(tmp_path: Path, where: str) -> None:
    files = {
        "cpu.max": "max 100000\n",
        "memory.max": "max\n",
        f"{where}cpu.max": "50000 100000\n",
        f"{where}memory.max": "268435456\n",
    }
    root, own = groups(tmp_path, **files)
    assert cores(root, own) == 0.5
    assert memory_limit_bytes(root, own) == 256 << 20


def test_without_a_limit_it_is_the_machine(tmp_path: Path) -> None:
    root, own = groups(tmp_path, **{"cpu.max": "max 100000", "memory.max": "max"})
    nothing = tmp_path / "nothing"
    for place in ((root, own), (nothing, nothing)):
        assert cores(*place) == len(allowed_cpus())
        assert memory_limit_bytes(*place) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    root, own = groups(
        tmp_path, cpu__x="", memory__x="", **{"cpu__cpu.cfs_quota_us": "25000", "cpu__cpu.cfs_period_us": "100000"}
    )
    (root / "memory" / "memory.limit_in_bytes").write_text("1048576\n")
    assert (cores(root, own), memory_limit_bytes(root, own)) == (0.25, 1 << 20)
    (root / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores(root, own) == len(allowed_cpus())


def test_cores_are_written_as_taskset_does() -> None:
    assert parse_cpus("0-3, 8,2") == [0, 1, 2, 3, 8]
    for wrong in ("", "x", "3-1", "1-", "-1", "5000"):
        with pytest.raises(ConfigError, match="such as 0-3,8"):
            parse_cpus(wrong)


def test_a_pinned_process_runs_there_and_a_core_that_is_not_there_is_refused() -> None:
    first = allowed_cpus()[0]
    script = (
        "import sys; from heliograph.runtime.process_usage import *; pin(parse_cpus(sys.argv[1])); "
        "print(allowed_cpus(), cores())"
    )
    done = subprocess.run([sys.executable, "-c", script, str(first)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"[{first}]", "1.0"] or done.stdout.startswith(f"[{first}]")
    refused = subprocess.run([sys.executable, "-c", script, "4095"], capture_output=True, text=True)
    assert refused.returncode and "this process may run on" in refused.stderr


def test_a_turn_at_the_disk_is_taken_by_the_threads_that_start_afterwards() -> None:
    script = (
        "import threading, psutil; from heliograph.runtime.process_usage import disk_priority; disk_priority(6); seen "
        "= []\n"
        "one = threading.Thread(target=lambda: "
        "seen.append(psutil.Process(threading.get_native_id()).ionice().value)); one.start(); one.join(); print(seen)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[6]\n"
