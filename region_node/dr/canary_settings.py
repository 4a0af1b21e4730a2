"""Settings of the canary: what a broker tries by itself, and where clients of their own failover look."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """`port`: open only while this broker can do its work; shared by the brokers of a host; speaks Pulsar's protocol.
    0: none. `heliograph up`, hosts, and the Helm chart set it, or `by_itself`.
    """

    port: int = setting(0, least=0, most=65535, means="none")
    """A Pulsar port that is open only while messages are stored and read back, shared by the brokers of a host."""
    by_itself: bool = setting(False)
    """It tries also where there is no port: what asks for the broker's health has the answer at once."""
    interval_s: float = setting(2.0, "s", above=0)
    """Between two tries."""
    timeout_s: float = setting(3.0, "s", above=0)
    """For one try."""
    bad_after: int = setting(2, "tries", least=1)
    """So many failures in a row change the verdict."""
    good_after: int = setting(2, "tries", least=1)
    """So many in a row that are good change it back."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.canary")
