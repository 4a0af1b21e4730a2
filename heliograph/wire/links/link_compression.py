"""Compressed payloads on a link: bytes to bytes, of a size that is known before.

Is: codecs 1 (lz4 block) and 2 (zstd, level 1), bounded both ways. Isn't: a decision what is compressed
(`replicator.bandwidth.compression`), or a frame.
Invariants: exactly the size that was named comes out, at most UNPACKED_BYTES_MAX, or PeerError; a frame of zstd cannot
ask for a window larger than WINDOW_LOG_MAX allows.
Source: docs/protocols/links.md, "Compression"; RFC 8878 3.1.1.1 (the header of a frame).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam

from heliograph.model.errors import PeerError
from heliograph.wire.run import Buffer

LZ4, ZSTD = 1, 2
UNPACKED_BYTES_MAX = (5 << 20) + (128 << 10)
"""What a frame holds at most that is not compressed."""
WINDOW_LOG_MAX = 23
_LEVEL = 1
_MAGIC = b"\x28\xb5\x2f\xfd"


def pack(codec: int, data: Buffer) -> bytes:
    """`data` of one byte at least."""
    if codec == LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    assert codec == ZSTD
    return bytes(cramjam.zstd.compress(data, level=_LEVEL))


def unpack(codec: int, data: Buffer, size: int) -> bytearray:
    """The `size` bytes that were packed. Raises PeerError."""
    into: Callable[..., Any] | None = {LZ4: cramjam.lz4.decompress_block_into, ZSTD: cramjam.zstd.decompress_into}.get(
        codec
    )
    if into is None:
        raise PeerError(f"link: compression {codec} is not known here")
    if not 0 < size <= UNPACKED_BYTES_MAX:
        raise PeerError(f"link: {size} bytes, uncompressed; at most {UNPACKED_BYTES_MAX} are read")
    if codec == ZSTD:
        _check_window(data)
    out = bytearray(size)
    try:
        count = int(into(data, out))
    except (cramjam.DecompressionError, ValueError, OverflowError) as error:
        raise PeerError(f"link: a payload that cannot be decompressed: {error}") from error
    if count != size:
        raise PeerError(f"link: {count} bytes came out of a payload of {size}")
    return out


def _check_window(data: Buffer) -> None:
    """A few bytes can ask for 128 MiB of memory. A frame of a single segment asks for as much as it says that comes
    out.
    """
    head = bytes(memoryview(data)[:13])
    if len(head) < 6 or head[:4] != _MAGIC:
        raise PeerError("link: no frame of zstd")
    window = int.from_bytes(head[5 : 5 + (1 << (head[4] >> 6))], "little") if head[4] & 32 else 1 << 10 + (head[5] >> 3)
    if window > 1 << WINDOW_LOG_MAX:
        raise PeerError("link: a frame of zstd with a window that is too large")
