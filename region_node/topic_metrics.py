"""TopicMetrics: what /metrics says of topics, subscriptions, and links, also where there are very many.

Is: rows of numbers read straight from loaded topics, in slices, and their text by families; kept for a moment. Isn't: TopicStats (the admin
interface's), or any counting.
Invariants: the loop is held for one slice at a time; above `topics_max` rows are namespaces (Pulsar's names and labels for that case), so that the
number of series is bounded; scrapes that come together are answered by one.
Source: Prometheus text format 0.0.4; Pulsar's metric names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any

from heliograph.model.names import TopicName
from heliograph.runtime.clock import Clock
from region_node.metrics import escaped
from region_node.subscriptions.shared import SharedDispatcher
from region_node.subscriptions.subscription import Subscription
from region_node.topics.topic import Topic

SLICE = 500
_LINES = 4000
KEPT_S = 1.0
"""Two scrapers at once cost one scrape."""

Columns = tuple[tuple[str, str], ...]

TOPIC: Columns = (
    ("pulsar_subscriptions_count", "gauge"),
    ("pulsar_producers_count", "gauge"),
    ("pulsar_consumers_count", "gauge"),
    ("pulsar_msg_backlog", "gauge"),
    ("pulsar_rate_in", "gauge"),
    ("pulsar_throughput_in", "gauge"),
    ("pulsar_rate_out", "gauge"),
    ("pulsar_throughput_out", "gauge"),
    ("pulsar_storage_size", "gauge"),
    ("pulsar_storage_backlog_size", "gauge"),
    ("pulsar_in_messages_total", "counter"),
    ("pulsar_in_bytes_total", "counter"),
    ("pulsar_out_messages_total", "counter"),
    ("pulsar_out_bytes_total", "counter"),
)
SUBSCRIPTION: Columns = (
    ("pulsar_subscription_back_log", "gauge"),
    ("pulsar_subscription_consumers_count", "gauge"),
    ("pulsar_subscription_unacked_messages", "gauge"),
    ("pulsar_subscription_blocked_on_unacked_messages", "gauge"),
    ("pulsar_subscription_delayed", "gauge"),
    ("pulsar_subscription_msg_rate_out", "gauge"),
    ("pulsar_subscription_msg_throughput_out", "gauge"),
    ("pulsar_subscription_msg_rate_redeliver", "gauge"),
    ("pulsar_subscription_msg_ack_rate", "gauge"),
    ("pulsar_subscription_msg_rate_expired", "gauge"),
    ("pulsar_subscription_total_msg_expired", "gauge"),
)
LINK: Columns = (
    ("pulsar_replication_backlog", "gauge"),
    ("pulsar_replication_rate_out", "gauge"),
    ("pulsar_replication_throughput_out", "gauge"),
    ("pulsar_replication_connected_count", "gauge"),
    ("heliograph_replication_backlog_bytes", "gauge"),
    ("pulsar_replication_delay_in_seconds", "gauge"),
)
TOTALS = (
    "subscriptions_count", "producers_count", "consumers_count", "msg_backlog", "rate_in", "throughput_in", "rate_out", "throughput_out", "storage_size"
)  # fmt: skip
"""Names behind pulsar_broker_, in the order of TOPIC."""


class Rows:
    """Labels, as text -> numbers in the order of the columns. A row that comes twice is added up."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._rows: dict[str, list[float]] = {}

    def add(self, labels: str, numbers: Iterable[float]) -> None:
        known = self._rows.get(labels)
        self._rows[labels] = list(numbers) if known is None else list(map(add, known, numbers))

    def total(self, at: int) -> float:
        return sum(row[at] for row in self._rows.values())

    def lines(self) -> Iterable[str]:
        """One family behind the other, in pieces."""
        rows = list(self._rows.items())
        for at, (name, kind) in enumerate(self.columns):
            for start in range(0, len(rows), _LINES):
                head = "" if start else f"# TYPE {name} {kind}\n"
                yield head + "".join([f"{name}{{{labels}}} {row[at]:.17g}\n" for labels, row in rows[start : start + _LINES]])


