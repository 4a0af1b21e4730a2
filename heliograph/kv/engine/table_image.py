"""Image: a machine's table as it was at one index, taken piece by piece while the machine goes on; and the parts that a
snapshot is made of.

Is: copy on write over the keys that the image has not given out yet, and the bytes of its parts. Isn't: I/O, or a
decision when to take one.
Invariants: an image holds exactly the rows of its index, each once, in order, whatever changed meanwhile; what a part
costs is bounded (`part_rows` rows, or what passes PART_BYTES), so that nobody waits for a large table; parts without
their end are refused as cut off.
Source: docs/protocols/metadata.md, "Files".

A snapshot, version 2:  u8 version (2), then parts: u32 size, msgpack

    head   [index, counters [[name, next]...], leases [[id, ttl ms]...],
            sessions [[id, low, [[sequence, answer]...]]...] in order of last use]
    rows   [[key...], [value...], [version...], [lease or 0...]]     any number of them, keys in order
    end    [rows in all]

Version 1 was one part: [index, keys, values, versions, leases, counters, leases, sessions].
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from heliograph.kv.engine.table_rows import KeyCounts, Row, TableRows
from heliograph.model.errors import CorruptData

VERSION = 2
PART_ROWS = 2048
PART_BYTES = 256 << 10
LAST_KEY = "\U0010ffff" * 8


@dataclass(slots=True)
class Head:
    """What a snapshot holds beside its rows."""

    index: int
    counters: list[tuple[str, int]] = field(default_factory=list)
    leases: list[tuple[int, int]] = field(default_factory=list)
    sessions: list[tuple[int, int, list[tuple[int, bytes]]]] = field(default_factory=list)


class Image:
    """The machine calls `keep` before it changes a key, and sets `broken` where its whole table was replaced."""

    def __init__(
        self, head: Head, table: TableRows, start: str = "", end: str = LAST_KEY, *, part_rows: int = PART_ROWS
    ) -> None:
        """The image holds the keys in [start, end). part_rows: how many rows `rows` gives out at once, at most."""
        self.head = head
        self.broken = False
        self._table, self._part_rows = table, part_rows
        self._next, self._end = start, end  # every key before `_next` was given out
        self._before: dict[str, Row | None] = {}  # what later keys were at the image's index, where changed since
        self._changed: list[str] = []  # those of them that were there, in order

    def keep(self, key: str, row: Row | None) -> None:
        """row: what `key` is before the change, None where it is absent."""
        if self._next <= key < self._end and key not in self._before:
            self._before[key] = row
            if row is not None:
                insort(self._changed, key)

    def rows(self) -> list[tuple[str, Row]]:
        """The next rows, in order; none at the end."""
        assert not self.broken
        found: list[tuple[str, Row]] = []
        while not found and not self.ended:
            found = self._piece()
        return found

    @property
    def ended(self) -> bool:
        """Every row was given out."""
        return self._next == self._end

    def _piece(self) -> list[tuple[str, Row]]:
        before, found = self._before, list[tuple[str, Row]]()
        size = 0
        following = self._end  # where the keys end: what was deleted behind the last one belongs to this piece too
        for count, (key, now) in enumerate(self._table.items(self._next, self._end), 1):
            row = before.pop(key) if key in before else now
            if row is not None:
                found.append((key, row))
                size += len(key) + len(row[0])
            if count >= self._part_rows or size >= PART_BYTES:
                following = key + "\x00"
                break
        self._next = following
        end = bisect_left(self._changed, following)
        gone = [(key, row) for key in self._changed[:end] if (row := before.pop(key, None)) is not None]
        del self._changed[:end]
        return sorted(found + gone) if gone else found


def parts(image: Image) -> Iterator[bytes]:
    """The bytes of a snapshot, one bounded piece after another. Ends early where the image is broken: `image.broken`
    says so.
    """
    head, count = image.head, 0
    yield bytes([VERSION]) + part([head.index, head.counters, head.leases, head.sessions])
    while not image.broken:
        rows = image.rows()
        if not rows:
            yield part([count])
            return
        count += len(rows)
        yield rows_part(rows)


def rows_part(rows: Sequence[tuple[str, Row]]) -> bytes:
    return part([[key for key, _ in rows], *([row[column] for _, row in rows] for column in range(3))])


def part(fields: Sequence[Any]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return len(packed).to_bytes(4, "big") + packed


def open_part(body: bytes | memoryview) -> list[Any]:
    """The fields of a part behind its size. Raises CorruptData."""
    try:
        fields = msgpack.unpackb(body, strict_map_key=False)
    except Exception as error:  # msgpack raises a dozen kinds for wrong bytes
        raise CorruptData(f"metadata snapshot: {error}") from error
    if not isinstance(fields, list):
        raise CorruptData("metadata snapshot: a part is no list")
    return fields


class Reading:
    """A snapshot, read part by part: `head`, then `add` for each other part, then `finish`."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.rows = 0
        self._ended = False

    def add(self, body: bytes | memoryview) -> Iterator[tuple[str, Row]]:
        """The rows of the next part (behind its size); none in the head and the end. Raises CorruptData."""
        fields = open_part(body)
        if self._ended:
            raise CorruptData("metadata snapshot: something follows its end")
        try:
            if self.head is None:
                index, counters, leases, sessions = fields
                self.head = Head(
                    index,
                    [(name, following) for name, following in counters],
                    [(lease, ttl_ms) for lease, ttl_ms in leases],
                    [
                        (number, low, [(sequence, answer) for sequence, answer in answers])
                        for number, low, answers in sessions
                    ],
                )
                return iter(())
            if len(fields) == 1:
                if fields[0] != self.rows:
                    raise CorruptData(f"metadata snapshot: {self.rows} rows where {fields[0]} were written")
                self._ended = True
                return iter(())
            keys, values, versions, leases = fields
            self.rows += len(keys)
            return zip(keys, zip(values, versions, leases, strict=True), strict=True)
        except (ValueError, TypeError) as error:
            raise CorruptData(f"metadata snapshot: {error}") from error

    def finish(self) -> Head:
        """Raises CorruptData where the end is missing."""
        if self.head is None or not self._ended:
            raise CorruptData("metadata snapshot: it is cut off")
        return self.head


