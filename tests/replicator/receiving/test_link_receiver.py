"""Whom a receiver listens to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.coordinates import MISSING_MAX
from heliograph.model.errors import BookieUnavailable, NotFound
from heliograph.model.positions import BEFORE_ALL
from heliograph.runtime.clock import SystemClock
from heliograph.wire.block import encode_block
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, What, ask_frame
from heliograph.wire.links.link_commands import Risk
from heliograph.wire.links.link_compression import LZ4, pack
from heliograph.wire.links.schema_commands import ROWS_MAX, SchemaRow, schemas_frames
from heliograph.wire.run import Buffer, Run
from replicator.dedup.producer_dedup import DedupSettings
from replicator.health.link_causes import Cause
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from replicator.receiving.link_receiver import LinkReceiver, ReceiverSettings, inflight_budget
from replicator.receiving.link_session import LinkSession
from replicator.receiving.receiver_stream import ReceiverStream
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.replicator.link_world import Believed, entry, parsed


@pytest.mark.parametrize(
    ("peer", "source", "number", "cause"),
    [
        ("eu", "eu", 2, Cause.NOT_FOUND),  # heard: the topic is asked for
        ("", "eu", 2, Cause.NOT_FOUND),
        ("eu", "ap", 3, Cause.UNAUTHORIZED),
        ("eu", "eu", 3, Cause.REFUSED),
        ("", "xx", 9, Cause.REFUSED),
    ],
)
def test_a_sender_is_heard_as_the_region_that_it_has_proven_to_be(
    peer: str, source: str, number: int, cause: Cause
) -> None:
    written: list[Buffer] = []
    asked: list[tuple[str, str]] = []

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        asked.append((topic, region))
        raise NotFound("no such topic")

    def write(buffers: Sequence[Buffer]) -> None:
        written.extend(buffers)

    async def body() -> None:
        receiver = LinkReceiver(
            LinkSession(write, peer),
            open_log,
            sim.clock(),
            region="us",
            region_number={"us": 1, "eu": 2, "ap": 3}.get,
            relays=Believed(("us", "eu", "ap")),
        )
        frame = b"".join(bytes(b) for b in wire.open_frame(1, "persistent://a/b/c", source, number))
        size = int.from_bytes(frame[4:8], "big")
        receiver.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(b""))
        await asyncio.sleep(0.01)

    sim = Simulation(0)
    sim.run(body())
    frame = b"".join(bytes(b) for b in written)
    size = int.from_bytes(frame[4:8], "big")
    kind, fields = wire.parse(*wire.command_content(memoryview(frame)[8 : 8 + size]))
    assert kind is wire.LinkFrameKind.CLOSE
    _, code, _ = wire.read_close(fields)
    assert code == cause
    assert bool(asked) == (cause is Cause.NOT_FOUND)


def test_what_is_not_durable_yet_is_bounded_for_all_topics_together() -> None:
    """Bookies stand still: above the bound nothing more is read, the sender hears that this side lives, and reading
    goes on once half is stored.
    """
    sim = Simulation(0)
    held: list[bool] = []
    written: list[bytes] = []
    ledgers: dict[str, FakeLedger] = {}

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        ledgers[topic] = FakeLedger(Store(topic), state)
        return ReplicatedLog(ledgers[topic], state)  # type: ignore[arg-type]

    def feed(receiver: LinkReceiver, buffers: Sequence[Buffer]) -> None:
        frame = b"".join(bytes(b) for b in buffers)
        size = int.from_bytes(frame[4:8], "big")
        receiver.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(frame)[8 + size :])

    def run_of(ledger: int) -> Run:
        parts = [entry(i, "p", i) for i in range(10)]
        checksums = [int.from_bytes(p[2:6], "big") for p in parts]
        return Run(parts, [len(p) for p in parts], origin=(2, 1, 7), spans=((ledger, 0, 10),), checksums=checksums)

    async def body() -> None:
        one = run_of(0).size_bytes + 10 * len(b"\x2a\x02eu")
        budget = inflight_budget(one * 4)
        write = lambda buffers: written.append(b"".join(bytes(b) for b in buffers))  # noqa: E731
        receiver = LinkReceiver(
            LinkSession(write, "eu", held.append),
            open_log,
            sim.clock(),
            region="us",
            region_number={"us": 1, "eu": 2}.get,
            relays=Believed(("us", "eu")),
            budget=budget,
        )
        for stream in (1, 2):
            feed(receiver, wire.open_frame(stream, f"persistent://a/b/{stream}", "eu", 2))
        await asyncio.sleep(0.01)
        for number in range(3):
            for stream in (1, 2):
                feed(receiver, wire.run_frame(stream, 1, (number - 1, 9) if number else (-1, -1), run_of(number)))
                assert held == [True] * (budget.used > 4 * one), "the fifth run is one too many"
        assert budget.used == 6 * one
        written.clear()
        await asyncio.sleep(2.5)
        beats = [w for w in written if wire.command_content(memoryview(w)[8:])[0] == wire.LinkFrameKind.HEARTBEAT]
        assert len(beats) == 2
        feed(receiver, wire.run_frame(1, 1, (2, 9), run_of(3)))
        ledgers["persistent://a/b/1"].confirm(3)
        assert held == [True]
        ledgers["persistent://a/b/2"].fail(BookieUnavailable("gone"))
        assert held == [True, False] and budget.used == one, "what failed is not held any more either"
        feed(receiver, wire.run_frame(2, 2, (7, 9), run_of(8)))
        assert budget.used == one, "a gap is not stored"
        ledgers["persistent://a/b/1"].confirm(1)
        assert budget.used == 0
        receiver.connection_lost()

    sim.run(body())


def one(at: int) -> tuple[Run, bytes]:
    """An entry under coordinate (0, at), and its block."""
    part = entry(at, "p", at)
    checksum = int.from_bytes(part[2:6], "big")
    run = Run([part], [len(part)], origin=(2, 1, 7), spans=((0, at, 1),), checksums=[checksum])
    return run, b"".join(bytes(b) for b in encode_block(run, 0, at))


class OneTopic:
    """A receiver with stream 1 open, over a ledger that stores what it is given when it is told to."""

    def __init__(self, budget_bytes: int = 1 << 20, schemas: Any = None, **settings: Any) -> None:
        self.held: list[bool] = []
        self.refused: list[str] = []
        self.budget = inflight_budget(budget_bytes)
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        self.ledger = FakeLedger(Store("persistent://a/b/c"), state)
        log = ReplicatedLog(self.ledger, state)  # type: ignore[arg-type]

        async def open_log(topic: str, region: str) -> ReplicatedLog:
            return log

        self.receiver = LinkReceiver(
            LinkSession(lambda buffers: None, "", self.held.append, self.refused.append),
            open_log,
            SystemClock(),
            region="us",
            region_number={"us": 1, "eu": 2}.get,
            relays=Believed(("us", "eu")),
            budget=self.budget,
            schemas=schemas,
            settings=ReceiverSettings(**settings),
        )
        self.feed(wire.open_frame(1, "persistent://a/b/c", "eu", 2))

    def feed(self, buffers: Sequence[Buffer]) -> None:
        frame = b"".join(bytes(b) for b in buffers)
        size = int.from_bytes(frame[4:8], "big")
        self.receiver.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(frame)[8 + size :])

    def send(self, at: int, *, packed: bool, stream: int = 1) -> int:
        """One entry, under coordinate (0, at). Returns the bytes of its block."""
        run, block = one(at)
        before = (0, at - 1) if at else BEFORE_ALL
        if packed:
            self.feed(wire.block_frame(stream, 1, before, [pack(LZ4, block)], LZ4, len(block)))
        else:
            self.feed(wire.run_frame(stream, 1, before, run))
        return len(block)

    @property
    def appended(self) -> int:
        return len(self.ledger.pending)


def test_what_answers_a_heartbeat_goes_in_frames_that_the_source_takes() -> None:
    written: list[bytes] = []

    async def body() -> None:
        of = OneTopic()
        for stream in range(2, 71):
            of.feed(wire.open_frame(stream, "persistent://a/b/c", "eu", 2))
        await asyncio.sleep(0.001)
        vector = of.receiver._streams[1].log.vector
        for at in range(MISSING_MAX):
            vector.skip((2, 1, 7), (0, 2 * at), (0, 2 * at + 1))
        of.receiver._write = lambda buffers: written.append(b"".join(bytes(b) for b in buffers))
        for _ in range(4):
            of.feed(wire.heartbeat_frame(wire.LinkHeartbeat(1, 0, 0)))
        of.receiver.connection_lost()

    asyncio.run(body())
    told = [[stream[0] for stream in parsed(frame)[1][3:]] for frame in written]
    assert [stream for each in told for stream in each] == list(range(1, 71)) and not told[3]
    assert max(map(len, written)) < wire.HEARTBEAT_BYTES + (64 << 10)


def test_compressed_runs_of_one_read_are_unpacked_by_and_by() -> None:
    async def body() -> None:
        size = len(one(0)[1])
        of = OneTopic(unpacked_bytes=4 * size)
        await asyncio.sleep(0.001)
        assert of.send(0, packed=True) == size
        for at in range(1, 12):
            of.send(at, packed=at != 9)
        assert of.appended == 4 and of.held == [True], "and what comes behind them waits, too"
        await asyncio.sleep(0)
        assert of.appended == 8 and of.held == [True]
        await asyncio.sleep(0)
        assert of.appended == 12 and of.held == [True, False]
        of.receiver.on_bytes()
        for at in range(12, 16):
            of.send(at, packed=True)
        assert of.appended == 16 and of.held == [True, False], "a read of less goes on at once"
        of.feed(wire.block_frame(9, 1, BEFORE_ALL, [b"no block"], LZ4, size))
        assert of.held == [True, False], "of a stream that is not open nothing is unpacked"
        of.feed(wire.block_frame(1, 1, (0, 15), [b"no block"], LZ4, size))
        assert not of.refused and of.held[-1]
        await asyncio.sleep(0)
        assert len(of.refused) == 1 and not of.receiver._kept
        of.receiver.connection_lost()

    asyncio.run(body())


def test_while_too_much_is_not_durable_nothing_is_unpacked() -> None:
    async def body() -> None:
        of = OneTopic(1)
        await asyncio.sleep(0.001)
        for at in range(3):
            of.send(at, packed=True)
        for _ in range(3):
            assert of.appended == 1 and of.held[-1]
            of.ledger.confirm(1)
            assert of.appended == 0
            await asyncio.sleep(0)
        assert (
            of.budget.used == 0 and not of.held[-1] and of.receiver._streams[1].log.vector.prefix((2, 1, 7)) == (0, 2)
        )
        of.receiver.connection_lost()

    asyncio.run(body())


@pytest.mark.parametrize("lost", (False, True))
def test_what_waits_behind_schemas_counts_as_not_durable(lost: bool) -> None:
    """Ten thousand topics that come back together bring a read each."""
    stored = asyncio.Event()

    class Registry:
        async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
            await stored.wait()

    async def body() -> None:
        of = OneTopic(1000, Registry())
        await asyncio.sleep(0.001)
        of.feed(schemas_frames(1, [(1, b"x" * 900)]))
        of.feed(schemas_frames(1, [(2, b"x" * 90)]))
        assert of.budget.used == 990 and not of.held
        of.send(0, packed=False)
        assert of.budget.used > 1000 and of.held == [True]
        if lost:
            of.receiver.connection_lost()
        stored.set()
        for _ in range(6):
            await asyncio.sleep(0)
        assert of.appended == (not lost)
        of.ledger.confirm(of.appended)
        assert of.budget.used == 0 and not of.receiver._adopting
        if not lost:
            assert of.held[-1] is False
            of.receiver.connection_lost()

    asyncio.run(body())


def test_schemas_that_cannot_be_read_end_their_stream_alone() -> None:
    """Earlier versions tell any number of them in one frame."""

    async def body() -> None:
        of = OneTopic(schemas=object())
        of.feed(wire.open_frame(2, "persistent://a/b/c", "eu", 2))
        await asyncio.sleep(0.001)
        of.feed(wire.frame(wire.LinkFrameKind.SCHEMAS, [1, *[[0, b"x"]] * (ROWS_MAX + 1)]))
        of.feed(wire.frame(wire.LinkFrameKind.SCHEMAS, [1]))
        assert list(of.receiver._streams) == [2] and not of.receiver._adopting
        of.receiver.connection_lost()

    asyncio.run(body())


def test_schemas_that_come_as_the_last_adopter_ends_are_stored() -> None:
    """Between its end and what is told of it, which takes a pass of the loop."""
    stored: list[int] = []

    async def body() -> None:
        class Registry:
            async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
                stored.append(rows[0][0])
                if rows[0][0] == 1:
                    asyncio.get_running_loop().call_soon(of.feed, schemas_frames(1, [(2, b"x")]))

        of = OneTopic(schemas=Registry(), adopters=1)
        await asyncio.sleep(0.001)
        of.feed(schemas_frames(1, [(1, b"x")]))
        for _ in range(6):
            await asyncio.sleep(0)
        assert stored == [1, 2] and not (of.receiver._adopting or of.receiver._adopters or of.budget.used)
        of.receiver.connection_lost()

    asyncio.run(body())


def test_schemas_of_some_topics_are_stored_at_once_and_those_of_one_in_order() -> None:
    """All partitions of a topic have one schema."""
    topics = [f"persistent://a/b/{name}" for name in ("1", "p-partition-0", "p-partition-1", "2", "3", "4")]
    stored: list[tuple[str, int]] = []
    running: list[str] = []
    most = 0

    class Registry:
        async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
            nonlocal most
            name = topic.partition("-")[0]
            assert name not in running
            running.append(name)
            most = max(most, len(running))
            await asyncio.sleep(0)
            running.remove(name)
            stored.append((topic, rows[0][0]))

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        return ReplicatedLog(FakeLedger(Store(topic), state), state)  # type: ignore[arg-type]

    async def body() -> None:
        of = OneTopic(schemas=Registry(), adopters=3)
        of.receiver._open_log = open_log
        for stream, topic in enumerate(topics, 2):
            of.feed(wire.open_frame(stream, topic, "eu", 2))
        await asyncio.sleep(0.001)
        for version in (1, 2):
            for stream in range(2, 8):
                of.feed(schemas_frames(stream, [(version, b"x")]))
        of.receiver._end(7)
        of.feed(wire.open_frame(7, topics[-1], "eu", 2))
        for _ in range(40):
            await asyncio.sleep(0)
        for topic in topics:
            assert [version for name, version in stored if name == topic] == ([1, 2] if topic != topics[-1] else [])
        of.feed(schemas_frames(7, [(3, b"x")]))
        assert of.budget.used == 1, "what a stream had that ended counts no more"
        for _ in range(4):
            await asyncio.sleep(0)
        assert stored[-1] == (topics[-1], 3) and most == 3
        assert not (of.receiver._adopting or of.receiver._adoptions or of.receiver._adopters or of.budget.used)
        of.receiver.connection_lost()

    asyncio.run(body())


@pytest.mark.parametrize("behind", ("schemas", "unpacked"))
def test_what_nobody_expected_of_a_frame_that_waited_holds_nothing_for_ever(
    monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    told: list[str] = []

    class Registry:
        async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None: ...

    def on_run(*_: Any) -> None:
        raise KeyError("nobody expected this")

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        of = OneTopic(schemas=Registry(), unpacked_bytes=1)
        await asyncio.sleep(0.001)
        if behind == "schemas":
            of.feed(wire.open_frame(2, "persistent://a/b/d", "eu", 2))
            await asyncio.sleep(0.001)
            for stream in (1, 2):
                of.feed(schemas_frames(stream, [(1, b"x")]))
            of.send(0, packed=False)
        else:
            of.send(0, packed=True)
            of.send(1, packed=True)
            assert of.held == [True]
        monkeypatch.setattr(ReceiverStream, "on_run", on_run)
        for _ in range(6):
            await asyncio.sleep(0)
        if behind == "schemas":
            assert list(of.receiver._streams) == [2] and not of.receiver._adopting and not of.budget.used
        else:
            assert len(of.refused) == 1 and "nobody expected this" in of.refused[0] and not of.receiver._kept
        of.receiver.connection_lost()

    asyncio.run(body())
    assert told == ["KeyError('nobody expected this')"]


def test_a_stream_that_is_open_stands_for_its_region_whatever_came_and_went_after_it() -> None:
    """Two brokers of eu have one topic open for a moment: one of them stood still, and the other one has taken it. The
    order in which they open, and end, is any.
    """
    sim = Simulation(0)
    written: dict[str, list[tuple[int, Any]]] = {"taker": [], "stopped": []}
    answers: list[Callable[[AuditAnswer], None]] = []
    state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
    log = ReplicatedLog(FakeLedger(Store("persistent://a/b/c"), state), state)  # type: ignore[arg-type]
    auditor: Any = SimpleNamespace(asked=lambda log, region, ask, answer: answers.append(answer))

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        return log

    def receiver(name: str) -> LinkReceiver:
        def write(buffers: Sequence[Buffer]) -> None:
            frame = memoryview(b"".join(bytes(b) for b in buffers))
            size = int.from_bytes(frame[4:8], "big")
            written[name].append(wire.command_content(frame[8 : 8 + size]))

        numbers = {"us": 1, "eu": 2}.get
        return LinkReceiver(
            LinkSession(write, "eu"),
            open_log,
            sim.clock(),
            region="us",
            region_number=numbers,
            relays=Believed(("us", "eu")),
            auditor=auditor,
        )

    def feed(one: LinkReceiver, buffers: Sequence[Buffer]) -> None:
        frame = b"".join(bytes(b) for b in buffers)
        size = int.from_bytes(frame[4:8], "big")
        one.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(frame)[8 + size :])

    async def body() -> None:
        taker, stopped = receiver("taker"), receiver("stopped")
        for one in (taker, stopped):
            feed(one, wire.open_frame(1, log.topic, "eu", 2))
            await asyncio.sleep(0.01)
        newest = log.incoming["eu"]
        newest.messages, newest.risk, newest.told = 7, Risk(3, 3, 30, 0), True
        stopped.connection_lost()
        found = log.incoming["eu"]
        assert found is not newest and found.connected and found.send_ask is not None, "the other one is open"
        assert (found.messages, found.risk) == (7, Risk(3, 3, 30, 0)), "nothing is forgotten"
        feed(taker, ask_frame(1, 5, Ask(What.ROWS, (1, 1, 7), BEFORE_ALL, (1, 1))))
        written["taker"].clear()
        answers.pop()(AuditAnswer(refusal="not now"))
        assert [kind for kind, _ in written["taker"]] == [wire.LinkFrameKind.TELL], "who asks on it is answered"
        taker.connection_lost()
        assert log.incoming["eu"] is found and not found.connected and found.send_ask is None

    sim.run(body())


@pytest.mark.parametrize("again", (False, True))
def test_a_stream_that_is_closed_while_its_topic_is_loaded_never_opens(again: bool) -> None:
    """again: its number is opened once more, at once."""
    sim = Simulation(0)
    written: list[bytes] = []
    loaded = asyncio.Event()

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        await loaded.wait()
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        return ReplicatedLog(FakeLedger(Store(topic), state), state)  # type: ignore[arg-type]

    def feed(buffers: Sequence[Buffer]) -> None:
        frame = b"".join(bytes(b) for b in buffers)
        size = int.from_bytes(frame[4:8], "big")
        receiver.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(frame)[8 + size :])

    async def body() -> None:
        nonlocal receiver
        receiver = LinkReceiver(
            LinkSession(lambda buffers: written.append(b"".join(bytes(b) for b in buffers))),
            open_log,
            sim.clock(),
            region="us",
            region_number={"us": 1, "eu": 2}.get,
            relays=Believed(("us", "eu")),
        )
        feed(wire.open_frame(1, "persistent://a/b/c", "eu", 2))
        await asyncio.sleep(0.01)
        feed(wire.close_frame(1, Cause.TIMEOUT, "no answer to OPEN"))
        if again:
            feed(wire.open_frame(1, "persistent://a/b/c", "eu", 2))
        await asyncio.sleep(0.01)
        loaded.set()
        await asyncio.sleep(0.01)
        assert len(written) == again and list(receiver._streams) == [1] * again and not receiver._opening

    receiver: Any = None
    sim.run(body())


@pytest.mark.parametrize("where", ("topic", "schemas"))
def test_what_nobody_expected_ends_that_stream_with_a_sentence_and_no_other(where: str) -> None:
    """schemas: of two streams, one behind the other."""
    written: list[bytes] = []
    told: list[str] = []

    async def open_log(topic: str, region: str) -> ReplicatedLog:
        if where == "topic" and topic.endswith("/1"):
            raise KeyError("nobody expected this")
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        return ReplicatedLog(FakeLedger(Store(topic), state), state)  # type: ignore[arg-type]

    class Registry:
        stored: ClassVar[list[str]] = []

        async def adopt(self, topic: str, rows: Sequence[SchemaRow]) -> None:
            if topic.endswith("/1"):
                raise KeyError("nobody expected this")
            self.stored.append(topic)

    def closes() -> dict[int, tuple[str, str]]:
        found = {}
        for frame in written:
            size = int.from_bytes(frame[4:8], "big")
            kind, fields = wire.parse(*wire.command_content(memoryview(frame)[8 : 8 + size]))
            if kind is wire.LinkFrameKind.CLOSE:
                stream, cause, text = wire.read_close(fields)
                found[stream] = (cause, text)
        return found

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        registry: Any = Registry()
        receiver = LinkReceiver(
            LinkSession(lambda buffers: written.append(b"".join(bytes(b) for b in buffers))),
            open_log,
            SystemClock(),
            region="us",
            region_number={"us": 1, "eu": 2}.get,
            relays=Believed(("us", "eu")),
            schemas=registry,
        )

        def feed(buffers: Sequence[Buffer]) -> None:
            frame = b"".join(bytes(b) for b in buffers)
            size = int.from_bytes(frame[4:8], "big")
            receiver.on_frame(*wire.command_content(memoryview(frame)[8 : 8 + size]), memoryview(frame)[8 + size :])

        for stream in (1, 2):
            feed(wire.open_frame(stream, f"persistent://a/b/{stream}", "eu", 2))
        for _ in range(4):
            await asyncio.sleep(0)
        if where == "schemas":
            for stream in (1, 2):
                feed(schemas_frames(stream, [(1, b"schema")]))
            for _ in range(4):
                await asyncio.sleep(0)
            assert registry.stored == ["persistent://a/b/2"] and not receiver._adopting
        assert list(receiver._streams) == [2]
        receiver.connection_lost()

    asyncio.run(body())
    ((stream, (cause, text)),) = closes().items()
    assert (stream, cause) == (1, Cause.REFUSED) and "nobody expected this" in text
    assert told == ["KeyError('nobody expected this')"], "it is in the log, too"
