"""Write gates: what one broker may confirm in active-passive namespaces, now.

Is: the broker's lease as a deadline, the leadership of each namespace as last heard, and a gate a namespace that runs
pass twice: when they are taken, and when their ack quorum is reached; and the leadership of each subscription that is
active in one region at a time. Isn't: a namespace that is active-active (it has no gate), a store, or a timer.
Invariants: nothing is confirmed unless this region is the active one under the epoch in which the run was taken, and
the lease holds *at that moment*, by the monotonic clock and by the wall clock; the lease's deadline counts from before
the renewal was sent, less what two clocks may drift apart; what `obeyed` returns for a namespace is only as new as what
this broker has done: after a drain was obeyed, nothing taken before it is confirmed any more.
Source: docs/protocols/leadership.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from heliograph.model.configuration.leadership import DRAINING, FENCED, OPEN, Leadership, Writer, is_subscription
from heliograph.model.errors import HeliographError, RegionPassive

Done = Callable[[list[tuple[int, int, int]]], None]
Failed = Callable[[HeliographError], None]

NEVER = float("-inf")

AHEAD_BYTES = 64 << 10
"""So much of what is newer than `since` is told by name; what does not fit is not told, until it is behind a newer
`since`.
"""
BEHIND_BYTES = 512 << 10
"""So much of what is not finished is told by name; of more of it `since` is told lower."""


class Writing:
    """One broker's. Times in seconds of one monotonic clock that counts suspended time. It does not count a pause of
    the whole machine by its hypervisor, behind which the wall clock may be set right: so the lease is over, too, where
    that one has gone on for as long since the renewal was sent.
    """

    def __init__(
        self,
        region: str,
        *,
        ttl_s: float,
        drift: float,
        now: Callable[[], float],
        wall: Callable[[], float] = lambda: 0.0,
        url_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        """drift: by which share of the lease this clock and the configuration's may be apart at its end. wall: the wall
        clock, in seconds; by default it stands still, and ends nothing. url_of: a region -> its service URL, ""
        unknown.
        """
        self.region, self.now, self.wall, self.url_of = region, now, wall, url_of
        self._usable_s = ttl_s * (1.0 - drift)
        self.until, self._until_wall = NEVER, float("inf")
        self.registered = False
        self.life = 0
        """Which lease this is. What was taken under an earlier one is not confirmed: whoever closed the namespace
        meanwhile did not wait for it.
        """
        self._since = 0
        """Every leadership was read behind this version; 0: under this lease none was."""
        self._gates: dict[str, Gate] = {}
        self._apart: dict[str, Gate] = {}
        """Those of which `since` alone may not tell the truth: they are newer, or not finished."""
        self.crowded = False
        """Whether `obeyed` had more news than it may name: to be read anew, behind a newer `since`."""
        self.deleted: dict[str, None] = {}
        """Names of subscriptions that were deleted here, until somebody has looked what that ends."""
        self.refused = 0
        """Runs that reached their ack quorum and were not confirmed."""

    # -- the lease -----------------------------------------------------------------------------------------------------

    def on_renewed(self, sent_at: float, sent_wall: float = 0.0) -> None:
        """A grant or a renewal that was sent at `sent_at`, by the wall clock at `sent_wall`, has succeeded."""
        if sent_at + self._usable_s >= self.until:
            self.until, self._until_wall = sent_at + self._usable_s, sent_wall + self._usable_s

    def on_lost(self) -> None:
        """The configuration does not know the lease any more: another one is a new beginning."""
        self.until, self.registered, self._since = NEVER, False, 0
        self.life += 1

    def forget_versions(self) -> None:
        """The configuration is another one: what is read of it next counts, whatever was heard before."""
        self._since = 0
        for gate in self._gates.values():
            gate.forget_version()

    def on_registered(self, since: int, known: Collection[str]) -> None:
        """The lease stands in the configuration since version `since`, or longer. `known`: the name of every leadership
        that was read after that, and given to `on_record`; what is not among them has ended.
        """
        self._since = since
        for namespace, gate in list(self._gates.items()):
            if namespace not in known and gate.version < since:
                gate.on_record(None, since)
            if not self.registered and gate.version <= since:
                gate.begin_anew()
            if gate.ended and gate.version <= since:
                del self._gates[namespace]  # what is heard of it later is newer, or was read
        self._apart = {
            name: gate for name, gate in self._gates.items() if gate.version > since or gate.obeyed < gate.version
        }
        self.registered = True

    @property
    def holds(self) -> bool:
        """Whether the lease counts at this moment."""
        return self.registered and self.now() < self.until and self.wall() < self._until_wall

    @property
    def left_s(self) -> float:
        """For how long it counts if it is not renewed."""
        return max(0.0, min(self.until - self.now(), self._until_wall - self.wall())) if self.registered else 0.0

    # -- namespaces ----------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether there is any leadership, so that a lease is needed."""
        return any(gate.record is not None for gate in self._gates.values())

    def heard(self, name: str) -> int:
        """The version of the last that is known of that namespace, or subscription; 0: nothing."""
        found = self._gates.get(name)
        return 0 if found is None else found.version

    def gate(self, namespace: str) -> Gate | None:
        """None: the namespace is active-active, as far as is known here."""
        found = self._gates.get(namespace)
        return None if found is None or found.record is None else found

    def gates(self) -> list[Gate]:
        """Returns the gate of every active-passive namespace, by name."""
        return [
            gate
            for _, gate in sorted(self._gates.items())
            if gate.record is not None and not isinstance(gate, SubscriptionGate)
        ]

    def subscription_gate(self, name: str) -> SubscriptionGate | None:
        """name: as `heliograph.model.configuration.leadership.subscription_name` makes it. None: it may be active in
        every region, as far as is known here.
        """
        found = self._gates.get(name)
        return found if isinstance(found, SubscriptionGate) and found.record is not None else None

    def subscription_gates(self) -> list[SubscriptionGate]:
        """Returns every subscription that is active in one region at a time, by name."""
        return [
            gate
            for _, gate in sorted(self._gates.items())
            if gate.record is not None and isinstance(gate, SubscriptionGate)
        ]

    def on_record(self, namespace: str, record: Leadership | None, version: int) -> bool:
        """What the configuration says of a namespace since `version`. None: it is active-active. Returns whether it was
        news.
        """
        gate = self._gates.get(namespace)
        if gate is None:
            if record is None or version <= self._since:
                return False
            gate = self._gates[namespace] = (
                SubscriptionGate(namespace, self) if is_subscription(namespace) else Gate(namespace, self)
            )
        self._apart[namespace] = gate
        return gate.on_record(record, version)

    def obeyed(self, beside: tuple[str, ...] | None = None) -> Writer:
        """What this broker has done so far, and which brokers its region has, to be told, in bounded size: what is left
        out is something that it does not claim to obey.
        """
        since, behind, ahead = self._since, list[Gate](), list[Gate]()
        for name, gate in list(self._apart.items()):
            if gate.obeyed < gate.version:
                if gate.version <= since:
                    behind.append(gate)
            elif gate.version > since:
                ahead.append(gate)
            else:
                del self._apart[name]
        told, left = _fitting(behind, BEHIND_BYTES)
        if left:
            since = left[0].version - 1
            told = [gate for gate in told if gate.version <= since]
        more, left = _fitting(ahead, AHEAD_BYTES)
        self.crowded = bool(left)
        return Writer(since=since, seen={gate.namespace: gate.obeyed for gate in (*told, *more)}, beside=beside)


