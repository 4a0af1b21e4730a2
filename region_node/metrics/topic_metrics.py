"""TopicMetrics: what /metrics says of topics, subscriptions, and links, also where there are very many.

Is: rows of numbers read straight from loaded topics, in slices, and their text by families; kept for a moment. Isn't:
TopicStats (the admin interface's), or any counting.
Invariants: the loop is held for one slice at a time; above `topics_max` rows are namespaces (Pulsar's names and labels
for that case), so that the number of series is bounded; the heaviest topics have families of their own, so that no sum
counts anything twice; scrapes that come together are answered by one; no scrape but the first waits for one that takes
long, and what it gets is at most AHEAD_PAUSE_MAX_S older than what it would have waited for.
Source: Prometheus text format 0.0.4; Pulsar's metric names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import add
from typing import Any
from urllib.parse import quote

from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from region_node.metrics.topic_series import TopicSeries, TopTopics
from region_node.runtime.prometheus_text import escaped
from region_node.subscriptions.consumer import Consumer
from region_node.subscriptions.delayed_delivery import DELAYED_ENTRY_BYTES
from region_node.subscriptions.shared_dispatcher import SharedDispatcher
from region_node.subscriptions.subscription import Subscription
from region_node.topics.incoming_rates import NOTHING
from region_node.topics.topic import Topic
from storage.managed_ledger.cursors.cursor import Cursor

SLICE = 500
_LINES = 4000
KEPT_S = 1.0
"""Two scrapers at once cost one scrape."""
AHEAD_FROM_S = 0.3
"""What takes longer to make is made ahead, for as long as somebody asks for it: a scrape then gets what is there."""
AHEAD_REST, AHEAD_PAUSE_MAX_S = 10, 10.0
"""Between two of them: so many times what one took, at most so long."""
FORGET_S = 180.0
"""Nobody asked for so long: it is not made ahead any more."""

LATENCY_PARTS = (
    *(f"le_{bound}" for bound in ["0_5", "1", "5", "10", "20", "50", "100", "200", "1000", "overflow"]),
    "count",
    "sum",
)
Columns = tuple[tuple[str, str], ...]
ACK_RATE = "pulsar_consumer_msg_ack_rate"
DELAYED_SIZE = "pulsar_delayed_message_index_size_bytes"

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
    (ACK_RATE, "gauge"),
    ("pulsar_storage_logical_size", "gauge"),
    ("pulsar_publish_rate_limit_times", "gauge"),
    (DELAYED_SIZE, "gauge"),
)
QUOTA: Columns = (("pulsar_storage_backlog_quota_limit", "gauge"),)
"""Bytes; 0 where there is none."""
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
    ("pulsar_subscription_back_log_no_delayed", "gauge"),
    ("pulsar_subscription_last_expire_timestamp", "gauge"),
    ("pulsar_subscription_last_acked_timestamp", "gauge"),
    ("pulsar_subscription_last_consumed_flow_timestamp", "gauge"),
    ("pulsar_subscription_last_consumed_timestamp", "gauge"),
    ("pulsar_subscription_last_mark_delete_advanced_timestamp", "gauge"),
    ("pulsar_subscription_msg_drop_rate", "gauge"),
)
"""And what its delayed messages take in memory, which is in the topics' family, as Pulsar has it."""
CONSUMER: Columns = (
    ("pulsar_consumer_msg_rate_out", "gauge"),
    ("pulsar_consumer_msg_throughput_out", "gauge"),
    ("pulsar_consumer_msg_rate_redeliver", "gauge"),
    ("pulsar_consumer_unacked_messages", "gauge"),
    ("pulsar_consumer_blocked_on_unacked_messages", "gauge"),
    ("pulsar_consumer_available_permits", "gauge"),
)
"""Only where the settings say so: as many series as there are consumers. Their acknowledgement rates are in the topics'
family, as Pulsar has it.
"""
FILTERING: Columns = (
    ("pulsar_subscription_filter_processed_msg_count", "counter"),
    ("pulsar_subscription_filter_accepted_msg_count", "counter"),
    ("pulsar_subscription_filter_rejected_msg_count", "counter"),
    ("pulsar_subscription_filter_rescheduled_msg_count", "counter"),
)
COMPACTION: Columns = (
    ("pulsar_compaction_removed_event_count", "gauge"),
    ("pulsar_compaction_succeed_count", "gauge"),
    ("pulsar_compaction_failed_count", "gauge"),
    ("pulsar_compaction_duration_time_in_mills", "gauge"),
    ("pulsar_compaction_read_throughput", "gauge"),
    ("pulsar_compaction_write_throughput", "gauge"),
    ("pulsar_compaction_compacted_entries_count", "gauge"),
    ("pulsar_compaction_compacted_entries_size", "gauge"),
    *((f"pulsar_compaction_latency_{part}", "counter") for part in LATENCY_PARTS),
)
TRANSACTIONS: Columns = (
    ("pulsar_txn_tb_active_total", "gauge"),
    ("pulsar_txn_tb_committed_total", "counter"),
    ("pulsar_txn_tb_aborted_total", "counter"),
)
NAMESPACE: Columns = (
    ("pulsar_ml_NumberOfMessagesInBacklog", "gauge"),
    ("pulsar_ml_StoredMessagesSize", "gauge"),
)
MARKED: Columns = (("pulsar_ml_MarkDeleteRate", "gauge"),)
CURSOR: Columns = (
    ("pulsar_ml_cursor_nonContiguousDeletedMessagesRange", "gauge"),
    ("pulsar_ml_cursor_persistZookeeperSucceed", "gauge"),
    ("pulsar_ml_cursor_persistZookeeperErrors", "gauge"),
)
"""Where consumers have their own, too. Cursors lie in the region's metadata, which stands here for ZooKeeper."""
BUNDLE: Columns = (
    ("pulsar_bundle_topics_count", "gauge"),
    ("pulsar_bundle_producer_count", "gauge"),
    ("pulsar_bundle_consumer_count", "gauge"),
    ("pulsar_bundle_msg_rate_in", "gauge"),
    ("pulsar_bundle_msg_throughput_in", "gauge"),
    ("pulsar_bundle_msg_rate_out", "gauge"),
    ("pulsar_bundle_msg_throughput_out", "gauge"),
)
LINK: Columns = (
    ("pulsar_replication_backlog", "gauge"),
    ("pulsar_replication_rate_in", "gauge"),
    ("pulsar_replication_throughput_in", "gauge"),
    ("pulsar_replication_rate_out", "gauge"),
    ("pulsar_replication_throughput_out", "gauge"),
    ("pulsar_replication_connected_count", "gauge"),
    ("heliograph_replication_backlog_bytes", "gauge"),
    ("pulsar_replication_delay_in_seconds", "gauge"),
)
Way = Callable[[float, float], float]
WORST: Mapping[str, Way] = {"pulsar_replication_connected_count": min, "pulsar_replication_delay_in_seconds": max}
"""How a namespace's row is made of its links, for alerts: whether all are connected, and how old the oldest is."""
TOP_TOPIC: Columns = (
    *(
        (name.replace("pulsar_", "heliograph_top_topic_", 1), kind)
        for name, kind in TOPIC[: [name for name, _ in TOPIC].index(ACK_RATE)]
    ),
    ("heliograph_top_topic_replication_rate_in", "gauge"),
    ("heliograph_top_topic_replication_throughput_in", "gauge"),
)
"""The last two: what comes from all other regions together."""
TOTALS = (
    "subscriptions_count", "producers_count", "consumers_count", "msg_backlog",
    "rate_in", "throughput_in", "rate_out", "throughput_out", "storage_size",
)  # fmt: skip
"""Names behind pulsar_broker_, in the order of TOPIC."""
_SIZES = ("pulsar_storage_size", "pulsar_storage_logical_size")
_BACKLOG, _SIZE = TOTALS.index("msg_backlog"), TOTALS.index("storage_size")
_IN_BYTES, _OUT_BYTES = (TOPIC.index((f"pulsar_{way}_bytes_total", "counter")) for way in ("in", "out"))


