"""GroupUse: says to the other brokers what is used of resource groups here, hears what they use, and sets this broker's
shares.

Is: the shell around `resource_group_shares`: a key under the broker's lease in the region's metadata, written at most
every `EVERY_S` and only where it says something new.
Isn't: on the way of a message: buckets are changed in place.
Invariants: without metadata the last shares stay; a broker that dies is forgotten with its lease, and the others divide
its share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import CorruptData, HeliographError
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from local_meta import keys
from region_node.topics.limits.resource_group_shares import UseReport, is_news
from region_node.topics.limits.topic_rates import Groups

log = logging.getLogger("region_node.topics")

EVERY_S = 2.0


class GroupUse:
    """lease: this broker's, 0 while it has none. Make it on the event loop."""

    def __init__(
        self,
        groups: Groups,
        *,
        broker: str,
        lease: Callable[[], int],
        meta: MetadataStore,
        tasks: TaskSet,
        clock: Clock,
    ) -> None:
        self._groups, self._broker, self._lease, self._meta, self._tasks, self._clock = (
            groups,
            broker,
            lease,
            meta,
            tasks,
            clock,
        )
        self._others: dict[str, UseReport] = {}
        self._said = UseReport()
        self._under = 0
        """The lease that the report was written under."""
        self._due_at = 0.0
        self._writing = False
        self._stop = meta.watch(keys.GROUP_USES, self._on_report)

    def close(self) -> None:
        self._stop()

    def tick(self, now: float) -> None:
        """On the broker's tick."""
        if now < self._due_at or self._writing:
            return
        self._due_at = now + EVERY_S
        report = UseReport(self._groups.measure(now))
        if not report.groups and not self._said.groups:
            return
        self._groups.divide([other.groups for other in self._others.values()])
        lease = self._lease()
        if lease and (lease != self._under or is_news(self._said.groups, report.groups)):
            self._writing = True
            self._tasks.spawn(self._say(report, lease))

    async def _say(self, report: UseReport, lease: int) -> None:
        try:
            await self._meta.put(keys.group_use(self._broker), report.encode(), lease=lease)
            self._said, self._under = report, lease
        except HeliographError as error:  # the others go on with what they know, and it is said again
            log.warning("groups.not_said", extra={"error": str(error)})
        finally:
            self._writing = False

    def _on_report(self, key: str, value: bytes | None, version: int) -> None:
        broker = keys.id_of(key)
        if broker == self._broker:
            return
        if value is None:
            self._others.pop(broker, None)
        else:
            try:
                self._others[broker] = UseReport.decode(value)
            except CorruptData as error:  # of a newer version: what it said last holds
                log.warning("groups.unreadable", extra={"broker": broker, "error": str(error)})
                return
        self._groups.divide([other.groups for other in self._others.values()])
