"""Regions that publish and deliver by the real `ReplicatedLog` over in-memory ledgers, and a client that goes from one
to another: for tests of what is stored once.
"""

from __future__ import annotations

import random

from heliograph.model.errors import HeliographError, NotEnoughBookies
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import decode_block
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.dedup import aliases
from replicator.dedup.producer_dedup import DedupSettings
from replicator.dedup.version_vector import RunVerdict
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.replicator.fake_ledger import FakeLedger, Store


class Gate:
    """Of one namespace, in every region."""

    def __init__(self, leadership: int = 3) -> None:
        self.leadership = leadership


class Region:
    def __init__(self, number: int, rng: random.Random, gate: Gate | None = None) -> None:
        self.number, self.store, self.rng, self.gate = number, Store(), rng, gate or Gate()
        self.load()

    def load(self) -> None:
        state = TopicState(region=self.number, epoch=1, rng=self.rng, deduplication=True, settings=DedupSettings())
        self.ledger = FakeLedger(self.store, state)
        state.begin_epoch(self.ledger.last_confirmed)
        self.log = ReplicatedLog(self.ledger, state)  # type: ignore[arg-type]
        self.log.stand_behind(self.gate)

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
        leadership=run.leadership,
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
                assert target.log.append_replicated(previous, given, lambda _: None, ignored) is RunVerdict.ACCEPT
                return True
        return False

    def move(self) -> None:
        """The client goes to some region."""
        self.active = self.rng.randrange(3)

    def step(self) -> None:
        region = self.rng.choice(self.regions)
        match self.rng.randrange(10):
            case 0 | 1 | 2:
                self.publish()
            case 3 | 4:
                region.ledger.confirm(self.rng.randrange(1, 4))
            case 5 if self.rng.random() < 0.3:
                region.ledger.fail(NotEnoughBookies("none"))
            case 6 if self.rng.random() < 0.4:
                self.move()
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


def ignored(_: HeliographError) -> None:
    """What failed is delivered again."""
