"""Settings of compaction, apart from what reads them: every process reads the settings file."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    keys_max: int = setting(4_000_000, "keys", least=1)
    """Keys in one reading of a topic: about 45 bytes each. Where there are more, it is read once more for each so
    many.
    """
    retain_null_key: bool = setting(False, theirs="topicCompactionRetainNullKey")
    """Messages without a key stay when a topic is compacted."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.compaction")
