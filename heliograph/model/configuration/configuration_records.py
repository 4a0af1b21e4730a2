"""What the global configuration holds: regions, tenants, namespaces and their policies, link trees.

Is: the values (which policies there are: `policy_table`), and their encoding (JSON with a format number: people read
these). Isn't: who may change them.
Keys: /regions/{name}, /clusters/{name}, /peers/{name}, /migrations/{name}, /migrated/{tenant}/{namespace},
/tenants/{tenant}, /tenant-quotas/{tenant}, /namespaces/{tenant}/{namespace}, /partitioned/{topic's full name},
/topic-policies/{topic's full name}, /resource-groups/{name}.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from heliograph.model.errors import ConfigError, CorruptData

FORMAT = 3
"""The newest that is read, of any kind of value: whichever kind needs another one next gets 4. A value is written in
the lowest one whose readers understand all of it: `_Value.format`.
"""


class _Value:
    """Encoding of a frozen dataclass of plain fields."""

    __slots__ = ()

    @property
    def format(self) -> int:
        """An earlier version refuses a higher one: it can neither read the value nor, by a change of its own, drop what
        it does not know.
        """
        return 1

    def encode(self) -> bytes:
        return json.dumps(
            {"format": self.format, **asdict(self)},  # type: ignore[call-overload]
            sort_keys=True,
        ).encode()

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Unknown fields are skipped, so that an older version reads a newer one's values. Raises CorruptData."""
        try:
            fields: dict[str, Any] = json.loads(blob)
            if fields.pop("format") > FORMAT:
                raise CorruptData(f"{cls.__name__}: written by a newer version; upgrade this one")
            fields = cls._earlier(fields)
            known = cls.__dataclass_fields__  # type: ignore[attr-defined]
            return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items() if k in known})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptData(f"{cls.__name__}: {error}") from error

    @classmethod
    def _earlier(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields as an earlier version wrote them, in today's names."""
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionInfo(_Value):
    """One region. `number` is never reused; `epoch` rises when its local metadata was restored or rebuilt."""

    name: str
    number: int
    epoch: int = 1
    service_url: str = ""
    admin_url: str = ""
    link_urls: dict[str, list[str]] = field(default_factory=dict)
    """Source region -> `pulsar+ssl://host:port` addresses where its links look topics up here (a proxy, a private
    network).
    """
    feature_level: int = 1
    metadata_instance: str = ""
    """`/instance` of the local metadata that `epoch` stands for; "" where no broker of the region ever started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarCluster(_Value):
    """A real Pulsar cluster that topics are replicated with. It is no region: it has no coordinates, and no part in the
    configuration.
    """

    name: str
    gateway: str
    """The one region that exchanges messages with it, those of all regions."""
    service_url: str = ""
    """`pulsar://host:port`, or `pulsar+ssl://`; several hosts with commas between them."""
    admin_url: str = ""
    role: str = ""
    """Which role its replicators prove here; "": any superuser's."""
    token_file: str = ""
    """In the folder of the gateway's brokers, as are the others: the token by which they are known there."""
    trust_file: str = ""
    """The authorities of its certificates; "": the system's."""
    certificate_file: str = ""
    """The certificate that is shown there; without a token, by its role they are known."""
    key_file: str = ""
    """The key of that certificate; "": it is in the same file."""
    oauth_file: str = ""
    """As which client of which issuer they get tokens (OAuth 2), as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPeers(_Value):
    """Whom an operator calls the peers of a region, or of a Pulsar cluster."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMigration(_Value):
    """Where the clients of a region go on. `migrated`: all of them; else only those of the namespaces that a
    `MigratedNamespace` names.
    """

    migrated: bool = False
    service_url: str = ""
    service_url_tls: str = ""
    broker_service_url: str = ""
    broker_service_url_tls: str = ""

    @property
    def urls(self) -> bool:
        """Whether it says where clients are to connect."""
        return bool(self.broker_service_url or self.broker_service_url_tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedNamespace(_Value):
    """`regions`: those that send its clients on to where their `ClusterMigration` says."""

    regions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo(_Value):
    admin_roles: tuple[str, ...] = ()
    allowed_regions: tuple[str, ...] = ()
    encryption_at_rest: bool = False
    """All its topics are sealed, whatever its namespaces, its topics, and the brokers say. Regions obey it from feature
    level 4 on, and read it as it is written now from 5 on (`format`).
    """

    @property
    def format(self) -> int:
        """A region that does not know of the duty may change the tenant, though it is none of the tenant's: it must not
        take the duty off.
        """
        return 2 if self.encryption_at_rest else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicies(_Value):
    """A namespace. `policies`: what is set for its topics, by the names of `policy_table`; what is not there is
    inherited from the brokers.
    """

    regions: tuple[str, ...] = ()
    bundles: int = 4
    allowed_regions: tuple[str, ...] = ()
    """Where topics of it may be replicated by a policy of their own, beside `regions`."""
    policies: dict[str, Any] = field(default_factory=dict)
    topology: str = "mesh"
    """Link trees of the namespace: `mesh` = the origin is every region's parent."""
    topology_version: int = 1
    clusters: tuple[str, ...] = ()
    """Real Pulsar clusters that its topics are replicated with, each by way of its gateway."""
    permissions: dict[str, list[str]] = field(default_factory=dict)
    """Role -> what it may do with every topic here: produce, consume; the other actions of Pulsar are kept, and open
    nothing.
    """
    topic_permissions: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Full name of a topic -> role -> what it may do with that topic."""
    subscription_permissions: dict[str, list[str]] = field(default_factory=dict)
    """Subscription -> the roles that may use it; absent: every role that may consume."""
    left: tuple[str, ...] = ()
    """Regions that were taken out of `regions`: each may have its copy still."""

    def in_regions(self, regions: tuple[str, ...]) -> NamespacePolicies:
        """The same namespace in these regions."""
        gone = dict.fromkeys((*self.left, *self.regions))
        return replace(self, regions=regions, left=tuple(region for region in gone if region not in regions))

    def __post_init__(self) -> None:
        if not 1 <= self.bundles <= 4096:
            raise ConfigError(f"bundles must be 1 to 4096, not {self.bundles}")

    @classmethod
    def _earlier(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Before there was a table, six policies were fields of their own."""
        policies: dict[str, Any] = {}
        if fields.get("deduplication"):
            policies["deduplication"] = True
        if fields.get("message_ttl_s"):
            policies["messageTTL"] = fields["message_ttl_s"]
        minutes, mb = fields.get("retention_minutes", 0), fields.get("retention_mb", 0)
        if minutes or mb:
            policies["retention"] = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mb}
        quorums = tuple(fields.get(name, 2) for name in ("ensemble", "write_quorum", "ack_quorum"))
        if quorums != (2, 2, 2):
            names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
            policies["persistence"] = {**dict(zip(names, quorums, strict=True)), "managedLedgerMaxMarkDeleteRate": 0.0}
        return {"policies": policies, **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicies(_Value):
    """What is set for one topic and all its partitions: in one region (local metadata), or in all (global
    configuration).
    """

    policies: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroup(_Value):
    """Rates that the namespaces of a group share; -1: no limit. Bytes and messages a second."""

    publish_messages: int = -1
    publish_bytes: int = -1
    dispatch_messages: int = -1
    dispatch_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota(_Value):
    """What an operator lets a tenant have, whatever its admin sets; 0: no bound. Topics (partitions each) and stored
    bytes count in each region by itself.
    """

    max_namespaces: int = 0
    max_topics: int = 0
    max_storage_bytes: int = 0
    """Counts messages before replication to bookies; offloaded ones count, too, compacted ledgers do not."""
    resource_group: str = ""
    """All namespaces of the tenant share its rates, whatever group they are put into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedTopic(_Value):
    partitions: int
    incarnation: int = 0
    """Grows with every topic that is made: another one than before, under the same name, was made again. 0: an earlier
    version has written it.
    """
    created_ms: int = 0
    """Wall time; 0: an earlier version has written it last."""
