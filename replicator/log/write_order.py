"""Order: the places that runs take in a topic while they are on their way to the bookies.

Is: what one writer waits for: a run, duplicates behind it, or pieces of a run that are answered together. Isn't: the
order itself, or who is next (`replicator.log.replicated_log`).
On the hot path a run costs one object and two calls; no Future, nothing per entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from heliograph.model.errors import HeliographError
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run

Segments = list[tuple[int, int, int]]
"""[(count, ledger, first entry)] in order; ledger -1: duplicates."""
Done = Callable[[Segments], None]
Failed = Callable[[HeliographError], None]


class Order(Protocol):
    """The log, as the places in its order call it."""

    def settle(self) -> None:
        """Answers the head of the order as far as it is decided."""
        ...

    def fail(self, failed: WaitingRun, error: HeliographError) -> None:
        """An append failed, and with it everything appended behind it."""
        ...


class WaitingRun:
    """One place in the order: a run on its way to the bookies, or duplicates that wait for what is before them."""

    __slots__ = ("done", "duplicate", "error", "failed", "first", "ledger", "log", "run", "skip", "state")

    WAITS, DONE, FAILED = 0, 1, 2

    def __init__(
        self, log: Order, run: Run, done: Done, failed: Failed, duplicate: bool = False, skip: SkipRecord | None = None
    ) -> None:
        self.log, self.run, self.done, self.failed, self.duplicate, self.skip = log, run, done, failed, duplicate, skip
        self.state = self.WAITS
        self.ledger = self.first = -1
        self.error: HeliographError | None = None

    def on_done(self, ledger: int, first: int, run: Run) -> None:
        if self.state == self.WAITS:
            self.state, self.ledger, self.first = self.DONE, ledger, first
            self.log.settle()

    def on_failed(self, error: HeliographError) -> None:
        if self.state == self.WAITS:
            self.log.fail(self, error)


class RunPieces:
    """A run of which some entries are duplicates: its pieces are answered together."""

    __slots__ = ("done", "error", "failed", "left", "segments")

    def __init__(self, pieces: int, done: Done, failed: Failed) -> None:
        self.left, self.done, self.failed = pieces, done, failed
        self.segments: Segments = []
        self.error: HeliographError | None = None

    def on_done(self, segments: Segments) -> None:
        self.segments += segments
        self._one_less()

    def on_failed(self, error: HeliographError) -> None:
        self.error = self.error or error
        self._one_less()

    def _one_less(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.error is None:
                self.done(self.segments)
            else:
                self.failed(self.error)
