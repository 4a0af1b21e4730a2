"""Which brokers of a region speak Kafka's protocol, as the others' clients are told of them.

Is: the value and its key. Isn't: when it is written (`region_node.dr.leadership.write_leases`), or what clients are
told (`region_node.faces.kafka.cluster.leading_regions`).
Key: /kafka-brokers/{region}/{broker}.{lease} (KafkaBrokerInfo, under the broker's write lease: it goes with that).
Source: docs/protocols/kafka.md, "Active-passive namespaces".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.configuration.configuration_records import _Value

KAFKA_BROKERS = "/kafka-brokers/"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBrokerInfo(_Value):
    """What one broker tells of itself, as long as its write lease lasts."""

    listeners: dict[str, str] = field(default_factory=dict)
    """Name of a listener -> `kafka://NUMBER@HOST:PORT`; the number is the broker's in its region."""
    owns: dict[str, list[list[int]]] = field(default_factory=dict)
    """Namespace -> [low, high) of the hashes of topics that it owns there; not all have to be named."""


def kafka_broker(region: str, broker: str, lease: int) -> str:
    return f"{KAFKA_BROKERS}{region}/{broker}.{lease}"


def region_of(key: str) -> str:
    """The region of a key that `kafka_broker` made."""
    return key.removeprefix(KAFKA_BROKERS).partition("/")[0]
