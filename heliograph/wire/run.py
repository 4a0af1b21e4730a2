"""Run: the consecutive entries of one topic that travel together, and the block of bytes that it becomes.

Is: the value that goes from a socket's read to the bookies, the cache, consumers, and links; cutting it; its encoding.
Isn't: one object an entry. What an entry holds (checksum, metadata, payload as the client sent them) is never looked into here.
Invariants: every sub-range of a run is itself a valid run; `size_bytes` is the sum of `lengths`; `1 <= count <= 512`.

A block, big endian; columns that are absent cost nothing:

    0  u8  version (1)          16 u64 ledger
    1  u8  columns (bits)       24 u64 first entry
    2  u16 count                32 u64 broker time, ms
    4  u32 size of the block    40 u64 index of the first message
    8  u32 size of the header   48 count x u32 lengths
    12 u32 crc32c               then, by bit: 1 counts u32, 2 flags u8, 4 origin, 8 origin checksums u32, 16 producers, 32 transaction
    64 seal
    header, then the entries' bytes, one behind another; of a sealed run, the ciphertext of all entries that were sealed together, and its tag

    origin:    u32 region, u32 epoch, u64 incarnation, u64 origin time ms, u16 spans, spans x (u64 ledger, u64 entry, u16 count)
    producers: u16 segments, each: u16 name size, name, u16 count, u8 contiguous, i64 first sequence | count x (i64 sequence, i64 highest)
    transaction: u64 coordinator, u64 number: of every entry of the run
    seal:      u64 data key, u64 salt, u64 first entry that was sealed, u32 where this piece's entries begin in the opened bytes

A sealed run is cut without its key: the piece keeps the whole ciphertext, and says where in it its entries lie (`storage.sealing`).
The checksum covers the whole block but for its own four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import crc32c

from heliograph.model.errors import CorruptData

Buffer = bytes | bytearray | memoryview
Origin = tuple[int, int, int]
"""(region number, region epoch, incarnation)."""
Span = tuple[int, int, int]
"""(ledger, first entry, count): consecutive coordinates."""
TxnId = tuple[int, int]
"""(coordinator, number): Pulsar's most and least bits of a transaction."""
ProducerSegment = tuple[str, int, int, tuple[tuple[int, int], ...] | None]
"""(producer name, count, first sequence, pairs of (sequence, highest sequence) or None where each entry is one message and sequences are consecutive)."""



class Seal(NamedTuple):
    """How the bytes of a sealed run are opened. Every piece that is cut of it has the same one, but for `offset`."""

    key: int
    """Number of the data key."""
    salt: int
    """Of the writer: with the ledger it makes the key that is used once for each `first`."""
    first: int
    """Entry id of the first entry that was sealed."""
    offset: int
    """Where the first entry of this piece begins in the opened bytes."""


SEAL_TAG_BYTES = 16
VERSION = 1
COUNT_MAX = 512
BYTES_MAX = 1 << 20

FLAG_HIDDEN = 1
FLAG_MARKER = 2
FLAG_TRANSACTIONAL = 4
FLAG_KAFKA = 8
"""Its payload is a Kafka record batch: clients see it, each protocol's in its own form (`heliograph.wire.kafka_entries`)."""
FLAG_TREE = 16
"""With FLAG_HIDDEN: by which ways the entries behind it go to other regions (`replicator.trees`)."""
FLAG_PASSING = 32
"""With FLAG_HIDDEN: an entry for regions further down that is not meant for this one."""

_COUNTS, _FLAGS, _ORIGIN, _CHECKSUMS, _PRODUCERS, _TRANSACTION, _SEAL = 1, 2, 4, 8, 16, 32, 64
_HEAD = struct.Struct(">BBHIIIQQQQ")
_PRE_CRC = struct.Struct(">BBHII")
_ORIGIN_HEAD = struct.Struct(">IIQQH")
_SPAN = struct.Struct(">QQH")
_TXN = struct.Struct(">QQ")
_SEAL_FIELDS = struct.Struct(">QQQI")
_U32 = struct.Struct(">I")
_CONSECUTIVE = struct.Struct(">HBq")
_PAIRS = struct.Struct(">HB")
_JOIN_BELOW = 8192
_WHOLE_BELOW = 4096
"""A smaller block is one buffer: each buffer of a gathered write costs more than copying so little."""


