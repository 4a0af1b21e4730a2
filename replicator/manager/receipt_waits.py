"""ReceiptWaits: the topics of one broker whose receipts wait for other regions: their policy, their timers, and the
list of messages that did not wait.

Is: the shell around `replicator.log.region_durability`. Isn't: who has waited long enough.
Invariants: one timer a topic, started only while receipts wait; the list of affected messages is stored before a
receipt that it is about goes out.
Source: docs/protocols/links.md, "Durability classes".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import Clock
from replicator.links.timer_wheel import Timer, Timers
from replicator.log.region_durability import RegionWaits
from replicator.log.replicated_log import ReplicatedLog

events = logging.getLogger("replicator")


class ReceiptWaits:
    """Keeps the waits of one broker's topics. spawn: runs short work."""

    def __init__(self, clock: Clock, timers: Timers, spawn: Callable[[Coroutine[Any, Any, Any]], None]) -> None:
        self._clock, self._timers, self._spawn = clock, timers, spawn
        self._pending: dict[ReplicatedLog, tuple[float, Timer]] = {}
        """The timer of a topic, and when it is due: one that comes too early looks again."""

    def require(self, log: ReplicatedLog, policy: Mapping[str, Any] | None, regions: Sequence[str]) -> None:
        """Receipts of the topic wait for `regions` as the policy `durability` says; None: they do not."""
        waits = log.waits
        if policy is None or (policy["regions"] == 1 and not policy.get("perMessage")):
            if waits is not None:
                log.waits = None
                waits.release()
            return
        if waits is None:
            made = waits = log.waits = RegionWaits(
                self._clock.monotonic,
                self._clock.wall_ms,
                lambda: self._watch(log),
                log.state.affected,
                lambda then: self._spawn(self._store_affected(log, made, then)),
                log.state.own_end(),
            )
            for region, (vector, _) in log.known.items():
                waits.heard(region, vector.prefix(log.origin))
        waits.obey(policy, regions)

    def _watch(self, log: ReplicatedLog) -> None:
        waits = log.waits
        due = None if waits is None else waits.next_deadline()
        if due is None:
            return
        if (pending := self._pending.get(log)) is not None:
            if pending[0] <= due:
                return
            pending[1].cancel()
        timer = self._timers.after(max(0.0, due - self._clock.monotonic()), lambda: self._expire(log))
        self._pending[log] = due, timer

    def _expire(self, log: ReplicatedLog) -> None:
        self._pending.pop(log, None)
        if (waits := log.waits) is not None:
            waits.expire()
            self._watch(log)

    async def _store_affected(self, log: ReplicatedLog, waits: RegionWaits, then: Callable[[], None]) -> None:
        """The list of affected messages goes with the topic's state. Where that cannot be written the topic ends, and
        who waits hears that.
        """
        log.state.affected = waits.listed
        if waits.listed.since is not None:
            events.warning(
                "durability.degraded",
                extra={"topic": log.topic, "regions": waits.regions, "reached": waits.shown()["reached"]},
            )
        try:
            await log.ledger.store_state()
        except HeliographError as error:
            events.warning("durability.list_failed", extra={"topic": log.topic, "error": str(error)})
            return
        then()
