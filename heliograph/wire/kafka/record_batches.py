"""Record batches of Kafka: what is looked at of each, and their records where they must be converted.

Is: checking a batch of format v2; records to and from all three formats. Isn't: compression (`payload_compression`), or
entries (`entry_conversion`).
Invariants: whatever bytes come, CorruptData is all that is raised; a batch that `check_batch` passes has as many
offsets as it says records.
Source: Kafka protocol guide, "Record batch"; docs/protocols/kafka.md, "Records".

    v2      i64 base offset | i32 length | i32 leader epoch | i8 2 | u32 crc32c of what follows | i16 attributes |
            i32 last offset delta | i64 first time | i64 highest time | i64 producer | i16 epoch | i32 sequence |
            i32 count | records
    v0, v1  i64 offset | i32 length | u32 crc32 of what follows | i8 0 or 1 | i8 attributes | [v1: i64 time] |
            key | value; compressed ones nest in a value
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.wire.payload_compression import GZIP, LZ4, NONE, OUTPUT_BYTES_MAX, ZSTD, TooLarge, compress, decompress
from heliograph.wire.run import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
PREFIX = struct.Struct(">qii")
"""Base offset, length, leader epoch: outside the checksum, and set on the way out."""
_AFTER_CRC = 21
_OLD_HEAD = struct.Struct(">qiIbb")
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 7, 8, 16, 32
RECORD_BYTES_MIN = 7
"""Its size, attributes, time, offset, key, value, and headers, a byte each."""
RECORDS_MAX = 1 << 18
"""A batch of more records is not taken, nor read: it would hold up everybody else."""
EXPANDED_BYTES_MAX = 16 << 20
"""Compressed messages of an old set have no more bytes than that together."""
_STARTS = {GZIP: b"\x1f\x8b", LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
"""What compressed records begin with; they are not opened when they come."""
NO_PRODUCER = -1
NO_TIME = -1

Headers = tuple[tuple[bytes, bytes | None], ...]
Record = tuple[int, bytes | None, bytes | None, Headers]
"""(time ms, key, value, headers)."""


class BatchHeader(NamedTuple):
    """What stands in the header of a v2 batch. `offsets`: how many it takes."""

    offsets: int
    attributes: int
    first_time: int
    max_time: int
    producer: int
    epoch: int
    sequence: int
    size_bytes: int


def peek_batch(data: Buffer) -> BatchHeader:
    """Reads the head of a batch that was checked when it was stored; nothing is checked here."""
    _, length, _, _, _, attributes, last_delta, first_time, max_time, producer, epoch, sequence, _ = HEADER.unpack_from(
        data
    )
    return BatchHeader(last_delta + 1, attributes, first_time, max_time, producer, epoch, sequence, length + 12)


def check_batch(data: memoryview) -> BatchHeader:
    """One batch of format v2, all of `data`. Raises CorruptData."""
    if len(data) < HEADER_BYTES:
        raise CorruptData("a record batch that is shorter than its header")
    _, length, _, magic, crc, attributes, last_delta, first_time, max_time, producer, epoch, sequence, count = (
        HEADER.unpack_from(data)
    )
    if magic != 2:
        raise CorruptData(f"a record batch of format {magic}, not 2")
    if length + 12 != len(data):
        raise CorruptData(
            f"a record batch says {length + 12} bytes and has {len(data)}; one batch a partition may come with a "
            "request"
        )
    if crc32c.crc32c(data[_AFTER_CRC:]) != crc:
        raise CorruptData("the checksum of a record batch does not match")
    room = OUTPUT_BYTES_MAX if attributes & CODEC else len(data) - HEADER_BYTES
    if count * RECORD_BYTES_MIN > room:
        raise CorruptData(f"a record batch that says {count} records, and has room for {room // RECORD_BYTES_MIN}")
    start = _STARTS.get(attributes & CODEC, b"")
    if data[HEADER_BYTES : HEADER_BYTES + len(start)] != start:
        raise CorruptData(f"a record batch that is not compressed as it says ({attributes & CODEC})")
    if count < 1 or last_delta != count - 1 or attributes & CODEC > 4:
        raise CorruptData(
            f"a record batch of {count} records, the last at {last_delta}, compressed as {attributes & CODEC}"
        )
    return BatchHeader(count, attributes, first_time, max_time, producer, epoch, sequence, len(data))


def format_of(data: memoryview) -> int:
    """0, 1, or 2. Raises CorruptData."""
    if len(data) < 17:
        raise CorruptData("records that are too short to tell their format")
    magic = data[16]
    if magic > 2:
        raise CorruptData(f"records of format {magic}, which is not known")
    return magic


# -- v2 ----------------------------------------------------------------------------------------------------------------


class _Varints:
    """Reads a batch's records."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise CorruptData("a number in a record that does not end")

    def bytes(self) -> bytes | None:
        size = self.next()
        if size < 0:
            return None
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise CorruptData("a record that is larger than its batch")
        return self.data[start : self.at]


