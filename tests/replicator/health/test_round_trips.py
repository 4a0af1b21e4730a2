"""Round trips and clocks are those of the heartbeat that was held up least."""

from __future__ import annotations

import random

from heliograph.wire.links.link_commands import LinkHeartbeat
from replicator.health.round_trips import WINDOW, RoundTrips

_AHEAD_MS = 5000
"""The other side's clock."""


def answered(way: RoundTrips, sent_ms: int, there_ms: int, back_ms: int) -> None:
    """A heartbeat left at `sent_ms`, took `there_ms`, was answered at once, and the answer took `back_ms`."""
    way.heard(LinkHeartbeat(sent_ms + there_ms + _AHEAD_MS, sent_ms, 0), sent_ms + there_ms + back_ms)


def test_a_busy_process_is_no_long_way() -> None:
    rng = random.Random(7)
    way = RoundTrips()
    way.heard(LinkHeartbeat(_AHEAD_MS, 0, 0), 20)
    assert (way.rtt_ms, way.offset_ms) == (0.0, 0.0), "nothing came back yet"
    answered(way, 1000, 1, 1)
    for n in range(2, 40):
        held_ms = 0 if n % (WINDOW - 1) == 0 else rng.randrange(300)
        answered(way, n * 1000, 1, 1 + held_ms)
        assert way.rtt_ms == 2 and way.offset_ms == _AHEAD_MS


def test_another_way_is_noticed() -> None:
    way = RoundTrips()
    for n in range(1, 20):
        answered(way, n * 1000, 1, 1)
    for n in range(20, 20 + WINDOW):
        answered(way, n * 1000, 40, 40)
    assert way.rtt_ms == 80
    answered(way, 60_000, 5, 5)
    assert way.rtt_ms == 10, "a shorter one at once"
