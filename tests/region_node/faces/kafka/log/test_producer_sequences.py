"""Sequences of idempotent producers: each batch once, whatever is sent again, lost, or late; a model over seeds."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import NotEnoughBookies
from heliograph.wire.kafka.record_batches import BatchHeader
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.log.producer_sequences import JUMP_MS, LAST_BATCHES, Sent, Sequences


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


GONE = NotEnoughBookies("none")


def told(known: Sequences, sequence: int, count: int = 1, epoch: int = 0) -> Code | None:
    try:
        known.submit(batch(sequence, count, epoch=epoch))
    except Refused as refused:
        return refused.code
    return None


def test_what_comes_behind_a_failed_batch_waits_for_it_also_where_no_batch_is_left() -> None:
    """Else the failed one, which comes again, would be answered as one that was stored."""
    known = Sequences()
    known.lost(known.accept(batch(0, 3)), GONE)
    assert told(known, 3, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert told(known, 0, 3) is None, "it comes again"
    known.accept(batch(0, 3))
    assert told(known, 3, 2) is None
    assert told(known, 3, 2, epoch=1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and told(known, 0, epoch=1) is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize("first", [0, (1 << 31) - 2])
def test_the_first_of_several_that_failed_comes_next(order: tuple[int, ...], first: int) -> None:
    known = Sequences()
    sequences = [(first + 2 * number) % (1 << 31) for number in range(3)]
    sent = [known.accept(batch(sequence, 2)) for sequence in sequences]
    for number in order:
        known.lost(sent[number], GONE)
    assert [told(known, sequence, 2) for sequence in sequences[1:]] == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    for sequence in sequences:
        assert told(known, sequence, 2) is None
        known.accept(batch(sequence, 2))


@pytest.mark.parametrize("later", ["stored", "lost"])
def test_what_becomes_of_a_batch_behind_a_failed_one_says_what_comes_next(later: str) -> None:
    """One that was answered as failed is in the log all the same where the next one is."""
    known = Sequences()
    known.stored(known.accept(batch(0)), 0)
    one, two = known.accept(batch(1)), known.accept(batch(2))
    known.lost(one, GONE)
    assert told(known, 1) == told(known, 3) == Code.REQUEST_TIMED_OUT, "asked again, it may be known"
    assert known.submit(batch(2)) is two and known.submit(batch(0)) is not None
    if later == "stored":
        known.stored(two, 2)
        assert told(known, 1) == Code.DUPLICATE_SEQUENCE_NUMBER and told(known, 3) is None
    else:
        known.lost(two, GONE)
        assert told(known, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and told(known, 1) is None


def test_a_batch_before_the_failed_one_that_is_on_its_way_holds_up_nothing() -> None:
    known = Sequences()
    known.accept(batch(0))
    known.lost(known.accept(batch(1)), GONE)
    assert told(known, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and told(known, 1) is None


def test_a_loss_of_an_epoch_that_is_over_says_nothing_of_the_next_one() -> None:
    known = Sequences()
    sent = known.accept(batch(4))
    known.accept(batch(0, epoch=1))
    known.lost(sent, GONE)
    assert told(known, 1, epoch=1) is None


def test_more_than_are_kept_may_fail_and_come_again_from_the_first_on() -> None:
    known = Sequences()
    for sent in [known.accept(batch(sequence)) for sequence in range(8)]:
        known.lost(sent, GONE)
    for sequence in range(8):
        assert told(known, sequence + 1) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert told(known, sequence) is None
        known.accept(batch(sequence))


def test_what_comes_next_is_known_after_a_move_too() -> None:
    known, moved = Sequences(), Sequences()
    known.stored(known.accept(batch(0, 3)), 0)
    known.lost(known.accept(batch(3, 2)), GONE)
    moved.load(known.dump())
    assert told(moved, 5) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and told(moved, 3, 2) is None
    assert told(Sequences(), 5) is None, "of who is not known any is taken"


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
                for _, sent in rng.sample(flying, len(flying)):  # an append that fails takes all behind it along
                    known.lost(sent, GONE)
                flying = []
                if rng.random() < 0.5:  # else it has sent more before it hears of that
                    following = acked
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


def test_behind_what_another_region_has_brought_a_producer_may_be_further_and_is_no_less_sent_once() -> None:
    """What it had confirmed there and is lost with that region, or comes later, is not waited for."""
    sequences = Sequences()
    sequences.accept(batch(0, 3), 0, carried=True)
    assert (again := sequences.submit(batch(0, 3))) is not None and again.offset == 0
    assert told(sequences, 7) == Code.REQUEST_TIMED_OUT and sequences.submit(batch(7), JUMP_MS) is None
    sequences.accept(batch(7))
    with pytest.raises(Refused) as refused:
        sequences.submit(batch(9))
    assert refused.value.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "from here on it is known what comes next"


def test_a_producer_that_began_an_epoch_in_a_region_that_is_lost_goes_on_in_it() -> None:
    sequences = Sequences()
    sequences.accept(batch(0), 0, carried=True)
    assert sequences.submit(batch(4, epoch=1)) is None


@pytest.mark.parametrize("late", [batch(3, epoch=1), batch(90, epoch=0)])
def test_the_tail_of_a_region_that_is_back_takes_back_nothing_that_was_sent_since(
    late: BatchHeader,
) -> None:
    sequences = Sequences()
    sequences.accept(batch(0, epoch=1), 0, carried=True)
    sequences.accept(batch(7, epoch=1), 1)
    sequences.accept(late, 2, carried=True)
    assert (again := sequences.submit(batch(7, epoch=1))) is not None and again.offset == 1
    assert sequences.submit(batch(8, epoch=1)) is None
    with pytest.raises(Refused):
        sequences.submit(batch(9, epoch=1))


def led_over() -> Sequences:
    """Batches to 100 came from another region."""
    sequences = Sequences()
    sequences.accept(batch(0, 101), 0, carried=True)
    return sequences


def test_a_batch_that_was_refused_a_moment_before_its_partition_was_open_is_stored_before_the_next_one() -> None:
    sequences = led_over()
    assert told(sequences, 102) == told(sequences, 103) == Code.REQUEST_TIMED_OUT
    for sequence in (101, 102, 103):
        assert told(sequences, sequence) is None
        sequences.accept(batch(sequence))


def test_who_is_further_goes_on_behind_a_wait_with_its_first_batch_first() -> None:
    sequences = led_over()
    assert told(sequences, 150) == told(sequences, 140) == Code.REQUEST_TIMED_OUT
    with pytest.raises(Refused):
        sequences.submit(batch(150), JUMP_MS)
    assert sequences.submit(batch(140), JUMP_MS) is None
    assert sequences.submit(batch(150), 2 * JUMP_MS) is None, "the client has given up the one before"


@pytest.mark.parametrize("known", [led_over, Sequences])
def test_a_batch_that_comes_behind_a_later_one_is_stored_once_and_takes_nothing_back(known: type[Sequences]) -> None:
    sequences = known()
    sequences.stored(sequences.accept(batch(103)), 7)
    for sequence in (102, 101):
        assert told(sequences, sequence) is None, "else it would be taken for stored"
        sent = sequences.accept(batch(sequence))
        assert sequences.submit(batch(sequence)) is sent
        sequences.lost(sent, GONE)
        assert told(sequences, sequence) is None
        sequences.stored(sequences.accept(batch(sequence)), 8)
    assert told(sequences, 105) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and told(sequences, 104) is None
    for sequence in range(104, 104 + LAST_BATCHES):
        sequences.stored(sequences.accept(batch(sequence)), sequence)
    assert told(sequences, 102) == told(sequences, 101) == Code.DUPLICATE_SEQUENCE_NUMBER


def test_the_tail_of_a_region_that_is_back_is_not_sent_again_into_its_place() -> None:
    sequences = led_over()
    sequences.accept(batch(105), 7)
    sequences.accept(batch(103), 8, carried=True)
    assert (again := sequences.submit(batch(103))) is not None and again.offset == 8
    assert told(sequences, 104) is None and told(sequences, 106) is None


@pytest.mark.parametrize("durable", [False, True])
def test_what_may_still_come_is_known_after_a_move_too(durable: bool) -> None:
    sequences, moved = led_over(), Sequences()
    moved.load(sequences.dump())
    assert told(moved, 105) == Code.REQUEST_TIMED_OUT, "as before the move"
    sent = sequences.accept(batch(105))
    if durable:
        sequences.stored(sent, 7)
    moved = Sequences()
    moved.load(sequences.dump())
    if durable:
        assert told(moved, 103) is None and told(moved, 106) is None
        assert told(moved, 107) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    else:
        assert told(moved, 105) == Code.REQUEST_TIMED_OUT and moved.submit(batch(105), JUMP_MS) is None
