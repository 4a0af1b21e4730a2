"""What is set of a broker arrives at its listeners, links, and topics; each value is another than the default."""

from __future__ import annotations

from heliograph.runtime.process_usage import open_files_max
from region_node.compaction.settings import CompactorSettings
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.process.broker_limits import of_admin, of_kafka, of_links, of_pulsar, of_topics
from region_node.process.settings import BrokerSettings, ProcessSettings
from region_node.security.settings import SecuritySettings
from region_node.topics.serving.topic_service import TopicSettings
from replicator.audit.audit_settings import AuditSettings
from replicator.bandwidth.compression_settings import CompressionSettings
from replicator.manager.link_manager import LinkSettings
from storage.managed_ledger.cache.cache_settings import Eviction


def process(broker: BrokerSettings | None = None, **security: object) -> ProcessSettings:
    own = SecuritySettings(**security)  # type: ignore[arg-type]
    return ProcessSettings(region="us", node_id="b", broker=broker or BrokerSettings(), security=own)


def test_what_pulsars_listeners_are_told() -> None:
    own = BrokerSettings(message_bytes_max=1 << 20, broker_entry_metadata=True, connections_max=7)
    found = of_pulsar(process(own, connections_per_address=3, proxy_protocol=True))
    assert (found.message_bytes_max, found.broker_entry_metadata, found.connections_max) == (1 << 20, True, 7)
    assert (found.connections_per_address, found.proxy_protocol) == (3, True)
    assert of_pulsar(process()).connections_max == max(1000, open_files_max() - 1000)


def test_kafkas_listener_counts_by_address_as_pulsars_does_where_nothing_else_is_set() -> None:
    for own, found in ((0, 3), (5, 5)):
        kafka = KafkaSettings(connections_per_address=own)
        given = process(BrokerSettings(kafka=kafka), connections_per_address=3)
        assert of_kafka(given).connections_per_address == found


def test_what_the_admin_listeners_are_told() -> None:
    own = BrokerSettings(admin_connections_max=5, admin_connections_per_address=4, admin_keep_alive_s=90.0)
    found = of_admin(own)
    assert (found.connections_max, found.connections_per_address, found.keep_alive_s) == (5, 4, 90.0)


def test_what_links_are_told() -> None:
    own = BrokerSettings(
        audit=AuditSettings(period_s=1.0),
        link_compression=CompressionSettings(mode="none"),
        link_budget={"eu": 1e6},
        link_budget_shared=True,
        link_drain_floor=1e5,
        link_left_grace_s=60.0,
    )
    found = of_links(LinkSettings(syncs_max=3), own)
    assert (found.audit.period_s, found.compression.mode, found.budget) == (1.0, "none", {"eu": 1e6})
    assert (found.budget_shared, found.drain_floor_bytes_per_s, found.left_grace_s) == (True, 1e5, 60.0)
    assert found.syncs_max == 3, "what no operator sets stays"


def test_what_topics_are_told() -> None:
    own = BrokerSettings(
        batch_index_acks=False,
        compaction=CompactorSettings(retain_null_key=True),
        topic_loads_max=2,
    )
    found = of_topics(TopicSettings(), own)
    assert (found.batch_index_acks, found.loads_max) == (False, 2)
    assert found.compaction.retain_null_key


def test_what_the_entry_cache_is_told() -> None:
    own = BrokerSettings(cache_eviction="read", cache_backlogged_entries=9, cache_time_ms=8).entry_cache()
    assert (own.eviction, own.backlogged_entries, own.time_ms) == (Eviction.READ, 9, 8)
