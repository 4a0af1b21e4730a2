"""Snapshots: replicated subscriptions of one topic on a link with a real Pulsar cluster, by Pulsar's own markers. A
core.

Is: whom to ask for a snapshot and when, what to answer, which update a moved subscription is worth. Isn't: between
Heliograph regions (there acknowledgements travel by coordinate: `replicator.subscriptions.subscription_sync`), or a
frame.
A snapshot is a pair of positions, here and there, so that everything at or before the one here is at or before the one
there, and the other way round for what came from there. Only the mark-delete position travels: Pulsar's protocol has no
more.
Invariants: an answer names a position here at or behind everything the cluster sent before it asked, and goes out
behind everything at or before that position; an update is told only for a snapshot that the subscription has passed,
and never backwards.
Source: docs/protocols/interop.md, "Replicated subscriptions".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from heliograph.model.positions import BEFORE_ALL, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    every_s: float = 1.0
    timeout_s: float = 30.0
    """A request that is not answered for so long is given up."""
    kept: int = 30
    """Newest snapshots that are kept; a subscription further behind than the oldest waits until it has passed a newer
    one.
    """


class Snapshots:
    """`here`: positions of this region's topic; `there`: of the cluster's."""

    __slots__ = ("_answers", "_asked", "_asked_at", "_asked_end", "_numbers", "_told", "found", "settings")

    def __init__(self, settings: SnapshotSettings | None = None) -> None:
        self.settings = settings or SnapshotSettings()
        self.found: deque[tuple[Position, Position]] = deque(maxlen=self.settings.kept)
        """The newest snapshots (here, there), ascending; at most `kept`."""
        self._answers: deque[tuple[Position, str]] = deque()
        self._asked = ""
        self._asked_at = 0.0
        self._asked_end: Position = BEFORE_ALL
        self._numbers = 0
        self._told: dict[str, Position] = {}

    def disconnected(self) -> None:
        """What was asked may be lost on either way; what was found stays true."""
        self._answers.clear()
        self._asked, self._asked_end = "", BEFORE_ALL

    # -- the cluster asks ----------------------------------------------------------------------------------------------

    def asked(self, snapshot: str, here: Position) -> None:
        """The cluster asks; everything that it sent before is durable at or before `here`."""
        self._answers.append((here, snapshot))

    def answers(self, sent_through: Position) -> list[tuple[str, Position]]:
        """(snapshot id, position here) of the answers that may go now: everything at or before `sent_through` went
        out.
        """
        ready = []
        while self._answers and self._answers[0][0] <= sent_through:
            here, snapshot = self._answers.popleft()
            ready.append((snapshot, here))
        return ready

    # -- this region asks ----------------------------------------------------------------------------------------------

    def ask(self, now: float, end: Position, salt: str) -> str:
        """The id of a snapshot to ask for now; "": not now. end: the topic's last position; without new messages none
        is needed.
        """
        if self._asked and now - self._asked_at < self.settings.timeout_s:
            return ""
        if (
            now - self._asked_at < self.settings.every_s
            or (self.found and end <= self.found[-1][0])
            or end == self._asked_end
        ):
            return ""
        self._numbers += 1
        self._asked, self._asked_at, self._asked_end = f"{salt}-{self._numbers}", now, end
        return self._asked

    def answered(self, snapshot: str, here: Position, there: Position) -> None:
        """The answer came; everything that the cluster sent before it is durable at or before `here`."""
        if snapshot == self._asked:
            self._asked = ""
            if not self.found or (here > self.found[-1][0] and there >= self.found[-1][1]):
                self.found.append((here, there))

    def updates(self, marks: Mapping[str, Position]) -> list[tuple[str, Position]]:
        """marks: subscription -> its mark-delete position here. Returns (subscription, position there) of those that
        passed a newer snapshot.
        """
        out = []
        told, self._told = self._told, {}
        for name, mark in marks.items():
            before = self._told[name] = told.get(name, BEFORE_ALL)
            there = next((there for here, there in reversed(self.found) if here <= mark), None)
            if there is not None and there > before:
                self._told[name] = there
                out.append((name, there))
        return out
