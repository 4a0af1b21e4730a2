"""Record batches and entries: all formats and compressions there and back, Pulsar's form and Kafka's, and bytes that
are wrong.
"""

from __future__ import annotations

import random
import zlib

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.kafka.entry_conversion import as_batch, as_pulsar, batch_of, entry_in_place, entry_of, for_pulsar
from heliograph.wire.kafka.record_batches import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    RECORDS_MAX,
    ReadRoom,
    Record,
    build_batch,
    check_batch,
    control_batch,
    offsets_of,
    old_message_set,
    old_records,
    records_of,
    sealed,
    with_append_time,
)
from heliograph.wire.payload_compression import OUTPUT_BYTES_MAX, TooLarge, compress, decompress
from heliograph.wire.pulsar.entry_metadata import entry_metadata, last_batch_index
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, Run


def some(rng: random.Random, count: int, *, headers: bool = True) -> list[Record]:
    def blob() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(300))

    def head() -> tuple[tuple[bytes, bytes | None], ...]:
        return (
            tuple((b"h%d" % i, rng.choice([b"text", b"\xff\xfe", b""])) for i in range(rng.randrange(3)))
            if headers
            else ()
        )

    return [(1_700_000_000_000 + rng.randrange(-5000, 5000), blob(), blob(), head()) for _ in range(count)]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("seed", range(4))
def test_batches_there_and_back(codec: int, seed: int) -> None:
    rng = random.Random(seed)
    records = some(rng, rng.randrange(1, 60))
    batch = build_batch(records, codec=codec)
    head = check_batch(memoryview(batch))
    assert head.offsets == len(records) and records_of(batch) == records
    assert offsets_of(batch) == list(range(len(records)))
    stamped = with_append_time(memoryview(batch), 42)
    assert check_batch(memoryview(stamped)).attributes & LOG_APPEND_TIME
    assert {time for time, *_ in records_of(stamped)} == {42}
    entry = entry_of(batch, len(records), 99)
    assert batch_of(entry) == batch and last_batch_index(entry) == len(records) - 1
    shown = as_pulsar(entry)
    assert last_batch_index(shown) == len(records) - 1 and entry_metadata(shown)[0].publish_time == 99
    assert records_of(as_batch(shown, len(records))) == records


@pytest.mark.parametrize("floor", [0, 90])
def test_the_head_of_an_entry_is_written_in_front_of_its_batch(floor: int) -> None:
    batch = build_batch(some(random.Random(1), 5))
    frame = bytearray(b"\xaa" * 100 + batch + b"\xbb" * 10)
    entry = entry_in_place(frame, 100, len(batch), floor, 5, 1_700_000_000_000)
    assert bytes(entry) == entry_of(batch, 5, 1_700_000_000_000)
    assert bytes(frame[100:]) == batch + b"\xbb" * 10, "what is stored and what follows is as it was"
    assert bytes(frame[:floor]) == b"\xaa" * floor, "what somebody may still need is as it was"


