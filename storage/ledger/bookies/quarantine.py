"""Quarantine: which bookies have failed lately, and for how long nothing new is put on them.

Is: a memory of failures with backoff. Isn't: a judgement that a bookie is lost, or a refusal: where nobody else is
left, it is chosen all the same.
Invariants: a failure within a quarantine, however many ledgers notice it, makes it no longer; one after it doubles it,
up to LONGEST_S; a bookie that was well for as long again, and a minute at least, begins anew. A new registration ends a
quarantine, and is forgiven nothing.
"""

from __future__ import annotations

FIRST_S = 5.0
LONGEST_S = 60.0
_WELL_S = 60.0


class Quarantine:
    def __init__(self) -> None:
        self._of: dict[str, tuple[float, float]] = {}  # bookie -> (until, how long)

    def on_failed(self, bookie: str, now: float) -> None:
        """It did not answer, or was too slow."""
        until, length = self._of.get(bookie, (now, 0.0))
        if now < until:
            return
        well = now - until >= max(length, _WELL_S)
        length = FIRST_S if well or not length else min(2 * length, LONGEST_S)
        self._of[bookie] = now + length, length

    def on_registered(self, bookie: str, now: float) -> None:
        """It has come back, or says something else of itself."""
        if bookie in self._of:
            until, length = self._of[bookie]
            self._of[bookie] = min(until, now), length

    def held_s(self, bookie: str, now: float) -> float:
        """For how long it has been in quarantine."""
        until, length = self._of.get(bookie, (now, 0.0))
        return now - (until - length)

    def holds(self, bookie: str, now: float) -> bool:
        found = self._of.get(bookie)
        return found is not None and now < found[0]
