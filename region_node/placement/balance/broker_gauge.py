"""BrokerGauge: what a broker measures of itself for its load report.

Is: the sums of its loaded topics by bundle, in slices of the loop's time, and the shares of core and memory in use.
Isn't: the load score (`load_score`).
Invariants: only topics that something happened on since the last report are looked at, and those of a namespace whose
bundles have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from heliograph.model.bundles import BundleTable
from heliograph.runtime import process_usage
from heliograph.runtime.clock import Clock
from heliograph.runtime.process_usage import ProcessUsage
from region_node.placement.balance.load_report import CONNECTIONS, MEMORY
from region_node.placement.balance.load_score import BundleTraffic
from region_node.placement.balance.load_shedding import Bundle

if TYPE_CHECKING:
    from region_node.topics.serving.topic_activity import Activity
    from region_node.topics.topic import Topic

_SLICE = 1000
"""Topics that are summed up between two passes of the loop."""
Counts = tuple[int, int, int, int]
"""Messages in and out, bytes in, bytes out, and clients' producers and consumers."""
_NOTHING: Counts = (0, 0, 0, 0)


class _Space:
    """One namespace's topics as they were last seen, by their bundles."""

    __slots__ = ("rows", "table")

    def __init__(self, table: BundleTable | None) -> None:
        self.table = table
        self.rows: dict[int, dict[Topic, Counts]] = {}

    def change(self, table: BundleTable | None) -> list[Topic]:
        """Topics of the bundles that have another range now, or are gone; what is known of them stays, to be taken
        over.
        """
        before, self.table = self.table, table
        if before is None or table is None:
            return [topic for rows in self.rows.values() for topic in rows]
        changed = [
            bundle for bundle in self.rows if bundle >= table.count or before.range(bundle) != table.range(bundle)
        ]
        return [topic for bundle in changed for topic in self.rows[bundle]]


class BrokerGauge:
    """bundles: of a namespace; None: it is not served. connections: share in use. Make it before any topic is
    loaded.
    """

    def __init__(
        self,
        loaded: Mapping[str, Topic],
        activity: Activity,
        bundles: Callable[[str], BundleTable | None],
        clock: Clock,
        connections: Callable[[], float] = lambda: 0.0,
        usage: ProcessUsage = process_usage,
    ) -> None:
        self._connections, self._usage = connections, usage
        self._loaded, self._activity, self._bundles, self._clock = loaded, activity, bundles, clock
        self._cpu_s, self._cpu_at = usage.cpu_s(), clock.monotonic()
        self._memory_bytes, self._core = usage.memory_limit_bytes(), min(1.0, usage.cores())
        self._spaces: dict[str, _Space] = {}
        self._held: dict[Bundle, list[int]] = {}
        """Topics, and clients' producers and consumers, of each bundle."""
        self._at = clock.monotonic()
        activity.since_report()

    def used(self) -> dict[str, float]:
        """`cpu`: of one core, or of the part of one that its control group leaves it, since the last call; `memory`: of
        what this process may have; `connections`: of those that it takes.
        """
        cpu_s, now = self._usage.cpu_s(), self._clock.monotonic()
        share = (cpu_s - self._cpu_s) / max(1e-3, now - self._cpu_at) / self._core
        self._cpu_s, self._cpu_at = cpu_s, now
        memory = self._usage.resident_bytes() / self._memory_bytes if self._memory_bytes else 0.0
        return {"cpu": max(0.0, share), MEMORY: memory, CONNECTIONS: self._connections()}

    async def traffic(self) -> tuple[dict[Bundle, BundleTraffic], tuple[float, float]]:
        """Returns the traffic of each bundle with loaded topics, since the last call; and bytes/s (in, out) of them
        all. What a topic carried elsewhere does not count.
        """
        passed: dict[Bundle, list[int]] = {}
        for namespace, space in list(self._spaces.items()):
            before = space.table
            if (table := self._bundles(namespace)) != before:
                await self._look(space.change(table), passed, before)
        await self._look(self._activity.since_report(), passed)
        now = self._clock.monotonic()
        elapsed, self._at = max(1e-3, now - self._at), now
        found: dict[Bundle, BundleTraffic] = {}
        total_in = total_out = 0.0
        for bundle, (topics, sessions) in self._held.items():
            messages, bytes_in, bytes_out = passed.get(bundle, (0, 0, 0))
            in_s, out_s = max(0, bytes_in) / elapsed, max(0, bytes_out) / elapsed
            found[bundle] = BundleTraffic(max(0, messages) / elapsed, in_s + out_s, topics, sessions)
            total_in, total_out = total_in + in_s, total_out + out_s
        return found, (total_in, total_out)

    async def _look(
        self, topics: Iterable[Topic], passed: dict[Bundle, list[int]], before: BundleTable | None = None
    ) -> None:
        """passed: messages, bytes in, bytes out of each bundle, since its topics were last looked at; added to. before:
        the table that they were in.
        """
        for at, topic in enumerate(topics):
            if at % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            namespace = topic.name.namespace
            space = self._spaces.get(namespace)
            if space is None:
                space = self._spaces[namespace] = _Space(self._bundles(namespace))
            table = space.table
            index = -1 if table is None else table.of(topic.text)
            known = self._forget(space, namespace, topic, index if before is None else before.of(topic.text))
            if topic.closed or table is None or self._loaded.get(topic.text) is not topic:
                if not space.rows:
                    del self._spaces[namespace]
                continue
            counts = space.rows.setdefault(index, {})[topic] = _counts(topic)
            bundle = namespace, index
            self._hold(bundle, 1, counts[3])
            if counts != known:
                row = passed.setdefault(bundle, [0, 0, 0])
                for column in range(3):
                    row[column] += counts[column] - known[column]

    def _forget(self, space: _Space, namespace: str, topic: Topic, index: int) -> Counts:
        """Returns what was known of it."""
        rows = space.rows.get(index)
        known = None if rows is None else rows.pop(topic, None)
        if rows is not None and not rows:
            del space.rows[index]
        if known is None:
            return _NOTHING
        self._hold((namespace, index), -1, -known[3])
        return known

    def _hold(self, bundle: Bundle, topics: int, sessions: int) -> None:
        held = self._held.setdefault(bundle, [0, 0])
        held[0] += topics
        held[1] += sessions
        if not held[0]:
            del self._held[bundle]


def _counts(topic: Topic) -> Counts:
    messages, bytes_out, sessions = topic.messages_in, 0, len(topic.producers.producers)
    for subscription in topic.subscriptions.values():
        messages += subscription.messages_out
        bytes_out += subscription.bytes_out
        sessions += len(subscription.consumers)
        for consumer in subscription.consumers:
            messages += consumer.messages_out
            bytes_out += consumer.bytes_out
    return (messages, topic.bytes_in, bytes_out, sessions) if sessions or messages or topic.bytes_in else _NOTHING
