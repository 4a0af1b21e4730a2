"""Producers of one name in two regions: the same application, deployed twice, where both regions take messages, and
where one of them leads.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import HeliographError
from heliograph.model.producer_names import EVERYWHERE
from heliograph.wire.run import Run
from replicator.dedup import aliases, producer_dedup
from replicator.dedup.producer_dedup import Coming, DedupSettings, Producers
from replicator.log.replicated_log import ReplicatedLog
from tests.broken_rules import BrokenRules
from tests.replicator.dedup.alias_world import Gate, Region, World
from tests.replicator.link_instance import Instance, TestRegion, play
from tests.replicator.link_world import entry

NAME = "orders"


def test_what_a_producer_is_confirmed_is_stored_whatever_another_region_calls_its_own() -> None:
    """A message that is confirmed lies in the log of the region that confirmed it. Deduplication leaves out only what
    is there already.

    The sequences of both producers begin at 0, as sequences do, and say nothing of each other. Where us has already
    sent its 10 to 29, those of eu are messages of their own.
    """
    confirmed: list[int] = []
    held: list[int] = []

    def publish(region: TestRegion, first: int, count: int) -> None:
        bodies = [region.info.number * 1_000_000 + sequence for sequence in range(first, first + count)]
        parts = [entry(body, NAME, first + index) for index, body in enumerate(bodies)]
        run = Run(parts, [len(part) for part in parts], producers=((NAME, count, first, None),))

        def done(_: Any) -> None:
            confirmed.extend(bodies)

        def failed(error: Exception) -> None:
            region.faults.append(repr(error))

        region.brokers[region.owner].machine.run(region.log.publish, run, done, failed)

    async def scenario(instance: Instance, _: Simulation) -> None:
        us, eu = instance.regions.values()
        assert eu.log.gate is None, "both regions take messages"
        publish(eu, 0, 10)
        publish(us, 0, 80)
        await asyncio.sleep(5)
        assert len(eu.bodies()) == len(us.bodies()) == 90
        publish(eu, 10, 20)
        await asyncio.sleep(5)
        held.extend(eu.bodies())

    play(scenario, names=("us", "eu"))
    assert len(confirmed) == 110
    lost = sorted(set(confirmed) - set(held))
    assert not lost, f"{len(lost)} confirmed messages are not in eu: {lost}"


class Program:
    """Sends in order, keeps what has no receipt, and sends all of it again wherever it connects."""

    def __init__(self, home: int) -> None:
        self.home = self.at = home
        self.sequence = 0
        self.pending: deque[int] = deque()
        self.connections = 0
        self.refused = False
        """Nothing more is sent on this connection."""

    def body(self, sequence: int) -> bytes:
        return b"%d:%d" % (self.home, sequence)


class Twice(World):
    """Two programs of one name, at home in the first two regions, in a namespace that gets a leadership, whose active
    region moves, and loses it again. While there is one, the program of the region that has it first publishes, and
    comes along, to a third region or a fourth; the other waits. In no region are both: there one name is one producer.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.gate = Gate(0)
        self.epoch = self.newest = 0
        self.regions = [Region(number, self.rng, self.gate) for number in (1, 2, 3, 4)]
        self.programs = [Program(0), Program(1)]
        self.leads: Program | None = None
        self.acknowledged: dict[bytes, None] = {}
        self.sent: dict[bytes, set[int]] = {}
        """Body -> the leaderships under which it was sent."""

    def send(self, program: Program, sequences: list[int]) -> None:
        if not sequences:
            return
        bodies = [program.body(sequence) for sequence in sequences]
        for body in bodies:
            self.sent.setdefault(body, set()).add(self.gate.leadership)
        run = Run(bodies, [len(body) for body in bodies], producers=((NAME, len(sequences), sequences[0], None),))
        connection = program.connections

        def done(_: Any) -> None:
            if program.connections == connection:
                for sequence, body in zip(sequences, bodies, strict=True):
                    self.acknowledged[body] = None
                    if sequence in program.pending:
                        program.pending.remove(sequence)

        def failed(_: HeliographError) -> None:
            program.refused = program.refused or program.connections == connection

        self.regions[program.at].log.publish(run, done, failed)

    def connect(self, program: Program, at: int) -> None:
        program.at, program.connections, program.refused = at, program.connections + 1, False
        pending = list(program.pending)
        while pending:
            count = self.rng.randrange(1, 5)
            self.send(program, pending[:count])
            del pending[:count]

    def publish(self) -> None:
        program = self.leads or self.rng.choice(self.programs)
        if program.refused:
            self.connect(program, program.at)
        sequences = list(range(program.sequence, program.sequence + self.rng.randrange(1, 5)))
        program.sequence += len(sequences)
        program.pending += sequences
        self.send(program, sequences)

    def move(self) -> None:
        """`dr set`, a failover, or `dr unset`."""
        if self.leads is None:
            self.epoch += 1
            self.gate.leadership = self.gate.epoch = self.newest = self.epoch
            self.leads = self.rng.choice(self.programs)
            self.connect(self.leads, self.leads.home)
        elif self.rng.random() < 0.6:
            self.epoch += 1
            self.gate.epoch = self.epoch
            self.connect(self.leads, self.rng.choice((self.leads.home, 2 + self.leads.home)))
        else:
            self.gate.leadership, program, self.leads = 0, self.leads, None
            self.connect(program, program.home)


