"""Settings of what is kept of tenants' usage. Apart from `region_node.usage_days`, so that a bookie's settings load nothing of it."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings:
    """How often a broker writes what it counted, and for how long the region keeps a day."""

    write_s: float = 300.0
    days_kept: int = 400

    def __post_init__(self) -> None:
        if not 1 <= self.write_s <= 3600:
            raise ConfigError(f"broker.usage.write_s must be 1 to 3600, not {self.write_s}")
        if not 32 <= self.days_kept <= 4000:
            raise ConfigError(f"broker.usage.days_kept must be 32 (a month's report needs them) to 4000, not {self.days_kept}")
