"""Entries to messages: what a client wrote into an entry, taken apart for a reader that wants rows.

Is: metadata, compression, batches. Isn't: on any server path; brokers never look inside an entry.
Encrypted payloads stay as they are. Layout: docs/protocols/pulsar.md.
"""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from heliograph.client.blocks import TopicSnapshot
from heliograph.model.errors import CorruptData
from heliograph.wire import pulsar_pb2 as pb
from heliograph.wire.kafka_entries import as_pulsar
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Run

_MAGIC_CHECKSUM = b"\x0e\x01"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _time(ms: int) -> datetime.datetime | None:
    return _EPOCH + datetime.timedelta(milliseconds=ms) if ms else None


def _body(entry: memoryview) -> tuple[Any, memoryview]:
    """(MessageMetadata, payload as it was sent)."""
    at = 6 if entry[:2] == _MAGIC_CHECKSUM else 0
    size = int.from_bytes(entry[at : at + 4], "big")
    metadata = pb.MessageMetadata()
    try:
        metadata.ParseFromString(bytes(entry[at + 4 : at + 4 + size]))
    except DecodeError as error:
        raise CorruptData(f"an entry's metadata cannot be read: {error}") from error
    return metadata, entry[at + 4 + size :]


def decompress(kind: int, payload: memoryview, size: int) -> memoryview:
    """Pulsar's CompressionType: 0 none, 1 LZ4 block, 2 zlib, 3 zstd, 4 snappy."""
    if kind == 0:
        return payload
    if kind == 2:
        return memoryview(zlib.decompress(payload))
    codec = {1: "lz4_raw", 3: "zstd", 4: "snappy"}.get(kind)
    if codec is None:
        raise CorruptData(f"compression {kind} is not known")
    return memoryview(pa.decompress(payload, size, codec=codec, asbytes=True))


def messages_of(topic: str, snapshot: TopicSnapshot, ledger: int, first: int, run: Run) -> Iterator[dict[str, Any]]:
    """One dict a message, with the columns of the source's schema."""
    origin = run.origin or snapshot.origin_at((ledger, first))
    for index in range(run.count):
        if run.flags is not None and run.flags[index] & (FLAG_HIDDEN | FLAG_MARKER):
            continue
        kafka = run.flags is not None and run.flags[index] & FLAG_KAFKA
        metadata, payload = _body(memoryview(as_pulsar(run.parts[index]) if kafka else run.parts[index]))
        at = run.coordinate(index) if run.origin is not None else (ledger, first + index)
        common = {
            "topic": topic,
            "publish_time": _time(metadata.publish_time),
            "producer_name": metadata.producer_name,
            "origin_region": snapshot.regions.get(origin[0], str(origin[0])),
            "ledger": ledger,
            "entry": first + index,
        }
        coordinate = {"region": origin[0], "epoch": origin[1], "incarnation": f"{origin[2]:016x}", "ledger": at[0], "entry": at[1]}
        encrypted = bool(metadata.encryption_keys)
        if not encrypted:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        if encrypted or not metadata.HasField("num_messages_in_batch"):
            whole = {"value": bytes(payload), "batch_index": -1, "coordinate": {**coordinate, "batch_index": -1}}
            yield {**common, **_single(metadata, metadata.sequence_id), **whole}
            continue
        offset = 0
        for batch_index in range(metadata.num_messages_in_batch):
            size = int.from_bytes(payload[offset : offset + 4], "big")
            single = pb.SingleMessageMetadata()
            single.ParseFromString(bytes(payload[offset + 4 : offset + 4 + size]))
            start = offset + 4 + size
            offset = start + single.payload_size
            if offset > len(payload):
                raise CorruptData(f"{topic} {ledger}:{first + index}: the batch ends inside message {batch_index}")
            sequence = single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + batch_index
            yield {
                **common,
                **_single(single, sequence),
                "value": bytes(payload[start:offset]),
                "batch_index": batch_index,
                "coordinate": {**coordinate, "batch_index": batch_index},
            }


def _single(metadata: Any, sequence: int) -> dict[str, Any]:
    return {
        "key": metadata.partition_key if metadata.HasField("partition_key") else None,
        "properties": [(p.key, p.value) for p in metadata.properties],
        "event_time": _time(metadata.event_time),
        "sequence_id": sequence,
    }
