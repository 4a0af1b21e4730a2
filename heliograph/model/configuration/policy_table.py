"""The policies of topics: one table that says what each is called at each level, what it may be, and what holds where
nobody set it.

Is: the table, and inheritance (the topic in this region, the topic in all regions, the namespace, the brokers of the
region, the default).
Isn't: storage, HTTP (`region_node.faces.admin.tenancy.policy_routes` makes its routes from these rows), or what obeys a
policy (`Applied` is what they read).
Invariants: a level holds only what was set there; a backlog quota is inherited by its type, any other policy as a
whole.
Source: Pulsar's Policies and TopicPolicies; docs/protocols/admin.md, "Policies".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.model.configuration import policy_values as v
from heliograph.model.configuration.policy_values import Check
from heliograph.model.configuration.replication_routes import checked_topology
from heliograph.model.errors import NotAllowed
from heliograph.model.ledger_metadata import ANYWHERE, Affinity

POLICIES_BYTES_MAX = 64 << 10
"""All policies of one level, as JSON: every broker keeps them in memory, and reads them anew with each change."""
TOPIC_PROPERTIES_BYTES_MAX = 64 << 10
"""All properties of one topic."""
DELETION_GRACE_S, DELETION_GRACE_S_MAX = 24 * 3600, 366 * 24 * 3600
"""How long what is deleted in all regions can be brought back, where nothing else is said; and at most."""
Level = Mapping[str, Any]
"""Name of a policy -> what is set at one level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row. Paths are the last part of Pulsar's; "" where a level does not have it."""

    name: str
    """In storage, and of our own settings."""
    check: Check
    namespace: str = ""
    topic: str = ""
    field: str = ""
    """In the JSON of a namespace's Policies."""
    put: bool = False
    """Set by PUT at the namespace, else by POST."""
    put_topic: bool = False
    by_region: bool = False
    """Its field in Policies is an object of clusters."""
    broker: str = ""
    """Pulsar's name of the broker's dynamic setting, where it is one value."""
    default: Any = None
    """What holds where no level sets it; None: nothing does."""
    shown: Any = None
    """What a namespace says where it is not set; None: an empty answer."""
    shown_topic: Any = None
    """The same of a topic."""
    by_super: bool = False
    """Only a super user sets it: it is about what tenants share."""
    empty: int = 200
    """Status of an empty answer, as Pulsar has it: of a topic, or of a namespace where topics do not have it."""


def _row(
    name: str,
    check: Check,
    field: str = "",
    default: Any = None,
    *,
    namespace: str | None = None,
    topic: str | None = None,
    **more: Any,
) -> Policy:
    """Called the same at both levels, unless said otherwise."""
    return Policy(
        name=name,
        check=check,
        field=field,
        default=default,
        namespace=name if namespace is None else namespace,
        topic=name if topic is None else topic,
        **more,
    )


def _limit(
    name: str, namespace: str, topic: str, field: str = "", default: int = 0, wrong: str = "", **more: Any
) -> Policy:
    """A number; 0 is no limit."""
    return Policy(
        name=name,
        check=v.whole(wrong=wrong),
        namespace=namespace,
        topic=topic,
        field=field,
        broker=namespace or topic,
        default=default,
        **more,
    )


