"""What a broker's settings say to its parts, whose own settings have other names, or values of two sections.

Is: the way from the settings file to the values that listeners, links, and topics are made with. Isn't: a bound, or a
default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from heliograph.runtime.process_usage import open_files_max
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.faces.pulsar.session.pulsar_broker import ListenerSettings
from region_node.process.settings import BrokerSettings, ProcessSettings
from region_node.topics.serving.topic_service import TopicSettings
from replicator.manager.link_manager import LinkSettings

if TYPE_CHECKING:
    from region_node.faces.admin.server.http_connections import HttpLimits

_OTHER_FILES = 1000
"""Files that are left to all else than Pulsar's clients, where nobody says how many of these there may be."""


def of_pulsar(settings: ProcessSettings) -> ListenerSettings:
    own, security = settings.broker, settings.security
    return ListenerSettings(
        broker_entry_metadata=own.broker_entry_metadata,
        message_bytes_max=own.message_bytes_max,
        connections_max=own.connections_max or max(_OTHER_FILES, open_files_max() - _OTHER_FILES),
        connections_per_address=security.connections_per_address,
        proxy_protocol=security.proxy_protocol,
    )


def of_kafka(settings: ProcessSettings) -> KafkaSettings:
    own = settings.broker.kafka
    per_address = own.connections_per_address or settings.security.connections_per_address
    return replace(own, connections_per_address=per_address)


def of_admin(own: BrokerSettings) -> HttpLimits:
    from region_node.faces.admin.server.http_connections import HttpLimits  # HTTP is for who opens it

    return HttpLimits(
        connections_max=own.admin_connections_max,
        connections_per_address=own.admin_connections_per_address,
        keep_alive_s=own.admin_keep_alive_s,
    )


def of_links(tuned: LinkSettings, own: BrokerSettings) -> LinkSettings:
    """tuned: what no operator sets."""
    return replace(
        tuned,
        audit=own.audit,
        compression=own.link_compression,
        budget=own.link_budget,
        budget_shared=own.link_budget_shared,
        drain_floor_bytes_per_s=own.link_drain_floor,
        left_grace_s=own.link_left_grace_s,
    )


def of_topics(tuned: TopicSettings, own: BrokerSettings) -> TopicSettings:
    """tuned: what no operator sets."""
    return replace(
        tuned,
        batch_index_acks=own.batch_index_acks,
        compaction=own.compaction,
        loads_max=own.topic_loads_max,
    )
