"""LogExtent: which entries a topic's log has, as anybody may ask.

Is: questions about ledgers and positions. Isn't: a read of an entry, or a change.
Invariants: everything said of the end is confirmed.
"""

from __future__ import annotations

from heliograph.model.errors import NoSuchLedger
from heliograph.model.ledgers import LedgerInfo
from heliograph.model.positions import Position
from storage.managed_ledger.catalog import Catalog


class LogExtent:
    """What `ManagedLedger` says of itself."""

    __slots__ = ("_catalog", "topic")

    topic: str
    _catalog: Catalog

    @property
    def last_confirmed(self) -> Position:
        return self._catalog.last

    @property
    def size_bytes(self) -> int:
        return self._catalog.size_bytes

    @property
    def entries(self) -> int:
        return self._catalog.entries

    def ledgers(self) -> list[LedgerInfo]:
        """Every ledger, the open one with live numbers."""
        return self._catalog.infos()

    def first_position(self) -> Position:
        return self._catalog.first()

    def next_position(self, position: Position) -> Position:
        """The first position that exists strictly after it; where there is none, one that the next entry will be at or after."""
        return self._catalog.next(position)

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries lie in (after, upto]."""
        return self._catalog.entries_between(after, upto)

    def bytes_between(self, after: Position, upto: Position) -> int:
        """An estimate."""
        return self._catalog.bytes_between(after, upto)

    def position_after(self, position: Position, count: int) -> Position:
        """The position `count` entries behind `position`, or the last one."""
        return self._catalog.position_at(self._catalog.rank(position) + count) or self._catalog.last

    def _info(self, ledger: int) -> LedgerInfo:
        for info in self._catalog.infos():
            if info.ledger == ledger:
                return info
        raise NoSuchLedger(f"{self.topic} has no ledger {ledger}: it was trimmed, or never was its own")
