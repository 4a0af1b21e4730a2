"""A world of three regions, full mesh, one topic: the link's real cores over in-memory storage, stepped by a seed.

Is: faults (cuts that lose a suffix, late frames of old connections, owner moves at both ends with zombies, risen
epochs, lost submitted tails, forced trimming, messages for some regions only, duplicates of local producers), and the
invariants, checked after every step. Isn't: sockets or a clock.
Even seeds are mild: nothing may be lost at all. Odd seeds are harsh: data is trimmed by force before links have it, and
every loss must be named.
The classes that decide are attributes of `World`, so that a test can put a broken rule in their place.
"""

from __future__ import annotations

import random
from typing import Any

import crc32c

from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError, NotEnoughBookies
from heliograph.model.positions import Position
from heliograph.wire.block import decode_block
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import LinkFrameKind, SkipRecord
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.bandwidth.compression import LEVEL, RunPacker
from replicator.bandwidth.compression_settings import CompressionSettings
from replicator.dedup.producer_dedup import DedupSettings
from replicator.dedup.version_vector import Intake
from replicator.health.incoming_stats import Heard, IncomingLink, IncomingRegion
from replicator.log.deletion import note_removed, past_removed
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from replicator.receiving.receiver_stream import ReceiverStream
from replicator.sending.link_sender import LinkSender, SenderSettings
from replicator.sending.outgoing_runs import OutgoingRun, Send, joined
from tests.replicator.fake_ledger import FakeLedger, Store

NAMES = ("us", "eu", "ap")
WINDOW_BYTES = 400
RUN_BYTES_MAX = 1000
"""Of what one read brings."""
Coordinate = tuple[Any, Position]


def entry(body: int, producer: str, sequence: int, to: tuple[str, ...] = (), body_bytes: int = 8) -> bytes:
    """One entry as a client writes it; its payload is `body`, for the checker alone."""
    metadata = MessageMetadata(
        producer_name=producer, sequence_id=sequence, publish_time=1, replicate_to=to
    ).SerializeToString()
    rest = len(metadata).to_bytes(4, "big") + metadata + body.to_bytes(body_bytes, "big")
    return b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest


class Believed:
    """The configuration of a world whose trees are all as they should be."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def region_of(self, origin: Origin) -> str | None:
        return self._names[origin[0] - 1]

    def refusal(self, log: ReplicatedLog, source: str, origin: Origin, record: Run) -> str:
        return ""

    def leadership(self, log: ReplicatedLog) -> int:
        return 0

    def ended(self, origin: Origin) -> bool:
        return False


class Region:
    """One region: what is durable, its present owner, and the checker's notes."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index, self.name, self.number = world, index, world.names[index], index + 1
        self.store = Store()
        self.seen = 0  # blocks of the store that the checker has looked at
        self.trimmed_blocks = 0
        self.bodies: dict[Coordinate, int] = {}  # what is held or was held
        self.last: dict[Any, Position] = {}
        self.losses: list[SkipRecord] = []
        self.published: dict[
            Coordinate, tuple[int, tuple[str, ...]]
        ] = {}  # confirmed here, first published here -> body, addressees
        self.forced: Position = (0, 0)
        self.sequence = 0
        self.marks: dict[str, list[Position]] = {}
        self.epoch = 1
        self.owner: ReplicatedLog
        self.load()

    def load(self) -> None:
        state = TopicState(
            region=self.number, epoch=self.epoch, rng=self.world.rng, deduplication=True, settings=DedupSettings()
        )
        ledger = FakeLedger(self.store, state, now_ms=lambda: int(self.world.now * 1000))
        state.intake.__class__ = self.world.intake_class
        state.begin_epoch(ledger.last_confirmed)
        ledger.save()  # as the compare-and-set does that begins the first ledger
        self.owner = ReplicatedLog(ledger, state)  # type: ignore[arg-type]

    @property
    def ledger(self) -> FakeLedger:
        return self.owner.ledger  # type: ignore[return-value]

    def mark(self, target: str) -> Position:
        """The cursor as it is stored: any of the last few positions may be the durable one after a crash."""
        marks = self.marks.get(target, [(-1, -1)])
        return self.world.rng.choice(marks[-3:])


