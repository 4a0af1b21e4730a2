"""A machine whose wall clock is wrong, for tests of what deletes by time."""

from __future__ import annotations

DAY_MS = 86_400_000
NOON_MS = 1_700_000_000_000
BOOTED_S = 500.0


class Machine:
    """A clock whose wall is `wrong_ms` ahead of the time."""

    def __init__(self, wrong_ms: int = 0) -> None:
        self.passed_s, self.wrong_ms = 0.0, wrong_ms

    def monotonic(self) -> float:
        return BOOTED_S + self.passed_s

    def wall_ms(self) -> int:
        return self.truth_ms + self.wrong_ms

    @property
    def truth_ms(self) -> int:
        return NOON_MS + int(self.passed_s * 1000)


def ahead(wrong_ms: int = 0) -> float:
    """Of another clock that is so wrong, as it is known once it was heard."""
    return NOON_MS + wrong_ms - BOOTED_S * 1000
