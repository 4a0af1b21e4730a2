"""LogExtent: which entries a topic's log has, as anybody may ask.

Is: questions about ledgers and positions. Isn't: a read of an entry, or a change.
Invariants: everything said of the end is confirmed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from heliograph.model.errors import MetadataUnavailable, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import BEFORE_ALL, Position
from storage.managed_ledger.log.topic_record import TopicRecord
from storage.managed_ledger.metadata.ledger_catalog import Catalog


class LogExtent(ABC):
    """What `ManagedLedger` says of itself."""

    __slots__ = ("_catalog", "_record", "owner", "topic")

    topic: str
    owner: int
    """This opening's number; every other one of the topic, wherever, has another."""
    _catalog: Catalog
    _record: TopicRecord

    @abstractmethod
    def _read_soon(self) -> None:
        """Reads, in the background, the pages of ledgers that were not read yet."""

    @property
    def last_confirmed(self) -> Position:
        return self._catalog.last

    @property
    def created_ms(self) -> int:
        """Wall time at which the topic was made, or of the first thing that is known of an older one."""
        return self._record.created_ms

    @property
    def published_ms(self) -> int:
        """Wall time at which the last message came; 0: none is known."""
        return self._record.published_ms

    @property
    def size_bytes(self) -> int:
        return self._catalog.size_bytes

    @property
    def open_bytes(self) -> int:
        """The confirmed bytes of the open ledger; 0 where none is open."""
        return self._catalog.open_bytes

    @property
    def entries(self) -> int:
        return self._catalog.entries

    def ledgers(self) -> list[LedgerInfo]:
        """Every ledger, the open one with live numbers. Raises MetadataUnavailable where some are only being read: see
        `ManagedLedger.whole`.
        """
        try:
            return self._catalog.infos()
        except MetadataUnavailable:
            self._read_soon()
            raise

    def ledgers_from(self, ledger: int) -> list[LedgerInfo]:
        """From this one on, and maybe some before it. Raises as `ledgers`, but not of ledgers that a cursor is
        before.
        """
        try:
            return self._catalog.infos_from(ledger)
        except MetadataUnavailable:
            self._read_soon()
            raise

    def unsettled(self) -> list[LedgerInfo]:
        """Those of which anything may be left to do: every ledger, but for pages that lie in an object store only.
        Raises as `ledgers`.
        """
        try:
            return self._catalog.unsettled()
        except MetadataUnavailable:
            self._read_soon()
            raise

    @property
    def settled(self) -> tuple[tuple[int, int], ...]:
        """What `unsettled` leaves out: (ledger that names the page, how many of its ledgers are trimmed)."""
        history = self._catalog.history
        return (
            ()
            if history is None
            else tuple((page.about.key, page.about.trimmed) for page in history.pages if page.about.settled)
        )

    @property
    def first_index(self) -> int | None:
        """The index of the first message that is not trimmed; None where there is no ledger."""
        return self._catalog.first_index

    @property
    def stored_bytes(self) -> int:
        """The bytes of those ledgers that an object store has whole, whether bookies have them too or not."""
        return self._catalog.stored_bytes

    def first_position(self) -> Position:
        return self._catalog.first()

    def next_position(self, position: Position) -> Position:
        """The first position that exists strictly after it; where there is none, one that the next entry will be at or
        after.
        """
        return self._catalog.next(position)

    def position_before(self, position: Position) -> Position:
        """The last position that exists strictly before it; (-1, -1): none. Raises as `ledgers` where it is the first
        of a ledger that was not read.
        """
        if position <= self._catalog.first():
            return BEFORE_ALL
        found = self._catalog.at_or_before((position[0], position[1] - 1))
        if found is None:
            return BEFORE_ALL
        if found[1] < 0:
            self._read_soon()
            raise MetadataUnavailable(f"ledgers of {self.topic} before {position[0]} are only being read: try again")
        return found

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries lie in (after, upto]."""
        return self._catalog.entries_between(after, upto)

    def bytes_between(self, after: Position, upto: Position) -> int:
        """Estimates the bytes of the entries in (after, upto]: those of one ledger are taken to be equally large."""
        return self._catalog.bytes_between(after, upto)

    def position_after(self, position: Position, count: int) -> Position:
        """The position `count` entries behind `position`, or the last one."""
        return self._catalog.position_at(self._catalog.rank(position) + count) or self._catalog.last

    def _info(self, ledger: int) -> LedgerInfo:
        info = self._catalog.info(ledger)
        if info is None:
            raise NoSuchLedger(f"{self.topic} has no ledger {ledger}: it was trimmed, or never was its own")
        return info
