"""LedgerRetention: which of a topic's ledgers are freed, and what that takes.

Is: retention, and one trim at a time, from the question to the deletion on bookies. Isn't: the write that makes a trim
true (TopicRecord), or a move of cursors.
Invariants: what is trimmed is decided again when it is written, and goes once every cursor is stored where it allows
that, or in the same write, whatever else has changed since; ledgers are deleted on bookies only after the metadata
that forgets them is
durable: so never a live one. A deletion that fails is found later by the bookie's own collection: so none is needed
twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from heliograph.model.errors import HeliographError, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock
from storage.ledger.ledger_context import LedgerContext
from storage.ledger.ledger_deletion import delete_on_bookies
from storage.ledger.reading.ledger_reader import ledger_metadata
from storage.managed_ledger.cursors.cursor import Cursor
from storage.managed_ledger.metadata.ledger_catalog import Catalog
from storage.managed_ledger.retention.trim_rule import Retention, trim_count

log = logging.getLogger("storage.managed_ledger.retention")

_LEDGERS_A_TRIM = 256
_ALL = 1 << 62
"""Behind every entry of a ledger."""


class RetentionHost(Protocol):
    """The managed ledger, as its trimming sees it."""

    topic: str
    cursors: dict[str, Cursor]
    retention: Retention | None

    @property
    def last_confirmed(self) -> Position: ...

    async def read_front(self, count: int) -> None:
        """The first `count` ledgers are known when it returns. Raises what the metadata raises."""
        ...

    @property
    def ended(self) -> bool: ...

    def on_trim_ready(self) -> None:
        """It is known which ledgers are trimmed, and their metadata is read: write the topic's metadata."""
        ...