def found_wrong(seed: int) -> str:
    world = Twice(seed)
    for _ in range(200):
        world.step()
    for program in world.programs:
        if world.leads in (None, program):
            world.connect(program, program.at)
    world.heal()
    for region in world.regions:
        found = Counter(
            bytes(part)
            for run in map(region.store_run, (block for _, _, block in region.store.blocks))
            if run.flags is None
            for part in run.parts
        )
        if lacking := [body for body in world.acknowledged if body not in found]:
            return f"seed {seed}: region {region.number} lacks {lacking}"
        if twice := [body for body, count in found.items() if count > 1 and world.sent[body] == {world.newest}]:
            return f"seed {seed}: region {region.number} has {twice} more than once"
    return ""


def _same_bytes(patch: BrokenRules) -> None:
    """Two programs may send the same, as of a heartbeat: then nothing but the leadership tells their messages apart."""

    def coming(coming: Coming, name: str, low: int, high: int, _: int) -> bool:
        return any(first <= low and high <= last for first, last, _ in coming.get(name, ()))

    patch.setattr(Producers, "_same", lambda self, name, low, checksum: True)
    patch.setattr(producer_dedup, "is_coming", coming)
    patch.setattr(aliases, "is_coming", coming)


@pytest.mark.parametrize("same", (False, True))
def test_nothing_is_lost_where_two_programs_have_one_name_and_nothing_is_doubled_under_one_leadership(
    same: bool, broken: BrokenRules
) -> None:
    """A tail that comes only once the next leadership has begun may be."""
    if same:
        _same_bytes(broken)
    for seed in range(24):
        assert not (wrong := found_wrong(seed)), wrong


def _every_leadership_is_the_same(patch: BrokenRules) -> None:
    patch.setattr(Gate, "leadership", property(lambda self: 1, lambda self, _: None))


def _ranges_outlive_their_leadership(patch: BrokenRules) -> None:
    def follows(self: Producers, run: Run) -> bool:
        self.leadership = max(self.leadership, run.leadership)
        return run.leadership == self.leadership

    patch.setattr(Producers, "_follows", follows)


def _what_is_on_its_way_is_of_every_leadership(patch: BrokenRules) -> None:
    def under_way(self: ReplicatedLog, leadership: int, *, elsewhere: bool = False) -> Iterator[Run]:
        for waiting in self._order:
            there = not (waiting.duplicate or waiting.skip or waiting.state == waiting.FAILED)
            if there and not (elsewhere and waiting.run.origin is None):
                yield waiting.run

    patch.setattr(ReplicatedLog, "_under_way", under_way)


