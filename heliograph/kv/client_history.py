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

from heliograph.kv.history import HISTORY, TableHistory
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import LeaseLost

log = logging.getLogger("heliograph.kv")

NUMBER = 0
"""The number of the watch of the history; others count from 1."""
LEASES_MAX = 4096


class ClientHistory:
    """`wanted`: it is asked for, as soon as there is a watch or a lease. `listed`: the present connection told it."""

    def __init__(self) -> None:
        self.wanted = self.listed = False
        self.index = -1
        """The highest of a command that was heard of."""
        self._early = -1
        """The same of the present connection, before the history was told there."""
        self._stamp = 0
        """The newest leadership that was told; 0: none, and nothing can be judged."""
        self._on_another: Callable[[], None] = lambda: None
        self._leases: dict[int, None] = {}
        self._lost: dict[int, None] = {}

    def when_another(self, callback: Callable[[], None]) -> None:
        """It is called once another history is found."""
        self._on_another = callback

    def want(self) -> bool:
        """Whether it was not wanted before."""
        before, self.wanted = self.wanted, True
        return not before

    def disconnected(self) -> None:
        self.listed, self._early = False, -1

    def heard(self, index: int) -> None:
        """A node said that it has applied the command at that index: by a listing, an event, or a heartbeat."""
        if self.listed:
            self.index = max(self.index, index)
        else:
            self._early = max(self._early, index)

    def on_listing(self, found: list[tuple[str, int, bytes | None]]) -> bool:
        """The row as a connection tells it first: whether it is of another history than what was heard until now, of
        which nothing was heard then.
        """
        rows = [row for row in found if row[0] == HISTORY]
        self.listed, another = True, False
        if not rows or rows[0][2] is not None:  # else of an earlier version, which says so that it is the one of before
            another = self._told(*(rows[0][1:] if rows else (-1, None)))
        self.heard(self._early)
        return another

    def on_event(self, found: list[tuple[str, int, bytes | None]]) -> bool:
        """A change of it; the same."""
        another = False
        for key, version, value in found:
            another |= key == HISTORY and self._told(version, value)
        return another

    def on_refused(self) -> None:
        """A node of an earlier version: it says nothing of it."""
        self._stamp, self.listed = 0, True
        self.heard(self._early)

    def _told(self, version: int, value: bytes | None) -> bool:
        history = TableHistory() if value is None else readable(TableHistory.decode, HISTORY, value)
        another = history is not None and bool(self._stamp) and not history.goes_on_from(self._stamp, self.index)
        self._stamp = 0 if history is None else history.stamp
        if another:
            log.warning("metadata.another_history", extra={"seen": self.index, "leases": len(self._leases)})
            self.index = -1
            for lease in self._leases:
                _keep(self._lost, lease)
            self._leases = {}
            self._on_another()
        self.heard(version)
        return another

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
