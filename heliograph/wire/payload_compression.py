"""What Kafka's and Pulsar's clients compress with: the same four algorithms, in each protocol's own framing.

Is: bytes to bytes, bounded. Isn't: needed where a batch goes out as it came in.
Invariants: nothing larger than OUTPUT_BYTES_MAX comes out, whatever went in, and of Pulsar's just as much as its
metadata says; what cannot be decompressed raises CorruptData.
Kafka: 1 gzip, 2 snappy (in chunks, as its Java clients write it, or bare), 3 lz4 frames, 4 zstd. Pulsar: 1 lz4 block, 2
zlib, 3 zstd, 4 bare snappy.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from heliograph.model.errors import CorruptData
from heliograph.wire.run import Buffer

OUTPUT_BYTES_MAX = 64 << 20
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = _XERIAL + struct.pack(">II", 1, 1)
_XERIAL_CHUNK = 32 << 10
PULSAR_OF_KAFKA = {NONE: 0, GZIP: 2, SNAPPY: 4, LZ4: 1, ZSTD: 3}


class TooLarge(Exception):
    """More comes out than the caller takes; others may."""


def decompress(codec: int, data: Buffer, most: int = OUTPUT_BYTES_MAX) -> bytes:
    """What Kafka's clients compressed, if it is at most so many bytes. Raises CorruptData, and TooLarge where `most` is
    what refuses it.
    """
    try:
        return _decompressed(codec, bytes(data), most)
    except TooLarge as error:
        if most < OUTPUT_BYTES_MAX:
            raise
        raise CorruptData(str(error)) from error


def _decompressed(codec: int, raw: bytes, most: int) -> bytes:
    if codec == NONE:
        return raw
    if codec == GZIP:
        return _gunzip(raw, most)
    if codec == SNAPPY:
        return _xerial(raw, most) if raw.startswith(_XERIAL) else _snappy(raw, most)
    if codec == LZ4:
        return _growing(cramjam.lz4.decompress_into, raw, "lz4", most)
    if codec == ZSTD:
        return _growing(cramjam.zstd.decompress_into, raw, "zstd", most)
    raise CorruptData(f"compression {codec} is not known")


def compress(codec: int, data: bytes) -> bytes:
    """As Kafka's clients read it."""
    if codec == GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        chunks = [
            bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_CHUNK]))
            for at in range(0, len(data), _XERIAL_CHUNK)
        ]
        return _XERIAL_HEAD + b"".join(len(chunk).to_bytes(4, "big") + chunk for chunk in chunks)
    if codec == LZ4:
        return bytes(cramjam.lz4.compress(data))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return data


def decompress_pulsar(codec: int, data: Buffer, size: int) -> bytes:
    """What Pulsar's clients compressed, exactly `size` bytes of it. Raises CorruptData."""
    raw = bytes(data)
    if codec == 0:
        return raw
    if not 0 <= size <= OUTPUT_BYTES_MAX:
        raise CorruptData(f"an entry of {size} bytes, uncompressed; at most {OUTPUT_BYTES_MAX} are read")
    out = _inflated(raw, size) if codec == 2 else _of_one_block(codec, raw, size)
    if len(out) != size:
        raise CorruptData(f"an entry that has not the {size} bytes, uncompressed, that its metadata says")
    return out


def _inflated(raw: bytes, size: int) -> bytes:
    """At most one byte more than `size`. Pulsar's Java client flushes its streams, and never ends them."""
    try:
        return zlib.decompressobj(15).decompress(raw, size + 1)
    except zlib.error as error:
        raise CorruptData(f"an entry that cannot be decompressed: {error}") from error


def _of_one_block(codec: int, raw: bytes, size: int) -> bytes:
    into: dict[int, Callable[..., Any]] = {
        1: cramjam.lz4.decompress_block_into,
        3: cramjam.zstd.decompress_into,
        4: cramjam.snappy.decompress_raw_into,
    }
    if codec not in into:
        raise CorruptData(f"compression {codec} is not known")
    out = bytearray(size)
    try:
        count = int(into[codec](raw, out))
    except (cramjam.DecompressionError, ValueError) as error:
        raise CorruptData(f"an entry that cannot be decompressed: {error}") from error
    return bytes(out[:count])


def compress_pulsar(codec: int, data: bytes) -> bytes:
    """As Pulsar's clients read it."""
    if codec == 1:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if codec == 2:
        return zlib.compress(data)
    if codec == 3:
        return bytes(cramjam.zstd.compress(data))
    if codec == 4:
        return bytes(cramjam.snappy.compress_raw(data))
    return data


def _gunzip(data: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(31)
    try:
        out = unpacker.decompress(data, most)
    except zlib.error as error:
        raise CorruptData(f"bytes that cannot be decompressed: {error}") from error
    if not unpacker.eof:
        if len(out) >= most:
            raise TooLarge(f"gzip: more than {most} bytes, uncompressed")
        raise CorruptData("compressed bytes that end early")
    return out


def _snappy(data: bytes, most: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > most:
            raise TooLarge(f"snappy: {size} bytes, uncompressed; at most {most} are read")
        return bytes(cramjam.snappy.decompress_raw(data))
    except (cramjam.DecompressionError, ValueError) as error:
        raise CorruptData(f"snappy: {error}") from error


def _xerial(data: bytes, most: int) -> bytes:
    out: list[bytes] = []
    at, total = len(_XERIAL_HEAD), 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if size > len(data) - at:
            raise CorruptData("snappy: a chunk that is larger than what is there")
        out.append(_snappy(data[at : at + size], most - total))
        at += size
        total += len(out[-1])
    return b"".join(out)


def _growing(into: Callable[..., Any], data: bytes, name: str, most: int) -> bytes:
    """Into a buffer that is doubled until it is large enough: a few bytes can claim to be very many."""
    size = max(4096, 4 * len(data))
    while True:
        out = bytearray(min(size, most))
        try:
            return bytes(out[: int(into(data, out))])
        except (cramjam.DecompressionError, ValueError) as error:
            if "whole buffer" not in str(error):
                raise CorruptData(f"{name}: {error}") from error
            if size >= most:
                raise TooLarge(f"{name}: more than {most} bytes, uncompressed") from error
        size *= 4
