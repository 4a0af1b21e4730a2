"""Batches as Pulsar's clients write them."""

from __future__ import annotations

import crc32c

from heliograph.wire.payload_compression import compress_pulsar
from heliograph.wire.pulsar.pulsar_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata


def batch(count: int, size: int, *, packed: bool = False) -> bytes:
    """A batch of Pulsar's, of `count` messages of `size` bytes."""
    single = SingleMessageMetadata(payload_size=size).SerializeToString()
    body = (len(single).to_bytes(4, "big") + single + bytes(size)) * count
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    if packed:
        metadata.compression, metadata.uncompressed_size = CompressionType.ZSTD, len(body)
        body = compress_pulsar(CompressionType.ZSTD, body)
    head = metadata.SerializeToString()
    rest = len(head).to_bytes(4, "big") + head + body
    return b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest
