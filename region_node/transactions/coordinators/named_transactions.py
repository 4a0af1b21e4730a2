"""NamedTransactions: which transactions of this broker's coordinators somebody has yet to do something by.

Is: what the records of transactional ids name, and of which coordinators these were read. Isn't: a record
(`region_node.faces.kafka.transactions.kafka_transactions`), or the end of a transaction.
Invariants: of a coordinator whose records were not read yet every transaction may be named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from heliograph.wire.run import TxnId

if TYPE_CHECKING:
    from region_node.transactions.coordinators.stored_coordinator import StoredCoordinator


class NamedTransactions:
    """`by_txn`: transaction -> the id whose record names it, of ids that this broker coordinates."""

    def __init__(self) -> None:
        self.by_txn: dict[TxnId, str] = {}
        self._read: Mapping[int, StoredCoordinator] = {}

    def fresh(self, loaded: Mapping[int, StoredCoordinator]) -> set[int]:
        """Returns the numbers of coordinators that have come since the last call of `read`."""
        return {number for number, coordinator in loaded.items() if self._read.get(number) is not coordinator}

    def read(self, loaded: Mapping[int, StoredCoordinator]) -> None:
        """The records of these coordinators' ids are in `by_txn` now."""
        self._read = dict(loaded)

    def asked_for(self, coordinator: StoredCoordinator, number: int) -> bool:
        """Says whether a record may still name that transaction: its offsets count or go by how it ended."""
        return self._read.get(coordinator.number) is not coordinator or (coordinator.number, number) in self.by_txn
