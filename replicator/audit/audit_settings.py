"""AuditSettings: how often, how fast, and with how much at once one broker audits its topics; AuditLimits: what bounds
its memory and its answers, which operators do not set.
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How often and how fast one broker audits its topics, and answers the audits of other regions."""

    period_s: float = setting(24 * 3600.0, "s", least=0, most=366 * 86400, means="only when asked for")
    """Each replicated topic is compared with other regions so often."""
    bytes_per_s: int = setting(8 << 20, "B/s", above=0)
    """What is read for the audit, of its own passes and for other regions together."""
    entries_per_s: int = setting(5000, "entries/s", above=0)
    """The same in entries."""
    answer_timeout_s: float = setting(30.0, "s", above=0)
    """After so long a question to another region is given up."""
    answers_max: int = setting(4, "answers", above=0)
    """Answers to other regions that are made at once."""
    waiting_max: int = setting(1000, "questions", above=0)
    """Requests of other regions that wait; further ones are refused, and come again."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """How much one broker remembers of its audits, looks for in a pass, and tells another region at once."""

    reports_max: int = 1000
    """How many reports are kept in memory; beyond it the oldest one with nothing to tell goes first."""
    lost_max: int = 100_000
    """One pass looks for so many lost entries, and as many more as there are places that cannot be read here: they
    stand in memory until it ends, and those left are found by the next.
    """
    holes_max: int = 10_000
    """One pass keeps so many ranges of positions that cannot be read, each with the ends of all origins around it; what
    may have lain behind them the next pass looks for.
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
