"""Rounds: every moment the topics that have a replicated subscription are brought in step with other regions.

Is: which topics these are, and how many rounds run at a time. Isn't: a round
(`replicator.subscriptions.subscription_sync`).
Invariants: a topic that has none, and none by policy, is not looked at; a topic has one round at a time.
Source: docs/protocols/links.md, "Replicated subscriptions".
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from replicator.log.replicated_log import ReplicatedLog

if TYPE_CHECKING:
    from replicator.manager.link_manager import LinkManager


class SubscriptionRounds:
    """Runs the rounds of one broker: at most `syncs_max` of them at a time."""

    def __init__(self, manager: LinkManager) -> None:
        self._manager = manager
        self._in_step: dict[ReplicatedLog, None] = {}
        self._waiting: OrderedDict[ReplicatedLog, None] = OrderedDict()
        """Each is looked for every 0.4 s, and there may be ten thousand."""
        self._running = 0

    def keep(self, log: ReplicatedLog) -> None:
        """It has a replicated subscription, or may get one by policy."""
        self._in_step[log] = None

    @property
    def idle(self) -> bool:
        """No topic is looked at."""
        return not self._in_step

    def begin(self) -> None:
        """Called every 0.4 s: begins a round of each topic that is due, or lets it wait for a place."""
        for log in list(self._in_step):
            if log.replicate_all and log.closed is None:
                log.subscriptions.enable_all()
            sync = log.synced
            if (
                log.closed is not None
                or self._manager.logs.get(log.topic) is not log
                or not (log.replicate_all or (sync is not None and sync.active))
            ):
                del self._in_step[log]
            elif sync is not None and sync.active and sync.due():
                self._waiting[log] = None
        while self._waiting and self._running < min(len(self._waiting), self._manager.settings.syncs_max):
            self._running += 1
            self._manager.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                log, _ = self._waiting.popitem(last=False)
                await log.subscriptions.round(self._manager.clock.wall_ms())
        finally:
            self._running -= 1