class ReadRoom:
    """What may still be read of record batches before others have waited too long for it. Counts down."""

    __slots__ = ("bytes_left", "items_left")

    def __init__(self, bytes_left: int, items_left: int) -> None:
        """bytes_left: uncompressed; items_left: records and headers, whose cost is a few microseconds each."""
        self.bytes_left, self.items_left = bytes_left, items_left

    def take(self, size: int, items: int) -> None:
        """Raises TooLarge where there is not so much left."""
        self.bytes_left -= size
        self.items_left -= items
        if self.bytes_left < 0 or self.items_left < 0:
            raise TooLarge("a record batch that takes long to read")


def records_of(data: Buffer, room: ReadRoom | None = None) -> list[Record]:
    """The records of a v2 batch whose checksum was verified. Raises CorruptData, TooLarge."""
    view = memoryview(data)
    attributes, first_time, max_time, count = (
        *HEADER.unpack_from(view)[5:6],
        *HEADER.unpack_from(view)[7:9],
        HEADER.unpack_from(view)[12],
    )
    reader = _Varints(_body(view, attributes & CODEC, count, room))
    fixed = max_time if attributes & LOG_APPEND_TIME else None
    out: list[Record] = []
    try:
        for _ in range(count):
            end = reader.next()
            end += reader.at
            reader.at += 1
            time = first_time + reader.next()
            if not -(1 << 63) <= time < 1 << 63:
                raise CorruptData("a record of a time that no clock has")
            reader.next()
            key, value, count_headers = reader.bytes(), reader.bytes(), reader.next()
            if room is not None:
                room.take(0, max(0, count_headers))
            headers = tuple(((reader.bytes() or b""), reader.bytes()) for _ in range(count_headers))
            if reader.at != end:
                raise CorruptData("a record that does not end where it says")
            out.append((time if fixed is None else fixed, key, value, headers))
    except IndexError as error:
        raise CorruptData("a batch that ends within a record") from error
    return out


def all_keyed(data: Buffer, room: ReadRoom | None = None) -> bool:
    """Whether each record of a v2 batch has a key; nothing else is looked at, and nothing in its header is believed.
    Raises CorruptData, and TooLarge where there is not so much room left.
    """
    reader, count = _records(data, room)
    try:
        for _ in range(count):
            end = reader.next()
            end += reader.at
            reader.at += 1
            reader.next()
            reader.next()
            if reader.next() < 0:
                return False
            if not reader.at <= end <= len(reader.data):
                raise CorruptData("a record that does not end where it says")
            reader.at = end
    except IndexError as error:
        raise CorruptData("a batch that ends within a record") from error
    return True


def _check_count(records: int) -> None:
    if not 0 <= records <= RECORDS_MAX:
        raise CorruptData(f"a record batch of {records} records; at most {RECORDS_MAX} are read")