_NO_RATE = v.RATE("", {"dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0})


POLICIES: tuple[Policy, ...] = (
    _row("retention", v.RETENTION, "retention_policies", v.RETENTION("", {})),
    _row("messageTTL", v.whole(), "message_ttl_in_seconds", 0, broker="ttlDurationDefaultInSeconds"),
    _row("backlogQuota", v.quotas, "backlog_quota_map", {}, namespace="", topic=""),
    _row("persistence", v.PERSISTENCE, "persistence", v.PERSISTENCE("", {})),
    _row("bookieAffinity", v.AFFINITY, namespace="persistence/bookieAffinity", topic="", by_super=True, empty=204),
    _row("dispatchRate", v.RATE, "topicDispatchRate", _NO_RATE, by_region=True),
    _row("subscriptionDispatchRate", v.RATE, "subscriptionDispatchRate", _NO_RATE, by_region=True),
    _row("dispatchRateOfSubscriptions", v.mapped(v.RATE), default={}, namespace="", topic=""),
    _row("replicatorDispatchRate", v.RATE, "replicatorDispatchRate", _NO_RATE, by_region=True),
    _row("publishRate", v.PUBLISH_RATE, "publishMaxMessageRate", by_region=True, empty=204),
    _row(
        "subscribeRate",
        v.SUBSCRIBE_RATE,
        "clusterSubscribeRate",
        v.SUBSCRIBE_RATE("", {"subscribeThrottlingRatePerConsumer": 0}),
        by_region=True,
    ),
    _limit("maxProducers", "maxProducersPerTopic", "maxProducers", "max_producers_per_topic"),
    _limit("maxConsumers", "maxConsumersPerTopic", "maxConsumers", "max_consumers_per_topic"),
    _limit(
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        empty=204,
    ),
    _limit(
        "maxSubscriptions",
        "maxSubscriptionsPerTopic",
        "maxSubscriptionsPerTopic",
        "max_subscriptions_per_topic",
        empty=204,
    ),
    _limit(
        "maxTopics",
        "maxTopicsPerNamespace",
        "",
        "max_topics_per_namespace",
        wrong="maxTopicsPerNamespace must be 0 or more",
        shown=0,
    ),
    _limit(
        "maxUnackedPerConsumer",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        "max_unacked_messages_per_consumer",
        50_000,
    ),
    _limit(
        "maxUnackedPerSubscription",
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
        200_000,
    ),
    _limit("maxMessageSize", "", "maxMessageSize", empty=204),
    _row("delayedDelivery", v.DELAYED, "delayed_delivery_policies", v.DELAYED("", {})),
    _row(
        "compactionThreshold",
        v.whole(0, v.LONG_MAX),
        "compaction_threshold",
        0,
        put=True,
        broker="brokerServiceCompactionThresholdInBytes",
    ),
    _row(
        "deduplication",
        v.flag,
        "deduplicationEnabled",
        False,
        topic="deduplicationEnabled",
        broker="brokerDeduplicationEnabled",
    ),
    _row("deduplicationSnapshotInterval", v.whole(), "deduplicationSnapshotIntervalSeconds"),
    _row(
        "inactiveTopics",
        v.INACTIVE,
        "inactive_topic_policies",
        v.INACTIVE("", {}),
        namespace="inactiveTopicPolicies",
        topic="inactiveTopicPolicies",
    ),
    _row("autoTopicCreation", v.AUTO_TOPICS, "autoTopicCreationOverride", v.AUTO_TOPICS("", {}), topic=""),
    _row(
        "autoSubscriptionCreation",
        v.AUTO_SUBSCRIPTIONS,
        "autoSubscriptionCreationOverride",
        v.AUTO_SUBSCRIPTIONS("", {}),
        broker="allowAutoSubscriptionCreation",
    ),
    _row(
        "subscriptionExpiration",
        v.whole(wrong="Invalid value for subscription expiration time"),
        "subscription_expiration_time_minutes",
        0,
        namespace="subscriptionExpirationTime",
        topic="",
        broker="subscriptionExpirationTimeMinutes",
    ),
    _row(
        "subscriptionTypes",
        v.SUBSCRIPTION_TYPES,
        "subscription_types_enabled",
        [],
        namespace="subscriptionTypesEnabled",
        topic="subscriptionTypesEnabled",
        shown=[],
        empty=204,
    ),
    _row("encryptionAtRest", v.flag, default=False, empty=204),
    _row("storageFull", v.flag, default=False, namespace="", topic=""),
    _row("encryptionRequired", v.flag, "encryption_required", False, topic="", shown=False),
    _row(
        "schemaCompatibilityStrategy",
        v.SCHEMA_STRATEGY,
        "schema_compatibility_strategy",
        "UNDEFINED",
        put=True,
        put_topic=True,
        shown="UNDEFINED",
    ),
    _row(
        "schemaAutoUpdateCompatibilityStrategy",
        v.SCHEMA_AUTO_UPDATE,
        "schema_auto_update_compatibility_strategy",
        "Full",
        topic="",
        put=True,
        empty=204,
    ),
    _row("schemaValidationEnforced", v.flag, "schema_validation_enforced", False, shown=False, shown_topic=False),
    _row("isAllowAutoUpdateSchema", v.flag, "is_allow_auto_update_schema", True, topic="", shown=True),
    _row("offloadPolicies", v.offload, "offload_policies"),
    _row("entryFilters", v.entry_filters, "entryFilters"),
    _row("dispatcherPauseOnAckStatePersistent", v.flag, "dispatcherPauseOnAckStatePersistentEnabled", shown=False),
    _row(
        "keySharedConsistentHashing",
        v.flag,
        default=False,
        namespace="",
        topic="",
        broker="subscriptionKeySharedUseConsistentHashing",
    ),
    _row(
        "autoSkipNonRecoverableData",
        v.flag,
        default=False,
        namespace="",
        topic="",
        broker="autoSkipNonRecoverableData",
    ),
    _row("subscriptionAuthMode", v.choice("None", "Prefix"), "subscription_auth_mode", "None", topic="", shown="None"),
    _row("antiAffinity", v.text, "antiAffinityGroup", topic="", by_super=True, empty=204),
    _row("resourceGroup", v.text, "resource_group_name", namespace="", topic="", by_super=True),
    _row("properties", v.mapped(v.text), "properties", topic="", put=True, shown={}),
    _row("shadowTopics", v.listed(v.text), namespace="", topic=""),
    _row("replication", v.listed(v.text), namespace=""),
    _row("durability", v.DURABILITY, empty=204),
    _row("replicationStart", v.REPLICATION_START, empty=204),
    _row("replicationPriority", v.whole(1, 64), empty=204),
    _row("replicationTTL", v.whole(), empty=204),
    _row("replicationTopology", checked_topology, empty=204),
    _row("replicationRoutes", v.mapped(v.listed(v.text)), empty=204),
    _row("originProperty", v.flag, default=False, shown=False),
    _row("slo", v.SLO, topic="", empty=204),
    _row("deletionGrace", v.whole(0, DELETION_GRACE_S_MAX), default=DELETION_GRACE_S, topic="", shown=DELETION_GRACE_S),
    _row("replicatedSubscriptions", v.flag, default=False, shown=False),
    _row("oneRegionSubscriptions", v.flag, default=False, shown=False),
)

BY_NAME: dict[str, Policy] = {policy.name: policy for policy in POLICIES}
BY_BROKER: dict[str, Policy] = {policy.broker: policy for policy in POLICIES if policy.broker}


def checked(level: Level, before: Level | None = None) -> dict[str, Any]:
    """Every policy of one level as it is stored. Raises NotAllowed (also above POLICIES_BYTES_MAX, and above the size
    of what there was before: an earlier release stored more, of which some may be taken back).
    """
    unknown = [name for name in level if name not in BY_NAME]
    if unknown:
        raise NotAllowed(f"there is no policy {unknown[0]!r}; there are {', '.join(BY_NAME)}")
    out = {name: BY_NAME[name].check(name, value) for name, value in level.items()}
    quota, kept = out.get("backlogQuota", {}).get("destination_storage"), out.get("retention", {})
    mb, minutes = kept.get("retentionSizeInMB", 0), kept.get("retentionTimeInMinutes", 0)
    if (
        quota is not None
        and mb > 0
        and minutes > 0
        and (quota["limitSize"] >= mb << 20 or quota["limitTime"] >= minutes * 60)
    ):
        raise NotAllowed(
            "the backlog quota must be below the retention in size and time: raise the one, or lower the other"
        )
    if (size := len(json.dumps(out))) > max(POLICIES_BYTES_MAX, 0 if before is None else len(json.dumps(before))):
        raise NotAllowed(
            f"policies of {size:,} bytes at one namespace or topic; {POLICIES_BYTES_MAX:,} are allowed: unset some, or "
            "set them for fewer subscriptions"
        )
    return out


def applied(*levels: Level) -> Applied:
    """Merges levels, the nearest first: the first one that sets a policy has it; backlog quotas are merged by their
    kinds.
    """
    found: dict[str, Any] = {}
    for policy in POLICIES:
        value = next((level[policy.name] for level in levels if policy.name in level), policy.default)
        if policy.name == "backlogQuota":
            value = {}
            for level in reversed(levels):
                value |= level.get("backlogQuota", {})
        if value is not None:
            found[policy.name] = value
    return Applied(found)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


class Applied:
    """What holds for one topic. `values`: as JSON; a policy that nobody set and that has no default is absent."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Applied) and self.values == other.values

    def __hash__(self) -> int:
        raise TypeError("policies are no key")

    def limit(self, name: str) -> int:
        """Returns the bound that this policy sets; 0: there is none."""
        value: int = self.values[name]
        return value

    def on(self, name: str) -> bool:
        """Whether a policy is true that is true or false; one that is absent is false."""
        return bool(self.values.get(name))

    def part(self, name: str, field: str) -> Any:
        """A field of a policy that is an object; None where it is not set."""
        return self.values.get(name, {}).get(field)

    @property
    def deduplication(self) -> bool:
        return self.on("deduplication")

    @property
    def ensemble(self) -> int:
        return int(self.part("persistence", "bookkeeperEnsemble"))

    @property
    def write_quorum(self) -> int:
        return int(self.part("persistence", "bookkeeperWriteQuorum"))

    @property
    def ack_quorum(self) -> int:
        return int(self.part("persistence", "bookkeeperAckQuorum"))

    @property
    def affinity(self) -> Affinity:
        """Groups of bookies that its ledgers are kept to."""
        found = self.values.get("bookieAffinity") or {}
        primary, secondary = (
            _listed(found.get(f"bookkeeperAffinityGroup{which}")) for which in ("Primary", "Secondary")
        )
        return Affinity(primary, secondary) if primary else ANYWHERE

    @property
    def retention(self) -> tuple[int, int]:
        """(minutes, MB); -1 for ever."""
        return int(self.part("retention", "retentionTimeInMinutes")), int(self.part("retention", "retentionSizeInMB"))

    def quota(self, kind: str) -> tuple[int, str] | None:
        """(bytes or seconds, what happens beyond) of `destination_storage` or `message_age`; None: no limit."""
        found = self.values["backlogQuota"].get(kind)
        if found is None:
            return None
        limit = found["limitSize" if kind == "destination_storage" else "limitTime"]
        return (limit, found["policy"]) if limit > 0 else None


DEFAULTS = applied()
"""What holds where nothing is set at any level."""
