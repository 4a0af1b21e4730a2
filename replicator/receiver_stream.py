"""ReceiverStream: one topic's stream of one connection of a link, at its target.

Is: the core of what is stored, receipted, and asked again. Isn't: the connection (`replicator.receiver`), or the rule (`replicator.intake`).
Invariants: a receipt names only what is durable here; a run is stored only if it comes from its origin's own region (full mesh), its entries
match their checksums, and the previous coordinate is held; after a GAP nothing of that attempt is stored any more.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heliograph.model.coordinates import Origin
from heliograph.model.errors import HeliographError, PeerError
from heliograph.model.positions import Position
from heliograph.wire import link as wire
from heliograph.wire.link import SkipRecord
from heliograph.wire.link_audit import Ask, Told, ask_frame, tell_frame
from heliograph.wire.run import Buffer, Run
from replicator.auditor import LEVEL as AUDIT_LEVEL
from replicator.auditor import Auditor
from replicator.claims import Claims
from replicator.entries import received
from replicator.incoming import IncomingLink, IncomingRegion
from replicator.intake import Verdict
from replicator.log import ReplicatedLog

Write = Callable[[Sequence[Buffer]], None]


class ReceiverStream:
    """One topic's stream. `write`: sends a frame. `dirty`: a receipt is due."""

    def __init__(
        self,
        number: int,
        source: str,
        source_number: int,
        log: ReplicatedLog,
        write: Write,
        dirty: Callable[[ReceiverStream], None],
        *,
        level: int = 1,
        take: Callable[[int], None] = lambda _: None,
        give: Callable[[int], None] = lambda _: None,
        incoming: IncomingLink | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """take, give: bytes of runs that are on their way to the bookies, and not any more."""
        self._take, self._give = take, give
        self.incoming, self._now_ms = incoming or IncomingLink(IncomingRegion()), now_ms
        self.incoming.connected, self.incoming.heard_ms = True, now_ms()
        log.comes_from(source, self.incoming)
        self.number, self.source, self.source_number, self.log = number, source, source_number, log
        self._write, self._dirty = write, dirty
        self._attempt = self._gapped = 0
        self._level = level
        self._told: Position | None = None
        self._due: dict[Origin, None] = {}
        self._stops = [log.watch_vector(self._on_vector), log.watch_rollback(self._on_rollback)]
        if level >= 2:
            self._stops.append(log.subscriptions.channel(source, self._tell_claims))
        if level >= AUDIT_LEVEL:
            self.incoming.send_ask = lambda request, ask: write(ask_frame(number, request, ask))

    def end(self) -> None:
        for stop in self._stops:
            stop()
        self.incoming.send_ask = None
        if self.log.incoming.get(self.source) is self.incoming:  # else a newer stream is there already
            self.incoming.connected = False

    def on_run(self, attempt: int, previous: Position, run: Run) -> None:
        """Raises PeerError."""
        assert run.origin is not None
        if self._passes(attempt, run.origin):
            ledger, first, count = run.spans[-1]
            origin, last = run.origin, (ledger, first + count - 1)
            if last > self.log.state.intake.submitted(origin):
                run = received(run, self.source)
            size, give = run.size_bytes, self._give
            self._take(size)
            verdict = self.log.append_replicated(previous, run, lambda _: self._stored(run, size), lambda _: give(size))
            if verdict is not Verdict.ACCEPT:
                give(size)
            self._answer(attempt, origin, last, verdict)

    def _stored(self, run: Run, size_bytes: int) -> None:
        self._give(size_bytes)
        region = self.incoming.region
        region.latency.add(max(0.0, self._now_ms() - (run.origin_time_ms - region.clock_offset_ms)), run.messages)

    def on_skip(self, attempt: int, record: SkipRecord) -> None:
        """Raises PeerError."""
        if self._passes(attempt, record.origin):
            self._answer(attempt, record.origin, record.through, self.log.append_skip(record, _stored, _failed))

    def _tell_claims(self, subscription: str, claims: Claims) -> bool:
        self._write(wire.claims_frame(self.number, subscription, claims.fields(self._level)))
        return True

    def on_ask(self, request: int, ask: Ask, auditor: Auditor) -> None:
        def answer(told: Told) -> None:
            if self.log.incoming.get(self.source) is self.incoming and self.incoming.connected:
                self._write(tell_frame(self.number, request, ask.what, told))

        auditor.asked(self.log, self.source, ask, answer)

    def receipt(self) -> list[tuple[Origin, Position]]:
        """What to acknowledge, of the origins that a receipt is due for."""
        due, self._due = self._due, {}
        return [(origin, self._durable(origin)) for origin in due]

    def changed(self) -> bool:
        """Whether the topic has grown since this was asked last."""
        told, self._told = self._told, self.log.ledger.last_confirmed
        return told != self._told

    def _passes(self, attempt: int, origin: Origin) -> bool:
        if origin[0] != self.source_number or self.log.state.is_own(origin):
            raise PeerError(f"link: {self.source} is not where region {origin[0]} publishes, and in a full mesh the origin itself delivers")
        if attempt < self._attempt:
            raise PeerError("link: attempts count upwards")
        self._attempt = attempt
        return attempt > self._gapped

    def _answer(self, attempt: int, origin: Origin, last: Position, verdict: Verdict) -> None:
        if verdict is Verdict.GAP:
            self._gap(attempt)
        elif verdict is Verdict.DUPLICATE and last <= self._durable(origin):
            self._due[origin] = None
            self._dirty(self)

    def _durable(self, origin: Origin) -> Position:
        return self.log.vector.prefix(origin)

    def _gap(self, attempt: int) -> None:
        self._gapped = attempt
        self._write(wire.gap_frame(self.number, attempt, self.log.vector))

    def _on_vector(self, origin: Origin) -> None:
        if origin[0] == self.source_number:
            self._due[origin] = None
            self._dirty(self)

    def _on_rollback(self) -> None:
        if self._attempt > self._gapped:
            self._gap(self._attempt)


def _stored(_: Any) -> None:
    """The vector's watchers hear of it."""


def _failed(_: HeliographError) -> None:
    """The rollback's watchers hear of it."""
