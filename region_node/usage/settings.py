"""Settings of what is kept of tenants' usage. Apart from `region_node.usage.usage_days`, so that a bookie's settings
load nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings:
    """How often a broker writes what it counted, and for how long the region keeps a day."""

    write_s: float = 300.0
    days_kept: int = 400
    stored_s: float = 3600.0
    """How often the region's topics are gone through for what each tenant stores."""
    quota_s: float = 60.0
    """The same where a tenant has a quota of stored bytes, and how often that is judged."""

    def __post_init__(self) -> None:
        if not 1 <= self.write_s <= 3600:
            raise ConfigError(f"broker.usage.write_s must be 1 to 3600, not {self.write_s}")
        if not 0.1 <= self.quota_s <= self.stored_s:
            raise ConfigError(
                f"broker.usage.quota_s must be 0.1 to broker.usage.stored_s ({self.stored_s}), not {self.quota_s}"
            )
        if not 32 <= self.days_kept <= 4000:
            raise ConfigError(
                f"broker.usage.days_kept must be 32 (a month's report needs them) to 4000, not {self.days_kept}"
            )
