"""CommittedView: a topic's log as readers of committed data see it.

Is: the reading half of a managed ledger, ended before the first open or held transaction, with aborted entries hidden.
Isn't: a copy, or a decision (the `TransactionBuffer` of the topic's state has it). A topic without transactions is read
without it.
Invariants: nothing at or behind the first entry of an open or held transaction comes out; positions are the log's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from region_node.runtime.cursor_ports import LedgerPort, Piece
from replicator.log.transaction_buffer import below

if TYPE_CHECKING:
    from region_node.runtime.topic_ports import ManagedLedgerPort
    from replicator.log.transaction_buffer import TransactionBuffer


class CommittedView(LedgerPort):
    """Reads `ledger` as far as `buffer` lets readers see it. Where nothing is held back it is `ledger`, less what was
    aborted.
    """

    __slots__ = ("_before", "_buffer", "_first", "_ledger")

    def __init__(self, ledger: ManagedLedgerPort, buffer: TransactionBuffer) -> None:
        self._ledger, self._buffer = ledger, buffer
        self._first: Position | None = None
        self._before: Position = (-1, -1)

    @property
    def last_confirmed(self) -> Position:
        """The last position that readers may see."""
        unseen = self._buffer.unseen_from()
        if unseen is None:
            return self._ledger.last_confirmed
        if unseen != self._first:
            self._first, self._before = unseen, before(self._ledger, unseen)
        return self._before

    def ledgers(self) -> list[LedgerInfo]:
        return self._ledger.ledgers()

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        return self._ledger.ledgers_from(ledger)

    def position_before(self, position: Position) -> Position:
        return self._ledger.position_before(position)

    def cached(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        if self._ends_before(position):
            return []
        return self._shown(self._ledger.cached(position, max_entries, max_bytes))

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[Piece]:
        if self._ends_before(position):
            return []
        return self._shown(await self._ledger.read(position, max_entries, max_bytes))

    def _ends_before(self, position: Position) -> bool:
        unseen = self._buffer.unseen_from()
        return unseen is not None and position >= unseen

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        unseen = self._buffer.unseen_from()
        if unseen is not None:
            pieces = below(pieces, unseen)
        if any(run.transaction is not None for _, _, run in pieces):
            return self._buffer.committed_view(pieces)
        return pieces


def before(ledger: ManagedLedgerPort, position: Position) -> Position:
    """The last position in front of `position` that there is; (-1, -1): none."""
    if position[1] > 0:
        return (position[0], position[1] - 1)
    return ledger.position_before(position)
