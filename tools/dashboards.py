"""Makes the Grafana dashboards in deploy/grafana: regions, links, topics, bookies, Spark, Kafka; for any Grafana from
10 on.

Is: `python tools/dashboards.py [FOLDER]`; panels as rows of the tables below. Isn't: needed to run anything; the files
are in the repository, and a test compares them with what this makes. Every query is one that a Prometheus answers which
scrapes running processes: another test asks it.
Labels: `cluster` is a region; bookies and processes have it from the scraping (deploy/prometheus).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
SOURCE = DataSourceRef("prometheus", "${source}")
HERE = 'cluster=~"$region"'
OF_TOPICS = f'{HERE}, namespace=~"$namespace"'
OF_READERS = f'{OF_TOPICS}, subscription=~"$subscription"'


def named(number: str) -> str:
    """pulsar_NUMBER of topics that have rows of their own; of a broker with rows of namespaces, of those that it names
    as its heaviest.
    """
    return f'pulsar_{number}{{{OF_TOPICS}, topic!=""}} or heliograph_top_topic_{number}{{{OF_TOPICS}}}'


PROCESS, TO, FROM = "{{cluster}} {{instance}}", "{{cluster}} to {{remote_cluster}}", "{{remote_cluster}} to {{cluster}}"
READER, QUERY = "{{topic}} {{subscription}}", "{{cluster}} {{subscription}}"

Panel = tuple[str, str, str, str]
"""Holds (title, unit, query, legend)."""


@dataclass(frozen=True)
class Board:
    """variables: (name, label, query), beside the region's. stats: one number each; rows: (title, panels)."""

    name: str
    title: str
    says: str
    stats: tuple[Panel, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str, str], ...] = field(default=())


NAMESPACE = ("namespace", "Namespace", f"label_values(pulsar_rate_in{{{HERE}}}, namespace)")
SUBSCRIPTION = (
    "subscription",
    "Subscription",
    f"label_values(pulsar_subscription_back_log{{{OF_TOPICS}}}, subscription)",
)

