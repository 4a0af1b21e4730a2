"""Metrics of a process, made when they are asked for: Prometheus text.

Is: names as Pulsar and BookKeeper give them, values read from the objects that count them. Isn't: a registry; nothing
is kept here.
Invariants: what a scrape costs is paid by the scrape; nothing is counted per message for its sake.
Source: Prometheus text format 0.0.4; docs/operating.md, "Metrics".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from heliograph.runtime.recent_latencies import Recent

if TYPE_CHECKING:
    from storage.managed_ledger.cache.entry_cache import EntryCache

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, str, Mapping[str, str], float]
"""(name, kind: gauge, counter, or summary, labels, value)."""
QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999)


def render(samples: Iterable[Sample]) -> bytes:
    """Samples of one name are brought together, in the order in which names first come; a summary's sum and count stand
    with its quantiles.
    """
    families: dict[str, tuple[str, list[str]]] = {}
    for name, kind, labels, value in samples:
        text = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
        family = name.removesuffix("_sum").removesuffix("_count") if kind == "summary" else name
        families.setdefault(family, (kind, []))[1].append(
            f"{name}{{{text}}} {value:.17g}" if text else f"{name} {value:.17g}"
        )
    lines = [line for name, (kind, rows) in families.items() for line in (f"# TYPE {name} {kind}", *rows)]
    return ("\n".join(lines) + "\n").encode()


def escaped(value: str) -> str:
    """As a label's value."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def summary(name: str, labels: Mapping[str, str], recent: Recent, factor: float = 1.0) -> Iterable[Sample]:
    """Quantiles of the newest, as far as there are any; sum and count since the start. factor: from what was measured
    to what is shown.
    """
    for quantile, value in zip(QUANTILES, recent.quantiles(QUANTILES), strict=False):
        yield name, "summary", {**labels, "quantile": str(quantile)}, value * factor
    yield f"{name}_sum", "summary", labels, recent.sum * factor
    yield f"{name}_count", "summary", labels, recent.count


def broker_samples(region: str, totals: Mapping[str, float]) -> Iterable[Sample]:
    """`totals`: what is behind pulsar_broker_ -> value."""
    for name, value in totals.items():
        yield f"pulsar_broker_{name}", "gauge", {"cluster": region}, value


def cache_samples(region: str, cache: EntryCache, managed_ledgers: int, now: float) -> Iterable[Sample]:
    """The broker's entry cache. Rates are a second, since about the last scrape."""
    hits, hit_bytes, misses, miss_bytes = cache.rates(now)
    labels = {"cluster": region}
    gauges = (
        ("count", managed_ledgers),
        ("cache_used_size", cache.size_bytes),
        ("cache_entries", cache.entries),
        ("cache_evictions", cache.evictions),
        ("cache_hits_rate", hits),
        ("cache_hits_throughput", hit_bytes),
        ("cache_misses_rate", misses),
        ("cache_misses_throughput", miss_bytes),
    )
    for name, value in gauges:
        yield f"pulsar_ml_{name}", "gauge", labels, value
    for name, value in (("inserted", cache.inserted), ("evicted", cache.evicted)):
        yield f"pulsar_ml_cache_{name}_entries_total", "counter", labels, value


def connection_samples(
    region: str, broker: str, active: int, created: int, refused: int, ended: int, held: int, held_by_memory: int
) -> Iterable[Sample]:
    """Yields the numbers of the Pulsar listener since it started. `refused`: gone before CONNECT was answered; `held`:
    not read from just now.
    """
    labels = {"cluster": region, "broker": broker, "metric": "broker_connection"}
    numbers = (
        ("active_connections", active),
        ("connection_created_total_count", created),
        ("connection_create_success_count", created - refused),
        ("connection_create_fail_count", refused),
        ("connection_closed_total_count", ended),
        ("broker_throttled_connections", held),
        ("broker_throttled_connections_global_limit", held_by_memory),
    )
    for name, value in numbers:
        yield f"pulsar_{name}", "gauge", labels, value


def _started_s() -> float:
    """Returns when this process began, in seconds since the epoch; 0 where the system does not say."""
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    except (OSError, ValueError, StopIteration):
        return 0.0
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def process_samples() -> Iterable[Sample]:
    """What the operating system says about this process."""
    times = os.times()
    yield "process_start_time_seconds", "gauge", {}, _started_s()
    yield "process_cpu_seconds_total", "counter", {}, times.user + times.system
    try:
        with open("/proc/self/statm") as file:
            pages = file.read().split()
        yield "process_virtual_memory_bytes", "gauge", {}, int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
        yield "process_resident_memory_bytes", "gauge", {}, int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
        yield "process_open_fds", "gauge", {}, len(os.listdir("/proc/self/fd"))
        yield "process_max_fds", "gauge", {}, os.sysconf("SC_OPEN_MAX")
    except OSError:
        return
