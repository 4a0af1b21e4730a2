"""Settings of what is kept of tenants' usage. Apart from `region_node.usage.usage_days`, so that a bookie's settings
load nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings:
    """How often a broker writes what it counted, and for how long the region keeps a day."""

    write_s: float = setting(300.0, "s", least=1, most=3600)
    """How often a broker writes what tenants used, and what a killed one loses of it."""
    days_kept: int = setting(400, "days", least=32, most=4000)
    """For so long a day is kept; a month's report needs 32."""
    stored_s: float = setting(3600.0, "s", least=0.1)
    """How often the region's topics are gone through for what each tenant stores."""
    quota_s: float = setting(60.0, "s", least=0.1)
    """The same where a tenant has a quota of stored bytes, and how often that is judged; not above `stored_s`."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.usage")
        if self.quota_s > self.stored_s:
            raise ConfigError(
                f"broker.usage.quota_s {self.quota_s:g} must not be above broker.usage.stored_s {self.stored_s:g}"
            )