def _body(view: memoryview, codec: int, count: int, room: ReadRoom | None) -> bytes:
    """A batch's `count` records, unpacked. Raises CorruptData, TooLarge."""
    _check_count(count)
    if room is None:
        return decompress(codec, view[HEADER_BYTES:])
    room.take(len(view) - HEADER_BYTES, count)  # before anything is done
    body = decompress(codec, view[HEADER_BYTES:], max(1, room.bytes_left))
    if codec:
        room.take(len(body), 0)
    return body


def _records(data: Buffer, room: ReadRoom | None = None) -> tuple[_Varints, int]:
    """A reader at the first record of a v2 batch, and how many there are by its header. Raises as `_body`."""
    view = memoryview(data)
    fields = HEADER.unpack_from(view)
    return _Varints(_body(view, fields[5] & CODEC, fields[12], room)), fields[12]


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(value: bytes | None) -> bytes:
    return b"\x01" if value is None else _varint(len(value)) + value


def build_batch(
    records: Sequence[Record],
    *,
    deltas: Sequence[int] | None = None,
    count: int = 0,
    codec: int = NONE,
    attributes: int = 0,
) -> bytes:
    """A v2 batch. deltas: offsets of the records from its base, where some are missing; count: offsets that it takes,
    where not all have a record.
    """
    first_time = records[0][0] if records else NO_TIME
    body = encode_records(records, first_time, deltas)
    return finished_batch(records, body, count=count, codec=codec, attributes=attributes)


def encode_records(
    records: Sequence[Record], first_time: int, deltas: Sequence[int] | None = None, first: int = 0
) -> list[bytes]:
    """The bytes of records of a v2 batch, which are its `first` one and those behind it."""
    body: list[bytes] = []
    for index, (time, key, value, headers) in enumerate(records, first):
        record = b"".join(
            (
                b"\0",
                _varint(time - first_time),
                _varint(index if deltas is None else deltas[index]),
                _sized(key),
                _sized(value),
                _varint(len(headers)),
                *(_sized(part) for header in headers for part in header),
            )
        )
        body += (_varint(len(record)), record)
    return body


def finished_batch(
    records: Sequence[Record], body: Sequence[bytes], *, count: int = 0, codec: int = NONE, attributes: int = 0
) -> bytes:
    """The batch of records that are encoded already."""
    first_time = records[0][0] if records else NO_TIME
    packed = compress(codec, b"".join(body))
    last = max(count, len(records)) - 1
    max_time = max((time for time, *_ in records), default=NO_TIME)
    return sealed(packed, attributes | codec, last, first_time, max_time, len(records))


def sealed(
    packed: bytes,
    attributes: int,
    last_delta: int,
    first_time: int,
    max_time: int,
    count: int,
    *,
    producer: int = NO_PRODUCER,
    epoch: int = -1,
) -> bytes:
    """A batch from its records' bytes, with its checksum."""
    head = HEADER.pack(
        0,
        HEADER_BYTES - 12 + len(packed),
        0,
        2,
        0,
        attributes,
        last_delta,
        first_time,
        max_time,
        producer,
        epoch,
        -1,
        count,
    )
    crc = crc32c.crc32c(packed, crc32c.crc32c(head[_AFTER_CRC:]))
    return head[:17] + crc.to_bytes(4, "big") + head[_AFTER_CRC:] + packed


def control_batch(commit: bool, producer: int, epoch: int, time_ms: int) -> bytes:
    """The marker with which a transaction of that producer ends."""
    record = b"\0\0\0" + _sized(struct.pack(">hh", 0, 1 if commit else 0)) + _sized(struct.pack(">hi", 0, 0)) + b"\0"
    return sealed(
        _varint(len(record)) + record, TRANSACTIONAL | CONTROL, 0, time_ms, time_ms, 1, producer=producer, epoch=epoch
    )


