"""Settings of the canary: what a broker tries by itself, and where clients of their own failover look."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """`port`: open only while this broker can do its work; shared by the brokers of a host; speaks Pulsar's protocol.
    0: none.
    """

    port: int = 0
    interval_s: float = 2.0
    timeout_s: float = 3.0
    bad_after: int = 2
    """So many failures in a row change the verdict."""
    good_after: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"broker.canary.port must be 0 (none) to 65535, not {self.port}")
        if min(self.interval_s, self.timeout_s) <= 0 or min(self.bad_after, self.good_after) < 1:
            raise ConfigError(
                "broker.canary: interval_s and timeout_s must be above 0, bad_after and good_after at least 1"
            )