class Run:
    """Columns for `count` entries. Immutable once built.

    parts: the entries' bytes, one buffer each (from the checksum magic on, without the client's command); None where `body` holds them joined.
    lengths: bytes of each entry.       counts: messages in each entry, or None where each holds one.
    flags: FLAG_* of each entry, or None where all are 0.
    time_ms: broker time.               first_index: index of the first message in the topic.
    origin: of a replicated run; None where it was first published here, and its coordinate is its position.
    spans: coordinates of a replicated run, as runs of consecutive ones.      origin_time_ms: broker time at the origin.
    checksums: crc32c of each entry as it was first published, of a replicated run.
    producers: who published them, as run-length segments; may be empty (hidden entries).
    transaction: that all of them belong to, or that they end (a marker); None: none.
    seal: None where the bytes are the entries'. A sealed run can be cut and stored; whoever wants its entries opens it first.
    """

    __slots__ = (
        "_parts",
        "body",
        "checksums",
        "count",
        "counts",
        "first_index",
        "flags",
        "lengths",
        "origin",
        "origin_time_ms",
        "producers",
        "seal",
        "size_bytes",
        "spans",
        "time_ms",
        "transaction",
    )

    def __init__(
        self,
        parts: Sequence[Buffer] | None,
        lengths: Sequence[int],
        *,
        counts: Sequence[int] | None = None,
        flags: Sequence[int] | None = None,
        time_ms: int = 0,
        first_index: int = 0,
        origin: Origin | None = None,
        spans: tuple[Span, ...] = (),
        origin_time_ms: int = 0,
        checksums: Sequence[int] | None = None,
        producers: tuple[ProducerSegment, ...] = (),
        body: Buffer | None = None,
        transaction: TxnId | None = None,
        seal: Seal | None = None,
    ) -> None:
        assert parts is not None or body is not None
        self._parts, self.lengths, self.count, self.size_bytes = parts, lengths, len(lengths), sum(lengths)
        self.counts, self.flags = counts, flags
        self.time_ms, self.first_index = time_ms, first_index
        self.origin, self.spans, self.origin_time_ms, self.checksums = origin, spans, origin_time_ms, checksums
        self.producers = producers
        self.transaction = transaction
        self.body = body
        self.seal = seal

    @property
    def parts(self) -> Sequence[Buffer]:
        """The entries' bytes, one buffer each; views of `body` are cut when they are first asked for."""
        if self._parts is None:
            assert self.body is not None
            if self.seal is not None:
                raise CorruptData(f"the entries are sealed with data key {self.seal.key:016x}, and were not opened")
            view, ends = memoryview(self.body), accumulate(self.lengths)
            self._parts = [view[end - size : end] for end, size in zip(ends, self.lengths, strict=True)]
        return self._parts

    @property
    def messages(self) -> int:
        """How many messages the entries hold together."""
        return self.count if self.counts is None else sum(self.counts)

    def messages_before(self, index: int) -> int:
        return index if self.counts is None else sum(self.counts[:index])

    def buffers(self) -> Sequence[Buffer]:
        """The entries' bytes for a gathered write: one joined buffer where entries are small, else the parts."""
        if self.body is None and self.count > 1 and self.size_bytes < _JOIN_BELOW * self.count:
            self.own_bytes()
        return self.parts if self.body is None else (self.body,)

    def own_bytes(self) -> None:
        """Copies the entries into one buffer of this run's own, so that it keeps no received block alive."""
        self.body, self._parts = b"".join(self.parts) if self.seal is None else bytes(self.body or b""), None

    def coordinate(self, index: int) -> tuple[int, int]:
        """Where entry `index` of a replicated run was first published: (ledger, entry)."""
        for ledger, first, count in self.spans:
            if index < count:
                return ledger, first + index
            index -= count
        raise IndexError("beyond the run")

    def cut(self, start: int, stop: int) -> Run:
        """The entries [start, stop) as a run of their own; this very run where that is all of it."""
        if start == 0 and stop == self.count:
            return self
        assert 0 <= start < stop <= self.count
        seal = self.seal
        return Run(
            self.parts[start:stop] if seal is None else None,
            self.lengths[start:stop],
            counts=None if self.counts is None else self.counts[start:stop],
            flags=None if self.flags is None else self.flags[start:stop],
            time_ms=self.time_ms,
            first_index=self.first_index + self.messages_before(start),
            origin=self.origin,
            spans=_cut_spans(self.spans, start, stop),
            origin_time_ms=self.origin_time_ms,
            checksums=None if self.checksums is None else self.checksums[start:stop],
            producers=_cut_producers(self.producers, start, stop),
            transaction=self.transaction,
            body=None if seal is None else self.body,
            seal=None if seal is None else seal._replace(offset=seal.offset + sum(self.lengths[:start])),
        )

    def select(self, keep: Sequence[int]) -> Run:
        """The entries at the indexes `keep` (ascending, at least one). First index and spans follow; of local runs, spans must be set first."""
        pieces: list[tuple[int, int]] = []
        for index in keep:
            if pieces and pieces[-1][1] == index:
                pieces[-1] = (pieces[-1][0], index + 1)
            else:
                pieces.append((index, index + 1))
        return join([self.cut(start, stop) for start, stop in pieces])

    def as_replicated(self, origin: Origin, ledger: int, first: int, checksums: Sequence[int]) -> Run:
        """A run that was first published here at (ledger, first), as it goes to another region."""
        assert self.seal is None
        return Run(
            self._parts,
            self.lengths,
            counts=self.counts,
            flags=self.flags,
            time_ms=self.time_ms,
            first_index=self.first_index,
            origin=origin,
            spans=((ledger, first, self.count),),
            origin_time_ms=self.time_ms,
            checksums=checksums,
            producers=self.producers,
            body=self.body,
            transaction=self.transaction,
        )

    def with_parts(self, parts: Sequence[Buffer], *, flags: Sequence[int] | None, body: Buffer | None = None) -> Run:
        """The same entries in other bytes: one part for each of them; everything else is as it was."""
        return Run(
            parts,
            [len(part) for part in parts],
            counts=self.counts,
            flags=flags,
            time_ms=self.time_ms,
            first_index=self.first_index,
            origin=self.origin,
            spans=self.spans,
            origin_time_ms=self.origin_time_ms,
            checksums=self.checksums,
            producers=self.producers,
            body=body,
            transaction=self.transaction,
        )

    def flagged(self, flags: Sequence[int] | None) -> Run:
        """The same entries with other flags, in no transaction: as they are shown to a reader. Nothing is copied."""
        assert self.seal is None
        return Run(
            self._parts,
            self.lengths,
            counts=self.counts,
            flags=flags,
            time_ms=self.time_ms,
            first_index=self.first_index,
            origin=self.origin,
            spans=self.spans,
            origin_time_ms=self.origin_time_ms,
            checksums=self.checksums,
            producers=self.producers,
            body=self.body,
        )

    def with_body(self, body: Buffer, seal: Seal | None) -> Run:
        """The same entries, sealed or opened; everything else is as it was."""
        return Run(
            None,
            self.lengths,
            counts=self.counts,
            flags=self.flags,
            time_ms=self.time_ms,
            first_index=self.first_index,
            origin=self.origin,
            spans=self.spans,
            origin_time_ms=self.origin_time_ms,
            checksums=self.checksums,
            producers=self.producers,
            transaction=self.transaction,
            body=body,
            seal=seal,
        )


