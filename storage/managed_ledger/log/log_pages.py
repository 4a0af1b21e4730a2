"""LogPages: a topic's log whose oldest ledgers lie in pages that are read when somebody asks for what only they tell.

Is: what has to be read for a question, and the questions that wait for it. Isn't: a page, or what is known without its
value (`ledger_history`).
Invariants: what was read stays known; an owner that was replaced meanwhile has failed, and says so.
Source: docs/protocols/ledger.md, "Pages of ledgers".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from heliograph.model.errors import HeliographError, LedgerFenced
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from storage.managed_ledger.log.log_extent import LogExtent
from storage.managed_ledger.log.shared_parts import SharedParts
from storage.managed_ledger.metadata.ledger_history import Page
from storage.managed_ledger.metadata.ledger_pages import read_pages


class LogPages(LogExtent):
    """What `ManagedLedger` does with them."""

    __slots__ = ("_parts",)

    _parts: SharedParts

    @abstractmethod
    def _fail(self, error: HeliographError) -> None:
        """Closes the topic for good with this error."""

    async def whole(self) -> None:
        """`ledgers` answers from then on. Raises what the metadata raises, and what closed the topic."""
        await self.read_back_to(-1)

    async def read_back_to(self, ledger: int) -> None:
        """What is known of ledgers from this one on is exact when it returns. Raises what the metadata raises, and what
        closed the topic.
        """
        if self._catalog.history is not None:
            await self._read_pages(self._catalog.history.missing(ledger))

    async def read_front(self, count: int) -> None:
        """The same of the first `count` ledgers."""
        if self._catalog.history is not None:
            await self._read_pages(self._catalog.history.missing_front(count))

    async def first_from(self, position: Position) -> Position | None:
        """The first position that exists, not before `position`; None: nothing is confirmed there yet. Raises what the
        metadata raises.
        """
        while (
            (at := self._catalog.at_or_after(position)) is not None
            and self._catalog.history is not None
            and self._catalog.unread(at[0])
        ):
            await self._read_page(at[0])
        return at

    async def ledger_info(self, ledger: int) -> LedgerInfo:
        """What is known of one ledger; reads its page where that is needed. Raises NoSuchLedger; what the metadata
        raises, and what closed the topic.
        """
        if self._catalog.unread(ledger):
            await self._read_page(ledger)
        return self._info(ledger)

    async def _read_page(self, ledger: int) -> None:
        """Reads the page that this ledger lies in, where it was not read yet."""
        if self._catalog.history is not None:
            await self._read_pages(self._catalog.history.missing(ledger)[:1])

    async def _read_pages(self, pages: Sequence[Page]) -> None:
        try:
            await read_pages(self._parts.context.meta, self.topic, self.owner, pages)
        except LedgerFenced as error:
            self._fail(error)
            raise

    def _read_soon(self) -> None:
        async def read() -> None:
            with suppress(HeliographError):  # whoever asks again hears of it
                await self.whole()

        self._parts.context.tasks.spawn(read())