REGIONS = Board(
    "regions",
    "Heliograph: regions",
    "What every region carries, and whether its metadata, brokers, and bookies are well.",
    (
        ("Messages in", "mps", f"sum(pulsar_broker_rate_in{{{HERE}}})", ""),
        ("Messages out", "mps", f"sum(pulsar_broker_rate_out{{{HERE}}})", ""),
        ("Backlog", "short", f"sum(pulsar_broker_msg_backlog{{{HERE}}})", ""),
        ("Oldest unreplicated", "s", f"max(pulsar_replication_delay_in_seconds{{{HERE}}}) or vector(0)", ""),
        ("Bookies that take writes", "short", f"sum(bookie_SERVER_STATUS{{{HERE}}})", ""),
        ("Processes that do not answer", "short", f'count(up{{{HERE}, job=~"heliograph-.*"}} == 0) or vector(0)', ""),
    ),
    (
        (
            "Traffic",
            (
                ("Messages in", "mps", f"sum by (cluster) (pulsar_broker_rate_in{{{HERE}}})", "{{cluster}}"),
                ("Messages out", "mps", f"sum by (cluster) (pulsar_broker_rate_out{{{HERE}}})", "{{cluster}}"),
                ("Bytes in", "Bps", f"sum by (cluster) (pulsar_broker_throughput_in{{{HERE}}})", "{{cluster}}"),
                ("Bytes out", "Bps", f"sum by (cluster) (pulsar_broker_throughput_out{{{HERE}}})", "{{cluster}}"),
                ("Stored", "bytes", f"sum by (cluster) (pulsar_broker_storage_size{{{HERE}}})", "{{cluster}}"),
                (
                    "Messages in by tenant",
                    "mps",
                    f"sum by (tenant) (rate(heliograph_tenant_in_messages_total{{{HERE}}}[$__rate_interval]))",
                    "{{tenant}}",
                ),
            ),
        ),
        (
            "Brokers",
            (
                (
                    "Load, as a share of what a broker can",
                    "percentunit",
                    f"max by (cluster, instance) (heliograph_broker_load{{{HERE}}})",
                    PROCESS,
                ),
                (
                    "Topics loaded",
                    "short",
                    f"sum by (cluster, instance) (pulsar_broker_topics_count{{{HERE}}})",
                    PROCESS,
                ),
                ("Bundles owned", "short", f"sum by (cluster, instance) (heliograph_owned_bundles{{{HERE}}})", PROCESS),
                ("Connections", "short", f"sum by (cluster, instance) (pulsar_active_connections{{{HERE}}})", PROCESS),
                (
                    "Until a publish is durable, the 99th percentile",
                    "ms",
                    f'max by (cluster, instance) (pulsar_broker_publish_latency{{{HERE}, quantile="0.99"}})',
                    PROCESS,
                ),
                (
                    "CPU",
                    "percentunit",
                    f"sum by (cluster, instance) (rate(process_cpu_seconds_total{{{HERE}}}[$__rate_interval]))",
                    PROCESS,
                ),
                ("Memory", "bytes", f"sum by (cluster, instance) (process_resident_memory_bytes{{{HERE}}})", PROCESS),
                ("Open files", "short", f"sum by (cluster, instance) (process_open_fds{{{HERE}}})", PROCESS),
            ),
        ),
        (
            "Metadata and configuration",
            (
                (
                    "Somebody leads",
                    "short",
                    f"max by (cluster, group) (heliograph_metadata_leader{{{HERE}}})",
                    "{{cluster}} {{group}}",
                ),
                (
                    "Voters",
                    "short",
                    f"max by (cluster, group) (heliograph_metadata_voters{{{HERE}}})",
                    "{{cluster}} {{group}}",
                ),
                (
                    "A write, the 99th percentile",
                    "s",
                    f'max by (cluster, group) (heliograph_metadata_write_seconds{{{HERE}, quantile="0.99"}})',
                    "{{cluster}} {{group}}",
                ),
                (
                    "Entries that a member lacks",
                    "short",
                    f"max by (cluster, group, member) (heliograph_metadata_member_lag_entries{{{HERE}}})",
                    "{{cluster}} {{group}} {{member}}",
                ),
                (
                    "How old a copy of the configuration may be",
                    "s",
                    f"max by (cluster) (heliograph_config_stale_seconds{{{HERE}}})",
                    "{{cluster}}",
                ),
            ),
        ),
    ),
)
LINKS = Board(
    "links",
    "Heliograph: links and what a lost region would cost",
    "Replication between regions: what is not there yet (the recovery point), since when, and why.",
    (
        ("Seconds at risk", "s", f"max(pulsar_replication_delay_in_seconds{{{HERE}}}) or vector(0)", ""),
        ("Messages at risk", "short", f"sum(pulsar_replication_backlog{{{HERE}}}) or vector(0)", ""),
        ("Bytes at risk", "bytes", f"sum(heliograph_replication_backlog_bytes{{{HERE}}}) or vector(0)", ""),
        ("Links that are down", "short", f"count(pulsar_replication_connected_count{{{HERE}}} == 0) or vector(0)", ""),
        (
            "Links that wait for a decision",
            "short",
            f"sum(heliograph_replication_parked_links{{{HERE}}}) or vector(0)",
            "",
        ),
    ),
    (
        (
            "At risk",
            (
                (
                    "Age of the oldest message that the remote has not confirmed",
                    "s",
                    f"max by (cluster, remote_cluster) (pulsar_replication_delay_in_seconds{{{OF_TOPICS}}})",
                    TO,
                ),
                (
                    "Messages",
                    "short",
                    f"sum by (cluster, remote_cluster) (pulsar_replication_backlog{{{OF_TOPICS}}})",
                    TO,
                ),
                (
                    "Bytes",
                    "bytes",
                    f"sum by (cluster, remote_cluster) (heliograph_replication_backlog_bytes{{{OF_TOPICS}}})",
                    TO,
                ),
                (
                    "Topics with the oldest",
                    "s",
                    "topk(10, max by (cluster, remote_cluster, topic) "
                    f"(pulsar_replication_delay_in_seconds{{{OF_TOPICS}}}))",
                    "{{topic}} {{cluster}} to {{remote_cluster}}",
                ),
            ),
        ),
        (
            "Links",
            (
                (
                    "Share of topics whose link stands",
                    "percentunit",
                    f"avg by (cluster, remote_cluster) (pulsar_replication_connected_count{{{OF_TOPICS}}})",
                    TO,
                ),
                (
                    "Confirmed by the remote",
                    "mps",
                    f"sum by (cluster, remote_cluster) (pulsar_replication_rate_out{{{OF_TOPICS}}})",
                    TO,
                ),
                (
                    "From published there to durable here, the 99th percentile",
                    "s",
                    "histogram_quantile(0.99, sum by (cluster, remote_cluster, le) "
                    f"(rate(heliograph_replication_latency_seconds_bucket{{{HERE}}}[$__rate_interval])))",
                    FROM,
                ),
                (
                    "Round trip",
                    "s",
                    f"max by (cluster, remote_cluster) (heliograph_replication_round_trip_seconds{{{HERE}}})",
                    FROM,
                ),
                (
                    "Clock offset",
                    "s",
                    f"max by (cluster, remote_cluster) (heliograph_replication_clock_offset_seconds{{{HERE}}})",
                    FROM,
                ),
                (
                    "On the wire",
                    "Bps",
                    "sum by (cluster, remote_cluster) "
                    f"(rate(heliograph_replication_wire_bytes_total{{{HERE}}}[$__rate_interval]))",
                    TO,
                ),
                (
                    "Topics whose receipts mean fewer regions than asked",
                    "short",
                    f"sum by (cluster) (heliograph_durability_degraded_topics{{{HERE}}})",
                    "{{cluster}}",
                ),
                (
                    "Entries that an audit found wrong, and left",
                    "short",
                    f"sum by (cluster) (heliograph_audit_left_entries{{{HERE}}})",
                    "{{cluster}}",
                ),
            ),
        ),
    ),
    (NAMESPACE,),
)
TOPICS = Board(
    "topics",
    "Heliograph: topics and subscriptions",
    "Traffic, backlogs, and what consumers do with them.",
    (),
    (
        (
            "Topics",
            (
                ("Messages in, the ten largest", "mps", f"topk(10, sum by (topic) ({named('rate_in')}))", "{{topic}}"),
                (
                    "Messages out, the ten largest",
                    "mps",
                    f"topk(10, sum by (topic) ({named('rate_out')}))",
                    "{{topic}}",
                ),
                (
                    "Backlog, the ten largest",
                    "short",
                    f"topk(10, sum by (topic) ({named('msg_backlog')}))",
                    "{{topic}}",
                ),
                (
                    "Bytes in by namespace",
                    "Bps",
                    f"sum by (namespace) (pulsar_throughput_in{{{OF_TOPICS}}})",
                    "{{namespace}}",
                ),
                (
                    "Stored by namespace",
                    "bytes",
                    f"sum by (namespace) (pulsar_storage_size{{{OF_TOPICS}}})",
                    "{{namespace}}",
                ),
                (
                    "Producers by namespace",
                    "short",
                    f"sum by (namespace) (pulsar_producers_count{{{OF_TOPICS}}})",
                    "{{namespace}}",
                ),
                (
                    "Entries that took more than 200 ms until they were durable",
                    "ops",
                    f"sum by (namespace) (rate(pulsar_storage_write_latency_le_1000{{{OF_TOPICS}}}[$__rate_interval])"
                    f" + rate(pulsar_storage_write_latency_le_overflow{{{OF_TOPICS}}}[$__rate_interval]))",
                    "{{namespace}}",
                ),
            ),
        ),
        (
            "Subscriptions",
            (
                (
                    "Backlog, the ten largest",
                    "short",
                    f"topk(10, sum by (topic, subscription) (pulsar_subscription_back_log{{{OF_READERS}}}))",
                    READER,
                ),
                (
                    "Delivered and not acknowledged, the ten largest",
                    "short",
                    f"topk(10, sum by (topic, subscription) (pulsar_subscription_unacked_messages{{{OF_READERS}}}))",
                    READER,
                ),
                (
                    "Redelivered",
                    "mps",
                    f"topk(10, sum by (topic, subscription) (pulsar_subscription_msg_rate_redeliver{{{OF_READERS}}}))",
                    READER,
                ),
                (
                    "Held, because too much is not acknowledged",
                    "short",
                    f"sum by (topic, subscription) (pulsar_subscription_blocked_on_unacked_messages{{{OF_READERS}}})",
                    READER,
                ),
            ),
        ),
        (
            "Reading",
            (
                (
                    "Hits of the entry cache",
                    "ops",
                    f"sum by (instance) (pulsar_ml_cache_hits_rate{{{HERE}}})",
                    "{{instance}}",
                ),
                (
                    "Misses of the entry cache",
                    "ops",
                    f"sum by (instance) (pulsar_ml_cache_misses_rate{{{HERE}}})",
                    "{{instance}}",
                ),
            ),
        ),
    ),
    (NAMESPACE, SUBSCRIPTION),
)
BOOKIES = Board(
    "bookies",
    "Heliograph: bookies",
    "Disks, garbage collection, and the scrub.",
    (
        ("Take writes", "short", f"sum(bookie_SERVER_STATUS{{{HERE}}})", ""),
        ("Directories that failed", "short", f"sum(bookie_dropped_dirs{{{HERE}}})", ""),
        ("Bad blocks that are left", "short", f"sum(bookie_scrub_bad_blocks{{{HERE}}})", ""),
        ("Wait for a person before they collect", "short", f"sum(bookie_gc_refused{{{HERE}}})", ""),
    ),
    (
        (
            "Space",
            (
                ("Entry logs", "bytes", f"bookie_entry_log_bytes{{{HERE}}}", PROCESS),
                (
                    "Of them still wanted",
                    "percentunit",
                    f"bookie_live_bytes{{{HERE}}} / (bookie_entry_log_bytes{{{HERE}}} > 0) or 0 * "
                    f"bookie_live_bytes{{{HERE}}}",
                    PROCESS,
                ),
                ("Ledgers", "short", f"bookie_ledgers_count{{{HERE}}}", PROCESS),
                ("Directories that take adds", "short", f"bookie_ledger_writable_dirs{{{HERE}}}", PROCESS),
                ("Write cache", "bytes", f"bookie_write_cache_size{{{HERE}}}", PROCESS),
                ("Journal segments", "short", f"bookie_journal_segments{{{HERE}}}", PROCESS),
            ),
        ),
        (
            "Care",
            (
                (
                    "Given back by compaction",
                    "Bps",
                    f"rate(bookie_compaction_reclaimed_bytes_total{{{HERE}}}[$__rate_interval])",
                    PROCESS,
                ),
                (
                    "Ledgers deleted",
                    "ops",
                    f"rate(bookie_gc_deleted_ledgers_total{{{HERE}}}[$__rate_interval])",
                    PROCESS,
                ),
                (
                    "Read by the scrub",
                    "Bps",
                    f"rate(bookie_scrub_checked_bytes_total{{{HERE}}}[$__rate_interval])",
                    PROCESS,
                ),
                (
                    "Blocks brought from other copies",
                    "ops",
                    f"rate(bookie_refilled_blocks_total{{{HERE}}}[$__rate_interval])",
                    PROCESS,
                ),
            ),
        ),
    ),
)
SPARK = Board(
    "spark",
    "Heliograph: Spark jobs",
    "How far streaming queries are behind: each has a subscription (option `subscription`) that follows one batch "
    "behind. Choose yours above.",
    (
        ("Messages behind", "short", f"sum(pulsar_subscription_back_log{{{OF_READERS}}})", ""),
        ("Topics behind", "short", f"count(pulsar_subscription_back_log{{{OF_READERS}}} > 0) or vector(0)", ""),
    ),
    (
        (
            "Lag",
            (
                (
                    "Messages behind, by query",
                    "short",
                    f"sum by (cluster, subscription) (pulsar_subscription_back_log{{{OF_READERS}}})",
                    QUERY,
                ),
                (
                    "Messages behind, the ten largest topics",
                    "short",
                    f"topk(10, sum by (cluster, topic, subscription) (pulsar_subscription_back_log{{{OF_READERS}}}))",
                    "{{cluster}} {{topic}} {{subscription}}",
                ),
                (
                    "Falls behind (above 0) or catches up",
                    "mps",
                    f"sum by (cluster, subscription) (deriv(pulsar_subscription_back_log{{{OF_READERS}}}[5m]))",
                    QUERY,
                ),
                (
                    "Seconds since the position last moved",
                    "s",
                    "time() - max by (cluster, subscription) "
                    f"(pulsar_subscription_last_mark_delete_advanced_timestamp{{{OF_READERS}}}) / 1000",
                    QUERY,
                ),
            ),
        ),
        (
            "What they read",
            (
                (
                    "Messages in, by namespace",
                    "mps",
                    f"sum by (cluster, namespace) (pulsar_rate_in{{{OF_TOPICS}}})",
                    "{{cluster}} {{namespace}}",
                ),
                (
                    "Held for them, the longest backlog",
                    "bytes",
                    f"topk(10, sum by (cluster, topic) ({named('storage_backlog_size')}))",
                    "{{cluster}} {{topic}}",
                ),
            ),
        ),
    ),
    (NAMESPACE, SUBSCRIPTION),
)
KAFKA = Board(
    "kafka",
    "Heliograph: Kafka's clients",
    "What comes and goes by Kafka's protocol. Empty where brokers have no Kafka port.",
    (
        ("Messages in", "mps", f"sum(rate(heliograph_kafka_messages_in_total{{{HERE}}}[$__rate_interval]))", ""),
        ("Messages out", "mps", f"sum(rate(heliograph_kafka_messages_out_total{{{HERE}}}[$__rate_interval]))", ""),
        ("Connections", "short", f"sum(heliograph_kafka_connections{{{HERE}}})", ""),
        ("Groups", "short", f"sum(heliograph_kafka_groups{{{HERE}}})", ""),
    ),
    (
        (
            "Traffic",
            (
                (
                    "Bytes in",
                    "Bps",
                    f"sum by (cluster, instance) (rate(heliograph_kafka_bytes_in_total{{{HERE}}}[$__rate_interval]))",
                    PROCESS,
                ),
                (
                    "Bytes out",
                    "Bps",
                    f"sum by (cluster, instance) (rate(heliograph_kafka_bytes_out_total{{{HERE}}}[$__rate_interval]))",
                    PROCESS,
                ),
                (
                    "Records converted on the way in",
                    "ops",
                    f"sum by (cluster) (rate(heliograph_kafka_converted_in_total{{{HERE}}}[$__rate_interval]))",
                    "{{cluster}}",
                ),
                (
                    "Records converted on the way out",
                    "ops",
                    f"sum by (cluster) (rate(heliograph_kafka_converted_out_total{{{HERE}}}[$__rate_interval]))",
                    "{{cluster}}",
                ),
            ),
        ),
        (
            "Groups",
            (
                (
                    "Lag of groups whose positions are replicated",
                    "short",
                    f"sum by (cluster, subscription) (pulsar_subscription_back_log{{{HERE}, "
                    f'subscription=~"kafka\\\\..*"}}) or vector(0)',
                    QUERY,
                ),
                (
                    "Offsets committed",
                    "ops",
                    f"sum by (cluster) (rate(heliograph_kafka_offset_commits_total{{{HERE}}}[$__rate_interval]))",
                    "{{cluster}}",
                ),
                (
                    "Partitions loaded",
                    "short",
                    f"sum by (cluster, instance) (heliograph_kafka_partitions_loaded{{{HERE}}})",
                    PROCESS,
                ),
                (
                    "Fetch sessions",
                    "short",
                    f"sum by (cluster, instance) (heliograph_kafka_fetch_sessions{{{HERE}}})",
                    PROCESS,
                ),
            ),
        ),
    ),
)
BOARDS = (REGIONS, LINKS, TOPICS, BOOKIES, SPARK, KAFKA)


