"""Protobuf varints from tables: the fastest way that pure Python has to write many of them.

Is: encoding and decoding of unsigned varints, and columns of consecutive ones. Isn't: a protobuf codec.
A column of consecutive numbers whose upper bits agree is a slice of a table and one constant: no work an item.
"""

from __future__ import annotations

from heliograph.model.errors import PeerError

_ONE = [bytes([n]) for n in range(128)]
_SHORT = _ONE + [bytes([n & 127 | 128, n >> 7]) for n in range(128, 16384)]
"""The whole varint of 0 to 16,383."""
_LOW = [bytes([n & 127 | 128, n >> 7 | 128]) for n in range(16384)]
"""The first two bytes of a longer varint, by its low 14 bits."""

U64_MAX = (1 << 64) - 1


def varint(number: int) -> bytes:
    """0 to 2**64 - 1; a negative number as protobuf's int64 writes it (ten bytes)."""
    if 0 <= number < 16384:
        return _SHORT[number]
    number &= U64_MAX
    if number < 16384:
        return _SHORT[number]
    if number < 1 << 28:
        return _LOW[number & 16383] + _SHORT[number >> 14]
    return _LOW[number & 16383] + varint(number >> 14)


def column_limit(start: int) -> int:
    """The first number above `start` that cannot share a column with it: it has another length or other upper bits."""
    return 128 if start < 128 else (start >> 14) + 1 << 14


def column(start: int, count: int) -> tuple[list[bytes], bytes]:
    """(first bytes of each, what follows all of them) of `start`, `start` + 1, ...; start + count <=
    column_limit(start).
    """
    low = start & 16383
    if start < 16384:
        return _SHORT[low : low + count], b""
    return _LOW[low : low + count], varint(start >> 14)


def read_varint(block: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """(number, index behind it). Raises PeerError where it is longer than ten bytes; IndexError where the block
    ends.
    """
    byte = block[at]
    if byte < 128:
        return byte, at + 1
    number, shift = byte & 127, 7
    while True:
        at += 1
        byte = block[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number & U64_MAX, at + 1
        shift += 7
        if shift > 63:
            raise PeerError("a varint of more than ten bytes")


def signed(number: int) -> int:
    """A u64 of the protocol as what it means: all bits set is -1."""
    return number - (1 << 64) if number >> 63 else number
