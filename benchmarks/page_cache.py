"""The page cache, emptied of single folders, so that a read meets the disk.

Is: asking the system for it. Isn't: a promise that it obeys: what is not written back yet stays.
"""

from __future__ import annotations

import os
from pathlib import Path


def forget(folder: Path) -> None:
    """Asks the page cache to drop the files below; what is not written back yet stays."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