class Connection:
    """One connection: frames on their way in both directions, and the target's stream."""

    def __init__(self, world: World, link: SimLink, target: Region) -> None:
        self.link, self.target = link, target
        self.wire: list[bytes] = []
        self.back: list[bytes] = []
        self.dirty = False
        self.stream = self.make_stream(world)
        self.send(self.back, wire.opened_frame(1, target.owner.origin[2], WINDOW_BYTES, target.owner.vector))

    def make_stream(self, world: World) -> ReceiverStream:
        def dirty(_: ReceiverStream) -> None:
            self.dirty = True

        source, owner = self.link.source, self.target.owner
        return world.stream_class(
            1,
            source.name,
            source.number,
            owner,
            lambda f: self.send(self.back, f),
            dirty,
            region=self.target.name,
            relays=Believed(world.names),
            incoming=IncomingLink(IncomingRegion(), Heard(lambda: 0.0)),
        )

    def send(self, queue: list[bytes], buffers: Any) -> None:
        queue.append(b"".join(bytes(b) for b in buffers))

    def deliver(self) -> None:
        """One frame reaches the target."""
        kind, fields, payload = parsed(self.wire.pop(0))
        if kind is LinkFrameKind.RUN:
            _, attempt, previous, run = wire.read_run(fields, payload)
            self.stream.on_run(attempt, previous, run)
        else:
            _, attempt, record = wire.read_skip(fields)
            self.stream.on_skip(attempt, record)

    def receipts(self) -> None:
        if self.dirty:
            self.dirty = False
            self.send(self.back, wire.receipt_frame(1, self.stream.receipt()))


def parsed(frame: bytes) -> tuple[LinkFrameKind, list[Any], memoryview]:
    size = int.from_bytes(frame[4:8], "big")
    number, content = wire.command_content(memoryview(frame)[8 : 8 + size])
    kind, fields = wire.parse(number, content)
    return kind, fields, memoryview(frame)[8 + size :]


class SimLink:
    """The sender's side, of one owner of the source."""

    def __init__(self, world: World, source: Region, target: Region) -> None:
        self.world, self.source, self.target, self.log = world, source, target, source.owner
        self.core = world.sender_class(
            target.name,
            self.log.state,
            source.mark(target.name),
            SenderSettings(window_bytes=WINDOW_BYTES),
            source.name,
        )
        self.connection: Connection | None = None
        self.panicked = False
        self.packer = RunPacker(
            CompressionSettings(mode=("none", "lz4", "zstd")[target.index % 3], run_bytes_min=0, gain_min=0.0)
        )
        self.packer.level = LEVEL

    @property
    def ledger(self) -> FakeLedger:
        return self.log.ledger  # type: ignore[return-value]

    def connect(self) -> None:
        self.connection = Connection(self.world, self, self.target)

    def cut(self) -> None:
        if (connection := self.connection) is not None:
            rng = self.world.rng
            connection.wire = connection.wire[: rng.randrange(len(connection.wire) + 1)]
            self.world.late.append(connection)
            self.connection = None
            self.core.disconnected()

    def pump(self) -> None:
        core, connection = self.core, self.connection
        if connection is None or core.room_bytes <= 0:
            return
        first = self.ledger.first_position()
        if self.panicked:  # a former owner that cannot read takes everything for trimmed
            first = (self.ledger.last_confirmed[0], self.ledger.last_confirmed[1] + 1)
        while (removed := past_removed(self.log.state, core.read_at)) is not None or core.read_at < first:
            record = core.trimmed(*removed) if removed is not None else core.trimmed(first)
            if record is not None:
                self.first(record)
                return
        if core.read_at > self.ledger.last_confirmed:
            core.at_the_end()
            if (record := core.lacks(None) or core.filtered(self.world.now)) is not None:
                self.first(record)
            return
        if self.panicked:
            return
        runs = self.ledger.cached(core.read_at, self.world.rng.randrange(1, 9), 10_000)
        sends: list[Send] = []
        record = None
        for ledger, start, run in runs:
            if (record := core.lacks(run)) is not None:
                break
            sends += core.take(ledger, start, run, self.world.now)
        for send in joined(sends):
            frame = (
                self.packer.frame(1, core.attempt, send.previous, send.run, 0.0)
                if isinstance(send, OutgoingRun)
                else wire.skip_frame(1, core.attempt, send)
            )
            connection.send(connection.wire, frame)
        if record is not None:
            self.first(record)

    def first(self, send: Send) -> None:
        """What must go out before anything else."""
        assert self.connection is not None
        if isinstance(send, SkipRecord):
            self.world.skip(self, send)
        else:
            self.connection.send(
                self.connection.wire, self.packer.frame(1, self.core.attempt, send.previous, send.run, 0.0)
            )

    def hear(self) -> None:
        """One frame reaches the source."""
        connection = self.connection
        if connection is None or not connection.back:
            return
        kind, fields, _ = parsed(connection.back.pop(0))
        core = self.core
        went_back: bool | None = False
        if kind is LinkFrameKind.OPENED:
            _, _, window, vector, _ = wire.read_opened(fields)
            went_back = core.opened(vector, window)
        elif kind is LinkFrameKind.GAP:
            _, attempt, vector = wire.read_gap(fields)
            went_back = core.gap(attempt, vector)
        elif kind is LinkFrameKind.HEARTBEAT:
            went_back = core.heard(wire.read_heartbeat(fields).streams[0].vectors[self.target.name])
        else:
            _, through = wire.read_receipt(fields)
            for origin, position in through:
                core.receipt(origin, position)
            went_back = core.go_back()
        assert not went_back, "a target's durable vector never goes back in this world"


