"""What a source may say: of its own entries everything, of another region's what it passes on as configured."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import Origin
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import LinkFrameKind, LinkHeartbeat, SkipReason, SkipRecord, StreamBeat
from heliograph.wire.run import Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.health.incoming_stats import IncomingStats
from replicator.health.link_causes import Cause
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.routing_trees import Tree, tree_checksum
from replicator.log.topic_state import STATE_BYTES_MAX, TopicState
from replicator.receiving.link_receiver import LinkReceiver, _Adopting
from replicator.receiving.link_session import LinkSession
from replicator.receiving.receiver_stream import ORIGINS_IN_ALL_MAX, ORIGINS_MAX
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.replicator.link_world import entry, parsed

NAMES = ("us", "eu", "ap")
TOPIC = "persistent://t/n/x"
EU, AP = (2, 1, 7), (3, 1, 9)
FAR = (1 << 61, 0)


class Configured:
    """The configuration of us: by which regions it gets what others publish."""

    def __init__(self) -> None:
        self.relays: list[tuple[str, int]] = []
        self.led = 0
        self.epochs: dict[int, int] = {}
        """Number of a region -> its present epoch."""

    def region_of(self, origin: Origin) -> str | None:
        return NAMES[origin[0] - 1] if origin[0] <= len(NAMES) else None

    def refusal(self, log: ReplicatedLog, source: str, origin: Origin, record: Run) -> str:
        return "" if (source, origin[0]) in self.relays else "it is not configured so"

    def leadership(self, log: ReplicatedLog) -> int:
        return self.led

    def ended(self, origin: Origin) -> bool:
        return origin[1] < self.epochs.get(origin[0], 0)


class Peer:
    """Speaks as region eu to us, in well-formed frames."""

    def __init__(self, sim: Simulation) -> None:
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=True, settings=DedupSettings())
        state.restore(b"")
        self.log = ReplicatedLog(FakeLedger(Store(TOPIC), state, auto=True), state)  # type: ignore[arg-type]
        self.heard: list[tuple[LinkFrameKind, list[Any]]] = []
        self.incoming, self.configured = IncomingStats(), Configured()
        self.stream = 0

        async def open_log(topic: str, source: str) -> ReplicatedLog:
            return self.log

        def write(buffers: Any) -> None:
            kind, fields, _ = parsed(b"".join(bytes(b) for b in buffers))
            self.heard.append((kind, fields))

        self.receiver = LinkReceiver(
            LinkSession(write, "eu"),
            open_log,
            sim.clock(),
            region="us",
            region_number={name: i + 1 for i, name in enumerate(NAMES)}.get,
            relays=self.configured,
            incoming=self.incoming,
        )

    def hold(self, epoch: int, incarnations: Iterable[int]) -> None:
        """The log has the first entry of each of these origins of eu, skipped."""
        for incarnation in incarnations:
            skip = SkipRecord((2, epoch, incarnation), BEFORE_ALL, (0, 0), SkipReason.FILTERED, "us")
            self.log.state.confirm_skip(skip)

    async def open(self) -> None:
        self.stream += 1
        self.say(wire.open_frame(self.stream, TOPIC, "eu", 2))
        await asyncio.sleep(0.01)
        assert self.heard[-1][0] is LinkFrameKind.OPENED

    def say(self, buffers: Any) -> None:
        frame = memoryview(b"".join(bytes(b) for b in buffers))
        size = int.from_bytes(frame[4:8], "big")
        self.receiver.on_frame(*wire.command_content(frame[8 : 8 + size]), frame[8 + size :])

    def run(self, origin: Origin, at: Position, previous: Position = BEFORE_ALL, *, leadership: int = 0) -> None:
        part = entry(at[1], "p", at[1])
        run = Run(
            [part],
            [len(part)],
            origin=origin,
            spans=((*at, 1),),
            checksums=[int.from_bytes(part[2:6], "big")],
            producers=(("p", 1, at[1], None),),
            leadership=leadership,
        )
        self.say(wire.run_frame(self.stream, 1, previous, run))

    def tree(self, origin: Origin, at: Position, tree: Tree, previous: Position = BEFORE_ALL) -> None:
        run = tree.as_run()
        run.origin, run.spans, run.origin_time_ms = origin, ((*at, 1),), 1
        run.checksums = [tree_checksum(run)]
        self.say(wire.run_frame(self.stream, 1, previous, run))

    def skip(
        self, origin: Origin, after: Position, through: Position, reason: SkipReason = SkipReason.FILTERED
    ) -> None:
        self.say(wire.skip_frame(self.stream, 1, SkipRecord(origin, after, through, reason, "us")))

    def refused(self) -> str:
        """The text of the CLOSE that ended the stream."""
        ends = [wire.read_close(fields) for kind, fields in self.heard if kind is LinkFrameKind.CLOSE]
        assert [(number, cause) for number, cause, _ in ends[-1:]] == [(self.stream, Cause.ORIGIN_REFUSED)]
        return ends[-1][2]


def play(scenario: Callable[[Peer], Coroutine[Any, Any, None]]) -> None:
    sim = Simulation(0)

    async def body() -> None:
        peer = Peer(sim)
        await peer.open()
        await scenario(peer)
        peer.receiver.connection_lost()

    sim.run(body())


def forged_tree(peer: Peer) -> None:
    peer.tree(AP, (0, 0), Tree("ap", {"us": "eu"}, whole=True))


def rooted_elsewhere(peer: Peer) -> None:
    peer.configured.relays.append(("eu", 3))
    peer.tree(AP, (0, 0), Tree("eu", {}, whole=True))


def of_its_own_rooted_elsewhere(peer: Peer) -> None:
    peer.tree(EU, (0, 1), Tree("ap", {"us": "ap"}), (0, 0))


def in_the_middle(peer: Peer) -> None:
    peer.configured.relays.append(("eu", 3))
    peer.tree(AP, (0, 5), Tree("ap", {"us": "eu"}))


def of_no_region(peer: Peer) -> None:
    peer.tree((8, 1, 1), (0, 0), Tree("xx", {"us": "eu"}, whole=True))


def entries(peer: Peer) -> None:
    peer.run(AP, (0, 0))


def skipped(peer: Peer) -> None:
    peer.skip(AP, BEFORE_ALL, FAR)


def of_the_target(peer: Peer) -> None:
    peer.skip(peer.log.origin, BEFORE_ALL, FAR)


def of_a_former_one_of_the_target(peer: Peer) -> None:
    peer.configured.relays.append(("eu", 1))
    peer.tree((1, 1, 5), (0, 0), Tree("us", {"us": "eu"}, whole=True))


def its_last_is_of_another(peer: Peer) -> None:
    peer.say(wire.heartbeat_frame(LinkHeartbeat(1, 0, 0, (StreamBeat(peer.stream, (AP, FAR), {}),))))


@pytest.mark.parametrize(
    "claim",
    [
        forged_tree,
        rooted_elsewhere,
        of_its_own_rooted_elsewhere,
        in_the_middle,
        of_no_region,
        entries,
        skipped,
        of_the_target,
        of_a_former_one_of_the_target,
        its_last_is_of_another,
    ],
)
def test_a_region_speaks_for_its_own_origins_only(
    claim: Callable[[Peer], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(peer: Peer) -> None:
        peer.run(EU, (0, 0))
        await asyncio.sleep(0.1)
        own = peer.log.last_own()
        with caplog.at_level("WARNING"):
            claim(peer)
        await asyncio.sleep(0.1)
        text = peer.refused()
        assert "eu may not speak to us of origin" in text and TOPIC in text
        assert [record.message for record in caplog.records] == ["link.origin_refused"]
        assert list(peer.log.vector) == [EU] and peer.log.last_own() == own and not peer.log.state.trees
        assert "ap" not in peer.log.source_ends and not peer.log.source_ends
        shown = peer.log.incoming["eu"].status(0)
        assert shown["refused"] == {"text": text, "at_ms": shown["refused"]["at_ms"]}  # type: ignore[index]
        assert peer.incoming.region("eu").refused_claims == 1
        peer.run(EU, (0, 1), (0, 0))
        assert peer.log.vector.prefix(EU) == (0, 0), "that stream has ended"
        await peer.open()
        peer.run(EU, (0, 1), (0, 0))
        await asyncio.sleep(0.1)
        assert peer.log.vector.prefix(EU) == (0, 1), "what is its own comes all the same"
        assert peer.log.incoming["eu"].status(0)["refused"] == shown["refused"]

    play(scenario)


def test_what_is_configured_is_passed_on_from_the_moment_when_it_is_known_here() -> None:
    async def scenario(peer: Peer) -> None:
        forged_tree(peer)
        assert "it is not configured so" in peer.refused()
        peer.configured.relays.append(("eu", 3))
        await peer.open()
        forged_tree(peer)
        peer.run(AP, (0, 1), (0, 0))
        await asyncio.sleep(0.1)
        assert peer.log.vector.prefix(AP) == (0, 1)
        peer.configured.relays.clear()
        await peer.open()
        peer.run(AP, (0, 2), (0, 1))
        await asyncio.sleep(0.1)
        assert peer.log.vector.prefix(AP) == (0, 2), "by the tree that the log holds, until its origin plants another"

    play(scenario)


def test_schemas_that_are_being_stored_hold_back_no_refusal() -> None:
    """What waits behind them is judged as what comes at once."""

    async def scenario(peer: Peer) -> None:
        stream = peer.receiver._streams[peer.stream]
        part = entry(1, "p", 1)
        run = Run([part], [len(part)], origin=AP, spans=((0, 0, 1),), checksums=[int.from_bytes(part[2:6], "big")])
        peer.receiver._adopting[peer.stream] = adopting = _Adopting()
        adopting.waiting.append((1, BEFORE_ALL, run))
        peer.receiver._go_on(peer.stream, stream)
        assert "no tree of that region's" in peer.refused()

    play(scenario)


def test_a_leadership_that_is_not_registered_takes_no_sequences_away() -> None:
    """What is believed of it would be the newest for good: a client that comes over after a failover would be stored
    twice from then on.
    """

    async def scenario(peer: Peer) -> None:
        gate = SimpleNamespace(leadership=5, epoch=6)
        peer.configured.led = 5
        peer.run(EU, (0, 0), leadership=5)
        await asyncio.sleep(0.1)
        peer.run(EU, (0, 1), (0, 0), leadership=1 << 60)
        assert f"names leadership {1 << 60} of the namespace, and us knows none above 5" in peer.refused()
        await asyncio.sleep(0.1)
        assert peer.log.vector.prefix(EU) == (0, 0) and peer.log.state.producers.leadership == 5
        peer.log.stand_behind(gate)
        part = entry(0, "p", 0)
        answers: list[Any] = []
        peer.log.publish(Run([part], [len(part)], producers=(("p", 1, 0, None),)), answers.append, answers.append)
        await asyncio.sleep(0.1)
        assert answers == [[(1, -1, -1)]], "it is here already"

    play(scenario)


def test_a_leadership_that_is_registered_a_second_later_loses_nothing() -> None:
    async def scenario(peer: Peer) -> None:
        peer.run(EU, (0, 0), leadership=1)
        peer.refused()
        peer.configured.led = 1
        await peer.open()
        peer.run(EU, (0, 0), leadership=1)
        await asyncio.sleep(0.1)
        assert peer.log.vector.prefix(EU) == (0, 0) and peer.log.last_sequence("p") == -1
        peer.log.stand_behind(SimpleNamespace(leadership=1, epoch=1))
        assert peer.log.last_sequence("p") == 0

    play(scenario)


def test_a_region_makes_no_more_origins_than_the_state_of_a_topic_can_hold() -> None:
    """What a state that no metadata takes would stop is the topic, for everybody."""

    async def scenario(peer: Peer) -> None:
        peer.hold(1, range(6, ORIGINS_MAX + 1))
        for incarnation in range(1, 6):
            peer.run((2, 1, incarnation), (0, 0))
            await asyncio.sleep(0.1)
        peer.run((2, 1, ORIGINS_MAX + 1), (0, 0))
        text = f"us has {ORIGINS_MAX} origins of that region in this topic, {ORIGINS_MAX} of them not over, and takes"
        assert text in peer.refused()
        await peer.open()
        peer.skip((2, 2, 1), BEFORE_ALL, (0, 5))
        peer.refused()
        await peer.open()
        peer.run((2, 1, 5), (0, 1), (0, 0))
        await asyncio.sleep(0.1)
        assert len(peer.log.vector) == ORIGINS_MAX and peer.log.vector.prefix((2, 1, 5)) == (0, 1)

    play(scenario)


def test_origins_that_are_over_take_no_new_ones_room() -> None:
    """Deleted in their region, or of an epoch before the present one; what is here of them stays, and so do they, up to
    a bound of their own.
    """

    async def scenario(peer: Peer) -> None:
        peer.hold(1, range(7, ORIGINS_MAX + 4))
        for incarnation in range(1, 7):  # one after another, each is deleted before the next one comes
            peer.run((2, 1, incarnation), (0, 0))
            if incarnation < 4:
                peer.skip((2, 1, incarnation), (0, 0), (0, 5), SkipReason.DELETED)
            await asyncio.sleep(0.1)
        assert len(peer.log.vector) == ORIGINS_MAX + 3
        peer.run((2, 2, 1), (0, 0))
        refused = f"{ORIGINS_MAX + 3} origins of that region in this topic, {ORIGINS_MAX} of them not over"
        assert refused in peer.refused()
        peer.configured.epochs[2] = 2  # the region was built anew
        await peer.open()
        peer.hold(1, range(ORIGINS_MAX + 4, ORIGINS_IN_ALL_MAX - 2))
        for incarnation in range(1, 4):
            peer.run((2, 2, incarnation), (0, 0))
            await asyncio.sleep(0.1)
        assert len(peer.log.vector) == ORIGINS_IN_ALL_MAX
        peer.configured.epochs[2] = 3
        peer.run((2, 3, 1), (0, 0))
        text = peer.refused()
        refused = f"{ORIGINS_IN_ALL_MAX} origins of that region in this topic, 0 of them not over"
        assert refused in text and "delete it there" in text
        await peer.open()
        before = len(peer.log.ledger.store.blocks)  # type: ignore[attr-defined]
        for incarnation in (1, 2, 3, 4):  # nothing of what is over is taken twice, and nothing of it is refused
            peer.run((2, 1, incarnation), (0, 0))
        peer.run((2, 1, 4), (0, 1), (0, 0))
        await asyncio.sleep(0.1)
        assert len(peer.log.ledger.store.blocks) == before + 1  # type: ignore[attr-defined]

    play(scenario)


def test_the_state_of_a_topic_has_room_for_the_origins_that_are_over() -> None:
    state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=True, settings=DedupSettings())
    state.restore(b"")
    for incarnation in range(ORIGINS_IN_ALL_MAX):
        origin = (2, 1, 1 + (incarnation << 40))
        state.confirm_skip(SkipRecord(origin, BEFORE_ALL, (1 << 40, 1 << 20), SkipReason.DELETED, "us"))
    assert sum(map(state.is_over, state.vector)) == ORIGINS_IN_ALL_MAX
    assert len(state.snapshot()) < STATE_BYTES_MAX // 2


def wide(number: int, size_bytes: int) -> Tree:
    """A whole one of about so many bytes."""
    return Tree("eu", {f"{number}-{i:0196}": "us" for i in range(size_bytes // 204)}, whole=True)


def test_a_regions_trees_have_an_end() -> None:
    async def scenario(peer: Peer) -> None:
        for incarnation in (1, 2, 3):
            peer.tree((2, 1, incarnation), (0, 0), wide(1, 40_000))
            await asyncio.sleep(0.1)
        peer.tree((2, 1, 4), (0, 0), wide(1, 40_000))
        text = peer.refused()
        assert "us takes 131072 bytes of that region's trees at most" in text and "delete it there" in text
        await peer.open()
        peer.tree((2, 1, 3), (0, 0), wide(1, 40_000))
        peer.run((2, 1, 3), (0, 1), (0, 0))
        await asyncio.sleep(0.1)
        assert peer.log.vector.prefix((2, 1, 3)) == (0, 1), "what is here already adds nothing"

    play(scenario)


def test_a_topology_that_changes_for_ever_stops_no_link() -> None:
    """The trees of long ago, which are forgotten, count for nothing."""

    async def scenario(peer: Peer) -> None:
        previous = BEFORE_ALL
        for number in range(40):
            peer.tree(EU, (0, number), wide(number, 12_000), previous)
            previous = (0, number)
            await asyncio.sleep(0.1)
        assert peer.log.vector.prefix(EU) == previous
        assert peer.log.state.trees.behind(EU, BEFORE_ALL) == 2

    play(scenario)
