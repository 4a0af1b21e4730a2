"""LookUpsToCome: look-ups that are expected within a short time, each once.

Is: a bounded memory of who was told to go on elsewhere, or to come again. Isn't: whom that concerns, or to where
(`sent_on`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
LED_S = 15.0
"""So long a look-up is led away: clients come within a second, or are late by their own backoff, and then are told once
more."""


class LookUpsToCome(Generic[K]):
    """most: so many are remembered; of more the oldest are forgotten: those clients are told once more."""

    __slots__ = ("_most", "_until")

    def __init__(self, most: int) -> None:
        self._most = most
        self._until: dict[K, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def note(self, key: K, now: float) -> bool:
        """Returns whether the last one of it has not come, and might have."""
        waits = self.take(key, now)
        self._until[key] = now + LED_S
        oldest = next(iter(self._until))
        if self._until[oldest] <= now or len(self._until) > self._most:
            del self._until[oldest]
        return waits

    def awaits(self, key: K, now: float) -> bool:
        return self._until.get(key, now) > now

    def take(self, key: K, now: float) -> bool:
        """Whether this is one that was expected: the next of it is none."""
        return self._until.pop(key, now) > now
