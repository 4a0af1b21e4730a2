"""What this process uses of its machine: processor time and memory, as the system tells it."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cpu_s() -> float:
    """Of all threads, in seconds, since the process began."""
    times = os.times()
    return times.user + times.system


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not a system with /proc
        return 0


def memory_limit_bytes() -> int:
    """What this process may have: its control group's limit, else the machine's memory; 0: unknown."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    try:
        return min(machine, int(_GROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no group, or "max"
        return machine
