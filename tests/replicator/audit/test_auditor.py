"""Whose answer counts, and what of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.coordinates import Vector
from heliograph.model.errors import LinkError, PeerError
from heliograph.model.positions import AFTER_ALL, BEFORE_ALL, Position
from heliograph.wire.links import link_commands
from heliograph.wire.links.audit_commands import ROWS_MAX, Ask, AuditAnswer, What, digest, read_tell, tell_frame
from heliograph.wire.links.audit_commands import told as tell_of
from heliograph.wire.run import Run
from replicator.audit import auditor as auditors
from replicator.audit.audit_findings import Report
from replicator.audit.audit_pass import AuditPass
from replicator.audit.audit_scan import Piece, Teller
from replicator.audit.audit_settings import AuditLimits, AuditSettings
from replicator.audit.auditor import Auditor
from replicator.coordinates.position_map import PositionMap
from replicator.dedup.producer_dedup import DedupSettings
from replicator.health.link_causes import Cause
from replicator.log.replicated_entries import received
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from tests.replicator.audit.audit_world import Copies
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.replicator.link_world import entry, parsed

AP = (3, 1, 9)
RANGE = Ask(What.ENTRIES, AP, BEFORE_ALL, (0, 5))
LOG: Any = None


class Channels:
    """Links with two regions. Nobody knows a leadership above 5."""

    region = "us"

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []

    def send(self, log: ReplicatedLog, region: str, request: int, ask: Ask) -> bool:
        self.sent.append((region, request))
        return True

    def believed(self, log: ReplicatedLog, run: Run) -> Run:
        return run if run.leadership <= 5 else run.led_by_none()


def answer(at: int, leadership: int = 0) -> AuditAnswer:
    part = entry(at, "p", at)
    checksum = int.from_bytes(part[2:6], "big")
    run = Run([part], [len(part)], origin=AP, spans=((0, at, 1),), checksums=[checksum], leadership=leadership)
    return AuditAnswer(low=BEFORE_ALL, upto=(0, 5), runs=(run,))


def tell(auditor: Auditor, region: str, request: int, told: AuditAnswer) -> None:
    frame = b"".join(bytes(b) for b in tell_frame(1, request, What.ENTRIES, told))
    kind, fields, payload = parsed(frame)
    assert kind is link_commands.LinkFrameKind.TELL
    _, number, content, payload = read_tell(fields, payload)
    auditor.told(region, number, content, payload)


async def asked(auditor: Auditor, channels: Channels) -> tuple[asyncio.Task[AuditAnswer], int]:
    asking = asyncio.create_task(auditor.ask(LOG, "ap", RANGE))
    await asyncio.sleep(0)
    return asking, channels.sent[-1][1]


def test_a_region_answers_no_question_that_another_one_was_asked() -> None:
    """Requests are counted up, so whoever was asked one knows the numbers of others; what the origin's region says
    decides.
    """

    async def main() -> None:
        channels = Channels()
        auditor = Auditor(channels, SimpleNamespace(monotonic=lambda: 0.0))  # type: ignore[arg-type]
        asking, request = await asked(auditor, channels)
        tell(auditor, "eu", request, answer(1))
        tell(auditor, "eu", request + 1, answer(1))
        tell(auditor, "ap", request, answer(2))
        tell(auditor, "ap", request, answer(3))
        told = await asking
        assert [run.coordinate(0) for run in told.runs] == [(0, 2)]

    run_alone(main())


@pytest.mark.parametrize("at", [(0, 0), (0, 6), (7, 1)])
@pytest.mark.parametrize("what", [What.ROWS, What.ENTRIES])
def test_an_answer_beyond_what_was_asked_ends_the_connection(what: What, at: Position) -> None:
    """Entries above the range would be appended as lost, and the link would pass over all that lies between."""
    run = answer(1).runs[0]
    run.spans = ((*at, 1),)
    told = AuditAnswer(low=BEFORE_ALL, upto=(9, 9), rows=((at, 1),), runs=(run,))
    _, fields, payload = parsed(b"".join(bytes(b) for b in tell_frame(1, 1, what, told)))
    _, _, content, payload = read_tell(fields, payload)
    with pytest.raises(PeerError, match=r"not asked for|ascend"):
        tell_of(Ask(what, AP, (0, 0), (0, 5)), content, payload)


FEW = AuditLimits(lost_max=50)


def test_a_region_that_names_lost_entries_without_end_ends_no_pass_and_fills_no_memory() -> None:
    """Each answer is a step nearer to the end of the range, and there are 2^62 of them."""
    asks: list[Ask] = []

    async def ask(region: str, asked: Ask) -> AuditAnswer:
        asks.append(asked)
        assert len(asks) < 200
        at = (asked.after[0], asked.after[1] + 1)
        return AuditAnswer(upto=at, rows=((at, 1),) if rows else (), passing=True)

    reached = Vector()
    reached.advance(AP, (1 << 50, 0))
    log: Any = SimpleNamespace(
        vector=Vector(), known={"eu": (reached, 0)}, state=SimpleNamespace(trees=(), late=None), topic="t"
    )

    async def main() -> None:
        names, numbers = {3: "ap", 2: "eu"}, {"ap": 3, "eu": 2}
        found = AuditPass(log, LOG, "us", ask, numbers, names, LOG, Report(began_ms=0), limits=FEW)
        found._compared[AP], found._rows[AP] = (0, 0), []
        await found._compare_until(AP, (1 << 40, 0))
        assert found.report.unchecked == 1 and sum(map(len, found.lost.values())) == (50 if rows else 0)

    for named in (True, False):
        rows = named
        asks.clear()
        run_alone(main())
        assert {asked.what for asked in asks} == {What.ROWS} and len(asks) <= 102


def test_all_that_may_lie_in_a_hole_is_looked_for() -> None:
    """A hole is filled only where as many entries are known to be lost as it has places."""
    found = AuditPass(LOG, LOG, "us", LOG, {"ap": 3}, {3: "ap"}, LOG, Report(began_ms=0), limits=FEW)
    for at in range(100):
        found._note_hole(Piece(7, at, at, None))
    for at in range(150):
        found._note_lost(AP, (0, at))
    with pytest.raises(PeerError, match="the next pass goes on"):
        found._note_lost(AP, (0, 150))
    assert len(found.lost[AP]) == 150


def test_a_region_that_says_nothing_is_not_asked_for_ever() -> None:
    """Its link is open, and each question takes 30 s."""
    asked: list[str] = []
    silent = True

    async def ask(region: str, _: Ask) -> AuditAnswer:
        asked.append(region)
        if silent and region == "ap":
            raise LinkError(Cause.TIMEOUT, "it did not answer")
        return AuditAnswer()

    async def main() -> None:
        nonlocal silent
        log: Any = SimpleNamespace(vector=Vector(), state=SimpleNamespace())
        for answers_at in (0, 9):
            found = AuditPass(log, LOG, "us", ask, {"ap": 3, "eu": 2}, {3: "ap", 2: "eu"}, LOG, Report(began_ms=0))
            asked.clear()
            for count in range(1, 40):
                silent = count != answers_at
                for region in ("ap", "eu"):
                    with contextlib.suppress(LinkError):
                        await found.ask(region, RANGE)
            assert (asked.count("ap"), asked.count("eu")) == (answers_at + 10, 39)

    run_alone(main())


def test_of_a_leadership_that_is_not_known_nothing_is_stored() -> None:
    """What an audit puts right, and what is fetched of an origin that has ended, comes so."""

    async def main() -> None:
        channels = Channels()
        auditor = Auditor(channels, SimpleNamespace(monotonic=lambda: 0.0))  # type: ignore[arg-type]
        for named, kept in ((5, 5), (6, 0), (1 << 60, 0), (0, 0)):
            asking, request = await asked(auditor, channels)
            tell(auditor, "ap", request, answer(1, named))
            assert [run.leadership for run in (await asking).runs] == [kept]

    run_alone(main())


def test_what_nobody_expected_fails_a_pass_and_is_told_to_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that asked nobody must not count as one after which what is missing here is missing everywhere."""
    log: Any = SimpleNamespace(topic="persistent://t/n/x", state=SimpleNamespace())

    class Failing:
        findings = ()

        def __init__(self, *_: Any) -> None:
            pass

        async def run(self) -> None:
            raise KeyError("nobody expected this")

        async def tell(self, *_: Any) -> AuditAnswer:
            raise KeyError("nobody expected this")

    class OneTopic(Channels):
        def __init__(self) -> None:
            super().__init__()
            self.tasks: list[asyncio.Task[None]] = []

        def log(self, topic: str) -> Any:
            return log

        def regions(self, _: Any) -> dict[str, int]:
            return {"eu": 2}

        names = regions

        def ended(self, *_: Any) -> bool:
            return False

        def spawn(self, work: Coroutine[Any, Any, None]) -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(work))

    monkeypatch.setattr(auditors, "AuditPass", Failing)
    monkeypatch.setattr(auditors, "Teller", Failing)

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        channels, answers = OneTopic(), list[str]()
        clock: Any = SimpleNamespace(monotonic=lambda: 0.0, wall_ms=lambda: 1)
        auditor = Auditor(channels, clock)  # type: ignore[arg-type]
        auditor.storage = SimpleNamespace()  # type: ignore[assignment]
        auditor.want(log.topic)
        for _ in range(2):
            auditor.asked(log, "eu", RANGE, lambda answer: answers.append(answer.refusal))
        await asyncio.wait(channels.tasks)
        assert not auditor.asked_since(log.topic, 0.0) and auditor.failed == 1
        assert "nobody expected this" in auditor.reports[log.topic].error
        assert len(answers) == 2 and all("nobody expected this" in answer for answer in answers)
        assert len(told) == 3 and all(task.exception() is None for task in channels.tasks[:-1])
        await asyncio.wait(channels.tasks)  # of the pass that is wanted again

    asyncio.run(main())


