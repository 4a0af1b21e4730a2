"""Settings of managed ledgers: when a ledger is rolled over, when state is checkpointed, what is kept waiting."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedgerSettings:
    ledger_entries_max: int = setting(50_000, "entries", least=1, theirs="managedLedgerMaxEntriesPerLedger")
    """A ledger with so many entries is rolled over by the next append; of an idle topic it is closed."""
    ledger_bytes_max: int = setting(256 << 20, "bytes", least=1, theirs="managedLedgerMaxSizePerLedgerMbytes (MiB)")
    """The same for its size."""
    ledger_age_max_s: float = setting(
        4 * 3600.0, "s", above=0, theirs="managedLedgerMaxLedgerRolloverTimeMinutes (min)"
    )
    """The same for its age."""
    ledger_idle_s: float = setting(300.0, "s", above=0, theirs="managedLedgerInactiveLedgerRolloverTimeSeconds")
    """The open ledger of a topic to which nothing was appended for so long is closed. A topic with very many ledgers is
    left open for longer, in proportion, but no longer than `ledger_age_max_s`: so one that gets a message now and then
    does not get a ledger for each.
    """
    checkpoint_entries: int = setting(1024, "entries", least=1)
    """State is stored after so many entries: what loading a topic replays at most."""
    checkpoint_bytes: int = setting(4 << 20, "bytes", least=1)
    """The same for bytes."""
    checkpoint_interval_s: float = setting(1.0, "s", least=0)
    """State is stored no more often than this."""
    pending_bytes_max: int = setting(128 << 20, "bytes", least=1)
    """Runs that wait for their ack quorum in one topic; beyond, the topic's appends fail until those that wait are
    settled.
    """
    pending_timeout_s: float = setting(30.0, "s", above=0, theirs="managedLedgerAddEntryTimeoutSeconds")
    """How long runs wait for bookies before they fail."""
    close_timeout_s: float = setting(5.0, "s", above=0)
    """How long `close` waits for appends that are on their way."""
    read_ahead_bytes: int = setting(2 << 20, "bytes", least=0)
    """What is fetched from bookies at a time, at most, for a reader that lags and reads on; 0: only what it asks for.
    With many such readers less.
    """
    read_ahead_cache_bytes: int = setting(32 << 20, "bytes", least=0)
    """What a broker keeps of what it fetched for readers that lag."""
    mend_bytes_per_s: int = setting(32 << 20, "B/s", least=1)
    """What the repair of damaged ledgers in place reads and writes, in a broker."""
    sweep_s: float = setting(30.0, "s", above=0)
    """How often retention by time is looked at, and what is idle is put to rest."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.managed_ledger")
