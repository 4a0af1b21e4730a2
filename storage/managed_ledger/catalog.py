"""Catalog: which entries a topic has, ledger by ledger.

Is: positions to ranks and back, by binary search over the ledgers. Isn't: the entries, or who has read them.
Invariants: ledger ids grow; only the last ledger grows, and only by what is confirmed; trimming takes ledgers from the front.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace

from heliograph.model.ledgers import LedgerInfo, OffloadRecord, OffloadState
from heliograph.model.positions import Position


class Catalog:
    """A position exists where its entry is confirmed and not trimmed."""

    __slots__ = (
        "_before",
        "_bytes",
        "_bytes_before",
        "_entries",
        "_infos",
        "_through",
        "ids",
    )

    def __init__(self, infos: Iterable[LedgerInfo] = (), through: Position = (-1, -1)) -> None:
        """through: the last confirmed position that was ever known; its ledger may be trimmed."""
        self.ids: list[int] = _NONE
        self._infos: list[LedgerInfo] = _NO_INFOS
        self._entries = self._bytes = self._before = self._bytes_before = _NONE
        self._through = through
        for info in infos:
            self.append(info)

    # -- changes ------------------------------------------------------------------------------------------------------

    def append(self, info: LedgerInfo) -> None:
        """A ledger behind the others."""
        assert not self.ids or info.ledger > self.ids[-1]
        if self.ids is _NONE:
            self.ids, self._infos, self._entries, self._bytes, self._before, self._bytes_before = [], [], [], [], [], []
        self._before.append(self._before[-1] + self._entries[-1] if self.ids else 0)
        self._bytes_before.append(self._bytes_before[-1] + self._bytes[-1] if self.ids else 0)
        self.ids.append(info.ledger)
        self._infos.append(info)
        self._entries.append(info.entries)
        self._bytes.append(info.size_bytes)
        if info.entries:
            self._through = max(self._through, (info.ledger, info.entries - 1))

    def grow(self, entries: int, size_bytes: int) -> None:
        """So many more entries of the last ledger are confirmed."""
        self._entries[-1] += entries
        self._bytes[-1] += size_bytes
        self._through = (self.ids[-1], self._entries[-1] - 1)

    def add_bytes(self, ledger: int, size_bytes: int) -> None:
        """Entries of `ledger` that its stored size did not count."""
        at = bisect_left(self.ids, ledger)
        self._bytes[at] += size_bytes
        for later in range(at + 1, len(self.ids)):
            self._bytes_before[later] += size_bytes

    def close_last(self, closed_ms: int) -> None:
        last = self._infos[-1]
        self._infos[-1] = LedgerInfo(last.ledger, self._entries[-1], self._bytes[-1], closed_ms, last.first_index)

    def set_offload(self, ledger: int, record: OffloadRecord) -> bool:
        """Returns whether the ledger is still there."""
        at = bisect_left(self.ids, ledger)
        found = at < len(self.ids) and self.ids[at] == ledger
        if found:
            self._infos[at] = replace(self._infos[at], offload=record)
        return found

    def drop_last(self) -> None:
        """An empty one, whose successor takes its place."""
        assert self._entries[-1] == 0
        for column in (self.ids, self._infos, self._entries, self._bytes, self._before, self._bytes_before):
            column.pop()

    def drop_first(self, count: int) -> None:
        for column in (self.ids, self._infos, self._entries, self._bytes, self._before, self._bytes_before):
            del column[:count]

    # -- questions ----------------------------------------------------------------------------------------------------

    def infos(self) -> list[LedgerInfo]:
        """Every ledger, the last with live numbers."""
        return [
            LedgerInfo(i.ledger, entries, size, i.closed_ms, i.first_index, i.offload)
            for i, entries, size in zip(self._infos, self._entries, self._bytes, strict=True)
        ]

    @property
    def last(self) -> Position:
        """The last confirmed position, also where it is trimmed; (-1, -1) where there was never one."""
        return self._through

    @property
    def entries(self) -> int:
        return self._before[-1] + self._entries[-1] - self._before[0] if self.ids else 0

    @property
    def size_bytes(self) -> int:
        return self._bytes_before[-1] + self._bytes[-1] - self._bytes_before[0] if self.ids else 0

    def entries_of(self, ledger: int) -> int:
        """0 where the ledger is not there."""
        at = bisect_left(self.ids, ledger)
        return self._entries[at] if at < len(self.ids) and self.ids[at] == ledger else 0

    def offload_of(self, ledger: int) -> OffloadRecord | None:
        """What was last said of its copy in an object store."""
        at = bisect_left(self.ids, ledger)
        return self._infos[at].offload if at < len(self.ids) and self.ids[at] == ledger else None

    def closed(self, ledger: int) -> bool:
        """Whether it is there, and takes nothing more."""
        at = bisect_left(self.ids, ledger)
        return at < len(self.ids) and self.ids[at] == ledger and self._infos[at].closed_ms != 0

    def local_gone(self, ledger: int) -> bool:
        """Whether only the object store has it."""
        record = self.offload_of(ledger)
        return record is not None and record.state == OffloadState.LOCAL_GONE

    def at_or_after(self, position: Position) -> Position | None:
        """The first position that exists, not before `position`."""
        ledger, entry = position
        at = bisect_left(self.ids, ledger)
        if at < len(self.ids) and self.ids[at] == ledger:
            if max(entry, 0) < self._entries[at]:
                return ledger, max(entry, 0)
            at += 1
        while at < len(self.ids):
            if self._entries[at]:
                return self.ids[at], 0
            at += 1
        return None

    def at_or_before(self, position: Position) -> Position | None:
        """The last position that exists, not after `position`."""
        ledger, entry = position
        at = bisect_right(self.ids, ledger) - 1
        if at >= 0 and self.ids[at] == ledger:
            if entry >= 0 and self._entries[at]:
                return ledger, min(entry, self._entries[at] - 1)
            at -= 1
        while at >= 0:
            if self._entries[at]:
                return self.ids[at], self._entries[at] - 1
            at -= 1
        return None

    def next(self, position: Position) -> Position:
        """The first position that exists strictly after `position`; where there is none, one that the next entry will be at or after."""
        following = self.at_or_after((position[0], position[1] + 1))
        if following is not None:
            return following
        ledger, entry = max(position, self._through)
        return ledger, entry + 1

    def first(self) -> Position:
        """The first position that exists; where there is none, one that the next entry will be at or after."""
        return self.next((-1, -1))

    def rank(self, position: Position) -> int:
        """How many entries lie at or before `position`, up to a constant."""
        if not self.ids:
            return 0
        ledger, entry = position
        at = bisect_right(self.ids, ledger) - 1
        if at < 0:
            return self._before[0]
        entries = self._entries[at]
        if self.ids[at] == ledger:
            entries = min(max(entry + 1, 0), entries)
        return self._before[at] + entries

    def entries_between(self, after: Position, upto: Position) -> int:
        """How many entries lie in (after, upto]."""
        return max(self.rank(upto) - self.rank(after), 0)

    def bytes_between(self, after: Position, upto: Position) -> int:
        """An estimate: entries of one ledger count as equally large."""
        return max(self._bytes_at(upto) - self._bytes_at(after), 0)

    def _bytes_at(self, position: Position) -> int:
        if not self.ids:
            return 0
        ledger, entry = position
        at = bisect_right(self.ids, ledger) - 1
        if at < 0:
            return self._bytes_before[0]
        size = self._bytes[at]
        if self.ids[at] == ledger and self._entries[at]:
            size = size * min(max(entry + 1, 0), self._entries[at]) // self._entries[at]
        return self._bytes_before[at] + size

    def position_at(self, rank: int) -> Position | None:
        """The entry with this rank (see `rank`); None where it does not exist."""
        at = bisect_left(self._before, rank) - 1
        if at < 0 or not 0 < rank - self._before[at] <= self._entries[at]:
            return None
        return self.ids[at], rank - self._before[at] - 1


_NONE: list[int] = []
_NO_INFOS: list[LedgerInfo] = []
"""Of every topic that has no ledger; never appended to."""
