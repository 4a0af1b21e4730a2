"""History: which history of a metadata table this one is, for clients that knew another.

Is: a row that every leader adds its stamp to before the first command of a client, and the judgement whether what is
there now goes on from what was there at an index. Isn't: what a client does where it does not
(`heliograph.kv.client_history`), or what the age of a metadata means for what is deleted by it
(`local_meta.metadata_age`).
Invariants: indexes, versions, and numbers of leases come again in a group whose disks were put back to older copies,
stamps do not: whoever knew a stamp and an index knows by them whether everything up to that index is still there. A
group that only changes its leader, or is started again, goes on from everything that it ever told.
Not seen is what was put back where a snapshot was made of it before its first command, and begun with.
Bounds: LEADERSHIPS_MAX of the newest are kept: who knew an earlier one takes the table for another.

The row at HISTORY: u8 version (1) · msgpack [[behind, stamp]...], oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.kv.machine_commands import CommandKind, MalformedCommand, command, txn_fields, unpack
from heliograph.kv.machine_commands import pack as packed
from heliograph.kv.metadata_store import Put
from heliograph.kv.state_machine import KvMachine
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import CorruptData
from heliograph.runtime.clock import Rng

HISTORY = "/history"
LEADERSHIPS_MAX = 256
_STAMP_BITS = 63


@dataclass(frozen=True, slots=True)
class TableHistory:
    """leaderships: (index of the last command before it; its stamp, by chance and above 0), oldest first."""

    leaderships: tuple[tuple[int, int], ...] = ()

    @classmethod
    def decode(cls, blob: bytes) -> TableHistory:
        """Raises CorruptData where it cannot be read."""
        try:
            return cls(tuple((int(behind), int(stamp)) for behind, stamp in unpack(blob)))
        except (MalformedCommand, TypeError, ValueError, OverflowError) as error:
            raise CorruptData(f"the history of the metadata: {error}") from error

    def encode(self) -> bytes:
        return packed(self.leaderships)

    @property
    def stamp(self) -> int:
        """The stamp of the newest leadership; 0: there is none."""
        return self.leaderships[-1][1] if self.leaderships else 0

    def begun(self, behind: int, stamp: int) -> TableHistory:
        """Returns it with one more leadership, the newest."""
        return TableHistory((*self.leaderships, (behind, stamp))[-LEADERSHIPS_MAX:])

    def goes_on_from(self, stamp: int, index: int) -> bool:
        """Whether it has everything up to `index` that there was when `stamp` was the newest."""
        following = [at for at, (_, known) in enumerate(self.leaderships, 1) if known == stamp]
        if not following:
            return False
        return following[0] == len(self.leaderships) or index <= self.leaderships[following[0]][0]


def beginning(rng: Rng, table: KvMachine) -> bytes:
    """What a leader applies before any other command; empty where the row is of a later version."""
    found = table.get(HISTORY)
    known = TableHistory() if found is None else readable(TableHistory.decode, HISTORY, found[0])
    if known is None:
        return b""
    begun = known.begun(max(table.last_command, table.taken_over), rng.getrandbits(_STAMP_BITS) or 1)
    return command(CommandKind.TXN, txn_fields([Put(HISTORY, begun.encode(), -1 if found is None else found[1])]))
