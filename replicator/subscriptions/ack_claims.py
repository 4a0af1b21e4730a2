"""Claims: what one region says of a replicated subscription: everything that was acknowledged there, by coordinate.

Is: ranges of coordinates, and the value that travels. Isn't: a decision
(`replicator.subscriptions.subscription_state`), or a cursor.
Invariants: ranges are disjoint, ascending, apart, and half-open at their lower end: (after, through]. A claim of a
range means that the claimer has acknowledged every entry of it *that was meant for the claimer and reached it*; nothing
is claimed of the rest.
Source: docs/protocols/links.md, "Replicated subscriptions".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.model.coordinates import Coordinate, Origin, Range
from heliograph.model.errors import CorruptData, PeerError
from heliograph.model.positions import BEFORE_ALL, Position

Epoch = tuple[int, int]
"""(resets so far, number of the region that made the last one). The higher wins."""
Base = dict[Origin, Position]
"""Where the subscription begins: what lies at or below is no part of it. An origin that is not in it: from its first
entry on.
"""
CREATED: Epoch = (0, 0)
RANGES_MAX = 10_000
"""So many ranges have claims, of all origins together."""
ORIGINS_MAX = (1 << 16) - 1
"""Claims name as many origins as a vector can."""
PARTLY_MAX = 10_000
PARTLY_BYTES_MAX = 2 << 20
COUNTS_MAX = 1000
COUNTS_LEVEL = 4
"""Feature level of a side that takes counts."""
_COUNT_MAX = (1 << 31) - 1
_PARTLY_BYTES = 40
"""What a partly acknowledged batch takes in a frame beside its bits, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSettings:
    """Bounds what this region tells, and keeps of what others told, and what it reads for that in a round."""

    ranges_max: int = RANGES_MAX
    """Whoever reads takes as many as RANGES_MAX."""
    told_max: int = 1000
    """A topic that has so many replicated subscriptions makes no more because another region tells of them: each is a
    durable cursor, and each region's claims of it are kept. Those that are made here are not bounded by it.
    """
    round_reads: int = 64
    """Of the log, for claiming, and as many for applying: fewer where they are large."""
    round_lookups: int = 200
    """Of batches acknowledged in part, for claiming, and as many for applying; of messages that were handed out again,
    likewise.
    """

    def __post_init__(self) -> None:
        assert 0 < self.ranges_max <= RANGES_MAX
        assert self.round_reads > 0 and self.round_lookups > 0


USUAL = ClaimSettings()


def insert(ranges: list[Range], after: Position, through: Position) -> None:
    """Adds (after, through]; an empty range changes nothing."""
    if through <= after:
        return
    low = bisect_left(ranges, after, key=_through)
    high = low
    while high < len(ranges) and ranges[high][0] <= through:
        high += 1
    if low < high:
        after, through = min(after, ranges[low][0]), max(through, ranges[high - 1][1])
    ranges[low:high] = [(after, through)]


def subtract(ranges: Sequence[Range], known: Sequence[Range]) -> list[Range]:
    """What of `ranges` is not in `known`."""
    out: list[Range] = []
    at = 0
    for after, through in ranges:
        while at < len(known) and known[at][1] <= after:
            at += 1
        index = at
        while index < len(known) and known[index][0] < through:
            if after < known[index][0]:
                out.append((after, known[index][0]))
            after = known[index][1]
            index += 1
        if after < through:
            out.append((after, through))
    return out


def _through(found: Range) -> Position:
    return found[1]


