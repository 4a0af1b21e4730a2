"""Private files: what a process keeps is for its own user alone, however the machine is set.

Is: the umask of a server process, and folders that others cannot enter. Isn't: encryption, or files that are made for
others (key sets, targets of Prometheus, landed tables), which whoever makes them leaves to the user's own umask.
Why: the metadata holds the secret by which brokers trust each other, and verifiers of passwords; journals and entry
logs hold what everybody has published.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from heliograph.runtime.system_disk import FOLDER_MODE

OTHERS = 0o077


def keep_files_private() -> None:
    """What this process, and what it starts, makes from here on is for its user alone."""
    os.umask(OTHERS)


def private_folder(path: Path) -> None:
    """Makes the folder where it is missing, and shuts it. Raises OSError where it cannot be made."""
    path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    shut(path)


def shut(path: Path) -> None:
    """Takes others' rights from a folder that is there and is this user's; one in which anybody may make files (/tmp)
    stays as it is.
    """
    with contextlib.suppress(OSError):  # a dead disk is told by whoever uses it
        found = path.stat()
        if found.st_mode & OTHERS and not found.st_mode & stat.S_ISVTX and found.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)