def test_an_answer_that_cannot_be_given_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answers(Channels):
        tasks: ClassVar[list[asyncio.Task[None]]] = []

        def spawn(self, work: Coroutine[Any, Any, None]) -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(work))

    class Told:
        def __init__(self, *_: Any) -> None: ...

        async def tell(self, *_: Any) -> AuditAnswer:
            return AuditAnswer()

    def failing(_: AuditAnswer) -> None:
        raise KeyError("nobody expected this")

    async def main() -> None:
        answers: list[AuditAnswer] = []
        settings = AuditSettings(answers_max=1)
        auditor = Auditor(Answers(), SimpleNamespace(monotonic=lambda: 0.0), settings)  # type: ignore[arg-type]
        auditor.storage = SimpleNamespace()  # type: ignore[assignment]
        for answer in (failing, answers.append):
            auditor.asked(LOG, "eu", RANGE, answer)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(answers) == 1 and isinstance(Answers.tasks[0].exception(), KeyError)

    monkeypatch.setattr(auditors, "Teller", Told)
    asyncio.run(main())


def test_one_region_takes_neither_all_places_nor_all_the_room_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its questions may read a whole topic."""
    told: list[str] = []
    goes_on = asyncio.Event()

    class Slow:
        def __init__(self, *_: Any) -> None:
            pass

        async def tell(self, _: Any, ask: Ask, region: str) -> AuditAnswer:
            told.append(region)
            await goes_on.wait()
            return AuditAnswer(refusal="done")

    class Spawning(Channels):
        tasks: ClassVar[list[asyncio.Task[None]]] = []

        def spawn(self, work: Coroutine[Any, Any, None]) -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(work))

    monkeypatch.setattr(auditors, "Teller", Slow)

    async def main() -> None:
        answers: list[str] = []
        auditor = Auditor(
            Spawning(),  # type: ignore[arg-type]
            SimpleNamespace(monotonic=lambda: 0.0),  # type: ignore[arg-type]
            AuditSettings(answers_max=3, waiting_max=8),
        )
        auditor.storage = SimpleNamespace()  # type: ignore[assignment]
        for region in (*("ap",) * 9, "eu", "eu"):
            auditor.asked(LOG, region, RANGE, lambda answer: answers.append(answer.refusal))
        await asyncio.sleep(0)
        assert told == ["ap", "ap", "eu"] and answers == ["not now"] * 2
        goes_on.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert answers[2:] == ["done"] * 9 and told.count("ap") == 7
        assert not auditor._answers and not auditor._answering.total()

    asyncio.run(main())


def test_a_digest_of_any_range_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range may be the whole topic: its rows are kept until the answer is made."""

    async def parts(teller: Teller, *_: Any, **__: Any) -> AsyncIterator[Any]:
        for first in range(0, 100 * 128, 128):
            await teller._take(128, 1000)
            yield SimpleNamespace(holes=0, rows=[((0, at), at) for at in range(first, first + 128)])

    async def nothing(*_: Any) -> Any:
        return {}, 0

    monkeypatch.setattr(Teller, "_parts", parts)
    monkeypatch.setattr(Teller, "_late", nothing)
    last = (0, 100 * 128 - 1)
    vector = Vector()
    vector.advance(AP, last)
    log: Any = SimpleNamespace(
        vector=vector,
        state=SimpleNamespace(
            is_own=lambda _: True,
            local_end=lambda _: AFTER_ALL,
            between=lambda _, *at: at,
            late=SimpleNamespace(only=lambda _: None),
            transactions=None,
            trees=None,
        ),
        ledger=SimpleNamespace(last_confirmed=last, first_position=lambda: (0, 0)),
    )

    async def rate(*_: int) -> None: ...

    told = run_alone(Teller(LOG, rate).tell(log, Ask(What.DIGEST, AP, BEFORE_ALL, last), "us"))
    assert (told.count, told.upto) == (2 * ROWS_MAX, (0, 2 * ROWS_MAX - 1))
    limits = AuditLimits(read_bytes=5000)
    for what in (What.DIGEST, What.ROWS):
        told = run_alone(Teller(LOG, rate, limits).tell(log, Ask(what, AP, BEFORE_ALL, last), "us"))
        assert told.upto == (0, 5 * 128 - 1), "large entries take long to be read"


