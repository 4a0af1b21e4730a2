"""Life: which life of a member its folder is of, and whether it is proven: a small file beside its log.

Is: writing and reading it. Isn't: what proves a life (`founding`, `leader`), or what one that is not may do (`core`).
Invariants: it is durable before the first record of a log, and before the member says anything; "proven" is durable
before whatever is stored after that, but for a full disk: a life that is proven and does not know it has a term, and
asks again. A log without this file was made by an earlier version, and is proven.

    u8 version (1), u64 life, lives as in messages, the stage being 1: not proven, 2: restored, 3: proven; as
    `checksummed_file` keeps it
"""

from __future__ import annotations

import struct

from heliograph.model.errors import CorruptData, PeerError
from heliograph.raft.disk import checksummed_file
from heliograph.raft.disk.snapshot_file import is_full
from heliograph.raft.messages import Lives, decode_lives, encode_lives
from heliograph.runtime.disk import Disk

LIFE = "life"
_VERSION = 1
_BEGUN, _RESTORED, _PROVEN = 1, 2, 3
_BODY = struct.Struct(">BQ")


def begin(disk: Disk, life: int) -> None:
    """Nothing proves it yet. Durable when it returns. Blocking. Raises OSError."""
    _write(disk, life, _BEGUN)


def prove(disk: Disk, life: int, lives: Lives) -> None:
    """lives: of the founding; empty where a leader has proved it. Durable when it returns, or the disk is full.
    Blocking. Raises OSError.
    """
    try:
        _write(disk, life, _PROVEN, lives)
    except OSError as error:
        if not is_full(error):
            raise


def restore(disk: Disk) -> None:
    """The next life that begins here, behind the snapshot that lies here and without a log, is proven: it founds the
    group anew. Durable when it returns. Blocking. Raises OSError.
    """
    _write(disk, 0, _RESTORED)


def is_restored(disk: Disk) -> bool:
    """Whether that life has not begun yet; blocking. Raises OSError, CorruptData."""
    return read(disk) == (0, ())


def _write(disk: Disk, life: int, stage: int, lives: Lives = ()) -> None:
    checksummed_file.replace(disk, LIFE, _BODY.pack(_VERSION, life) + encode_lives(stage, lives))


def read(disk: Disk) -> tuple[int, Lives | None] | None:
    """(life, lives as above, or None where nothing has proved it); None: there is no such file. Blocking. Raises
    OSError, CorruptData.
    """
    try:
        body = checksummed_file.read(disk, LIFE)
        if body is None:
            return None
        version, life = _BODY.unpack_from(body)
        if version != _VERSION:
            raise CorruptData(f"the file {LIFE} is of version {version}")
        stage, lives = decode_lives(body, _BODY.size)
    except (CorruptData, PeerError, struct.error) as error:
        raise CorruptData(
            f"{error}: empty the folder of this member, and it learns from the others what it was"
        ) from None
    return life, None if stage == _BEGUN else lives
