"""LinkPump: reads a topic for one link and puts on the wire what the link's core lets go, as fast as rate, budget, and
connection allow.

Is: the shell between the topic's entries and the frames: reading from the cache or the bookies, pace, shares, SKIPs
that are stored before they go out.
Isn't: a decision what is sent (`replicator.sending.link_sender`), or the life of the link (`replicator.links.link`).
Invariants: one read at a time; nothing is read behind the first entry of an open transaction; a SKIP goes out only on
the connection it was decided on.
Source: docs/protocols/links.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.positions import BEFORE_ALL, Position
from heliograph.runtime.task_set import report_unexpected
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import SkipReason, SkipRecord
from heliograph.wire.run import Buffer, Run
from replicator.bandwidth.compression import RunPacker
from replicator.bandwidth.fair_shares import SHARE_BYTES as CROWDED_BYTES
from replicator.bandwidth.rate_limit import Pace
from replicator.bandwidth.send_window import LIVE_BYTES, PASS_BYTES, SHORT_PASS_BYTES
from replicator.health.link_causes import Cause
from replicator.links.link_connection import LinkConnection
from replicator.links.timer_wheel import Timer
from replicator.log.deletion import past_removed
from replicator.log.transaction_buffer import below
from replicator.sending.outgoing_runs import OutgoingRun, Send, joined

if TYPE_CHECKING:
    from replicator.links.link import Link

events = logging.getLogger("replicator")

_READ_ENTRIES = 512
_READ_BYTES = 1 << 20


class LinkPump:
    """Reads and sends for one link; the link makes it, and calls it on the event loop."""

    __slots__ = (
        "_budget",
        "_bulk",
        "_drains",
        "_filter_timer",
        "_gave_up",
        "_link",
        "_log",
        "_manager",
        "_pace_timer",
        "_rate",
        "_reads",
        "_upto_bytes",
        "begins",
        "given_up",
        "lives_s",
        "pace",
        "packer",
        "reading",
    )

    def __init__(self, link: Link) -> None:
        self._link, self._manager, self._log = link, link.manager, link.log
        self.packer = RunPacker(self._manager.settings.compression, self._manager.budgets.traffic_to(link.target))
        self.begins: Position = BEFORE_ALL
        """What lies before it is not sent (`replicator.links.start_position`)."""
        self.given_up: tuple[Position, Position] | None = None
        """The first and the last of entries that are lost here (`replicator.links.give_up_lost`)."""
        self._gave_up = 0
        """The attempt on which it was seen that they still cannot be read: without that nothing is given up."""
        self.lives_s = 0
        """The policy `replicationTTL`: what is older is not sent any more; 0: everything is."""
        self.reading = self._reads = 0
        """The read that is under way, 0: none; how many there were."""
        self.pace: Pace | None = None
        """None: as fast as it goes."""
        self._rate: Mapping[str, Any] | None = None
        self._pace_timer: Timer | None = None
        self._filter_timer: Timer | None = None
        self._budget = self._manager.budgets.to(link.target)
        self._upto_bytes = PASS_BYTES
        self._bulk = False
        """The last share ended before what there is to send."""
        self._drains = False
        """It is behind: it leaves room for who publishes (`replicator.bandwidth.drain_throttle`)."""

    def obey_rate(self, policy: Mapping[str, Any] | None) -> None:
        """`replicatorDispatchRate`, as JSON. One that did not change keeps what was spent of it."""
        if policy != self._rate:
            self._rate, self.pace = policy, Pace.of(policy)
            if self._pace_timer is not None:
                self._pace_timer.cancel()
                self._on_pace()

    def on_share(self, upto_bytes: int) -> None:
        """It waited for the connection, or for the budget: about `upto_bytes` may go."""
        self._upto_bytes = upto_bytes
        try:
            self.pump()
        finally:
            self._upto_bytes = PASS_BYTES

    def end(self) -> None:
        """Stops it for good: the link ends, and leaves whatever queue it waits in."""
        self.stop()
        self._manager.yielding.forget(self._link)
        if self._budget is not None:
            self._budget.forget(self._link)

    @property
    def held_back(self) -> bool:
        """By a rate, a budget, or for who publishes: no stall."""
        waits = self._pace_timer is not None or self._link in self._manager.yielding
        return waits or (self._budget is not None and self._link in self._budget)

    # -- sending -------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sends what the core lets go. Called when the topic grew, a receipt came, or the connection can be written
        again.
        """
        core, connection = self._link.core, self._link.connection
        self._manager.keep_looking(self._link)  # also where it is cut: what grows meanwhile is at risk
        if core is None or connection is None or self._link.state != "open":
            return
        connection.touch(self._link.number)
        if self.reading or core.room_bytes <= 0 or self._waits():
            return
        if self._budget is not None and not self._budget.may(self._link):
            return
        self._drains = core.unread_bytes > LIVE_BYTES
        if self._drains and not self._manager.yielding.may(self._link):
            return
        ledger, now, sent = self._log.ledger, self._manager.clock.monotonic(), 0
        upto = min(self._upto_bytes, CROWDED_BYTES * self._link.weight) if connection.crowded else self._upto_bytes
        if self._budget is not None:  # also of one that lay idle: a pass ahead of it can be the worth of seconds
            upto = min(upto, self._budget.share_bytes * self._link.weight)
        if self._bulk and self._manager.publishing.live(now):
            upto = min(upto, SHORT_PASS_BYTES)
        self._bulk = False
        sends = core.of_the_dead()
        while (room := core.room_bytes) > 0 and sent < upto and connection.writable(self._link.number):
            begins, why = self._begins()
            if core.read_at < begins:
                if isinstance(lost := core.trimmed(begins, why), SkipRecord):
                    self._store_skip(connection, lost)
                    break
                if lost is not None:
                    sends.append(lost)
                continue
            if core.read_at > ledger.last_confirmed:
                core.at_the_end()
                if (lost := core.lacks(None)) is not None:
                    if isinstance(lost, SkipRecord):
                        self._store_skip(connection, lost)
                        break
                    sends.append(lost)
                    continue
                break
            undecided = self._undecided()
            if undecided is not None and core.read_at >= undecided:
                break
            runs = ledger.cached(core.read_at, *self._at_once(min(room, upto)))
            if undecided is not None:
                runs = below(runs, undecided)
            if not runs:
                self._reads += 1
                self.reading = self._reads
                self._manager.read(self._link)
                break
            taken = self._take(runs, now)
            sends += taken
            sent += _size_bytes(taken)
            if core.skipping or self._link.state != "open" or self._paced(runs):
                break
        else:
            self._bulk = sent >= upto
            if sent >= upto and connection.crowded:
                connection.wait(self._link.number)
            elif sent >= upto:
                self._manager.soon(self.pump)
        self._send(connection, sends)
        self._link.move_cursor()
        self._watch_filtered()

    def give_up(self, first: Position, last: Position) -> None:
        self.given_up = (first, last)

    def _is_given_up(self, position: Position) -> bool:
        """What lies there cannot be read. Whether it is passed over from now on."""
        core = self._link.core
        if (
            self.given_up is None
            or core is None
            or not self.given_up[0] <= position <= self.given_up[1]
            or self._gave_up == core.attempt
        ):
            return False
        self._gave_up = core.attempt
        return True

    def _begins(self) -> tuple[Position, SkipReason]:
        """What lies before it is not sent, and why."""
        first, log, core = self._log.ledger.first_position(), self._log, self._link.core
        if core is not None and (removed := past_removed(log.state, core.read_at)) is not None:
            return removed
        begins, why = (first, SkipReason.TRIMMED) if first >= self.begins else (self.begins, SkipReason.ADMIN)
        # A transaction could be cut in two; and a receipt that waits for the target would go out without it.
        if self.lives_s and log.state.transactions is None and log.waits is None:
            old_ms = self._manager.expiry.wall_ms() - self.lives_s * 1000
            ledger, entry = log.state.outbox.last_before(old_ms, begins if core is None else max(begins, core.read_at))
            if (ledger, entry) >= begins:
                begins, why = (ledger, entry + 1), SkipReason.EXPIRED
        if self.given_up is not None and self._link.core is not None:
            (ledger, entry), last = self.given_up
            if (
                begins <= (ledger, entry) <= self._link.core.read_at <= last
                and self._gave_up == self._link.core.attempt
            ):
                begins, why = (last[0], last[1] + 1), SkipReason.LOST
        return begins, why

    def _take(self, runs: Sequence[tuple[int, int, Run]], now: float) -> list[Send]:
        """What goes out of `runs`; where a SKIP must go first, that is stored, and the rest is read again."""
        core, connection, sends = self._link.core, self._link.connection, list[Send]()
        assert core is not None and connection is not None
        try:
            for ledger, first, run in runs:
                if (
                    self.given_up is not None
                    and self.given_up[0] <= (ledger, first + run.count - 1)
                    and (ledger, first) <= self.given_up[1]
                ):
                    self.given_up = None  # it was repaired meanwhile
                while isinstance(lost := core.lacks(run), OutgoingRun):
                    sends.append(lost)
                if lost is not None:
                    self._store_skip(connection, lost)
                    break
                sends += core.take(ledger, first, run, now)
        except CorruptData as error:
            if self._is_given_up(core.read_at):
                self._manager.soon(self.pump)
                return sends
            self._link.restart(
                Cause.STORAGE, f"{core.read_at[0]}:{core.read_at[1]} is damaged here ({error}): the audit repairs it"
            )
        return sends

    def _send(self, connection: LinkConnection, sends: list[Send]) -> None:
        assert self._link.core is not None
        frames: list[Buffer] = []
        attempt = self._link.core.attempt
        for send in joined(sends):
            if isinstance(send, OutgoingRun):
                if self._log.tracing is not None:
                    self._log.tracing.sent(self._log.topic, self._link.target, send.run)
                frames += self.packer.frame(self._link.number, attempt, send.previous, send.run, connection.way.rtt_ms)
            else:
                frames += wire.skip_frame(self._link.number, attempt, send)
        if frames and self._link.connection is connection:
            connection.write(frames)
            if self._budget is not None:
                self._budget.spend(sum(map(len, frames)))
            if self._drains:  # as they are read and stored: compressed or not, disks have the same to do
                self._manager.yielding.spend(_size_bytes(sends))

    def _undecided(self) -> Position | None:
        """The first entry of an open transaction of this region: nothing is sent from there on. None: there is none.

        Of another region's transaction that is passed on only the end may be missing: whoever lacks it waits for it.
        """
        buffer = self._log.state.transactions
        found = None if buffer is None else buffer.first_open_here()
        return None if found is None else found[1].first

    def last_sendable(self) -> Position:
        undecided = self._undecided()
        return self._log.ledger.last_confirmed if undecided is None else (undecided[0], undecided[1] - 1)

    @property
    def waits_for_transaction(self) -> bool:
        """Everything before an open transaction is sent, and nothing behind it may be."""
        undecided = self._undecided()
        return undecided is not None and self._link.core is not None and self._link.core.read_at >= undecided

    def open_transaction(self) -> str:
        buffer = self._log.state.transactions
        open_here = None if buffer is None else buffer.first_open_here()
        assert open_here is not None
        (coordinator, number), found = open_here
        return (
            f"transaction {coordinator}:{number} is open, from {found.first[0]}:{found.first[1]} on: what was "
            "published behind its first message waits for its end"
        )

    def _waits(self) -> bool:
        """For what must be sent before, or for the rate: then the link goes on by itself."""
        return self._link.schemas.sending or self._paced()

    def _at_once(self, room_bytes: int) -> tuple[int, int]:
        """(entries, bytes) to read at most."""
        size = min(room_bytes, _READ_BYTES, self._upto_bytes)
        if self._budget is not None:
            size = min(size, self._budget.share_bytes * self._link.weight)
        return (
            (_READ_ENTRIES, size)
            if self.pace is None
            else (min(_READ_ENTRIES, self.pace.entries_max), min(size, self.pace.bytes_max))
        )

    def _paced(self, taken: Sequence[tuple[int, int, Run]] = ()) -> bool:
        """Whether the rate lets nothing more go now: then the link goes on by itself. taken: what was just read to be
        sent.
        """
        if self.pace is None:
            return False
        now = self._manager.clock.monotonic()
        for _, _, run in taken:
            if run.origin is None:
                self.pace.spend(run.messages, run.size_bytes, now)
        if (wait := self.pace.wait_s(now)) > 0 and self._pace_timer is None:
            self._pace_timer = self._manager.timers.after(wait, self._on_pace)
        return self._pace_timer is not None

    def _on_pace(self) -> None:
        self._pace_timer = None
        self.pump()

    async def read(self) -> None:
        """The next runs are not in the cache: brings them, and sends them."""
        core, number = self._link.core, self.reading
        assert core is not None
        if not number:
            return
        attempt, connection, position = core.attempt, self._link.connection, core.read_at
        try:
            live = self._manager.publishing.live(self._manager.clock.monotonic())
            runs = await self._log.ledger.read(
                position, *self._at_once(min(max(1, core.room_bytes), SHORT_PASS_BYTES if live else PASS_BYTES))
            )
        except Exception as error:  # whatever it is, the link comes again, and reads again
            report_unexpected(error, "a link's work failed")
            if number != self.reading:
                return
            self.reading = 0
            if connection is self._link.connection and not self._link.ended:
                if attempt == core.attempt and Cause.of(error) is Cause.STORAGE and self._is_given_up(position):
                    self.pump()
                    return
                self._link.restart(Cause.of(error, Cause.STORAGE), f"reading at {position[0]}:{position[1]}: {error}")
            return
        if number != self.reading:
            return  # it was given up meanwhile
        self.reading = 0
        if (
            self._link.ended
            or connection is None
            or connection is not self._link.connection
            or attempt != core.attempt
            or position != core.read_at
        ):
            self.pump()
            return
        if (undecided := self._undecided()) is not None:
            runs = below(list(runs), undecided)
        now = self._manager.clock.monotonic()
        sends = self._take(runs, now)
        self._send(connection, sends)
        self._link.move_cursor()
        self._paced(runs)
        if runs or core.read_at < self._log.ledger.first_position():
            self._manager.soon(
                self.pump
            )  # what was fetched ahead is read without a wait: else a drain keeps the loop for all of it

    # -- skips ---------------------------------------------------------------------------------------------------------

    def _store_skip(self, connection: LinkConnection, record: SkipRecord) -> None:
        """Stores it here first: only the topic's owner can, because the next owner fences the ledger before anything
        else.
        """
        core = self._link.core
        assert core is not None
        attempt = core.attempt
        if record.loss:
            events.warning(
                "link.skip",
                extra={
                    "topic": self._log.topic,
                    "target": self._link.target,
                    "from": record.after,
                    "through": record.through,
                },
            )

        def stored(_: object) -> None:
            if connection is self._link.connection and (out := core.skip_stored(attempt, record)) is not None:
                connection.write(wire.skip_frame(self._link.number, attempt, out))
                self.pump()

        def failed(error: HeliographError) -> None:
            if connection is self._link.connection:
                self._link.restart(Cause.STORAGE, f"a SKIP could not be stored: {error}")

        self._log.append_skip(record, stored, failed, issued=True)

    def _watch_filtered(self) -> None:
        assert self._link.core is not None
        due = self._link.core.next_deadline()
        if due is not None and self._filter_timer is None:
            self._filter_timer = self._manager.timers.after(
                max(0.0, due - self._manager.clock.monotonic()), self._on_filtered
            )

    def _on_filtered(self) -> None:
        self._filter_timer = None
        core, connection = self._link.core, self._link.connection
        if core is None or connection is None:
            return
        if (
            core.read_at <= self.last_sendable()
        ):  # a run may follow yet; a deadline that is over is not waited for at once
            self._filter_timer = self._manager.timers.after(
                self._manager.settings.sender.filtered_after_s, self._on_filtered
            )
        elif (record := core.filtered(self._manager.clock.monotonic())) is not None:
            self._store_skip(connection, record)
        else:
            self._watch_filtered()

    def stop(self) -> None:
        if self._filter_timer is not None:
            self._filter_timer.cancel()
            self._filter_timer = None


def _size_bytes(sends: Sequence[Send]) -> int:
    return sum(send.run.size_bytes for send in sends if isinstance(send, OutgoingRun))