def head_of(first: bytes) -> Head:
    """Returns what the first piece of a snapshot says beside rows. Raises CorruptData."""
    reading = Reading()
    reading.add(memoryview(first)[5:])
    assert reading.head is not None
    return reading.head


class Restoring:
    """A snapshot of any version, cut anywhere, read into rows; `counts` and `leased` grow with them."""

    def __init__(self) -> None:
        self.counts = KeyCounts()
        self.leased: dict[int, dict[str, None]] = {}
        self._reading = Reading()
        self._rest = bytearray()
        self._version = 0
        self._first: Head | None = None  # of version 1

    def add(self, data: bytes) -> list[tuple[str, Row]]:
        """The rows of the parts that are whole now. Raises CorruptData."""
        rest = self._rest
        rest += data
        if not self._version and rest:
            self._version = rest[0]
            if self._version not in (1, VERSION):
                raise CorruptData(
                    f"metadata snapshot: version {self._version} is not known here (this is version {VERSION})"
                )
            del rest[:1]
        found: list[tuple[str, Row]] = []
        at = 0
        while (
            self._version == VERSION
            and at + 4 <= len(rest)
            and at + 4 + (size := int.from_bytes(rest[at : at + 4], "big")) <= len(rest)
        ):
            try:
                found += self._reading.add(bytes(rest[at + 4 : at + 4 + size]))
            except (ValueError, TypeError) as error:
                raise CorruptData(f"metadata snapshot: {error}") from error
            at += 4 + size
        del rest[:at]
        return self._noted(found)

    def finish_rows(self) -> list[tuple[str, Row]]:
        """Those of a snapshot of version 1, which is one part."""
        if self._version != 1:
            return []
        self._first, rows = _read_first_version(bytes(self._rest))
        self._rest.clear()
        return self._noted(rows)

    def finish(self) -> Head:
        """Behind the last piece. Raises CorruptData where anything is missing."""
        if self._rest:
            raise CorruptData("metadata snapshot: it is cut off")
        return self._reading.finish() if self._first is None else self._first

    def _noted(self, rows: list[tuple[str, Row]]) -> list[tuple[str, Row]]:
        try:
            for key, (_, _, lease) in rows:
                self.counts.add(key)
                if lease:
                    self.leased.setdefault(lease, {})[key] = None
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptData(f"metadata snapshot: {error}") from error
        return rows


def _read_first_version(blob: bytes) -> tuple[Head, list[tuple[str, Row]]]:
    try:
        index, keys, values, versions, hung, counters, leases, sessions = open_part(blob)
        rows = list(zip(keys, zip(values, versions, hung, strict=True), strict=True))
        return Head(index, counters, leases, sessions), rows
    except (ValueError, TypeError) as error:
        raise CorruptData(f"metadata snapshot: {error}") from error
