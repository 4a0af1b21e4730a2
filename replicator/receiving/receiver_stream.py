"""ReceiverStream: one topic's stream of one connection of a link, at its target.

Is: the core of what is stored, receipted, and asked again. Isn't: the connection
(`replicator.receiving.link_receiver`), or the rule (`replicator.dedup.version_vector`).
Invariants: a receipt names only what is durable here; a run is stored only if it comes from its origin's own region, or
from the one that is this region's parent in that origin's tree, which the origin itself has brought, or which is as
configured (`RelayRights`); its entries match their checksums, and the previous coordinate is held; after a GAP nothing
of that attempt is stored any more.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from heliograph.model.coordinates import Origin
from heliograph.model.errors import CorruptData, HeliographError, LinkError, PeerError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.clock import STAMP_OFF_MS
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, ask_frame, tell_frame
from heliograph.wire.links.link_commands import SkipRecord
from heliograph.wire.run import Run
from replicator.audit.auditor import LEVEL as AUDIT_LEVEL
from replicator.audit.auditor import Auditor
from replicator.dedup.version_vector import RunVerdict
from replicator.health.incoming_stats import Heard, IncomingLink
from replicator.health.link_causes import Cause
from replicator.log.replicated_entries import passing, received
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.routing_trees import REGION_BYTES_MAX, Tree, is_tree
from replicator.receiving.link_session import Write
from replicator.subscriptions.ack_claims import Claims

ORIGINS_MAX = 1000
"""So many has one region in a topic under which it may publish yet. A region has a new one with each incarnation of its
topic, and with each epoch.
"""
ORIGINS_IN_ALL_MAX = 3000
"""With those that are over: each is in the topic's stored state for good, as whoever forgot it would take its entries
again from a region that has them still.
"""


class RelayRights(Protocol):
    """What the configuration says of entries that come by way of a region that did not publish them."""

    def region_of(self, origin: Origin) -> str | None:
        """The name of the region that publishes under it; None: its number is not known here (yet)."""
        ...

    def refusal(self, log: ReplicatedLog, source: str, origin: Origin, record: Run) -> str:
        """Why `source` may not pass on what the region of `origin` publishes, though `record`, the first one that came
        of it, says so; "": it may.
        """
        ...

    def leadership(self, log: ReplicatedLog) -> int:
        """The highest number of a leadership of the topic's namespace that there is, or was, as far as is known here;
        0: none.
        """
        ...

    def ended(self, origin: Origin) -> bool:
        """Nothing is published under it any more: its region has another epoch, or there is no such region."""
        ...


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
        incoming: IncomingLink,
        relays: RelayRights,
        grew: Callable[[ReceiverStream], None] = lambda _: None,
        region: str = "",
        level: int = 1,
        take: Callable[[int], None] = lambda _: None,
        give: Callable[[int], None] = lambda _: None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """grew: the topic has more than the source was told of. region: this one's name.

        take, give: bytes of runs that are on their way to the bookies, and not any more.
        """
        self._region, self._relays = region, relays
        self._take, self._give = take, give
        self.incoming, self._now_ms = incoming, now_ms
        self.incoming.open = True
        log.comes_from(source, self.incoming)
        self.number, self.source, self.source_number, self.log = number, source, source_number, log
        self._write, self._dirty = write, dirty
        self._attempt = self._gapped = 0
        self._level = level
        self._due: dict[Origin, None] = {}
        self._passed_on: dict[Origin, str] = {}
        """Origins of other regions that come on this stream -> their region."""
        self._led = 0
        """Up to this number leaderships are known to be registered."""
        self._trees = False
        """Some origin has a tree: what comes may be meant for regions further down."""
        self._stops = [
            log.watch_vector(self._on_vector),
            log.watch_rollback(self._on_rollback),
            log.ledger.wake_on_append(lambda: grew(self)),
        ]
        if level >= 2:
            self._stops.append(log.subscriptions.channel(source, self._tell_claims))
        if level >= AUDIT_LEVEL:
            self.incoming.send_ask = lambda request, ask: write(ask_frame(number, request, ask))

    def end(self, heard: Heard) -> None:
        """heard: when the source was heard last, as it stays for this stream."""
        for stop in self._stops:
            stop()
        self.incoming.end(heard)
        self.log.comes_no_more(self.source, self.incoming)

    def on_run(self, attempt: int, previous: Position, run: Run) -> None:
        """Takes a run that the source sent: what is new is stored, and receipted once it is durable. Raises LinkError
        where it is not the source's to send, PeerError where it makes no sense.
        """
        assert run.origin is not None
        ledger, first, count = run.spans[-1]
        origin, last = run.origin, (ledger, first + count - 1)
        if run.leadership > self._led:
            self._check_leadership(origin, run.leadership)
        if self._passes(attempt, origin, last, run):
            self._trees = self._trees or is_tree(run) or bool(self.log.state.trees)
            if last <= self.log.state.intake.submitted(origin):
                self._append(attempt, previous, last, run)
                return
            run = received(run, self._passed_on.get(origin, self.source))
            if not self._trees:
                self._append(attempt, previous, last, run)
                return
            for piece in passing(run, self._region):
                ledger, first, count = piece.spans[-1]
                self._append(attempt, previous, (ledger, first + count - 1), piece)
                previous = (ledger, first + count - 1)

    def _append(self, attempt: int, previous: Position, last: Position, run: Run) -> None:
        assert run.origin is not None
        size, give = run.size_bytes, self._give
        self._take(size)
        begin_ns = 0 if self.log.tracing is None else self.log.tracing.now_ns()
        verdict = self.log.append_replicated(
            previous, run, lambda _: self._stored(run, size, begin_ns), lambda _: give(size)
        )
        if verdict is not RunVerdict.ACCEPT:
            give(size)
        self._answer(attempt, run.origin, last, verdict)

    def _stored(self, run: Run, size_bytes: int, begin_ns: int) -> None:
        self._give(size_bytes)
        if self.log.tracing is not None:
            self.log.tracing.arrived(self.log.topic, self.source, run, begin_ns)
        self.incoming.messages += run.messages
        self.incoming.size_bytes += size_bytes
        region = self.incoming.region
        late_ms = self._now_ms() - (run.origin_time_ms - region.clock_offset_ms)
        if late_ms > -STAMP_OFF_MS:  # else it was stamped by another clock than its origin's, which is not known here
            region.latency.add(max(0.0, late_ms), run.messages)

    def on_skip(self, attempt: int, record: SkipRecord) -> None:
        """Takes a SKIP that the source sent, as `on_run` takes a run. Raises LinkError, PeerError."""
        if self._passes(attempt, record.origin, record.through):
            self._answer(attempt, record.origin, record.through, self.log.append_skip(record, _stored, _failed))

    def _tell_claims(self, subscription: str, claims: Claims) -> bool:
        self._write(wire.claims_frame(self.number, subscription, claims.fields(self._level)))
        return True

    def on_ask(self, request: int, ask: Ask, auditor: Auditor) -> None:
        def answer(told: AuditAnswer) -> None:
            if self.incoming.open:
                self._write(tell_frame(self.number, request, ask.what, told, self._level))

        auditor.asked(self.log, self.source, ask, answer)

    def receipt(self) -> list[tuple[Origin, Position]]:
        """What to acknowledge, of the origins that a receipt is due for."""
        due, self._due = self._due, {}
        return [(origin, self._durable(origin)) for origin in due]

    def _passes(self, attempt: int, origin: Origin, last: Position, run: Run | None = None) -> bool:
        self._check_right(origin, run)
        if attempt < self._attempt:
            raise PeerError("link: attempts count upwards")
        self._attempt = attempt
        if attempt <= self._gapped:
            return False
        if self.log.state.intake.submitted(origin) == BEFORE_ALL:
            self._check_origins(origin)
        if (
            origin[0] != self.source_number
            and not self._from_parent(origin)
            and last > self.log.state.intake.submitted(origin)
        ):
            self._gap(attempt)  # it goes by another way now, as this region's vector says
            return False
        return True

    def _check_right(self, origin: Origin, run: Run | None) -> None:
        """Whether the source may speak of `origin`: it publishes there, or passes that on. Raises LinkError."""
        if origin[0] == self.log.origin[0] or self.log.state.is_own(origin):
            raise self.refused(origin, f"{self._region} publishes there itself")
        if run is not None and is_tree(run):
            self._check_record(origin, run)
        elif origin[0] != self.source_number and origin not in self._passed_on:
            if (tree := self.log.state.trees.newest(origin)) is None:
                raise self.refused(origin, "no tree of that region's says that it passes its entries on")
            self._passed_on[origin] = tree.root

    def _check_origins(self, origin: Origin) -> None:
        """Nothing of it is here yet. Raises LinkError where its region has too many others."""
        state, relays = self.log.state, self._relays
        held = [other for other in state.vector if other[0] == origin[0]]
        if len(held) < ORIGINS_MAX:
            return
        living = sum(not state.is_over(other) and not relays.ended(other) for other in held)
        if living >= ORIGINS_MAX or len(held) >= ORIGINS_IN_ALL_MAX:
            raise self.refused(
                origin,
                f"{self._region} has {len(held)} origins of that region in this topic, {living} of them not over, and "
                f"takes no more than {ORIGINS_IN_ALL_MAX}, and {ORIGINS_MAX} that are not over; {self._anew()}",
            )

    def _check_record(self, origin: Origin, run: Run) -> None:
        try:
            tree = Tree.decode(run.parts[0])
        except CorruptData as error:
            raise PeerError(f"link: {error}") from error
        trees, at = self.log.state.trees, run.coordinate(0)
        if at > (trees.newest_at(origin) or BEFORE_ALL) and trees.size_with(origin, at, tree) > REGION_BYTES_MAX:
            raise self.refused(
                origin, f"{self._region} takes {REGION_BYTES_MAX} bytes of that region's trees at most; {self._anew()}"
            )
        if tree.root != self._relays.region_of(origin):
            raise self.refused(origin, f"it brings a tree that begins in {tree.root}, which does not publish there")
        if origin[0] == self.source_number or origin in self._passed_on:
            return
        if self.log.state.trees.newest(origin) is None:
            if not tree.whole or tree.parent(self._region) != self.source:
                raise self.refused(origin, "no tree of that region's says that it passes its entries on")
            if why := self._relays.refusal(self.log, self.source, origin, run):
                raise self.refused(origin, why)
        self._passed_on[origin] = tree.root

    def _anew(self) -> str:
        """What to do where the topic has too much of a region's origins in its state."""
        return (
            f"once others have what was published to the topic in {self._region}, and all of it is read there, delete "
            "it there: it is made anew, with what other regions hold; and publish under new names rather than delete "
            "one and the same again and again"
        )

    def _check_leadership(self, origin: Origin, number: int) -> None:
        """With a newer leadership the exact sequences of the one before are forgotten: a number that is made up would
        take them away. Raises LinkError; where it is only younger than the copy of the configuration here, the source
        comes again.
        """
        self._led = self._relays.leadership(self.log)
        if number > self._led:
            raise self.refused(
                origin,
                f"it names leadership {number} of the namespace, and {self._region} knows none above {self._led}",
            )

    def refused(self, origin: Origin, why: str) -> LinkError:
        """The error that says what was claimed, to be raised."""
        region = self._relays.region_of(origin) or "?"
        text = (
            f"{self.source} may not speak to {self._region} of origin {origin[0]}.{origin[1]}.{origin[2]:x} (of region "
            f"{region}) in {self.log.topic}: {why}"
        )
        return LinkError(Cause.ORIGIN_REFUSED, text)

    def _from_parent(self, origin: Origin) -> bool:
        tree = self.log.state.trees.following(origin, self._durable(origin))
        return tree is None or tree.parent(self._region) == self.source

    def _answer(self, attempt: int, origin: Origin, last: Position, verdict: RunVerdict) -> None:
        if verdict is RunVerdict.GAP:
            self._gap(attempt)
        elif verdict is RunVerdict.DUPLICATE and last <= self._durable(origin):
            self._due[origin] = None
            self._dirty(self)

    def _durable(self, origin: Origin) -> Position:
        return self.log.vector.prefix(origin)

    def _gap(self, attempt: int) -> None:
        self._gapped = attempt
        self._write(wire.gap_frame(self.number, attempt, self.log.vector))

    def _on_vector(self, origin: Origin) -> None:
        if origin[0] == self.source_number or origin in self._passed_on:
            self._due[origin] = None
            self._dirty(self)

    def _on_rollback(self) -> None:
        if self._attempt > self._gapped:
            self._gap(self._attempt)


def _stored(_: Any) -> None:
    """The vector's watchers hear of it."""


def _failed(_: HeliographError) -> None:
    """The rollback's watchers hear of it."""
