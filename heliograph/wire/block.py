"""Block: the bytes that a run becomes, wherever it is stored or sent to another region.

Is: encoding, checking, and decoding. Isn't: the run (`heliograph.wire.run`), or a look into an entry.
Invariants: what does not fit its checksum, or its own columns, raises CorruptData; the entries' bytes are never copied,
but for small blocks.

A block, big endian; columns that are absent cost nothing:

    0  u8  version (1, 2)       16 u64 ledger
    1  u8  columns (bits)       24 u64 first entry
    2  u16 count                32 u64 broker time, ms
    4  u32 size of the block    40 u64 index of the first message
    8  u32 size of the header   48 count x u32 lengths
    12 u32 crc32c               then, by bit: 1 counts u32, 2 flags u8, 4 origin, 8 origin checksums u32,
                                              16 producers, 32 transaction, 64 seal,
                                              128 leadership
    header, then the entries' bytes, one behind another; of a sealed run, the ciphertext of all entries that were
    sealed together, and its tag

    origin:      u32 region, u32 epoch, u64 incarnation, u64 origin time ms, u16 spans,
                 spans x (u64 ledger, u64 entry, u16 count)
    producers:   u16 segments, each: u16 name size, name, u16 count, u8 contiguous,
                 i64 first sequence | count x (i64 sequence, i64 highest)
    transaction: u64 coordinator, u64 number: of every entry of the run
    seal:        u64 data key, u64 salt, u64 first entry that was sealed,
                 u32 where this piece's entries begin in the opened bytes
    leadership:  u64 epoch with which it began, of its namespace when the run was first published

A sealed run is cut without its key: the piece keeps the whole ciphertext, and says where in it its entries lie
(`storage.sealing`).
Version 2 is a sealed run whose header is authenticated with its bytes, as it was when the run was whole, its checksum
being 0. A piece keeps that header, and differs from the whole block by its first entry, its count, and its checksum
alone: its columns are those of the whole run, of which it shows [first entry, first entry + count). The seal stands
before all other columns, in another form:

    seal:        u64 data key, u64 salt, u64 first entry that was sealed, u16 count that was sealed

The checksum covers the whole block but for its own four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.wire.run import COUNT_MAX, Buffer, Origin, ProducerSegment, Run, Seal, Span

SEAL_TAG_BYTES = 16
VERSION = 1
AUTHENTICATED = 2
"""The version of a block of a sealed run whose header is authenticated."""

_COUNTS, _FLAGS, _ORIGIN, _CHECKSUMS, _PRODUCERS, _TRANSACTION, _SEAL, _LEADERSHIP = 1, 2, 4, 8, 16, 32, 64, 128
_HEAD = struct.Struct(">BBHIIIQQQQ")
HEAD_BYTES = _HEAD.size
"""What every block begins with: enough for `peek_block`."""
_ORIGIN_HEAD = struct.Struct(">IIQQH")
_SPAN = struct.Struct(">QQH")
_TXN = struct.Struct(">QQ")
_SEAL_FIELDS = struct.Struct(">QQQI")
_AUTHENTICATED_SEAL = struct.Struct(">QQQH")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_CONSECUTIVE = struct.Struct(">HBq")
_PAIRS = struct.Struct(">HB")
_WHOLE_BELOW = 4096
"""A smaller block is one buffer: each buffer of a gathered write costs more than copying so little."""


@lru_cache(4096)
def _encode_name(name: str) -> bytes:
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def encode_block(run: Run, ledger: int, first: int) -> list[Buffer]:
    """The block of `run` at (ledger, first): header, then the entries' bytes, ready for one gathered write."""
    seal, body = run.seal, run.buffers() if run.seal is None else (run.body or b"",)
    if seal is not None and seal.header is not None:
        header = seal.header
        shown = run.count.to_bytes(2, "big"), header[4:24], first.to_bytes(8, "big"), header[32 : _HEAD.size]
        return _block(b"".join([header[:2], *shown]), header[_HEAD.size :], body)
    columns, rest = _columns(run)
    header_bytes = _HEAD.size + len(rest)
    size = header_bytes + (run.size_bytes if seal is None else len(body[0]))
    head = _HEAD.pack(VERSION, columns, run.count, size, header_bytes, 0, ledger, first, run.time_ms, run.first_index)
    return _block(head, rest, body)


