"""Settings of one process: a JSON file, then the environment, checked once and frozen.

Is: the one place that reads settings; each error is one sentence that says what to do. Isn't: a default folder, port,
or peer that somebody must know. The environment overrides single fields: HELIOGRAPH_REGION=eu,
HELIOGRAPH_BROKER__PORT=6651 (values are JSON, or plain text).
Plain dataclasses and the standard library: a validation framework costs each process 14 MB, half of what an idle bookie
needs.
Source: docs/reference/settings.md, which `tools/settings_reference.py` makes of these classes.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from heliograph.model.configuration.policy_table import checked
from heliograph.model.configuration.setting import check_bounds, marks, must_be_set, setting
from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.topic_names import check_name
from heliograph.runtime.process_usage import parse_cpus
from region_node.compaction.settings import CompactorSettings
from region_node.dr.canary_settings import CanarySettings
from region_node.dr.drill_settings import DrillSettings
from region_node.faces.kafka.kafka_settings import KafkaSettings
from region_node.metrics.topic_series import By, TopicSeries
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
from storage.bookie.bookie_settings import BookieSettings
from storage.ledger.repair.lost_bookies import AutoRecoverySettings
from storage.managed_ledger.cache.cache_settings import CacheSettings, Eviction
from storage.managed_ledger.managed_ledger_settings import ManagedLedgerSettings
from storage.tiered.tiered_settings import TieredSettings

FORMAT = 1
ROLES = ("meta", "config", "bookie", "broker")
"""In the order in which one process starts them."""
PREFIX = "HELIOGRAPH_"
PAGE = "docs/reference/settings.md"
LOOPBACK = ("127.0.0.1", "::1", "localhost")

T = TypeVar("T")
_CACHE = CacheSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Ports: 0 is any free one; an `admin_port` of -1 is none. `shared_port`, `shared_admin_port`: service ports shared
    by the brokers of a host; 0 is none.
    """

    port: int = setting(6650, least=-1, most=65535, means="none", theirs="brokerServicePort")
    """Where Pulsar's clients come; -1: none, clients come by TLS alone. 0 is any free port."""
    tls_port: int = setting(-1, least=-1, most=65535, means="none", theirs="brokerServicePortTls")
    """The port of pulsar+ssl; -1: there is none."""
    admin_port: int = setting(8080, least=-1, most=65535, means="none", theirs="webServicePort")
    """The port of HTTP: REST, metrics, the console; 0 is any free port."""
    admin_tls_port: int = setting(-1, least=-1, most=65535, means="none", theirs="webServicePortTls")
    """The port of HTTPS, beside `admin_port`; -1: there is none."""
    inside_port: int = setting(0, least=0, most=65535, means="any free one")
    """With tls.internal: where the region's other brokers ask this one, by mutual TLS."""
    inside_host: str = setting("")
    """The host at which the region's other brokers ask this one; empty: `advertised_host`."""
    link_port: int = setting(0, least=0, most=65535, means="any free one")
    """Where links of other regions come in; the listener is there if this is set, or `tls` is."""
    shared_port: int = setting(0, least=0, most=65535, means="none")
    """A service port for Pulsar's clients that the brokers of a host share."""
    shared_tls_port: int = setting(0, least=0, most=65535, means="none")
    """The same for pulsar+ssl."""
    shared_admin_port: int = setting(0, least=0, most=65535, means="none")
    """The same for HTTP."""
    advertised_host: str = setting("", theirs="advertisedAddress")
    """The host in addresses that are given out; empty: `bind`."""
    listeners: dict[str, str] = setting({}, theirs="advertisedListeners (a text)")
    """Advertised beside the default one: listener name -> `pulsar://host:port` or `pulsar+ssl://host:port`.
    `link-REGION`: for links from there; `tls`: beside the plain one.
    """
    connections_max: int = setting(
        0,
        "connections",
        least=0,
        means="as many as this process may have files open, without a thousand",
        theirs="brokerMaxConnections",
    )
    """So many clients are served on all Pulsar ports together; the next one is refused."""
    admin_connections_max: int = setting(1000, "connections", least=1, theirs="maxHttpServerConnections")
    """So many clients are served on all admin ports together; the next one gets 503."""
    admin_connections_per_address: int = setting(250, "connections", least=0, means="no limit")
    """So many of them from one address."""
    admin_keep_alive_s: float = setting(75.0, "s", least=1, most=86_400)
    """An admin connection without a request for longer is closed. More than a load balancer in front keeps its own."""
    topic_loads_max: int = setting(64, "topics", least=1, most=100_000, theirs="maxConcurrentTopicLoadRequest")
    """Topics that are loaded at the same time; the others wait for their turn, so that clients who all come at once
    leave room for those who are there.
    """
    cache_mb: int = setting(64, "MiB", least=1, most=1 << 20, theirs="managedLedgerCacheSizeMB")
    """The entry cache, of all topics together."""
    cache_eviction: str = setting(
        _CACHE.eviction.value,
        one_of=tuple(each.value for each in Eviction),
        theirs="cacheEvictionByMarkDeletedPosition (true or false)",
    )
    """What leaves the entry cache before it is full: what every active reader has read (`read`), or acknowledged
    (`mark_delete`), or nothing (`time`).
    """
    cache_backlogged_entries: int = setting(
        _CACHE.backlogged_entries, "entries", least=0, means="no limit", theirs="managedLedgerCursorBackloggedThreshold"
    )
    """Nothing is kept back for a cursor whose backlog is larger. Pulsar's default is 1000."""
    cache_time_ms: int = setting(_CACHE.time_ms, "ms", least=1, theirs="managedLedgerCacheEvictionTimeThresholdMillis")
    """No entry stays longer. Pulsar's default is 1000."""
    managed_ledger: ManagedLedgerSettings = field(default_factory=ManagedLedgerSettings)
    """When ledgers of topics are closed, and what waits for bookies."""
    racks_min: int = setting(
        1, "racks", least=1, most=64, means="no demand", theirs="bookkeeperClientMinNumRacksPerWriteQuorum"
    )
    """On so many racks the copies of an entry lie, or no ledger is made and nothing is published."""
    batch_index_acks: bool = setting(True, theirs="acknowledgmentAtBatchIndexLevelEnabled")
    """Single messages of a batch can be acknowledged."""
    broker_entry_metadata: bool = setting(False, theirs="brokerEntryMetadataInterceptors (classes)")
    """Messages carry the broker's time and their index, for clients that understand it."""
    message_bytes_max: int = setting(5 << 20, "bytes", least=1, most=5 << 20, theirs="maxMessageSize")
    """The largest entry; clients are told when they connect."""
    metrics_topics_max: int = setting(10_000, "topics", least=0)
    """Loaded topics above which /metrics speaks of namespaces, and not of single topics, as long as `metrics_topics` is
    "auto".
    """
    metrics_topics: str = setting(
        "auto", one_of=tuple(each.value for each in By), theirs="exposeTopicLevelMetricsInPrometheus (true or false)"
    )
    """What /metrics has rows of: topics or namespaces by their number (`auto`), topics however many there are (`all`),
    or namespaces.
    """
    metrics_top_topics: int = setting(100, "topics", least=0, most=1000, means="none")
    """So many topics with the most traffic are named in any case, in families of their own (`heliograph_top_topic_*`).
    """
    metrics_consumers: bool = setting(False, theirs="exposeConsumerLevelMetricsInPrometheus")
    """A series for every consumer in /metrics, too."""
    policies: dict[str, Any] = setting({})
    """What holds for topics where nothing else is set: names and values of the policy table."""
    compaction: CompactorSettings = field(default_factory=CompactorSettings)
    entry_filters: dict[str, str] = setting({}, theirs="entryFilterNames (names)")
    """Code of your own that decides what subscriptions get: name, for policies -> package.module:Class, on
    PYTHONPATH.
    """
    drain_timeout_s: float = setting(20.0, "s", above=0, most=600, theirs="brokerShutdownTimeoutMs (ms)")
    """How long a broker that ends hands its topics over before it goes."""
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    canary: CanarySettings = field(default_factory=CanarySettings)
    drill: DrillSettings = field(default_factory=DrillSettings)
    drill_token_file: str = setting("")
    """A super user's token, with which drills that begin by themselves ask other regions; "": they want none."""
    region_patience_s: float = setting(2.0, "s", above=0, most=10)
    """Who asks what would be lost is told what is known here after so many seconds, whoever has not answered by then:
    regions, and the global configuration.
    """
    auto_recovery: AutoRecoverySettings = field(default_factory=AutoRecoverySettings)
    usage: UsageSettings = field(default_factory=UsageSettings)
    """What each tenant used, by day."""
    audit: AuditSettings = field(default_factory=AuditSettings)
    link_compression: CompressionSettings = field(default_factory=CompressionSettings)
    link_budget: dict[str, float] = setting({}, "B/s")
    """Target region ("*": each that is not named) -> bytes a second of all links of this broker to it together; not
    named: no bound.
    """
    link_budget_shared: bool = setting(False)
    """`link_budget` is of all brokers of the region together: each that lives has an equal share."""
    link_drain_floor: float = setting(8 << 20, "B/s", least=0, means="never")
    """Drains of backlog, to other regions and to subscriptions that catch up, give way to who publishes on the same
    broker, but are never slower together than this; 0: they never give way.
    """
    link_left_grace_s: float = setting(86_400.0, "s", least=0, most=366 * 86_400, means="not at all")
    """So long what a region had not got when it left a namespace is kept for it, should it come back."""
    tiered: TieredSettings = field(default_factory=TieredSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    """Spans of a few chosen messages, to an OpenTelemetry collector."""
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    """Where the region's master keys are, for topics that are encrypted at rest."""
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    transaction_coordinator_enabled: bool = setting(True, theirs="transactionCoordinatorEnabled")
    """Whether clients get transactions. The same on all brokers of a region."""
    transactions: TransactionSettings = field(default_factory=TransactionSettings)

    def __post_init__(self) -> None:
        check_bounds(self, "broker")
        if max(self.port, self.tls_port) < 0:
            raise ConfigError("broker.port and broker.tls_port are both -1: no client could connect")
        if self.admin_tls_port >= 0 and self.admin_port < 0:
            raise ConfigError(
                "broker.admin_tls_port wants an admin_port too, where the region's brokers ask each other"
            )
        try:
            checked(self.policies)
        except NotAllowed as error:
            raise ConfigError(f"broker.policies: {error}") from error
        for name, url in self.listeners.items():
            if not url.startswith(("pulsar://", "pulsar+ssl://")):
                raise ConfigError(
                    f"broker.listeners.{name}: expected pulsar://host:port or pulsar+ssl://host:port, not {url!r}"
                )

    def entry_cache(self) -> CacheSettings:
        """Returns the entry cache's rules, without its size."""
        return CacheSettings(
            eviction=Eviction(self.cache_eviction),
            backlogged_entries=self.cache_backlogged_entries,
            time_ms=self.cache_time_ms,
        )

    def topic_series(self) -> TopicSeries:
        """Returns which topics /metrics names."""
        return TopicSeries(topics=self.metrics_topics, topics_max=self.metrics_topics_max, top=self.metrics_top_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieRoleSettings:
    port: int = setting(3181, least=0, most=65535, means="any free one", theirs="bookiePort")
    """Where brokers come."""
    bookie_id: str = setting("", theirs="bookieId")
    """Empty: the process's node_id. Its directories remember it."""
    http_port: int = setting(-1, least=-1, most=65535, means="none", theirs="httpServerPort")
    """For health, state, metrics, garbage collection, and readers without a broker, such as Spark; 0 is any free port,
    -1 none.
    """
    direct_reads: int = setting(16, least=0, most=48, means="none")
    """So many readers without a broker are answered at a time, on `http_port`; 0: none, and brokers send nobody."""
    advertised_host: str = setting("", theirs="advertisedAddress")
    """The host that brokers and readers are told; empty: `bind`."""
    rack: str = setting("")
    """Rack, or zone: copies of an entry go to different ones as far as there are enough. Empty: a rack of its own. An
    operator's word by REST counts above it.
    """
    group: str = setting("")
    """Isolation group: namespaces with a bookie affinity are kept to groups."""
    journal_dir: str = setting("", theirs="journalDirectory")
    """Empty: journal/ in the data folder. A disk of its own is worth it."""
    journal_dirs: tuple[str, ...] = setting((), theirs="journalDirectories")
    """Several, each best on a disk of its own, in the place of `journal_dir`; at most as many as there are ledger
    directories. They stay as they are.
    """
    ledger_dirs: tuple[str, ...] = setting((), theirs="ledgerDirectories")
    """Empty: ledgers/ in the data folder. Several share the ledgers evenly, and number d writes to journal d modulo
    their number; they stay as they are, in this order.
    """
    free_mb_min: int = setting(256, "MiB", least=0, theirs="minUsableSizeForEntryLogCreation (bytes)")
    """With less free space a directory takes no adds, and the bookie gets no new ledgers."""
    free_mb_again: int = setting(512, "MiB", least=0, theirs="diskUsageLwmThreshold (share)")
    """With so much it takes them again; not below `free_mb_min`."""
    open_logs_max: int = setting(512, least=1, most=1_000_000)
    """Entry logs that are kept open to be read, of all ledger directories together; one or two open files each."""
    index_mb_max: int = setting(256, "MiB", least=1, most=1 << 20)
    """What is kept in memory of the indexes of the entry logs, of all ledger directories together: 14 bytes for each
    block, which is a run as it was published. The rest is read again where it is needed.
    """
    gc_interval_s: float = setting(900.0, "s", least=0, most=86400, means="never", theirs="gcWaitTime (ms)")
    """Between two looks for ledgers that the metadata does not know any more."""
    storage: BookieSettings = field(default_factory=BookieSettings)
    """The journal, the write cache, compaction, and scrubbing."""

    def __post_init__(self) -> None:
        check_bounds(self, "bookie")
        if self.journal_dir and self.journal_dirs:
            raise ConfigError("bookie.journal_dir and bookie.journal_dirs are both set; set one of them")
        for name in ("journal_dirs", "ledger_dirs"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ConfigError(f"bookie.{name} names a folder twice; each must be one of its own")
        if len(self.journal_dirs) > max(1, len(self.ledger_dirs)):
            raise ConfigError(
                "bookie.journal_dirs must not be more than bookie.ledger_dirs: a ledger directory writes to one journal"
            )
        if self.free_mb_min > self.free_mb_again:
            raise ConfigError(f"bookie: want free_mb_min {self.free_mb_min} <= free_mb_again {self.free_mb_again}")

    def directories(self, data_dir: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the journal's directories, and those of ledgers; in the data folder where nothing is set."""
        journals = self.journal_dirs or (self.journal_dir or str(PurePosixPath(data_dir, "journal")),)
        return journals, self.ledger_dirs or (str(PurePosixPath(data_dir, "ledgers")),)

    def of_storage(self) -> BookieSettings:
        """Returns `storage`, with what this section itself says of space and memory."""
        return dataclasses.replace(
            self.storage,
            free_bytes_min=self.free_mb_min << 20,
            free_bytes_again=self.free_mb_again << 20,
            open_logs_max=self.open_logs_max,
            index_bytes_max=self.index_mb_max << 20,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaNodeSettings:
    """A voter of the region's local metadata. `peers`: node id -> address of its Raft listener, this node's own among
    them; empty: it is alone.
    """

    node_id: str = setting("")
    """Empty: the process's `node_id`."""
    port: int = setting(7001, least=0, most=65535, means="any free one")
    """Where clients and the other voters come."""
    peers: dict[str, str] = setting({})
    """Node id -> address (host:port) of each of the first voters, this one among them; they stay what they are when the
    group changes (`heliograph meta`). Empty: it is alone.
    """
    joining: bool = setting(False)
    """This node was none of the first: it waits until it is added. `peers` then only say where others are."""
    later: dict[str, str] = setting({})
    """Node id -> address of those that came to a first voter that was alone: from an empty folder it founds a group
    only once each of them says that it knows of none.
    """

    def __post_init__(self) -> None:
        check_bounds(self, "meta_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRoleSettings:
    """A voter of the global configuration. `peers`: node id -> where this node reaches it, this node's own among them;
    empty: it is alone.
    """

    node_id: str = setting("")
    """Empty: the region's name."""
    port: int = setting(7002, least=0, most=65535, means="any free one")
    """Where the region's own processes come."""
    raft_port: int = setting(7003, least=0, most=65535, means="any free one")
    """Where the other regions' voters come, by gRPC."""
    peers: dict[str, str] = setting({})
    """Region -> where this node reaches it (host:port), of those that the instance began with, this one among them;
    they stay what they are when regions join and leave. Empty: it is alone.
    """
    joining: bool = setting(False)
    """This region was none of the first: it waits until it is added. `peers` then only say where others are."""
    later: dict[str, str] = setting({})
    """Region -> where this node reaches it, of those that came to a region that was alone: from an empty folder it
    founds a configuration only once each of them says that it knows of none.
    """
    witness: bool = setting(False)
    """This voter is no region. It takes the leadership while it reaches every other member, so that regions that do not
    reach each other both reach the leader; else it hands it to one of them.
    """

    def __post_init__(self) -> None:
        check_bounds(self, "config_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """One process: its roles, and a section for each."""

    region: str = field(metadata=must_be_set())
    """The region's name: letters, digits, and `-=:._`."""
    node_id: str = field(metadata=must_be_set())
    """The name of this process, of its own in the region."""
    data_dir: str = setting("")
    """A folder of its own; every role but broker needs it."""
    format: int = setting(FORMAT)
    """The version of the settings file."""
    roles: tuple[str, ...] = setting(())
    """Some of `meta`, `config`, `bookie`, `broker`; `--role` replaces it."""
    bind: str = setting("127.0.0.1", theirs="bindAddress")
    """The address of all listeners. Another than loopback: brokers only, and bookies, metadata nodes, and links with
    `tls`.
    """
    cpus: str = setting("")
    """Cores that this process runs on alone, such as `0-3,8`; empty: any."""
    disk_priority: int | None = setting(None, least=0, most=7)
    """Its turn at disks that it shares: 0 first, 7 last; empty: as the system gives (4)."""
    meta: tuple[str, ...] = setting((), theirs="metadataStoreUrl (a URL)")
    """host:port of each node of the region's local metadata; broker and bookie need it."""
    config: tuple[str, ...] = setting((), theirs="configurationMetadataStoreUrl (a URL)")
    """host:port of the region's configuration node; broker needs it."""
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
        check_bounds(self, "")
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
    settings = process_settings(fields)
    settings.check_roles()
    return settings


def process_settings(fields: Any) -> ProcessSettings:
    """Returns the settings of plain JSON. Raises ConfigError, which names the page that has all of them."""
    try:
        return build(ProcessSettings, fields, "")
    except ConfigError as error:
        raise ConfigError(f"{error} ({PAGE} has each setting)") from error


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
    operators = marks(kind)
    known = {
        entry.name: entry
        for entry in dataclasses.fields(kind)  # type: ignore[arg-type]
        if entry.name in operators or section_of(hints[entry.name]) is not None or not operators
    }
    for name in fields:
        if name not in known:
            raise ConfigError(f"{here}: there is no setting {name!r}; there are {', '.join(known)}")
    values = {name: _value(hints[name], value, f"{path}.{name}" if path else name) for name, value in fields.items()}
    for name, entry in known.items():
        if name not in values and entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{here}: {name} is not set")
    return kind(**values)


def section_of(hint: Any) -> type | None:
    """Returns the class of settings in a type: `X`, `X | None`, `tuple[X, ...]`; None where there is none."""
    return next((each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)), None)  # type: ignore[return-value]


PULSAR_NAMES = {"cacheEvictionByMarkDeletedPosition": "cache_eviction"} | {
    mark.theirs: name for name, mark in marks(BrokerSettings).items() if mark.theirs.isidentifier()
}
"""A Pulsar name in a broker's settings file -> ours; the case of its letters does not count, as the environment has
none.
"""


def _in_our_words(fields: dict[str, Any]) -> dict[str, Any]:
    ours, known = dict(fields), {name.lower(): name for name in PULSAR_NAMES}
    for name in fields:
        pulsar = known.get(name.lower(), "")
        if not pulsar:
            continue
        own, value = PULSAR_NAMES[pulsar], ours.pop(name)
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
