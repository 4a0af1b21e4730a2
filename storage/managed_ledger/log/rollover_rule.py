"""When a topic goes on in another ledger, and when its open ledger is closed without one.

Is: pure decisions on entries, bytes, age, and idleness. Isn't: the move (`log_tail`), or a clock.
Invariants: a ledger that has reached its entries or its bytes, or is above its age, takes no run after the one that
found it so; one that is idle stays open for longer where its topic has more ledgers, but never above that age.
Source: docs/protocols/ledger.md, "Managed ledgers".
"""

from __future__ import annotations

from heliograph.wire.run import COUNT_MAX
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings

_LEDGERS_LATER = 8
"""With so many ledgers a topic may be idle twice as long before its open one is closed, and so on."""


def is_full(settings: ManagedLedgerSettings, entries: int, size_bytes: int, age_s: float) -> bool:
    """Whether the topic goes on in another ledger. entries, size_bytes: of what was appended to this one, confirmed or
    not. age_s: since it was opened.
    """
    return (
        entries >= settings.ledger_entries_max
        or size_bytes >= settings.ledger_bytes_max
        or age_s > settings.ledger_age_max_s
    )


def last_entry_max(settings: ManagedLedgerSettings) -> int:
    """The highest entry that a ledger written under these settings may have: the run that fills it is taken whole."""
    return settings.ledger_entries_max + COUNT_MAX - 2


def idle_limit_s(settings: ManagedLedgerSettings, ledgers: int) -> float:
    """How long nothing is appended to a topic with so many ledgers before its open one is closed, in seconds."""
    return min(settings.ledger_idle_s * (1 + ledgers / _LEDGERS_LATER), settings.ledger_age_max_s)


def idle_left_s(limit_s: float, opened_at: float, used_at: float, now: float) -> float:
    """Until the open ledger has been idle for `limit_s`, in seconds; 0: by now it has. Times of one monotonic clock;
    used_at: when something of it was last confirmed.
    """
    return max(0.0, max(opened_at, used_at) + limit_s - now)