def queries(board: Board) -> list[str]:
    """All of a board's, with Grafana's variables in them."""
    return [text for _, _, text, _ in (*board.stats, *(panel for _, panels in board.rows for panel in panels))]


def file_of(board: Board, folder: Path = FOLDER) -> Path:
    return folder / f"heliograph-{board.name}.json"


def make(board: Board) -> str:
    """Returns a dashboard as JSON."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"heliograph-{board.name}")
        .tags(["heliograph"])
        .description(board.says)
        .refresh("15s")
        .time("now-1h", "now")
        .link(
            dashboard.DashboardLink("Heliograph")
            .tags(["heliograph"])
            .as_dropdown(True)
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )
    for name, label, text in (
        ("region", "Region", "label_values(pulsar_broker_topics_count, cluster)"),
        *board.variables,
    ):
        variable = dashboard.QueryVariable(name).label(label).query(text)
        made.with_variable(
            variable.datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    for title, unit, text, legend in board.stats:
        made.with_panel(
            stat.Panel()
            .title(title)
            .unit(unit)
            .height(4)
            .span(24 // len(board.stats))
            .datasource(SOURCE)
            .with_target(_query(text, legend))
        )
    for row, panels in board.rows:
        made.with_row(dashboard.Row(row))
        for title, unit, text, legend in panels:
            made.with_panel(
                timeseries.Panel()
                .title(title)
                .unit(unit)
                .height(8)
                .span(12)
                .datasource(SOURCE)
                .with_target(_query(text, legend))
            )
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _query(text: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(text).legend_format(legend).datasource(SOURCE)


if __name__ == "__main__":
    for each in BOARDS:
        file_of(each, Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER).write_text(make(each))
