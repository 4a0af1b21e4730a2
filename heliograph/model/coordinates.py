"""Coordinates: where an entry was first published, and the vector of what a region holds of each origin.

Is: values, their text, and the vector's encoding. Isn't: a decision about a run that arrives
(`replicator.dedup.version_vector`).
Invariants: a prefix only grows; the missing ranges of an origin are disjoint, ascending, apart, and at or below its
prefix; a range is half-open at its lower end: (after, through]. Origins of one region with different epochs or
incarnations are components of their own.

An encoded vector, big endian:

    u8 version (1), u16 origins, each:
        u32 region, u32 epoch, u64 incarnation, i64 ledger, i64 entry, u16 missing, each: 4 x i64 (after, through)

Source: docs/protocols/links.md, "Origin, coordinate, vector".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from heliograph.model.empty_dict import NOTHING, own
from heliograph.model.errors import CorruptData, NotAllowed
from heliograph.model.positions import BEFORE_ALL, Position

Origin = tuple[int, int, int]
"""(region number, region epoch, incarnation)."""
Coordinate = tuple[Origin, Position]
"""Origin, and the position of the first publish there."""
Range = tuple[Position, Position]
"""(after, through]: every position above the first, up to and with the second."""


def format_coordinate(coordinate: Coordinate) -> str:
    """`region.epoch.incarnation:ledger:entry`, the incarnation in hex: safe in a URL's path and on a command line."""
    (region, epoch, incarnation), (ledger, entry) = coordinate
    return f"{region}.{epoch}.{incarnation:x}:{ledger}:{entry}"


