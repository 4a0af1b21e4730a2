"""Sweeping: which topics' logs of a broker are to be visited as time goes by.

Is: those that have something to give up or to free, and those whose last visit has named a time. Isn't: a timer, or
what a visit does (`ManagedLedger.rest`).
Invariants: a log at rest is not in it and costs nothing, however many there are; whatever makes a part of a log that
`rest` gives up touches it, and so does whatever may let ledgers go (an acknowledgement that is stored, another
retention).
"""

from __future__ import annotations

import math

NEVER = math.inf
LATER_MAX_S = 600.0
"""Who waits for a time is visited as often as that at least: clocks on the wall are set anew."""


class Sweeping:
    """Says which topics are due, by name. The broker's factory touches them, and asks for those that are due."""

    __slots__ = ("_later", "_period_s", "_touched")

    def __init__(self, period_s: float) -> None:
        """period_s: how often `due` is asked."""
        self._period_s = period_s
        self._touched: dict[str, None] = {}
        self._later: dict[int, dict[str, None]] = {}
        """By periods since the clock's beginning."""

    def touch(self, topic: str) -> None:
        """It is to be visited."""
        self._touched[topic] = None

    def due(self, now: float) -> list[str]:
        """Takes out those to be visited now; some of them may have been closed since."""
        found, self._touched = self._touched, {}
        period = int(now // self._period_s)
        for slot in [slot for slot in self._later if slot <= period]:
            found.update(self._later.pop(slot))
        return list(found)

    def visited(self, topic: str, now: float, again_s: float) -> None:
        """again_s: what `ManagedLedger.rest` has said: 0, by the next sweep; NEVER, not before it is touched."""
        self._touched.pop(topic, None)  # by the visit itself
        if again_s <= 0:
            self._touched[topic] = None
        elif again_s < NEVER:
            slot = int((now + min(again_s, LATER_MAX_S)) // self._period_s) + 1
            self._later.setdefault(slot, {})[topic] = None