@pytest.mark.parametrize("codec", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats(codec: int, magic: int) -> None:
    records = some(random.Random(codec), 20, headers=False)
    plain = old_message_set([(5 + i, record) for i, record in enumerate(records)], magic, 8)
    read = list(old_records(memoryview(plain)))
    assert [(key, value) for _, key, value, _ in read] == [(key, value) for _, key, value, _ in records[3:]]
    assert [time for time, *_ in read] == [record[0] if magic else -1 for record in records[3:]]
    if codec:
        packed = compress(codec, plain)
        body = (
            bytes((magic, codec))
            + (b"\0" * 8 if magic else b"")
            + b"\xff\xff\xff\xff"
            + len(packed).to_bytes(4, "big")
            + packed
        )
        wrapped = bytes(8) + (len(body) + 4).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        assert list(old_records(memoryview(wrapped))) == read


@pytest.mark.parametrize("seed", range(60))
def test_wrong_bytes_are_refused_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    records = some(rng, 10, headers=False)
    batch = bytearray(build_batch(records, codec=rng.randrange(5)))
    at = rng.randrange(16, len(batch))
    batch[at] ^= 1 << rng.randrange(8)
    with pytest.raises(CorruptData):
        check_batch(memoryview(batch))
    for data in (rng.randbytes(rng.randrange(200)), bytes(batch[61:])):
        for codec in range(1, 6):
            try:
                decompress(codec, data)
            except CorruptData:
                pass
    old = bytearray(old_message_set(list(enumerate(records)), 1, 0))
    old[rng.randrange(8, len(old))] ^= 255
    with pytest.raises(CorruptData):
        list(old_records(memoryview(old)))


@pytest.mark.parametrize("seed", range(20))
def test_records_whose_checksum_is_right_and_whose_content_is_not(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        count = rng.randrange(1, 5)
        batch = sealed(rng.randbytes(rng.randrange(60)), rng.randrange(5), count - 1, 0, 0, count)
        for read in (records_of, offsets_of):
            try:
                read(batch)
            except CorruptData:
                pass


def test_a_record_that_leads_back_is_not_followed() -> None:
    """Its size is negative, so that the next one would begin where it does."""
    batch = sealed(bytes((2 * 4 - 1, 0, 0, 0)) + bytes(7 * 20_000), 0, 19_999, 0, 0, 20_000)
    with pytest.raises(CorruptData):
        offsets_of(batch)


@pytest.mark.parametrize(("codec", "count"), [(0, 2), (0, 2**31 - 1), (1, 2**31 - 1), (4, OUTPUT_BYTES_MAX // 7 + 1)])
def test_a_batch_of_more_records_than_fit_is_refused(codec: int, count: int) -> None:
    packed = compress(codec, bytes(13))
    with pytest.raises(CorruptData, match="room"):
        check_batch(memoryview(sealed(packed, codec, count - 1, 0, 0, count)))


def test_more_records_than_one_batch_may_have_are_not_read() -> None:
    count = RECORDS_MAX + 1
    batch = sealed(b"\x0c\0\0\0\x01\x01\0" * count, 0, count - 1, 0, 0, count)
    for read in (records_of, offsets_of):
        with pytest.raises(CorruptData, match="at most"):
            read(batch)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_few_bytes_do_not_become_very_many(codec: int) -> None:
    bomb = compress(codec, bytes(OUTPUT_BYTES_MAX + 1))
    with pytest.raises(CorruptData):
        decompress(codec, bomb)


def test_a_run_of_both() -> None:
    batch = build_batch(some(random.Random(3), 4))
    run = Run(
        [entry_of(batch, 4, 1), b"\0\0\0\0"],
        [len(entry_of(batch, 4, 1)), 4],
        counts=[4, 1],
        flags=[FLAG_KAFKA, FLAG_HIDDEN],
    )
    _, _, read = decode_block(b"".join(encode_block(run, 1, 0)))
    shown, unreadable = for_pulsar(read)
    assert not unreadable and shown is not None
    assert list(shown.flags or ()) == [0, FLAG_HIDDEN] and bytes(shown.parts[1]) == b"\0\0\0\0"
    assert entry_metadata(shown.parts[0])[0].num_messages_in_batch == 4 and shown.messages == 5


@pytest.mark.parametrize("codec", range(5))
def test_as_much_is_read_as_there_is_room_for(codec: int) -> None:
    batch = build_batch([(1, b"k", bytes(1000), ((b"h", b""),) * 3)] * 4, codec=codec)
    records, size = records_of(batch), len(decompress(codec, batch[HEADER_BYTES:]))
    used = size if codec == 0 else size + len(batch) - HEADER_BYTES
    room = ReadRoom(used + 1, 17)
    assert records_of(batch, room) == records and (room.bytes_left, room.items_left) == (1, 1)
    for small in (ReadRoom(used - 1, 17), ReadRoom(used + 1, 15), ReadRoom(used + 1, 3), ReadRoom(0, 0)):
        with pytest.raises(TooLarge):
            records_of(batch, small)


def test_a_run_is_converted_as_far_as_there_is_room() -> None:
    batch = build_batch(some(random.Random(3), 4))
    parts = [entry_of(batch, 4, 1)] * 3
    run = Run(parts, [len(part) for part in parts], counts=[4] * 3, flags=[FLAG_KAFKA] * 3)
    whole, _ = for_pulsar(run)
    assert whole is not None and whole.count == 3
    two, _ = for_pulsar(run, ReadRoom(1 << 20, 2 * (4 + sum(len(record[3]) for record in records_of(batch)))))
    assert two is not None and (two.count, list(two.parts)) == (2, list(whole.parts)[:2])
    assert for_pulsar(run, ReadRoom(1 << 20, 3)) == (None, {})
    first, _ = for_pulsar(run, ReadRoom(1 << 20, 3), whole_first=True)
    assert first is not None and list(first.parts) == list(whole.parts)[:1]


def test_a_marker_is_a_batch_that_clients_pass_over() -> None:
    head = check_batch(memoryview(control_batch(True, 9, 2, 5)))
    assert (head.producer, head.epoch, head.offsets, head.attributes) == (9, 2, 1, 48)
