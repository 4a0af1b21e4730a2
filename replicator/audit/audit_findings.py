"""What an audit found: of one entry each, where it lies, what is wrong with it, and what became of it.

Is: values, their counts, and their text for people. Isn't: the finding (`replicator.audit.audit_pass`), or the repair
(`replicator.audit.audit_repair`).
Invariants: what is found is counted, whether it could be repaired or not; the list of a report is bounded, its counts
are not.
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from heliograph.model.coordinates import Origin, format_coordinate
from heliograph.model.positions import Position

LISTED_MAX = 200


class Fault(StrEnum):
    """What is wrong with an entry of this region."""

    UNREADABLE = "unreadable"
    """No copy here can be read."""
    DAMAGED = "damaged"
    """It contradicts its own checksum."""
    DIFFERENT = "different"
    """Its origin holds another entry under that coordinate."""
    LOST = "lost"
    """Its origin has it, and here is no place where it was."""
    TWICE = "twice"
    """Its coordinate is stored here already."""
    EXTRA = "extra"
    """Its origin has nothing under that coordinate."""


@dataclass(slots=True)
class Finding:
    """coordinate: None where it is not known what lay there. position: None where nothing lies. left: why it is not
    repaired; "": it is.
    """

    fault: Fault
    origin: Origin | None
    coordinate: Position | None
    position: Position | None
    left: str = "not tried yet"

    @property
    def repaired(self) -> bool:
        return not self.left

    def shown(self) -> dict[str, Any]:
        known = self.origin is not None and self.coordinate is not None
        return {
            "fault": str(self.fault),
            "coordinate": (
                format_coordinate((self.origin, self.coordinate))  # type: ignore[arg-type]
                if known
                else None
            ),
            "position": None if self.position is None else list(self.position),
            "repaired": self.repaired,
            "left": self.left,
        }


class AuditSummary(NamedTuple):
    """What is kept of a pass that somebody asked for, of however many topics."""

    began_ms: int
    entries: int
    ranges: int
    unchecked: int
    left: int
    found: Mapping[str, int]
    error: str


_NONE: Mapping[str, int] = {}


@dataclass(slots=True)
class Report:
    """One pass over one topic. ranges: compared with their origin; unchecked: not, because its region could not be
    asked, or is damaged there.

    gone: region -> ranges whose origin has ended, so that those that are left were compared, and nobody else can be;
    waiting: region -> ranges that only it can tell of.
    """

    began_ms: int = 0
    ended_ms: int = 0
    entries: int = 0
    size_bytes: int = 0
    ranges: int = 0
    unchecked: int = 0
    gone: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    error: str = ""
    """Why the pass ended before its time; it is tried again."""
    findings: list[Finding] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)

    def settle(self, findings: list[Finding]) -> None:
        """All that the pass found, with what became of it."""
        self.findings = findings[:LISTED_MAX]
        self.found = Counter(str(f.fault) for f in findings)
        self.repaired = Counter(str(f.fault) for f in findings if f.repaired)

    @property
    def left(self) -> int:
        """How many findings could not be repaired."""
        return self.found.total() - self.repaired.total()

    def brief(self) -> AuditSummary:
        return AuditSummary(
            self.began_ms,
            self.entries,
            self.ranges,
            self.unchecked,
            self.left,
            dict(self.found) if self.found else _NONE,
            self.error,
        )

    def shown(self) -> dict[str, Any]:
        return {
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "entries": self.entries,
            "bytes": self.size_bytes,
            "ranges": self.ranges,
            "unchecked_ranges": self.unchecked,
            "unchecked_of": dict(self.waiting),
            "gone_ranges": dict(self.gone),
            "error": self.error,
            "found": dict(self.found),
            "repaired": dict(self.repaired),
            "left": self.left,
            "findings": [finding.shown() for finding in self.findings],
        }
