"""Window: how a link that drains a backlog leaves room for who publishes meanwhile.

Is: two bounds, as a core: how much may be in flight, and how much goes in one pass of the event loop. Isn't: a rate
limit; alone, a drain is as fast as ever.
In flight: what a link needs at the rate that it reaches, twice over, and not more. Whatever is beyond that lies in a
queue, in the end in that of the target's disks, and everybody's next sync waits behind it. A pass: a lone publish takes
four or five of them from its frame to its receipt, so while anything is appended on this broker a drain's passes are
short.
Source: docs/protocols/links.md, "Budget and fairness".
"""

from __future__ import annotations

from collections.abc import Callable

PASS_BYTES = 256 << 10
"""How much a link sends in one pass of the event loop: longer passes hold up local publishing."""
SHORT_PASS_BYTES = 128 << 10
LIVE_BYTES = 1 << 20
"""A link with so much unsent, or less, drains nothing: it is live, and goes first."""
_EXPECTED_BYTES_PER_S = 64e6
"""A link that has not sent yet gets a window for so much."""
_ANSWER_S = 0.03
"""What a receipt takes beyond the way there and back: the sync there, and what waits to go out together."""
_FORGETS = 0.9
_LIVE_S = 0.25


class Window:
    """Fits one link's window to the rate that it reaches, which is forgotten slowly."""

    __slots__ = ("_best", "_sent")

    def __init__(self) -> None:
        self._best = 0.0
        self._sent = 0

    def fit(self, bytes_sent: int, elapsed_s: float, rtt_ms: float | None) -> int | None:
        """Bytes that may be in flight; None: no bound, the way is not known yet. About once a second; bytes_sent: by
        the link in all.
        """
        rate = max(0, bytes_sent - self._sent) / elapsed_s
        self._sent, self._best = bytes_sent, max(rate, _FORGETS * self._best)
        return None if rtt_ms is None else int(2 * max(self._best, _EXPECTED_BYTES_PER_S) * (rtt_ms / 1000 + _ANSWER_S))


class AppendActivity:
    """Whether anything is appended on this broker just now. appended: how many runs were, so far."""

    def __init__(self, appended: Callable[[], int]) -> None:
        self._appended = appended
        self._seen = appended()
        self._until = 0.0

    def live(self, now: float) -> bool:
        """Something was, within the last quarter of a second or since the last call. now: monotonic."""
        if (count := self._appended()) != self._seen:
            self._seen, self._until = count, now + _LIVE_S
        return now < self._until
