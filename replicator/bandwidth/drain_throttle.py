"""DrainThrottle: how fast the drains of a broker may be together while somebody publishes a little there.

Is: the comparison of what an append takes beside a drain with what it takes alone, and the rate that follows, as a
core. Isn't: a timer, or a link.
Alone is measured: now and then all drains pause for a fifth of a second, and what is appended meanwhile says what an
append takes with whatever else the machine does. Beside a drain the usual one may take a quarter more, and the slow one
(of ten) three tenths; above that the drain gets slower, down to a floor, below faster. Where something was published
just before a drain begins, it begins with such a pause.
Invariants: nobody publishes, or much is published (then it is the publishers who fill the disks, and what waits grows):
drains are as fast as they can be; never below the floor, nor so slow that what is left would take longer than
`_TAKES_AT_MOST_S`, what is published for it meanwhile (once for each region that it goes to) included.
Source: docs/protocols/links.md, "Budget and fairness".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Generic, Protocol

from replicator.bandwidth.fair_shares import Budget, M
from replicator.bandwidth.send_window import LIVE_BYTES
from storage.managed_ledger.append_counts import Appends

_WITHOUT_BOUND = 1e12
START_BYTES_PER_S = 16e6
_FEW = 3
"""With fewer appends nothing is known, and nobody is in the way."""
_MUCH_BYTES_PER_S = 4e6
_DEARER, _SLACK_S = ((0.5, 1.25), (0.9, 1.3)), 0.0001
"""By quantile: how many times as long as alone it may take."""
_CAREFUL, _AT_ONCE = 1.15, 2.0
"""How much faster after a while beside which appends were not dearer: later, and while the rate is not known yet."""
_AIM, _LEAST_PART = 0.92, 0.4
_ALONE_KEPT = 64
_KNOWN_LONGER = 2
_GONE_S, _FORGOTTEN_S = 3.0, 60.0
_TAKES_AT_MOST_S = 600.0
_WITH_PAUSES = 1.25
"""So much faster a drain must be than what is published for it: it pauses, too."""


class _Phase(Enum):
    """What the drains do now; the value is how long that lasts, in seconds."""

    FREE = 0.2
    """Drains are unbounded, while it is seen whether somebody publishes."""
    SETTLES = 0.06
    """Drains pause; what they had sent is being stored yet."""
    ALONE = 0.15
    DRAINS = 1.0
    """Longer once the rate is known: what is measured costs a pause."""


class Draining(Protocol):
    """A link, as what it has left and what is published for it are asked."""

    @property
    def unread_bytes(self) -> int:
        """What it has left, and can send now."""
        ...

    @property
    def published_bytes(self) -> int:
        """What was ever published that goes by it."""
        ...


class DrainThrottle(Generic[M]):
    """Bounds the drains of one broker together. `wake_after(seconds)`: `run` is to be called then. floor_bytes_per_s:
    0: drains never give way. start_bytes_per_s: the first rate that is tried.
    """

    def __init__(
        self,
        appends: Appends,
        floor_bytes_per_s: float,
        now: Callable[[], float],
        wake_after: Callable[[float], None],
        start_bytes_per_s: float = START_BYTES_PER_S,
    ) -> None:
        self.backlog_bytes = 0
        """What all drains have left, as it was last told."""
        self.grows_bytes_per_s = 0.0
        """What is published meanwhile for links that drain."""
        self._published: dict[Draining, int] = {}
        self._appends, self._floor, self._now, self._start = appends, floor_bytes_per_s, now, start_bytes_per_s
        self._elsewhere: list[Callable[[], int]] = []
        self._budget: Budget[M] = Budget(_WITHOUT_BOUND, now, wake_after)
        self._rate, self._searching = self._start, True
        self._alone: deque[float] = deque(maxlen=_ALONE_KEPT)
        self._phase, self._since, self._asked_at = _Phase.FREE, now(), float("-inf")
        self._runs = self._bytes = self._spent = 0
        self._silent = False
        """Nobody published when this phase began; not where too much was: who fills the disks himself is not looked at
        again and again.
        """
        self._told: deque[tuple[float, int, int]] = deque(maxlen=2)
        """What had been appended at the last times of `look_at`: (when, runs, bytes)."""

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of all drains together, as it is now; None: as fast as they can be."""
        return self._budget.bytes_per_s if self._budget.bytes_per_s < _WITHOUT_BOUND else None

    def may(self, member: M) -> bool:
        """Whether a link that drains a backlog may send now; else its share comes."""
        if not self._floor:
            return True
        self._look()
        return self._budget.may(member)

    def spend(self, size_bytes: int) -> None:
        self._budget.spend(size_bytes)

    def forget(self, member: M) -> None:
        self._budget.forget(member)

    def __contains__(self, member: M) -> bool:
        return member in self._budget

    def run(self) -> None:
        """Gives shares to those who wait, as far as there is something to give."""
        self._look()
        self._budget.run()

    def count_also(self, left: Callable[[], int]) -> None:
        """From now on the bytes count that `left` says others than links have before them, who drain by this, too."""
        self._elsewhere.append(left)

    def look_at(self, links: Iterable[Draining], elapsed_s: float) -> None:
        """Is called once a second, with the links that drain."""
        left = {link: link.unread_bytes for link in links}
        published = {link: link.published_bytes for link, size in left.items() if size > LIVE_BYTES}
        self.backlog_bytes = sum(left.values()) + sum(count() for count in self._elsewhere)
        self.grows_bytes_per_s = (
            sum(size - self._published[link] for link, size in published.items() if link in self._published) / elapsed_s
        )
        self._published = published
        self._told.append((self._now(), self._appends.newest.count, self._size()))

    # -- phases --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._now()
        away_s, self._asked_at = now - self._asked_at, now
        if away_s > _FORGOTTEN_S:
            self._rate, self._searching = self._start, True
            self._alone.clear()
        if away_s > _GONE_S:
            self._begin(_Phase.SETTLES if self._told and self._little(now, *self._told[0]) else _Phase.FREE, now)
        elif self._silent and self._little(now, self._since, self._runs, self._bytes):
            self._begin(_Phase.SETTLES, now)  # somebody has begun
        elif now - self._since >= self._phase.value * (
            1 if self._searching or self._phase is not _Phase.DRAINS else _KNOWN_LONGER
        ):
            self._begin(self._next(now), now)

    def _next(self, now: float) -> _Phase:
        if self._phase is _Phase.SETTLES:
            return _Phase.ALONE
        if not self._little(now, self._since, self._runs, self._bytes):
            return _Phase.FREE
        took = self._appends.newest.since(self._runs)
        if self._phase is _Phase.ALONE:
            self._alone.extend(took[-_ALONE_KEPT // 4 :])
            return _Phase.DRAINS
        if self._phase is _Phase.DRAINS:
            self._adapt(
                sorted(took), sorted(self._alone), (self._budget.spent_bytes - self._spent) / (now - self._since)
            )
        return _Phase.SETTLES

    def _little(self, now: float, since: float, runs: int, size_bytes: int) -> bool:
        """Whether somebody publishes, and not much: by what had been appended then."""
        return self._appends.newest.count - runs >= _FEW and self._size() - size_bytes <= _MUCH_BYTES_PER_S * (
            now - since
        )

    def _adapt(self, beside: list[float], alone: list[float], used_bytes_per_s: float) -> None:
        """beside, alone: what appends took, ascending."""
        dearer = max(_at(beside, quantile) / (times * _at(alone, quantile) + _SLACK_S) for quantile, times in _DEARER)
        if dearer > 1:
            self._rate *= max(_LEAST_PART, _AIM / dearer)
            self._searching = False
        elif used_bytes_per_s > 0.7 * self._rate:
            self._rate *= _AT_ONCE if self._searching else _CAREFUL
        self._rate = max(
            self._rate, self._floor, self.backlog_bytes / _TAKES_AT_MOST_S + _WITH_PAUSES * self.grows_bytes_per_s
        )

    def _begin(self, phase: _Phase, now: float) -> None:
        self._silent = phase is _Phase.FREE and self._appends.newest.count - self._runs < _FEW
        self._phase, self._since = phase, now
        self._runs, self._bytes, self._spent = self._appends.newest.count, self._size(), self._budget.spent_bytes
        self._budget.bytes_per_s = _WITHOUT_BOUND if phase is _Phase.FREE else self._rate
        if phase is _Phase.SETTLES or phase is _Phase.ALONE:
            self._budget.hold(phase.value)

    def _size(self) -> int:
        return sum(counts.size_bytes for counts in self._appends.namespaces.values())


def _at(ascending: list[float], quantile: float) -> float:
    return ascending[int(quantile * len(ascending))]
