"""A topic of the region `us` as its links see it: what was published there, run by run, without a ledger.

Is: a TopicState that is told what became durable, and the runs to give to a sender. Isn't: a target, or a store of
SKIPs.
"""

from __future__ import annotations

import random

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from replicator.sending.outgoing_runs import OutgoingRun, Send
from tests.replicator.link_world import entry

WINDOW_BYTES = 1 << 20


class PublishedTopic:
    """`runs`: (ledger, first entry, run), as they lie there."""

    def __init__(self) -> None:
        self.state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        self.state.restore(b"")
        self.runs: list[tuple[int, int, Run]] = []
        self._body = 0

    @property
    def origin(self) -> Origin:
        return self.state.origin

    @property
    def positions(self) -> list[Position]:
        return [(ledger, first + at) for ledger, first, run in self.runs for at in range(run.count)]

    def publish(self, ledger: int, count: int, to: tuple[str, ...] = ()) -> None:
        """So many entries behind the last one of this ledger, as one run, for the regions `to` (none: for all)."""
        first = sum(run.count for which, _, run in self.runs if which == ledger)
        parts = [entry(self._body + at, "p", self._body + at, to) for at in range(count)]
        self._body += count
        run = Run(parts, [len(part) for part in parts], time_ms=1 + self._body)
        self.state.confirm_local(ledger, first, run)
        self.runs.append((ledger, first, run))

    def vector(self, through: Position | None = None) -> Vector:
        """Of a target that holds everything up to there."""
        made = Vector()
        if through is not None:
            made.advance(self.origin, through)
        return made


def coordinates(sends: list[Send]) -> list[Position]:
    """Of all entries that go out, in their order; each run has the coordinate before it."""
    found: list[Position] = []
    for send in sends:
        assert isinstance(send, OutgoingRun)
        here = [send.run.coordinate(at) for at in range(send.run.count)]
        assert send.previous < here[0] and (not found or found[-1] <= send.previous)
        found += here
    return found
