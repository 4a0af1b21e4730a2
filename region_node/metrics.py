"""Metrics of a process, made when they are asked for: Prometheus text.

Is: names as Pulsar and BookKeeper give them, values read from the objects that count them. Isn't: a registry; nothing is kept here.
Invariants: what a scrape costs is paid by the scrape; nothing is counted per message for its sake.
Source: Prometheus text format 0.0.4; docs/operating.md, "Metrics".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, str, Mapping[str, str], float]
"""(name, kind: gauge or counter, labels, value)."""

_TOPIC_GAUGES = (
    ("pulsar_rate_in", "msgRateIn"),
    ("pulsar_rate_out", "msgRateOut"),
    ("pulsar_throughput_in", "msgThroughputIn"),
    ("pulsar_throughput_out", "msgThroughputOut"),
    ("pulsar_storage_size", "storageSize"),
    ("pulsar_storage_backlog_size", "backlogSize"),
)
_TOPIC_COUNTERS = (
    ("pulsar_in_messages_total", "msgInCounter"),
    ("pulsar_in_bytes_total", "bytesInCounter"),
    ("pulsar_out_messages_total", "msgOutCounter"),
    ("pulsar_out_bytes_total", "bytesOutCounter"),
)
_SUBSCRIPTION_GAUGES = (
    ("pulsar_subscription_back_log", "msgBacklog"),
    ("pulsar_subscription_unacked_messages", "unackedMessages"),
    ("pulsar_subscription_msg_rate_out", "msgRateOut"),
    ("pulsar_subscription_msg_throughput_out", "msgThroughputOut"),
    ("pulsar_subscription_msg_rate_redeliver", "msgRateRedeliver"),
)


def render(samples: Iterable[Sample]) -> bytes:
    """Samples of one name are brought together, in the order in which names first come."""
    families: dict[str, tuple[str, list[str]]] = {}
    for name, kind, labels, value in samples:
        text = ",".join(f'{k}="{_escaped(v)}"' for k, v in labels.items())
        families.setdefault(name, (kind, []))[1].append(f"{name}{{{text}}} {value:.17g}" if text else f"{name} {value:.17g}")
    lines = [line for name, (kind, rows) in families.items() for line in (f"# TYPE {name} {kind}", *rows)]
    return ("\n".join(lines) + "\n").encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def topic_samples(region: str, topic: str, namespace: str, stats: Mapping[str, Any]) -> Iterable[Sample]:
    """One topic and its subscriptions, from its TopicStats."""
    labels = {"cluster": region, "namespace": namespace, "topic": topic}
    subscriptions: Mapping[str, Mapping[str, Any]] = stats.get("subscriptions", {})
    yield "pulsar_subscriptions_count", "gauge", labels, len(subscriptions)
    yield "pulsar_producers_count", "gauge", labels, len(stats.get("publishers", ()))
    yield "pulsar_consumers_count", "gauge", labels, sum(len(s.get("consumers", ())) for s in subscriptions.values())
    yield "pulsar_msg_backlog", "gauge", labels, sum(s.get("msgBacklog", 0) for s in subscriptions.values())
    for name, key in _TOPIC_GAUGES:
        yield name, "gauge", labels, stats.get(key, 0)
    for name, key in _TOPIC_COUNTERS:
        if key in stats:
            yield name, "counter", labels, stats[key]
    for subscription, fields in subscriptions.items():
        own = {**labels, "subscription": subscription}
        for name, key in _SUBSCRIPTION_GAUGES:
            yield name, "gauge", own, fields.get(key, 0)
        yield "pulsar_subscription_consumers_count", "gauge", own, len(fields.get("consumers", ()))


def broker_samples(region: str, totals: Mapping[str, float]) -> Iterable[Sample]:
    """`totals`: what is behind pulsar_broker_ -> value."""
    for name, value in totals.items():
        yield f"pulsar_broker_{name}", "gauge", {"cluster": region}, value


def process_samples() -> Iterable[Sample]:
    """What the operating system says about this process."""
    times = os.times()
    yield "process_cpu_seconds_total", "counter", {}, times.user + times.system
    try:
        with open("/proc/self/statm") as file:
            pages = file.read().split()
        yield "process_virtual_memory_bytes", "gauge", {}, int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
        yield "process_resident_memory_bytes", "gauge", {}, int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
        yield "process_open_fds", "gauge", {}, len(os.listdir("/proc/self/fd"))
    except OSError:
        return
