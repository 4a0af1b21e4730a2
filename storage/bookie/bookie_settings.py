"""BookieSettings: the bounds of a bookie.

Is: what an operator may tune of one bookie, checked. Isn't: ports and folders (`region_node.process.settings`).
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError
from heliograph.wire.bookie_frames import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings:
    segment_bytes: int = 32 << 20
    spare_segments: int = 2
    """Segments kept written for the journal; more are given back."""
    used_segments_max: int = 6
    """With so many segments full (of small records), the write cache is flushed though it is not full."""
    write_cache_bytes: int = 32 << 20
    """The bound of one generation; there are two, and the ledger directories share it. What one read of each connection
    brings may come on top.
    """
    journal_pending_bytes: int = 16 << 20
    """Received and not yet synced; beyond it connections are not read."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    read_bytes_max: int = 4 << 20
    """The bound of one answer to a read, unless a single block is larger."""
    reads_max: int = 64
    """Reads from disk under way; beyond it connections are not read."""
    unsent_bytes: int = 8 << 20
    """Answers of one connection that are not taken yet; beyond it that connection is not read."""
    open_logs_max: int = 512
    """Entry logs that are kept open to be read, of all ledger directories together: one descriptor each, or two."""
    index_bytes_max: int = 256 << 20
    """What is kept of the indexes of the entry logs, of all ledger directories together; the rest is read again where
    it is needed.
    """
    lac_waits_max: int = 4096
    """Readers that wait for a ledger to be confirmed further; one more, and the oldest is answered at once."""
    held_looks_max: int = 500
    """In the index, for one answer about what is held: other frames wait for a few milliseconds at most."""
    free_bytes_min: int = 256 << 20
    """With less free space a directory takes no adds."""
    free_bytes_again: int = 0
    """With so much it takes them again; 0 is twice `free_bytes_min`."""
    minor_interval_s: float = 3600.0
    minor_live_max: float = 0.2
    """A minor compaction takes logs of which a smaller share of bytes lives."""
    major_interval_s: float = 86400.0
    major_live_max: float = 0.5
    compaction_bytes_per_s: int = 8 << 20
    compacted_log_bytes: int = 64 << 20
    """About what a log that compaction writes holds at most."""
    scrub_interval_s: float = 7 * 86400.0
    """From the end of one look at all blocks to the next."""
    scrub_bytes_per_s: int = 2 << 20

    def __post_init__(self) -> None:
        if self.segment_bytes % 4096 or self.segment_bytes < self.frame_bytes_max + 8192:
            raise ConfigError("segment_bytes must be a multiple of 4096 and larger than frame_bytes_max by 8192")
        if self.used_segments_max < 1:
            raise ConfigError("used_segments_max must be at least 1")
        positive = (
            self.write_cache_bytes,
            self.journal_pending_bytes,
            self.read_bytes_max,
            self.reads_max,
            self.unsent_bytes,
            self.open_logs_max,
            self.index_bytes_max,
            self.spare_segments,
            self.lac_waits_max,
            self.held_looks_max,
        )
        if min(positive) < 1 or self.free_bytes_min < 0:
            raise ConfigError("sizes of a bookie must be positive")
        if self.free_bytes_again and self.free_bytes_again < self.free_bytes_min:
            raise ConfigError("free_bytes_again must not be below free_bytes_min")
        if not 0 <= self.minor_live_max <= self.major_live_max <= 1:
            raise ConfigError(
                "minor_live_max and major_live_max are shares, 0 to 1, the minor one not above the major one"
            )
        if (
            min(self.minor_interval_s, self.major_interval_s, self.compaction_bytes_per_s, self.compacted_log_bytes)
            <= 0
        ):
            raise ConfigError("intervals and sizes of compaction must be above 0")
        if min(self.scrub_interval_s, self.scrub_bytes_per_s) <= 0:
            raise ConfigError("scrub_interval_s and scrub_bytes_per_s must be above 0")

    @property
    def free_bytes_enough(self) -> int:
        return self.free_bytes_again or 2 * self.free_bytes_min