def header_to_seal(run: Run, ledger: int, first: int, key: int, salt: int) -> bytes:
    """The header of the block that `run` becomes when it is sealed at (ledger, first), with a checksum of 0: what is
    authenticated with its bytes.
    """
    columns, rest = _columns(run)
    seal, count = _AUTHENTICATED_SEAL.pack(key, salt, first, run.count), run.count
    header_bytes = _HEAD.size + len(seal) + len(rest)
    size, times = header_bytes + run.size_bytes + SEAL_TAG_BYTES, (run.time_ms, run.first_index)
    head = _HEAD.pack(AUTHENTICATED, columns | _SEAL, count, size, header_bytes, 0, ledger, first, *times)
    return b"".join([head, seal, rest])


def _columns(run: Run) -> tuple[int, bytes]:
    """(bits, columns) of a block, with a seal as version 1 has it."""
    count = run.count
    columns = 0
    tail = [_U32.pack(run.lengths[0]) if count == 1 else struct.pack(f">{count}I", *run.lengths)]
    if run.counts is not None:
        columns |= _COUNTS
        tail.append(struct.pack(f">{count}I", *run.counts))
    if run.flags is not None:
        columns |= _FLAGS
        tail.append(bytes(run.flags))
    if run.origin is not None:
        columns |= _ORIGIN
        tail.append(_ORIGIN_HEAD.pack(*run.origin, run.origin_time_ms, len(run.spans)))
        tail += [_SPAN.pack(*span) for span in run.spans]
    if run.checksums is not None:
        columns |= _CHECKSUMS
        tail.append(struct.pack(f">{count}I", *run.checksums))
    if run.producers:
        columns |= _PRODUCERS
        tail.append(struct.pack(">H", len(run.producers)))
        for name, size, sequence, pairs in run.producers:
            tail.append(_encode_name(name))
            if pairs is None:
                tail.append(_CONSECUTIVE.pack(size, 1, sequence))
            else:
                tail.append(_PAIRS.pack(size, 0))
                tail.append(struct.pack(f">{2 * size}q", *(n for pair in pairs for n in pair)))
    if run.transaction is not None:
        columns |= _TRANSACTION
        tail.append(_TXN.pack(*run.transaction))
    if run.seal is not None:
        columns |= _SEAL
        tail.append(_SEAL_FIELDS.pack(*run.seal[:4]))
    if run.leadership:
        columns |= _LEADERSHIP
        tail.append(_U64.pack(run.leadership))
    return columns, b"".join(tail)


def _block(head: bytes, rest: bytes, body: Sequence[Buffer]) -> list[Buffer]:
    """With its checksum in the place of the one of `head`. rest: of the header."""
    size = int.from_bytes(head[4:8], "big")
    if size < _WHOLE_BELOW:
        checked = b"".join([head[16:], rest, *body])
        return [b"".join([head[:12], _U32.pack(crc32c.crc32c(checked, crc32c.crc32c(head[:12]))), checked])]
    crc = crc32c.crc32c(rest, crc32c.crc32c(head[16:], crc32c.crc32c(head[:12])))
    for part in body:
        crc = crc32c.crc32c(part, crc)
    return [head[:12], crc.to_bytes(4, "big"), head[16:], rest, *body]


def verify_block(block: Buffer) -> None:
    """Raises CorruptData where the checksum or the shape is wrong."""
    view = memoryview(block)
    if len(view) < _HEAD.size or view[0] not in (VERSION, AUTHENTICATED):
        raise CorruptData("block: too short, or of another version")
    size = int.from_bytes(view[4:8], "big")
    if size != len(view) or crc32c.crc32c(view[16:], crc32c.crc32c(view[:12])) != int.from_bytes(view[12:16], "big"):
        raise CorruptData("block: checksum mismatch")


def peek_block(block: Buffer) -> tuple[int, int, int]:
    """(ledger, first entry, count) of a block, or of its head, that was verified."""
    _, _, count, _, _, _, ledger, first, _, _ = _HEAD.unpack_from(block)
    return ledger, first, count


def is_sealed(head: Buffer) -> bool:
    """Whether the entries of a block are; `head`: its first bytes, at least two."""
    return bool(head[1] & _SEAL)