def _no_ranges(patch: BrokenRules) -> None:
    patch.setattr(Producers, "_follows", lambda self, run: False)


@pytest.mark.parametrize(
    "mutant",
    (
        _every_leadership_is_the_same,
        _ranges_outlive_their_leadership,
        _what_is_on_its_way_is_of_every_leadership,
        _no_ranges,
    ),
)
def test_each_rule_is_needed(mutant: Any, broken: BrokenRules) -> None:
    _same_bytes(broken)
    mutant(broken)

    def run(seed: int) -> None:
        assert not (wrong := found_wrong(seed)), wrong

    broken.look(run, range(150))


def test_a_name_that_is_one_producer_everywhere_is_compared_also_where_every_region_takes_messages() -> None:
    """As of a job that is cut off in one region and goes on in another; of other names nothing is known elsewhere."""
    name = f"{EVERYWHERE}job-0"
    for one, known in ((name, True), ("orders", False)):
        producers = Producers(DedupSettings())
        there = Run([b"x"] * 3, [1] * 3, producers=[(one, 3, 10, None)], origin=(2, 1, 7))
        producers.confirm_replicated(there)
        again = Run([b"x"] * 5, [1] * 5, producers=[(one, 5, 9, None)])
        assert producers.submit(again) == ([True, False, False, False, True] if known else None)
        assert producers.last_sequence(one, 0) == (12 if known else -1)
        loaded = Producers(DedupSettings())
        loaded.load(producers.dump())
        assert loaded.last_sequence(one, 0) == (12 if known else -1)


def test_a_newer_leadership_forgets_other_names_alone() -> None:
    name = f"{EVERYWHERE}job-0"
    producers = Producers(DedupSettings())
    for one in (name, "orders"):
        run = Run([b"x"], [1], producers=[(one, 1, 4, None)], origin=(2, 1, 7))
        run.leadership = 3
        producers.confirm_replicated(run)
    assert producers.last_sequence("orders", 3) == producers.last_sequence(name, 3) == 4
    run = Run([b"x"], [1], producers=[("other", 1, 0, None)], origin=(2, 1, 7))
    run.leadership = 5
    producers.confirm_replicated(run)
    assert producers.last_sequence("orders", 3) == producers.last_sequence("orders", 5) == -1
    assert producers.last_sequence(name, 5) == producers.last_sequence(name, 0) == 4


def everywhere(pairs: tuple[tuple[int, int], ...], counts: tuple[int, ...] | None) -> Run:
    """A run of a region that both regions' names have in common."""
    parts = [entry(7, EVERYWHERE + "x", low) for low, _ in pairs]
    return Run(
        parts,
        [len(part) for part in parts],
        counts=counts,
        origin=(2, 1, 7),
        spans=((0, 0, len(parts)),),
        checksums=[int.from_bytes(part[2:6], "big") for part in parts],
        producers=((EVERYWHERE + "x", len(parts), pairs[0][0], pairs),),
    )


@pytest.mark.parametrize(
    ("pairs", "counts", "believed"),
    [
        (((0, 9), (10, 19)), (10, 10), 19),
        (((0, 0), (1, 1)), None, 1),
        (((0, 1 << 62),), (1,), -1),
        (((0, 9), (10, 1 << 40)), (10, 10), -1),
        (((0, 1),), None, -1),
    ],
)
def test_of_a_name_that_is_one_everywhere_no_sequence_is_taken_without_a_message(
    pairs: tuple[tuple[int, int], ...], counts: tuple[int, ...] | None, believed: int
) -> None:
    """One entry of a region that lies would else take all that this producer will ever send here."""
    producers = Producers(DedupSettings())
    producers.confirm_replicated(everywhere(pairs, counts))
    assert producers.last_sequence(EVERYWHERE + "x", 0) == believed
