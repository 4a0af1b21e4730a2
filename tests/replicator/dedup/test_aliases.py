"""A producer that tries again in another region: nothing of what had arrived is stored twice, nothing of the rest is
lost, in every region.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from heliograph.model.positions import BEFORE_ALL
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run
from replicator.dedup import aliases
from replicator.dedup.producer_dedup import DedupSettings, Producers
from replicator.dedup.version_vector import RunVerdict
from tests.replicator.dedup.alias_world import Region, World, ignored, local


def run(seed: int) -> None:
    world = World(seed)
    for _ in range(160):
        world.step()
    world.heal()
    for region in world.regions:
        found = Counter(sequence for _, sequence in region.stored())
        assert not {s: c for s, c in found.items() if c > 1}, f"seed {seed}: region {region.number} stores twice"
        assert set(found) >= world.confirmed, (
            f"seed {seed}: region {region.number} lacks {sorted(world.confirmed - set(found))}"
        )


def test_each_message_is_stored_once_in_every_region() -> None:
    for seed in range(120):
        run(seed)


@pytest.mark.parametrize(
    "mutant", ("no aliases", "a maximum", "what is under way is overlooked", "what arrives is overlooked")
)
def test_each_rule_is_needed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(name: str) -> Callable[..., object]:
        original = aliases.repeats
        if name == "no aliases":
            return lambda run, held, coming: None
        return lambda run, held, coming: original(run, held, {})

    if mutant == "a maximum":
        monkeypatch.setattr(Producers, "holds", lambda self, name, low, high: high <= self.last_sequence(name, 3))
    elif mutant == "what arrives is overlooked":
        monkeypatch.setattr("replicator.log.replicated_log.under_way", lambda runs: {})
        monkeypatch.setattr("replicator.log.replicated_log.repeats", aliases.repeats)
    else:
        monkeypatch.setattr("replicator.log.replicated_log.repeats", judged(mutant))
    with pytest.raises(AssertionError):
        for seed in range(300):
            run(seed)


def test_an_alias_is_no_loss_and_survives_a_reload() -> None:
    region = Region(1, random.Random(1))
    region.log.publish(local("p", 0, 4), lambda _: None, ignored)
    region.ledger.confirm(9)
    other = (2, 1, 9)
    again = Run(
        [b"y"] * 6,
        [1] * 6,
        origin=other,
        spans=((5, 0, 6),),
        checksums=[0] * 6,
        producers=(("p", 6, 2, None),),
        leadership=3,
    )
    assert region.log.append_replicated(BEFORE_ALL, again, lambda _: None, ignored) is RunVerdict.ACCEPT
    region.ledger.confirm(9)
    assert [s for _, s in region.stored()] == [0, 1, 2, 3, 4, 5, 6, 7]
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
    assert known.holds("busy", 40, 40) and known.holds("once-4", 0, 0)
    assert not known.holds("once-0", 0, 0) and not known.holds("busy", 0, 0)
    again = Producers(DedupSettings(local_ranges_max=3))
    again.load(known.dump())
    assert again.dump() == known.dump() and again.holds("busy", 40, 40)


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
