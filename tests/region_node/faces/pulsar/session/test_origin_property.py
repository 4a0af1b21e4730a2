"""The coordinate as a property of messages: in single ones and in batches, whatever compresses them; and nothing else
changes.
"""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import pytest

from heliograph.wire.payload_compression import compress_pulsar
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import Buffer, Run
from region_node.compaction import keyed_entries
from region_node.faces.pulsar.session.origin_property import PROPERTY, with_origin
from tests.region_node.faces.pulsar.codec import entry

ORIGIN = (2, 1, 0x77)


def batch(bodies: list[bytes], compression: int = pb.NONE, **metadata: Any) -> bytes:
    plain = b""
    for index, body in enumerate(bodies):
        single = pb.SingleMessageMetadata(payload_size=len(body), partition_key=f"k{index}")
        single.properties.add(key="mine", value=str(index))
        head = single.SerializeToString()
        plain += struct.pack(">I", len(head)) + head + body
    packed = compress_pulsar(compression, plain)
    return entry(packed, batch=len(bodies), compression=compression, uncompressed_size=len(plain), **metadata)


def run_of(*parts: bytes, counts: tuple[int, ...] | None = None, replicated: bool = True) -> Run:
    spans = ((9, 5, len(parts)),) if replicated else ()
    return Run(
        list(parts), [len(part) for part in parts], counts=counts, origin=ORIGIN if replicated else None, spans=spans
    )


def checked(part: Buffer) -> bytes:
    whole = bytes(part)
    assert whole[:2] == b"\x0e\x01" and int.from_bytes(whole[2:6], "big") == crc32c.crc32c(whole[6:])
    return whole


def test_a_message_says_where_it_comes_from() -> None:
    made = entry(b"body", properties=[pb.KeyValue(key="mine", value="1")], partition_key="k")
    found = with_origin(run_of(made, made), 3, 0, lambda _: (1, 1, 1))
    for index, part in enumerate(found.parts):
        metadata, payload = entry_metadata(checked(part))
        assert bytes(payload) == b"body" and metadata.partition_key == "k"
        assert [(pair.key, pair.value) for pair in metadata.properties] == [
            ("mine", "1"),
            (PROPERTY, f"2.1.77:9:{5 + index}"),
        ]
    own = with_origin(run_of(made, replicated=False), 3, 8, lambda position: (1, 1, position[0]))
    assert entry_metadata(checked(own.parts[0]))[0].properties[-1].value == "1.1.3:3:8"


@pytest.mark.parametrize("compression", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
def test_each_message_of_a_batch_says_it(compression: int) -> None:
    bodies = [b"a" * 300, b"", b"c"]
    found = with_origin(run_of(batch(bodies, compression), counts=(3,)), 3, 0, lambda _: (1, 1, 1))
    metadata, payload = entry_metadata(checked(found.parts[0]))
    singles = keyed_entries._singles(metadata, payload)
    assert (
        singles is not None and [bytes(body) for _, body in singles] == bodies and metadata.compression == compression
    )
    for index, (single, _) in enumerate(singles):
        assert single.partition_key == f"k{index}"
        assert [(pair.key, pair.value) for pair in single.properties] == [
            ("mine", str(index)),
            (PROPERTY, "2.1.77:9:5"),
        ]


def test_what_cannot_be_opened_stays_readable() -> None:
    sealed = entry(b"sealed", batch=2, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    broken = batch([b"x"], pb.NONE)
    damaged = entry(b"\xff" * 9, batch=2, compression=pb.ZSTD, uncompressed_size=40)
    for made in (sealed, damaged):
        metadata, payload = entry_metadata(
            checked(with_origin(run_of(made, counts=(2,)), 3, 0, lambda _: ORIGIN).parts[0])
        )
        assert metadata.properties[-1].key == PROPERTY and bytes(payload) == bytes(entry_metadata(made)[1])
    cut = broken[:12]
    assert with_origin(run_of(cut), 3, 0, lambda _: ORIGIN).parts[0] == cut