class MetricRows:
    """Labels, as text -> numbers in the order of the columns. A row that comes twice is added up, but for columns that
    `ways` names.
    """

    def __init__(self, columns: Columns, ways: Mapping[str, Way] | None = None) -> None:
        self.columns = columns
        self._ways: list[Way] | None = [ways.get(name, add) for name, _ in columns] if ways else None
        self._rows: dict[str, list[float]] = {}

    def add(self, labels: str, numbers: Iterable[float]) -> None:
        known = self._rows.get(labels)
        if known is None:
            self._rows[labels] = list(numbers)
        elif self._ways is None:
            self._rows[labels] = list(map(add, known, numbers))
        else:
            self._rows[labels] = [
                way(so_far, number) for way, so_far, number in zip(self._ways, known, numbers, strict=True)
            ]

    def __bool__(self) -> bool:
        return bool(self._rows)

    def first(self) -> Iterable[tuple[str, float]]:
        """(labels, its first number) of each row."""
        return ((labels, row[0]) for labels, row in self._rows.items())

    def total(self, at: int) -> float:
        return sum(row[at] for row in self._rows.values())

    def lines(self, more: Mapping[str, str] | None = None) -> Iterable[str]:
        """One family behind the other, in pieces. more: lines that belong to a family besides."""
        rows = list(self._rows.items())
        for at, (name, kind) in enumerate(self.columns):
            for start in range(0, len(rows), _LINES):
                head = "" if start else f"# TYPE {name} {kind}\n"
                yield head + "".join(
                    [f"{name}{{{labels}}} {row[at]:.17g}\n" for labels, row in rows[start : start + _LINES]]
                )
            if more is not None and name in more:
                yield more[name]

    def column(self, at: int, name: str) -> str:
        """Lines of one number of each row."""
        return "".join([f"{name}{{{labels}}} {row[at]:.17g}\n" for labels, row in self._rows.items()])


