"""Whether a table in LMDB is whole: every page that is in use is read, and every row's checksum.

Is: the walk, and its run in a process of its own: LMDB follows page numbers unchecked, and what garbage in a page leads
to (a signal) must not end the member. Isn't: what is done about it (`raft_node`).
Invariants: nothing is written. A walk that could not be made says nothing about the table.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import lmdb

from heliograph.kv.engine.lmdb_store import check_all, damaged
from heliograph.model.errors import CorruptData

_DAMAGED = 3
_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


def check_in_a_child(folder: str) -> None:
    """Blocking, for as long as it takes to read the table. Raises CorruptData."""
    child = subprocess.run(
        [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", __name__, folder],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if -child.returncode in _SIGNALS:
        raise damaged(f"reading it ends a process by {signal.Signals(-child.returncode).name}")
    if child.returncode == _DAMAGED:
        raise damaged(child.stderr.strip()[-500:])


def main(folder: str) -> int:
    try:
        check_all(folder)
    except (
        CorruptData,
        lmdb.CorruptedError,
        lmdb.InvalidError,
        lmdb.PageNotFoundError,
        lmdb.PanicError,
        lmdb.VersionMismatchError,
    ) as error:
        sys.stderr.write(str(error.__cause__ or error))
        return _DAMAGED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
