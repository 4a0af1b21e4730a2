"""OpenLogs: the entry logs of one directory that are open to be read.

Is: at most so many of them, the ones that were read last. Isn't: an index, or the log that is being written.
Invariants: only the thread that reads uses it, so nothing is closed under a read; a log that was closed is opened again
by the next read of it. A process that may open nothing more gives back what is open here before it says so.
"""

from __future__ import annotations

import errno

from heliograph.runtime.disk import Buffer, Disk
from storage.bookie.entry_log.entry_log import EntryLog


class OpenLogs:
    """disk: over that directory. logs_max: each takes one descriptor, or two after long reads."""

    def __init__(self, disk: Disk, logs_max: int) -> None:
        assert logs_max > 0
        self.disk, self._logs_max = disk, logs_max
        self._open: dict[EntryLog, None] = {}  # read longest ago first

    def __len__(self) -> int:
        return len(self._open)

    def read(self, log: EntryLog, offset: int, size_bytes: int, goes_on: bool = False) -> Buffer:
        """Blocking; raises OSError. goes_on: as for `EntryLog.read`."""
        self._open.pop(log, None)
        while len(self._open) >= self._logs_max:
            self.close(next(iter(self._open)))
        try:
            found = log.read(self.disk, offset, size_bytes, goes_on)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            self.close_all()
            found = log.read(self.disk, offset, size_bytes, goes_on)
        self._open[log] = None
        return found

    def close(self, log: EntryLog) -> None:
        """It is to be removed, or not read for a while."""
        self._open.pop(log, None)
        log.close()

    def close_all(self) -> None:
        for log in list(self._open):
            self.close(log)
