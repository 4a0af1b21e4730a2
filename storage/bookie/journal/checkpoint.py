"""What a ledger directory says of itself: the checkpoint (what is in entry logs), and the metadata that garbage is
judged by.

Is: small files, each replaced whole, by rename. Isn't: anything that grows with entries.
Invariant: a checkpoint names only logs that were synced before it.

`checkpoint` is a Checkpoint, `metadata` a KnownMetadata (version 3 where an operator has confirmed one, else 2;
version 1 had the instance id alone).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.ledger_metadata import FORMAT
from heliograph.runtime.disk import Disk
from storage.bookie.journal.journal import Fork
from storage.bookie.journal.small_files import read_small, write_small

_CHECKPOINT, _METADATA = "checkpoint", "metadata"
_METADATA_VERSION = 2
_METADATA_JUDGED_VERSION = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """flushed_through: sequence, in this directory's journal, up to which `logs` hold everything of it. start: number
    of the last start of the process.
    """

    flushed_through: int = 0
    start: int = 0
    next_log: int = 0
    logs: tuple[int, ...] = ()
    dead: tuple[tuple[int, int], ...] = ()
    """Ranges of deleted ledgers: first and last id, both included."""
    forks: tuple[Fork, ...] = field(default=())


def load_checkpoint(disk: Disk) -> Checkpoint:
    """The default where there is none yet. Raises OSError, CorruptData."""
    found = read_small(disk, _CHECKPOINT)
    if found is None:
        return Checkpoint()
    through, start, next_log, logs, dead, forks = found[1]
    return Checkpoint(
        through, start, next_log, tuple(logs), tuple((a, b) for a, b in dead), tuple((a, b, c) for a, b, c in forks)
    )


def save_checkpoint(disk: Disk, point: Checkpoint) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    write_small(
        disk, _CHECKPOINT, [point.flushed_through, point.start, point.next_log, point.logs, point.dead, point.forks]
    )


@dataclass(frozen=True, slots=True)
class KnownMetadata:
    """What a bookie knows of the region's metadata."""

    instance: str = ""
    """Its id; "" before the first contact."""
    seen: int = 0
    """The version of this bookie's mark there (local_meta.metadata_age); 0: it has none yet."""
    doubt: str = ""
    """Why it deletes nothing until an operator confirms, whatever the mark says."""
    judged: int = 0
    """Ledgers below it were here when an operator confirmed: that the metadata does not know them is meant so."""


def load_known_metadata(disk: Disk) -> KnownMetadata:
    """The default where none is known yet. Raises OSError, CorruptData."""
    found = read_small(disk, _METADATA, (FORMAT, _METADATA_VERSION, _METADATA_JUDGED_VERSION))
    return KnownMetadata(*found[1]) if found else KnownMetadata()


def save_known_metadata(disk: Disk, known: KnownMetadata) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    fields = [known.instance, known.seen, known.doubt]
    if known.judged:
        write_small(disk, _METADATA, [*fields, known.judged], version=_METADATA_JUDGED_VERSION)
    else:
        write_small(disk, _METADATA, fields, version=_METADATA_VERSION)
