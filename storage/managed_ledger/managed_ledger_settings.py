"""Settings of managed ledgers: when a ledger is rolled over, when state is checkpointed, what is kept waiting."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedgerSettings:
    ledger_entries_max: int = 50_000
    ledger_bytes_max: int = 256 << 20
    ledger_age_max_s: float = 4 * 3600.0
    """A ledger above one of these is rolled over by the next append; of an idle topic it is closed."""
    ledger_idle_s: float = 300.0
    """The open ledger of a topic to which nothing was appended for so long is closed. A topic with very many ledgers is
    left open for longer, in proportion, but no longer than `ledger_age_max_s`: so one that gets a message now and then
    does not get a ledger for each.
    """
    checkpoint_entries: int = 1024
    checkpoint_bytes: int = 4 << 20
    checkpoint_interval_s: float = 1.0
    """State is stored after so many entries or bytes, but no more often than this."""
    pending_bytes_max: int = 128 << 20
    """Runs that wait for their ack quorum in one topic; beyond, the topic's appends fail until those that wait are
    settled.
    """
    pending_timeout_s: float = 30.0
    """How long runs wait for bookies before they fail."""
    close_timeout_s: float = 5.0
    """How long `close` waits for appends that are on their way."""
    read_ahead_bytes: int = 2 << 20
    """What is fetched from bookies at a time, at most, for a reader that lags and reads on; 0: only what it asks for.
    With many such readers less.
    """
    read_ahead_cache_bytes: int = 32 << 20
    """What of it a broker keeps."""
    mend_bytes_per_s: int = 32 << 20
    """What the repair of damaged ledgers in place reads and writes, in a broker."""
    sweep_s: float = 30.0
    """How often retention by time is looked at, and what is idle is put to rest."""

    def __post_init__(self) -> None:
        sizes = (
            self.ledger_entries_max,
            self.ledger_bytes_max,
            self.checkpoint_entries,
            self.checkpoint_bytes,
            self.pending_bytes_max,
        )
        if min(*sizes, self.mend_bytes_per_s) < 1:
            raise ConfigError("managed ledgers: sizes and counts must be at least 1")
        if min(self.read_ahead_bytes, self.read_ahead_cache_bytes) < 0:
            raise ConfigError("managed ledgers: read_ahead_bytes and read_ahead_cache_bytes must be at least 0")
        if (
            min(self.ledger_age_max_s, self.pending_timeout_s, self.close_timeout_s, self.sweep_s, self.ledger_idle_s)
            <= 0
            or self.checkpoint_interval_s < 0
        ):
            raise ConfigError("managed ledgers: times must be above 0")