def decode_block(block: Buffer) -> tuple[int, int, Run]:
    """(ledger, first entry, run). The run's parts are views of `block`. Raises CorruptData."""
    verify_block(block)
    view = memoryview(block)
    version, columns, shown, size, header_bytes, _, ledger, begin, time_ms, first_index = _HEAD.unpack_from(view)
    at, count, first = _HEAD.size, shown, begin
    counts = flags = checksums = transaction = seal = None
    origin: Origin | None = None
    spans: list[Span] = []
    origin_time_ms = leadership = 0
    producers: list[ProducerSegment] = []
    try:
        if version == AUTHENTICATED:
            key, salt, first, count = _AUTHENTICATED_SEAL.unpack_from(view, at)
            at += _AUTHENTICATED_SEAL.size
            seal = Seal(key, salt, first, 0, _whole_header(view[:header_bytes], first, count))
        u32s = struct.Struct(f">{count}I")
        lengths = u32s.unpack_from(view, at)
        at += u32s.size
        if columns & _COUNTS:
            counts = u32s.unpack_from(view, at)
            at += u32s.size
        if columns & _FLAGS:
            flags = bytes(view[at : at + count])
            at += count
        if columns & _ORIGIN:
            region, epoch, incarnation, origin_time_ms, span_count = _ORIGIN_HEAD.unpack_from(view, at)
            origin = (region, epoch, incarnation)
            at += _ORIGIN_HEAD.size
            for _ in range(span_count):
                spans.append(_SPAN.unpack_from(view, at))
                at += _SPAN.size
        if columns & _CHECKSUMS:
            checksums = u32s.unpack_from(view, at)
            at += u32s.size
        if columns & _PRODUCERS:
            producers, at = _decode_producers(view, at)
        if columns & _TRANSACTION:
            transaction = _TXN.unpack_from(view, at)
            at += _TXN.size
        if columns & _SEAL and seal is None:
            seal = Seal(*_SEAL_FIELDS.unpack_from(view, at))
            at += _SEAL_FIELDS.size
        if columns & _LEADERSHIP:
            (leadership,) = _U64.unpack_from(view, at)
            at += _U64.size
    except struct.error as error:
        raise CorruptData(f"block: {error}") from error
    fits = (
        header_bytes + sum(lengths) == size
        if seal is None
        else header_bytes + seal.offset + sum(lengths) + SEAL_TAG_BYTES <= size
    )
    if at != header_bytes or not fits or not 1 <= count <= COUNT_MAX:
        raise CorruptData("block: columns and sizes disagree")
    if not first <= begin < begin + shown <= first + count:
        raise CorruptData(
            f"ledger {ledger}: at entry {begin} lies a piece of what was sealed as the {count} entries from {first} on"
        )
    run = Run(
        None,
        lengths,
        counts=counts,
        flags=flags,
        time_ms=time_ms,
        first_index=first_index,
        origin=origin,
        spans=tuple(spans),
        origin_time_ms=origin_time_ms,
        checksums=checksums,
        producers=tuple(producers),
        body=view[header_bytes:],
        transaction=transaction,
        leadership=leadership,
        seal=seal,
    )
    return ledger, begin, run if shown == count else run.cut(begin - first, begin - first + shown)


def _whole_header(header: memoryview, first: int, count: int) -> bytes:
    """What was authenticated, made of the header of a block that may be a piece."""
    whole = bytearray(header)
    whole[2:4], whole[12:16], whole[24:32] = count.to_bytes(2, "big"), bytes(4), first.to_bytes(8, "big")
    return bytes(whole)


def _decode_producers(view: memoryview, at: int) -> tuple[list[ProducerSegment], int]:
    producers: list[ProducerSegment] = []
    (segments,) = struct.unpack_from(">H", view, at)
    at += 2
    for _ in range(segments):
        (name_size,) = struct.unpack_from(">H", view, at)
        at += 2
        name = str(view[at : at + name_size], "utf-8", "replace")
        at += name_size
        size, contiguous = struct.unpack_from(">HB", view, at)
        at += 3
        if contiguous:
            (sequence,) = struct.unpack_from(">q", view, at)
            at += 8
            producers.append((name, size, sequence, None))
        else:
            flat = struct.unpack_from(f">{2 * size}q", view, at)
            at += 16 * size
            pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
            producers.append((name, size, pairs[0][0] if pairs else 0, pairs))
    return producers, at
