"""The port to one directory on one disk: files by name, and work that runs on that disk's own thread.

Is: the protocol that `heliograph.runtime.system_disk` (threads) and the simulator (virtual time, power cuts) implement.
Isn't: caching, formats, or retries. A failed write or sync is final: the caller drops the directory. What is not one,
and may pass, `is_transient` says for everybody who keeps files.

Rules that both implementations keep:
- What was written but not synced may be lost, whole or in part, torn at any 512-byte sector, and reordered, by a crash.
- `rename`, `remove`, and the creation of a file are durable only after `sync_directory`.
- `submit` and `submit_sync` run jobs one at a time, in the order given, off the event loop; callbacks run on the event
  loop, in that order.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_PASSING = (errno.ENOSPC, errno.EDQUOT, *_OUT_OF_FILES, errno.ENOMEM)


def is_transient(error: BaseException) -> bool:
    """No space, no memory, or no descriptor, for a file that is to be made or opened: nothing was lost, and it may
    pass.
    """
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _PASSING)


def none_now(error: BaseException, what: str, where: str) -> str:
    """Why there can be no other `what` just now, of a transient error, and what to do. where: " on …", or ""."""
    if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
        return f"too many open files for {what}{where}: raise the limit (LimitNOFILE=, ulimit -n)"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return f"no memory for {what}{where}: give this machine more, or run less on it"
    return f"no space for {what}{where}: make room on its disk"


class File(Protocol):
    """One open file. Blocking: call it from a job, or at start-up. Every method raises OSError."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes all of `buffers` at `offset`; returns the bytes written, which is always all of them."""
        ...

    def pread(self, size_bytes: int, offset: int) -> bytes:
        """Returns up to `size_bytes`; shorter only at the end of the file."""
        ...

    def pread_around(self, size_bytes: int, offset: int) -> Buffer:
        """As `pread`, past the system's cache where that is possible: for large pieces that are read once. The memory
        is used again when no view is left.
        """
        ...

    def expect_scattered(self) -> None:
        """From now on a read brings what it asks for, and nothing that lies behind it: whoever reads says how far
        ahead, and the disk is soon free again.
        """
        ...

    def expect_sequence(self) -> None:
        """From now on the system may bring as far ahead of a read as it likes, until `expect_scattered`."""
        ...

    def datasync(self) -> None:
        """Makes what was written durable (contents and size)."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def size_bytes(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory, with a thread for its jobs. Every method but `submit` and `submit_sync` works on the thread that
    calls it.
    """

    def open(self, name: str, *, create: bool = False) -> File:
        """Opens for reading and writing. Raises FileNotFoundError unless `create`."""
        ...

    def names(self) -> list[str]:
        """The files in the directory, sorted."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None: ...

    def free_bytes(self) -> int: ...

    def submit(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Runs `job` on this disk's thread; then `done(result, None)` or `done(None, error)` on the event loop."""
        ...

    def submit_sync(
        self, file: File, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]
    ) -> None:
        """Group commit: writes `buffers` at `offset`, and calls `done` once it is durable.

        Calls that wait together share one sync; contiguous ones share one write. `done` is called in order. After a
        failure every later call on the same file fails too. Only the event loop calls this.
        """
        ...

    def sync_at_once(self, file: File, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Writes `buffers` at `offset` and syncs them before it returns, on the calling thread, where that is known to
        take next to no time.

        False: nothing was done, `submit_sync` is to do it. Raises OSError, which is final for the file. Only the event
        loop calls this.
        """
        ...

    def close(self) -> None:
        """Waits for what was submitted, then ends the thread."""
        ...
