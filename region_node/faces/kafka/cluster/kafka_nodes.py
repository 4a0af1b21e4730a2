"""Kafka's names and numbers of brokers: what a broker of this instance is called by Kafka's clients.

Is: the number of a broker, which no other broker of any region has, and how a record says it with its address. Isn't:
who is there (`kafka_cluster`, `leading_regions`).
Invariants: a broker's number never changes and is never given to another; it is one of an int32.
Source: docs/protocols/kafka.md, "Topics and brokers".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from heliograph.kv.metadata_store import ABSENT, MetadataStore, rows_under
from heliograph.model.errors import VersionConflict

NODES = "/kafka/nodes/"
"""{number:010} -> the broker of that number, counted in its region."""
LISTENER, TLS_LISTENER = "kafka", "kafka-tls"
A_REGION = 100_000
"""So many numbers each region has; those of the instance's first region begin at 0."""
REGIONS_MAX = (1 << 31) // A_REGION
"""So many regions have numbers of their own; those of a later one are another one's too."""


@dataclass(frozen=True, slots=True)
class KafkaNode:
    number: int
    host: str
    port: int


def node_url(number: int, host: str, port: int) -> str:
    """How a broker's record says where its Kafka listener is."""
    return f"kafka://{number}@{host}:{port}"


def node_of(listeners: Mapping[str, str], tls: bool) -> KafkaNode | None:
    """None where a broker with these has no such listener. Raises ValueError for what is no address."""
    url = listeners.get(TLS_LISTENER if tls else LISTENER)
    if not url:
        return None
    parts = urlsplit(url)
    return KafkaNode(int(parts.username or 0), parts.hostname or "", parts.port or 0)


def number_in_instance(region: int, number: int) -> int:
    """region: the number of the region, 1 or more. number: the broker's in its region."""
    return (region - 1) % REGIONS_MAX * A_REGION + number % A_REGION


async def own_number(meta: MetadataStore, broker: str) -> int:
    """The number of this broker among those of its region, given to it once and for all."""
    while True:
        rows = await rows_under(meta, NODES)
        taken = {int(key.rpartition("/")[2]): value.decode() for key, value, _ in rows}
        for number, name in taken.items():
            if name == broker:
                return number
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        try:
            await meta.put(f"{NODES}{number:010d}", broker.encode(), expected=ABSENT)
        except VersionConflict:
            continue
        return number
