"""AuditSettings: how often, how fast, and with how much at once one broker audits its topics; AuditLimits: what bounds
its memory and its answers, which operators do not set.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How often and how fast one broker audits its topics, and answers the audits of other regions."""

    period_s: float = 24 * 3600.0
    """Each replicated topic is looked at so often; 0: only when asked for."""
    bytes_per_s: int = 8 << 20
    entries_per_s: int = 5000
    """Read for the audit, of its own passes and for other regions together."""
    answer_timeout_s: float = 30.0
    answers_max: int = 4
    """Answers to other regions that are made at once."""
    waiting_max: int = 1000
    """Requests of other regions that wait; further ones are refused, and come again."""

    def __post_init__(self) -> None:
        if not 0 <= self.period_s <= 366 * 86400:
            raise ConfigError(f"broker.audit.period_s must be 0 (only when asked for) to a year, not {self.period_s}")
        for name in ("bytes_per_s", "entries_per_s", "answer_timeout_s", "answers_max", "waiting_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"broker.audit.{name} must be above 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """How much one broker remembers of its audits, looks for in a pass, and tells another region at once."""

    reports_max: int = 1000
    """How many reports are kept in memory; beyond it the oldest one with nothing to tell goes first."""
    lost_max: int = 100_000
    """One pass looks for so many lost entries, and as many more as there are places that cannot be read here: they
    stand in memory until it ends, and those left are found by the next.
    """
    told_bytes: int = 2 << 20
    """An answer ends behind the entry with which it is as large."""
    read_bytes: int = 16 << 20
    """An answer ends behind the entry with which so much was read for it: 2 s at the usual rate, which others share."""
    answer_bytes: int = 4 << 20
    """The bound on the entries in one answer, unless one alone is larger: a frame of more than 5 MiB and some ends the
    connection.
    """


AUDIT_LIMITS = AuditLimits()
