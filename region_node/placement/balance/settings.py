"""Settings of load balancing: when bundles are moved between a region's brokers, when one is split, and how often loads
are reported.

Is: frozen values, checked when they are made. Isn't: a decision by them (`load_shedding`, `bundle_splitting`).
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.errors import ConfigError
from region_node.placement.balance.broker_capacity import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class SheddingSettings:
    """Loads are shares of what a broker can carry: 1.0 is all of it."""

    threshold: float = 0.10
    """How far above the average a broker may be, or below."""
    floor: float = 0.15
    """A broker below this is not relieved: its bundles stay where they are, however empty the others."""
    gain: float = 0.02
    """What a move that makes its receiver the fuller one of the two must gain, at least."""
    least: float = 0.002
    """A bundle of less load is not worth a move."""
    patience_s: float = 110.0
    """How long a broker may be above the average by the threshold before it is relieved; by twice of it half as long;
    longer where much moved of late.
    """
    cool_down_s: float = 300.0
    moves_per_minute: int = 10
    """On the average of a quarter of an hour; 0: nothing is shed. A region of more than twice as many brokers may begin
    half their number in a minute.
    """

    def __post_init__(self) -> None:
        shares = (("threshold", 0.01, 1.0), ("floor", 0.0, 1.0), ("gain", 0.0, 0.5), ("least", 0.0, 0.5))
        for name, low, high in (*shares, ("patience_s", 0.0, 3600.0), ("cool_down_s", 0.0, 86_400.0)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} must be {low} to {high}, not {getattr(self, name)}")
        if not 0 <= self.moves_per_minute <= 10_000:
            raise ConfigError(f"moves_per_minute must be 0 (nothing moves) to 10000, not {self.moves_per_minute}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """A bundle above one of these is cut in two by its owner, without anybody being disconnected; Pulsar's limits, and
    one of load.
    """

    enabled: bool = True
    topics: int = 1000
    """Counts the topics that are loaded, not those that are only stored."""
    sessions: int = 1000
    """Counts producers and consumers of the bundle's topics together."""
    messages_s: float = 30_000.0
    """Counts what is published and what is delivered together."""
    bandwidth_mb_s: float = 100.0
    load: float = 0.25
    """A share of what a broker can carry: a heavier bundle can hardly be placed well."""
    bundles_max: int = 128
    """No namespace gets more by itself; by command there may be more."""
    reports: int = 3
    """So many in a row have to say so."""
    rest_s: float = 120.0
    """A bundle that was split, or could not be, is left alone for so long."""
    per_report: int = 4

    def __post_init__(self) -> None:
        for name, low, high in (
            ("topics", 2, 1_000_000),
            ("sessions", 2, 1_000_000),
            ("bundles_max", 1, 4096),
            ("reports", 1, 100),
            ("per_report", 1, 100),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"balance.split.{name} must be {low} to {high}, not {getattr(self, name)}")
        for name, least, most in (
            ("messages_s", 1.0, 1e9),
            ("bandwidth_mb_s", 0.001, 1e6),
            ("load", 0.001, 10.0),
            ("rest_s", 0.0, 86_400.0),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"balance.split.{name} must be {least:g} to {most:g}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    enabled: bool = True
    """False: this broker never leads, so nothing is shed where all say so; it reports and places as ever."""
    report_s: float = 10.0
    cycle_s: float = 10.0
    misplaced_per_cycle: int = 20
    """Bundles that are moved in one cycle since their broker may not serve them (any more), beside what is shed."""
    messages_s: float = 100_000.0
    """What a broker carries: by it a resource quota's rates are counted."""
    network_mb_s: float = 1000.0
    """What the network of a broker carries, in and out each, in MB/s: its share counts as load."""
    shedding: SheddingSettings = field(default_factory=SheddingSettings)
    split: SplitSettings = field(default_factory=SplitSettings)

    def __post_init__(self) -> None:
        for name in ("report_s", "cycle_s"):
            if not 0.1 <= getattr(self, name) <= 600:
                raise ConfigError(f"balance.{name} must be 0.1 to 600, not {getattr(self, name)}")
        if not 1 <= self.misplaced_per_cycle <= 10_000:
            raise ConfigError(f"balance.misplaced_per_cycle must be 1 to 10000, not {self.misplaced_per_cycle}")
        if not 1 <= self.messages_s <= 1e9:
            raise ConfigError(f"balance.messages_s must be 1 to 1e9, not {self.messages_s}")
        if not 1 <= self.network_mb_s <= 1_000_000:
            raise ConfigError(f"balance.network_mb_s must be 1 to 1000000, not {self.network_mb_s}")

    def capacity(self, memory_bytes: int) -> Capacity:
        """What a broker carries. memory_bytes: 0 where nobody knows."""
        return Capacity(messages_s=self.messages_s, bytes_s=self.network_mb_s * 1e6, memory_mb=memory_bytes / 1e6)
