"""Standstill: how a process knows that it stood still itself: a signal, a hypervisor, a loop that was held up.

Is: what a timer that comes late tells. Isn't: a clock, or a timer.
Invariants: whoever waits for others does not count the time that it stood still itself as theirs: what they have said
meanwhile lies unread.
"""

from __future__ import annotations

LATE_S = 0.1
"""A timer that is late by less is merely late, as in any busy process."""


def stood_still_s(due: float, now: float) -> float:
    """For how many seconds this process stood still, as a timer that was due at `due` and comes at `now` tells; 0.0
    where it comes in time.
    """
    late_s = now - due
    return late_s if late_s >= LATE_S else 0.0
