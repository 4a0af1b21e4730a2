"""KnownLosses: which entries one broker has found to be lost, and whether their readers are to be told yet.

Is: a list by ledger, for metrics, for operators, and for readers that come. Isn't: the finding
(`storage.ledger.reading.lost_entries`); nothing is decided by what stands here alone: whoever reads asks the bookies
again.
Invariants: while others may still bring it back, it is not told as lost. What was found is believed for RECHECK_S;
behind that whoever comes is let in, and reads. Bounded.
Source: docs/protocols/storage.md, "What is gone".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heliograph.model.errors import BookieUnavailable, EntriesLost
from heliograph.model.positions import Position

RECHECK_S = 60.0
RANGES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Loss:
    """topic: as its reader named it. since, seen_at: seconds of a monotonic clock."""

    topic: str
    ledger: int
    first: int
    last: int
    since: float
    seen_at: float


class KnownLosses:
    """One broker's. ranges_max: so many are remembered; those of the ledger that was looked at longest ago are
    forgotten first.
    """

    def __init__(self, ranges_max: int = RANGES_MAX) -> None:
        self._ranges_max = ranges_max
        self._settled: Callable[[str, float], bool] = _nobody_else
        self._known: dict[int, list[Loss]] = {}
        """By ledger, in order and apart; what was seen last comes last."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def entries(self) -> int:
        return sum(loss.last - loss.first + 1 for losses in self._known.values() for loss in losses)

    def ask_elsewhere(self, settled: Callable[[str, float], bool]) -> None:
        """settled: given a topic and when its loss was found, asks who else may have the entries; True once all of
        them have been asked since.
        """
        self._settled = settled

    def told(self, topic: str, error: EntriesLost, now: float) -> EntriesLost | BookieUnavailable:
        """Remembers it. Returns what its reader is told: that it is lost, or that others are asked first."""
        first, last, since = error.first, error.last, now
        apart: list[Loss] = []
        for loss in self.forget(error.ledger):
            if loss.first <= last + 1 and first <= loss.last + 1:
                first, last, since = min(first, loss.first), max(last, loss.last), min(since, loss.since)
            else:
                apart.append(loss)
        apart.append(Loss(topic, error.ledger, first, last, since, now))
        self._known[error.ledger] = sorted(apart, key=lambda loss: loss.first)
        self._count += len(apart)
        while self._count > self._ranges_max and len(self._known) > 1:
            self.forget(next(iter(self._known)))
        if self._settled(topic, since):
            return error
        return BookieUnavailable(f"{error}; whether another region has them is being asked")

    def of(self, topic: str) -> list[Loss]:
        """In the order of their positions."""
        return [loss for _, losses in sorted(self._known.items()) for loss in losses if loss.topic == topic]

    def at(self, position: Position, now: float) -> EntriesLost | None:
        """What is lost there, as far as it was found lately."""
        for loss in self._known.get(position[0], ()):
            if loss.first <= position[1] <= loss.last and now - loss.seen_at < RECHECK_S:
                return (
                    EntriesLost(loss.ledger, loss.first, loss.last) if self._settled(loss.topic, loss.since) else None
                )
        return None

    def forget(self, ledger: int) -> list[Loss]:
        """It was trimmed, or something of it was brought back. Returns what was known of it."""
        known = self._known.pop(ledger, [])
        self._count -= len(known)
        return known

    def forget_topic(self, topic: str) -> None:
        """It was closed here: its next owner finds out for itself."""
        for ledger in [ledger for ledger, losses in self._known.items() if losses[0].topic == topic]:
            self.forget(ledger)


def _nobody_else(topic: str, since: float) -> bool:
    return True
