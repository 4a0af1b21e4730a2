"""Auditor: looks, topic by topic, at whether this region holds what was published, and puts right what it does not.

Is: when each topic's turn comes, one pass at a time, the rate, requests to other regions and answers to theirs, and
reports. Isn't: the comparison (`replicator.audit.audit_pass`), the repair (`replicator.audit.audit_repair`), or a frame
(`heliograph.wire.links.audit_commands`).
Invariants: a topic costs nothing between its passes: no task, no timer; one pass runs in a broker, and at most
`answers_max` answers are made; bytes read for either stay within the rate; a request whose connection breaks ends
within its time-out.
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from heliograph.model.coordinates import Origin
from heliograph.model.errors import LinkError, NotAllowed, reason_of
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import report_unexpected
from heliograph.runtime.throttle import Throttle
from heliograph.wire.links import audit_commands as wire
from heliograph.wire.links.audit_commands import Ask, AuditAnswer
from heliograph.wire.run import Buffer, Run
from replicator.audit.audit_findings import AuditSummary, Report
from replicator.audit.audit_pass import AuditPass
from replicator.audit.audit_repair import Repairer
from replicator.audit.audit_scan import AuditStorage, Teller
from replicator.audit.audit_settings import AUDIT_LIMITS, AuditLimits, AuditSettings
from replicator.health.link_causes import Cause
from replicator.log.replicated_log import ReplicatedLog

events = logging.getLogger("replicator")

LEVEL = 3
"""The feature level of links from which both sides ask and tell."""

Write = Callable[[Sequence[Buffer]], None]


class Channels(Protocol):
    """The topics of one broker, and their links in both directions. region: its name."""

    region: str

    def topics(self) -> list[str]:
        """Those that are loaded, and may be replicated."""
        ...

    def log(self, topic: str) -> ReplicatedLog | None: ...

    def regions(self, log: ReplicatedLog) -> dict[str, int]:
        """Name -> number of the regions that can be asked about the topic now."""
        ...

    def names(self, log: ReplicatedLog) -> dict[int, str]:
        """Number -> name of all regions that the topic has links with, also of those that cannot be asked now."""
        ...

    def ended(self, origin: Origin) -> str:
        """The name that its region had, where it has ended for good; "": it may be published under."""
        ...

    def believed(self, log: ReplicatedLog, run: Run) -> Run:
        """The run with what is known here in place of what another region only says of it."""
        ...

    def send(self, log: ReplicatedLog, region: str, request: int, ask: Ask) -> bool:
        """False: it cannot be asked now."""
        ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None: ...


class Auditor:
    """One a broker. `storage` None: nothing is audited, and questions of others are refused."""

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        settings: AuditSettings | None = None,
        limits: AuditLimits = AUDIT_LIMITS,
        storage: AuditStorage | None = None,
    ) -> None:
        self.settings, self._channels, self._clock = settings or AuditSettings(), channels, clock
        self._limits = limits
        self.storage = storage
        self.reports: dict[str, Report] = {}
        """Topic -> its newest pass, the newest last; of more than `reports_max`, those with nothing to tell are
        forgotten first.
        """
        self.briefs: dict[str, AuditSummary] = {}
        """Topic -> its newest pass that was wanted, for as long as the topic is here."""
        self.found: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.entries = self.size_bytes = self.ranges = self.passes = self.failed = 0
        """Since the start of the broker."""
        self._throttle = Throttle(1.0)
        """In seconds that entries and bytes take at the rates of the settings: the longer of both counts."""
        self._round: list[str] = []
        self._round_ends = self._spacing_s = 0.0
        self._begins = clock.monotonic() + min(
            60.0, self.settings.period_s / 10
        )  # by then the broker has loaded what it owns
        self._wanted: dict[str, None] = {}
        self._passed: dict[str, float] = {}
        """When the last pass began that was wanted, and ended without an error: of topics that have lost something."""
        self._running = ""
        self._running_wanted = False
        self._requests = 0
        self._waiting: dict[int, tuple[str, Ask, asyncio.Future[AuditAnswer]]] = {}
        self._answers: list[tuple[ReplicatedLog, str, Ask, Callable[[AuditAnswer], None]]] = []
        self._answering: Counter[str] = Counter()
        """Region -> answers to it that are being made."""

    # -- rounds --------------------------------------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """A pass over it is begun as soon as the one before has ended. Raises NotAllowed."""
        log = self._channels.log(topic)
        if self.storage is None or log is None or not self._channels.regions(log):
            raise NotAllowed(f"{topic} has no link that is open now: there is nothing to compare it with")
        self._wanted[topic] = None
        self.tick()

    def asked_since(self, topic: str, since: float) -> bool:
        """Whether all that other regions have of the topic was asked for since then, and a repair was tried; wants a
        pass where not. True of a topic that no other region has. since: the event loop's time.
        """
        log = self._channels.log(topic)
        if self.storage is None or log is None or not self._channels.names(log):
            return True
        if self._passed.get(topic, -1.0) >= since:
            return True
        if not self.running(topic):
            with contextlib.suppress(NotAllowed):  # none of them is to be reached: it may have it
                self.want(topic)
        return False

    def running(self, topic: str) -> bool:
        """Whether a pass is under way or wanted."""
        return topic == self._running or topic in self._wanted

    def tick(self) -> None:
        """Called about once a second: begins the pass that is due, unless one is under way."""
        if self._running or self.storage is None:
            return
        topic = next(iter(self._wanted), "") or self._next()
        self._running_wanted = topic in self._wanted
        self._wanted.pop(topic, None)
        log = self._channels.log(topic) if topic else None
        if log is not None and self._channels.regions(log):
            self._running = topic
            self._channels.spawn(self._pass(log))

    def _next(self) -> str:
        """Topics take turns, spread over the period: so many a round, in the order in which they were loaded. "": none
        is due.
        """
        if not self.settings.period_s:
            return ""
        now = self._clock.monotonic()
        if not self._round and now >= max(self._round_ends, self._begins):
            self._round = self._channels.topics()
            self._round.reverse()
            self._round_ends, self._spacing_s = (
                now + self.settings.period_s,
                self.settings.period_s / (len(self._round) + 1),
            )
            for gone in [topic for topic in self.reports if self._channels.log(topic) is None]:
                del self.reports[gone]
            self._passed = {topic: began for topic, began in self._passed.items() if self._channels.log(topic)}
            for gone in [topic for topic in self.briefs if self._channels.log(topic) is None]:
                del self.briefs[gone]
        if self._round and now >= self._round_ends - len(self._round) * self._spacing_s:
            return self._round.pop()
        return ""

    async def _pass(self, log: ReplicatedLog) -> None:
        assert self.storage is not None
        report, began = Report(began_ms=self._clock.wall_ms()), asyncio.get_running_loop().time()
        channels = self._channels
        asks, regions = partial(self.ask, log), channels.regions(log)
        found = AuditPass(
            log,
            self.storage,
            channels.region,
            asks,
            regions,
            channels.names(log),
            self._take,
            report,
            channels.ended,
            self._limits,
        )
        try:
            await found.run()
            if found.findings:
                events.warning("audit.found", extra={"topic": log.topic, "findings": len(found.findings)})
                await self._repair(Repairer(found))
            found.check_whole()
        except Exception as error:  # whatever it is, the pass has failed; it comes again in the next round
            report_unexpected(error, "an audit failed")
            report.error = reason_of(error)
            self.failed += 1
        finally:
            self._running = ""
            self._settle(log, report, found)
            if self._running_wanted and not report.error:
                self._passed[log.topic] = began

    async def _take(self, entries: int, size_bytes: int) -> None:
        await self._throttle.take(max(entries / self.settings.entries_per_s, size_bytes / self.settings.bytes_per_s))

    async def _repair(self, repairer: Repairer) -> None:
        """With its appends, so that the report counts them; one that takes too long is told as on its way, and found
        again where it fails.
        """
        await repairer.run()
        if repairer.appending:
            appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def over() -> None:
                if not appended.done():
                    appended.set_result(None)

            repairer.on_appended = over
            try:
                await asyncio.wait_for(appended, self.settings.answer_timeout_s)
            except TimeoutError:
                pass

    def _settle(self, log: ReplicatedLog, report: Report, found: AuditPass) -> None:
        report.settle(found.findings)
        report.ended_ms = self._clock.wall_ms()
        self.passes += 1
        self.found.update(report.found)
        self.repaired.update(report.repaired)
        self.entries, self.size_bytes, self.ranges = (
            self.entries + report.entries,
            self.size_bytes + report.size_bytes,
            self.ranges + report.ranges,
        )
        self.reports.pop(log.topic, None)  # to the end of the order
        self.reports[log.topic] = report
        if self._running_wanted:
            self.briefs[log.topic] = report.brief()
        if len(self.reports) > self._limits.reports_max:
            del self.reports[
                next(
                    (topic for topic, one in self.reports.items() if not one.findings and not one.error),
                    next(iter(self.reports)),
                )
            ]
        for finding in report.findings:
            events.warning("audit.finding", extra={"topic": log.topic, **finding.shown()})

    # -- asking --------------------------------------------------------------------------------------------------------

    async def ask(self, log: ReplicatedLog, region: str, ask: Ask) -> AuditAnswer:
        """Raises LinkError where no answer comes; PeerError where it makes no sense."""
        self._requests += 1
        request = self._requests
        answer: asyncio.Future[AuditAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = (region, ask, answer)
        try:
            if not self._channels.send(log, region, request, ask):
                raise LinkError(Cause.CONNECTION_LOST, f"there is no link with {region} now")
            told = await asyncio.wait_for(answer, self.settings.answer_timeout_s)
            return replace(told, runs=tuple(self._channels.believed(log, run) for run in told.runs))
        except TimeoutError as error:
            raise LinkError(
                Cause.TIMEOUT, f"{region} did not answer in {self.settings.answer_timeout_s:g} s"
            ) from error
        finally:
            del self._waiting[request]

    def told(self, region: str, request: int, fields: list[Any], payload: Buffer) -> None:
        """An answer has come; late ones are passed over, and those of a region that was not asked. Raises PeerError."""
        if (waiting := self._waiting.get(request)) is None:
            return
        asked, ask, answer = waiting
        if asked == region and not answer.done():
            answer.set_result(wire.told(ask, fields, bytes(payload)))

    # -- telling -------------------------------------------------------------------------------------------------------

    def asked(self, log: ReplicatedLog, region: str, ask: Ask, answer: Callable[[AuditAnswer], None]) -> None:
        """`answer` is called once, unless the broker stops. One region has half of the room to wait, and one place less
        than there are: its questions may each read a whole topic.
        """
        most, waiting = self.settings.waiting_max, sum(other == region for _, other, _, _ in self._answers)
        if self.storage is None or len(self._answers) >= most or waiting * 2 > most:
            answer(AuditAnswer(refusal="not now"))
            return
        self._answers.append((log, region, ask, answer))
        self._answer_next()

    def _answer_next(self) -> None:
        """Begins the answer to the first question whose region has a place."""
        if self._answering.total() >= self.settings.answers_max:
            return
        most = max(1, self.settings.answers_max - 1)
        for index, (log, region, ask, answer) in enumerate(self._answers):
            if self._answering[region] < most:
                del self._answers[index]
                self._answering[region] += 1
                self._channels.spawn(self._answer(log, region, ask, answer))
                return

    async def _answer(self, log: ReplicatedLog, region: str, ask: Ask, answer: Callable[[AuditAnswer], None]) -> None:
        assert self.storage is not None
        try:
            told = await Teller(self.storage, self._take, self._limits).tell(log, ask, region)
        except Exception as error:  # whatever it is, who asked hears of it, and the next one has his turn
            report_unexpected(error, "an audit's question could not be answered")
            told = AuditAnswer(refusal=f"{type(error).__name__}: {error}")
        finally:
            self._answering[region] -= 1
            self._answer_next()
        answer(told)
