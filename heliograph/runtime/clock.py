"""Time and chance as ports: cores are given both and never reach for them.

Is: the two protocols, their production forms, and the clock that whatever deletes by time obeys. Isn't: timers (the
event loop has those).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
STAMP_OFF_MS = 10_000
"""A wall clock that is behind others by less is believed in what it stamps: so exactly others may not be known."""
_LOOK_MS = 1000.0
"""So long what was heard of other clocks counts for stamps, which are taken with every run that is published; that
nobody was heard counts for nothing: the first that is heard counts from the next run on.
"""


class Clock(Protocol):
    """What time it is. Both run on while the process is stopped by a signal."""

    def monotonic(self) -> float:
        """Seconds; only differences mean anything. Counts suspended time."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump."""
        ...


class Rng(Protocol):
    """The part of `random.Random` that is used."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int | None = None) -> int: ...

    def uniform(self, a: float, b: float) -> float: ...

    def choice(self, seq: Sequence[T]) -> T: ...

    def shuffle(self, x: MutableSequence[Any]) -> None: ...

    def getrandbits(self, k: int) -> int: ...


class SystemClock:
    """Reads the machine's clocks; the monotonic one goes on while the machine sleeps."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class CautiousClock:
    """A `Clock` for whatever deletes by time: a wall clock that is wrong, or set anew, makes a time longer, never
    shorter.

    It is no later than this machine's wall clock, nor than that of any other that was heard; where none was, it goes on
    from the wall clock as it was when this object was made. Clocks that were heard, and that one, run on by the
    monotonic clock here: so a jump of the wall clock moves nothing. While others are to be heard, and were not, it is
    1970 for the first `patience_s`: what begins beside a wrong clock waits for a better one.
    """

    def __init__(
        self,
        clock: Clock,
        heard: Callable[[], Iterable[float]] = tuple,
        alone: Callable[[], bool] = lambda: True,
        patience_s: float = 30.0,
    ) -> None:
        """heard: of each other clock how many ms it is ahead of the monotonic one here. alone: whether there is nobody
        to hear.
        """
        self._clock, self._heard, self._alone = clock, heard, alone
        now = clock.monotonic()
        self._began_ahead_ms, self._patient_until = clock.wall_ms() - now * 1000, now + patience_s
        self._others_ahead_ms, self._looked_ms = -math.inf, -math.inf

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        """The earliest that it may be."""
        heard, now = list(self._heard()), self._clock.monotonic()
        if not heard and now < self._patient_until and not self._alone():
            return 0
        return int(min(self._clock.wall_ms(), now * 1000 + min(heard, default=self._began_ahead_ms)))

    def latest_ms(self) -> int:
        """The latest that it may be: a time that is written down for others to measure from."""
        return int(max(self._clock.wall_ms(), self._clock.monotonic() * 1000 + max(self._heard(), default=-math.inf)))

    def behind_ms(self) -> int:
        """By how much this machine's wall clock is behind the others, in whole seconds: it is by more than
        `STAMP_OFF_MS`, and in the lower half of all clocks that are known here, its own among them; 0: it is not, or
        nobody was heard. So of three or more clocks a single wrong one, whichever, moves nothing but itself.
        """
        now_ms = self._clock.monotonic() * 1000
        if now_ms - self._looked_ms >= _LOOK_MS:
            heard = sorted(self._heard())
            self._others_ahead_ms = heard[(len(heard) - 1) // 2] if heard else -math.inf
            self._looked_ms = now_ms if heard else -math.inf
        behind_ms = now_ms + self._others_ahead_ms - self._clock.wall_ms()
        return math.ceil(behind_ms / 1000) * 1000 if behind_ms > STAMP_OFF_MS else 0

    def stamp_ms(self) -> int:
        """When something is published, or a ledger is closed: what others, whose clocks are right, measure its age by
        must not make it older than it is.
        """
        return self._clock.wall_ms() + self.behind_ms()


@dataclass(frozen=True, slots=True)
class StampClock:
    """A `Clock` whose wall clock is `CautiousClock.stamp_ms`: for whoever stamps."""

    cautious: CautiousClock

    def monotonic(self) -> float:
        return self.cautious.monotonic()

    def wall_ms(self) -> int:
        return self.cautious.stamp_ms()


@dataclass(frozen=True, slots=True)
class Clocks:
    """`now`: a process's own clock. `expiry`: by it what deletes by time goes, as a rule a CautiousClock."""

    now: Clock
    expiry: Clock


def system_rng() -> Rng:
    """Seeded by the operating system."""
    return random.SystemRandom()