class TopicMetrics:
    """`topics`, `links`: of this broker. Make it on the event loop."""

    def __init__(
        self, topics: Callable[[], Iterable[Topic]], links: Callable[[], Sequence[Any]], *, region: str, clock: Clock, topics_max: int
    ) -> None:
        self._topics, self._links, self._region, self._clock, self._topics_max = topics, links, region, clock, topics_max
        self._lock = asyncio.Lock()
        self._made_at = -KEPT_S
        self._made: tuple[bytes, dict[str, float]] = (b"", {})

    async def text(self) -> tuple[bytes, dict[str, float]]:
        """(text, what the whole broker has, by the names behind pulsar_broker_)."""
        async with self._lock:
            if self._clock.monotonic() - self._made_at >= KEPT_S:
                self._made = await self._make()
                self._made_at = self._clock.monotonic()
            return self._made

    async def _make(self) -> tuple[bytes, dict[str, float]]:
        topics = list(self._topics())
        single = len(topics) <= self._topics_max
        by_topic, by_subscription, by_link = Rows(TOPIC), Rows(SUBSCRIPTION), Rows(LINK)
        count_of: dict[str, int] = {}
        known: dict[tuple[str, str], str] = {}
        for at, topic in enumerate(topics):
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if topic.closed:
                continue
            labels = self._labels(topic.name, single, known)
            count_of[labels] = count_of.get(labels, 0) + 1
            by_topic.add(labels, topic_numbers(topic))
            if single:
                for name, subscription in topic.subscriptions.items():
                    by_subscription.add(f'{labels},subscription="{escaped(name)}"', subscription_numbers(subscription))
        for at, link in enumerate(self._links()):
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            labels = f'{self._labels(TopicName.parse(link.topic), single, known)},remote_cluster="{escaped(link.target)}"'
            by_link.add(labels, (link.backlog_entries, link.rate_out, link.throughput_out, int(link.connected), link.backlog_bytes, link.age_s))
        families = [] if single else [*_counts(count_of)]
        for rows in (by_topic, by_subscription, by_link):
            for family in rows.lines():
                families.append(family)
                await asyncio.sleep(0)
        return "".join(families).encode(), {"topics_count": len(topics), **{name: by_topic.total(at) for at, name in enumerate(TOTALS)}}

    def _labels(self, name: TopicName, single: bool, known: dict[tuple[str, str], str]) -> str:
        """known: of namespaces, so that each is made once."""
        whole = known.get((name.tenant, name.namespace_local))
        if whole is None:
            whole = known[name.tenant, name.namespace_local] = f'cluster="{escaped(self._region)}",namespace="{name.namespace}"'
        return f'{whole},topic="{escaped(str(name))}"' if single else whole


def _counts(count_of: dict[str, int]) -> Iterable[str]:
    yield "# TYPE pulsar_topics_count gauge\n" + "".join(f"pulsar_topics_count{{{labels}}} {count}\n" for labels, count in count_of.items())


def topic_numbers(topic: Topic) -> list[float]:
    """In the order of TOPIC."""
    ledger, subscriptions = topic.ledger, topic.subscriptions.values()
    consumers = backlog = backlog_bytes = messages = size_bytes = 0
    rate = throughput = 0.0
    for subscription in subscriptions:
        cursor = subscription.cursor
        backlog += cursor.backlog_entries
        backlog_bytes = max(backlog_bytes, cursor.backlog_bytes)
        messages, size_bytes = messages + subscription.messages_out, size_bytes + subscription.bytes_out
        rate, throughput = rate + subscription.meter.rates[0], throughput + subscription.meter.rates[1]
        for consumer in subscription.consumers:
            consumers, messages, size_bytes = consumers + 1, messages + consumer.messages_out, size_bytes + consumer.bytes_out
    into = topic.meter.rates
    counts = (len(topic.subscriptions), len(topic.producers.producers), consumers, backlog)
    return [*counts, *into, rate, throughput, ledger.size_bytes, backlog_bytes, topic.messages_in, topic.bytes_in, messages, size_bytes]


def subscription_numbers(subscription: Subscription) -> list[float]:
    """In the order of SUBSCRIPTION."""
    shared = subscription.dispatcher if isinstance(subscription.dispatcher, SharedDispatcher) else None
    delayed = shared.delayed.count if shared is not None and shared.delayed is not None else 0
    held = (shared.unacked, int(shared.blocked)) if shared is not None else (0, 0)
    return [subscription.cursor.backlog_entries, len(subscription.consumers), *held, delayed, *subscription.meter.rates, subscription.expired]
