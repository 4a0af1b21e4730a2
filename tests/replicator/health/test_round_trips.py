"""Round trips and clocks are those of the heartbeat that was held up least."""

from __future__ import annotations

import random

import pytest

from heliograph.wire.links.link_commands import LinkHeartbeat
from replicator.health.round_trips import WINDOW, RoundTrips

_AHEAD_MS = 5000
"""The other side's clock."""
_WALL_MS = 500
"""The wall clock's lead over the monotonic one, here."""


def answered(way: RoundTrips, sent_ms: int, there_ms: int, back_ms: int) -> None:
    """A heartbeat left at `sent_ms`, took `there_ms`, was answered at once, and the answer took `back_ms`."""
    now_ms = sent_ms + there_ms + back_ms
    way.heard(LinkHeartbeat(sent_ms + there_ms + _AHEAD_MS, sent_ms, 0), now_ms, (now_ms - _WALL_MS) / 1000)


def test_a_busy_process_is_no_long_way() -> None:
    rng = random.Random(7)
    way = RoundTrips()
    way.heard(LinkHeartbeat(_AHEAD_MS, 0, 0), 20, 0.02)
    assert (way.rtt_ms, way.offset_ms, way.ahead_ms) == (0.0, 0.0, None), "nothing came back yet"
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


@pytest.mark.parametrize("jump_ms", (86_400_000, -86_400_000, 5_000, -5_000))
def test_a_wall_clock_that_is_set_anew_moves_no_other_clock(jump_ms: int) -> None:
    """What is known of the other clock holds at every heartbeat, also of the one that was on its way meanwhile."""
    way = RoundTrips()
    for n in range(1, 40):
        jumped_ms = jump_ms if n >= 20 else 0
        echo_ms = n * 1000 + (jump_ms if n > 20 else 0)
        beat = LinkHeartbeat(n * 1000 + 1 + _AHEAD_MS, echo_ms, 0)
        way.heard(beat, n * 1000 + 2 + jumped_ms, n + 0.002)
        assert way.ahead_ms is not None and abs(way.ahead_ms - _AHEAD_MS) <= 2
        assert abs(way.offset_ms - (_AHEAD_MS - jumped_ms)) <= 2
