"""A producer that tries again in another region: nothing of what had arrived is stored twice, nothing of the rest is
lost, in every region.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import msgpack
import pytest

from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run
from replicator.dedup import aliases, producer_dedup
from replicator.dedup.aliases import ComingSequences
from replicator.dedup.producer_dedup import Coming, DedupSettings, Producers
from replicator.dedup.published_checksums import PublishedChecksums, checksum_of, checksums_of, entries
from replicator.dedup.version_vector import RunVerdict
from replicator.log import replicated_log
from replicator.log.region_durability import RegionWaits
from replicator.log.replicated_log import ReplicatedLog
from tests.broken_rules import BrokenRules
from tests.replicator.dedup.alias_world import Region, World, body, delivered, ignored, local


def run(seed: int, *, restarts: bool = False) -> None:
    world = World(seed, restarts=restarts)
    for _ in range(160):
        world.step()
    world.heal()
    for region in world.regions:
        found = Counter(region.stored())
        assert not {s: c for s, c in found.items() if c > 1}, f"seed {seed}: region {region.number} stores twice"
        assert set(found) >= world.confirmed, (
            f"seed {seed}: region {region.number} lacks {sorted(world.confirmed - set(found))}"
        )


@pytest.mark.parametrize("restarts", (False, True))
def test_each_message_is_stored_once_in_every_region(restarts: bool) -> None:
    for seed in range(120):
        run(seed, restarts=restarts)


def _no_aliases(patch: BrokenRules) -> None:
    patch.setattr(replicated_log, "repeats", lambda run, held, coming: None)


def _a_maximum(patch: BrokenRules) -> None:
    patch.setattr(Producers, "touches", lambda self, name, low, high: True)
    patch.setattr(Producers, "holds", lambda self, name, low, high, _: high <= self.last_sequence(name, 3))


def _what_is_under_way_is_overlooked(patch: BrokenRules) -> None:
    patch.setattr(replicated_log, "repeats", lambda run, held, coming: aliases.repeats(run, held, {}))


def _what_arrives_is_overlooked(patch: BrokenRules) -> None:
    patch.setattr(replicated_log, "under_way", lambda runs: {})


def _whatever_comes_lies_above(patch: BrokenRules) -> None:
    patch.setattr(ComingSequences, "may_hold", lambda self, run: False)


@pytest.mark.parametrize(
    "mutant",
    (
        _no_aliases,
        _a_maximum,
        _what_is_under_way_is_overlooked,
        _what_arrives_is_overlooked,
        _whatever_comes_lies_above,
    ),
)
def test_each_rule_is_needed(mutant: Callable[[BrokenRules], None], broken: BrokenRules) -> None:
    mutant(broken)
    broken.look(run, range(300))


def _sequences_are_enough(patch: BrokenRules) -> None:
    patch.setattr(Producers, "_same", lambda self, name, low, checksum: True)


def _what_is_on_its_way_goes_by_sequences(patch: BrokenRules) -> None:
    def coming(coming: Coming, name: str, low: int, high: int, checksum: int) -> bool:
        return any(first <= low and high <= last for first, last, _ in coming.get(name, ()))

    patch.setattr(producer_dedup, "is_coming", coming)
    patch.setattr(aliases, "is_coming", coming)


def _every_epoch_is_the_first(patch: BrokenRules) -> None:
    patch.setattr(Producers, "lead", lambda self, leadership, epoch: None)


def _own_tries_on_their_way_are_overlooked(patch: BrokenRules) -> None:
    patch.setattr(ReplicatedLog, "_on_its_way", lambda self, leadership: {})


def _the_highest_answers_for_all_below(patch: BrokenRules) -> None:
    def answered(self: Producers, run: Run) -> bool:
        return all(
            high <= self.durable(name) or self._elsewhere(run, name, low, high, checksum)
            for name, low, high, checksum in entries(run)
        )

    patch.setattr(Producers, "answered", answered)


@pytest.mark.parametrize(
    "mutant",
    (
        _sequences_are_enough,
        _what_is_on_its_way_goes_by_sequences,
        _every_epoch_is_the_first,
        _own_tries_on_their_way_are_overlooked,
        _the_highest_answers_for_all_below,
    ),
)
def test_each_rule_is_needed_where_another_process_takes_a_name_over(
    mutant: Callable[[BrokenRules], None], broken: BrokenRules
) -> None:
    mutant(broken)
    broken.look(lambda seed: run(seed, restarts=True), (84, *range(300)))  # a rare interleaving is tried first


def test_an_alias_is_no_loss_and_survives_a_reload() -> None:
    region = Region(1, random.Random(1))
    region.log.publish(local("p", 0, 4), lambda _: None, ignored)
    region.ledger.confirm(9)
    other = (2, 1, 9)
    again = arriving(other, local("p", 2, 6))
    assert region.log.append_replicated(BEFORE_ALL, again, lambda _: None, ignored) is RunVerdict.ACCEPT
    region.ledger.confirm(9)
    assert region.stored() == [body(0, sequence) for sequence in range(8)]
    for _ in range(2):
        assert region.log.vector.prefix(other) == (5, 5) and not region.log.vector.missing(other)
        region.load()
    records = [
        SkipRecord.decode(run.parts[0])
        for run in map(region.store_run, (b for _, _, b in region.store.blocks))
        if run.flags is not None
    ]
    assert [(r.after, r.through, r.loss) for r in records] == [(BEFORE_ALL, (5, 1), False)]


def test_what_is_kept_of_local_producers_is_bounded_and_the_newest_stays() -> None:
    known = Producers(DedupSettings(local_ranges_max=3))
    for round_number in range(5):
        for name, sequence in (("busy", round_number * 10), (f"once-{round_number}", 0)):
            run = local(name, sequence, 1)
            run.leadership = 7
            known.confirm(run)

    def holds(known: Producers, name: str, sequence: int) -> bool:
        return known.holds(name, sequence, sequence, checksum_of(body(0, sequence)))

    assert holds(known, "busy", 40) and holds(known, "once-4", 0)
    assert not holds(known, "once-0", 0) and not holds(known, "busy", 0)
    again = Producers(DedupSettings(local_ranges_max=3))
    again.load(known.dump())
    assert again.dump() == known.dump() and holds(again, "busy", 40)


def arriving(origin: tuple[int, int, int], run: Run, first: int = 0) -> Run:
    """A run of another region, published under the same leadership."""
    given = run.as_replicated(origin, 5, first, checksums_of(run))
    given.leadership = 3
    return given


@pytest.mark.parametrize("reloads", (False, True))
def test_a_tail_that_comes_late_is_told_from_the_tries_of_it_and_from_another_process(reloads: bool) -> None:
    """The region has published 30,000 more meanwhile, of the same names."""
    region, other = Region(1, random.Random(1)), (2, 1, 9)
    for at, name in enumerate(("tries", "anew")):
        region.log.append_replicated(
            (5, 100 * at - 1) if at else BEFORE_ALL,
            arriving(other, local(name, 0, 100), 100 * at),
            lambda _: None,
            ignored,
        )
    region.ledger.confirm(9)
    region.gate.epoch += 1
    region.log.publish(local("tries", 100, 100), lambda _: None, ignored)
    region.log.publish(local("anew", 100, 100, process=1), lambda _: None, ignored)
    for start in range(200, 30_000, 400):
        region.log.publish(local("tries", start, 400), lambda _: None, ignored)
        region.log.publish(local("anew", start, 400, process=1), lambda _: None, ignored)
        region.ledger.confirm(9)
    if reloads:
        region.load()
        region.ledger.save()
        region.load()
    before = len(region.stored())
    for at, name in enumerate(("tries", "anew")):
        tail = arriving(other, local(name, 100, 50), 200 + 50 * at)
        region.log.append_replicated((5, 199 + 50 * at), tail, lambda _: None, ignored)
    region.ledger.confirm(9)
    assert region.stored()[before:] == [body(0, sequence) for sequence in range(100, 150)], "those of another process"
    assert region.log.vector.prefix(other) == (5, 299) and not region.log.vector.missing(other)


def test_of_many_producers_each_has_its_share_of_what_is_known() -> None:
    """60 names take turns after the failover, 2,000 messages each; then the tail of each comes, 10 messages."""
    region, other, names = Region(1, random.Random(1)), (2, 1, 9), [f"p{number}" for number in range(60)]
    at: Position = BEFORE_ALL
    for first, count in ((0, 50), (50, 10)):
        for name in names:
            run = arriving(other, local(name, first, count), at[1] + 1)
            assert region.log.append_replicated(at, run, lambda _: None, ignored) is RunVerdict.ACCEPT
            at = run.coordinate(count - 1)
        region.ledger.confirm(100)
        if not first:
            region.gate.epoch += 1
            for start in range(50, 2050, 20):
                for name in names:
                    region.log.publish(local(name, start, 20), lambda _: None, ignored)
                region.ledger.confirm(100)
            before = len(region.stored())
            region.ledger.save()
            region.load()
    assert len(region.stored()) == before == 60 * 2050
    assert region.store.snapshot is not None and len(region.store.snapshot[1]) < 100_000


def test_of_ten_thousand_producers_what_is_kept_is_bounded() -> None:
    known = PublishedChecksums()
    for number in range(10_000):
        known.stored(local(f"p{number}", 0, 40), 0)
    assert known._size_bytes == sum(one.size_bytes for one in known._names.values()) <= 16_384 * 8
    assert known.holds("p9999", 39, checksum_of(body(0, 39))) and not known.holds("p0", 39, checksum_of(body(0, 39)))
    again = PublishedChecksums()
    again.load(known.dump(64 << 10))
    assert again.holds("p9999", 39, checksum_of(body(0, 39))) and len(msgpack.packb(again.dump(64 << 10))) < 64 << 10


def test_what_a_process_was_not_told_of_is_stored_although_its_sequence_came_meanwhile() -> None:
    """A producer is told the highest sequence, and goes on from it; then the tail arrives that has these sequences."""
    region, other, answers = Region(1, random.Random(1)), (2, 1, 9), list[object]()
    region.log.append_replicated(BEFORE_ALL, arriving(other, local("p", 0, 10)), lambda _: None, ignored)
    region.ledger.confirm(9)
    assert region.log.last_sequence("p") == 9
    region.log.append_replicated((5, 9), arriving(other, local("p", 10, 5), 10), lambda _: None, ignored)
    region.ledger.confirm(9)
    for process in (1, 0, 1):
        region.log.publish(local("p", 10, 3, process), answers.append, ignored)
        region.ledger.confirm(9)
    assert len(answers) == 3
    assert region.stored()[15:] == [body(1, 10), body(1, 11), body(1, 12)], "and its tries, and those of the tail, once"


def test_what_comes_under_the_number_of_a_batch_is_told_by_its_bytes() -> None:
    region, other = Region(1, random.Random(1)), (2, 1, 9)
    batches = Run([b"a", b"b"], [1, 1], counts=[3, 2], producers=(("p", 2, 0, ((0, 2), (3, 4))),))
    region.log.publish(batches.cut(0, 2), lambda _: None, ignored)
    region.ledger.confirm(9)
    again = Run([b"a", b"c"], [1, 1], counts=[3, 2], producers=(("p", 2, 0, ((0, 2), (3, 4))),))
    region.log.append_replicated(BEFORE_ALL, arriving(other, again), lambda _: None, ignored)
    region.ledger.confirm(9)
    assert region.stored() == [b"a", b"b", b"c"]


def pieces_of_one(count: int) -> Run:
    """Of a chunked message of three: all but the last have a sequence of nobody."""
    return Run(
        [b"0", b"1", b"2"][:count], [1] * count, producers=(("p", count, -1, ((-1, -1), (-1, -1), (7, 7))[:count]),)
    )


@pytest.mark.parametrize("arrived", (1, 2, 3))
def test_a_chunked_message_that_was_begun_in_a_region_that_is_lost_is_whole_in_every_region_and_ends_once(
    arrived: int,
) -> None:
    """Its client sends all pieces again in the next region, before, after, or while those that had arrived come from
    the first.
    """
    for seed in range(60):
        world = World(seed)
        us, eu, _ = world.regions
        us.log.publish(pieces_of_one(arrived), lambda _: None, ignored)
        us.ledger.confirm(9)
        again = pieces_of_one(3)
        for start in range(3):
            while world.rng.random() < 0.5 and world.deliver(us, eu):
                eu.ledger.confirm(world.rng.randrange(3))
            eu.log.publish(again.cut(start, start + 1), lambda _: None, ignored)
        world.heal()
        for region in world.regions:
            found = [
                bytes(part)
                for run in map(region.store_run, (b for _, _, b in region.store.blocks))
                if run.flags is None
                for part in run.parts
            ]
            assert found.count(b"2") == 1, (
                f"seed {seed}: region {region.number} ends it more than once, or never: {found}"
            )
            before = found[: found.index(b"2")]
            assert b"0" in before and b"1" in before[before.index(b"0") :], (
                f"seed {seed}: region {region.number} has no whole one: {found}"
            )


def test_a_try_of_what_another_region_published_waits_for_the_regions_of_its_class() -> None:
    """The region that takes over has a message of the lost one; the third region has not."""
    us, eu, ap = (Region(number, random.Random(1)) for number in (1, 2, 3))
    us.log.publish(local("p", 0, 4), lambda _: None, ignored)
    us.ledger.confirm(9)
    (tail,) = us.own_runs()

    def deliver(region: Region) -> None:
        run = delivered(us, tail)
        assert region.log.append_replicated(BEFORE_ALL, run, lambda _: None, ignored) is RunVerdict.ACCEPT
        region.ledger.confirm(9)

    now, changed, answers = [0.0], list[float | None](), list[object]()
    waits = eu.log.waits = RegionWaits(lambda: now[0], lambda: 0, lambda: changed.append(waits.next_deadline()))
    policy = {"regions": 3, "degradeAfterMs": 0}
    waits.obey(policy, ["us", "ap"])
    deliver(eu)
    eu.log.publish(local("p", 1, 3), answers.append, ignored)
    eu.ledger.confirm(9)
    for region, name in ((us, "us"), (ap, "ap")):
        eu.log.learn(name, region.log.vector.copy(), 0)
    assert not answers, "ap has not said that it has it"
    deliver(ap)
    eu.log.learn("ap", ap.log.vector.copy(), 0)
    assert len(answers) == 1
    ap.store, ap.rng = type(ap.store)(), random.Random(1)
    ap.load()
    eu.log.known["ap"] = ap.log.vector.copy(), 0
    waits.obey({**policy, "degradeAfterMs": 1000}, ["us", "ap"])
    eu.log.publish(local("p", 0, 2), answers.append, ignored)
    changed.clear()
    now[0] = 1.0
    waits.expire()
    assert len(answers) == 2 and waits.degraded and changed == [None]
    deliver(ap)
    eu.log.learn("ap", ap.log.vector.copy(), 0)
    assert not waits.degraded
