"""Company: whether other voters have what this member has: a small file beside its log.

Is: writing it down and reading it, where it is otherwise than the settings say: they tell how a group was founded, not
what became of it. Isn't: what follows from it (`log_storage`, at a start with a damaged table).
Invariants: "others" is written once a configuration with other voters is committed, "alone" before one without them
stands in the log: a member that reads "others" has some. One that reads nothing goes by its settings.

    u8 version (1), u8 others (1) or alone (0); as `checksummed_file` keeps it
"""

from __future__ import annotations

from heliograph.model.errors import CorruptData
from heliograph.raft.disk import checksummed_file
from heliograph.raft.membership import Configurations
from heliograph.runtime.disk import Disk, is_transient

COMPANY = "company"
_VERSION = 1


def note(disk: Disk, others: bool) -> None:
    """Durable when it returns; without room for it nothing is written down any more. Blocking. Raises OSError."""
    try:
        checksummed_file.replace(disk, COMPANY, bytes([_VERSION, others]))
    except (OSError, MemoryError) as error:
        if not is_transient(error):
            raise
        checksummed_file.remove(disk, COMPANY)


def noted(disk: Disk) -> bool | None:
    """Whether there are others; None: nothing is written down that can be read. Blocking. Raises OSError."""
    try:
        body = checksummed_file.read(disk, COMPANY, 2)
    except CorruptData:
        return None
    return None if body is None or body[0] != _VERSION else bool(body[1])


def others_in(configs: Configurations, node_id: str, commit: int) -> bool | None:
    """Whether there are others, as it may be written down now; None: that is not settled, or no configuration is
    known.
    """
    voters = configs.latest.voters
    if not voters:
        return None
    if voters == (node_id,):
        return False
    return True if configs.latest_index <= commit else None
