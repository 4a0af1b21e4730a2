"""Intervals: a set of entry ids, as few half-open ranges as can be, or as bits where the ranges are many.

Is: the acknowledged entries of one ledger above a cursor's mark-delete position. Isn't: aware of ledgers, or of what
exists.
Invariants: ranges are sorted, not empty, and never touch; `count` is the number of ids in them. Memory: about 80 bytes
a range, and never much more than one bit an id of the span: above RANGES_MAX ranges they become chunks of 65,536 bits,
whatever is acknowledged in which order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import ClassVar

_MANY = 8


class Intervals:
    """Each call costs one binary search and the ranges that it swallows; or, as bits, a few microseconds."""

    __slots__ = ("_starts", "_stops", "chunks", "count")

    RANGES_MAX: ClassVar[int] = 256
    CHUNK: ClassVar[int] = 1 << 16
    """Bits of a chunk, also of a stored one. Both belong to the class, as sets are very many; other values make another
    class.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.chunks: dict[int, int] | None = None
        """As bits: number of the chunk -> bit i: id i of it is in the set; no chunk is empty."""
        self.count = 0

    def add(self, start: int, stop: int) -> int:
        """Adds [start, stop); returns how many ids are new."""
        if start >= stop:
            return 0
        if self.chunks is not None:
            return self._add_bits(start, stop)
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        held = 0
        if low < high:
            held = sum(self._stops[i] - self._starts[i] for i in range(low, high))
            start, stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]
        self.count += stop - start - held
        if len(self._starts) > self.RANGES_MAX:
            self._to_bits()
        return stop - start - held

    def add_ids(self, ids: Sequence[int]) -> int:
        """Adds single ids, of which some may be the same, and returns how many are new. As bits: a whole chunk at once,
        whose bits would else all be moved for each.
        """
        if self.chunks is None or len(ids) < _MANY:
            return sum(self.add(one, one + 1) for one in ids)
        masks: dict[int, bytearray] = {}
        for one in ids:
            number, at = divmod(one, self.CHUNK)
            mask = masks.get(number)
            if mask is None:
                mask = masks[number] = bytearray((self.CHUNK + 7) // 8)
            mask[at >> 3] |= 1 << (at & 7)
        before = self.count
        for number, mask in masks.items():
            self.set_chunk(number, int.from_bytes(mask, "little"))
        return self.count - before

    def set_chunk(self, number: int, bits: int) -> None:
        """Adds the ids whose bits are set."""
        if self.chunks is None:
            self._to_bits()
        assert self.chunks is not None
        before = self.chunks.get(number, 0)
        if bits:
            self.chunks[number] = before | bits
            self.count += (before | bits).bit_count() - before.bit_count()

    def remove_below(self, limit: int) -> int:
        """Forgets every id below `limit`; returns how many."""
        if self.chunks is not None:
            return self._remove_bits_below(limit)
        whole = bisect_right(self._stops, limit)
        removed = sum(self._stops[i] - self._starts[i] for i in range(whole))
        del self._starts[:whole], self._stops[:whole]
        if self._starts and self._starts[0] < limit:
            removed += limit - self._starts[0]
            self._starts[0] = limit
        self.count -= removed
        return removed

    def end_of(self, entry: int) -> int:
        """The first id at or after `entry` that is not in the set."""
        if self.chunks is None:
            at = bisect_right(self._starts, entry) - 1
            return max(entry, self._stops[at]) if at >= 0 else entry
        while (rest := self.chunks.get(entry // self.CHUNK, 0) >> entry % self.CHUNK) & 1:
            ones = (~rest & (rest + 1)).bit_length() - 1
            entry += ones
            if entry % self.CHUNK:
                break
        return entry

    def __contains__(self, entry: int) -> bool:
        if self.chunks is None:
            return self.end_of(entry) != entry
        return bool(self.chunks.get(entry // self.CHUNK, 0) >> entry % self.CHUNK & 1)

    def gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of [start, stop) that are not in the set."""
        if self.chunks is not None:
            yield from self._spans(start, stop, "0", "1")
            return
        at = bisect_right(self._stops, start)
        while start < stop:
            if at == len(self._starts) or self._starts[at] >= stop:
                yield start, stop
                return
            if start < self._starts[at]:
                yield start, self._starts[at]
            start = self._stops[at]
            at += 1

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yields its ranges [start, stop), ascending and apart."""
        if self.chunks is None:
            yield from zip(self._starts, self._stops, strict=True)
        elif self.chunks:
            yield from self._spans(min(self.chunks) * self.CHUNK, (max(self.chunks) + 1) * self.CHUNK, "1", "0")

    @property
    def ranges(self) -> int:
        """How many there are. As bits: the first bit of each is counted, chunk by chunk."""
        if self.chunks is None:
            return len(self._starts)
        found = sum((bits & ~(bits << 1)).bit_count() for bits in self.chunks.values())
        return found - sum(
            bits & 1 and self.chunks.get(number - 1, 0) >> self.CHUNK - 1 for number, bits in self.chunks.items()
        )

    def __bool__(self) -> bool:
        return self.count > 0

    # -- as bits ------------------------------------------------------------------------------------------------------

    def _to_bits(self) -> None:
        pairs = list(self.pairs())
        self.chunks, self.count = {}, 0
        self._starts, self._stops = [], []
        for start, stop in pairs:
            self._add_bits(start, stop)

    def _add_bits(self, start: int, stop: int) -> int:
        assert self.chunks is not None
        added = 0
        while start < stop:
            number, first = divmod(start, self.CHUNK)
            size = min(stop - start, self.CHUNK - first)
            mask = (1 << size) - 1 << first
            before = self.chunks.get(number, 0)
            added += size - (before & mask).bit_count()
            self.chunks[number] = before | mask
            start += size
        self.count += added
        return added

    def _remove_bits_below(self, limit: int) -> int:
        assert self.chunks is not None
        before, (number, first) = self.count, divmod(limit, self.CHUNK)
        for gone in [n for n in self.chunks if n < number]:
            self.count -= self.chunks.pop(gone).bit_count()
        bits = self.chunks.pop(number, 0)
        if kept := bits >> first << first:
            self.chunks[number] = kept
        self.count -= bits.bit_count() - kept.bit_count()
        if not self.chunks:
            self.chunks = None
        return before - self.count

    def _spans(self, start: int, stop: int, wanted: str, other: str) -> Iterator[tuple[int, int]]:
        """Ranges of equal bits, over the edges of chunks."""
        open_at = -1
        while start < stop:
            number, first = divmod(start, self.CHUNK)
            size = min(stop - start, self.CHUNK - first)
            assert self.chunks is not None
            window = self.chunks.get(number, 0) >> first & (1 << size) - 1
            text = format(window, f"0{size}b")[::-1]
            at = 0
            while at < size:
                if open_at < 0:
                    found = text.find(wanted, at)
                    if found < 0:
                        break
                    open_at, at = start + found, found
                found = text.find(other, at)
                if found < 0:
                    break
                yield open_at, start + found
                open_at, at = -1, found
            start += size
        if open_at >= 0:
            yield open_at, stop
