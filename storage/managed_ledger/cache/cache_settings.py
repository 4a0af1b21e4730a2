"""Settings of the entry cache. Is: values, which every role reads. Isn't: the cache, which only brokers load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from heliograph.model.errors import ConfigError


class Eviction(StrEnum):
    READ = "read"
    MARK_DELETE = "mark_delete"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    eviction: Eviction = Eviction.MARK_DELETE
    backlogged_entries: int = 100_000
    """Nothing is kept back for a cursor whose backlog is larger. 0: for none."""
    time_ms: int = 10_000

    def __post_init__(self) -> None:
        if self.backlogged_entries < 0 or self.time_ms < 1:
            raise ConfigError("entry cache: backlogged_entries must be at least 0, time_ms at least 1")
