"""Entries to messages with keys, and back to entries that hold fewer of them. A core.

Is: what compaction must know of each message in an entry: key, whether it has a value, chunk; and the same entry
without some of its messages.
Isn't: a decision what stays (`latest_keys`), or any position.
Invariants: a batch keeps its number of messages, whatever goes: what went is an empty message with `compacted_out`, so
that the indexes of the others, and with them acknowledgements, stay the same. What cannot be opened (encrypted,
damaged, of a compression that is not known) is one message with the key that stands in its outer metadata, as Pulsar
has it.
Source: docs/protocols/pulsar.md, "Compaction".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

from heliograph.model.errors import CorruptData
from heliograph.wire.payload_compression import OUTPUT_BYTES_MAX, compress_pulsar, decompress_pulsar
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.batch_messages import batch_messages
from heliograph.wire.pulsar.entry_metadata import as_bytes, entry_metadata
from heliograph.wire.run import Buffer

PAYLOAD_MAX = OUTPUT_BYTES_MAX
"""A batch that says it is larger when opened is not opened."""
_MAGIC = b"\x0e\x01"


@dataclass(frozen=True, slots=True)
class KeyedMessage:
    """key None: it has none. empty: it has no value, and takes its key away. gone: compacted out earlier."""

    key: bytes | None
    empty: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """messages: of a batch that could be opened, one by one; else the entry as one. chunk: (uuid, index, count)."""

    messages: tuple[KeyedMessage, ...]
    batch: bool = False
    chunk: tuple[str, int, int] | None = None


def open_entry(entry: Buffer) -> Opened:
    """Never raises: what cannot be read at all is one message without a key."""
    try:
        metadata, payload = entry_metadata(entry)
    except CorruptData:
        return Opened((KeyedMessage(None),))
    if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
        singles = _singles(metadata, payload)
        if singles is not None:
            return Opened(tuple(_message(single) for single, _ in singles), batch=True)
    key = as_bytes(metadata.partition_key) if metadata.HasField("partition_key") else None
    chunk = (
        (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg) if metadata.num_chunks_from_msg > 1 else None
    )
    size = metadata.uncompressed_size if metadata.HasField("uncompressed_size") else len(payload)
    return Opened((KeyedMessage(key, empty=metadata.null_value or (size == 0 and chunk is None)),), chunk=chunk)


def _message(single: pb.SingleMessageMetadata) -> KeyedMessage:
    key = as_bytes(single.partition_key) if single.HasField("partition_key") else None
    empty = (
        single.null_value if single.HasField("null_value") else single.payload_size == 0
    )  # Kafka's empty values say that they are values
    return KeyedMessage(key, empty=empty, gone=single.compacted_out)


def last_kept_index(entry: Buffer) -> int:
    """Index of the last message of a batch that was not compacted out; -1 where the entry is no batch."""
    opened = open_entry(entry)
    return (
        max((index for index, message in enumerate(opened.messages) if not message.gone), default=-1)
        if opened.batch
        else -1
    )


def without(entry: Buffer, stays: Sequence[bool]) -> Buffer:
    """A batch that could be opened, with only those messages left. It is compressed as before where that is known
    how.
    """
    metadata, payload = entry_metadata(entry)
    singles = _singles(metadata, payload)
    assert singles is not None and len(singles) == len(stays)
    out: list[Buffer] = []
    for (single, body), stay in zip(singles, stays, strict=True):
        kept = single if stay else pb.SingleMessageMetadata(payload_size=0, compacted_out=True)
        head = kept.SerializeToString()
        out += [len(head).to_bytes(4, "big"), head]
        if stay:
            out.append(body)
    del metadata.compacted_batch_indexes[:]
    metadata.compacted_batch_indexes.extend(index for index, stay in enumerate(stays) if not stay)
    return _entry(metadata, out)


def with_property(entry: Buffer, key: str, value: str) -> Buffer | None:
    """A batch, with one more property of each message. None: it cannot be opened."""
    metadata, payload = entry_metadata(entry)
    singles = _singles(metadata, payload)
    if singles is None:
        return None
    out: list[Buffer] = []
    for single, body in singles:
        single.properties.add(key=key, value=value)
        head = single.SerializeToString()
        out += [len(head).to_bytes(4, "big"), head, body]
    return _entry(metadata, out)


def _entry(metadata: pb.MessageMetadata, messages: Sequence[Buffer]) -> Buffer:
    plain = b"".join(messages)
    packed = compress_pulsar(metadata.compression, plain)
    metadata.uncompressed_size = len(plain)
    outer = metadata.SerializeToString()
    checked = b"".join([len(outer).to_bytes(4, "big"), outer, packed])
    return b"".join([_MAGIC, crc32c.crc32c(checked).to_bytes(4, "big"), checked])


def _singles(
    metadata: pb.MessageMetadata, payload: memoryview
) -> list[tuple[pb.SingleMessageMetadata, memoryview]] | None:
    """None where the batch cannot be opened."""
    plain = _decompress(metadata.compression, payload, metadata.uncompressed_size)
    if plain is None:
        return None
    try:
        return [
            (single, plain[start:end]) for single, start, end in batch_messages(plain, metadata.num_messages_in_batch)
        ]
    except CorruptData:
        return None


def _decompress(kind: int, payload: memoryview, size: int) -> memoryview | None:
    """None where it is not what it says, is larger than PAYLOAD_MAX, or of a kind that is not known; nothing larger
    than that is ever made of it.
    """
    if size > PAYLOAD_MAX:
        return None
    try:
        return payload if kind == pb.NONE else memoryview(decompress_pulsar(kind, payload, size))
    except CorruptData:
        return None
