"""How authentication went: counters for metrics.

Is: successes and refusals by method, tokens that came too late, and how long accepted ones were still good. Isn't: a
log of who came.
Invariants: labels come from a fixed set, whatever a client sends: a method that is not open counts as `other`.
Source: Pulsar's metrics of authentication and tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

_MINUTES = (5, 10, 60, 240)
"""Upper bounds of Pulsar's histogram."""
EXPIRED = "expired"


class AuthenticationCounts:
    def __init__(self) -> None:
        self._successes: dict[tuple[str, str], int] = {}
        self._failures: dict[tuple[str, str, str], int] = {}
        self.expired = 0
        self._minutes = [0] * (len(_MINUTES) + 1)
        self._minutes_sum = 0.0

    def accepted(self, provider: str, method: str, left_ms: int | None) -> None:
        """left_ms: until the credentials run out; None: never."""
        self._successes[provider, method] = self._successes.get((provider, method), 0) + 1
        if left_ms is not None:
            minutes = max(0, left_ms) / 60_000
            self._minutes[bisect_left(_MINUTES, minutes)] += 1
            self._minutes_sum += minutes

    def refused(self, provider: str, method: str, reason: str) -> None:
        key = (provider, method, reason)
        self._failures[key] = self._failures.get(key, 0) + 1
        if reason == EXPIRED:
            self.expired += 1

    def samples(self, region: str) -> Iterable[tuple[str, str, Mapping[str, str], float]]:
        for (provider, method), count in sorted(self._successes.items()):
            yield (
                "pulsar_authentication_success_total",
                "counter",
                {"cluster": region, "provider_name": provider, "auth_method": method},
                count,
            )
        for (provider, method, reason), count in sorted(self._failures.items()):
            labels = {"cluster": region, "provider_name": provider, "auth_method": method, "reason": reason}
            yield "pulsar_authentication_failures_total", "counter", labels, count
        yield "pulsar_expired_token_total", "counter", {"cluster": region}, self.expired
        total = 0
        for bound, count in zip((*map(str, _MINUTES), "+Inf"), self._minutes, strict=True):
            total += count
            yield "pulsar_expiring_token_minutes_bucket", "counter", {"cluster": region, "le": bound}, total
        yield "pulsar_expiring_token_minutes_count", "counter", {"cluster": region}, total
        yield "pulsar_expiring_token_minutes_sum", "counter", {"cluster": region}, self._minutes_sum
