"""~/.cache/heliograph: programs and libraries that tests and benchmarks fetch or build once, and find again.

Is: one folder or file under a name that says its version. Isn't: what is fetched, or from where.
Invariants: what stands under its name is whole: it is made beside it and renamed; of several processes that want it at
once one makes it, the others wait. What cannot be had is asked for once a process. The time limit of a test that comes
first does not run meanwhile.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path("~/.cache/heliograph").expanduser()


_refused: dict[str, BaseException] = {}


def once(name: str, make: Callable[[Path], None]) -> Path:
    """CACHE/name. make: fills an empty folder, which becomes it; or leaves a file `made` there, which does. What it
    raises passes, and nothing is kept.
    """
    found = CACHE / name
    if found.exists():
        return found
    if name in _refused:
        raise _refused[name]
    found.parent.mkdir(parents=True, exist_ok=True)
    scratch = found.with_name(f"{found.name}.new")
    with _no_alarm(), found.with_name(f"{found.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            try:
                make(scratch)
                (scratch / "made" if (scratch / "made").is_file() else scratch).rename(found)
            except BaseException as error:
                _refused[name] = error
                raise
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return found


@contextmanager
def _no_alarm() -> Iterator[None]:
    left, every = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, every)
