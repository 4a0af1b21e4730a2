"""Reasons: why ranges of coordinates are missing, as the SKIPs said that are stored here.

Is: by region that lacks it ("": this one) and origin, ranges (after, through] with the reason of each. Isn't: what is
missing (the vector says that; an entry that came later beats a SKIP), or a SKIP itself
(`heliograph.wire.links.link_commands`).
Invariants: what is told here was said by a record; a range without one has no reason, and none is guessed. Of a region
and origin the newest RANGES_MAX are kept.
Source: docs/protocols/links.md, "SKIP".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.model.coordinates import Origin, Range
from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.positions import Position
from heliograph.wire.links.link_commands import SkipReason

RANGES_MAX = 128
HERE = ""

Reasoned = tuple[Position, Position, SkipReason | None]
"""(after, through], and why; None: nobody says (an earlier version stored it, or there were too many)."""


class Reasons:
    """Holds what the SKIPs of one topic said; false where none is stored. `note` fills it, also at replay."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[tuple[str, Origin], list[tuple[Position, Position, SkipReason]]] = NOTHING

    def __bool__(self) -> bool:
        return bool(self._of)

    def note(self, region: str, origin: Origin, after: Position, through: Position, reason: SkipReason) -> None:
        """A record is durable here. What is known already (replayed again) is passed over."""
        ranges = self._of.get((region, origin), [])
        if ranges:
            after = max(after, ranges[-1][1])
        if after >= through:
            return
        self._of = own(self._of)
        self._of[region, origin] = ranges
        if ranges and ranges[-1][1:] == (after, reason):
            ranges[-1] = (ranges[-1][0], through, reason)
        else:
            ranges.append((after, through, reason))
        del ranges[:-RANGES_MAX]

    def of(self, region: str, origin: Origin, at: Position) -> SkipReason | None:
        """Why the entry of coordinate `at` is missing there, where it is."""
        return next(
            (reason for after, through, reason in self._of.get((region, origin), ()) if after < at <= through), None
        )

    def explain(self, region: str, origin: Origin, missing: Sequence[Range]) -> list[Reasoned]:
        """The missing ranges, cut where their reasons change."""
        out: list[Reasoned] = []
        for after, through in missing:
            at = after
            for low, high, reason in self._of.get((region, origin), ()):
                if high <= at or low >= through:
                    continue
                if low > at:
                    out.append((at, low, None))
                out.append((max(low, at), min(high, through), reason))
                at = min(high, through)
            if at < through:
                out.append((at, through, None))
        return out

    def dump(self) -> list[Any]:
        return [
            [region, *origin, [[*a, *b, int(why)] for a, b, why in ranges]]
            for (region, origin), ranges in sorted(self._of.items())
        ]

    def load(self, dumped: list[Any]) -> None:
        for region, *rest, ranges in dumped:
            self._of = own(self._of)
            self._of[region, (rest[0], rest[1], rest[2])] = [
                ((a, b), (c, d), SkipReason(why)) for a, b, c, d, why in ranges
            ]
