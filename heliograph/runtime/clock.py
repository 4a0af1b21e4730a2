"""Time and chance as ports: cores are given both and never reach for them.

Is: the two protocols, and their production forms. Isn't: timers (the event loop has those).
"""

from __future__ import annotations

import random
import time
from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


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


def system_rng() -> Rng:
    """Seeded by the operating system."""
    return random.SystemRandom()
