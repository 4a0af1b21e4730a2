"""Receipts and messages from tables: read back by the general codec."""

from __future__ import annotations

import random

import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.entry_metadata import last_batch_index
from heliograph.wire.pulsar.server_frames import ack_set_words, messages, receipts
from heliograph.wire.run import Run
from heliograph.wire.varint import column, column_limit, read_varint, varint
from tests.region_node.faces.pulsar.codec import Reader, entry

STARTS = [0, 1, 120, 126, 127, 128, 16_380, 16_383, 16_384, 32_760, 2_097_140, (1 << 28) - 3, (1 << 40) - 2]


@pytest.mark.parametrize("start", STARTS)
def test_varints_and_columns(start: int) -> None:
    for number in range(start, start + 20):
        assert read_varint(varint(number), 0) == (number, len(varint(number)))
    size = min(20, column_limit(start) - start)
    low, high = column(start, size)
    assert [item + high for item in low] == [varint(n) for n in range(start, start + size)]


@pytest.mark.parametrize("sequence", STARTS)
@pytest.mark.parametrize("first", STARTS)
def test_receipts(sequence: int, first: int) -> None:
    sequences = list(range(sequence, sequence + 40))
    got = [c.send_receipt for c, _ in Reader().feed(receipts(300, sequences, None, 77, first))]
    assert [(r.producer_id, r.sequence_id, r.message_id.ledgerId, r.message_id.entryId) for r in got] == [
        (300, s, 77, first + i) for i, s in enumerate(sequences)
    ]
    assert not any(r.HasField("highest_sequence_id") for r in got)


@pytest.mark.parametrize("seed", range(30))
def test_receipts_of_any_sequences(seed: int) -> None:
    rng = random.Random(seed)
    sequences = [rng.randrange(1 << rng.randrange(1, 60)) for _ in range(rng.randrange(1, 30))]
    highest = [rng.choice([0, s + 3]) for s in sequences] if rng.random() < 0.5 else None
    ledger = rng.choice([-1, 5, 1 << 50])
    got = [c.send_receipt for c, _ in Reader().feed(receipts(1, sequences, highest, ledger, 9 if ledger >= 0 else -1))]
    assert [r.sequence_id for r in got] == sequences
    assert [r.highest_sequence_id for r in got] == (highest or [0] * len(sequences))
    none = (1 << 64) - 1
    assert {r.message_id.ledgerId for r in got} == {ledger if ledger >= 0 else none}
    assert [r.message_id.entryId for r in got] == (
        [9 + i for i in range(len(sequences))] if ledger >= 0 else [none] * len(sequences)
    )


def test_receipts_of_neighbours_that_only_look_contiguous() -> None:
    got = [c.send_receipt.sequence_id for c, _ in Reader().feed(receipts(1, [1, 3, 2, 4], None, 1, 0))]
    assert got == [1, 3, 2, 4]


@pytest.mark.parametrize("first", STARTS)
@pytest.mark.parametrize("sizes", [[50] * 40, [10, 200, 3, 7] * 10, [20_000, 30_000]])
@pytest.mark.parametrize("partition", [-1, 3])
def test_messages(first: int, sizes: list[int], partition: int) -> None:
    parts = [entry(bytes(size)) for size in sizes]
    run = Run(parts, [len(p) for p in parts])
    got = Reader().feed(b"".join(messages(300, 77, first, run, partition=partition, epoch=4)))
    assert [payload for _, payload in got] == parts
    for i, (command, _) in enumerate(got):
        message = command.message
        assert (message.consumer_id, message.message_id.ledgerId, message.message_id.entryId) == (300, 77, first + i)
        assert (
            message.message_id.partition == partition and message.consumer_epoch == 4 and message.redelivery_count == 0
        )


def test_redelivery_counts() -> None:
    run = Run([b"abc"] * 3, [3] * 3)
    got = Reader().feed(b"".join(messages(1, 2, 3, run, redeliveries=[0, 2, 1])))
    assert [c.message.redelivery_count for c, _ in got] == [0, 2, 1]
    got = Reader().feed(b"".join(messages(1, 2, 3, run, redeliveries=[300] * 3)))
    assert [c.message.redelivery_count for c, _ in got] == [300] * 3


def test_last_batch_index() -> None:
    assert last_batch_index(entry(b"x")) == -1
    assert last_batch_index(entry(b"x", batch=1)) == 0
    assert last_batch_index(entry(b"x", batch=9)[6:]) == 8
    assert pb.MessageMetadata().num_messages_in_batch == 1


@pytest.mark.parametrize("epoch", [0, 9])
def test_ack_sets(epoch: int) -> None:
    run = Run([b"abc"] * 3, [3] * 3)
    sets = {1: 0b101, 2: 1 << 130 | 1 << 63}
    got = Reader().feed(b"".join(messages(1, 2, 3, run, redeliveries=[0, 2, 1], epoch=epoch, ack_sets=sets)))
    assert [list(c.message.ack_set) for c, _ in got] == [[], [5], [-(1 << 63), 0, 4]]
    assert [c.message.redelivery_count for c, _ in got] == [0, 2, 1]
    assert {c.message.consumer_epoch for c, _ in got} == {epoch} and [c.message.message_id.entryId for c, _ in got] == [
        3,
        4,
        5,
    ]
    ((one, _),) = Reader().feed(b"".join(messages(1, 2, 3, run.cut(0, 1), ack_sets={0: 7})))
    assert list(one.message.ack_set) == [7]


def test_the_words_of_an_ack_set_are_made_at_once() -> None:
    """Word by word each costs as much as the whole set: of the largest batches, seconds."""

    class Bits(int):
        def __rshift__(self, by: int) -> int:
            raise AssertionError("all bits are moved for one word")

    for bits in (1, 1 << 63, 1 << 64, (1 << 64 * 4096) - 1, 0b101 << 64 * 4000):
        words = ack_set_words(Bits(bits))
        assert sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(words)) == bits and words[-1]
    assert ack_set_words(0) == []