class TopicMetrics:
    """`topics`, `links`: of this broker. Make it on the event loop."""

    def __init__(
        self,
        topics: Callable[[], Iterable[Topic]],
        links: Callable[[], Iterable[Any]],
        *,
        region: str,
        clock: Clock,
        series: TopicSeries,
        consumers: bool = False,
        more: Callable[[], Iterable[str]] = tuple,
        bundle: Callable[[TopicName], str] = lambda _: "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """consumers: a series for each of them, and for each cursor, too. more: families that come besides, in pieces
        that each take a moment.
        bundle: labels of the one that a topic lies in; "": it is in none.
        """
        self._consumers, self._more, self._bundle = consumers, more, bundle
        self._topics, self._links, self._region, self._clock, self._series = topics, links, region, clock, series
        self._top = TopTopics(series.top)
        self.stored: dict[str, int] = {}
        """Bytes of each tenant's open ledgers, as of what was made last."""
        self._marked: dict[str, float] = {}
        """Of each namespace: how often cursors had moved at the last scrape."""
        self._lock = asyncio.Lock()
        self._made_at = -KEPT_S
        self._made: tuple[bytes, dict[str, float]] = (b"", {})
        self._took_s = self._asked_at = 0.0
        self._sleep = sleep
        self._ahead: asyncio.Task[None] | None = None

    async def text(self) -> tuple[bytes, dict[str, float]]:
        """(text, what the whole broker has, by the names behind pulsar_broker_)."""
        self._asked_at = self._clock.monotonic()
        if self._ahead is not None and not self._ahead.done():
            return self._made
        async with self._lock:
            if self._clock.monotonic() - self._made_at >= KEPT_S:
                await self._make_anew()
        if self._took_s >= AHEAD_FROM_S and (self._ahead is None or self._ahead.done()):
            self._ahead = asyncio.get_running_loop().create_task(self._make_ahead())
        return self._made

    async def _make_anew(self) -> None:
        began = self._clock.monotonic()
        self._made = await self._make()
        self._made_at = self._clock.monotonic()
        self._took_s = self._made_at - began

    async def _make_ahead(self) -> None:
        while self._took_s >= AHEAD_FROM_S:
            await self._sleep(min(AHEAD_REST * self._took_s, AHEAD_PAUSE_MAX_S))
            if self._clock.monotonic() - self._asked_at > FORGET_S:
                return
            await self._make_anew()

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()

    async def _make(self) -> tuple[bytes, dict[str, float]]:
        topics = list(self._topics())
        single = self._series.by_topic(len(topics))
        began = self._clock.monotonic()
        ranking = self._top.begin(began)
        by_topic, by_subscription, by_link, by_compaction = (
            MetricRows(TOPIC),
            MetricRows(SUBSCRIPTION),
            MetricRows(LINK, WORST),
            MetricRows(COMPACTION),
        )
        by_filter, by_transaction, by_consumer = MetricRows(FILTERING), MetricRows(TRANSACTIONS), MetricRows(CONSUMER)
        by_namespace, by_cursor, by_bundle, by_quota, by_mark = (
            MetricRows(NAMESPACE),
            MetricRows(CURSOR),
            MetricRows(BUNDLE),
            MetricRows(QUOTA),
            MetricRows(MARKED),
        )
        count_of: dict[str, int] = {}
        stored: dict[str, int] = {}
        known: dict[tuple[str, str], str] = {}
        coming: dict[tuple[str, str], Sequence[float]] = {}
        """(topic, the region that it comes from) -> messages and bytes a second."""
        unused: dict[tuple[str, str], list[float]] = {}
        """Of a namespace: topics that have a size and nothing else, and their bytes."""
        for at, topic in enumerate(topics):
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if topic.closed:
                continue
            if topic.incoming_rates is not None:
                coming.update({(topic.text, region): rates for region, rates in topic.incoming_rates.all()})
            if topic.ledger.open_bytes:
                stored[topic.name.tenant] = stored.get(topic.name.tenant, 0) + topic.ledger.open_bytes
            if not single and _is_unused(topic):
                found_so = unused.setdefault((topic.name.tenant, topic.name.namespace_local), [0, 0.0])
                found_so[0] += 1
                found_so[1] += topic.ledger.size_bytes
                if ranking is not None and topic.incoming_rates is not None:
                    ranking.show(topic, brought_bytes(topic), 0)
                continue
            labels = self._labels(topic.name, single, known)
            count_of[labels] = count_of.get(labels, 0) + 1
            found = topic_numbers(topic)
            by_topic.add(labels, found)
            if ranking is not None:
                ranking.show(
                    topic, int(found[_IN_BYTES] + found[_OUT_BYTES]) + brought_bytes(topic), int(found[_BACKLOG])
                )
            space = self._labels(topic.name, False, known)
            by_namespace.add(space, (found[_BACKLOG], found[_SIZE]))
            if topic.name.persistent:
                by_mark.add(
                    space,
                    (sum(cursor.moves for cursor in topic.ledger.cursors.values() if isinstance(cursor, Cursor)),),
                )
            if (buffer := topic.transactions.buffer if topic.transactional else None) is not None:
                by_transaction.add(labels, (len(buffer.open), buffer.commits, buffer.aborts))
            if topic.compacted is not None:
                by_compaction.add(labels, topic.compacted.numbers())
            if single and (bundle := self._bundle(topic.name)):
                by_bundle.add(bundle, (1, *found[1:3], *found[4:8]))
            if single and self._consumers and topic.name.persistent:
                owner = f'namespace="{topic.name.namespace}",ledger_name="{escaped(ledger_name(topic.name))}"'
                for cursor in topic.ledger.cursors.values():
                    if isinstance(cursor, Cursor):
                        by_cursor.add(
                            f'{owner},cursor_name="{escaped(cursor.name)}"',
                            (cursor.holes, cursor.writes, cursor.write_errors),
                        )
            if single:
                by_quota.add(labels, ((topic.policies.quota("destination_storage") or (0,))[0],))
                for name, subscription in topic.subscriptions.items():
                    if (counts := subscription.filtering) is not None:
                        filtered = (counts.processed, counts.accepted, counts.rejected, counts.rescheduled)
                        by_filter.add(f'{labels},subscription="{escaped(name)}"', filtered)
                    by_subscription.add(f'{labels},subscription="{escaped(name)}"', subscription_numbers(subscription))
                    for consumer in subscription.consumers if self._consumers else ():
                        told = (
                            f'subscription="{escaped(name)}",consumer_name="{escaped(consumer.name)}",'
                            f'consumer_id="{consumer.id}"'
                        )
                        by_consumer.add(f"{labels},{told}", consumer_numbers(consumer))
        for at, link in enumerate(self._links()):
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            labels = (
                f'{self._labels(TopicName.parse(link.topic), single, known)},remote_cluster="{escaped(link.target)}"'
            )
            going = link.rate_out, link.throughput_out, int(link.connected), link.backlog_bytes, link.age_s
            by_link.add(labels, (link.backlog_entries, *coming.get((link.topic, link.target), NOTHING), *going))
        for (tenant, local), (count, size) in unused.items():
            labels = self._labels(TopicName("persistent", tenant, local, "t"), False, known)
            count_of[labels] = count_of.get(labels, 0) + int(count)
            by_topic.add(labels, [size if name in _SIZES else 0 for name, _ in TOPIC])
            by_namespace.add(labels, (0, size))
            by_mark.add(labels, (0,))
        by_top = MetricRows(TOP_TOPIC)
        for at, topic in enumerate(self._top.end(ranking, began)):
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            by_top.add(self._labels(topic.name, True, known), top_topic_numbers(topic))
        families = [] if single else [*_counts(count_of)]
        some = (
            by_top,
            by_compaction,
            by_filter,
            by_transaction,
            by_consumer,
            by_namespace,
            by_cursor,
            by_bundle,
            by_quota,
            self._rates_of(by_mark),
        )
        besides = {ACK_RATE: by_consumer.column(-1, ACK_RATE), DELAYED_SIZE: by_subscription.column(-1, DELAYED_SIZE)}
        for rows in (by_topic, by_subscription, by_link, *(rows for rows in some if rows)):
            for family in rows.lines(besides if rows is by_topic else None):
                families.append(family)
                await asyncio.sleep(0)
        for family in self._more():
            families.append(family)
            await asyncio.sleep(0)
        self.stored = stored
        totals = {name: by_topic.total(at) for at, name in enumerate(TOTALS)}
        return "".join(families).encode(), {
            "topics_count": len(topics),
            **totals,
            "storage_logical_size": totals["storage_size"],
        }

    def _rates_of(self, marked: MetricRows) -> MetricRows:
        """Turns counts by namespace into rates a second since the last scrape; what came or went meanwhile with its
        topic does not count.
        """
        counts, before = dict(marked.first()), self._marked
        self._marked, elapsed = counts, max(KEPT_S, self._clock.monotonic() - self._made_at)
        rates = MetricRows(MARKED)
        for labels, count in counts.items():
            rates.add(labels, (max(0.0, count - before.get(labels, count)) / elapsed,))
        return rates

    def _labels(self, name: TopicName, single: bool, known: dict[tuple[str, str], str]) -> str:
        """known: of namespaces, so that each is made once."""
        whole = known.get((name.tenant, name.namespace_local))
        if whole is None:
            whole = known[name.tenant, name.namespace_local] = (
                f'cluster="{escaped(self._region)}",namespace="{name.namespace}"'
            )
        return f'{whole},topic="{escaped(str(name))}"' if single else whole


def ledger_name(name: TopicName) -> str:
    """As Pulsar names a topic's managed ledger: `tenant/namespace/persistent/topic`, the topic as in a URL."""
    return f"{name.namespace}/{name.domain}/{quote(name.local, safe='')}"


def _counts(count_of: dict[str, int]) -> Iterable[str]:
    yield "# TYPE pulsar_topics_count gauge\n" + "".join(
        f"pulsar_topics_count{{{labels}}} {count}\n" for labels, count in count_of.items()
    )


def _is_unused(topic: Topic) -> bool:
    """Whether all its numbers but its size are 0. Of very many topics these are most, and they cost a tenth of the
    others.
    """
    if topic.messages_in or topic.subscriptions or topic.producers.producers or topic.ledger.cursors or topic.volatile:
        return False
    return topic.compacted is None and not topic.transactional and not topic.rate_limited


def topic_numbers(topic: Topic) -> list[float]:
    """In the order of TOPIC."""
    ledger, subscriptions = topic.ledger, topic.subscriptions.values()
    consumers = backlog = backlog_bytes = messages = size_bytes = delayed = 0
    rate = throughput = acked = 0.0
    for subscription in subscriptions:
        cursor = subscription.cursor
        backlog += cursor.backlog_entries
        backlog_bytes = max(backlog_bytes, cursor.backlog_bytes)
        messages, size_bytes = messages + subscription.messages_out, size_bytes + subscription.bytes_out
        rates = subscription.meter.rates
        delayed += delayed_count(subscription)
        rate, throughput, acked = rate + rates[0], throughput + rates[1], acked + rates[3]
        for consumer in subscription.consumers:
            consumers, messages, size_bytes = (
                consumers + 1,
                messages + consumer.messages_out,
                size_bytes + consumer.bytes_out,
            )
    into = topic.meter.rates
    counts = (len(topic.subscriptions), len(topic.producers.producers), consumers, backlog)
    totals = topic.messages_in, topic.bytes_in, messages, size_bytes
    limited = topic.rate_limited, delayed * DELAYED_ENTRY_BYTES
    return [
        *counts,
        *into,
        rate,
        throughput,
        ledger.size_bytes,
        backlog_bytes,
        *totals,
        acked,
        ledger.size_bytes,
        *limited,
    ]


def brought_bytes(topic: Topic) -> int:
    """By links from other regions, since it was loaded."""
    return topic.incoming_rates.size_bytes if topic.incoming_rates is not None else 0


def top_topic_numbers(topic: Topic) -> list[float]:
    """In the order of TOP_TOPIC."""
    coming = [rates for _, rates in topic.incoming_rates.all()] if topic.incoming_rates is not None else []
    brought = (sum(rates[at] for rates in coming) for at in range(len(NOTHING)))
    return [*topic_numbers(topic)[: len(TOP_TOPIC) - len(NOTHING)], *brought]


def delayed_count(subscription: Subscription) -> int:
    """Entries that wait for their time."""
    shared = subscription.dispatcher
    return shared.waiting if isinstance(shared, SharedDispatcher) else 0


def subscription_numbers(subscription: Subscription) -> list[float]:
    """In the order of SUBSCRIPTION, and the size of what is delayed."""
    shared = subscription.dispatcher if isinstance(subscription.dispatcher, SharedDispatcher) else None
    delayed = delayed_count(subscription)
    held = (shared.unacked, int(shared.blocked)) if shared is not None else (0, 0)
    backlog = subscription.cursor.backlog_entries
    times = (
        subscription.last_expired_ms,
        subscription.last_acked_ms,
        subscription.last_flow_ms,
        subscription.last_consumed_ms,
    )
    *rates, dropped = subscription.meter.rates
    totals = subscription.expired, backlog - delayed, *times, subscription.last_marked_ms, dropped
    return [backlog, len(subscription.consumers), *held, delayed, *rates, *totals, delayed * DELAYED_ENTRY_BYTES]


def consumer_numbers(consumer: Consumer) -> list[float]:
    """In the order of CONSUMER, and the rate of acknowledgements."""
    out, throughput, redelivered, acked = consumer.meter.rates
    return [out, throughput, redelivered, consumer.unacked, int(consumer.blocked), consumer.permits, acked]
