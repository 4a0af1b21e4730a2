"""Configs: what Kafka's clients set for topics and see of brokers.

Is: the names that are known, their defaults, and each topic's own values, which all brokers of the region watch. Isn't: what they do (`log`, `produce`).
Invariants: only known names with values that make sense are stored; what is set for a topic goes with it.
Source: docs/protocols/kafka.md, "Settings of topics".

    /kafka/configs/{topic's full name}  ->  [1, {name: value}]
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, unquote

import msgpack

from heliograph.model.errors import CorruptData
from heliograph.raft.store import MetadataStore
from region_node.kafka.errors import Code, Refused
from region_node.kafka.settings import KafkaSettings

CONFIGS = "/kafka/configs/"
FORMAT = 1
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
_CHOICES = {
    "cleanup.policy": ("delete",),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "compression.type": ("producer",),
    "unclean.leader.election.enable": ("false",),
}
_LOWEST = {"retention.ms": -1, "retention.bytes": -1, "max.message.bytes": 0, "min.insync.replicas": 1}
_KEPT = (
    *("segment.bytes", "segment.ms", "segment.index.bytes", "segment.jitter.ms", "index.interval.bytes", "preallocate"),
    *("flush.messages", "flush.ms", "delete.retention.ms", "file.delete.delay.ms", "min.cleanable.dirty.ratio"),
)
"""Of Kafka's own segments: taken, shown, and without a meaning here."""


class Configs:
    """`of`: the values set for a topic."""

    def __init__(self, meta: MetadataStore, settings: KafkaSettings) -> None:
        self._meta, self._settings = meta, settings
        self._rows: dict[str, dict[str, str]] = {}
        self._stop: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._stop = self._meta.watch(CONFIGS, self._on_change)
        await self._meta.synced(CONFIGS)

    def close(self) -> None:
        self._stop()

    def _on_change(self, key: str, blob: bytes | None, version: int) -> None:
        topic = unquote(key.removeprefix(CONFIGS))
        if blob is None:
            self._rows.pop(topic, None)
        else:
            self._rows[topic] = _decode(blob)

    def of(self, topic: str) -> dict[str, str]:
        """topic: full name, without a partition."""
        return self._rows.get(topic, {})

    def number(self, topic: str, name: str) -> int:
        return int(self.of(topic).get(name) or self.defaults()[name])

    def append_time(self, topic: str) -> bool:
        return self.of(topic).get("message.timestamp.type") == "LogAppendTime"

    def defaults(self) -> dict[str, str]:
        own = self._settings
        return {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "max.message.bytes": str(own.message_bytes_max),
            "message.timestamp.type": "CreateTime",
            "min.insync.replicas": "1",
            "retention.bytes": str(own.retention_bytes),
            "retention.ms": str(own.retention_ms),
            "unclean.leader.election.enable": "false",
        }

    async def put(self, topic: str, values: dict[str, str]) -> None:
        """The topic's own values, all of them. Raises Refused, and what the metadata raises."""
        for name, value in values.items():
            check(name, value)
        key = CONFIGS + quote(topic, safe="")
        if values:
            packed: bytes = msgpack.packb([FORMAT, values])
            await self._meta.put(key, packed)
            self._rows[topic] = values
        else:
            await self._meta.delete(key)
            self._rows.pop(topic, None)

    def broker(self, number: int) -> dict[str, str]:
        """What a broker shows of itself."""
        own = self._settings
        return {
            "broker.id": str(number),
            "auto.create.topics.enable": "true",
            "connections.max.idle.ms": str(int(own.idle_s * 1000)),
            "default.replication.factor": "1",
            "group.initial.rebalance.delay.ms": str(own.rebalance_delay_ms),
            "group.max.session.timeout.ms": str(own.session_timeout_max_ms),
            "group.min.session.timeout.ms": str(own.session_timeout_min_ms),
            "log.retention.bytes": str(own.retention_bytes),
            "log.retention.ms": str(own.retention_ms),
            "message.max.bytes": str(own.message_bytes_max),
            "num.partitions": str(own.num_partitions),
            "offsets.retention.minutes": str(int(own.offsets_retention_s // 60)),
        }


def check(name: str, value: str | None) -> None:
    """Raises Refused."""
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise Refused(Code.INVALID_CONFIG, f"{name} can be {' or '.join(_CHOICES[name])} here, not {value}")
    elif name in _LOWEST:
        try:
            right = int(value or "") >= _LOWEST[name]
        except ValueError:
            right = False
        if not right:
            raise Refused(Code.INVALID_CONFIG, f"{name} must be a whole number, at least {_LOWEST[name]}, not {value}")
    elif name not in _KEPT:
        raise Refused(Code.INVALID_CONFIG, f"Unknown topic config name: {name}")


def kind_of(value: str | None) -> int:
    """Kafka's number for the type of a value, as far as it can be seen."""
    if value in ("true", "false"):
        return BOOLEAN
    return LONG if value is not None and value.lstrip("-").isdigit() else STRING


def _decode(blob: bytes) -> dict[str, str]:
    try:
        number, values = msgpack.unpackb(blob)
        if number != FORMAT:
            raise CorruptData(f"settings of a topic: format {number}; this version reads {FORMAT}")
        return dict(values)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"settings of a topic: {error}") from error
