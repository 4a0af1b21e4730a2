"""Settings of one process: a JSON file, then the environment, checked once and frozen.

Is: the one place that reads settings; each error is one sentence that says what to do. Isn't: a default folder, port,
or peer that somebody must know. The environment overrides single fields: HELIOGRAPH_REGION=eu,
HELIOGRAPH_BROKER__PORT=6651 (values are JSON, or plain text).
Plain dataclasses and the standard library: a validation framework costs each process 14 MB, half of what an idle bookie
needs.
Source: docs/operating.md, "Settings".
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heliograph.model.configuration.policy_table import checked
from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.topic_names import check_name
from heliograph.runtime.process_usage import parse_cpus
from region_node.compaction.settings import CompactorSettings
from region_node.dr.canary_settings import CanarySettings
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.metrics.topic_series import TopicSeries
from region_node.placement.balance.settings import BalanceSettings
from region_node.placement.ownership.ownership_core import OwnershipSettings
from region_node.process.tracing_settings import TracingSettings
from region_node.runtime.logs import LogSettings
from region_node.security.encryption_at_rest import EncryptionSettings
from region_node.security.settings import SecuritySettings, TlsSettings
from region_node.transactions.coordinators.settings import TransactionSettings
from region_node.usage.settings import UsageSettings
from replicator.audit.audit_settings import AuditSettings
from replicator.bandwidth.compression_settings import CompressionSettings
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.managed_ledger.cache.cache_settings import CacheSettings, Eviction
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.tiered.tiered_settings import TieredSettings

FORMAT = 1
ROLES = ("meta", "config", "bookie", "broker")
"""In the order in which one process starts them."""
PREFIX = "HELIOGRAPH_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")

T = TypeVar("T")
_CACHE = CacheSettings()


def _check_port(name: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigError(f"{name} must be 0 (any free port) to 65535, not {port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Ports: 0 is any free one; an `admin_port` of -1 is none. `shared_port`, `shared_admin_port`: service ports shared
    by the brokers of a host; 0 is none.
    """

    port: int = 6650
    """-1: none, clients come by TLS alone."""
    tls_port: int = -1
    """The port of pulsar+ssl; -1: there is none."""
    admin_port: int = 8080
    admin_tls_port: int = -1
    """The port of HTTPS, beside `admin_port`; -1: there is none."""
    inside_port: int = 0
    """With tls.internal: where the region's other brokers ask this one, by mutual TLS."""
    link_port: int = 0
    shared_port: int = 0
    shared_tls_port: int = 0
    shared_admin_port: int = 0
    advertised_host: str = ""
    listeners: dict[str, str] = field(default_factory=dict)
    """Advertised beside the default one: listener name -> URL."""
    connections_max: int = 0
    """So many clients are served on all Pulsar ports together; the next one is refused. 0: as many as this process may
    have files open, without a thousand.
    """
    admin_connections_max: int = 1000
    """So many clients are served on all admin ports together; the next one gets 503."""
    admin_connections_per_address: int = 250
    """So many of them from one address; 0: no limit."""
    admin_keep_alive_s: float = 75.0
    """An admin connection without a request for longer is closed. More than a load balancer in front keeps its own."""
    topic_loads_max: int = 64
    """Topics that are loaded at the same time; the others wait for their turn, so that clients who all come at once
    leave room for those who are there.
    """
    cache_mb: int = 64
    """MiB of the entry cache, of all topics together; Pulsar's managedLedgerCacheSizeMB."""
    cache_eviction: str = _CACHE.eviction.value
    """What leaves the entry cache before it is full: what every active reader has read (`read`), or acknowledged
    (`mark_delete`), or nothing (`time`).
    """
    cache_backlogged_entries: int = _CACHE.backlogged_entries
    """Pulsar's managedLedgerCursorBackloggedThreshold: nothing is kept back for a cursor whose backlog is larger; 0 is
    no limit.
    """
    cache_time_ms: int = _CACHE.time_ms
    """Pulsar's managedLedgerCacheEvictionTimeThresholdMillis: no entry stays longer."""
    managed_ledger: ManagedLedgerSettings = field(default_factory=ManagedLedgerSettings)
    """When ledgers of topics are closed, and what waits for bookies."""
    racks_min: int = 1
    """On so many racks the copies of an entry lie, or no ledger is made. Also
    bookkeeperClientMinNumRacksPerWriteQuorum.
    """
    batch_index_acks: bool = True
    """Single messages of a batch can be acknowledged."""
    broker_entry_metadata: bool = False
    """Messages carry the broker's time and their index, for clients that understand it."""
    message_bytes_max: int = 5 << 20
    """Pulsar's maxMessageSize: of one entry; clients are told. At most 5 MiB."""
    metrics_topics_max: int = 10_000
    """Loaded topics above which /metrics speaks of namespaces, and not of single topics, as long as `metrics_topics` is
    "auto".
    """
    metrics_topics: str = "auto"
    """What /metrics has rows of: topics or namespaces by their number (`auto`), topics however many there are (`all`),
    or namespaces.
    """
    metrics_top_topics: int = 100
    """So many topics with the most traffic are named in any case, in families of their own; 0: none."""
    metrics_consumers: bool = False
    """Pulsar's exposeConsumerLevelMetricsInPrometheus: a series for every consumer, too."""
    policies: dict[str, Any] = field(default_factory=dict)
    """What holds for topics where nothing else is set: names and values of the policy table."""
    compaction: CompactorSettings = field(default_factory=CompactorSettings)
    entry_filters: dict[str, str] = field(default_factory=dict)
    """Code of your own that decides what subscriptions get: name, for policies -> package.module:Class, on
    PYTHONPATH.
    """
    drain_timeout_s: float = 20.0
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    canary: CanarySettings = field(default_factory=CanarySettings)
    drill_token_file: str = ""
    """A super user's token, with which drills that begin by themselves ask other regions; "": they want none."""
    region_patience_s: float = 2.0
    """Who asks what would be lost is told what is known here after so many seconds, whoever has not answered by then:
    regions, and the global configuration.
    """
    auto_recovery: AutoRecoverySettings = field(default_factory=AutoRecoverySettings)
    usage: UsageSettings = field(default_factory=UsageSettings)
    """What each tenant used, by day."""
    audit: AuditSettings = field(default_factory=AuditSettings)
    link_compression: CompressionSettings = field(default_factory=CompressionSettings)
    link_budget: dict[str, float] = field(default_factory=dict)
    """Target region ("*": each that is not named) -> bytes a second of all links of this broker to it together; not
    named: no bound.
    """
    link_budget_shared: bool = False
    """`link_budget` is of all brokers of the region together: each that lives has an equal share."""
    link_drain_floor: float = 8 << 20
    """Bytes a second: drains of backlog to other regions give way to who publishes on the same broker, but are never
    slower together; 0: they never do.
    """
    link_left_grace_s: float = 86_400.0
    """So long what a region had not got when it left a namespace is kept for it, should it come back; 0: not at all."""
    tiered: TieredSettings = field(default_factory=TieredSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    """Spans of a few chosen messages, to an OpenTelemetry collector."""
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    """Where the region's master keys are, for topics that are encrypted at rest."""
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    transaction_coordinator_enabled: bool = True
    """Pulsar's transactionCoordinatorEnabled: whether clients get transactions. The same on all brokers of a region."""
    transactions: TransactionSettings = field(default_factory=TransactionSettings)

    def __post_init__(self) -> None:
        for name in ("link_port", "inside_port", "shared_port", "shared_tls_port", "shared_admin_port"):
            _check_port(f"broker.{name}", getattr(self, name))
        for name in ("port", "tls_port", "admin_port", "admin_tls_port"):
            _check_port(f"broker.{name}", 0 if (port := getattr(self, name)) == -1 else port)
        if max(self.port, self.tls_port) < 0:
            raise ConfigError("broker.port and broker.tls_port are both -1: no client could connect")
        if self.admin_tls_port >= 0 and self.admin_port < 0:
            raise ConfigError(
                "broker.admin_tls_port wants an admin_port too, where the region's brokers ask each other"
            )
        if self.link_drain_floor < 0:
            raise ConfigError(
                f"broker.link_drain_floor is {self.link_drain_floor:g}; give bytes a second, or 0: drains never give "
                "way to publishers"
            )
        if not 0 <= self.link_left_grace_s <= 366 * 86_400:
            raise ConfigError(f"broker.link_left_grace_s is {self.link_left_grace_s:g}; give 0 s to a year")
        try:
            checked(self.policies)
        except NotAllowed as error:
            raise ConfigError(f"broker.policies: {error}") from error
        if self.connections_max < 0 or not 1 <= self.topic_loads_max <= 100_000:
            raise ConfigError(
                "broker.connections_max must be 0 (as the system allows) or more, and broker.topic_loads_max 1 to "
                "100000"
            )
        if (
            self.admin_connections_max < 1
            or self.admin_connections_per_address < 0
            or not 1 <= self.admin_keep_alive_s <= 86_400
        ):
            raise ConfigError(
                "broker.admin_connections_max must be 1 or more, broker.admin_connections_per_address 0 (no limit) or "
                "more, and broker.admin_keep_alive_s 1 to 86400"
            )
        if not 1 <= self.cache_mb <= 1 << 20:
            raise ConfigError(f"broker.cache_mb must be at least 1, not {self.cache_mb}")
        if not 1 <= self.racks_min <= 64:
            raise ConfigError(f"broker.racks_min must be 1 (no demand) to 64, not {self.racks_min}")
        self.entry_cache()
        self.topic_series()
        if not 0 < self.drain_timeout_s <= 600:
            raise ConfigError(f"broker.drain_timeout_s must be above 0 and at most 600, not {self.drain_timeout_s}")
        if not 0 < self.region_patience_s <= 10:
            raise ConfigError(f"broker.region_patience_s must be above 0 and at most 10, not {self.region_patience_s}")
        for name, url in self.listeners.items():
            if not url.startswith(("pulsar://", "pulsar+ssl://")):
                raise ConfigError(
                    f"broker.listeners.{name}: expected pulsar://host:port or pulsar+ssl://host:port, not {url!r}"
                )

    def entry_cache(self) -> CacheSettings:
        """Returns the entry cache's rules, without its size. Raises ConfigError: `cache_eviction` is none of Eviction,
        or a bound is too low.
        """
        if self.cache_eviction not in (names := [e.value for e in Eviction]):
            raise ConfigError(f"broker.cache_eviction must be one of {', '.join(names)}, not {self.cache_eviction!r}")
        eviction = Eviction(self.cache_eviction)
        return CacheSettings(
            eviction=eviction, backlogged_entries=self.cache_backlogged_entries, time_ms=self.cache_time_ms
        )

    def topic_series(self) -> TopicSeries:
        """Returns which topics /metrics names. Raises ConfigError where a value is out of bounds."""
        return TopicSeries(topics=self.metrics_topics, topics_max=self.metrics_topics_max, top=self.metrics_top_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieRoleSettings:
    port: int = 3181
    bookie_id: str = ""
    """Empty: the process's node_id."""
    http_port: int = -1
    """For health, state, metrics, garbage collection, and readers without a broker; 0 is any free port, -1 none."""
    direct_reads: int = 16
    """So many readers without a broker are answered at a time, on `http_port`; 0: none, and brokers send nobody."""
    advertised_host: str = ""
    rack: str = ""
    """Rack, or zone: copies of an entry go to different ones as far as there are enough. Empty: a rack of its own."""
    group: str = ""
    """Isolation group: namespaces with a bookie affinity are kept to groups."""
    journal_dir: str = ""
    """Empty: journal/ in the data folder. A disk of its own is worth it."""
    journal_dirs: tuple[str, ...] = ()
    """Several, each best on a disk of its own, in the place of `journal_dir`; at most as many as there are ledger
    directories. They stay as they are.
    """
    ledger_dirs: tuple[str, ...] = ()
    """Empty: ledgers/ in the data folder. Several share the ledgers evenly; they stay as they are, in this order."""
    free_mb_min: int = 256
    """With less free space a directory takes no adds."""
    free_mb_again: int = 512
    """With so much it takes them again."""
    open_logs_max: int = 512
    """Entry logs that are kept open to be read, of all ledger directories together; one or two open files each."""
    index_mb_max: int = 256
    """What is kept in memory of the indexes of the entry logs, of all ledger directories together."""
    gc_interval_s: float = 900.0
    """Between two looks for ledgers that the metadata does not know any more; 0 is never."""

    def __post_init__(self) -> None:
        _check_port("bookie.port", self.port)
        _check_port("bookie.http_port", max(0, self.http_port))
        if not 0 <= self.direct_reads <= 48:
            raise ConfigError(f"bookie.direct_reads must be 0 (none) to 48, not {self.direct_reads}")
        if self.journal_dir and self.journal_dirs:
            raise ConfigError("bookie.journal_dir and bookie.journal_dirs are both set; set one of them")
        for name in ("journal_dirs", "ledger_dirs"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(f"bookie.{name} names a folder twice; each must be one of its own")
        if len(self.journal_dirs) > max(1, len(self.ledger_dirs)):
            raise ConfigError(
                "bookie.journal_dirs must not be more than bookie.ledger_dirs: a ledger directory writes to one journal"
            )
        if not 0 <= self.free_mb_min <= self.free_mb_again:
            raise ConfigError(f"bookie: want 0 <= free_mb_min {self.free_mb_min} <= free_mb_again {self.free_mb_again}")
        if not 1 <= self.open_logs_max <= 1_000_000:
            raise ConfigError(f"bookie.open_logs_max must be 1 to 1000000, not {self.open_logs_max}")
        if not 1 <= self.index_mb_max <= 1 << 20:
            raise ConfigError(f"bookie.index_mb_max must be 1 to 1048576 (MiB), not {self.index_mb_max}")
        if not 0 <= self.gc_interval_s <= 86400:
            raise ConfigError(f"bookie.gc_interval_s must be 0 (never) to 86400, not {self.gc_interval_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaNodeSettings:
    """A voter of the region's local metadata. `peers`: node id -> address of its Raft listener, this node's own among
    them; empty: it is alone.
    """

    node_id: str = ""
    port: int = 7001
    peers: dict[str, str] = field(default_factory=dict)
    """Those that the group began with; they stay what they are when it changes (`heliograph meta`)."""
    joining: bool = False
    """This node was none of the first: it waits until it is added. `peers` then only say where others are."""

    def __post_init__(self) -> None:
        _check_port("meta_node.port", self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRoleSettings:
    """A voter of the global configuration. `peers`: node id -> where this node reaches it, this node's own among them;
    empty: it is alone.
    """

    node_id: str = ""
    port: int = 7002
    raft_port: int = 7003
    peers: dict[str, str] = field(default_factory=dict)
    """Those that the instance began with; they stay what they are when regions join and leave."""
    joining: bool = False
    """This region was none of the first: it waits until it is added. `peers` then only say where others are."""

    def __post_init__(self) -> None:
        _check_port("config_node.port", self.port)
        _check_port("config_node.raft_port", self.raft_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """One process: its roles, and a section for each."""

    region: str
    node_id: str
    data_dir: str = ""
    format: int = FORMAT
    roles: tuple[str, ...] = ()
    bind: str = "127.0.0.1"
    cpus: str = ""
    """Cores that this process runs on alone, such as `0-3,8`; empty: any."""
    disk_priority: int | None = None
    """Its turn at disks that it shares: 0 first, 7 last; empty: as the system gives (4)."""
    meta: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)
    tls: TlsSettings | None = None
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    bookie: BookieRoleSettings = field(default_factory=BookieRoleSettings)
    meta_node: MetaNodeSettings = field(default_factory=MetaNodeSettings)
    config_node: ConfigRoleSettings = field(default_factory=ConfigRoleSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ConfigError(f"the settings are of format {self.format}; this version reads format {FORMAT}")
        try:
            check_name("region", self.region)
            check_name("node", self.node_id)
        except NotAllowed as error:
            raise ConfigError(str(error)) from error
        if self.cpus:
            parse_cpus(self.cpus)
        if self.disk_priority is not None and not 0 <= self.disk_priority <= 7:
            raise ConfigError(f"disk_priority: {self.disk_priority} is not from 0 (first) to 7 (last)")
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(f"roles: {role!r} is none of {', '.join(ROLES)}")
        for name in ("meta", "config"):
            for address in getattr(self, name):
                host_and_port(name, address)

    def check_roles(self) -> None:
        """What the chosen roles need beyond their own sections. Raises ConfigError."""
        if not self.roles:
            raise ConfigError(f"no role is set: give --role or a list `roles` of {', '.join(ROLES)}")
        if any(role != "broker" for role in self.roles) and not self.data_dir:
            raise ConfigError("data_dir is not set: a bookie and a metadata node need a folder of their own")
        if {"broker", "bookie"} & set(self.roles) and not self.meta:
            raise ConfigError(
                "meta is not set: a broker and a bookie need the addresses of the region's local metadata"
            )
        if "broker" in self.roles and not self.config:
            raise ConfigError("config is not set: a broker needs the address of the region's configuration node")
        if self.broker.link_port and self.tls is not None and not self.tls.replicator_cert:
            raise ConfigError(
                "broker.link_port is set with tls: links between regions then need tls.replicator_cert and "
                "tls.replicator_key"
            )
        if (
            self.broker.link_port
            and self.tls is None
            and (self.security.authentication or self.security.anonymous_role)
        ):
            raise ConfigError(
                "broker.link_port is set without tls: a plain link would let anybody in past security.authentication; "
                "set tls, or no link_port"
            )
        if "broker" in self.roles:
            self.security.exposure.check("bind", self.bind)
        if self.bind in LOOPBACK:
            return
        if {"bookie", "meta", "config"} & set(self.roles) and not (self.tls is not None and self.tls.internal):
            raise ConfigError(
                f"bind is {self.bind}: bookies and metadata nodes on other addresses than 127.0.0.1 want tls with "
                "`internal` on"
            )
        if self.broker.link_port and self.tls is None:
            raise ConfigError(
                f"bind is {self.bind}: links from other machines need certificates; set tls, or broker.link_port to 0"
            )


def host_and_port(name: str, address: str) -> tuple[str, int]:
    """Splits `host:port`, or `[IPv6]:port`; the port is 1 to 65535. name: the setting, for the error. Raises
    ConfigError.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise ConfigError(f"{name}: expected host:port, not {address!r}")
    return host.strip("[]"), int(port)


def load(path: str, environment: Mapping[str, str], *, roles: tuple[str, ...] = ()) -> ProcessSettings:
    """Reads file, then environment; `roles`, where given, replaces the file's. Raises ConfigError with one sentence."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the settings file {path} cannot be read ({error.strerror}); give another one with --settings"
        ) from error
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the settings file {path} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"the settings file {path} must hold one JSON object")
    _override(fields, environment)
    if roles:
        fields["roles"] = list(roles)
    settings = build(ProcessSettings, fields, "")
    settings.check_roles()
    return settings


def _override(fields: dict[str, Any], environment: Mapping[str, str]) -> None:
    for name in sorted(environment):
        if not name.startswith(PREFIX):
            continue
        path = name.removeprefix(PREFIX).lower().split("__")
        if path[0] not in ProcessSettings.__dataclass_fields__:
            continue  # the program's other variables
        text = environment[name]
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        section = fields
        for part in path[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{name}: {part} is no section")
        section[path[-1]] = value


def build(kind: type[T], fields: Any, path: str) -> T:
    """A frozen dataclass from plain JSON: unknown names, missing ones, and wrong types are refused by name. Raises
    ConfigError.
    """
    here = path or "the settings"
    if not isinstance(fields, dict):
        raise ConfigError(f"{here}: expected an object, not {json.dumps(fields)}")
    if kind is BrokerSettings:
        fields = _in_our_words(fields)
    hints = typing.get_type_hints(kind)
    known = {entry.name: entry for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise ConfigError(f"{here}: there is no setting {name!r}; there are {', '.join(known)}")
    values = {name: _value(hints[name], value, f"{path}.{name}" if path else name) for name, value in fields.items()}
    for name, entry in known.items():
        if name not in values and entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{here}: {name} is not set")
    return kind(**values)


_PULSAR_NAMES = {
    "managedLedgerCacheSizeMB": "cache_mb",
    "managedLedgerCursorBackloggedThreshold": "cache_backlogged_entries",
    "managedLedgerCacheEvictionTimeThresholdMillis": "cache_time_ms",
    "cacheEvictionByMarkDeletedPosition": "cache_eviction",
    "bookkeeperClientMinNumRacksPerWriteQuorum": "racks_min",
    "transactionCoordinatorEnabled": "transaction_coordinator_enabled",
}
"""A Pulsar name in a broker's settings file -> ours; the case of its letters does not count, as the environment has
none.
"""


def _in_our_words(fields: dict[str, Any]) -> dict[str, Any]:
    ours, known = dict(fields), {name.lower(): name for name in _PULSAR_NAMES}
    for name in fields:
        pulsar = known.get(name.lower(), "")
        if not pulsar:
            continue
        own, value = _PULSAR_NAMES[pulsar], ours.pop(name)
        if own in ours:
            raise ConfigError(f"broker: {pulsar} and {own} say the same thing; keep one of them")
        if own == "cache_eviction":
            if not isinstance(value, bool):
                raise ConfigError(f"broker.{pulsar}: expected true or false, not {json.dumps(value)}")
            value = (Eviction.MARK_DELETE if value else Eviction.READ).value
        ours[own] = value
    return ours


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, path)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return build(hint, value, path)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(k): _value(arguments[1], v, f"{path}.{k}") for k, v in value.items()}
    if hint is float and type(value) in (int, float):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    wanted = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}.get(
        hint, "a list" if origin is tuple else "an object"
    )
    raise ConfigError(f"{path}: expected {wanted}, not {json.dumps(value)}")
