"""Backoff: how long to wait before something that failed is tried again.

Is: pauses that double, up to a longest one, and are spread by chance, so that those who failed together do not come
back together. Isn't: a count of failures, a timer, or a decision whether to try again: the caller has these.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.runtime.clock import Rng

_DOUBLED_MAX = 16


@dataclass(frozen=True, slots=True)
class Backoff:
    """first_s, longest_s: seconds, before they are spread: by a factor between the two of `spread`."""

    first_s: float
    longest_s: float
    spread: tuple[float, float] = (0.5, 1.0)

    def __post_init__(self) -> None:
        assert 0 < self.first_s <= self.longest_s and 0 <= self.spread[0] <= self.spread[1]

    def pause_s(self, failures: int, rng: Rng | None) -> float:
        """Seconds to wait after so many failures in a row, 1 at least. rng: None: the pause is not spread, where
        nobody else waits for the same.
        """
        pause_s = min(self.first_s * (1 << min(failures - 1, _DOUBLED_MAX)), self.longest_s)
        return pause_s if rng is None else rng.uniform(pause_s * self.spread[0], pause_s * self.spread[1])
