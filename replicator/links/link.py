"""Link: one topic to one region: its life (waiting, connecting, opening, open), what comes back, and its numbers.

Is: the shell around `replicator.sending.link_sender` that hears the target, moves the cursor, and watches for progress.
Isn't: reading and sending (`replicator.links.link_pump`), a decision what is sent or how far the cursor moves (the
core's), or the making of connections (the manager's).
Invariants: no task and no timer of the loop while it idles.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import LinkError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.audit_commands import Ask, AuditAnswer, ask_frame, tell_frame
from heliograph.wire.links.link_commands import Risk
from heliograph.wire.links.schema_commands import SchemaRow, overrule_frames, schemas_frames
from heliograph.wire.run import Buffer
from replicator.audit.auditor import LEVEL as AUDIT_LEVEL
from replicator.bandwidth.send_window import LIVE_BYTES, Window
from replicator.coordinates.published_totals import NOTHING, Totals
from replicator.health.incoming_stats import LOST_S
from replicator.health.link_causes import Cause
from replicator.health.link_stats import LinkCursor, LinkHistory, LinkStats
from replicator.health.watchdog import Facts, Watchdog
from replicator.links.delivered_mark import PROPERTY, delivered_of, properties_of
from replicator.links.link_connection import LinkConnection
from replicator.links.link_pump import LinkPump
from replicator.links.parked_links import ParkedLink, park, settled
from replicator.links.schema_feed import SchemaFeed
from replicator.links.start_position import begins_of
from replicator.links.timer_wheel import Timer
from replicator.log.deletion import LINK_CURSORS
from replicator.log.replicated_log import ReplicatedLog
from replicator.sending.link_sender import LinkSender
from replicator.subscriptions.ack_claims import Claims

if TYPE_CHECKING:
    from replicator.manager.link_manager import LinkManager

events = logging.getLogger("replicator")

_STEADY_S = 5.0
TREES_LEVEL = 5
_RATE_MIN = 0.01
_TAKE_OVER_S = 5.0
_OPEN_TIMEOUT_S = 10.0
"""A target that does not answer an OPEN for longer is left, and asked again."""


class Link:
    """Made by LinkManager.attach; `begin` once its cursor is open."""

    __slots__ = (
        "_behind_at",
        "_behind_s",
        "_cursor",
        "_level",
        "_opened_at",
        "_pump",
        "_rated",
        "_stop_telling",
        "_stop_waking",
        "_timer",
        "_told",
        "_watchdog",
        "_window",
        "cause",
        "cause_text",
        "connection",
        "core",
        "failures",
        "history",
        "log",
        "manager",
        "number",
        "parked",
        "rate_out",
        "restarts",
        "schemas",
        "start",
        "state",
        "target",
        "throughput_out",
        "weight",
    )

    def __init__(self, manager: LinkManager, log: ReplicatedLog, target: str) -> None:
        self.manager, self.log, self.target = manager, log, target
        self.state, self.cause, self.cause_text = "loading", Cause.NONE, ""
        self.core: LinkSender | None = None
        self.failures = 0
        self._cursor: LinkCursor | None = None
        self.start: Mapping[str, Any] | None = None
        """The policy `replicationStart`: where a link begins that is new."""
        self.connection: LinkConnection | None = None
        self.number = self._level = 0
        self._timer: Timer | None = None
        self._opened_at = 0.0
        self._watchdog = Watchdog(manager.settings.sender.stalled_after_s, manager.settings.heartbeat_s)
        self.restarts: Counter[Cause] = Counter()
        self.history = LinkHistory()
        self.schemas = SchemaFeed(self)
        self.parked: ParkedLink | None = None
        """Also while it looks again whether the conflict is over."""
        self.weight = 1
        """The policy `replicationPriority`: so many times the bytes of a link of weight 1 go out in a share."""
        self._pump = LinkPump(self)
        self._stop_waking: Callable[[], None] | None = None
        self._told: object = None
        self._stop_telling: Callable[[], None] | None = None
        self._behind_s, self._behind_at = 0.0, BEFORE_ALL
        """For how long a target that is behind a change of trees has got nothing, and where it stood."""
        self._window = Window()
        self._rated = (0, 0)
        self.rate_out = self.throughput_out = 0.0

    @property
    def level(self) -> int:
        """The feature level that the newest stream's handshake agreed on; 0: there was none."""
        return self._level

    @property
    def ended(self) -> bool:
        return self.state == "detached"

    # -- life ----------------------------------------------------------------------------------------------------------

    def begin(self, cursor: LinkCursor) -> None:
        """The cursor `pulsar.repl.<target>` is open."""
        if self.ended:
            return
        self._cursor = cursor
        self._pump.begins = begins_of(cursor.properties)
        self.core = core = LinkSender(
            self.target,
            self.log.state,
            cursor.mark_delete,
            self.manager.settings.sender,
            self.manager.region,
            delivered_of(cursor.properties),
        )
        cursor.properties.pop(PROPERTY, None)  # it is made anew at each write
        cursor.also = lambda: properties_of(core.delivered)
        cursor.reading = lambda: core.read_at
        self._rated = self.core.done[1:]
        self._stop_waking = self.log.ledger.wake_on_append(self.pump)
        self.connect()

    def obey_rate(self, policy: Mapping[str, Any] | None) -> None:
        """Takes the policy `replicatorDispatchRate` over, as JSON; None: no rate."""
        self._pump.obey_rate(policy)

    def obey_lifetime(self, seconds: int) -> None:
        """Takes the policy `replicationTTL` over: what is older, and not sent, is given up; 0: nothing is."""
        self._pump.lives_s = seconds

    def give_up(self, first: Position, last: Position) -> None:
        """What lies in [first, last] is lost here: the target is told so, in its place. first: where the link stands
        then, or will.
        """
        self._pump.give_up(first, last)
        self.poke()

    def pump(self) -> None:
        """Sends what the core, the rates, and the connection let go now. Called when the topic has grown, or a receipt
        came.
        """
        self._pump.pump()

    async def read(self) -> None:
        """The manager has a place for a read that was asked for."""
        await self._pump.read()

    def connect(self) -> None:
        self._timer = None
        if not self.ended:
            self.state = "connecting"
            self.manager.establish(self)

    def open_on(self, connection: LinkConnection) -> None:
        """A connection to the topic's owner stands."""
        if self.ended:
            return
        self.state = "opening"
        self.connection = connection
        self.number = connection.open(self, self.log.topic, self.manager.region, self.manager.region_number())
        self._timer = self.manager.timers.after(
            _OPEN_TIMEOUT_S, lambda: self.restart(Cause.TIMEOUT, "no answer to OPEN")
        )

    def restart(self, cause: Cause, text: str) -> None:
        """Gives the connection up, and comes again after a while."""
        if self.connection is not None:
            self.connection.close_stream(self.number, cause, text)
        self.on_ended(cause, text)

    def on_ended(self, cause: Cause, text: str, rows: Sequence[SchemaRow] = ()) -> None:
        """The stream is gone, or could not be opened. rows: of a conflict, what the target has."""
        if self.ended:
            return
        if self.state == "open" and self.manager.clock.monotonic() - self._opened_at > _STEADY_S:
            self.failures = 0
        self._disconnect()
        if cause is not self.cause:
            events.info(
                "link.ended", extra={"topic": self.log.topic, "target": self.target, "cause": cause, "text": text}
            )
        if cause.parks:
            self._timer = self.manager.timers.after(park(self, cause, text, rows), self.connect)
            return
        self.state, self.cause, self.cause_text = "waiting", cause, text
        self.restarts[cause] += 1
        self.manager.restarts[self.target, cause] += 1
        self.history.add(self.manager.clock.wall_ms(), cause, text)
        self._timer = self.manager.timers.after(self.manager.backoff_s(self.failures), self.connect)
        self.failures += 1

    def unpark(self) -> None:
        """Something changed that the conflict may have been about."""
        if self.state == "parked":
            self.poke()

    def detach(self) -> None:
        """The topic leaves this broker, or the region leaves the topic: final."""
        if self.ended:
            return
        if self.connection is not None:
            self.connection.close_stream(self.number, Cause.DETACHED, "the topic is unloaded at its source")
        self._disconnect()
        self._pump.end()
        self.state, self.cause = "detached", Cause.DETACHED
        self.manager.parked.pop(self, None)
        self.manager.unopened.remove(self)
        if self._cursor is not None:
            self._cursor.reading = None
        if self._stop_waking is not None:
            self._stop_waking()

    def poke(self) -> None:
        """Something changed that may have been the reason for waiting."""
        if self.state in ("waiting", "parked"):
            self.failures = 0
            self._cancel_timer()
            self.connect()

    def _disconnect(self) -> None:
        self._cancel_timer()
        self._pump.stop()
        self.connection, self._told = None, None
        if self._stop_telling is not None:
            self._stop_telling()
            self._stop_telling = None
        if self.core is not None:
            self.core.disconnected()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what comes back -----------------------------------------------------------------------------------------------

    def on_opened(self, incarnation: int, window_bytes: int, vector: Vector, level: int) -> None:
        if self.state != "opening" or self.core is None:
            return
        self._cancel_timer()
        self.state, self.cause, self.cause_text = "open", Cause.NONE, ""
        self._level = self._pump.packer.level = level
        self._opened_at = self.manager.clock.monotonic()
        self.manager.unopened.remove(self)
        self._watchdog.opened(self._opened_at, self.core.rewinds)
        self.log.learn(self.target, vector.copy(), self.manager.clock.wall_ms())
        events.info("link.opened", extra={"topic": self.log.topic, "target": self.target, "vector": vector})
        if level >= AUDIT_LEVEL:
            self.schemas.opened()
        if level >= 2:
            self._stop_telling = self.log.subscriptions.channel(self.target, self._tell_claims)
        self._fit(self.core, 1.0)
        self.core.transactional, self.core.passes = level >= 3, level >= TREES_LEVEL
        self._rewound(self.core.opened(vector, window_bytes))

    def _tell_claims(self, subscription: str, claims: Claims) -> bool:
        connection = self.connection
        if connection is None or not connection.writable(self.number):
            return False
        connection.write(wire.claims_frame(self.number, subscription, claims.fields(self._level)))
        return True

    def on_claims(self, subscription: str, claims: Claims) -> None:
        self.log.subscriptions.heard(self.target, subscription, claims)

    def send_ask(self, request: int, ask: Ask) -> bool:
        """What the target holds is asked; False: not now."""
        connection = self.connection
        if connection is None or not self.asks:
            return False
        connection.write(ask_frame(self.number, request, ask))
        return True

    @property
    def asks(self) -> bool:
        """Whether the other side answers questions of an audit, and may ask some."""
        return self.state == "open" and self._level >= AUDIT_LEVEL

    def send_schemas(self, rows: Sequence[SchemaRow], overrules: Sequence[SchemaRow] = ()) -> bool:
        """overrules: those of `rows` that the target takes in place of its own. False: there is no stream now."""
        connection = self.connection
        if connection is None or not self.asks:
            return False
        if overrules:
            connection.write(overrule_frames(self.number, overrules))
        if rest := [row for row in rows if row not in overrules]:
            connection.write(schemas_frames(self.number, rest))
        return True

    def on_ask(self, request: int, ask: Ask) -> None:
        connection, number = self.connection, self.number

        def answer(told: AuditAnswer) -> None:
            if connection is not None and connection is self.connection and number == self.number:
                connection.write(tell_frame(number, request, ask.what, told, self._level))

        self.manager.auditor.asked(self.log, self.target, ask, answer)

    def on_tell(self, request: int, fields: list[Any], payload: Buffer) -> None:
        self.manager.auditor.told(self.target, request, fields, payload)

    def on_gap(self, attempt: int, vector: Vector) -> None:
        if self.core is not None and (went_back := self.core.gap(attempt, vector)) is not None:
            events.info("link.rewound", extra={"topic": self.log.topic, "target": self.target, "vector": vector})
            self._rewound(went_back)

    def on_receipt(self, through: Sequence[tuple[Origin, Position]]) -> None:
        if self.core is None:
            return
        for origin, position in through:
            self.core.receipt(origin, position)
        if self.log.tracing is not None:
            self.log.tracing.receipted(self.log.topic, self.target, through)
        settled(self)
        went_back = self.core.go_back()
        if self.log.waits is not None:
            self.log.waits.heard(self.target, self.core.remote.prefix(self.log.origin))
        self.failures = 0
        if went_back is not None:
            self._rewound(went_back)
            return
        self.move_cursor()
        self.pump()

    @property
    def live(self) -> bool:
        """Whether little is left to send: such links go first."""
        return self.core is not None and self.core.backlog()[0][2] - self.core.in_flight_bytes <= LIVE_BYTES

    def on_share(self, upto_bytes: int) -> None:
        """It waited for the connection, or for the budget."""
        self._pump.on_share(upto_bytes)

    def _rewound(self, went_back: bool) -> None:
        assert self.core is not None and self._cursor is not None
        if went_back and self.core.mark < self._cursor.mark_delete:
            events.warning(
                "link.target_went_back", extra={"topic": self.log.topic, "target": self.target, "mark": self.core.mark}
            )
            self._cursor.reset(self.core.mark)
        self.move_cursor()
        self.pump()

    def move_cursor(self) -> None:
        assert self.core is not None and self._cursor is not None
        if self.core.mark > self._cursor.mark_delete:
            self._cursor.ack_cumulative(self.core.mark)
            outbox = self.log.state.outbox
            if outbox.fine and self.core.done == outbox.totals:
                self.manager.rests(self.log)

    # -- heartbeats and numbers ----------------------------------------------------------------------------------------

    def beat(self) -> tuple[tuple[Origin, Position], dict[str, Vector], Risk] | None:
        """What the target should know of the source, where it changed since it was told last."""
        if self.state != "open" or self.core is None:
            return None
        (entries, messages, size), oldest_ms = self.core.backlog()
        # the target holds it against this clock as heartbeats tell it
        risk = Risk(entries, messages, size, max(0, oldest_ms - self.manager.expiry.behind_ms()))
        state = (self.log.ledger.last_confirmed, [(region, at) for region, (_, at) in self.log.known.items()], risk)
        if state == self._told:
            return None
        self._told = state
        vectors = {region: vector for region, (vector, _) in self.log.known.items() if region != self.target}
        return self.log.last_own(), {**vectors, self.manager.region: self.log.vector}, risk

    def on_beat(self, vectors: dict[str, Vector]) -> None:
        for region, vector in vectors.items():
            if region != self.manager.region:
                self.log.learn(region, vector, self.manager.clock.wall_ms(), self.target)
        if self.core is None or self.target not in vectors:
            return
        receipts = self.core.receipts
        went_back = self.core.heard(vectors[self.target])
        if went_back is not None:
            self._rewound(went_back)
        elif self.core.receipts > receipts:  # what follows there may be this link's to name, or nothing is left to name
            self.move_cursor()
            self.pump()

    def touch(self) -> None:
        """The target is to be told something."""
        if self.connection is not None and self.state == "open":
            self.connection.touch(self.number)

    def tick(self, elapsed_s: float) -> bool:
        """Once a second: rates, and whether it makes progress. False: it is idle, and need not be asked until it has
        something to do.
        """
        core = self.core
        if core is None:
            return True
        messages, size = core.done[1:]
        weight = 0.4
        self.rate_out += weight * (max(0, messages - self._rated[0]) / elapsed_s - self.rate_out)
        self.throughput_out += weight * (max(0, size - self._rated[1]) / elapsed_s - self.throughput_out)
        self._rated = (messages, size)
        if self.rate_out < _RATE_MIN:
            self.rate_out = self.throughput_out = 0.0
        self._fit(core, elapsed_s)
        if self.log.state.trees:
            self._look_at_trees(core, elapsed_s)
        connection = self.connection
        if (
            self.parked is not None
            and self.state == "open"
            and not self.schemas.sending
            and self.manager.clock.monotonic() - self._opened_at > _STEADY_S
        ):
            settled(self)
        if self.state == "open" and connection is not None:
            if self._pump.held_back or not core.behind(self._pump.last_sendable()):
                self._watchdog.caught_up()
                changing = bool(self.log.state.trees) and (core.pending() or core.takes_over is not None)
                return self._pump.held_back or self.rate_out > 0 or changing or self.parked is not None
            facts = Facts(
                mark=core.mark,
                receipts=core.receipts,
                rewinds=core.rewinds,
                reading=bool(self._pump.reading),
                skipping=core.skipping,
                blocked=not connection.client.writable,
                in_flight=core.in_flight,
            )
            if (found := self._watchdog.look(self.manager.clock.monotonic(), facts)) is not None:
                self._pump.reading = 0
                self._give_up(connection, *found)
        return True

    def _fit(self, core: LinkSender, elapsed_s: float) -> None:
        way = None if self.connection is None else self.connection.way
        core.fit(self._window.fit(core.bytes_sent, elapsed_s, way.rtt_ms if way is not None and way.known else None))

    def _look_at_trees(self, core: LinkSender, elapsed_s: float) -> None:
        """Where the target is behind a change of trees and its parent there brings nothing, this region delivers what
        it published itself.
        """
        if self.state != "open" and self.target in self.log.known:
            core.learned(self.log.known[self.target][0])
            self.move_cursor()
        prefix = core.remote.prefix(self.log.origin)
        self._behind_s = self._behind_s + elapsed_s if core.pending() and prefix == self._behind_at else 0.0
        self._behind_at = prefix
        yes = core.pending() and (core.takes_over is not None or self._behind_s >= _TAKE_OVER_S)
        if (went_back := core.take_over(yes)) is not None:
            events.info("link.takes_over", extra={"topic": self.log.topic, "target": self.target, "yes": yes})
            self._rewound(went_back)

    def _give_up(self, connection: LinkConnection, cause: Cause, text: str) -> None:
        events.warning(
            "link.stands_still", extra={"topic": self.log.topic, "target": self.target, "cause": cause, "text": text}
        )
        if cause is Cause.WRITE_BLOCKED:  # another stream on the same connection would stand still as well
            connection.close(LinkError(cause, text))
        else:
            self.restart(cause, text)

    def _progress(self) -> float:
        total = self.log.state.outbox.totals[0]
        return 1.0 if not total else 0.0 if self.core is None else min(1.0, self.core.done[0] / total)

    @property
    def unread_bytes(self) -> int:
        """What it has left to send; 0 also while it is not open, because it cannot send then."""
        return 0 if self.core is None or self.state != "open" else self.core.unread_bytes

    @property
    def published_bytes(self) -> int:
        """What was ever published here that goes by it."""
        return self.log.state.outbox.totals[2]

    def oldest_ms(self) -> int:
        """Broker time of the oldest message first published here that the target lacks; 0: it lacks none."""
        return self.backlog()[1]

    def backlog(self) -> tuple[Totals, int]:
        """What the target lacks of what was first published here, and the broker time of the oldest. Before its cursor
        is open, the target counts as one that has nothing beyond that.
        """
        if self.core is not None:
            return self.core.backlog()
        outbox, cursor = self.log.state.outbox, self.log.ledger.cursors.get(LINK_CURSORS + self.target)
        return outbox.beyond(outbox.at(cursor.mark_delete) if cursor is not None else NOTHING)

    def stats(self) -> LinkStats:
        (entries, messages, size), oldest_ms = self.backlog()
        connection = self.connection
        cause, text = self.cause, self.cause_text
        if self.state == "open" and self._pump.waits_for_transaction:
            cause, text = Cause.TRANSACTION_OPEN, self._pump.open_transaction()
        if self.parked is not None:
            cause, text = self.parked.cause, self.parked.text
        heard = self.state == "open" and connection is not None
        silent_s = connection.heard.silent_s if heard and connection is not None else self.manager.silent_s(self.target)
        if heard and silent_s >= LOST_S:  # the next look closes the connection
            heard, cause, text = False, Cause.HEARTBEAT_LOST, f"nothing heard for {silent_s:.1f} s"
        return LinkStats(
            source=self.manager.region,
            target=self.target,
            topic=self.log.topic,
            state="parked" if self.parked is not None else self.state,
            cause=str(cause),
            cause_text=text,
            remedy=cause.remedy,
            restarts=sum(self.restarts.values()),
            history=self.history.shown(),
            connected=heard,
            silent_s=silent_s,
            backlog_entries=entries,
            backlog_messages=messages,
            backlog_bytes=size,
            age_s=max(0.0, (self.manager.expiry.stamp_ms() - oldest_ms) / 1000) if entries and oldest_ms else 0.0,
            rate_out=self.rate_out,
            throughput_out=self.throughput_out,
            rtt_ms=connection.way.rtt_ms if connection is not None else 0.0,
            clock_offset_ms=connection.way.offset_ms if connection is not None else 0.0,
            in_flight_bytes=self.core.in_flight_bytes if self.core is not None else 0,
            rewinds=self.core.rewinds if self.core is not None else 0,
            progress=self._progress(),
            slowed=self._pump.held_back,
            run_bytes=self._pump.packer.run_bytes,
            wire_bytes=self._pump.packer.wire_bytes,
        )
