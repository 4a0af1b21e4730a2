"""InstanceLock: one supervisor a data folder.

Is: an advisory lock on a file there, which ends with its process. Isn't: a lock of what the processes write; each locks
its own.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from heliograph.model.errors import ConfigError
from region_node.runtime.private_files import private_folder


class InstanceLock:
    """The lock of a data folder. Raises ConfigError where another supervisor has it."""

    def __init__(self, data: Path) -> None:
        try:
            private_folder(data)
            self._file: IO[str] = (data / "lock").open("a+")
        except OSError as error:
            raise ConfigError(
                f"the data folder {data} cannot be used ({error.strerror}); choose another with --data"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"the data folder {data} is in use by a running instance: `heliograph down --data {data}` stops it"
            ) from error

    def release(self) -> None:
        self._file.close()
