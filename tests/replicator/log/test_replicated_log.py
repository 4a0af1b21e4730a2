"""ReplicatedLog: order of answers, two watermarks, rollback, and what a reload brings back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.errors import HeliographError, NotEnoughBookies
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import ProducerSegment, Run
from replicator.dedup import aliases
from replicator.dedup.producer_dedup import DedupSettings
from replicator.dedup.published_checksums import checksum_of, entries
from replicator.dedup.version_vector import RunVerdict
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.replicator.fake_ledger import FakeLedger, Store, coordinates

OTHER = (2, 1, 77)


def make(store: Store, *, epoch: int = 1, dedup: bool = True, seed: int = 1, **settings: int) -> ReplicatedLog:
    state = TopicState(
        region=1, epoch=epoch, rng=random.Random(seed), deduplication=dedup, settings=DedupSettings(**settings)
    )
    ledger = FakeLedger(store, state)
    state.begin_epoch(ledger.last_confirmed)
    return ReplicatedLog(ledger, state)  # type: ignore[arg-type]


def local(producer: str, first: int, count: int, pairs: tuple[tuple[int, int], ...] | None = None) -> Run:
    return Run([b"x"] * count, [1] * count, producers=((producer, count, first, pairs),))


class Led:
    """A gate, under a leadership that began with that epoch; 0: under none."""

    def __init__(self, began: int) -> None:
        self.leadership = self.epoch = began


def remote(
    first: int, count: int, *, ledger: int = 5, producers: tuple[ProducerSegment, ...] = (), leadership: int = 0
) -> Run:
    return Run(
        [b"y"] * count,
        [1] * count,
        origin=OTHER,
        spans=((ledger, first, count),),
        checksums=[checksum_of(b"x")] * count,  # of the same messages as `local`
        producers=producers,
        leadership=leadership,
    )


class Answers:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def to(self, name: str) -> tuple[Any, Any]:
        return (lambda segments: self.seen.append((name, segments))), (
            lambda error: self.seen.append((name, type(error).__name__))
        )


def ledger_of(log: ReplicatedLog) -> FakeLedger:
    return log.ledger  # type: ignore[return-value]


def test_a_duplicate_waits_until_what_it_repeats_is_durable() -> None:
    log, answers = make(Store()), Answers()
    log.publish(local("p", 0, 4), *answers.to("first"))
    log.publish(local("p", 0, 4), *answers.to("again"))
    assert answers.seen == []
    ledger_of(log).confirm(1)
    assert answers.seen == [("first", [(4, 1, 0)]), ("again", [(4, -1, -1)])]
    assert log.last_sequence("p") == 3


def test_a_failed_append_rolls_submitted_back_and_fails_the_duplicates_that_waited() -> None:
    log, answers = make(Store()), Answers()
    log.publish(local("p", 0, 4), *answers.to("first"))
    log.publish(local("p", 2, 4), *answers.to("overlap"))
    ledger_of(log).fail(NotEnoughBookies("none"))
    assert answers.seen == [("first", "NotEnoughBookies"), ("overlap", "NotEnoughBookies")]
    log.publish(local("p", 0, 4), *answers.to("retry"))
    ledger_of(log).confirm(9)
    assert answers.seen[2:] == [("retry", [(4, 2, 0)])]


def test_a_pure_duplicate_of_a_failed_append_fails_too() -> None:
    log, answers = make(Store()), Answers()
    log.publish(local("p", 0, 4), *answers.to("first"))
    log.publish(local("p", 0, 4), *answers.to("again"))
    ledger_of(log).fail(NotEnoughBookies("none"))
    assert answers.seen == [("first", "NotEnoughBookies"), ("again", "NotEnoughBookies")]


def test_a_run_of_old_and_new_entries_is_answered_in_segments_and_in_order() -> None:
    log, answers = make(Store()), Answers()
    log.publish(local("p", 0, 3), *answers.to("a"))
    log.publish(local("p", 1, 5), *answers.to("b"))
    log.publish(local("q", 0, 1), *answers.to("c"))
    ledger_of(log).confirm(9)
    assert answers.seen == [("a", [(3, 1, 0)]), ("b", [(2, -1, -1), (3, 1, 3)]), ("c", [(1, 1, 6)])]


def test_batches_are_judged_by_their_highest_sequence() -> None:
    log, answers = make(Store()), Answers()
    log.publish(local("p", 0, 2, ((0, 9), (10, 19))), *answers.to("a"))
    log.publish(local("p", 10, 2, ((10, 19), (20, 29))), *answers.to("b"))
    ledger_of(log).confirm(9)
    assert answers.seen[1] == ("b", [(1, -1, -1), (1, 1, 2)])
    assert log.last_sequence("p") == 29


def test_pieces_of_a_chunked_message_are_judged_by_its_last() -> None:
    log, answers = make(Store()), Answers()
    pieces = local("p", -1, 3, ((-1, -1), (-1, -1), (5, 5)))
    log.publish(pieces, *answers.to("first"))
    ledger_of(log).confirm(9)
    log.publish(pieces, *answers.to("again"))
    ledger_of(log).confirm(9)
    assert answers.seen == [("first", [(3, 1, 0)]), ("again", [(2, 1, 3), (1, -1, -1)])]
    assert log.last_sequence("p") == 5


def test_deduplication_off_stores_everything() -> None:
    log, answers = make(Store(), dedup=False), Answers()
    for name in "ab":
        log.publish(local("p", 0, 2), *answers.to(name))
    ledger_of(log).confirm(9)
    assert answers.seen == [("a", [(2, 1, 0)]), ("b", [(2, 1, 2)])]
    assert log.last_sequence("p") == -1


def test_replicated_entries_are_never_judged_by_a_maximum_sequence() -> None:
    log, answers = make(Store()), Answers()
    assert (
        log.append_replicated((-1, -1), remote(0, 2, producers=(("p", 2, 50, None),)), *answers.to("late"))
        is RunVerdict.ACCEPT
    )
    assert (
        log.append_replicated((5, 1), remote(2, 2, producers=(("p", 2, 10, None),)), *answers.to("early"))
        is RunVerdict.ACCEPT
    )
    log.publish(local("p", 30, 2), *answers.to("local"))
    ledger_of(log).confirm(9)
    assert [name for name, _ in answers.seen] == ["late", "early", "local"]
    assert answers.seen[2] == ("local", [(2, 1, 4)])


def test_a_clients_retry_of_what_was_first_published_elsewhere_is_a_duplicate() -> None:
    log, answers = make(Store()), Answers()
    log.stand_behind(Led(3))
    log.append_replicated((-1, -1), remote(0, 80, producers=(("p", 80, 0, None),), leadership=3), *answers.to("us"))
    ledger_of(log).confirm(9)
    assert log.last_sequence("p") == 79
    log.publish(local("p", 60, 40), *answers.to("retry"))
    ledger_of(log).confirm(9)
    assert answers.seen[1] == ("retry", [(20, -1, -1), (20, 1, 80)])


def test_what_another_region_published_answers_nobody_where_every_region_takes_messages() -> None:
    """Not now, not before, and not under an earlier leadership: (that of the entry, the present one)."""
    for theirs, ours in ((0, 0), (0, 3), (3, 0), (3, 4)):
        store = Store()
        log, answers = make(store), Answers()
        log.stand_behind(Led(ours))
        log.append_replicated(
            (-1, -1), remote(0, 80, producers=(("p", 80, 0, None),), leadership=theirs), *answers.to("us")
        )
        for count in (0, 9):  # while it is on its way, and once it is here
            ledger_of(log).confirm(count)
            first = 10 * count
            assert log.last_sequence("p") == first - 1 if not count else 9
            log.publish(local("p", first, 10), *answers.to("own"))
        ledger_of(log).confirm(9)
        assert [count for name, segments in answers.seen if name == "own" for count, _, _ in segments] == [10, 10]
        assert all(ledger >= 0 for _, segments in answers.seen for _, ledger, _ in segments)
        again = make(store)
        again.stand_behind(Led(ours))
        assert again.last_sequence("p") == 99 and again.state.snapshot() == log.state.snapshot()


def test_previous_coordinate_decides() -> None:
    log, answers = make(Store()), Answers()
    assert log.append_replicated((-1, -1), remote(0, 10), *answers.to("a")) is RunVerdict.ACCEPT
    assert log.append_replicated((5, 11), remote(12, 8), *answers.to("gap")) is RunVerdict.GAP
    assert log.append_replicated((5, 9), remote(12, 8), *answers.to("b")) is RunVerdict.ACCEPT
    assert log.append_replicated((5, 9), remote(12, 8), *answers.to("twice")) is RunVerdict.DUPLICATE
    assert log.append_replicated((5, 9), remote(15, 10), *answers.to("overlap")) is RunVerdict.ACCEPT
    assert log.vector.prefix(OTHER) == (-1, -1)
    ledger_of(log).confirm(9)
    assert log.vector.prefix(OTHER) == (5, 24)
    stored = [where for _, where, _, _ in coordinates(ledger_of(log).store.runs())]
    assert stored == [(5, e) for e in (*range(10), *range(12, 25))]


def test_a_lost_tail_of_replicated_runs_is_asked_for_again() -> None:
    log, answers = make(Store()), Answers()
    log.append_replicated((-1, -1), remote(0, 10), *answers.to("a"))
    ledger_of(log).confirm(1)
    log.append_replicated((5, 9), remote(10, 10), *answers.to("b"))
    ledger_of(log).fail(NotEnoughBookies("none"))
    assert log.append_replicated((5, 19), remote(20, 5), *answers.to("c")) is RunVerdict.GAP
    assert log.append_replicated((5, 9), remote(10, 10), *answers.to("b")) is RunVerdict.ACCEPT


def test_a_skip_is_durable_before_the_vector_moves_and_names_the_loss() -> None:
    log, answers = make(Store()), Answers()
    record = SkipRecord(OTHER, (-1, -1), (5, 9), SkipReason.TRIMMED, "eu")
    assert log.append_skip(record, *answers.to("skip")) is RunVerdict.ACCEPT
    assert log.vector.prefix(OTHER) == (-1, -1)
    assert log.append_skip(record, *answers.to("twice")) is RunVerdict.DUPLICATE
    ledger_of(log).confirm(9)
    assert log.vector.prefix(OTHER) == (5, 9)
    assert log.vector.missing(OTHER) == (((-1, -1), (5, 9)),)
    filtered = SkipRecord(OTHER, (5, 9), (5, 12), SkipReason.FILTERED, "eu")
    log.append_skip(filtered, *answers.to("filtered"))
    ledger_of(log).confirm(9)
    assert log.vector.prefix(OTHER) == (5, 12) and len(log.vector.missing(OTHER)) == 1


def test_an_entry_beats_the_part_of_a_skip_that_it_covers() -> None:
    log, answers = make(Store()), Answers()
    log.append_replicated((-1, -1), remote(0, 10), *answers.to("a"))
    log.append_skip(SkipRecord(OTHER, (-1, -1), (5, 14), SkipReason.LOST, "eu"), *answers.to("skip"))
    ledger_of(log).confirm(9)
    assert log.vector.missing(OTHER) == (((5, 9), (5, 14)),)


def test_a_reload_brings_back_the_same_state_in_any_cut() -> None:
    for seed in range(40):
        rng, store = random.Random(seed), Store()
        log, at = make(store, seed=seed), -1
        for _ in range(rng.randrange(1, 30)):
            match rng.randrange(6):
                case 0 | 1:
                    first = max(0, log.last_sequence("p") + rng.randrange(-3, 3))
                    log.publish(local("p", first, rng.randrange(1, 5)), *Answers().to(""))
                case 2 | 3:
                    count = rng.randrange(1, 5)
                    run = remote(at + 1, count, producers=(("r", count, rng.randrange(100), None),))
                    log.append_replicated((5, at) if at >= 0 else (-1, -1), run, *Answers().to(""))
                    at += count
                case 4:
                    after = (5, at) if at >= 0 else (-1, -1)
                    record = SkipRecord(OTHER, after, (5, at + 3), rng.choice(list(SkipReason)), "eu")
                    log.append_skip(record, *Answers().to(""))
                    at += 3
                case 5:
                    ledger_of(log).confirm(99)
                    if rng.random() < 0.5:
                        ledger_of(log).rollover()
            ledger_of(log).confirm(rng.randrange(3))
        ledger_of(log).confirm(99)
        again = make(store, seed=seed + 1000)
        assert again.origin == log.origin and again.vector == log.vector, seed
        assert again.state.producers.dump() == log.state.producers.dump()
        assert again.state.outbox.totals == log.state.outbox.totals


def test_a_risen_region_epoch_begins_an_own_origin_of_its_own() -> None:
    store = Store()
    log = make(store)
    log.publish(local("p", 0, 4), *Answers().to(""))
    ledger_of(log).confirm(9)
    old = log.origin
    log = make(store, epoch=2)
    ledger_of(log).save()
    assert (
        log.origin == (1, 2, old[2])
        and log.state.origin_at((1, 3)) == old
        and log.state.origin_at((2, 0)) == log.origin
    )
    log.publish(local("p", 4, 4), *Answers().to(""))
    ledger_of(log).confirm(9)
    log = make(store, epoch=2)
    assert log.vector.prefix(old) == (1, 3) and log.vector.prefix((1, 2, old[2])) == (2, 3)


def test_producers_are_bounded_and_what_is_forgotten_is_counted() -> None:
    log = make(Store(), producers_max=10, ranges_max=20)
    log.stand_behind(Led(1))
    for i in range(30):
        log.publish(local(f"p{i}", 0, 1), *Answers().to(""))
        log.append_replicated(
            (5, i - 1) if i else (-1, -1),
            remote(i, 1, producers=((f"r{i}", 1, 5, None),), leadership=1),
            *Answers().to(""),
        )
    ledger_of(log).confirm(99)
    assert log.state.producers.forgotten == 30
    assert [log.last_sequence(f"p{i}") for i in (0, 19, 20, 29)] == [-1, -1, 0, 0]
    assert [log.last_sequence(f"r{i}") for i in (0, 9, 10, 29)] == [-1, -1, 5, 5]


def test_long_names_of_producers_leave_the_state_small_enough_to_be_stored() -> None:
    log = make(Store())
    log.stand_behind(Led(1))
    for i in range(6000):
        log.publish(local(f"p{i:04}" + "x" * 295, 0, 1), *Answers().to(""))
        log.append_replicated(
            (5, i - 1) if i else (-1, -1),
            remote(i, 1, producers=((f"r{i:04}" + "y" * 295, 1, 5, None),), leadership=1),
            *Answers().to(""),
        )
        ledger_of(log).confirm(99)
    blob = log.state.snapshot()
    assert len(blob) < VALUE_BYTES_MAX * 3 // 4
    again = make(Store())
    again.stand_behind(Led(1))
    again.state.restore(blob)
    assert [again.last_sequence(f"p{i:04}" + "x" * 295) for i in (0, 5999)] == [-1, 0], (
        "who was heard of longest ago is forgotten by the next owner"
    )
    assert [again.last_sequence(f"r{i:04}" + "y" * 295) for i in (0, 5999)] == [-1, 5]
    assert log.last_sequence("p0000" + "x" * 295) == 0, "and not by this one"
    small = log.state.snapshot(bytes_max=200 << 10)  # as where other parts take the room
    assert len(small) <= 200 << 10
    again = make(Store())
    again.stand_behind(Led(1))
    again.state.restore(small)
    assert again.last_sequence("p5999" + "x" * 295) == 0 and again.last_sequence("r5999" + "y" * 295) == 5


def test_a_synchronous_refusal_keeps_the_order_of_answers() -> None:
    log, answers = make(Store()), Answers()
    log.publish(local("p", 0, 2), *answers.to("waits"))

    def refuse(*_: object) -> None:
        raise HeliographError("closed")

    log.ledger.append_run = refuse  # type: ignore[method-assign]
    log.publish(local("p", 2, 2), *answers.to("refused"))
    assert answers.seen == []
    log.publish(local("p", 0, 2), *answers.to("again"))
    ledger_of(log).confirm(9)
    assert answers.seen == [("waits", [(2, 1, 0)]), ("refused", "HeliographError"), ("again", [(2, -1, -1)])]


def test_a_publish_that_found_no_memory_is_answered_and_holds_up_none_behind_it() -> None:
    told: list[BaseException] = []

    async def main() -> None:
        log, answers = make(Store()), Answers()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        append = log.ledger.append_run

        def no_memory(*_: object) -> None:
            raise MemoryError

        log.ledger.append_run = no_memory  # type: ignore[method-assign]
        log.publish(local("p", 0, 2), *answers.to("lost"))
        log.ledger.append_run = append  # type: ignore[method-assign]
        log.publish(local("p", 0, 2), *answers.to("again"))
        ledger_of(log).confirm(1)
        assert answers.seen == [("lost", "TopicClosed"), ("again", [(2, 1, 0)])]

    asyncio.run(main())
    assert [type(error) for error in told] == [MemoryError]


def test_the_audit_appends_nothing_above_what_the_links_have_brought() -> None:
    """The vector would pass over what the link was still to bring, and nobody would miss it."""
    log, answers = make(Store()), Answers()
    log.append_replicated((-1, -1), remote(0, 2), *answers.to("linked"))
    ledger_of(log).confirm(9)
    log.append_late(remote(7, 1), *answers.to("beyond"))
    log.append_late(remote(1, 1), *answers.to("late"))
    ledger_of(log).confirm(9)
    assert log.vector.prefix(OTHER) == (5, 1)
    assert answers.seen[1:] == [("beyond", "NotAllowed"), ("late", [(1, 1, 2)])]


@pytest.mark.parametrize("first", [0, -1], ids=["messages", "pieces of chunked ones"])
def test_each_entry_that_is_on_its_way_is_looked_at_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A region that comes back has thousands on their way: each of them was looked at for each that came behind it."""
    looked = [0]

    def counted(run: Run) -> Iterator[tuple[str, int, int, int]]:
        looked[0] += run.count
        return entries(run)

    monkeypatch.setattr(aliases, "entries", counted)
    log, answers, count = make(Store()), Answers(), 200
    log.publish(local("own", 0, 1), *answers.to("own"))
    for at in range(count):
        produced = (("p", 1, at if first >= 0 else -1, None),)
        came = remote(at, 1, producers=produced, leadership=3)
        assert log.append_replicated((5, at - 1) if at else (-1, -1), came, *answers.to("")) is RunVerdict.ACCEPT
    assert looked[0] <= 2 * count
    ledger_of(log).confirm(count + 1)
    assert len(answers.seen) == count + 1
