"""Entries from one protocol's form to the other's, where clients wrote what makes no sense: an error, and an end."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.kafka.entry_conversion import as_batch, as_pulsar, entry_of
from heliograph.wire.kafka.record_batches import build_batch, check_batch, records_of, sealed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from tests.region_node.faces.pulsar.codec import entry


@pytest.mark.parametrize("count", [300_000, -5, 3])
def test_a_batch_is_not_converted_beyond_its_bytes(count: int) -> None:
    for payload in (b"", b"x" * 17):
        with pytest.raises(CorruptData):
            as_batch(entry(payload, num_messages_in_batch=count), 1)


def test_a_compressed_batch_is_not_converted_beyond_what_comes_out() -> None:

    stored = entry(zlib.compress(b""), batch=100_000, compression=pb.ZLIB, uncompressed_size=600_000)
    with pytest.raises(CorruptData):
        as_batch(stored, 1)


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        ({"event_time": (1 << 64) - 5000}, (-1, None, b"v", ())),
        ({"event_time": 7}, (7, None, b"v", ())),
        ({"partition_key": "KKKK"}, (1000, b"\xff\xfe\xfd\xfc", b"v", ())),
        ({"partition_key": "KKKK", "partition_key_b64_encoded": True}, (1000, b"\xff\xfe\xfd\xfc", b"v", ())),
        ({"properties": [pb.KeyValue(key="KKKK", value="KKKK")]}, (1000, None, b"v", ((b"\xff\xfe\xfd\xfc",) * 2,))),
        ({"properties": [pb.KeyValue(key="h", value="base64:AAA")]}, (1000, None, b"v", ((b"h", b"base64:AAA"),))),
    ],
)
def test_what_kafka_has_no_form_for_is_told_as_it_can_be(fields: dict[str, Any], record: object) -> None:
    stored = entry(b"v", **fields).replace(b"KKKK", b"\xff\xfe\xfd\xfc")
    made = as_batch(stored, 1)
    check_batch(memoryview(made))
    assert records_of(made) == [record]


def test_times_that_no_clock_has_are_corrupt() -> None:
    """A difference of 70 bits: nothing else is raised by it."""
    record = b"\0" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\0\x01\x01\0"
    batch = sealed(bytes((2 * len(record),)) + record, 0, 0, (1 << 63) - 1, 0, 1)
    with pytest.raises(CorruptData, match="time"):
        as_pulsar(entry_of(batch, 1, 1))


@pytest.mark.parametrize("seed", range(30))
def test_whatever_bytes_come_nothing_but_corrupt_data_is_raised(seed: int) -> None:
    rng = random.Random(seed)
    headers = ((b"h", b"\xff"), (b"i", None))
    batch = build_batch([(5, b"k", b"v" * 9, headers), (6, None, None, ())], codec=rng.randrange(5))
    single = pb.SingleMessageMetadata(payload_size=3, partition_key="key", event_time=9)
    single.properties.add(key="a", value="b")
    head = single.SerializeToString()
    plain = (len(head).to_bytes(4, "big") + head + b"abc") * 3
    ours, theirs = entry_of(batch, 2, 1), entry(plain, batch=3)
    for made, start, convert in ((ours, len(ours) - len(batch), as_pulsar), (theirs, 10, lambda e: as_batch(e, 3))):
        for _ in range(150):
            data = bytearray(made)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(start, len(data))] = rng.randrange(256)
            try:
                convert(bytes(data))
            except CorruptData:
                pass
