"""Settings of load balancing."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.errors import ConfigError


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
    cool_down_s: float = 300.0
    moves_per_minute: int = 10

    def __post_init__(self) -> None:
        for name, low, high in (("threshold", 0.01, 1.0), ("floor", 0.0, 1.0), ("gain", 0.0, 0.5), ("least", 0.0, 0.5), ("cool_down_s", 0.0, 86_400.0)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} must be {low} to {high}, not {getattr(self, name)}")
        if not 0 <= self.moves_per_minute <= 10_000:
            raise ConfigError(f"moves_per_minute must be 0 (nothing moves) to 10000, not {self.moves_per_minute}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    enabled: bool = True
    """False: this broker never leads, so nothing is shed where all say so; it reports and places as ever."""
    report_s: float = 10.0
    cycle_s: float = 10.0
    misplaced_per_cycle: int = 20
    """Bundles that are moved in one cycle since their broker may not serve them (any more), beside what is shed."""
    network_mb_s: float = 1000.0
    """What the network of a broker carries, in and out each, in MB/s: its share counts as load."""
    shedding: SheddingSettings = field(default_factory=SheddingSettings)

    def __post_init__(self) -> None:
        for name in ("report_s", "cycle_s"):
            if not 0.1 <= getattr(self, name) <= 600:
                raise ConfigError(f"balance.{name} must be 0.1 to 600, not {getattr(self, name)}")
        if not 1 <= self.misplaced_per_cycle <= 10_000:
            raise ConfigError(f"balance.misplaced_per_cycle must be 1 to 10000, not {self.misplaced_per_cycle}")
        if not 1 <= self.network_mb_s <= 1_000_000:
            raise ConfigError(f"balance.network_mb_s must be 1 to 1000000, not {self.network_mb_s}")
