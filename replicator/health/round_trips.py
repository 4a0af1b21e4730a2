"""RoundTrips: how long the way to another region and back takes, and how far its clock is ahead, from the heartbeats of
one connection.

Is: the estimate, as a core. Isn't: a clock, or a frame.
A heartbeat that waited for a busy process looks like a long way, and shifts the clocks by half of what it waited; none
ever looks too fast. So the one of the newest `WINDOW` that was back soonest says both: a way that became longer is
known after so many heartbeats, a shorter one at once. The other clock is held against the monotonic one here: so what
is known of it stays true when the wall clock here is set anew, and while nothing is heard.
Source: docs/protocols/links.md, "Risk".
"""

from __future__ import annotations

from collections import deque

from heliograph.wire.links.link_commands import LinkHeartbeat

WINDOW = 8
NO_WAY_MS = 60_000
"""What took longer was no way: the wall clock was set meanwhile."""


class RoundTrips:
    """Estimates the way and the clock of one connection. `rtt_ms`: 0 while nothing came back. `offset_ms`: the other
    side's clock is so far ahead of ours. `ahead_ms`: of our monotonic one; None while nothing came back.
    """

    __slots__ = ("_newest", "ahead_ms", "offset_ms", "rtt_ms")

    def __init__(self) -> None:
        self.rtt_ms = self.offset_ms = 0.0
        self.ahead_ms: float | None = None
        self._newest: deque[tuple[float, float]] = deque(maxlen=WINDOW)

    @property
    def known(self) -> bool:
        return bool(self._newest)

    def heard(self, beat: LinkHeartbeat, now_ms: int, now: float) -> None:
        """A heartbeat came at `now_ms` of the wall clock here, `now` of the monotonic one in seconds; one that echoes
        nothing says nothing.
        """
        if not beat.echo_ms:
            return
        rtt_ms = max(0.0, float(now_ms - beat.echo_ms - beat.echo_age_ms))
        if rtt_ms <= NO_WAY_MS:
            self._newest.append((rtt_ms, beat.wall_ms - now * 1000 + rtt_ms / 2))
        if not self._newest:
            return
        self.rtt_ms, self.ahead_ms = min(self._newest, key=lambda sample: sample[0])
        self.offset_ms = self.ahead_ms + now * 1000 - now_ms
