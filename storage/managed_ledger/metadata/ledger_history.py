"""History: the oldest of very many ledgers of one topic, in pages.

Is: what is known of each page without its value, and what its value tells once it was read. Isn't: the reading, or the
writing.
Invariants: every ledger here is closed and has entries; ledger ids grow over the pages; a page goes when its last
ledger was trimmed. Numbers of whole pages are exact, read or not. Inside a page that was not read, ranks and bytes are
those of its begin, and a position is given back as it is, without a word on whether it exists; everything else raises
MetadataUnavailable: no ledger is ever left out silently.
`changed` holds the keys of pages that are to be written.
Source: docs/protocols/ledger.md, "Pages of ledgers".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from heliograph.model.errors import MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerInfo, LedgerPage, OffloadRecord, decode_page, encode_page
from heliograph.model.positions import Position


class Page:
    """`about`: what is known without its value. used: since `History.forget` looked last."""

    __slots__ = ("_before", "_blob", "_bytes_before", "_ids", "_whole", "about", "used")

    def __init__(self, about: LedgerPage, whole: Sequence[LedgerInfo] = ()) -> None:
        """whole: all the ledgers that it was made with, where they are known."""
        self.about, self.used = about, True
        self._blob: bytes | None = None
        self._whole = tuple(whole)
        self._ids: list[int] = []
        self._before: list[int] = []
        self._bytes_before: list[int] = []

    @property
    def read(self) -> bool:
        return self._blob is not None or bool(self._whole)

    @property
    def unpacked(self) -> bool:
        return bool(self._whole)

    def take(self, blob: bytes) -> None:
        """Its value. It is looked into when the page is asked for the first time."""
        if not self._whole:
            self._blob, self.used = blob, True

    def forget(self) -> None:
        """What is known of its ledgers is kept as it is stored, in a twentieth of the memory."""
        if self._whole:
            self._blob, self._whole = encode_page(self._whole), ()
            self._ids, self._before, self._bytes_before = [], [], []

    def whole(self) -> tuple[LedgerInfo, ...]:
        """All the ledgers that it was made with. Raises MetadataUnavailable where it was not read; CorruptData."""
        self.used = True
        if not self._whole:
            if self._blob is None:
                raise MetadataUnavailable(
                    f"ledgers {self.about.first.ledger} to {self.about.last.ledger} of the topic are only being read: "
                    "try again"
                )
            self._whole, self._blob = decode_page(self.about, self._blob), None
        if not self._ids:
            left = self._whole[self.about.trimmed :]
            self._ids = [info.ledger for info in left]
            self._before = list(accumulate((info.entries for info in left), initial=0))
            self._bytes_before = list(accumulate((info.size_bytes for info in left), initial=0))
        return self._whole

    def infos(self) -> Sequence[LedgerInfo]:
        """Those that are left. Raises what `whole` raises, and so do all below."""
        return self.whole()[self.about.trimmed :]

    def info(self, ledger: int) -> LedgerInfo | None:
        whole = self.whole()
        at = bisect_left(self._ids, ledger)
        return whole[self.about.trimmed + at] if at < len(self._ids) and self._ids[at] == ledger else None

    def set_offload(self, ledger: int, record: OffloadRecord) -> bool:
        """Returns whether it is there."""
        whole = self.whole()
        at = bisect_left(self._ids, ledger)
        if at == len(self._ids) or self._ids[at] != ledger:
            return False
        at += self.about.trimmed
        self._whole = (*whole[:at], replace(whole[at], offload=record), *whole[at + 1 :])
        self.about = LedgerPage.of(self.about.key, self.about.trimmed, self._whole[self.about.trimmed :])
        return True

    def drop_first(self, count: int) -> None:
        """Trims so many of its first ledgers, but never all of them: then the whole page goes."""
        self.about = self.without(count)
        self._ids = []

    def without(self, count: int) -> LedgerPage:
        trimmed = self.about.trimmed + count
        return LedgerPage.of(self.about.key, trimmed, self.whole()[trimmed:])

    def at_or_after(self, position: Position) -> Position | None:
        ledger, entry = position
        whole = self.whole()
        at = bisect_left(self._ids, ledger)
        if at < len(self._ids) and self._ids[at] == ledger:
            if entry < whole[self.about.trimmed + at].entries:
                return ledger, max(entry, 0)
            at += 1
        return (self._ids[at], 0) if at < len(self._ids) else None

    def at_or_before(self, position: Position) -> Position | None:
        ledger, entry = position
        infos = self.infos()
        at = bisect_right(self._ids, ledger) - 1
        if at >= 0 and self._ids[at] == ledger:
            if entry >= 0:
                return ledger, min(entry, infos[at].entries - 1)
            at -= 1
        return (self._ids[at], infos[at].entries - 1) if at >= 0 else None

    def rank(self, position: Position) -> int:
        """How many of its entries lie at or before `position`."""
        ledger, entry = position
        infos = self.infos()
        at = bisect_right(self._ids, ledger) - 1
        if at < 0:
            return 0
        entries = infos[at].entries
        return self._before[at] + (min(max(entry + 1, 0), entries) if self._ids[at] == ledger else entries)

    def bytes_at(self, position: Position) -> int:
        """The same of bytes; those of one ledger are spread evenly over its entries."""
        ledger, entry = position
        infos = self.infos()
        at = bisect_right(self._ids, ledger) - 1
        if at < 0:
            return 0
        size, entries = infos[at].size_bytes, infos[at].entries
        return self._bytes_before[at] + (
            size * min(max(entry + 1, 0), entries) // entries if self._ids[at] == ledger else size
        )

    def position_at(self, rank: int) -> Position:
        """rank: from 1 to the number of its entries."""
        self.whole()
        at = bisect_left(self._before, rank) - 1
        return self._ids[at], rank - self._before[at] - 1


class History:
    """`pages`: at least one, but while the first is being made."""

    __slots__ = ("_before", "_bytes_before", "_firsts", "changed", "count", "pages")

    def __init__(self, pages: Sequence[LedgerPage]) -> None:
        self.pages = [Page(about) for about in pages]
        self.changed: dict[int, None] = {}
        self.count = 0
        """How many ledgers lie in the pages."""
        self._sum_up()

    def _sum_up(self) -> None:
        """Sums are counted from the end, so that what is trimmed changes none behind it."""
        abouts = [page.about for page in self.pages]
        self.count = sum(about.count for about in abouts)
        self._firsts = [about.first.ledger for about in abouts]
        self._before = list(
            accumulate((about.entries for about in abouts), initial=-sum(about.entries for about in abouts))
        )
        self._bytes_before = list(
            accumulate((about.size_bytes for about in abouts), initial=-sum(about.size_bytes for about in abouts))
        )

    # -- changes ------------------------------------------------------------------------------------------------------

    def append(self, infos: Sequence[LedgerInfo]) -> None:
        """A page behind the others: closed ledgers that have entries."""
        assert all(info.closed_ms and info.entries for info in infos)
        self.pages.append(Page(LedgerPage.of(infos[0].ledger, 0, infos), infos))
        self.changed[infos[0].ledger] = None
        self._sum_up()

    def set_offload(self, ledger: int, record: OffloadRecord) -> bool:
        page = self._page(ledger)
        if page is None or not page.set_offload(ledger, record):
            return False
        self.changed[page.about.key] = None
        return True

    def drop_first(self, count: int) -> int:
        """Returns how many of them were here."""
        left = count
        while left and self.pages:
            page = self.pages[0]
            if page.about.count > left:
                page.drop_first(left)
                left = 0
                break
            left -= page.about.count
            del self.pages[0]
            self.changed.pop(page.about.key, None)
        self._sum_up()
        return count - left

    def forms(self, trimmed: int) -> tuple[list[LedgerPage], list[int]]:
        """(what is to be stored of the pages without the first `trimmed` ledgers, the keys of pages that go whole)."""
        kept: list[LedgerPage] = []
        gone: list[int] = []
        for page in self.pages:
            if trimmed >= page.about.count:
                gone.append(page.about.key)
                trimmed -= page.about.count
            else:
                kept.append(page.without(trimmed) if trimmed else page.about)
                trimmed = 0
        return kept, gone

    def take_changed(self) -> dict[int, bytes]:
        """Key -> value of each page that is to be written."""
        taken = (
            {page.about.key: encode_page(page.whole()) for page in self.pages if page.about.key in self.changed}
            if self.changed
            else {}
        )
        self.changed.clear()
        return taken

    def change_again(self, keys: Sequence[int]) -> None:
        """What was taken is to be written still; a page that was to go is not touched by that."""
        self.changed.update((page.about.key, None) for page in self.pages if page.about.key in keys and page.read)

    def forget(self, before: int) -> None:
        """Pages that end before this ledger take little memory again, where nobody has asked for them since the last
        call.
        """
        for page in self.pages:
            if page.about.last.ledger < before:
                if not page.used:
                    page.forget()
                page.used = False

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        return -self._before[0]

    @property
    def size_bytes(self) -> int:
        return -self._bytes_before[0]

    def missing(self, ledger: int = -1) -> list[Page]:
        """Pages that were not read, from the one that this ledger is in, or would be in, on."""
        return [
            page
            for page in self.pages[max(self._at(ledger), 0) :]
            if not page.read and page.about.last.ledger >= ledger
        ]

    def missing_front(self, count: int) -> list[Page]:
        """Pages that were not read, of the first `count` ledgers."""
        found: list[Page] = []
        for page in self.pages:
            if count <= 0:
                break
            count -= page.about.count
            if not page.read:
                found.append(page)
        return found

    def unread(self, ledger: int) -> bool:
        page = self._page(ledger)
        return page is not None and not page.read

    def infos(self, ledger: int = -1) -> list[LedgerInfo]:
        """From the page on that this ledger is in, or would be in."""
        return [info for page in self.pages[max(self._at(ledger), 0) :] for info in page.infos()]

    def unsettled(self) -> list[LedgerInfo]:
        return [info for page in self.pages if not page.about.settled for info in page.infos()]

    def front(self, count: int) -> list[LedgerInfo]:
        """At most `count` of the first ones, up to the first page that was not read; of that, where it is the first of
        all, its first ledger.
        """
        found: list[LedgerInfo] = []
        for page in self.pages:
            if len(found) >= count or not page.read:
                break
            found += page.infos()[: count - len(found)]
        return found or [self.pages[0].about.first]

    def info(self, ledger: int) -> LedgerInfo | None:
        page = self._page(ledger)
        return None if page is None else page.info(ledger)

    def at_or_after(self, position: Position) -> Position | None:
        """The first position of a page's ledger at or after `position`; None where that lies behind all of them."""
        at = self._at(position[0])
        if at < 0:
            return self.pages[0].about.first.ledger, 0
        page = self.pages[at]
        if position[0] <= page.about.last.ledger:
            if not page.read:
                return position[0], max(position[1], 0)
            found = page.at_or_after(position)
            if found is not None:
                return found
        return (self._firsts[at + 1], 0) if at + 1 < len(self.pages) else None

    def at_or_before(self, position: Position) -> Position | None:
        at = self._at(position[0])
        if at < 0:
            return None
        page = self.pages[at]
        if position[0] <= page.about.last.ledger:
            if not page.read:
                return position
            found = page.at_or_before(position)
            if found is not None:
                return found
            if at == 0:
                return None
            page = self.pages[at - 1]
        return page.about.last.ledger, page.about.last.entries - 1

    def rank(self, position: Position) -> int:
        """How many entries lie at or before `position`, less all of them: 0 at the end, below 0 before it."""
        at = self._at(position[0])
        if at < 0:
            return self._before[0]
        page = self.pages[at]
        if position[0] > page.about.last.ledger:
            return self._before[at + 1]
        return self._before[at] + (page.rank(position) if page.read else 0)

    def bytes_at(self, position: Position) -> int:
        at = self._at(position[0])
        if at < 0:
            return self._bytes_before[0]
        page = self.pages[at]
        if position[0] > page.about.last.ledger:
            return self._bytes_before[at + 1]
        return self._bytes_before[at] + (page.bytes_at(position) if page.read else 0)

    def position_at(self, rank: int) -> Position | None:
        at = bisect_left(self._before, rank) - 1
        if not 0 <= at < len(self.pages):
            return None
        return self.pages[at].position_at(rank - self._before[at])

    def _at(self, ledger: int) -> int:
        """The index of the page that a ledger is in, or behind; -1: before all of them."""
        return bisect_right(self._firsts, ledger) - 1

    def _page(self, ledger: int) -> Page | None:
        at = self._at(ledger)
        return self.pages[at] if at >= 0 and ledger <= self.pages[at].about.last.ledger else None
