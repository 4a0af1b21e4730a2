"""Watchdog: says when an open link has something to do and gets nowhere, and what it is that stands still.

Is: one clock per link, and the order in which suspects are asked. Isn't: the restart (`replicator.links.link`), or a
time-out of one operation.
Invariants: a link that is behind and made no progress at the target for `after_s` is named within one look; a link that
has nothing to do, or makes progress however slowly, never is. Progress is what the target confirmed, or what needs no
confirmation: not bytes written, not rewinds.
Source: docs/protocols/links.md, "Causes of a closed link".
"""

from __future__ import annotations

from typing import NamedTuple

from heliograph.model.positions import Position
from heliograph.runtime.standstill import stood_still_s
from replicator.health.link_causes import Cause

_GAPS = 3


class Facts(NamedTuple):
    """What a link that is behind is doing just now."""

    mark: Position
    receipts: int
    """How often the target confirmed something new."""
    rewinds: int
    reading: bool
    skipping: bool
    blocked: bool
    """The connection takes no more bytes."""
    in_flight: bool


class Watchdog:
    """Each `every_s` while the link is open: `look` where it is behind, else `caught_up`; `opened` when it is opened
    anew.
    """

    def __init__(self, after_s: float, every_s: float = 1.0) -> None:
        assert after_s > 0
        self.after_s, self._every_s = after_s, every_s
        self._since = self._looked_at = 0.0
        self._seen: tuple[Position, int] | None = None
        self._rewinds = 0

    def opened(self, now: float, rewinds: int) -> None:
        self._since, self._seen, self._rewinds = now, None, rewinds
        self._looked_at = now

    def caught_up(self) -> None:
        """It has nothing to do: the time counts from when it has."""
        self._seen = None

    def look(self, now: float, facts: Facts) -> tuple[Cause, str] | None:
        """(cause, sentence) where the link must be made anew."""
        seen, due, self._looked_at = (facts.mark, facts.receipts), self._looked_at + self._every_s, now
        self._since = min(now, self._since + stood_still_s(due, now))  # receipts may lie unread
        if seen != self._seen:
            self._since, self._seen, self._rewinds = now, seen, facts.rewinds
            return None
        if now - self._since <= self.after_s:
            return None
        cause, what = self._suspect(facts)
        self.opened(now, facts.rewinds)
        return cause, f"nothing new confirmed there for {self.after_s:g} s: {what}"

    def _suspect(self, facts: Facts) -> tuple[Cause, str]:
        gaps = facts.rewinds - self._rewinds
        if gaps >= _GAPS:
            return Cause.GAPS, f"{gaps} times the target asked to begin again"
        if facts.skipping:
            return Cause.SKIP_STALLED, "a SKIP is not stored here"
        if facts.blocked:
            return Cause.WRITE_BLOCKED, "the connection takes no bytes"
        if facts.in_flight:
            return Cause.STALLED, "no receipt for what was sent"
        if facts.reading:
            return Cause.READ_STALLED, "a read of this region's entries does not come back"
        return Cause.IDLE, "nothing was being done about it"