class Claims:
    """partly: batches of which single messages are acknowledged -> bits of those that are not.

    counts: entries that are not acknowledged -> how often they were handed out again; no more than a number that
    consumers see.
    """

    __slots__ = ("base", "counts", "epoch", "partly", "ranges")

    def __init__(self, epoch: Epoch, base: Base) -> None:
        self.epoch, self.base = epoch, base
        self.ranges: dict[Origin, list[Range]] = {}
        self.partly: dict[Coordinate, int] = {}
        self.counts: dict[Coordinate, int] = {}

    def add(self, origin: Origin, after: Position, through: Position) -> None:
        insert(self.ranges.setdefault(origin, []), after, through)

    def add_partly(self, coordinate: Coordinate, left: int) -> None:
        self.partly[coordinate] = self.partly.get(coordinate, left) & left

    def add_count(self, coordinate: Coordinate, count: int) -> None:
        self.counts[coordinate] = max(self.counts.get(coordinate, 0), min(count, _COUNT_MAX))

    def merge(self, other: Claims) -> None:
        """Joins claims of the same epoch and the same claimer: nothing that was claimed is taken back."""
        for origin, ranges in other.ranges.items():
            for after, through in ranges:
                self.add(origin, after, through)
        for coordinate, left in other.partly.items():
            self.add_partly(coordinate, left)
        for coordinate, count in other.counts.items():
            self.add_count(coordinate, count)

    def bound(self, settings: ClaimSettings = USUAL) -> bool:
        """At most `settings.ranges_max` ranges and PARTLY_BYTES_MAX bytes of bits, so that a frame holds them: of what
        is left out, messages come again.

        Left out is what lies highest, so that the same is left out every time; of each origin that has more than its
        share. Returns whether ranges were.
        """
        before, left = sum(map(len, self.ranges.values())), settings.ranges_max
        if before > left:
            for index, ranges in enumerate(sorted(self.ranges.values(), key=len)):
                del ranges[left // (len(self.ranges) - index) :]
                left -= len(ranges)
        size = sum(_PARTLY_BYTES + bits.bit_length() // 8 for bits in self.partly.values())
        if size > PARTLY_BYTES_MAX or len(self.partly) > PARTLY_MAX:
            for coordinate in sorted(self.partly, reverse=True):
                if size <= PARTLY_BYTES_MAX and len(self.partly) <= PARTLY_MAX:
                    break
                size -= _PARTLY_BYTES + self.partly.pop(coordinate).bit_length() // 8
        if len(self.counts) > COUNTS_MAX:
            self.counts = {coordinate: self.counts[coordinate] for coordinate in sorted(self.counts)[:COUNTS_MAX]}
        return before > settings.ranges_max

    def forget_whole(self) -> None:
        """Batches that are claimed whole by now are no longer claimed in parts, and how often a message came again is
        nothing once it is claimed.
        """
        for coordinate in [c for c in self.partly if self.covers(c)]:
            del self.partly[coordinate]
        for coordinate in [c for c in self.counts if self.covers(c)]:
            del self.counts[coordinate]

    def covers(self, coordinate: Coordinate) -> bool:
        origin, at = coordinate
        return not subtract([((at[0], at[1] - 1), at)], self.ranges.get(origin, ()))

    def summary(self) -> dict[str, Any]:
        """For people: by origin, how far it goes, and in how many ranges; how many batches are acknowledged in part,
        how many entries came again.
        """
        rows = {
            "{}.{}.{:x}".format(*origin): {"through": list(ranges[-1][1]), "ranges": len(ranges)}
            for origin, ranges in sorted(self.ranges.items())
            if ranges
        }
        return {"origins": rows, "partly": len(self.partly), "counts": len(self.counts)}

    def parts(self) -> list[int]:
        """[messages left of batches that were acknowledged in part, redeliveries]: what can change without the summary,
        to which others compare theirs.
        """
        return [sum(left.bit_count() for left in self.partly.values()), sum(self.counts.values())]

    def fields(self, level: int = COUNTS_LEVEL) -> list[Any]:
        """For msgpack. level: feature level of whoever reads it."""
        origins = sorted({*self.base, *self.ranges})
        rows = [
            [
                *origin,
                *self.base.get(origin, BEFORE_ALL),
                [number for pair in self.ranges.get(origin, ()) for at in pair for number in at],
            ]
            for origin in origins
        ]
        partly = [
            [*o, *at, left.to_bytes((left.bit_length() + 7) // 8, "little")] for (o, at), left in self.partly.items()
        ]
        out = [list(self.epoch), rows, partly]
        return [*out, [[*o, *at, count] for (o, at), count in self.counts.items()]] if level >= COUNTS_LEVEL else out

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Claims:
        """Raises CorruptData where the fields are no claims that keep the invariants."""
        try:
            (resets, region), rows, partly, *more = fields
            claims = cls((_number(resets), _number(region)), {})
            if len(rows) > ORIGINS_MAX or sum(len(row[5]) for row in rows) > 4 * RANGES_MAX:
                raise CorruptData(f"claims: more than {ORIGINS_MAX} origins, or {RANGES_MAX} ranges of all together")
            for number, epoch, incarnation, ledger, entry, flat in rows:
                origin = (_number(number), _number(epoch), _number(incarnation))
                base = (_number(ledger, -1), _number(entry, -1))
                if origin in claims.ranges or len(flat) % 4:
                    raise CorruptData("claims: an origin appears twice, or its ranges are cut off")
                if base > BEFORE_ALL:
                    claims.base[origin] = base
                ranges: list[Range] = []
                for i in range(0, len(flat), 4):
                    after, through = (
                        (_number(flat[i], -1), _number(flat[i + 1], -1)),
                        (_number(flat[i + 2]), _number(flat[i + 3], -1)),
                    )
                    if after >= through or (ranges and after <= ranges[-1][1]):
                        raise CorruptData("claims: ranges overlap or run backwards")
                    ranges.append((after, through))
                claims.ranges[origin] = ranges
            if len(partly) > PARTLY_MAX:
                raise CorruptData(f"claims: more than {PARTLY_MAX} batches")
            for number, epoch, incarnation, ledger, entry, bits in partly:
                left = int.from_bytes(bits, "little")
                claims.partly[
                    (_number(number), _number(epoch), _number(incarnation)), (_number(ledger), _number(entry))
                ] = left
            if more and len(more[0]) > COUNTS_MAX:
                raise CorruptData(f"claims: more than {COUNTS_MAX} counts")
            for number, epoch, incarnation, ledger, entry, count in more[0] if more else ():
                claims.add_count(
                    ((_number(number), _number(epoch), _number(incarnation)), (_number(ledger), _number(entry))),
                    _number(count, 1),
                )
        except (ValueError, TypeError, IndexError) as error:
            raise CorruptData(f"claims: {error}") from error
        return claims


def read_claims(fields: Sequence[Any]) -> Claims:
    """Reads the claims in a frame from another region. Raises PeerError."""
    try:
        return Claims.read(fields)
    except CorruptData as error:
        raise PeerError(f"link: {error}") from error


def _number(value: Any, low: int = 0) -> int:
    if type(value) is not int or value < low:
        raise CorruptData(f"claims: {value!r:.40} is no number from {low} on")
    return value
