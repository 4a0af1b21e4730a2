"""Configs: what Kafka's clients set for topics and see of brokers.

Is: the names that are known, their defaults, each topic's own values, and the policies that follow from them. Isn't:
what they do (`partition_log`, `produce`).
Invariants: only known names with values that make sense are stored; what is set for a topic holds in all its regions,
and goes with it. A value is a property `kafka.NAME` of the topic; retention and compaction are the topic's policies
too, and where somebody has set those since, they are the truth.
Source: docs/protocols/kafka.md, "Administration".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from heliograph.model.configuration.configuration_records import TopicPolicies
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.faces.kafka.metadata_wait import until

if TYPE_CHECKING:
    from global_config.admin import ConfigAdmin
    from region_node.topics.serving.topic_service import TopicService

PROPERTY = "kafka."
COMPACT = "compact"
_NONE: dict[str, str] = {}
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
_CHOICES = {
    "cleanup.policy": ("delete", "compact", "compact,delete", "delete,compact"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "compression.type": ("producer",),
    "unclean.leader.election.enable": ("false",),
}
_LOWEST = {
    "delete.retention.ms": 0,
    "max.message.bytes": 0,
    "min.insync.replicas": 1,
    "retention.bytes": -1,
    "retention.ms": -1,
    "segment.bytes": 14,
}
LISTS = ("cleanup.policy",)
_KEPT = (
    *("segment.ms", "segment.index.bytes", "segment.jitter.ms", "index.interval.bytes", "preallocate"),
    *("flush.messages", "flush.ms", "file.delete.delay.ms", "min.cleanable.dirty.ratio"),
    *("min.compaction.lag.ms", "max.compaction.lag.ms"),
)
"""Names that are taken and shown with any value, and mean nothing here: they tune segments of Kafka's own."""


class Configs:
    """`of`: the values set for a topic, by Kafka's clients, or by others as policies that mean the same."""

    def __init__(self, topics: TopicService, config: ConfigAdmin, settings: KafkaSettings) -> None:
        self._view, self._here, self._config, self._settings = topics.view, topics.policies, config, settings
        self._known: dict[str, tuple[TopicPolicies | None, TopicPolicies, dict[str, str]]] = {}

    def of(self, topic: str) -> dict[str, str]:
        """topic: full name, without a partition."""
        everywhere, here = self._view.topic_policies(topic), self._here.topic(topic)
        if everywhere is None and not here.policies:
            self._known.pop(topic, None)
            return _NONE
        known = self._known.get(topic)
        if known is None or known[0] is not everywhere or known[1] is not here:
            known = self._known[topic] = everywhere, here, self._values(everywhere or TopicPolicies(), here)
        return known[2]

    def _values(self, everywhere: TopicPolicies, here: TopicPolicies) -> dict[str, str]:
        rows = {
            name.removeprefix(PROPERTY): value
            for name, value in everywhere.properties.items()
            if name.startswith(PROPERTY)
        }
        kept = here.policies.get("retention", everywhere.policies.get("retention"))
        if kept is not None:
            said = {**self.defaults(), **rows}
            as_policy = self._retention(said)
            ms_name = "delete.retention.ms" if only_compacts(said) else "retention.ms"
            minutes, size_mb = kept["retentionTimeInMinutes"], kept["retentionSizeInMB"]
            if minutes != as_policy["retentionTimeInMinutes"]:  # somebody has set the policy
                rows[ms_name] = str(-1 if minutes < 0 else minutes * 60_000)
            if size_mb != as_policy["retentionSizeInMB"]:
                rows["retention.bytes"] = str(-1 if size_mb < 0 else size_mb << 20)
        return rows

    @staticmethod
    def _retention(values: dict[str, str]) -> dict[str, int]:
        """The policy: how long the log keeps what nobody waits for, in every region."""
        if only_compacts(values):
            return {"retentionTimeInMinutes": -(-int(values["delete.retention.ms"]) // 60_000), "retentionSizeInMB": -1}
        ms, size = int(values["retention.ms"]), int(values["retention.bytes"])
        return {
            "retentionTimeInMinutes": -1 if ms < 0 else -(-ms // 60_000),
            "retentionSizeInMB": -1 if size < 0 else -(-size >> 20),
        }

    def compacts(self, topic: str) -> bool:
        return COMPACT in self.of(topic).get("cleanup.policy", "")

    def number(self, topic: str, name: str) -> int:
        return int(self.of(topic).get(name) or self.defaults()[name])

    def append_time(self, topic: str) -> bool:
        return self.of(topic).get("message.timestamp.type") == "LogAppendTime"

    def defaults(self) -> dict[str, str]:
        own = self._settings
        return {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "delete.retention.ms": "86400000",
            "max.message.bytes": str(own.message_bytes_max),
            "message.timestamp.type": "CreateTime",
            "min.insync.replicas": "1",
            "retention.bytes": str(own.retention_bytes),
            "retention.ms": str(own.retention_ms),
            "unclean.leader.election.enable": "false",
        }

    async def put(self, topic: str, values: dict[str, str]) -> None:
        """The topic's own values, all of them, and the policies that follow from them, in one write; returns once this
        broker knows of it.

        Raises Refused, and what the configuration raises.
        """
        for name, value in values.items():
            check(name, value)
        _, after = await self._config.change_topic_policies(topic, lambda before: self._changed(before, values))
        await until(lambda: (self._view.topic_policies(topic) or TopicPolicies()) == after, self._view.on_change)
        if "retention" in self._here.topic(topic).policies:  # what was set for this region alone would still hold here
            await self._here.change_topic(topic, _without_retention)

    def _changed(self, before: TopicPolicies, values: dict[str, str]) -> TopicPolicies:
        said = {**self.defaults(), **values}
        policies = {**before.policies, "retention": self._retention(said)}
        if COMPACT in said["cleanup.policy"]:
            policies["compactionThreshold"] = int(values.get("segment.bytes") or self._settings.compaction_bytes)
        elif COMPACT in before.properties.get(f"{PROPERTY}cleanup.policy", ""):
            policies.pop("compactionThreshold", None)
        others = {name: value for name, value in before.properties.items() if not name.startswith(PROPERTY)}
        return replace(
            before,
            policies=policies,
            properties=others | {f"{PROPERTY}{name}": value for name, value in values.items()},
        )

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


def _without_retention(before: TopicPolicies) -> TopicPolicies:
    return replace(before, policies={name: value for name, value in before.policies.items() if name != "retention"})


def only_compacts(values: Mapping[str, str]) -> bool:
    return values["cleanup.policy"] == COMPACT


def check(name: str, value: str | None) -> None:
    """Raises Refused (INVALID_CONFIG) for a name that is not known, or a value that is not allowed for it."""
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