def with_append_time(data: memoryview, time_ms: int) -> bytes:
    """The same batch, its records stamped with the broker's time."""
    fields = list(HEADER.unpack_from(data))
    fields[5] |= LOG_APPEND_TIME
    fields[8] = time_ms
    head = HEADER.pack(*fields)
    crc = crc32c.crc32c(data[HEADER_BYTES:], crc32c.crc32c(head[_AFTER_CRC:]))
    return head[:17] + crc.to_bytes(4, "big") + head[_AFTER_CRC:] + bytes(data[HEADER_BYTES:])


# -- v0 and v1 ---------------------------------------------------------------------------------------------------------


def old_records(data: memoryview, depth: int = 0) -> Iterator[Record]:
    """The records of a message set of format v0 or v1, checksums verified. Raises CorruptData."""
    at, end, room = 0, len(data), EXPANDED_BYTES_MAX
    while at < end:
        if end - at < _OLD_HEAD.size:
            raise CorruptData("a message set that ends within a message")
        _, size, crc, magic, attributes = _OLD_HEAD.unpack_from(data, at)
        start, stop = at + 12, at + 12 + size
        if size < 14 or stop > end or magic > 1 or attributes & CODEC > 3:
            raise CorruptData(f"a message of {size} bytes in format {magic}")
        if zlib.crc32(data[start + 4 : stop]) != crc:
            raise CorruptData("the checksum of a message does not match")
        position, time = start + 6, NO_TIME
        if magic == 1:
            if size < 22:
                raise CorruptData("a message that ends within its time")
            time, position = int.from_bytes(data[position : position + 8], "big", signed=True), position + 8
        key, position = _old_bytes(data, position, stop)
        value, position = _old_bytes(data, position, stop)
        if attributes & CODEC:
            if depth or value is None:
                raise CorruptData("compressed messages within compressed messages")
            try:
                inner = memoryview(decompress(attributes & CODEC, value, max(1, room)))
            except TooLarge as error:
                raise CorruptData(
                    f"compressed messages of more than {EXPANDED_BYTES_MAX} bytes, uncompressed"
                ) from error
            room -= len(inner)
            if not inner or room < 0:
                raise CorruptData(f"compressed messages that are none, or more than {EXPANDED_BYTES_MAX} bytes in all")
            for inner_time, inner_key, inner_value, headers in old_records(inner, 1):
                yield (time if attributes & LOG_APPEND_TIME and magic else inner_time, inner_key, inner_value, headers)
        else:
            yield (time, key, value, ())
        at = stop


def _old_bytes(data: memoryview, at: int, stop: int) -> tuple[bytes | None, int]:
    if at + 4 > stop:
        raise CorruptData("a message that ends within a length")
    size = int.from_bytes(data[at : at + 4], "big", signed=True)
    at += 4
    if size < 0:
        return None, at
    if at + size > stop:
        raise CorruptData("a message that is larger than it says")
    return bytes(data[at : at + size]), at + size


def old_message_set(records: Sequence[tuple[int, Record]], magic: int, from_offset: int) -> bytes:
    """(offset, record) of those from `from_offset` on, in format v0 or v1, uncompressed; headers have no place
    there.
    """
    out: list[bytes] = []
    for offset, (time, key, value, _) in records:
        if offset < from_offset:
            continue
        body = struct.pack(">bb", magic, 0)
        if magic:
            body += struct.pack(">q", time)
        for part in (key, value):
            body += b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "big") + part
        out.append(struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body)
    return b"".join(out)


def offsets_of(data: Buffer) -> list[int]:
    """The offset of each record of a v2 batch from its base. Raises CorruptData."""
    reader, count = _records(data)
    out: list[int] = []
    try:
        for _ in range(count):
            end = reader.next()
            end += reader.at
            reader.at += 1
            reader.next()
            out.append(reader.next())
            if not reader.at <= end <= len(reader.data):  # backwards, it would not end
                raise CorruptData("a record that does not end where it says")
            reader.at = end
    except IndexError as error:
        raise CorruptData("a batch that ends within a record") from error
    return out
