"""Pace: so many messages and bytes a second over one link, as the policy `replicatorDispatchRate` says.

Is: a debt that runs pile up and time pays off. Isn't: a timer (`replicator.links.link`), or the rates of subscriptions
(`region_node.topics.limits.topic_rates`).
Invariants: over any time the link sends at most the rate, and one read more; a link that was idle has no credit beyond
a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.runtime.rate import Rate

_AT_ONCE_S = 0.1
"""A read brings so much at most, so that a slow link trickles and does not leap."""


class Pace:
    """Holds one link to its rates. A rate of 0 sets no limit of that kind."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self._messages = Rate(messages_per_s, at_once_s=_AT_ONCE_S) if messages_per_s else None
        self._bytes = Rate(bytes_per_s, at_once_s=_AT_ONCE_S) if bytes_per_s else None

    @classmethod
    def of(cls, policy: Mapping[str, Any] | None) -> Pace | None:
        """Makes it from the policy's JSON; None where that limits nothing. A rate of 0 or below is no limit."""
        if policy is None:
            return None
        period = max(1, policy.get("ratePeriodInSecond", 1))
        messages, size = policy["dispatchThrottlingRateInMsg"] / period, policy["dispatchThrottlingRateInByte"] / period
        return cls(max(0.0, messages), max(0.0, size)) if max(messages, size) > 0 else None

    @property
    def entries_max(self) -> int:
        """How many entries one read may bring, at least 1: what the rate allows in a tenth of a second."""
        return max(1, int(self._messages.per_s * _AT_ONCE_S)) if self._messages is not None else 1 << 30

    @property
    def bytes_max(self) -> int:
        return max(1, int(self._bytes.per_s * _AT_ONCE_S)) if self._bytes is not None else 1 << 30

    def spend(self, messages: int, size_bytes: int, now: float) -> None:
        """Counts what goes out now, also above the rate: `wait_s` grows by what that takes to pay off."""
        if self._messages is not None:
            self._messages.spend(messages, now)
        if self._bytes is not None:
            self._bytes.spend(size_bytes, now)

    def wait_s(self, now: float) -> float:
        """How long nothing more may go out; 0: now."""
        return max([rate.wait_s(now) for rate in (self._messages, self._bytes) if rate is not None], default=0.0)
