"""The object of an offloaded ledger, byte by byte.

Is: head, index, and footer, and the cutting of a range of an object into runs. Isn't: I/O.
Invariants: an object says whose it is in its head and again behind its index; nothing is taken from it whose checksum,
ledger, and place do not fit.

Big endian; checksums are crc32c:

    head     0  4s  "HELT"        8  u64 ledger     24 16s attempt
             4  u8  version (1)   16 u64 entries    40 u32 checksum of the 40 bytes before
             5  3x  0
    blocks   one behind another, entry 0 first, without a hole, each as `heliograph.wire.block` draws it: as in an
             entry log
    index    0  u32 rows          4  rows x (u64 first entry, u64 offset in the object): each the start of a block,
                                     entry 0's among them
             then u16 size and UTF-8 of the topic's full name
    footer   0  4s  "HELF"        8  u64 ledger     24 u64 offset of the index   36 u32 checksum of the index
             4  u8  version (1)   16 u64 entries    32 u32 size of the index     40 u32 checksum of the 40 bytes before
             5  3x  0
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.wire.block import decode_block
from heliograph.wire.run import BYTES_MAX, Buffer, Run

VERSION = 1
_HEAD = struct.Struct(">4sB3xQQ16s")
_FOOTER = struct.Struct(">4sB3xQQQII")
_CRC = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size
FOOTER_BYTES = _FOOTER.size + _CRC.size
_BLOCK_HEAD = 48
BLOCK_BYTES_MAX = 64 * BYTES_MAX
"""Above any block that is written; a size beyond it is damage."""


def encode_head(ledger: int, entries: int, attempt: str) -> bytes:
    head = _HEAD.pack(b"HELT", VERSION, ledger, entries, bytes.fromhex(attempt))
    return head + _CRC.pack(crc32c.crc32c(head))


def check_head(head: Buffer, ledger: int, entries: int, attempt: str) -> None:
    """Raises CorruptData where it is not this ledger's, of this attempt."""
    if bytes(head[:HEAD_BYTES]) != encode_head(ledger, entries, attempt):
        raise CorruptData("its head is damaged, or another object's")


class Index:
    """Where in an object the entries of one ledger lie."""

    __slots__ = ("_firsts", "_offsets", "end", "entries", "ledger", "topic")

    def __init__(self, ledger: int, entries: int, topic: str, rows: Sequence[tuple[int, int]], end: int) -> None:
        """rows: (first entry, offset), ascending, the first of entry 0. end: offset behind the last block."""
        self.ledger, self.entries, self.topic, self.end = ledger, entries, topic, end
        self._firsts = array("Q", (first for first, _ in rows))
        self._offsets = array("Q", (offset for _, offset in rows))

    def rows(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._offsets, strict=True))

    def range_of(self, entry: int, size_bytes: int) -> tuple[int, int, int]:
        """(first entry, start, stop): the bytes from the row that holds `entry` on, about `size_bytes` of them, up to a
        row or the end.
        """
        at = bisect_right(self._firsts, entry) - 1
        start = self._offsets[at]
        stop = bisect_right(self._offsets, start + size_bytes) - 1
        stop = max(stop, at + 1)
        return self._firsts[at], start, self._offsets[stop] if stop < len(self._offsets) else self.end

    def behind(self, entry: int, size_bytes: int) -> int:
        """The entry behind that range."""
        stop = self.range_of(entry, size_bytes)[2]
        at = bisect_left(self._offsets, stop)
        return self._firsts[at] if at < len(self._firsts) else self.entries

    def encode(self) -> bytes:
        """The index and the footer."""
        topic = self.topic.encode()
        rows = [number for row in self.rows() for number in row]
        index = struct.pack(f">I{len(rows)}QH", len(self._firsts), *rows, len(topic)) + topic
        footer = _FOOTER.pack(b"HELF", VERSION, self.ledger, self.entries, self.end, len(index), crc32c.crc32c(index))
        return index + footer + _CRC.pack(crc32c.crc32c(footer))

    @classmethod
    def decode(cls, tail: Buffer, object_bytes: int) -> Index:
        """tail: the last bytes of the object, the whole index among them. Raises CorruptData."""
        view = memoryview(tail)
        if len(view) < FOOTER_BYTES:
            raise CorruptData("its footer is missing")
        footer = view[-FOOTER_BYTES:]
        if crc32c.crc32c(footer[: _FOOTER.size]) != _CRC.unpack(footer[_FOOTER.size :])[0]:
            raise CorruptData("its footer is damaged")
        magic, version, ledger, entries, end, size, checksum = _FOOTER.unpack_from(footer)
        if magic != b"HELF" or version != VERSION:
            raise CorruptData(f"it has format {version}; this version reads format {VERSION}")
        index = view[-FOOTER_BYTES - size : -FOOTER_BYTES]
        if len(index) != size or end + size + FOOTER_BYTES != object_bytes or crc32c.crc32c(index) != checksum:
            raise CorruptData("its index is damaged")
        try:
            (rows,) = struct.unpack_from(">I", index)
            flat = struct.unpack_from(f">{2 * rows}Q", index, 4)
            (name_bytes,) = struct.unpack_from(">H", index, 4 + 16 * rows)
            topic = str(index[6 + 16 * rows : 6 + 16 * rows + name_bytes], "utf-8")
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptData(f"its index cannot be read: {error}") from error
        firsts, offsets = flat[::2], flat[1::2]
        if (
            not rows
            or firsts[0] != 0
            or offsets[0] != HEAD_BYTES
            or sorted(set(firsts)) != list(firsts)
            or sorted(set(offsets)) != list(offsets)
        ):
            raise CorruptData("the rows of its index are out of order")
        if firsts[-1] >= entries or offsets[-1] >= end:
            raise CorruptData("its index points beyond its end")
        return cls(ledger, entries, topic, list(zip(firsts, offsets, strict=True)), end)


class IndexWriter:
    """Rows as blocks are written, one for each `every_bytes`."""

    def __init__(self, every_bytes: int) -> None:
        self.offset, self.entries = HEAD_BYTES, 0
        self._rows: list[tuple[int, int]] = []
        self._every = every_bytes

    def add(self, entries: int, size_bytes: int) -> None:
        """A block with so many entries comes next."""
        if not self._rows or self.offset - self._rows[-1][1] >= self._every:
            self._rows.append((self.entries, self.offset))
        self.offset += size_bytes
        self.entries += entries

    def finish(self, ledger: int, topic: str) -> bytes:
        """The index and the footer."""
        return Index(ledger, self.entries, topic, self._rows, self.offset).encode()


def cut_blocks(part: Buffer, ledger: int, first: int) -> list[tuple[int, Run]]:
    """[(first entry, run)] of a range of an object that starts with the block of entry `first` and ends with a block.
    Raises CorruptData.
    """
    view = memoryview(part)
    runs: list[tuple[int, Run]] = []
    at = 0
    while at < len(view):
        size = int.from_bytes(view[at + 4 : at + 8], "big")
        if not _BLOCK_HEAD <= size <= min(BLOCK_BYTES_MAX, len(view) - at):
            raise CorruptData(f"the block of entry {first} is cut off, or its size is damaged")
        found, start, run = decode_block(view[at : at + size])
        if found != ledger or start != first:
            raise CorruptData(f"where entry {first} of ledger {ledger} should be lies entry {start} of ledger {found}")
        runs.append((first, run))
        first += run.count
        at += size
    return runs
