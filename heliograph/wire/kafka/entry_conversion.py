"""Entries that Kafka's clients wrote, as Pulsar's read them, and the other way round.

Is: a record batch as an entry of a topic (verbatim, behind an ordinary MessageMetadata), and conversions on the way
out. Isn't: on the way of a client that reads what its own protocol wrote.
Invariants: an entry takes as many messages as its batch takes offsets; converting never changes what is stored; message
i of an entry is the record at its base offset + i in both protocols.
Source: docs/protocols/kafka.md, "Records".

    key      partition_key; base64 (and marked so) where it is no UTF-8           null value   null_value
    headers  properties; a value that is no UTF-8 is base64 behind `base64:`      time         event_time
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import struct
from collections.abc import Sequence

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.wire.kafka.record_batches import CODEC, NO_TIME, ReadRoom, Record, build_batch, peek_batch, records_of
from heliograph.wire.payload_compression import PULSAR_OF_KAFKA, TooLarge, compress_pulsar, decompress_pulsar
from heliograph.wire.pulsar.batch_messages import batch_messages
from heliograph.wire.pulsar.entry_metadata import as_bytes, entry_metadata
from heliograph.wire.pulsar.pulsar_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from heliograph.wire.run import FLAG_KAFKA, Buffer, Run
from heliograph.wire.varint import varint

_MAGIC = b"\x0e\x01"
_PRODUCER = b"\x0a\x01k\x10\x00\x18"
"""producer_name `k`, sequence 0, and the tag of publish_time: an entry's metadata must fit in front of its batch in a
request.
"""
_BASE64 = "base64:"
_BASE64_BYTES = b"base64:"
_TIME_MAX = (1 << 63) - 1
"""Pulsar's times have a bit more than Kafka's."""
_U32 = struct.Struct(">I")


def entry_head(count: int, publish_ms: int) -> bytes:
    """What stands between an entry's checksum and its batch: the metadata, behind its size."""
    metadata = _PRODUCER + varint(publish_ms) + b"\x58" + varint(count)
    return _U32.pack(len(metadata)) + metadata


def entry_in_place(frame: bytearray, start: int, size: int, floor: int, count: int, publish_ms: int) -> memoryview:
    """The entry of the batch at frame[start : start + size]: its head is written right in front of it, over bytes of
    the request from `floor` on that nobody needs any more; where they are too few, the batch is copied.
    """
    head = entry_head(count, publish_ms)
    at = start - len(head) - 6
    if at < floor:
        frame, at, start = bytearray(len(head) + 6) + memoryview(frame)[start : start + size], 0, len(head) + 6
    frame[at + 6 : start] = head
    view = memoryview(frame)[at : start + size]
    frame[at : at + 6] = _MAGIC + _U32.pack(crc32c.crc32c(view[6:]))
    return view


def entry_of(batch: bytes, count: int, publish_ms: int) -> bytes:
    head = entry_head(count, publish_ms)
    return _MAGIC + _U32.pack(crc32c.crc32c(batch, crc32c.crc32c(head))) + head + batch


def batch_of(entry: Buffer) -> memoryview:
    """The record batch of an entry with FLAG_KAFKA, as its producer wrote it."""
    view = memoryview(entry)
    at = 6 if view[0] == 14 and view[1] == 1 else 0
    return view[at + 4 + int.from_bytes(view[at : at + 4], "big") :]


# -- to Pulsar ---------------------------------------------------------------------------------------------------------


def for_pulsar(
    run: Run, room: ReadRoom | None = None, *, whole_first: bool = False
) -> tuple[Run | None, dict[int, CorruptData]]:
    """(the same entries, those of Kafka's clients in Pulsar's form; index -> why it has none, and stands there as it
    was). room: only the first entries, as far as it reaches; None: it does not reach for the first one. whole_first:
    that one is made however large it is.
    """
    assert run.flags is not None
    parts: list[Buffer] = list(run.parts)
    unreadable: dict[int, CorruptData] = {}
    for index, flag in enumerate(run.flags):
        if flag & FLAG_KAFKA:
            try:
                parts[index] = as_pulsar(parts[index], None if whole_first and not index else room)
            except TooLarge:
                if not index:
                    return None, unreadable
                run, parts = run.cut(0, index), parts[:index]
                break
            except CorruptData as error:
                unreadable[index] = error
    assert run.flags is not None
    made = Run(
        parts,
        [len(part) for part in parts],
        counts=run.counts,
        flags=[flag & ~FLAG_KAFKA for flag in run.flags],
        time_ms=run.time_ms,
        first_index=run.first_index,
        origin=run.origin,
        spans=run.spans,
        origin_time_ms=run.origin_time_ms,
        checksums=run.checksums,
        producers=run.producers,
    )
    return made, unreadable