def join(runs: Sequence[Run]) -> Run:
    """Runs of one origin and transaction, one behind another, as one. The caller keeps COUNT_MAX and BYTES_MAX. Index and times are the first one's."""
    if len(runs) == 1:
        return runs[0]
    head = runs[0]
    parts: list[Buffer] = []
    lengths: list[int] = []
    spans: list[Span] = []
    producers: list[ProducerSegment] = []
    for run in runs:
        parts += run.parts
        lengths += run.lengths
        spans += run.spans
        producers += run.producers
    return Run(
        parts,
        lengths,
        counts=None if all(r.counts is None for r in runs) else [c for r in runs for c in (r.counts or [1] * r.count)],
        flags=None if all(r.flags is None for r in runs) else [f for r in runs for f in (r.flags or [0] * r.count)],
        time_ms=head.time_ms,
        first_index=head.first_index,
        origin=head.origin,
        spans=_merge_spans(spans),
        origin_time_ms=head.origin_time_ms,
        checksums=None if head.checksums is None else [c for r in runs for c in (r.checksums or ())],
        producers=_merge_producers(producers),
        transaction=head.transaction,
    )


def _cut_spans(spans: tuple[Span, ...], start: int, stop: int) -> tuple[Span, ...]:
    out: list[Span] = []
    at = 0
    for ledger, first, count in spans:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            out.append((ledger, first + low - at, high - low))
        at += count
    return tuple(out)


def _merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    out: list[Span] = []
    for ledger, first, count in spans:
        if out and out[-1][0] == ledger and out[-1][1] + out[-1][2] == first:
            out[-1] = (ledger, out[-1][1], out[-1][2] + count)
        else:
            out.append((ledger, first, count))
    return tuple(out)


