"""Settings of compaction, apart from what reads them: every process reads the settings file."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    keys_max: int = 4_000_000
    """Keys in one reading of a topic: about 45 bytes each. Where there are more, it is read once more for each so
    many.
    """
    retain_null_key: bool = False
    """Messages without a key stay (Pulsar's topicCompactionRetainNullKey)."""

    def __post_init__(self) -> None:
        if self.keys_max < 1:
            raise ConfigError(f"broker.compaction.keys_max must be at least 1, not {self.keys_max}")