def _fitting(gates: list[Gate], size: int) -> tuple[list[Gate], list[Gate]]:
    """(those that changed first, as many as can be told in so many bytes; the others)."""
    gates.sort(key=lambda gate: gate.version)
    for index, gate in enumerate(gates):
        size -= len(json.dumps(gate.namespace)) + _VERSION_BYTES
        if size < 0:
            return gates[:index], gates[index:]
    return gates, []


_VERSION_BYTES = 24


class Gate:
    """Decides at one broker, for one namespace, whether a run is taken, and whether it may be confirmed."""

    __slots__ = ("_before", "_in_flight", "_obeyed", "_writing", "namespace", "on_drained", "record", "version")

    def __init__(self, namespace: str, writing: Writing) -> None:
        self.namespace, self._writing = namespace, writing
        self.record: Leadership | None = None
        self.version = self._obeyed = 0
        self._in_flight = 0
        self._before = 0
        """Topics of which something is on its way that was taken while there was no leadership: it is confirmed, and so
        nothing is obeyed.
        """
        self.on_drained: Callable[[], None] = lambda: None
        """Called when the last run that was taken is answered while the namespace drains, or the last one from before
        the leadership.
        """

    def on_record(self, record: Leadership | None, version: int) -> bool:
        if version <= self.version:
            return False
        self._obeyed = self.obeyed  # what was done before this news stays done
        self.record, self.version = record, version
        return True

    def forget_version(self) -> None:
        """What comes next is newer, whatever its version, and nothing of it is obeyed yet."""
        self.version = self._obeyed = 0

    def begin_anew(self) -> None:
        """The lease is another one: what was taken before is confirmed by nobody, and nobody waits for it; but for what
        was taken under no leadership.
        """
        if not self._before:
            self._obeyed = self.version

    def taken_before(self) -> Callable[[], None]:
        """A topic has something on its way that was taken while there was no leadership. What is returned is called
        once that is answered.
        """
        self._before += 1
        return self._left_before

    def _left_before(self) -> None:
        self._before -= 1
        if not self._before:
            self.on_drained()

    @property
    def ended(self) -> bool:
        """Whether the leadership is no more, and nothing that was taken under it waits."""
        return self.record is None and not self._in_flight

    @property
    def obeyed(self) -> int:
        """The version whose demands are met here: of a drain only once nothing that was taken waits; of any only once
        nothing waits that was taken before.
        """
        if self.record is None:
            return self.version
        waits = self._before or (self._in_flight and self.record.state not in (OPEN, FENCED))
        return self._obeyed if waits else self.version

    @property
    def active(self) -> bool:
        """Whether this region is the one that publishes, whatever the lease."""
        return self.record is not None and self.record.active == self._writing.region

    @property
    def leadership(self) -> int:
        """The epoch with which the namespace became active-passive; 0: it is active-active."""
        return 0 if self.record is None else self.record.began

    @property
    def epoch(self) -> int:
        """Rises whenever another region becomes the active one; 0: the namespace is active-active."""
        return 0 if self.record is None else self.record.epoch

    @property
    def open(self) -> bool:
        """Whether a run would be taken now."""
        return self.refusal() is None

    def refusal(self) -> RegionPassive | None:
        """Why nothing is taken now, and where to go instead where that is known."""
        record = self.record
        if record is None:
            return None
        if record.asks:
            return RegionPassive(
                f"{record.asks}, and {self.namespace} may be active in another region than {record.active} by now: "
                f"nothing is taken until `heliograph dr set {self.namespace}` says where"
            )
        if not self.active:
            url = self._writing.url_of(record.active) if record.state == OPEN else ""
            return RegionPassive(f"{self.namespace} is active in region {record.active}: produce there", url)
        if record.state != OPEN:
            return RegionPassive(
                f"{self.namespace} is being moved from {record.active} to {record.to or 'nowhere yet'}: try again"
            )
        if not self._writing.holds:
            return RegionPassive(
                f"region {record.active} has not renewed its lease of {self.namespace}: it may be cut off, nothing is "
                "confirmed here"
            )
        return None

    def enter(self, done: Done, failed: Failed) -> Passage | RegionPassive:
        """A run is about to be appended: what to hear of it in place of `done` and `failed`, or why it is not taken."""
        refused = self.refusal()
        if refused is not None:
            return refused
        self._in_flight += 1
        return Passage(self, 0 if self.record is None else self.record.epoch, self._writing.life, done, failed)

    def leave(self, epoch: int, life: int) -> RegionPassive | None:
        """A run of `epoch`, taken in `life`, has reached its ack quorum, or failed: whether it may be confirmed at this
        very moment.
        """
        allowed = self._may_confirm(epoch, life)
        self._in_flight -= 1
        if not self._in_flight and self.record is not None and self.record.state != OPEN:
            self.on_drained()
        if allowed:
            return None
        self._writing.refused += 1
        return self.refusal() or RegionPassive(f"{self.namespace} has moved meanwhile: try again")

    def _may_confirm(self, epoch: int, life: int) -> bool:
        record = self.record
        if record is None:
            return True
        return (
            self.active
            and record.epoch == epoch
            and life == self._writing.life
            and record.state != FENCED
            and self._writing.holds
        )

    def status(self) -> dict[str, Any]:
        record = self.record
        assert record is not None
        return {
            "namespace": self.namespace,
            "active": record.active,
            "epoch": record.epoch,
            "state": record.state,
            "to": record.to,
            "writable_here": self.open,
            "in_flight": self._in_flight,
            "lease_left_s": self._writing.left_s,
        }