class World:
    names: tuple[str, ...] = NAMES
    sender_class: type[LinkSender] = LinkSender
    stream_class: type[ReceiverStream] = ReceiverStream
    intake_class: type[Intake] = Intake
    skip_waits = True
    deletes = True
    """What is trimmed by force is sometimes what an admin has deleted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.harsh = seed % 2 == 1
        self.now = 0.0
        self.body = 0
        self.regions = [Region(self, i) for i in range(len(self.names))]
        self.links: dict[tuple[int, int], SimLink] = {}
        self.zombies: list[SimLink] = []
        self.late: list[Connection] = []
        for s in range(len(self.names)):
            for t in range(len(self.names)):
                if s != t:
                    self.links[s, t] = SimLink(self, self.regions[s], self.regions[t])

    # -- what happens --------------------------------------------------------------------------------------------------

    def publish(self, region: Region) -> None:
        count, producer = self.rng.randrange(1, 5), f"{region.name}-producer"
        if region.sequence and self.rng.random() < 0.2:
            region.sequence = max(0, region.sequence - self.rng.randrange(1, 4))  # the client tries again
        to: tuple[str, ...] = () if self.rng.random() < 0.7 else (self.rng.choice(self.names),)
        parts, first = [], region.sequence
        for i in range(count):
            self.body += 1
            parts.append(entry(self.body, producer, first + i, to))
        region.sequence += count
        run = Run(parts, [len(p) for p in parts], producers=((producer, count, first, None),))

        def failed(_: HeliographError) -> None:
            region.sequence = min(region.sequence, first)

        region.owner.publish(run, lambda _: None, failed)

    def skip(self, link: SimLink, record: SkipRecord) -> None:
        attempt, connection = link.core.attempt, link.connection

        def stored(_: object) -> None:
            if (
                connection is not None
                and connection is link.connection
                and (out := link.core.skip_stored(attempt, record)) is not None
            ):
                connection.send(connection.wire, wire.skip_frame(1, link.core.attempt, out))

        if self.skip_waits:
            link.log.append_skip(record, stored, lambda _: link.cut(), issued=True)
        else:
            stored(None)

    def move_owner(self, region: Region) -> None:
        """A broker dies, or is taken for dead: a prefix of what it had submitted is found, the rest is lost."""
        old = region.ledger
        zombie = self.rng.random() < 0.6
        kept = self.rng.randrange(len(old.pending) + 1)
        waiting = old.pending[kept:]
        old.recover_tail(kept)
        old.pending = waiting if zombie else []
        region.epoch += self.rng.random() < 0.2
        region.load()
        region.sequence = region.owner.last_sequence(f"{region.name}-producer") + 1
        for (s, t), link in list(self.links.items()):
            if s == region.index:
                if zombie:
                    self.zombies.append(link)
                else:
                    link.cut()
                self.links[s, t] = SimLink(self, region, self.regions[t])
            elif t == region.index and (not zombie or self.rng.random() < 0.5):
                link.cut()

    def trim(self, region: Region, faults: bool) -> None:
        safe = min(
            region.marks.get(t.name, [(-1, -1)])[-3:][0] for t in self.regions if t is not region
        )  # cursors as they are stored
        force = faults and self.harsh and self.rng.random() < 0.3
        region.ledger.save()
        if force and self.deletes and self.rng.random() < 0.7:
            self.delete(region)
        before = list(region.store.blocks)
        region.ledger.trim(region.ledger.last_confirmed if force else safe)
        gone = len(before) - len(region.store.blocks)
        region.seen -= gone
        for (ledger, first), count, block in before[:gone]:
            _, _, run = decode_block(block)
            if run.origin is None:
                region.forced = max(region.forced, (ledger, first + count - 1))

    def delete(self, region: Region) -> None:
        """An admin truncates the topic: links are moved over what they have not delivered, wherever they are, and
        brokers move right then.
        """
        note_removed(region.owner.state, region.ledger.first_position(), region.ledger.last_confirmed)
        region.ledger.save()
        for target in self.regions:
            if target is not region:
                region.marks.setdefault(target.name, [(-1, -1)])[-3:] = [region.ledger.last_confirmed] * 3
        if self.rng.random() < 0.5:
            self.move_owner(region)
        self.check()  # what was found on the bookies is looked at before it goes

    def late_frame(self, connection: Connection) -> None:
        """A frame of a connection that is gone, at whoever owns the target now."""
        connection.stream.end(Heard(lambda: 0.0))
        connection.stream = connection.make_stream(self)
        if connection.wire:
            connection.deliver()

    def step(self, faults: bool = True) -> None:
        rng = self.rng
        self.now += rng.choice((0.0, 0.01, 0.4))
        region = rng.choice(self.regions)
        link = self.links[rng.choice(sorted(self.links))]
        roll = rng.random()
        if not faults:
            roll = 0.14 + roll * 0.86
        if roll < 0.12:
            self.publish(region)
        elif roll < 0.13:
            region.ledger.fail(NotEnoughBookies("none"))
        elif roll < 0.135:
            self.move_owner(region)
        elif roll < 0.14:
            link.cut()
        elif roll < 0.15:
            self.trim(region, faults)
        elif roll < 0.16:
            if not region.ledger.pending:
                region.ledger.rollover()
        elif roll < 0.30:
            region.ledger.confirm(rng.randrange(len(region.ledger.pending) + 1) if faults else 99)
        elif roll < 0.36 and (faults or self.zombies):
            self.strange(faults)
        elif link.connection is None:
            link.connect()
        else:
            connection = link.connection
            rng.choice((link.pump, link.hear, connection.receipts, lambda: connection.wire and connection.deliver()))()
        self.check()

    def strange(self, faults: bool) -> None:
        """Zombies go on, and frames of old connections arrive."""
        rng = self.rng
        if not faults:
            self.zombies.pop().cut()
            return
        if self.late and rng.random() < 0.5:
            self.late_frame(rng.choice(self.late[-8:]))
        if self.zombies:
            link = rng.choice(self.zombies[-4:])
            connection = link.connection
            if connection is None:
                return
            link.panicked = link.panicked or rng.random() < 0.2
            acts = (
                link.pump,
                link.hear,
                connection.receipts,
                lambda: connection.wire and connection.deliver(),
                lambda: link.ledger.confirm(9),
            )
            rng.choice(acts)()

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for region in self.regions:
            for (ledger, first), _, block in region.store.blocks[region.seen :]:
                self.look(region, ledger, first, decode_block(block)[2])
            region.seen = len(region.store.blocks)
        for (s, t), link in self.links.items():
            source, target = self.regions[s], self.regions[t]
            flight = [size for sent in link.core._steps._flight.values() for _, size in sent]
            assert link.core.in_flight_bytes == sum(flight), "what is in flight is counted, all of it"
            assert link.core.in_flight_bytes <= WINDOW_BYTES + RUN_BYTES_MAX, "the window bounds it"
            marks = source.marks.setdefault(target.name, [(-1, -1)])
            if link.core.mark > marks[-1]:
                self.check_mark(source, target, marks[-1], link.core.mark)
                marks.append(link.core.mark)

    def look(self, region: Region, ledger: int, first: int, run: Run) -> None:
        """A new block of a region."""
        for i in range(run.count):
            if run.flags is not None and run.flags[i] & FLAG_HIDDEN:
                record = SkipRecord.decode(run.parts[i])
                if record.loss and not region.owner.state.is_own(record.origin):
                    self.check_loss(region, record)
                continue
            origin = region.owner.state.origin_at((ledger, first + i)) if run.origin is None else run.origin
            where = (ledger, first + i) if run.origin is None else run.coordinate(i)
            body = int.from_bytes(bytes(run.parts[i])[-8:], "big")
            assert (origin, where) not in region.bodies, "stored twice"
            assert where > region.last.get(origin, (-1, -1)), "order"
            region.bodies[origin, where], region.last[origin] = body, where
            if run.origin is None:
                metadata = MessageMetadata.FromString(bytes(run.parts[i])[10 : len(run.parts[i]) - 8])
                region.published[origin, where] = (body, tuple(metadata.replicate_to))
            else:
                assert bytes(run.parts[i]).count(b"\x2a\x02" + self.names[origin[0] - 1].encode()) == 1, (
                    "replicated_from stands there once"
                )

    def check_loss(self, region: Region, record: SkipRecord) -> None:
        assert self.harsh, "a loss where nothing was lost"
        source = self.regions[record.origin[0] - 1]
        for origin, where in source.published:
            if origin == record.origin and record.after < where <= record.through:
                assert where <= source.forced, "a SKIP names what is not lost"
        region.losses.append(record)

    def covered(self, target: Region, where: Coordinate) -> bool:
        origin, position = where
        return any(r.origin == origin and r.after < position <= r.through for r in target.losses)

    def check_mark(self, source: Region, target: Region, after: Position, mark: Position) -> None:
        for where, (body, to) in source.published.items():
            if after < where[1] <= mark and (not to or target.name in to):
                held = target.bodies.get(where)
                assert held == body or self.covered(target, where), (
                    "the cursor passed what is not durable at the remote"
                )

    def missing(self) -> list[tuple[str, str, Coordinate]]:
        out = []
        for source in self.regions:
            for where, (body, to) in source.published.items():
                for target in self.regions:
                    if target is source or (to and target.name not in to):
                        continue
                    if target.bodies.get(where) != body and not self.covered(target, where):
                        out.append((source.name, target.name, where))
        return out

    def settled(self) -> bool:
        idle = not any(r.ledger.pending for r in self.regions)
        return (
            idle and not self.missing() and all(link.core.backlog() == ((0, 0, 0), 0) for link in self.links.values())
        )

    def run(self, steps: int = 700, heal_steps: int = 12_000) -> None:
        for _ in range(steps):
            self.step()
        for link in self.links.values():
            link.cut()
        for i in range(heal_steps):
            self.step(faults=False)
            if i % 100 == 99 and self.settled():
                return
        backlogs = {
            f"{self.names[s]}-{self.names[t]}": link.core.backlog()[0][0] for (s, t), link in self.links.items()
        }
        raise AssertionError(f"no convergence: missing {self.missing()[:3]}, backlogs {backlogs}")
