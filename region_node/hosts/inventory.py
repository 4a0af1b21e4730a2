"""Inventory: an instance on several hosts, as an operator describes it; and which processes that means, with their
settings.

Is: the one input (`heliograph hosts`, the Terraform modules), checked; each error is a sentence. Isn't: files,
certificates (`host_folders`), or starting.
Invariants: a name means one process for ever: a host whose disks are new has a new `generation`, and its bookies and
voters have new names; a metadata voter that was none of the first joins; everything between hosts is mutual TLS.
Source: docs/operating/deploying.md, "The description".
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.topic_names import check_name
from region_node.process.settings import FORMAT as SETTINGS_FORMAT
from region_node.process.settings import ROLES, build, process_settings
from region_node.security.exposure import Exposure

FORMAT = 1
_OWN = {
    "broker": 6700,
    "broker_tls": 6800,
    "link": 6900,
    "inside": 7100,
    "admin": 8100,
    "admin_tls": 8500,
    "bookie_http": 8200,
}
"""Where the ports of several brokers, or bookies, of one host begin."""
_HEALTH = 6652


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPorts:
    """What each host listens on; -1: not open."""

    broker: int = 6650
    broker_tls: int = 6651
    admin: int = 8080
    admin_tls: int = 8443
    link: int = 6660
    inside: int = 6670
    bookie: int = 3181
    bookie_http: int = 8000
    meta: int = 7001
    config: int = 7002
    raft: int = 7003
    health: int | None = None
    """The canary's; None: 6652, where brokers have a port without TLS, as this one has none; 0 or -1: not open."""

    @property
    def canary(self) -> dict[str, Any]:
        """It tries on every host; `port` where clients may look at it."""
        port = self.health if self.health is not None else _HEALTH if self.broker != -1 else 0
        return {"port": max(0, port), "by_itself": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    address: str
    """Where it listens, and the region's other hosts reach it."""
    roles: tuple[str, ...]
    client_address: str = ""
    """What clients are told; empty: `address`."""
    link_address: str = ""
    """Where other regions reach it; empty: `address`."""
    brokers: int = 1
    bookies: int = 1
    zone: str = ""
    journal_dirs: tuple[str, ...] = ()
    """One for each journal disk; empty: below the data folder. Never changed."""
    ledger_dirs: tuple[str, ...] = ()
    generation: int = 1
    """Counted up when the host comes back with empty disks."""
    joins: bool = False
    """It was not there when the region began."""

    def __post_init__(self) -> None:
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(f"a host's role {role!r} is none of {', '.join(ROLES)}")
        if not self.roles:
            raise ConfigError(f"the host at {self.address} has no role: give it some of {', '.join(ROLES)}")
        for name, count in (("brokers", self.brokers), ("bookies", self.bookies)):
            if not 1 <= count <= 16:
                raise ConfigError(
                    f"{name} of a host must be 1 to 16, not {count}; a host without them does not have the role"
                )
        if self.generation < 1:
            raise ConfigError(f"generation must be at least 1, not {self.generation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    number: int
    """1 to 255, its own for ever."""
    hosts: dict[str, Host]
    service_url: str = ""
    """Empty: all brokers. With a load balancer for lookup: its URL."""
    admin_url: str = ""
    joins: bool = False
    """It was not there when the instance began."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Merged into the settings of all its processes, over what is made here; `{etc}` in texts is the folder of `files`.
    """

    def with_role(self, role: str) -> dict[str, Host]:
        return {name: host for name, host in self.hosts.items() if role in host.roles}


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessHost:
    """A host of a voter of the global configuration alone, which is in no region."""

    name: str
    """Of the host, and of the voter."""
    address: str
    """Where it listens."""
    link_address: str = ""
    """Where the regions reach it; empty: `address`."""
    joins: bool = False
    """It was not there when the instance began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    name: str
    regions: dict[str, Region]
    witness: WitnessHost | None = None
    ports: HostPorts = field(default_factory=HostPorts)
    prefix: str = "/opt/heliograph"
    """Program, settings, and certificates, on each host; `{host}` in it is the host's name."""
    data: str = "/var/lib/heliograph"
    service: str = "systemd"
    """`systemd`, or `plain`: a keeper of ours for each process, where no systemd runs."""
    user: str = "heliograph"
    """The processes' user, with systemd."""
    settings: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Name -> text, put beside the settings of each host: public keys of issuers, say."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ConfigError(f"the description is of format {self.format}; this version reads format {FORMAT}")
        if self.service not in ("systemd", "plain"):
            raise ConfigError(f"service must be systemd or plain, not {self.service!r}")
        for what, path in (("prefix", self.prefix), ("data", self.data)):
            if not re.fullmatch(r"(/[^/' ]+){2,}", path):
                raise ConfigError(
                    f"{what} must be an absolute path of two names at least, because it is deleted with a host, not "
                    f"{path!r}"
                )
        if not self.regions:
            raise ConfigError("the description has no region: an instance has one at least")
        witnesses = [self.witness] if self.witness is not None else []
        names = [host for region in self.regions.values() for host in region.hosts] + [one.name for one in witnesses]
        addresses = [host.address for region in self.regions.values() for host in region.hosts.values()]
        addresses += [one.address for one in witnesses]
        _once("host", names)
        _once("address", addresses)
        _once("number", [str(region.number) for region in self.regions.values()])
        for name in (self.name, *self.regions, *names, *self.files):
            try:
                check_name("instance, region, host, or file", name)
            except NotAllowed as error:
                raise ConfigError(str(error)) from error
        for name, region in self.regions.items():
            _check_region(name, region)
        for one in witnesses:
            _check_witness(one, self.regions)
        for region_name, host_name in self.hosts():
            for node in nodes(self, region_name, host_name):
                _check_settings(node)

    def hosts(self) -> list[tuple[str, str]]:
        """Returns (region, host) of all, in the order of the description; the witness, which has its own name as that
        of its region, is the last.
        """
        witness = [(self.witness.name, self.witness.name)] if self.witness is not None else []
        return [(name, host) for name, region in self.regions.items() for host in region.hosts] + witness

    def raft_addresses(self) -> dict[str, str]:
        """Region, or witness -> where the others reach its configuration node."""
        found: dict[str, Host | WitnessHost] = {}
        for name, region in self.regions.items():
            (found[name],) = region.with_role("config").values()
        if self.witness is not None:
            found[self.witness.name] = self.witness
        return {name: f"{at.link_address or at.address}:{self.ports.raft}" for name, at in found.items()}

    def joined(self) -> set[str]:
        """Returns the regions, and the witness, that were not there when the instance began."""
        witness = {self.witness.name} if self.witness is not None and self.witness.joins else set()
        return {name for name, region in self.regions.items() if region.joins} | witness

    def region_of(self, host: str) -> str:
        """Returns the name of the region that has the host. Raises ConfigError where none has it."""
        for region, name in self.hosts():
            if name == host:
                return region
        raise ConfigError(
            f"no host {host!r} in the description; there are {', '.join(name for _, name in self.hosts())}"
        )

    def prefix_of(self, host: str) -> str:
        return self.prefix.replace("{host}", host)

    def data_of(self, host: str) -> str:
        return self.data.replace("{host}", host)


@dataclass(frozen=True, slots=True)
class HostNode:
    """One process of a host."""

    name: str
    roles: tuple[str, ...]
    settings: dict[str, Any]


def parse(fields: Any) -> Inventory:
    """Checks a description that was read from a file. Raises ConfigError, which names the field."""
    return build(Inventory, fields, "")


def _once(what: str, given: list[str]) -> None:
    for one in given:
        if given.count(one) > 1:
            raise ConfigError(f"{what} {one!r} is in the description twice; each must be of its own")


def _check_region(name: str, region: Region) -> None:
    if not 1 <= region.number <= 255:
        raise ConfigError(f"the number of region {name} must be 1 to 255, not {region.number}")
    for role in ("meta", "broker"):
        if not region.with_role(role):
            raise ConfigError(f"region {name} has no host with the role {role}")
    if len(configs := region.with_role("config")) != 1:
        raise ConfigError(
            f"region {name} wants one host with the role config, not {len(configs)}: the global configuration has one "
            "voter a region"
        )
    if not [host for host in region.with_role("meta").values() if not host.joins]:
        raise ConfigError(f"region {name}: every metadata host `joins`, and none was there when the region began")
    if (count := sum(host.bookies for host in region.with_role("bookie").values())) < 2:
        raise ConfigError(f"region {name} has {count} bookies and wants at least 2: each entry is kept by two of them")


def _check_witness(witness: WitnessHost, regions: dict[str, Region]) -> None:
    if witness.name in regions:
        raise ConfigError(f"the witness {witness.name!r} has the name of a region: give it another one")
    joins = len(regions) > 1 and any(region.joins for region in regions.values())
    if len(regions) % 2 and not joins:  # beside one that joins there is one until the witness leaves
        raise ConfigError(
            f"a witness is of no use to {len(regions)} regions: it makes an even number of voters odd; leave it out"
        )


def _check_settings(node: HostNode) -> None:
    """What a process would refuse is refused before a host is touched; files are not there yet, so what names some is
    left out.
    """
    fields = {**node.settings, "tls": None, "bind": "127.0.0.1", "security": {}}
    try:
        process_settings(fields)
    except ConfigError as error:
        raise ConfigError(f"{node.name}: {error}") from error
    if "broker" in node.roles:
        security = node.settings.get("security", {})
        known = {entry.name for entry in dataclasses.fields(Exposure)}
        given = {n: v for n, v in security.items() if n in known} if isinstance(security, dict) else security
        build(Exposure, given, f"{node.name}: security").check(f"{node.name}: its address", node.settings["bind"])


# -- processes --------------------------------------------------------------------------------------------------------


def node_name(host_name: str, host: Host, role: str, index: int | None = None) -> str:
    again = f"-g{host.generation}" if host.generation > 1 and role != "broker" else ""
    return f"{host_name}{again}-{role}" + ("" if index is None else f"-{index}")


def voters(region: Region) -> list[str]:
    """Members that the region's metadata has once all is done."""
    return [node_name(name, host, "meta") for name, host in region.with_role("meta").items()]


def of_role(region: Region, role: str) -> list[str]:
    """Names of all bookies, or brokers."""
    found = region.with_role(role).items()
    return [
        node_name(name, host, role, i)
        for name, host in found
        for i in range(host.bookies if role == "bookie" else host.brokers)
    ]


def nodes(inventory: Inventory, region_name: str, host_name: str) -> list[HostNode]:
    """In the order in which they start."""
    if region_name not in inventory.regions:
        return [_witness(inventory, host_name)]
    region = inventory.regions[region_name]
    host = region.hosts[host_name]
    found: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []
    metadata = tuple(role for role in ("meta", "config") if role in host.roles)
    if metadata:
        name = node_name(host_name, host, metadata[0])
        found.append((name, metadata, _metadata(inventory, region_name, host_name, name, metadata)))
    if "bookie" in host.roles:
        for i in range(host.bookies):
            name = node_name(host_name, host, "bookie", i)
            found.append((name, ("bookie",), {"bookie": _bookie(inventory, host, name, i)}))
    if "broker" in host.roles:
        for i in range(host.brokers):
            found.append(
                (
                    node_name(host_name, host, "broker", i),
                    ("broker",),
                    {"broker": _broker(inventory, region_name, host, i)},
                )
            )
    return [
        HostNode(name, roles, _settings(inventory, region_name, host_name, name, roles, sections))
        for name, roles, sections in found
    ]


def _settings(
    inventory: Inventory, region_name: str, host_name: str, name: str, roles: tuple[str, ...], sections: dict[str, Any]
) -> dict[str, Any]:
    region, ports = inventory.regions[region_name], inventory.ports
    (config,) = region.with_role("config").values()
    addresses = {
        "bind": region.hosts[host_name].address,
        "meta": [f"{host.address}:{ports.meta}" for host in region.with_role("meta").values()],
        "config": [f"{config.address}:{ports.config}"],
    }
    extras = [inventory.settings, region.settings]
    return _made(inventory, region_name, host_name, name, roles, {**addresses, **sections}, extras)


def _witness(inventory: Inventory, host_name: str) -> HostNode:
    witness, ports = inventory.witness, inventory.ports
    assert witness is not None and witness.name == host_name
    name = f"{witness.name}-witness"
    sections = {
        "bind": witness.address,
        "config": [f"{witness.address}:{ports.config}"],
        "config_node": {**_config_node(inventory, witness.name, witness.address, witness.joins), "witness": True},
    }
    settings = _made(inventory, witness.name, host_name, name, ("config",), sections, [inventory.settings])
    return HostNode(name, ("config",), settings)


def _made(
    inventory: Inventory,
    region_name: str,
    host_name: str,
    name: str,
    roles: tuple[str, ...],
    sections: dict[str, Any],
    extras: list[dict[str, Any]],
) -> dict[str, Any]:
    """extras: what an operator sets beside, merged for those whom it concerns; the later wins."""
    etc = f"{inventory.prefix_of(host_name)}/etc"
    certificate = {
        f"{role}_{part}": f"{etc}/tls/{role}.{region_name}.{end}"
        for role in _keys(roles)
        for part, end in (("cert", "pem"), ("key", "key"))
    }
    if "broker" in roles:
        certificate |= {"server_cert": certificate["broker_cert"], "server_key": certificate["broker_key"]}
    made: dict[str, Any] = {
        "format": SETTINGS_FORMAT,
        "region": region_name,
        "node_id": name,
        "data_dir": f"{inventory.data_of(host_name)}/{name}",
        "roles": list(roles),
        "tls": {"ca": f"{etc}/tls/ca.pem", "internal": True, **certificate},
        **sections,
    }
    relevant = {"security", "tls", *sections}
    for extra in extras:
        made = _merged(
            made, {key: _filled(value, etc) for key, value in extra.items() if key in relevant or key not in _SECTIONS}
        )
    return made


_SECTIONS = ("security", "tls", "broker", "bookie", "meta_node", "config_node")


def _keys(roles: tuple[str, ...]) -> list[str]:
    """Whose certificates a process wants."""
    return [*roles, *(["replicator"] if "broker" in roles else [])]


def _metadata(
    inventory: Inventory, region_name: str, host_name: str, name: str, roles: tuple[str, ...]
) -> dict[str, Any]:
    region, ports = inventory.regions[region_name], inventory.ports
    host = region.hosts[host_name]
    made: dict[str, Any] = {}
    if "meta" in roles:
        joins = host.joins or host.generation > 1
        # A founder that came back with empty disks is another member: its old name leads nowhere.
        founders = {
            f"{other}-meta": f"{h.address}:{ports.meta if h.generation == 1 else 9}"
            for other, h in region.with_role("meta").items()
            if not h.joins
        }
        later = {
            node_name(other, h, "meta"): f"{h.address}:{ports.meta}"
            for other, h in region.with_role("meta").items()
            if h.joins and not joins and len(founders) == 1
        }
        made["meta_node"] = {"node_id": name, "port": ports.meta, "peers": founders, "joining": joins}
        made["meta_node"] |= {"later": later} if later else {}
    if "config" in roles:
        joins = region.joins or host.generation > 1
        made["config_node"] = _config_node(inventory, region_name, host.address, joins)
    return made


def _config_node(inventory: Inventory, member: str, address: str, joins: bool) -> dict[str, Any]:
    ports, joined = inventory.ports, inventory.joined()
    peers = {
        name: f"{address}:{ports.raft}" if name == member else way
        for name, way in inventory.raft_addresses().items()
        if name not in joined or name == member
    }
    alone = not joins and len(peers) == 1
    later = {name: way for name, way in inventory.raft_addresses().items() if alone and name in joined}
    own = {"node_id": member, "port": ports.config, "raft_port": ports.raft}
    return {**own, "peers": peers, "joining": joins, **({"later": later} if later else {})}


def _bookie(inventory: Inventory, host: Host, name: str, index: int) -> dict[str, Any]:
    ports = inventory.ports
    http = ports.bookie_http if host.bookies == 1 or ports.bookie_http == -1 else _OWN["bookie_http"] + index
    return {
        "port": ports.bookie + index,
        "bookie_id": name,
        "http_port": http,
        "advertised_host": host.address,
        "rack": host.zone,
        "journal_dirs": [f"{path}/{name}" for path in host.journal_dirs],
        "ledger_dirs": [f"{path}/{name}" for path in host.ledger_dirs],
    }


def _broker(inventory: Inventory, region_name: str, host: Host, index: int) -> dict[str, Any]:
    ports = _broker_ports(inventory.ports, host, index)
    many, link = host.brokers > 1, host.link_address or host.address
    return {
        "port": ports["broker"],
        "tls_port": ports["broker_tls"],
        "admin_port": ports["admin"],
        "admin_tls_port": ports["admin_tls"],
        "link_port": ports["link"],
        "inside_port": ports["inside"],
        "inside_host": host.address,
        "shared_port": inventory.ports.broker if many else 0,
        "shared_tls_port": max(0, inventory.ports.broker_tls) if many else 0,
        "shared_admin_port": inventory.ports.admin if many else 0,
        "advertised_host": host.client_address or host.address,
        "listeners": {
            f"link-{other}": f"pulsar+ssl://{link}:{ports['link']}"
            for other in inventory.regions
            if other != region_name
        },
        "canary": inventory.ports.canary,
    }


def _broker_ports(ports: HostPorts, host: Host, index: int) -> dict[str, int]:
    names = ("broker", "broker_tls", "admin", "admin_tls", "link", "inside")
    given = {name: int(getattr(ports, name)) for name in names}
    return (
        given if host.brokers == 1 else {name: _OWN[name] + index if port != -1 else -1 for name, port in given.items()}
    )


def link_urls(inventory: Inventory, region_name: str) -> dict[str, list[str]]:
    """Source region -> where its links look topics up in this one."""
    hosts = inventory.regions[region_name].with_role("broker").values()
    urls = [
        f"pulsar+ssl://{h.link_address or h.address}:{_broker_ports(inventory.ports, h, i)['link']}"
        for h in hosts
        for i in range(h.brokers)
    ]
    return {other: urls for other in inventory.regions if other != region_name}


def service_url(inventory: Inventory, region_name: str) -> str:
    region = inventory.regions[region_name]
    hosts = [host.client_address or host.address for host in region.with_role("broker").values()]
    return region.service_url or "pulsar://" + ",".join(f"{host}:{inventory.ports.broker}" for host in hosts)


def admin_url(inventory: Inventory, region_name: str) -> str:
    """By HTTPS where callers have tokens, which go from region to region no other way."""
    region, ports = inventory.regions[region_name], inventory.ports
    host = next(iter(region.with_role("broker").values()))
    asked = any(extra.get("security", {}).get("authentication") for extra in (inventory.settings, region.settings))
    scheme, port = ("https", _broker_ports(ports, host, 0)["admin_tls"]) if asked else ("http", ports.admin)
    if port < 0:
        scheme, port = "http", ports.admin
    return region.admin_url or f"{scheme}://{host.client_address or host.address}:{port}"


def _merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """extra wins; objects are merged name by name."""
    both = dict(base)
    for name, value in extra.items():
        both[name] = (
            _merged(both[name], value) if isinstance(value, dict) and isinstance(both.get(name), dict) else value
        )
    return both


def _filled(value: Any, etc: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(one, etc) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, etc) for one in value]
    return value.replace("{etc}", etc) if isinstance(value, str) else value
