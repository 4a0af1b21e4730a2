"""Rate: so much a second, for all that share it.

Is: a debt that what is spent piles up and time pays off. Isn't: a timer, a queue, or tokens of which somebody asks how
many are left (`region_node.subscriptions.rate_limits`).
Invariants: over any time no more is spent than the rate allows, and one piece; who was idle has no credit beyond
`at_once_s`.
"""

from __future__ import annotations


class Rate:
    """per_s: bytes, messages, or whatever is counted; above 0, and may be changed at any time: what was spent stays
    spent. at_once_s: what was not used for a while is lost but for so many seconds' worth.

    now: monotonic seconds, as in every call.
    """

    __slots__ = ("_at_once_s", "_free_at", "per_s")

    def __init__(self, per_s: float, *, at_once_s: float = 0.0, now: float = 0.0) -> None:
        assert per_s > 0
        self.per_s = per_s
        self._at_once_s, self._free_at = at_once_s, now

    def spend(self, amount: float, now: float) -> None:
        """So much goes now, or was promised to go behind what was spent before."""
        self._free_at = max(self._free_at, now - self._at_once_s) + amount / self.per_s

    def hold(self, until: float) -> None:
        """Nothing goes before that time."""
        self._free_at = max(self._free_at, until)

    def wait_s(self, now: float) -> float:
        """How long nothing more may go; 0: now."""
        return max(0.0, self._free_at - now)