def test_a_range_is_compared_on_from_where_an_answer_ended() -> None:
    """An answer of large entries ends early: what agrees so far is not asked for again."""
    rows = [((0, at), at) for at in range(100)]
    asked: list[Ask] = []

    async def ask(_: str, ask: Ask) -> AuditAnswer:
        asked.append(ask)
        upto = min(ask.after[1] + 40, ends, ask.through[1])
        told = [row for row in rows if ask.after < row[0] <= (0, upto)]
        count, checksum = digest(told)
        if ask.what is What.DIGEST:
            return AuditAnswer(low=BEFORE_ALL, upto=(0, upto), count=count, checksum=checksum)
        return AuditAnswer(low=BEFORE_ALL, upto=(0, upto), rows=tuple(told))

    log: Any = SimpleNamespace(vector=Vector(), state=SimpleNamespace(trees=()))
    mine: list[Any] = [(at, checksum, at, LOG, False) for at, checksum in rows]
    for last in (99, 60):
        ends = last
        asked.clear()
        found = AuditPass(log, LOG, "us", ask, {"ap": 3}, {3: "ap"}, LOG, Report(began_ms=0))
        compared = run_alone(found._compare("ap", AP, (0, -1), (0, 99), mine))
        assert compared is (last == 99) and not found.findings
        assert [one.after[1] for one in asked] == ([-1, 39, 79] if compared else [-1, 39, 60])


