"""Checksums: which message had which sequence, of those that may come a second time from another region.

Is: by producer, (sequence, checksum as it was first published) of the newest messages, and of the first ones after
another region had begun to publish under that name. Isn't: all messages, or a decision.
Why these two: a client that comes over from a lost region begins with what has no receipt. In the region that it comes
to, and in those behind, these are the first ones there, and the lost region's tail may meet them much later; in the
lost region its newest messages meet them.
Invariants: a pair that is found here is that of a stored message, whole sequences below 2^32 and 32 bits of checksum;
what is forgotten is not found, so that what is judged by it is stored.
Cost: nothing but where one region at a time publishes, with deduplication; there slices of the run's columns, in C.
Bounds: 512 messages of each kind a name (8 bytes each), 16,384 a topic: where names are many, fewer of each, down to
16; then whole names go, those heard of longest ago first.
Source: docs/protocols/leadership.md, "Producers that try again elsewhere".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import crc32c

from heliograph.wire.run import Buffer, ProducerSegment, Run

_MAGIC = b"\x0e\x01"
_MASK = 0xFFFFFFFF
_LOW, _ROW = struct.Struct(">I"), struct.Struct(">II")
_BY_COLUMNS = 16
"""From so many entries on columns are cheaper than rows."""
_KEPT, _KEPT_MIN = 512 * _ROW.size, 16 * _ROW.size
_TOPIC_BYTES = 16_384 * _ROW.size
_HEAD = itemgetter(slice(0, 6))


def checksum_of(entry: Buffer) -> int:
    """The checksum of an entry as its client published it."""
    head = bytes(entry[:6])
    return int.from_bytes(head[2:], "big") if head[:2] == _MAGIC else crc32c.crc32c(entry)


def checksums_of(run: Run) -> Sequence[int]:
    """The checksum of each entry as it was first published."""
    return [checksum_of(part) for part in run.parts] if run.checksums is None else run.checksums


def _column(run: Run) -> bytes:
    """The same, 4 bytes an entry."""
    count = run.count
    if count == 1:
        return _LOW.pack(checksums_of(run)[0])
    if run.checksums is None and count >= _BY_COLUMNS:
        heads = b"".join(map(_HEAD, run.parts))
        if len(heads) == 6 * count and heads[::6].count(_MAGIC[0]) == heads[1::6].count(_MAGIC[1]) == count:
            return _columns(heads[2::6], heads[3::6], heads[4::6], heads[5::6])
    return struct.pack(f">{count}I", *checksums_of(run))


def _columns(*columns: bytes) -> bytes:
    """Bytes row by row, of columns of one byte each."""
    out = bytearray(len(columns) * len(columns[0]))
    for index, column in enumerate(columns):
        out[index :: len(columns)] = column
    return bytes(out)


def _rows(segment: ProducerSegment, checksums: bytes) -> bytes:
    _, count, first, pairs = segment
    if count == 1:
        return _LOW.pack(first & _MASK) + checksums
    lows: Iterable[int] = range(first, first + count) if pairs is None else [low & _MASK for low, _ in pairs]
    if pairs is None and (first < 0 or first + count > _MASK):
        lows = [low & _MASK for low in lows]
    told = struct.pack(f">{count}I", *lows)
    if count < _BY_COLUMNS:
        return b"".join([part[at : at + 4] for at in range(0, 4 * count, 4) for part in (told, checksums)])
    return _columns(*(part[at::4] for part in (told, checksums) for at in range(4)))


class _Published:
    """One name: rows of 8 bytes, in the order in which they were stored."""

    __slots__ = ("before", "first", "here", "high", "newest", "region")

    def __init__(
        self, region: int, high: int, here: int = -1, before: int = -1, first: bytes = b"", newest: bytes = b""
    ) -> None:
        self.region, self.high = region, high
        """Where the highest sequence was first published; 0: here."""
        self.here, self.before = here, before
        """The highest one that was first published here, and what that was when this region last became the active
        one."""
        self.first, self.newest = bytearray(first), bytearray(newest)
        """The first ones of `region`, none where no other was before it; the newest of all."""

    @property
    def size_bytes(self) -> int:
        return len(self.first) + len(self.newest)

    def shrink(self, kept: int) -> None:
        """From now on of each kind `kept` bytes."""
        del self.first[kept:]
        del self.newest[:-kept]

    def add(self, region: int, high: int, rows: bytes, kept: int) -> int:
        """Returns by how many bytes it has grown. kept: bytes of each kind, at most twice as many of the newest."""
        before = self.size_bytes
        begins = high > self.high and region != self.region
        if begins:
            self.region = region
            self.first.clear()
        if region == self.region and (begins or self.first):
            self.first += rows[: max(0, kept - len(self.first))]
        self.high = max(self.high, high)
        if not region:
            self.here = max(self.here, high)
        self.newest += rows
        if len(self.newest) > 2 * kept:
            del self.newest[:-kept]
        return self.size_bytes - before

    def holds(self, row: bytes) -> bool:
        return _finds(self.newest, row) or _finds(self.first, row)


def _finds(rows: bytearray, row: bytes) -> bool:
    at = rows.find(row)
    while at >= 0 and at % _ROW.size:
        at = rows.find(row, at + 1)
    return at >= 0


class PublishedChecksums:
    """The checksums of one topic, by producer."""

    __slots__ = ("_kept", "_names", "_size_bytes", "epoch")

    def __init__(self) -> None:
        self.epoch = 0
        """In which something was last published here, but for the first of a leadership. It is in the stored state, and
        in no entry: replayed from before it, all that is known counts as of an earlier one, and wants proof."""
        self._names: dict[str, _Published] = {}  # heard of longest ago first
        self._size_bytes, self._kept = 0, _KEPT

    def stored(self, run: Run, region: int) -> None:
        """Takes in a run that is durable. region: where it was first published; 0: here."""
        if not run.producers:
            return
        column, at = _column(run), 0
        for segment in run.producers:
            name, count, first, pairs = segment
            high = first + count - 1 if pairs is None else max(highest for _, highest in pairs)
            if high >= 0:
                known = self._names.pop(name, None) or _Published(region, high)
                self._size_bytes += known.add(
                    region, high, _rows(segment, column[4 * at : 4 * (at + count)]), self._kept
                )
                self._names[name] = known
            at += count
        while self._size_bytes > _TOPIC_BYTES:
            if self._kept > _KEPT_MIN:
                self._kept //= 2
                for known in self._names.values():
                    known.shrink(self._kept)
                self._size_bytes = sum(known.size_bytes for known in self._names.values())
            else:
                self._drop(next(iter(self._names)))

    def begin(self, epoch: int, submitted: Mapping[str, int]) -> None:
        """From now on messages are published here in that epoch. submitted: what is on its way, of those before."""
        self.epoch = epoch
        for name, high in submitted.items():
            known = self._names.setdefault(name, _Published(0, high))
            known.here = max(known.here, high)
        for known in self._names.values():
            known.before = known.here

    def _drop(self, name: str) -> None:
        self._size_bytes -= self._names.pop(name).size_bytes

    def holds(self, name: str, low: int, checksum: int) -> bool:
        """Whether the message of that producer which begins with sequence `low` is known, and is the same."""
        known = self._names.get(name)
        return known is not None and known.holds(_ROW.pack(low & _MASK, checksum))

    def before(self, name: str) -> int:
        """The highest sequence of that producer that was first published here in an earlier epoch; -1: none."""
        known = self._names.get(name)
        return -1 if known is None else known.before

    def dump(self, bytes_max: int) -> list[Any]:
        """What fits, about: the names that were heard of last."""
        out: list[Any] = [self.epoch]
        share = bytes_max // max(1, len(self._names))
        kept = min(self._kept, max(_KEPT_MIN, (share - 64) // 2)) // _ROW.size * _ROW.size
        for name, known in reversed(self._names.items()):
            first, newest = bytes(known.first[:kept]), bytes(known.newest[-kept:])
            bytes_max -= len(first) + len(newest) + 4 * len(name) + 48
            if bytes_max < 0:
                break
            out.append([name, known.region, known.high, known.here, known.before, first, newest])
        return out

    def load(self, dumped: Sequence[Any]) -> None:
        self.epoch, *names = dumped
        for name, *fields in reversed(names):
            known = self._names[name] = _Published(*fields)
            self._size_bytes += known.size_bytes


def entries(run: Run) -> Iterator[tuple[str, int, int, int]]:
    """(producer, lowest, highest sequence, checksum) of each entry."""
    checksums = iter(checksums_of(run))
    for name, count, first, pairs in run.producers:
        for low, high in pairs or ((sequence, sequence) for sequence in range(first, first + count)):
            yield name, low, max(low, high), next(checksums)
