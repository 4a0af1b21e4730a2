"""Redeliveries: how often messages of a replicated subscription were handed out again, told by coordinate and counted
wherever it goes on.

Is: positions here to coordinates and back, for the counts alone, within a budget of reads. Isn't: a dispatcher (it
counts), or a claim (`replicator.subscriptions.ack_claims` carries counts).
Invariants: a count only rises, until its message is acknowledged; nothing is acknowledged, sent, or held back because
of one.
Bounds: COUNTS_MAX counts of each region, those of the oldest messages; `ClaimSettings.round_lookups` entries looked up
in a round, what is left in the next.
Source: docs/protocols/links.md, "Replicated subscriptions".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from heliograph.model.coordinates import Coordinate
from heliograph.model.positions import Position
from replicator.log.coordinate_lookup import LookupStatus, coordinate_of, position_of
from replicator.subscriptions.ack_claims import COUNTS_MAX, Claims

if TYPE_CHECKING:
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.subscriptions.subscription_cursor import SyncCursor

_KNOWN_MAX = 8 * COUNTS_MAX


class Redeliveries:
    """Carries the counts of one subscription. counted: what its dispatcher was told last, of all other regions."""

    __slots__ = ("_coordinates", "_log", "_lookups_max", "_positions", "counted", "seen")

    def __init__(self, log: ReplicatedLog, lookups_max: int) -> None:
        """lookups_max: entries that a round looks up, each way."""
        self._log, self._lookups_max = log, lookups_max
        self.counted: dict[Position, int] = {}
        self.seen = 0
        """Redeliveries here, all in all, when they were claimed last."""
        self._coordinates: dict[Position, Coordinate | None] = {}
        self._positions: dict[Coordinate, Position | None] = {}

    async def claim(self, counts: Mapping[Position, int], claims: Claims) -> bool:
        """Adds what is counted here to `claims`. False: there is more. Raises what storage raises."""
        reads = self._lookups_max
        if len(self._coordinates) > _KNOWN_MAX:
            self._coordinates.clear()
        for position, count in counts.items():
            if position not in self._coordinates:
                if not reads:
                    return False
                reads -= 1
                self._coordinates[position] = (await coordinate_of(self._log, position)).coordinate
            if (coordinate := self._coordinates[position]) is not None:
                claims.add_count(coordinate, count)
        return True

    async def here(self, others: Mapping[str, Claims], cursor: SyncCursor) -> tuple[dict[Position, int], bool]:
        """(what others count, of messages that are here and not acknowledged; False: there is more). Raises what
        storage raises.
        """
        reads, whole = self._lookups_max, True
        counts: dict[Position, int] = {}
        if len(self._positions) > _KNOWN_MAX:
            self._positions.clear()
        for claims in list(others.values()):
            for coordinate, count in list(claims.counts.items()):
                origin, at = coordinate
                if coordinate not in self._positions:
                    if at > self._log.vector.prefix(origin):
                        continue  # it waits until the message has arrived
                    if not reads:
                        whole = False
                        break
                    reads -= 1
                    looked = await position_of(self._log, origin, at)
                    self._positions[coordinate] = looked.position if looked.status is LookupStatus.HERE else None
                position = self._positions[coordinate]
                if position is not None and not cursor.is_acked(position):
                    counts[position] = max(count, counts.get(position, 0))
        return counts, whole
