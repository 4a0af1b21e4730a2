"""Catalog: which entries a topic has, ledger by ledger.

Is: positions to ranks and back, by binary search over the ledgers. Isn't: the entries, or who has read them.
Invariants: ledger ids grow; only the last ledger grows, and only by what is confirmed; trimming takes ledgers from the
front. The oldest of very many ledgers lie in pages (`ledger_history`), which may not have been read: what is asked of
those is answered, or refused, as History says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from heliograph.model.ledger_metadata import LedgerInfo, LedgerPage, OffloadRecord, OffloadState, stored
from heliograph.model.positions import Position
from storage.managed_ledger.metadata.ledger_history import History

PAGE_LEDGERS = 512
"""How many ledgers a page takes, in about 30 KiB; a topic has pages once it has twice as many ledgers."""


class Catalog:
    """A position exists where its entry is confirmed and not trimmed."""

    __slots__ = (
        "_before",
        "_bytes",
        "_bytes_before",
        "_entries",
        "_infos",
        "_through",
        "history",
        "ids",
    )

    def __init__(
        self, infos: Iterable[LedgerInfo] = (), through: Position = (-1, -1), pages: Sequence[LedgerPage] = ()
    ) -> None:
        """through: the last confirmed position that was ever known; its ledger may be trimmed. pages: of the ledgers
        before `infos`.
        """
        self.ids: list[int] = _NONE
        """The ids of the ledgers that lie in no page, ascending."""
        self.history = History(pages) if pages else None
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
        """Returns whether the ledger is still there. Raises MetadataUnavailable where its page was not read."""
        if self.history is not None and self._is_old(ledger):
            return self.history.set_offload(ledger, record)
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
        if self.history is not None:
            count -= self.history.drop_first(count)
            if not self.history.pages:
                self.history = None
        for column in (self.ids, self._infos, self._entries, self._bytes, self._before, self._bytes_before):
            del column[:count]

    def seal(self, page_ledgers: int = PAGE_LEDGERS) -> bool:
        """Moves the oldest ledgers that lie in no page into one, where there are twice as many as it takes. Returns
        whether it did.
        """
        infos = self.recent(page_ledgers)
        if len(self.ids) < 2 * page_ledgers or not all(info.closed_ms and info.entries for info in infos):
            return False
        if self.history is None:
            self.history = History(())
        self.history.append(infos)
        for column in (self.ids, self._infos, self._entries, self._bytes, self._before, self._bytes_before):
            del column[:page_ledgers]
        return True

    def page_changes(
        self, trimmed: int, *, more: bool = True, page_ledgers: int = PAGE_LEDGERS
    ) -> tuple[dict[int, bytes], list[int]]:
        """(key -> value of the pages to write, keys of those to delete), where the first `trimmed` ledgers go. more:
        pages that can be made are made, each of `page_ledgers`.
        """
        while more and self.seal(page_ledgers):
            pass  # many at once of a topic that an older version has stored: together no more than one value may have
        if self.history is None:
            return {}, []
        gone = self.history.forms(trimmed)[1]
        return {key: blob for key, blob in self.history.take_changed().items() if key not in gone}, gone

    def forms(self, trimmed: int) -> tuple[tuple[LedgerPage, ...], tuple[LedgerInfo, ...]]:
        """(the pages, the other ledgers), as they are to be stored without the first `trimmed` ledgers."""
        if self.history is None:
            return (), tuple(self.recent()[trimmed:])
        return tuple(self.history.forms(trimmed)[0]), tuple(self.recent()[max(trimmed - self.history.count, 0) :])

    def closed_ms(self, count: int) -> int:
        """When the last of the first `count` ledgers was closed; count: at least 1. Raises MetadataUnavailable where
        its page was not read.
        """
        for page in self.history.pages if self.history is not None else ():
            if count < page.about.count:
                return page.infos()[count - 1].closed_ms
            if count == page.about.count:
                return page.about.last.closed_ms
            count -= page.about.count
        return self._infos[count - 1].closed_ms

    def bounded(self, ledger: int, stop: int) -> int:
        """`stop`, or how many entries the ledger has, where that is less and is known."""
        return stop if self.history is not None and self.unread(ledger) else min(stop, self.entries_of(ledger))

    # -- questions ----------------------------------------------------------------------------------------------------

    def infos(self) -> list[LedgerInfo]:
        """Every ledger, the last with live numbers. Raises MetadataUnavailable where a page was not read."""
        return self.recent() if self.history is None else self.history.infos() + self.recent()

    def infos_from(self, ledger: int) -> list[LedgerInfo]:
        """From this ledger on, and maybe some before it. Raises MetadataUnavailable where a page of those was not
        read.
        """
        return self.recent() if self.history is None else self.history.infos(ledger) + self.recent()

    def unsettled(self) -> list[LedgerInfo]:
        """Every ledger, without the pages of which only an object store has all. Raises MetadataUnavailable where
        another page was not read.
        """
        return self.recent() if self.history is None else self.history.unsettled() + self.recent()

    def front(self, count: int) -> list[LedgerInfo]:
        """At most so many of the oldest ledgers, as far as they are known: at least one, where there is one."""
        if self.history is None:
            return self.recent(count)
        found = self.history.front(count)
        return found + self.recent(count - len(found)) if len(found) == self.history.count else found

    def recent(self, count: int | None = None) -> list[LedgerInfo]:
        """All, or the oldest `count`, of the ledgers that lie in no page."""
        return [
            LedgerInfo(i.ledger, entries, size, i.closed_ms, i.first_index, i.offload)
            for i, entries, size in zip(self._infos[:count], self._entries[:count], self._bytes[:count], strict=True)
        ]

    def info(self, ledger: int) -> LedgerInfo | None:
        """Raises MetadataUnavailable where its page was not read."""
        if self.history is not None and self._is_old(ledger):
            return self.history.info(ledger)
        at = bisect_left(self.ids, ledger)
        if at == len(self.ids) or self.ids[at] != ledger:
            return None
        return replace(self._infos[at], entries=self._entries[at], size_bytes=self._bytes[at])

    @property
    def count(self) -> int:
        """How many ledgers there are, those in pages included."""
        return len(self.ids) + (self.history.count if self.history is not None else 0)

    @property
    def first_index(self) -> int | None:
        """The index of the first message that is not trimmed; None where there is no ledger."""
        if self.history is not None:
            return self.history.pages[0].about.first.first_index
        return self._infos[0].first_index if self.ids else None

    @property
    def stored_bytes(self) -> int:
        """The bytes of those ledgers that an object store has whole, whether bookies have them too or not."""
        recent = sum(info.size_bytes for info in self._infos if stored(info))
        return recent + (sum(page.about.stored_bytes for page in self.history.pages) if self.history is not None else 0)

    def unread(self, ledger: int) -> bool:
        """Whether it would lie in a page that was not read."""
        return self.history is not None and self._is_old(ledger) and self.history.unread(ledger)

    def _is_old(self, ledger: int) -> bool:
        """Whether it is before those that lie in no page."""
        return not self.ids or ledger < self.ids[0]

    @property
    def last(self) -> Position:
        """The last confirmed position, also where it is trimmed; (-1, -1) where there was never one."""
        return self._through

    @property
    def entries(self) -> int:
        recent = self._before[-1] + self._entries[-1] - self._before[0] if self.ids else 0
        return recent + (self.history.entries if self.history is not None else 0)

    @property
    def open_bytes(self) -> int:
        return self._bytes[-1] if self.ids and not self._infos[-1].closed_ms else 0

    @property
    def size_bytes(self) -> int:
        recent = self._bytes_before[-1] + self._bytes[-1] - self._bytes_before[0] if self.ids else 0
        return recent + (self.history.size_bytes if self.history is not None else 0)

    def entries_of(self, ledger: int) -> int:
        """0 where the ledger is not there. Raises MetadataUnavailable where its page was not read."""
        if self.history is not None and self._is_old(ledger):
            old = self.history.info(ledger)
            return old.entries if old is not None else 0
        at = bisect_left(self.ids, ledger)
        return self._entries[at] if at < len(self.ids) and self.ids[at] == ledger else 0

    def offload_of(self, ledger: int) -> OffloadRecord | None:
        """What was last said of its copy in an object store. Raises MetadataUnavailable where its page was not read."""
        if self.history is not None and self._is_old(ledger):
            old = self.history.info(ledger)
            return old.offload if old is not None else None
        at = bisect_left(self.ids, ledger)
        return self._infos[at].offload if at < len(self.ids) and self.ids[at] == ledger else None

    def closed(self, ledger: int) -> bool:
        """Whether it is there, and takes nothing more. Raises MetadataUnavailable where its page was not read."""
        if self.history is not None and self._is_old(ledger):
            return self.history.info(ledger) is not None
        at = bisect_left(self.ids, ledger)
        return at < len(self.ids) and self.ids[at] == ledger and self._infos[at].closed_ms != 0

    def local_gone(self, ledger: int) -> bool:
        """Whether only the object store has it."""
        record = self.offload_of(ledger)
        return record is not None and record.state == OffloadState.LOCAL_GONE

    def at_or_after(self, position: Position) -> Position | None:
        """The first position that exists, not before `position`."""
        ledger, entry = position
        if self.history is not None and self._is_old(ledger):
            old = self.history.at_or_after(position)
            if old is not None:
                return old
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
        return self.history.at_or_before(position) if self.history is not None else None

    def next(self, position: Position) -> Position:
        """The first position that exists strictly after `position`; where there is none, one that the next entry will
        be at or after.
        """
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
        ledger, entry = position
        if self.history is not None and self._is_old(ledger):
            return self._pages_end(self._before) + self.history.rank(position)
        if not self.ids:
            return 0
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
        ledger, entry = position
        if self.history is not None and self._is_old(ledger):
            return self._pages_end(self._bytes_before) + self.history.bytes_at(position)
        if not self.ids:
            return 0
        at = bisect_right(self.ids, ledger) - 1
        if at < 0:
            return self._bytes_before[0]
        size = self._bytes[at]
        if self.ids[at] == ledger and self._entries[at]:
            size = size * min(max(entry + 1, 0), self._entries[at]) // self._entries[at]
        return self._bytes_before[at] + size

    def position_at(self, rank: int) -> Position | None:
        """The entry with this rank (see `rank`); None where it does not exist. Raises MetadataUnavailable where its
        page was not read.
        """
        if self.history is not None and rank <= self._pages_end(self._before):
            return self.history.position_at(rank - self._pages_end(self._before))
        at = bisect_left(self._before, rank) - 1
        if at < 0 or not 0 < rank - self._before[at] <= self._entries[at]:
            return None
        return self.ids[at], rank - self._before[at] - 1

    def _pages_end(self, before: list[int]) -> int:
        """Where a column of sums begins, and what is counted in pages ends."""
        return before[0] if self.ids else 0


_NONE: list[int] = []
_NO_INFOS: list[LedgerInfo] = []
"""These empty lists stand for the columns of every topic that has no ledger; never appended to."""
