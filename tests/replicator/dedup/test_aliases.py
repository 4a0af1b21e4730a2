"""A producer that tries again in another region: nothing of what had arrived is stored twice, nothing of the rest is
lost, in every region.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from heliograph.model.errors import HeliographError, NotEnoughBookies
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import decode_block
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.dedup import aliases
from replicator.dedup.producer_dedup import DedupSettings, Producers
from replicator.dedup.version_vector import RunVerdict
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.replicator.fake_ledger import FakeLedger, Store


class Region:
    def __init__(self, number: int, rng: random.Random) -> None:
        self.number, self.store, self.rng = number, Store(), rng
        self.load()

    def load(self) -> None:
        state = TopicState(region=self.number, epoch=1, rng=self.rng, deduplication=True, settings=DedupSettings())
        self.ledger = FakeLedger(self.store, state)
        state.begin_epoch(self.ledger.last_confirmed)
        self.log = ReplicatedLog(self.ledger, state)  # type: ignore[arg-type]
        self.log.aliases = True

    def stored(self) -> list[tuple[str, int]]:
        out = []
        for (_, _), _, block in self.store.blocks:
            run = self.store_run(block)
            if run.flags is None or not run.flags[0] & FLAG_HIDDEN:
                out += [(name, low) for name, low, _ in aliases.sequences(run)]
        return out

    @staticmethod
    def store_run(block: bytes) -> Run:
        return decode_block(block)[2]

    def own_runs(self) -> list[tuple[int, int, Run]]:
        """What was first published here and is durable."""
        out = []
        for (ledger, first), _, block in self.store.blocks:
            run = self.store_run(block)
            if run.origin is None:
                out.append((ledger, first, run))
        return out


def local(name: str, first: int, count: int) -> Run:
    return Run([b"x"] * count, [1] * count, producers=((name, count, first, None),))


def delivered(source: Region, at: tuple[int, int, Run]) -> Run:
    ledger, first, run = at
    origin = source.log.origin
    return Run(
        list(run.parts),
        list(run.lengths),
        origin=origin,
        spans=((ledger, first, run.count),),
        checksums=[0] * run.count,
        producers=run.producers,
    )


class World:
    """Three regions; a producer whose client sends, loses its connection, and tries again wherever it is sent."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.regions = [Region(number, self.rng) for number in (1, 2, 3)]
        self.confirmed: set[int] = set()
        self.active, self.next, self.pending = 0, 0, list[int]()

    def publish(self) -> None:
        count = self.rng.randrange(1, 5)
        if self.pending and self.rng.random() < 0.7:  # again what was not confirmed, in its order
            first = self.pending[0]
            count = min(count, self.pending[-1] - first + 1)
        else:
            first = self.next
            self.next += count
            self.pending += range(first, first + count)
        if first != (self.pending[0] if self.pending else first):
            return self._wait()
        self._send(first, count)

    def _send(self, first: int, count: int) -> None:
        """A client that has gone elsewhere meanwhile does not hear the receipt."""
        at = self.active
        self.regions[at].log.publish(
            local("p", first, count),
            lambda _: self._confirm(first, count) if self.active == at else None,
            lambda _: None,
        )

    def _wait(self) -> None:
        """What is behind others waits for them: a client sends in order."""
        self._send(self.pending[0], min(4, len(self.pending)))

    def _confirm(self, first: int, count: int) -> None:
        for sequence in range(first, first + count):
            self.confirmed.add(sequence)
            if sequence in self.pending:
                self.pending.remove(sequence)

    def deliver(self, source: Region, target: Region) -> bool:
        """The next run of one region to another; True: there was one."""
        have = target.log.state.intake.submitted(source.log.origin)
        for ledger, first, run in source.own_runs():
            if (ledger, first + run.count - 1) > have:
                given = delivered(source, (ledger, first, run))
                previous: Position = have if have < (ledger, first) else (ledger, first - 1) if first else BEFORE_ALL
                if previous > have:
                    previous = have
                assert target.log.append_replicated(previous, given, lambda _: None, _ignored) is RunVerdict.ACCEPT
                return True
        return False

    def step(self) -> None:
        region = self.rng.choice(self.regions)
        match self.rng.randrange(9):
            case 0 | 1 | 2:
                self.publish()
            case 3 | 4:
                region.ledger.confirm(self.rng.randrange(1, 4))
            case 5 if self.rng.random() < 0.3:
                region.ledger.fail(NotEnoughBookies("none"))
            case 6 if self.rng.random() < 0.3:
                self.active = self.rng.randrange(3)
            case 7 if self.rng.random() < 0.2:
                region.ledger.confirm(1000)
                region.load()
            case _:
                source = self.rng.choice(self.regions)
                if source is not region and self.rng.random() < 0.5:
                    self.deliver(source, region)

    def heal(self) -> None:
        moving = True
        while moving:
            moving = False
            for region in self.regions:
                region.ledger.confirm(10_000)
            for source in self.regions:
                for target in self.regions:
                    if source is not target:
                        moving = self.deliver(source, target) or moving
        for region in self.regions:
            region.ledger.confirm(10_000)


def _ignored(_: HeliographError) -> None:
    """What failed is delivered again."""


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
        monkeypatch.setattr(Producers, "holds", lambda self, name, low, high: high <= self.last_sequence(name))
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
    region.log.publish(local("p", 0, 4), lambda _: None, _ignored)
    region.ledger.confirm(9)
    other = (2, 1, 9)
    again = Run(
        [b"y"] * 6, [1] * 6, origin=other, spans=((5, 0, 6),), checksums=[0] * 6, producers=(("p", 6, 2, None),)
    )
    assert region.log.append_replicated(BEFORE_ALL, again, lambda _: None, _ignored) is RunVerdict.ACCEPT
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
        known.confirm(local("busy", round_number * 10, 1))
        known.confirm(local(f"once-{round_number}", 0, 1))
    assert known.holds("busy", 40, 40) and known.holds("once-4", 0, 0)
    assert not known.holds("once-0", 0, 0) and not known.holds("busy", 0, 0)
    again = Producers(DedupSettings(local_ranges_max=3))
    again.load(known.dump())
    assert again.dump() == known.dump() and again.holds("busy", 40, 40)
    old = Producers(DedupSettings())
    old.load(known.dump()[:2])
    assert not old.holds("busy", 40, 40) and old.last_sequence("busy") == 40, "a state of an earlier version"


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
        us.log.publish(pieces_of_one(arrived), lambda _: None, _ignored)
        us.ledger.confirm(9)
        again = pieces_of_one(3)
        for start in range(3):
            while world.rng.random() < 0.5 and world.deliver(us, eu):
                eu.ledger.confirm(world.rng.randrange(3))
            eu.log.publish(again.cut(start, start + 1), lambda _: None, _ignored)
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
