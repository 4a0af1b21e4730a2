"""LogRepair: what is damaged of a topic's closed ledgers, and its repair in place, by the topic's owner.

Is: the questions and the repair of one loaded topic. Isn't: how it is done, or of a topic that nobody has loaded
(`damaged_ledgers`).
Invariants: the open ledger is closed before anything of it is touched; after a repair nothing is read from what was
kept of it before.
Source: docs/protocols/storage.md, "In-place repair".
"""

from __future__ import annotations

from abc import abstractmethod

from storage.ledger.repair.in_place_repair import Refilled, Source
from storage.managed_ledger.log import damaged_ledgers
from storage.managed_ledger.log.log_cursors import LogCursors


class LogRepair(LogCursors):
    """What `ManagedLedger` does of it."""

    __slots__ = ("quorums",)

    quorums: tuple[int, int, int]

    @abstractmethod
    async def roll_over(self) -> None:
        """What is confirmed by now lies in closed ledgers when it returns."""

    @abstractmethod
    def forget_cached(self, ledger: int) -> None:
        """What a repair has put right, or elsewhere, is read from bookies again."""

    async def damaged(self, ledger: int, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
        """[first, last] of the entries in that range of a closed ledger that no bookie has; reads all of it. Raises
        NoSuchLedger.
        """
        self._check_open()
        info = await self.ledger_info(ledger)
        return await damaged_ledgers.damaged(self._parts.context, info, self._parts.mending, first, last)

    async def refill(self, ledger: int, source: Source, first: int = 0, last: int | None = None) -> Refilled:
        """Brings back, under the same ids, what no bookie has of these entries of a closed ledger; the open one is
        closed first. Idempotent.

        Raises NoSuchLedger, NotAllowed (left to an object store), NotEnoughBookies, CorruptData (the source gives
        something else), and what closed the topic, the metadata, or the source raise: then it is tried again, and goes
        on where it stopped.
        """
        self._check_open()
        if not (await self.ledger_info(ledger)).closed_ms:
            await self.roll_over()
        parts = self._parts
        info = await self.ledger_info(ledger)
        done = await damaged_ledgers.mend(
            parts.context, self.topic, info, self.quorums, source, parts.mending, first, last
        )
        self.forget_cached(ledger)
        return done