def _cut_producers(producers: tuple[ProducerSegment, ...], start: int, stop: int) -> tuple[ProducerSegment, ...]:
    out: list[ProducerSegment] = []
    at = 0
    for name, count, first, pairs in producers:
        low, high = max(start, at), min(stop, at + count)
        if low < high:
            if pairs is None:
                out.append((name, high - low, first + low - at, None))
            else:
                kept = pairs[low - at : high - at]
                out.append((name, high - low, kept[0][0], kept))
        at += count
    return tuple(out)


def _merge_producers(producers: Iterable[ProducerSegment]) -> tuple[ProducerSegment, ...]:
    out: list[ProducerSegment] = []
    for name, count, first, pairs in producers:
        if out and out[-1][0] == name and pairs is None and out[-1][3] is None and out[-1][2] + out[-1][1] == first:
            out[-1] = (name, out[-1][1] + count, out[-1][2], None)
        else:
            out.append((name, count, first, pairs))
    return tuple(out)


# -- blocks -----------------------------------------------------------------------------------------------------------


@lru_cache(4096)
def _encode_name(name: str) -> bytes:
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def encode_block(run: Run, ledger: int, first: int) -> list[Buffer]:
    """The block of `run` at (ledger, first): header, then the entries' bytes, ready for one gathered write."""
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
    if run.seal is None:
        body, body_bytes = run.buffers(), run.size_bytes
    else:
        assert run.body is not None
        columns |= _SEAL
        tail.append(_SEAL_FIELDS.pack(*run.seal))
        body, body_bytes = (run.body,), len(run.body)
    rest = b"".join(tail)
    header_bytes = _HEAD.size + len(rest)
    block_bytes = header_bytes + body_bytes
    fixed = _HEAD.pack(VERSION, columns, count, block_bytes, header_bytes, 0, ledger, first, run.time_ms, run.first_index)
    if block_bytes < _WHOLE_BELOW:
        checked = b"".join([fixed[16:], rest, *body])
        return [b"".join([fixed[:12], _U32.pack(crc32c.crc32c(checked, crc32c.crc32c(fixed[:12]))), checked])]
    crc = crc32c.crc32c(rest, crc32c.crc32c(fixed[16:], crc32c.crc32c(fixed[:12])))
    for part in body:
        crc = crc32c.crc32c(part, crc)
    return [fixed[:12], crc.to_bytes(4, "big"), fixed[16:], rest, *body]


def verify_block(block: Buffer) -> None:
    """Raises CorruptData where the checksum or the shape is wrong."""
    view = memoryview(block)
    if len(view) < _HEAD.size or view[0] != VERSION:
        raise CorruptData("block: too short, or of another version")
    size = int.from_bytes(view[4:8], "big")
    if size != len(view) or crc32c.crc32c(view[16:], crc32c.crc32c(view[:12])) != int.from_bytes(view[12:16], "big"):
        raise CorruptData("block: checksum mismatch")


def peek_block(block: Buffer) -> tuple[int, int, int]:
    """(ledger, first entry, count) of a block whose checksum was verified."""
    _, _, count, _, _, _, ledger, first, _, _ = _HEAD.unpack_from(block)
    return ledger, first, count


def is_sealed(head: Buffer) -> bool:
    """Whether the entries of a block are; `head`: its first bytes, at least two."""
    return bool(head[1] & _SEAL)


def decode_block(block: Buffer) -> tuple[int, int, Run]:
    """(ledger, first entry, run). The run's parts are views of `block`. Raises CorruptData."""
    verify_block(block)
    view = memoryview(block)
    _, columns, count, size, header_bytes, _, ledger, first, time_ms, first_index = _HEAD.unpack_from(view)
    at = _HEAD.size
    counts = flags = checksums = transaction = seal = None
    origin: Origin | None = None
    spans: list[Span] = []
    origin_time_ms = 0
    producers: list[ProducerSegment] = []
    try:
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
        if columns & _SEAL:
            seal = Seal(*_SEAL_FIELDS.unpack_from(view, at))
            at += _SEAL_FIELDS.size
    except struct.error as error:
        raise CorruptData(f"block: {error}") from error
    fits = header_bytes + sum(lengths) == size if seal is None else header_bytes + seal.offset + sum(lengths) + SEAL_TAG_BYTES <= size
    if at != header_bytes or not fits or not 1 <= count <= COUNT_MAX:
        raise CorruptData("block: columns and sizes disagree")
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
        seal=seal,
    )
    return ledger, first, run


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
