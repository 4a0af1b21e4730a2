"""What this process uses of its machine, and what it may use: processor time and cores, memory, as the system and its
control group tell it.

Is: reads of /proc and /sys/fs/cgroup (version 2; of version 1 the limits at the root of the mount), the choice of
cores, and the turn at the disk. Isn't: a limit of its own.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from heliograph.model.errors import ConfigError

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


class ProcessUsage(Protocol):
    """What a process uses of its machine, and may use; this module is one."""

    def cpu_s(self) -> float: ...

    def resident_bytes(self) -> int: ...

    def memory_limit_bytes(self) -> int: ...

    def cores(self) -> float: ...


def cpu_s() -> float:
    """Returns the processor seconds, user and system, of all threads since the process began."""
    times = os.times()
    return times.user + times.system


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not a system with /proc
        return 0


def memory_limit_bytes(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> int:
    """What this process may have: the least of its control groups' limits and the machine's memory; 0: unknown."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    limits = [machine]
    for path in [
        *(folder / "memory.max" for folder in _folders(groups, own)),
        groups / "memory" / "memory.limit_in_bytes",
    ]:
        text = _text(path)
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def cores(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> float:
    """How many this process may use at once: those it is pinned to, or less where a control group has a quota of
    processor time (0.5: half of one).
    """
    allowed = float(len(allowed_cpus()))
    for folder in _folders(groups, own):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            allowed = min(allowed, int(quota) / int(period))
    old, period = _text(groups / "cpu" / "cpu.cfs_quota_us"), _text(groups / "cpu" / "cpu.cfs_period_us")
    if old.isdigit() and period.isdigit() and int(period):
        allowed = min(allowed, int(old) / int(period))
    return max(allowed, 0.01)


def open_files_max() -> int:
    """How many files and connections this process may have open; the soft limit is raised to the hard one first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1 << 20)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a system that caps it elsewhere
            return soft
    return hard


def allowed_cpus() -> list[int]:
    """The numbers of the cores that this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return list(range(os.cpu_count() or 1))


def parse_cpus(text: str) -> list[int]:
    """`0-3,8` as numbers, as taskset writes them. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if (
            not low.isdigit()
            or (dash and not high.isdigit())
            or (dash and int(high) < int(low))
            or max(int(low), int(high or 0)) > 4095
        ):
            raise ConfigError(f"cpus {text!r}: expected numbers of cores, such as 0-3,8")
        found += range(int(low), int(high or low) + 1)
    return sorted(set(found))


def pin(cpus: Iterable[int]) -> None:
    """From now on this process, and what it starts, runs on these cores alone. Raises ConfigError where the system or
    its control group has none of them.
    """
    wanted = sorted(set(cpus))
    try:
        os.sched_setaffinity(0, wanted)
    except AttributeError:
        raise ConfigError("cpus is set, and this system cannot pin a process to cores: leave it empty") from None
    except OSError as error:
        shown = ",".join(map(str, wanted))
        raise ConfigError(
            f"cpus {shown} cannot be used ({error.strerror}): this process may run on "
            f"{','.join(map(str, allowed_cpus()))}"
        ) from error


def disk_priority(level: int) -> None:
    """From now on this process's reads and writes have that turn at the disk: 0 first, 7 last, of the best-effort
    class; 4 is what the system gives.

    Before the first thread starts: those that run already keep theirs. Schedulers that know no priorities take no
    notice. Raises ConfigError.
    """
    import psutil  # a server has it; the package that goes to Spark's executors does not

    try:
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, level)
    except (AttributeError, OSError, psutil.Error) as error:
        raise ConfigError(f"disk_priority is set, and this system refuses it ({error}): leave it empty") from error


def _folders(groups: Path, own: Path) -> Iterator[Path]:
    """Yields the folders of this process's control group and those around it, as far as they can be seen from here; in
    a container that is the root alone.
    """
    yield groups
    for line in _text(own).splitlines():
        if line.startswith("0::"):
            folder = groups
            for part in line[3:].strip("/").split("/"):
                folder = folder / part
                if part and part != "..":
                    yield folder


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
