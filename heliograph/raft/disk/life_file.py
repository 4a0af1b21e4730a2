"""Life: which life of a member its folder is of, and whether it is proven: a small file beside its log.

Is: writing and reading it. Isn't: what proves a life (`founding`, `leader`), or what one that is not may do (`core`).
Invariants: it is durable before the first record of a log, and before the member says anything; "proven" is durable
before whatever is stored after that, but for a full disk: a life that is proven and does not know it has a term, and
asks again. A log without this file was made by an earlier version, and is proven.

    numbers as `checksummed_file` keeps them: the life, and those of the founding; stage 1: not proven, 2: restored, 3:
    proven

Beside it an empty file, `enrolled`, from the step that made the folder to the proof of a life: nothing was there
before.
"""

from __future__ import annotations

from heliograph.raft.disk import checksummed_file
from heliograph.raft.messages import Lives
from heliograph.runtime.disk import Disk, is_transient

LIFE = "life"
ENROLLED = "enrolled"
_BEGUN, _RESTORED, _PROVEN = 1, 2, 3


def begin(disk: Disk, life: int) -> None:
    """Nothing proves it yet. Durable when it returns. Blocking. Raises OSError."""
    _write(disk, life, _BEGUN)


def prove(disk: Disk, life: int, lives: Lives) -> None:
    """lives: of the founding; empty where a leader has proved it. Durable when it returns, or the disk is full.
    Blocking. Raises OSError.
    """
    try:
        _write(disk, life, _PROVEN, lives)
        checksummed_file.remove(disk, ENROLLED)
    except (OSError, MemoryError) as error:
        if not is_transient(error):
            raise


def restore(disk: Disk) -> None:
    """The next life that begins here, behind the snapshot that lies here and without a log, is proven: it founds the
    group anew. Durable when it returns. Blocking. Raises OSError.
    """
    _write(disk, 0, _RESTORED)


def is_restored(disk: Disk) -> bool:
    """Whether that life has not begun yet; blocking. Raises OSError, CorruptData."""
    return read(disk) == (0, ())


def enrol(disk: Disk) -> None:
    """The member that is to begin here never ran: it may found a group that those who are to come later know nothing
    of. Nothing, where something lies here already. Durable when it returns. Blocking. Raises OSError.
    """
    if not disk.names():
        checksummed_file.replace(disk, ENROLLED, b"")


def is_enrolled(disk: Disk) -> bool:
    """Whether a folder is that of a member that has not begun to count since `enrol`; blocking. Raises OSError."""
    return ENROLLED in disk.names()


def _write(disk: Disk, life: int, stage: int, lives: Lives = ()) -> None:
    checksummed_file.replace_numbers(disk, LIFE, life, stage, lives)


def read(disk: Disk) -> tuple[int, Lives | None] | None:
    """(life, lives as above, or None where nothing has proved it); None: there is no such file. Blocking. Raises
    OSError, CorruptData.
    """
    if (found := checksummed_file.read_numbers(disk, LIFE)) is None:
        return None
    life, stage, lives = found
    return life, None if stage == _BEGUN else lives
