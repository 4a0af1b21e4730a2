"""Which brokers of a region speak Kafka's protocol, as the others' clients are told of them.

Is: the value and its key. Isn't: when it is written (`region_node.dr.leadership.write_leases`), or what clients are
told (`region_node.faces.kafka.cluster.leading_regions`).
Key: /kafka-brokers/{region}/{broker}.{lease} (KafkaBrokerInfo, under the broker's write lease: it goes with that).
Bounds: RANGES_MAX, HOST_MAX; another region has written it, so `decode` checks all that is read of it.
Source: docs/protocols/kafka.md, "Active-passive namespaces".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.errors import CorruptData

KAFKA_BROKERS = "/kafka-brokers/"
RANGES_MAX = 1 << 15
"""Ranges of all namespaces in one value; a broker tells of some 10,000 at most."""
HOST_MAX = 255
"""Characters of a listener's host, as of any name in DNS; earlier versions of Metadata carry 32,767."""
LISTENERS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBrokerInfo(_Value):
    """What one broker tells of itself, as long as its write lease lasts."""

    listeners: dict[str, str] = field(default_factory=dict)
    """Name of a listener -> `kafka://NUMBER@HOST:PORT`; the number is the broker's in its region."""
    namespace: str = ""
    """In which topics lie there whose names give none."""
    owns: dict[str, list[list[int]]] = field(default_factory=dict)
    """Namespace -> [low, high) of the hashes of topics that it owns there; not all have to be named."""

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Raises CorruptData, also for what no broker tells."""
        info = super(KafkaBrokerInfo, cls).decode(blob)  # slots make the class anew
        if not isinstance(info.listeners, dict) or len(info.listeners) > LISTENERS_MAX:
            raise CorruptData(f"KafkaBrokerInfo: listeners are an object of at most {LISTENERS_MAX} addresses")
        for url in info.listeners.values():
            _check_address(url)
        if not isinstance(info.owns, dict) or not all(isinstance(rows, list) for rows in info.owns.values()):
            raise CorruptData("KafkaBrokerInfo: owns is an object of lists of ranges")
        if sum(map(len, info.owns.values())) > RANGES_MAX:
            raise CorruptData(f"KafkaBrokerInfo: more than {RANGES_MAX} ranges")
        if not all(_is_range(row) for rows in info.owns.values() for row in rows):
            raise CorruptData("KafkaBrokerInfo: a range is [low, high], two whole numbers")
        return info


def _check_address(url: object) -> None:
    """Raises CorruptData for what is not an address of a broker's listener."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        good = parts is not None and int(parts.username or "") >= 0 and bool(parts.port)
    except ValueError:
        good = False
    if not good or parts is None or not 0 < len(parts.hostname or "") <= HOST_MAX:
        raise CorruptData(
            f"KafkaBrokerInfo: an address is kafka://NUMBER@HOST:PORT, its host of at most {HOST_MAX} characters"
        )


def _is_range(row: object) -> bool:
    return isinstance(row, list) and len(row) == 2 and all(type(bound) is int for bound in row)


def kafka_broker(region: str, broker: str, lease: int) -> str:
    return f"{KAFKA_BROKERS}{region}/{broker}.{lease}"


def region_of(key: str) -> str:
    """The region of a key that `kafka_broker` made."""
    return key.removeprefix(KAFKA_BROKERS).partition("/")[0]
