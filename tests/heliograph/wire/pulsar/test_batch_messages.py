"""The messages of a batch: found where they lie, and no count of a client's is believed beyond the bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.payload_compression import OUTPUT_BYTES_MAX
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.batch_messages import MESSAGES_MAX, batch_messages, messages_max, untrue_count


def body(payloads: Sequence[bytes]) -> bytes:
    heads = [pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString() for payload in payloads]
    return b"".join(
        len(head).to_bytes(4, "big") + head + payload for head, payload in zip(heads, payloads, strict=True)
    )


def test_each_message_is_found() -> None:
    payloads = [b"", b"a", b"x" * 300, b""]
    data = body(payloads)
    assert [data[start:end] for _, start, end in batch_messages(data, 4)] == payloads
    assert [data[start:end] for _, start, end in batch_messages(memoryview(data), 2)] == payloads[:2]
    assert list(batch_messages(b"", 0)) == []


@pytest.mark.parametrize("count", [-1, 5, 300_000, (1 << 31) - 1])
def test_a_count_that_the_bytes_cannot_hold_is_not_walked(count: int) -> None:
    data = body([b"", b"", b"", b""])
    with pytest.raises(CorruptData):
        list(batch_messages(data, count))
    with pytest.raises(CorruptData):
        list(batch_messages(b"", max(1, count)))


def test_more_messages_than_one_entry_may_have_are_not_walked() -> None:
    with pytest.raises(CorruptData, match="at most"):
        next(batch_messages(bytes(6 * (MESSAGES_MAX + 1)), MESSAGES_MAX + 1))


def test_a_message_of_a_negative_size_does_not_lead_back() -> None:
    single = pb.SingleMessageMetadata(payload_size=-17).SerializeToString()
    data = len(single).to_bytes(4, "big") + single + bytes(100)
    with pytest.raises(CorruptData, match="does not fit"):
        list(batch_messages(data, 3))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_bytes_come_the_walk_ends_within_them(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        data = bytearray(body([rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(1, 8))]))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        before = 0
        try:
            for _, start, end in batch_messages(data[: rng.randrange(len(data) + 1)], rng.randrange(10)):
                assert before + 4 <= start <= end <= len(data)
                before = end
        except CorruptData:
            pass


def test_a_compressed_batch_has_the_room_that_it_says() -> None:
    plain = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    assert (messages_max(plain, 60), messages_max(plain, 5)) == (10, 0)
    packed = pb.MessageMetadata(compression=pb.ZSTD, uncompressed_size=600)
    assert messages_max(packed, 60) == 100
    packed.uncompressed_size = (1 << 32) - 1
    assert messages_max(packed, 60) == min(MESSAGES_MAX, OUTPUT_BYTES_MAX // 6)
    assert not untrue_count(plain, 0, 1) and untrue_count(plain, 0, 2)
