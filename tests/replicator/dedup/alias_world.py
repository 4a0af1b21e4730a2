"""Regions that publish and deliver by the real `ReplicatedLog` over in-memory ledgers, and a client that goes from one
to another: for tests of what is stored once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from heliograph.model.errors import HeliographError, NotEnoughBookies
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.block import decode_block
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.dedup.published_checksums import checksums_of
from replicator.dedup.version_vector import RunVerdict
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.replicator.fake_ledger import FakeLedger, Store


class Gate:
    """Of one namespace, in every region."""

    leadership = 0

    def __init__(self, leadership: int = 3) -> None:
        self.leadership = self.epoch = leadership

    def taken_before(self) -> Callable[[], None]:
        raise AssertionError("it is there from the beginning")


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

    def stored(self) -> list[bytes]:
        """What clients see, in order."""
        out = []
        for (_, _), _, block in self.store.blocks:
            run = self.store_run(block)
            if run.flags is None or not run.flags[0] & FLAG_HIDDEN:
                out += [bytes(part) for part in run.parts]
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


def body(process: int, sequence: int) -> bytes:
    """The message of that sequence, as one process has made it."""
    return b"%d:%d" % (process, sequence)


def local(name: str, first: int, count: int, process: int = 0) -> Run:
    parts = [body(process, sequence) for sequence in range(first, first + count)]
    return Run(parts, [len(part) for part in parts], producers=((name, count, first, None),))


def delivered(source: Region, at: tuple[int, int, Run]) -> Run:
    ledger, first, run = at
    origin = source.log.origin
    return Run(
        list(run.parts),
        list(run.lengths),
        origin=origin,
        spans=((ledger, first, run.count),),
        checksums=checksums_of(run),
        producers=run.producers,
        leadership=run.leadership,
    )


class World:
    """Three regions; a producer whose client sends, loses its connection, and tries again wherever it is sent.

    restarts: at times another process takes its name over, forgets what had no receipt, and goes on from the highest
    sequence of the region where it begins, as a client does that was told it.
    """

    def __init__(self, seed: int, *, restarts: bool = False) -> None:
        self.rng, self.restarts = random.Random(seed), restarts
        self.gate = Gate()
        self.regions = [Region(number, self.rng, self.gate) for number in (1, 2, 3)]
        self.confirmed: set[bytes] = set()
        self.active, self.next, self.pending = 0, 0, list[int]()
        self.process = 0

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
        at, process = self.active, self.process
        self.regions[at].log.publish(
            local("p", first, count, process),
            lambda _: self._confirm(first, count) if (self.active, self.process) == (at, process) else None,
            lambda _: None,
        )

    def restart(self) -> None:
        """What the process before had on its way in this region has ended before."""
        region = self.regions[self.active]
        region.ledger.confirm(1000)
        self.process, self.pending = self.process + 1, []
        self.next = region.log.last_sequence("p") + 1

    def _wait(self) -> None:
        """What is behind others waits for them: a client sends in order."""
        self._send(self.pending[0], min(4, len(self.pending)))

    def _confirm(self, first: int, count: int) -> None:
        for sequence in range(first, first + count):
            self.confirmed.add(body(self.process, sequence))
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
        """The client goes to some region, where another leadership begins; at times it is another process there."""
        self.active = self.rng.randrange(3)
        self.gate.epoch += 1
        if self.restarts and self.rng.random() < 0.5:
            self.restart()

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