def as_pulsar(entry: Buffer, room: ReadRoom | None = None) -> bytes:
    """An entry with FLAG_KAFKA as a batch of Pulsar's. Raises CorruptData, TooLarge."""
    stored, _ = entry_metadata(entry)
    batch = batch_of(entry)
    head = peek_batch(batch)
    records = records_of(batch, room)
    if len(records) != head.offsets:
        raise CorruptData(f"a record batch of {head.offsets} offsets with {len(records)} records")
    payload = b"".join(_single(record) for record in records)
    codec = PULSAR_OF_KAFKA.get(head.attributes & CODEC, 0)
    metadata = MessageMetadata(
        producer_name=stored.producer_name,
        sequence_id=stored.sequence_id,
        publish_time=stored.publish_time,
        num_messages_in_batch=len(records),
    )
    if stored.HasField("replicated_from"):
        metadata.replicated_from = stored.replicated_from
    if records[0][0] > 0:
        metadata.event_time = records[0][0]
    if codec:
        metadata.compression, metadata.uncompressed_size = CompressionType.ValueType(codec), len(payload)
        payload = compress_pulsar(codec, payload)
    packed = metadata.SerializeToString()
    body = _U32.pack(len(packed)) + packed + payload
    return _MAGIC + _U32.pack(crc32c.crc32c(body)) + body


def _single(record: Record) -> bytes:
    time, key, value, headers = record
    single = SingleMessageMetadata(payload_size=len(value or b""))
    if key is not None:
        try:
            single.partition_key = key.decode()
        except UnicodeDecodeError:
            single.partition_key, single.partition_key_b64_encoded = base64.b64encode(key).decode(), True
    if not value:
        single.null_value = value is None  # an empty value is one: it takes no key away when the topic is compacted
    if time > 0:
        single.event_time = time
    for name, content in headers:
        single.properties.add(key=name.decode("utf-8", "replace"), value=_as_text(content or b""))
    packed = single.SerializeToString()
    return _U32.pack(len(packed)) + packed + (value or b"")


def _as_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _BASE64 + base64.b64encode(value).decode()


# -- to Kafka ----------------------------------------------------------------------------------------------------------


def as_batch(entry: Buffer, count: int) -> bytes:
    """A record batch of what Pulsar's client wrote, which takes `count` offsets. Raises CorruptData."""
    metadata, payload = entry_metadata(entry)
    if metadata.encryption_keys:
        return build_batch(
            [_record(metadata, bytes(payload), metadata.event_time or metadata.publish_time)], count=count
        )
    body = decompress_pulsar(metadata.compression, payload, metadata.uncompressed_size)
    if not metadata.HasField("num_messages_in_batch"):
        return build_batch([_record(metadata, body, metadata.event_time or metadata.publish_time)], count=count)
    records: list[Record] = []
    deltas: list[int] = []
    for index, (single, start, end) in enumerate(batch_messages(body, metadata.num_messages_in_batch)):
        if not single.compacted_out:
            records.append(_record(single, body[start:end], single.event_time or metadata.publish_time))
            deltas.append(index)
    return build_batch(records, deltas=deltas, count=max(count, metadata.num_messages_in_batch))


def _record(metadata: MessageMetadata | SingleMessageMetadata, value: bytes, time: int) -> Record:
    key: bytes | None = None
    if metadata.HasField("partition_key") and not metadata.null_partition_key:
        key = as_bytes(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            with contextlib.suppress(ValueError, binascii.Error):
                key = base64.b64decode(key, validate=True)
    headers = tuple((as_bytes(pair.key), _from_text(as_bytes(pair.value))) for pair in metadata.properties)
    return time if 0 < time <= _TIME_MAX else NO_TIME, key, None if metadata.null_value else value, headers


def _from_text(value: bytes) -> bytes:
    if value.startswith(_BASE64_BYTES):
        with contextlib.suppress(ValueError, binascii.Error):
            return base64.b64decode(value[len(_BASE64_BYTES) :], validate=True)
    return value


def counts_of(run: Run) -> Sequence[int]:
    return run.counts if run.counts is not None else [1] * run.count
