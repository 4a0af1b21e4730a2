"""CompressionSettings: what of its links' traffic one broker compresses."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting

MODES = ("none", "auto", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """`mode`: none; lz4 or zstd wherever it makes runs smaller; auto: zstd, on links whose round trip takes
    `auto_rtt_ms` at least.
    """

    mode: str = setting("auto", one_of=MODES)
    """`none`; `lz4` or `zstd` wherever it makes runs smaller; `auto`: zstd, on links whose round trip takes
    `auto_rtt_ms` at least.
    """
    auto_rtt_ms: float = setting(5.0, "ms", least=0)
    """Nearer regions get what they get uncompressed, with `auto`."""
    run_bytes_min: int = setting(2048, "bytes", least=0)
    """Smaller runs go as they are."""
    gain_min: float = setting(0.1, "share", least=0, below=1)
    """A run that would not become smaller by so much of it goes as it is."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.link_compression")
