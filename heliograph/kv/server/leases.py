"""LeaseDeadlines: when the leader ends a lease.

Is: the deadlines of the leases, as the leader alone keeps them. Isn't: which leases exist (the machine knows), timers,
or the log.
Invariants: a lease ends only after one full ttl in which this leader saw neither its grant nor a renewal nor its own
election; once its end was proposed, no renewal succeeds under this leader; a leader that slept through its own timer
gives every lease a full ttl, as a new one would.
"""

from __future__ import annotations

from collections.abc import Mapping

OVERSLEPT_S = 0.5


class LeaseDeadlines:
    """Deadlines in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.leading = False
        self._ttls: dict[int, float] = {}
        self._deadlines: dict[int, float] = {}
        self._ending: dict[int, None] = {}

    def lead(self, leases: Mapping[int, int], now: float) -> None:
        """This node became the leader: every lease gets one full ttl. leases: id -> ttl in ms."""
        self.step_down()
        self.leading = True
        self.follow_table(leases, now)

    def step_down(self) -> None:
        self.leading = False
        self._ttls, self._deadlines, self._ending = {}, {}, {}

    def follow_table(self, leases: Mapping[int, int], now: float) -> None:
        """The set of leases changed."""
        if not self.leading:
            return
        for lease in [known for known in self._ttls if known not in leases]:
            del self._ttls[lease]
            self._deadlines.pop(lease, None)
            self._ending.pop(lease, None)
        for lease, ttl_ms in leases.items():
            if lease not in self._ttls:
                self._ttls[lease] = ttl_ms / 1000
                self._deadlines[lease] = now + ttl_ms / 1000

    def renew(self, lease: int, now: float) -> bool:
        """False: it has ended, or its end is on the way."""
        if lease not in self._deadlines:
            return False
        self._deadlines[lease] = now + self._ttls[lease]
        return True

    def due(self, now: float) -> list[int]:
        """The leases to end now; each is named once."""
        late = [lease for lease, deadline in self._deadlines.items() if deadline <= now]
        if any(self._deadlines[lease] + OVERSLEPT_S < now for lease in late):
            for lease in self._deadlines:
                self._deadlines[lease] = now + self._ttls[lease]
            return []
        for lease in late:
            del self._deadlines[lease]
            self._ending[lease] = None
        return late

    def is_ending(self, lease: int) -> bool:
        return lease in self._ending

    def next_deadline(self) -> float | None:
        return min(self._deadlines.values(), default=None)