class SmallMap(PositionMap):
    """Has a point each kilobyte of the topic."""

    every_log_bytes = 1000
    __slots__ = ()


def test_an_answer_reads_little_where_its_origin_is_sparse() -> None:
    """Of ap one entry in two hundred is here, and of this region's own none is meant for ap."""
    state = TopicState(
        region=1,
        epoch=1,
        rng=random.Random(5),
        deduplication=False,
        settings=DedupSettings(),
        positions=SmallMap(),
    )
    ledger, read = FakeLedger(Store(), state, auto=True), [0]
    state.begin_epoch(ledger.last_confirmed)
    log: Any = ReplicatedLog(ledger, state)  # type: ignore[arg-type]
    fail = pytest.fail
    for at in range(6):
        for n in range(200):
            part = entry(200 * at + n, "us", 200 * at + n, ("eu",))
            log.publish(Run([part], [len(part)]), lambda _: None, fail)
        sent = received(answer(at).runs[0], "ap")
        log.append_replicated((0, at - 1) if at else BEFORE_ALL, sent, lambda _: None, fail)

    async def rate(_: int, size_bytes: int) -> None:
        read[0] += size_bytes

    def tell(asked: Ask, to: str) -> AuditAnswer:
        read[0] = 0
        told = run_alone(Teller(Copies(ledger.store), rate, AuditLimits(read_bytes=2000)).tell(log, asked, to))
        assert not told.refusal and read[0] < 3000
        return told

    for after in range(-1, 5):
        told = tell(Ask(What.ENTRIES, AP, (0, after), (0, 5)), "eu")
        assert told.upto == (0, after + 1) and [run.coordinate(0) for run in told.runs] == [(0, after + 1)]
    own, answers = Ask(What.ENTRIES, state.origin, BEFORE_ALL, state.vector.prefix(state.origin)), 0
    while own.after < own.through:
        told = tell(own, "ap")
        assert not told.runs and told.upto > own.after
        own, answers = replace(own, after=told.upto), answers + 1
    assert answers > 10