class LedgerRetention:
    """`truncating`: up to this position ledgers are freed whatever retention says."""

    __slots__ = (
        "_behind",
        "_catalog",
        "_clock",
        "_context",
        "_host",
        "_last_kept_ms",
        "_trim",
        "_under_way",
        "truncating",
    )

    def __init__(
        self, host: RetentionHost, catalog: Catalog, context: LedgerContext, clock: Clock, last_kept_ms: int
    ) -> None:
        """last_kept_ms: how long the last ledger is kept after it was closed, as in `trim_count`."""
        self.truncating: Position = (-1, -1)
        self._host, self._catalog, self._context, self._clock = host, catalog, context, clock
        self._last_kept_ms = last_kept_ms
        self._trim: list[LedgerMetadata] = []
        self._behind: set[str] | None = None
        """Cursors that may be stored before the end of the trim that is prepared; None: not looked at yet."""
        self._under_way = False

    def trim_soon(self) -> None:
        """Frees, in the background, the ledgers that nobody needs."""
        if not self._under_way and not self._host.ended and self._trimmable():
            self._under_way = True
            self._context.tasks.spawn(self._prepare())

    @property
    def idle(self) -> bool:
        """Whether it may be forgotten."""
        return not self._under_way and self.truncating == (-1, -1)

    def again_s(self) -> float:
        """Until time alone may let a ledger go; inf: it will not."""
        retention = self._host.retention
        if not self._catalog.count or retention is None or (retention.minutes < 0 and retention.mb < 0):
            return math.inf
        first, last = self._catalog.front(1)[0], self._catalog.recent()[-1]
        slowest = min(
            (c.mark_delete for c in self._host.cursors.values() if c.durable), default=self._host.last_confirmed
        )
        if not first.closed_ms or (first.ledger, first.entries - 1) > min(slowest, self._host.last_confirmed):
            return math.inf  # whatever changes that frees what it can
        now_ms = self._clock.wall_ms()
        times = [last.closed_ms + self._last_kept_ms] if last.closed_ms else []  # until then it does not count
        if retention.minutes >= 0:
            times.append(first.closed_ms + retention.minutes * 60_000)
        return min((ms - now_ms for ms in times if ms > now_ms), default=math.inf) / 1000

    def take(self, cursors: Iterable[Cursor], left: Collection[str]) -> tuple[bool, list[LedgerMetadata]]:
        """(whether the write that is being made ends the trim that was prepared, what goes with it). cursors: those
        that are in the write; left: names of those that go with a later one. What was prepared waits until each of
        those has been written once.
        """
        if not self._trim:
            return False, []
        known = self._catalog.history is None or not self._catalog.history.missing_front(len(self._trim))
        able = self._trimmable() if known else 0
        if able < len(self._trim):
            self._trim, self._behind = self._trim[:able], None
        if self._trim and self._waits(cursors, left):
            return False, []
        taken, self._trim, self._behind = self._trim, [], None
        return True, taken

    def _waits(self, cursors: Iterable[Cursor], left: Collection[str]) -> bool:
        """Whether a cursor may be stored before the end of the trim, once this write is made."""
        last = self._catalog.front(len(self._trim))[-1]
        end = last.ledger, last.entries - 1
        there = self._host.cursors
        if self._behind is None:
            self._behind = {
                name for name, one in there.items() if one.durable and (name in left or one.mark_delete < end)
            }
        for cursor in cursors:
            if cursor.mark_delete < end:
                self._behind.add(cursor.name)
            else:
                self._behind.discard(cursor.name)
        self._behind = {name for name in self._behind if name in there and there[name].durable}
        return bool(self._behind)

    def put_off(self, taken: bool) -> None:
        """A write was not made, or nobody knows. taken: it was the one with the trim."""
        self._behind = None
        self._under_way = self._under_way and not taken

    def finished(self) -> None:
        """The write that took the trim is durable."""
        self._under_way = False

    def delete(self, ledgers: Sequence[LedgerMetadata]) -> None:
        """On their bookies, in the background; no metadata names them any more."""
        if ledgers:
            self._context.tasks.spawn(self._delete(ledgers))

    def _trimmable(self) -> int:
        retention = self._host.retention
        if retention is None and self.truncating >= (0, 0):
            retention = Retention(-1, -1)
        if not self._catalog.count or retention is None:
            return 0
        through = self._host.last_confirmed
        slowest = min((c.mark_delete for c in self._host.cursors.values() if c.durable), default=through)
        front, now_ms = self._catalog.front(_LEDGERS_A_TRIM), self._clock.wall_ms()
        behind = (
            self._bytes_behind(front[-1].ledger, min(slowest, through), now_ms)
            if len(front) < self._catalog.count
            else None
        )
        return trim_count(front, slowest, through, retention, now_ms, self.truncating, self._last_kept_ms, behind)

    def _bytes_behind(self, ledger: int, limit: Position, now_ms: int) -> int:
        """The bytes of the closed ledgers behind this one that end at or before `limit`; of the one that it is in, what
        lies before it counts too.
        """
        last = self._catalog.recent()[-1:]
        if (
            last
            and last[0].ledger == limit[0]
            and (not last[0].closed_ms or now_ms - last[0].closed_ms < self._last_kept_ms)
        ):
            limit = (last[0].ledger, -1)
        return self._catalog.bytes_between((ledger, _ALL), limit)

    async def _prepare(self) -> None:
        """Reads what is needed to delete them: their metadata goes with the trim."""
        try:
            await self._host.read_front(_LEDGERS_A_TRIM)
            self._trim = [
                await self._doomed(info.ledger) for info in self._catalog.front(_LEDGERS_A_TRIM)[: self._trimmable()]
            ]
            if self._trim:
                self._host.on_trim_ready()
            else:
                self._under_way = False
        except HeliographError:
            self._under_way = False  # the next rollover, or sweep, tries again

    async def _doomed(self, ledger: int) -> LedgerMetadata:
        """What deletes it here: nothing, where only the object store has it, or its metadata is lost. Where another
        owner has trimmed it, the topic's own record says so to the write that would take it.
        """
        try:
            if not self._catalog.local_gone(ledger):
                return await ledger_metadata(self._context, ledger)
        except NoSuchLedger:
            if not self._catalog.local_gone(ledger):
                log.warning("retention.metadata_lost", extra={"topic": self._host.topic, "ledger": ledger})
        return LedgerMetadata(ledger, 0, 0, ())

    async def _delete(self, ledgers: Sequence[LedgerMetadata]) -> None:
        for metadata in ledgers:
            await delete_on_bookies(self._context, metadata)
