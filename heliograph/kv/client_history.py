"""ClientHistory: what one client of a metadata group knows of the group's history, and which of its leases are of it.

Is: the judgement, by what the watch of the history tells, whether the group is another one than before, as it is where
its disks were put back to older copies. Isn't: a connection, or the other watches, which are asked for once this one
was told (`heliograph.kv.metadata_client`).
Invariants: nothing counts as heard on a connection before the history is told there: what comes there is of that
history, for a node tells in the order in which it applies. An answer counts for nothing: a node that is behind passes
it on before it has applied what the leader of the command began with. A lease of before is lost, also where the number
is another client's by now.
Bounds: LEASES_MAX leases are remembered; of more the oldest are not judged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from heliograph.kv.client_watches import Rows
from heliograph.kv.history import HISTORY, TableHistory
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import LeaseLost

log = logging.getLogger("heliograph.kv")

LEASES_MAX = 4096


@dataclass(frozen=True, slots=True)
class AnotherHistory:
    """The metadata is another one than before. seen: the highest index of a command that was heard of in the one of
    before. leases: so many were held in it, and are lost.
    """

    seen: int
    leases: int


class ClientHistory:
    """Asked for, and told, as a `Watch` is. `caught_up`: the present connection told it."""

    prefix = HISTORY

    def __init__(self, on_another: Callable[[AnotherHistory], None]) -> None:
        """on_another: called once another history is found; what it raises ends the connection."""
        self.caught_up = self._asked = False
        self.index = -1
        """The highest of a command that was heard of."""
        self._early = -1
        """The same of the present connection, before the history was told there."""
        self._stamp = 0
        """The newest leadership that was told; 0: none, and nothing can be judged."""
        self._on_another = on_another
        self._leases: dict[int, None] = {}
        self._lost: dict[int, None] = {}

    def heard(self, index: int) -> None:
        """A node said that it has applied the command at that index: by a listing, an event, or a heartbeat."""
        if self.caught_up:
            self.index = max(self.index, index)
        else:
            self._early = max(self._early, index)

    def ask(self, *, judged: bool) -> int | None:
        """As `Watch.ask`; it is what the others are judged by."""
        asked, self._asked = self._asked, True
        return None if asked else self.index

    def on_listing(self, _index: int, _last: bool, found: Rows) -> None:
        """The row, as a connection tells it first; no row: nothing was stamped. It is small, and comes at once."""
        rows = [row for row in found if row[0] == HISTORY]
        if not rows or rows[0][2] is not None:  # else of an earlier version, which says so that it is the one of before
            self._told(*(rows[0][1:] if rows else (-1, None)))
        self._on_judged()

    def on_event(self, _index: int, found: Rows) -> None:
        for key, version, value in found:
            if key == HISTORY:
                self._told(version, value)

    def on_refused(self, _why: str) -> None:
        """A node of an earlier version: it says nothing of it."""
        self._stamp = 0
        self._on_judged()

    def _on_judged(self) -> None:
        self.caught_up = True
        self.heard(self._early)

    def on_disconnected(self) -> None:
        self.caught_up, self._asked, self._early = False, False, -1

    def _told(self, version: int, value: bytes | None) -> None:
        history = TableHistory() if value is None else readable(TableHistory.decode, HISTORY, value)
        another = history is not None and bool(self._stamp) and not history.goes_on_from(self._stamp, self.index)
        self._stamp = 0 if history is None else history.stamp
        if another:
            found = AnotherHistory(self.index, len(self._leases))
            log.warning("metadata.another_history", extra={"seen": found.seen, "leases": found.leases})
            self.index = max(version, self._early)
            for lease in self._leases:
                _keep(self._lost, lease)
            self._leases = {}
            self._on_another(found)

    def granted(self, lease: int) -> bool:
        """False: somebody here had the number in another history, and may still use it: it is to be given back."""
        if lease in self._lost:
            return False
        _keep(self._leases, lease)
        return True

    def is_lost(self, lease: int) -> bool:
        return lease in self._lost

    def revoked(self, lease: int) -> None:
        self._leases.pop(lease, None)

    def check(self, lease: int) -> None:
        """Raises LeaseLost where it is of another history."""
        if lease in self._lost:
            raise LeaseLost(f"lease {lease} is of a history of the metadata that is no more: take a new one")


def _keep(leases: dict[int, None], lease: int) -> None:
    leases[lease] = None
    while len(leases) > LEASES_MAX:
        del leases[next(iter(leases))]