class SubscriptionGate(Gate):
    """Decides at one broker whether a subscription's messages are handed out. `outstanding`: messages that consumers
    here hold and have not acknowledged.
    """

    __slots__ = ("outstanding",)

    def __init__(self, name: str, writing: Writing) -> None:
        super().__init__(name, writing)
        self.outstanding: Callable[[], int] = lambda: 0

    @property
    def obeyed(self) -> int:
        """The version whose demands are met here: of a drain only once nothing that was handed out waits for its
        acknowledgement.
        """
        waits = self.record is not None and self.record.state == DRAINING and self.leads and self.outstanding()
        return self._obeyed if waits else self.version

    def deleted(self) -> None:
        """The subscription was deleted here, in one partition at least."""
        self._writing.deleted[self.namespace] = None

    @property
    def leads(self) -> bool:
        """Whether what consumers here hold is theirs. Where not it is taken back from them: it goes out again where the
        leadership is, or here once it is back.
        """
        return self.active and self._writing.registered and self.record is not None and self.record.state != FENCED

    def waiting(self) -> str:
        """Why nothing is handed out here now; "": it is."""
        record = self.record
        if record is None:
            return ""
        if record.state != OPEN:
            return f"it is being moved from {record.active} to {record.to or 'nowhere yet'}"
        if not self.active:
            return f"it is active in region {record.active}"
        return "" if self._writing.holds else f"region {record.active} has not renewed its lease: it may be cut off"

    @property
    def open(self) -> bool:
        """Whether messages may be handed out at this very moment."""
        return not self.waiting()

    def status(self) -> dict[str, Any]:
        record = self.record
        assert record is not None
        return {
            "active": record.active,
            "epoch": record.epoch,
            "state": record.state,
            "to": record.to,
            "since_ms": record.since_ms,
            "open_here": self.open,
            "waiting": self.waiting(),
            "unacknowledged": self.outstanding(),
        }


class Passage:
    """One run between the two gates. One object a run, nothing an entry."""

    __slots__ = ("_done", "_epoch", "_failed", "_gate", "_life")

    def __init__(self, gate: Gate, epoch: int, life: int, done: Done, failed: Failed) -> None:
        self._gate, self._epoch, self._life, self._done, self._failed = gate, epoch, life, done, failed

    def done(self, segments: list[tuple[int, int, int]]) -> None:
        refused = self._gate.leave(self._epoch, self._life)
        if refused is None:
            self._done(segments)
        else:
            self._failed(refused)

    def failed(self, error: HeliographError) -> None:
        self._gate.leave(self._epoch, self._life)
        self._failed(error)
