"""BookieSettings: the bounds of a bookie.

Is: what an operator may tune of one bookie (`bookie.storage` of a settings file), and what only tests do, checked.
Isn't: ports and folders, free space, and what is kept of entry logs (`region_node.process.settings`, by whose words the
composition sets the fields of these).
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.errors import ConfigError
from heliograph.wire.bookie_frames import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings:
    """A bookie's journal, write cache, compaction, and scrubbing."""

    segment_bytes: int = setting(32 << 20, "bytes", most=1 << 30, theirs="journalMaxSizeMB (MiB)")
    """The size of a file of the journal, a multiple of 4096, above the largest frame (5 MiB and some): a record lies
    in one.
    """
    spare_segments: int = setting(2, "files", least=1)
    """Segments kept written for the journal; more are given back."""
    used_segments_max: int = setting(6, "files", least=1)
    """With so many segments full (of small records), the write cache is flushed though it is not full."""
    write_cache_bytes: int = setting(32 << 20, "bytes", least=1, theirs="dbStorage_writeCacheMaxSizeMb (MiB)")
    """The bound of one generation; there are two, and the ledger directories share it. What one read of each connection
    brings may come on top.
    """
    journal_pending_bytes: int = setting(16 << 20, "bytes", least=1, theirs="maxAddsInProgressLimit (entries)")
    """Received and not yet synced; beyond it connections are not read."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    read_bytes_max: int = setting(4 << 20, "bytes", least=1)
    """The bound of one answer to a read, unless a single block is larger."""
    reads_max: int = setting(64, "reads", least=1, theirs="maxReadsInProgressLimit")
    """Reads from disk under way; beyond it connections are not read."""
    unsent_bytes: int = 8 << 20
    """Answers of one connection that are not taken yet; beyond it that connection is not read."""
    open_logs_max: int = 512
    """Entry logs that are kept open to be read, of all ledger directories together: one descriptor each, or two."""
    index_bytes_max: int = 256 << 20
    """What is kept of the indexes of the entry logs, of all ledger directories together; the rest is read again where
    it is needed.
    """
    held_looks_max: int = 500
    """In the index, for one answer about what is held: other frames wait for a few milliseconds at most."""
    free_bytes_min: int = 256 << 20
    """With less free space a directory takes no adds."""
    free_bytes_again: int = 0
    """With so much it takes them again; 0 is twice `free_bytes_min`."""
    minor_interval_s: float = setting(3600.0, "s", above=0, theirs="minorCompactionInterval")
    """How often a minor compaction looks at the entry logs."""
    minor_live_max: float = setting(0.2, "share", least=0, most=1, theirs="minorCompactionThreshold")
    """A minor compaction takes logs of which a smaller share of bytes lives; not above `major_live_max`."""
    major_interval_s: float = setting(86400.0, "s", above=0, theirs="majorCompactionInterval")
    """How often a major compaction looks at the entry logs."""
    major_live_max: float = setting(0.5, "share", least=0, most=1, theirs="majorCompactionThreshold")
    """A major compaction takes logs of which a smaller share of bytes lives."""
    compaction_bytes_per_s: int = setting(8 << 20, "B/s", least=100, theirs="compactionRateByBytes")
    """What compaction of one ledger directory reads at most."""
    compacted_log_bytes: int = setting(64 << 20, "bytes", least=1, theirs="logSizeLimit")
    """About what a log that compaction writes holds at most."""
    scrub_interval_s: float = setting(7 * 86400.0, "s", above=0, theirs="localScrubInterval")
    """From the end of one look at all blocks to the next."""
    scrub_bytes_per_s: int = setting(2 << 20, "B/s", least=100, theirs="localScrubRateLimit (entries)")
    """What the look at all blocks of one ledger directory reads at most."""

    def __post_init__(self) -> None:
        check_bounds(self, "bookie.storage")
        if self.segment_bytes % 4096 or self.segment_bytes < self.frame_bytes_max + 8192:
            least = (self.frame_bytes_max + 8192 + 4095) // 4096 * 4096
            raise ConfigError(
                f"bookie.storage.segment_bytes must be a multiple of 4096, and {least} or more, for the largest frame, "
                f"not {self.segment_bytes}"
            )
        positive = self.unsent_bytes, self.open_logs_max, self.index_bytes_max, self.held_looks_max
        if min(positive) < 1 or self.free_bytes_min < 0:
            raise ConfigError("sizes of a bookie must be positive")
        if self.free_bytes_again and self.free_bytes_again < self.free_bytes_min:
            raise ConfigError("free_bytes_again must not be below free_bytes_min")
        if self.minor_live_max > self.major_live_max:
            raise ConfigError(
                f"bookie.storage.minor_live_max {self.minor_live_max:g} must not be above major_live_max "
                f"{self.major_live_max:g}"
            )

    @property
    def free_bytes_enough(self) -> int:
        return self.free_bytes_again or 2 * self.free_bytes_min
