"""FairShares: which of the links that share something scarce goes next: a connection that takes no more bytes, or a
budget of bytes a second.

Is: the order, as a core. Isn't: what a link sends of its share.
Live links (they have little that is not sent) go before those with a backlog; one share in BACKLOG_EVERY belongs to a
backlog, so that it moves on whatever the others do. Within each lane the links go round, each with as many bytes a
share as its weight says.
Invariants: who waits is served within (number of waiting links) * BACKLOG_EVERY shares; a link waits once, however
often it asks.
Source: docs/protocols/links.md, "Budget and fairness".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from heliograph.runtime.rate import Rate

SHARE_BYTES = 128 << 10
"""What a link of weight 1 sends in a share while others wait."""
BACKLOG_EVERY = 8
_AT_ONCE_S = 0.05


class ShareMember(Protocol):
    """A link, or a connection's stream. Compared by identity."""

    @property
    def live(self) -> bool: ...

    @property
    def weight(self) -> int: ...

    def on_share(self, upto_bytes: int) -> None:
        """Sends, and asks again where it has more. upto_bytes: about as much."""
        ...


M = TypeVar("M", bound=ShareMember)


class FairShares(Generic[M]):
    """Keeps who waits for a share, in two lanes: live links, and links with a backlog."""

    def __init__(self) -> None:
        self._lanes: tuple[dict[M, None], dict[M, None]] = ({}, {})
        self._since_backlog = 0

    def __len__(self) -> int:
        return len(self._lanes[0]) + len(self._lanes[1])

    def __contains__(self, member: M) -> bool:
        return member in self._lanes[0] or member in self._lanes[1]

    def wait(self, member: M) -> None:
        """Behind those of its lane."""
        if member not in self:
            self._lanes[0 if member.live else 1][member] = None

    def forget(self, member: M) -> None:
        for lane in self._lanes:
            lane.pop(member, None)

    def next(self) -> M | None:
        """Whose share is next; it waits no longer."""
        live, backlog = self._lanes
        if backlog and (not live or self._since_backlog >= BACKLOG_EVERY - 1):
            self._since_backlog = 0
            lane = backlog
        elif live:
            self._since_backlog += bool(backlog)
            lane = live
        else:
            return None
        member = next(iter(lane))
        del lane[member]
        return member


class Budget(Generic[M]):
    """`bytes_per_s`, which may be changed at any time, for all links to one region together. `wake_after(seconds)`:
    `run` is to be called then.
    """

    def __init__(self, bytes_per_s: float, now: Callable[[], float], wake_after: Callable[[float], None]) -> None:
        self._now, self._wake_after = now, wake_after
        self._rate = Rate(bytes_per_s, at_once_s=_AT_ONCE_S, now=now())
        self._shares: FairShares[M] = FairShares()
        self._granted: M | None = None
        self._waking = False
        self.spent_bytes = 0

    @property
    def bytes_per_s(self) -> float:
        return self._rate.per_s

    @bytes_per_s.setter
    def bytes_per_s(self, bytes_per_s: float) -> None:
        self._rate.per_s = bytes_per_s

    @property
    def share_bytes(self) -> int:
        """At most a twentieth of a second's worth, so that small budgets trickle."""
        return max(1, min(SHARE_BYTES, int(self.bytes_per_s / 20)))

    def may(self, member: M) -> bool:
        """Whether `member` may send now; else its share comes."""
        if self._granted is member or (not self._shares and not self._rate.wait_s(self._now())):
            return True
        self._shares.wait(member)
        self._wake()
        return False

    def spend(self, size_bytes: int) -> None:
        """So much went out. What was not used for a while is lost but for a twentieth of a second."""
        self._rate.spend(size_bytes, self._now())
        self.spent_bytes += size_bytes

    def hold(self, for_s: float) -> None:
        """Nobody sends for so long."""
        self._rate.hold(self._now() + for_s)

    def forget(self, member: M) -> None:
        self._shares.forget(member)

    def __contains__(self, member: M) -> bool:
        """Whether it waits for its share."""
        return member in self._shares

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._wake_after(self._rate.wait_s(self._now()))

    def run(self) -> None:
        """Gives shares to those who wait, as far as there is something to give."""
        self._waking = False
        try:
            while not self._rate.wait_s(self._now()) and (member := self._shares.next()) is not None:
                self._granted = member
                member.on_share(self.share_bytes * member.weight)
        finally:  # who waits behind one that failed does not wait for ever
            self._granted = None
            if self._shares:
                self._wake()
