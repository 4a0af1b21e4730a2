"""Settings of one process: a JSON file, then the environment, checked once and frozen.

Is: the one place that reads settings; each error is one sentence that says what to do. Isn't: a default folder, port, or peer that somebody must know.
The environment overrides single fields: HELIOGRAPH_REGION=eu, HELIOGRAPH_BROKER__PORT=6651 (values are JSON, or plain text).
Plain dataclasses and the standard library: a validation framework costs each process 14 MB, half of what an idle bookie needs.
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

from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.names import check_name
from region_node.ownership.core import OwnershipSettings
from storage.ledger.audit import AutoRecoverySettings

FORMAT = 1
ROLES = ("meta", "config", "bookie", "broker")
"""In the order in which one process starts them."""
PREFIX = "HELIOGRAPH_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")

T = TypeVar("T")


def _check_port(name: str, port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigError(f"{name} must be 0 (any free port) to 65535, not {port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Files of the instance's CA, PEM."""

    ca: str
    replicator_cert: str = ""
    replicator_key: str = ""
    config_cert: str = ""
    config_key: str = ""

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            path = getattr(self, entry.name)
            if path and not Path(path).is_file():
                raise ConfigError(f"tls.{entry.name}: the file {path} does not exist")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Ports: 0 is any free one; an `admin_port` of -1 is none. `shared_port`, `shared_admin_port`: service ports shared by the brokers of a host; 0 is none."""

    port: int = 6650
    admin_port: int = 8080
    link_port: int = 0
    shared_port: int = 0
    shared_admin_port: int = 0
    advertised_host: str = ""
    listeners: dict[str, str] = field(default_factory=dict)
    """Advertised beside the default one: listener name -> URL."""
    cache_mb: int = 64
    batch_index_acks: bool = True
    """Single messages of a batch can be acknowledged."""
    broker_entry_metadata: bool = False
    """Messages carry the broker's time and their index, for clients that understand it."""
    drain_timeout_s: float = 20.0
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    auto_recovery: AutoRecoverySettings = field(default_factory=AutoRecoverySettings)

    def __post_init__(self) -> None:
        for name in ("port", "link_port", "shared_port", "shared_admin_port"):
            _check_port(f"broker.{name}", getattr(self, name))
        _check_port("broker.admin_port", max(0, self.admin_port))
        if not 1 <= self.cache_mb <= 1 << 20:
            raise ConfigError(f"broker.cache_mb must be at least 1, not {self.cache_mb}")
        if not 0 < self.drain_timeout_s <= 600:
            raise ConfigError(f"broker.drain_timeout_s must be above 0 and at most 600, not {self.drain_timeout_s}")
        for name, url in self.listeners.items():
            if not url.startswith(("pulsar://", "pulsar+ssl://")):
                raise ConfigError(f"broker.listeners.{name}: expected pulsar://host:port or pulsar+ssl://host:port, not {url!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSettings:
    port: int = 3181
    bookie_id: str = ""
    """Empty: the process's node_id."""
    http_port: int = -1
    """For health, state, metrics, and garbage collection; 0 is any free port, -1 none."""
    advertised_host: str = ""
    rack: str = ""
    """Rack, or zone: copies of an entry go to different ones as far as there are enough. Empty: a rack of its own."""
    journal_dir: str = ""
    """Empty: journal/ in the data folder. A disk of its own is worth it."""
    gc_interval_s: float = 900.0
    """Between two looks for ledgers that the metadata does not know any more; 0 is never."""

    def __post_init__(self) -> None:
        _check_port("bookie.port", self.port)
        _check_port("bookie.http_port", max(0, self.http_port))
        if not 0 <= self.gc_interval_s <= 86400:
            raise ConfigError(f"bookie.gc_interval_s must be 0 (never) to 86400, not {self.gc_interval_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaNodeSettings:
    """A voter of the region's local metadata. `peers`: node id -> address of its Raft listener, this node's own among them; empty: it is alone."""

    node_id: str = ""
    port: int = 7001
    peers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_port("meta_node.port", self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigNodeSettings:
    """A voter of the global configuration. `peers`: node id -> where this node reaches it, this node's own among them; empty: it is alone."""

    node_id: str = ""
    port: int = 7002
    raft_port: int = 7003
    peers: dict[str, str] = field(default_factory=dict)

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
    meta: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    tls: TlsSettings | None = None
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    bookie: BookieSettings = field(default_factory=BookieSettings)
    meta_node: MetaNodeSettings = field(default_factory=MetaNodeSettings)
    config_node: ConfigNodeSettings = field(default_factory=ConfigNodeSettings)

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ConfigError(f"the settings are of format {self.format}; this version reads format {FORMAT}")
        try:
            check_name("region", self.region)
            check_name("node", self.node_id)
        except NotAllowed as error:
            raise ConfigError(str(error)) from error
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
            raise ConfigError("meta is not set: a broker and a bookie need the addresses of the region's local metadata")
        if "broker" in self.roles and not self.config:
            raise ConfigError("config is not set: a broker needs the address of the region's configuration node")
        if self.bind in LOOPBACK:
            return
        if {"bookie", "meta", "config"} & set(self.roles):
            raise ConfigError(f"bind is {self.bind}: bookies and metadata nodes know no authentication in this version, and listen on 127.0.0.1 only")
        if self.broker.link_port and self.tls is None:
            raise ConfigError(f"bind is {self.bind}: links from other machines need certificates; set tls, or broker.link_port to 0")


def host_and_port(name: str, address: str) -> tuple[str, int]:
    """`host:port`. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= 65535:
        raise ConfigError(f"{name}: expected host:port, not {address!r}")
    return host.strip("[]"), int(port)


def load(path: str, environment: Mapping[str, str], *, roles: tuple[str, ...] = ()) -> ProcessSettings:
    """Reads file, then environment; `roles`, where given, replaces the file's. Raises ConfigError with one sentence."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the settings file {path} cannot be read ({error.strerror}); give another one with --settings") from error
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
    """A frozen dataclass from plain JSON: unknown names, missing ones, and wrong types are refused by name. Raises ConfigError."""
    here = path or "the settings"
    if not isinstance(fields, dict):
        raise ConfigError(f"{here}: expected an object, not {json.dumps(fields)}")
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


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, path)
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
    wanted = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "a list" if origin is tuple else "an object")
    raise ConfigError(f"{path}: expected {wanted}, not {json.dumps(value)}")