def parse_coordinate(text: str) -> Coordinate:
    """Raises NotAllowed where the text is no coordinate as `format_coordinate` writes them."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise NotAllowed(
            f"{text!r:.100} is no coordinate: write region.epoch.incarnation:ledger:entry, such as 1.1.5f3a:7:12, the "
            "incarnation in hex"
        )
    region, epoch, incarnation, ledger, entry = found.groups()
    return (int(region), int(epoch), int(incarnation, 16)), (int(ledger), int(entry))


_TEXT = re.compile(r"(\d{1,10})\.(\d{1,10})\.([0-9a-f]{1,16}):(\d{1,18}):(\d{1,18})")
VERSION = 1
MISSING_MAX = 1024
"""An origin has so many."""
REGION_MISSING_MAX = 2048
"""All origins of a region together have so many, or one each: each is 32 bytes of the topic's stored state, which has
an end.
"""
_HEAD = struct.Struct(">BH")
_ORIGIN = struct.Struct(">IIQqqH")
_RANGE = struct.Struct(">qqqq")


def _join_oldest(ranges: list[Range]) -> None:
    """The two oldest become one: it names too much, never too little."""
    ranges[:2] = [(ranges[0][0], ranges[1][1])]


class Vector:
    """Origin -> prefix, and the ranges below it that are missing (lost, trimmed, expired, skipped by an admin)."""

    __slots__ = ("_missing", "_prefix")

    def __init__(self) -> None:
        self._prefix: dict[Origin, Position] = {}
        self._missing: dict[Origin, list[Range]] = NOTHING

    def prefix(self, origin: Origin) -> Position:
        """BEFORE_ALL where nothing of `origin` is held."""
        return self._prefix.get(origin, BEFORE_ALL)

    def missing(self, origin: Origin) -> tuple[Range, ...]:
        return tuple(self._missing.get(origin, ()))

    def holds(self, origin: Origin, position: Position) -> bool:
        """Whether `position` is at or below the prefix and in no missing range."""
        if position > self.prefix(origin):
            return False
        return not any(after < position <= through for after, through in self._missing.get(origin, ()))

    def advance(self, origin: Origin, through: Position) -> None:
        """The prefix moves up to `through`; never back."""
        if through > self._prefix.get(origin, BEFORE_ALL):
            self._prefix[origin] = through

    def skip(self, origin: Origin, after: Position, through: Position) -> None:
        """The prefix moves up to `through`, and what lies above both `after` and the old prefix is missing."""
        low = max(after, self.prefix(origin))
        if through <= low:
            return
        self._missing = own(self._missing)
        ranges = self._missing.setdefault(origin, [])
        if ranges and ranges[-1][1] == low:
            ranges[-1] = (ranges[-1][0], through)
        else:
            ranges.append((low, through))
        self._prefix[origin] = through
        if len(ranges) > MISSING_MAX:
            _join_oldest(ranges)
        elif len(self._missing) > 1:
            of_region = [(len(found), other) for other, found in self._missing.items() if other[0] == origin[0]]
            count, longest = max(of_region)  # the same after a replay, whatever the order in which they were heard of
            if count > 1 and sum(length for length, _ in of_region) > REGION_MISSING_MAX:
                _join_oldest(self._missing[longest])

    def fill(self, origin: Origin, after: Position, through: Position) -> None:
        """Entries beat a SKIP: (after, through] is missing no more. The prefix stays."""
        ranges = self._missing.get(origin)
        if not ranges or after >= through:
            return
        kept: list[Range] = []
        for low, high in ranges:
            if high <= after or through <= low:
                kept.append((low, high))
                continue
            if low < after:
                kept.append((low, after))
            if through < high:
                kept.append((through, high))
        if kept:
            self._missing[origin] = kept
        else:
            del self._missing[origin]

    def merge(self, other: Vector) -> None:
        """Raises each prefix to the other's, where that is higher; its missing ranges above the old prefix come
        along.
        """
        for origin, prefix in other._prefix.items():
            old = self.prefix(origin)
            for after, through in other._missing.get(origin, ()):
                if through > old:
                    self.advance(origin, max(after, old))
                    self.skip(origin, after, through)
            self.advance(origin, prefix)

    def overlay(self, origin: Origin, other: Vector) -> None:
        """From now on this vector says of `origin` what `other` does."""
        self._prefix.pop(origin, None)
        if origin in self._missing:
            del self._missing[origin]
        if origin in other._prefix:
            self._prefix[origin] = other._prefix[origin]
            if ranges := other._missing.get(origin):
                self._missing = own(self._missing)
                self._missing[origin] = list(ranges)

    def copy(self) -> Vector:
        twin = Vector()
        twin._prefix = dict(self._prefix)
        twin._missing = {origin: list(ranges) for origin, ranges in self._missing.items()} if self._missing else NOTHING
        return twin

    def __iter__(self) -> Iterator[Origin]:
        return iter(sorted(self._prefix))

    def __len__(self) -> int:
        return len(self._prefix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self._prefix == other._prefix and self._missing == other._missing

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = []
        for origin in self:
            holes = "".join(f" -({a[0]}:{a[1]}, {b[0]}:{b[1]}]" for a, b in self.missing(origin))
            ledger, entry = self._prefix[origin]
            parts.append(f"{origin[0]}.{origin[1]}.{origin[2]:x} {ledger}:{entry}{holes}")
        return f"Vector({'; '.join(parts)})"

    @property
    def size_bytes(self) -> int:
        """So many bytes `encode` makes of it."""
        ranges = sum(map(len, self._missing.values()))
        return _HEAD.size + _ORIGIN.size * len(self._prefix) + _RANGE.size * ranges

    def encode(self) -> bytes:
        out = [_HEAD.pack(VERSION, len(self._prefix))]
        for origin in self:
            ranges = self._missing.get(origin, [])
            out.append(_ORIGIN.pack(*origin, *self._prefix[origin], len(ranges)))
            out += [_RANGE.pack(*after, *through) for after, through in ranges]
        return b"".join(out)

    @classmethod
    def decode(cls, blob: bytes | bytearray | memoryview) -> Vector:
        """Raises CorruptData where the bytes are no vector that keeps the invariants."""
        vector = cls()
        try:
            version, origins = _HEAD.unpack_from(blob)
            if version != VERSION:
                raise CorruptData(f"vector: format {version} is not known here (this version reads format {VERSION})")
            at = 3
            for _ in range(origins):
                region, epoch, incarnation, ledger, entry, count = _ORIGIN.unpack_from(blob, at)
                at += _ORIGIN.size
                origin, ranges = (region, epoch, incarnation), []
                low: Position | None = None
                for _ in range(count):
                    a, b, c, d = _RANGE.unpack_from(blob, at)
                    at += _RANGE.size
                    if (a, b) >= (c, d) or (low is not None and (a, b) <= low) or (c, d) > (ledger, entry):
                        raise CorruptData("vector: missing ranges overlap, run backwards, or lie above the prefix")
                    low = (c, d)
                    ranges.append(((a, b), (c, d)))
                if origin in vector._prefix:
                    raise CorruptData("vector: an origin appears twice")
                vector._prefix[origin] = (ledger, entry)
                if ranges:
                    vector._missing = own(vector._missing)
                    vector._missing[origin] = ranges
        except struct.error as error:
            raise CorruptData(f"vector: {error}") from error
        if at != len(blob):
            raise CorruptData(f"vector: {len(blob) - at} bytes too many")
        return vector
