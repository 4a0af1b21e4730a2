"""Sequences of idempotent producers: each batch once, whatever is sent again, lost, or late; a model over seeds."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import NotEnoughBookies
from heliograph.wire.kafka.record_batches import BatchHeader
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.log.producer_sequences import Sent, Sequences


def batch(sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    return BatchHeader(count, 0, 0, 0, producer, epoch, sequence, 100)


def test_what_comes_again_is_answered_with_its_offset() -> None:
    known = Sequences()
    assert known.submit(batch(0, 3)) is None
    sent = known.accept(batch(0, 3))
    again = known.submit(batch(0, 3))
    assert again is sent and sent.offset == -1
    told: list[int] = []
    again.waiting.append((told.append, lambda _: None))
    assert not told
    known.stored(sent, 40)
    assert told == [40] and known.submit(batch(0, 3)) is sent and sent.offset == 40
    assert known.submit(batch(3)) is None


@pytest.mark.parametrize(
    ("sequence", "epoch", "code"),
    [
        (5, 1, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (4, 1, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 0, Code.INVALID_PRODUCER_EPOCH),
        (2, 2, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_what_is_refused(sequence: int, epoch: int, code: Code) -> None:
    known = Sequences()
    known.stored(known.accept(batch(0, 3, epoch=1)), 0)
    with pytest.raises(Refused) as caught:
        known.submit(batch(sequence, epoch=epoch))
    assert caught.value.code == code


def test_only_the_last_five_are_known_and_older_ones_are_still_no_news() -> None:
    known = Sequences()
    for sequence in range(8):
        known.stored(known.accept(batch(sequence)), sequence)
    assert known.submit(batch(3)) is not None
    with pytest.raises(Refused) as caught:
        known.submit(batch(2))
    assert caught.value.code == Code.DUPLICATE_SEQUENCE_NUMBER


def test_sequences_begin_again_after_the_highest() -> None:
    known = Sequences()
    last = (1 << 31) - 1
    known.stored(known.accept(batch(last - 1, 2)), 0)
    assert known.submit(batch(0)) is None


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    known = Sequences()
    known.stored(known.accept(batch(0, 3)), 0)
    assert known.submit(batch(0, epoch=1)) is None
    known.accept(batch(0, epoch=1))
    with pytest.raises(Refused):
        known.submit(batch(3))
    known.fence(7, 4)
    with pytest.raises(Refused):
        known.submit(batch(1, epoch=1))


@pytest.mark.parametrize("seed", range(200))
def test_each_batch_is_stored_once_and_in_order(seed: int) -> None:
    """A client with up to five batches in flight, answers that are lost, appends that fail, and a broker that is
    replaced.
    """
    rng = random.Random(seed)
    known, log = Sequences(), list[int]()
    flying: list[tuple[int, Sent]] = []
    acked, following = 0, 0
    while acked < 60:
        match rng.randrange(5):
            case 0 | 1 if following - acked < 5:
                try:
                    found = known.submit(batch(following))
                except Refused as refused:
                    assert refused.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
                    following = acked
                    continue
                if found is None:
                    flying.append((following, known.accept(batch(following))))
                elif found.offset >= 0:
                    assert log[found.offset] == following
                following += 1
            case 2 if flying:
                sequence, sent = flying.pop(0)
                log.append(sequence)
                known.stored(sent, len(log) - 1)
                if rng.random() < 0.7 and sequence == acked:  # else the answer is lost
                    acked += 1
            case 3 if flying and rng.random() < 0.3:
                for _, sent in reversed(flying):  # an append that fails takes all behind it along
                    known.lost(sent, NotEnoughBookies("none"))
                flying, following = [], acked
            case 4 if rng.random() < 0.2:
                fresh = Sequences()
                fresh.load(known.dump())
                known, flying, following = fresh, [], acked
            case _:
                following = acked  # it sends everything again that it has no answer for
                while (
                    following < len(log)
                    and acked < len(log)
                    and (again := known.submit(batch(following))) is not None
                    and again.offset >= 0
                ):
                    assert log[again.offset] == following
                    acked = following = following + 1
        assert log == list(range(len(log)))
