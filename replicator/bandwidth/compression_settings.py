"""CompressionSettings: what of its links' traffic one broker compresses."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError

MODES = ("none", "auto", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """`mode`: none; lz4 or zstd wherever it makes runs smaller; auto: zstd, on links whose round trip takes
    `auto_rtt_ms` at least.
    """

    mode: str = "auto"
    auto_rtt_ms: float = 5.0
    run_bytes_min: int = 2048
    """Smaller runs go as they are."""
    gain_min: float = 0.1
    """A run that would not become smaller by so much of it goes as it is."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"broker.link_compression.mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.auto_rtt_ms < 0 or self.run_bytes_min < 0 or not 0 <= self.gain_min < 1:
            raise ConfigError(
                "broker.link_compression: auto_rtt_ms and run_bytes_min must be 0 or more, gain_min 0 to below 1"
            )
