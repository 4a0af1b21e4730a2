"""Ledger ids of a region: none is given out twice, also where the metadata's disk is put back to an older copy, and the
newer one comes back later.

Is: what each leader of the metadata does to the counter before its first client's command, and the ids that the
metadata passed over by it. Isn't: the counter (heliograph.kv.state_machine), or what follows where a bookie or an
object store has a ledger of such an id.
Invariants: under each leader ids begin at the wall clock, in milliseconds, or where they were if that is above it;
behind that they are consecutive. So they are above all that any state of this region's metadata gave out before, as
long as none gives out a thousand a second for long, and clocks are right to within the time between two leaders. A
range is written down as passed over only where this metadata never gave out an id of it, and never will: a ledger with
such an id was made by another state of it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import dataclass

from heliograph.kv.machine_commands import CommandKind, command, txn_fields
from heliograph.kv.metadata_store import ABSENT, MetadataStore, Put
from heliograph.kv.state_machine import KvMachine
from heliograph.kv.unreadable_records import readable
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.runtime.clock import Clock, Rng
from local_meta import keys
from local_meta.backup import new_instance

log = logging.getLogger("local_meta.ledger_ids")

_RANGES_MAX = 1000


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Ids that this metadata never gives out. ranges: (first, last), both included, ascending."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def decode(cls, blob: bytes) -> PassedOver:
        """The ranges of a row. Raises CorruptData where it cannot be read."""
        (ranges,) = unpack("ledger ids that were passed over", blob)
        return cls(tuple((int(first), int(last)) for first, last in ranges))

    def encode(self) -> bytes:
        return pack([self.ranges])

    def __contains__(self, ledger: int) -> bool:
        at = bisect_right(self.ranges, ledger, key=lambda one: one[0]) - 1
        return at >= 0 and ledger <= self.ranges[at][1]

    def up_to(self, upcoming: int, floor: int) -> PassedOver:
        """As the counter goes from `upcoming` on to behind `floor`, at once."""
        return PassedOver(tuple((f, min(last, upcoming - 1)) for f, last in self.ranges if f < upcoming)).also(
            upcoming, floor
        )

    def also(self, first: int, last: int) -> PassedOver:
        """Where there are too many, the shortest is forgotten: least lies in it."""
        merged: list[tuple[int, int]] = []
        for one in sorted([*self.ranges, (first, last)]):
            if merged and one[0] <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], one[1])
            else:
                merged.append(one)
        if len(merged) > _RANGES_MAX:
            merged.remove(min(merged, key=lambda one: one[1] - one[0]))
        return PassedOver(tuple(merged))


def beginning(clock: Clock, rng: Rng, table: KvMachine) -> list[bytes]:
    """What a leader applies before any client's command. It gives a table that has no id the first ledger id, and then
    its own id.
    """
    upcoming, floor = table.counter(keys.LEDGER_IDS), clock.wall_ms()
    raised = command(CommandKind.NEXT_IDS, [keys.LEDGER_IDS, 1, floor])
    if table.get(keys.INSTANCE) is None:
        return [raised, _put(Put(keys.INSTANCE, new_instance(rng).encode(), ABSENT))]
    if upcoming > floor:
        log.warning("metadata.ledger_ids_ahead", extra={"next_id": upcoming, "clock_ms": floor})
        return []
    found = table.get(keys.PASSED_OVER)
    known = PassedOver() if found is None else readable(PassedOver.decode, keys.PASSED_OVER, found[0])
    if known is None:  # of a later version
        return [raised]
    return [_put(Put(keys.PASSED_OVER, known.up_to(upcoming, floor).encode())), raised]


def _put(what: Put) -> bytes:
    return command(CommandKind.TXN, txn_fields([what]))


async def passed_over(meta: MetadataStore) -> PassedOver:
    """Raises CorruptData, and what the metadata raises."""
    found = await meta.get(keys.PASSED_OVER)
    return PassedOver() if found is None else PassedOver.decode(found[0])
