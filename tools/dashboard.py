"""Makes deploy/grafana/heliograph.json: one dashboard of a region, for any Grafana from 10 on.

Is: `python tools/dashboard.py [FILE]`; panels as rows of tables below. Isn't: needed to run anything; the file is in the repository, and a test
compares it with what this makes. Every metric that it names is one that our processes give out: another test asks them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "heliograph.json"
SOURCE = DataSourceRef("prometheus", "${source}")
HERE = 'cluster=~"$region"'
OF_TOPICS = f'{HERE}, namespace=~"$namespace"'

Panel = tuple[str, str, str, str]
"""(title, unit, query, legend)."""

STATS: tuple[Panel, ...] = (
    ("Messages in", "mps", f"sum(pulsar_broker_rate_in{{{HERE}}})", ""),
    ("Messages out", "mps", f"sum(pulsar_broker_rate_out{{{HERE}}})", ""),
    ("Backlog", "short", f"sum(pulsar_broker_msg_backlog{{{HERE}}})", ""),
    ("Oldest unreplicated", "s", f"max(pulsar_replication_delay_in_seconds{{{HERE}}}) or vector(0)", ""),
    ("Bookies that take writes", "short", "sum(bookie_SERVER_STATUS)", ""),
    ("Configuration stale", "s", f"max(heliograph_config_stale_seconds{{{HERE}}})", ""),
)
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Traffic",
        (
            ("Messages in by topic, the ten largest", "mps", f"topk(10, sum by (topic) (pulsar_rate_in{{{OF_TOPICS}}}))", "{{topic}}"),
            ("Messages out by topic, the ten largest", "mps", f"topk(10, sum by (topic) (pulsar_rate_out{{{OF_TOPICS}}}))", "{{topic}}"),
            ("Bytes in by namespace", "Bps", f"sum by (namespace) (pulsar_throughput_in{{{OF_TOPICS}}})", "{{namespace}}"),
            ("Bytes out by namespace", "Bps", f"sum by (namespace) (pulsar_throughput_out{{{OF_TOPICS}}})", "{{namespace}}"),
        ),
    ),
    (
        "Subscriptions",
        (
            (
                "Backlog, the ten largest",
                "short",
                f"topk(10, sum by (topic, subscription) (pulsar_subscription_back_log{{{OF_TOPICS}}}))",
                "{{topic}} {{subscription}}",
            ),
            (
                "Delivered and not acknowledged, the ten largest",
                "short",
                f"topk(10, sum by (topic, subscription) (pulsar_subscription_unacked_messages{{{OF_TOPICS}}}))",
                "{{topic}} {{subscription}}",
            ),
            (
                "Redelivered",
                "mps",
                f"topk(10, sum by (topic, subscription) (pulsar_subscription_msg_rate_redeliver{{{OF_TOPICS}}}))",
                "{{topic}} {{subscription}}",
            ),
            ("Stored by namespace", "bytes", f"sum by (namespace) (pulsar_storage_size{{{OF_TOPICS}}})", "{{namespace}}"),
        ),
    ),
    (
        "Links to other regions",
        (
            ("Backlog", "short", f"sum by (remote_cluster) (pulsar_replication_backlog{{{OF_TOPICS}}})", "to {{remote_cluster}}"),
            ("Backlog in bytes", "bytes", f"sum by (remote_cluster) (heliograph_replication_backlog_bytes{{{OF_TOPICS}}})", "to {{remote_cluster}}"),
            ("Age of the oldest", "s", f"max by (remote_cluster) (pulsar_replication_delay_in_seconds{{{OF_TOPICS}}})", "to {{remote_cluster}}"),
            ("Links that stand", "short", f"sum by (remote_cluster) (pulsar_replication_connected_count{{{OF_TOPICS}}})", "to {{remote_cluster}}"),
        ),
    ),
    (
        "Brokers",
        (
            ("Hits of the entry cache", "ops", f"sum by (instance) (pulsar_ml_cache_hits_rate{{{HERE}}})", "{{instance}}"),
            ("Misses of the entry cache", "ops", f"sum by (instance) (pulsar_ml_cache_misses_rate{{{HERE}}})", "{{instance}}"),
            ("Entry cache", "bytes", f"sum by (instance) (pulsar_ml_cache_used_size{{{HERE}}})", "{{instance}}"),
            (
                "Until a publish is durable, the 99th percentile",
                "ms",
                f'max by (instance) (pulsar_broker_publish_latency{{{HERE}, quantile="0.99"}})',
                "{{instance}}",
            ),
            (
                "Entries that took more than 200 ms",
                "ops",
                f"sum by (namespace) (rate(pulsar_storage_write_latency_le_1000{{{OF_TOPICS}}}[1m])"
                f" + rate(pulsar_storage_write_latency_le_overflow{{{OF_TOPICS}}}[1m]))",
                "{{namespace}}",
            ),
            ("Topics loaded", "short", f"sum by (instance) (pulsar_broker_topics_count{{{HERE}}})", "{{instance}}"),
            ("CPU", "percentunit", "rate(process_cpu_seconds_total[1m])", "{{instance}}"),
            ("Memory", "bytes", "process_resident_memory_bytes", "{{instance}}"),
        ),
    ),
    (
        "Bookies",
        (
            ("Ledgers", "short", "bookie_ledgers_count", "{{instance}}"),
            ("Entry logs", "bytes", "bookie_entry_log_bytes", "{{instance}}"),
            ("Write cache", "bytes", "bookie_write_cache_size", "{{instance}}"),
            ("Bad blocks found by the scrub", "short", "bookie_scrub_bad_blocks", "{{instance}}"),
        ),
    ),
)


def query(text: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(text).legend_format(legend).datasource(SOURCE)


def make() -> str:
    """The dashboard's JSON."""
    region = dashboard.QueryVariable("region").label("Region").query("label_values(pulsar_broker_topics_count, cluster)")
    namespace = dashboard.QueryVariable("namespace").label("Namespace").query(f"label_values(pulsar_rate_in{{{HERE}}}, namespace)")
    board = (
        dashboard.Dashboard("Heliograph: a region")
        .uid("heliograph-region")
        .tags(["heliograph"])
        .description("Traffic, backlogs, links, brokers, and bookies. Scrape /metrics of each broker's admin port and each bookie's HTTP port.")
        .refresh("15s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )
    for variable in (region, namespace):
        board.with_variable(variable.datasource(SOURCE).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True).all_value(".*"))
    for title, unit, text, legend in STATS:
        board.with_panel(stat.Panel().title(title).unit(unit).height(4).span(4).datasource(SOURCE).with_target(query(text, legend)))
    for row, panels in ROWS:
        board.with_row(dashboard.Row(row))
        for title, unit, text, legend in panels:
            board.with_panel(timeseries.Panel().title(title).unit(unit).height(8).span(12).min(0).datasource(SOURCE).with_target(query(text, legend)))
    return JSONEncoder(sort_keys=True, indent=1).encode(board.build()) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_text(make())
