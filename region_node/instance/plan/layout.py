"""Where everything of an instance on this machine lies: regions, nodes, ports, folders, wide-area links; and the
settings of each process.

Is: the plan, made once, kept in `instance.json` in the data folder, so that a second start continues where the first
was.
Isn't: running anything, or finding ports (`loopback_ports`). Invariants: a port is never given twice; the plan of an
existing data folder is not changed by other options.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError, NotAllowed
from heliograph.model.topic_names import check_name
from heliograph.runtime.process_usage import allowed_cpus
from region_node.instance.plan.loopback_ports import LoopbackPorts
from region_node.runtime.private_files import private_folder

FORMAT = 1
HOST = "127.0.0.1"
NEAR_HOST = "127.0.0.2"
"""Where what stands before a bookie listens: a bookie is registered by its own port, so that this has another address.
"""
CLIENTS, BROKERS = "clients", "brokers"
"""Who opens what goes through a proxy inside a region, as a region stands for who opens links to another."""
ROUND_TRIPS_MS = {("us", "eu"): 80, ("us", "ap"): 150, ("eu", "ap"): 200}
_OTHER_ROUND_TRIP_MS = 120
_JITTER_SHARE = 0.05
_BEFORE_BOOKIES = ("bookie", "bookie-http")


@dataclass(slots=True, kw_only=True)
class NodePlan:
    """One process. `ports`: by what listens there."""

    name: str
    region: str
    roles: list[str]
    ports: dict[str, int]


@dataclass(slots=True, kw_only=True)
class RegionPlan:
    """`service_port` and `admin_port` are what a client is told; with several brokers all of them listen there."""

    name: str
    number: int
    service_port: int
    admin_port: int
    brokers: list[NodePlan]
    bookies: list[NodePlan]
    metadata: NodePlan
    service_tls_port: int = 0
    """0: no TLS for clients."""
    health_port: int = 0
    """For clients with a failover of their own: open while brokers can do their work. 0: the folder was made before
    there was one.
    """
    voter: bool = True
    """Whether it votes in the global configuration; False: it is a learner, which has everything and decides nothing.
    """
    begun: list[int] = field(default_factory=list)
    """Brokers and bookies that it began with, which `up` is given for ever; empty: none was added or removed since."""
    named: dict[str, int] = field(default_factory=dict)
    """broker, bookie -> how many names were given, also to those that were removed; empty as above."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Brokers and bookies, at present."""
        return len(self.brokers), len(self.bookies)


@dataclass(slots=True, kw_only=True)
class WanLink:
    """One proxy: connections that `source` opens to `target`, for a node's port there. Inside a region `source` is
    `clients` or `brokers`; of the port that all its brokers share, `node` is the region.
    """

    name: str
    source: str
    target: str
    kind: str
    node: str
    port: int
    upstream: int
    round_trip_ms: int
    jitter_ms: int

    @property
    def listen(self) -> str:
        """`host:port`, where connections come in."""
        return f"{NEAR_HOST if self.kind in _BEFORE_BOOKIES else HOST}:{self.port}"


@dataclass(slots=True, kw_only=True)
class InstancePlan:
    """The whole instance. `wan`: `none`, or the name of the profile its links were made from."""

    regions: list[RegionPlan]
    wan: str = "none"
    links: list[WanLink] = field(default_factory=list)
    toxiproxy_port: int = 0
    standalone: bool = False
    tls: bool = False
    """TLS for clients beside the plain ports, and mutual TLS between all processes."""
    founders: dict[str, int] = field(default_factory=dict)
    """Regions that the instance began with -> their configuration's port, also of those that left; empty: none has
    joined or left.
    """
    numbers: int = 0
    """The highest number that a region ever had; 0: as many as there are regions."""
    left: list[str] = field(default_factory=list)
    """Regions that left: their names stay used."""
    pin: bool = False
    """Each broker has a core of its own, as far as there are some; the other processes share the rest."""
    witness: NodePlan | None = None
    """A voter of the global configuration that is no region; its name is that of its `region`."""
    left_witnesses: list[str] = field(default_factory=list)
    """Witnesses that were taken away: their names stay used."""
    proxied: bool = False
    """What clients open to brokers, and brokers and readers to bookies, goes through Toxiproxy, too."""
    format: int = FORMAT

    def region(self, name: str) -> RegionPlan:
        for region in self.regions:
            if region.name == name:
                return region
        raise ConfigError(f"no region {name!r} here; there are {', '.join(r.name for r in self.regions)}")

    def nodes(self) -> list[NodePlan]:
        witness = [self.witness] if self.witness is not None else []
        return [n for r in self.regions for n in (r.metadata, *r.bookies, *r.brokers)] + witness

    def voters(self) -> dict[str, NodePlan]:
        """Member of the global configuration, a region or the witness -> its process; some regions may be learners."""
        witness = {self.witness.region: self.witness} if self.witness is not None else {}
        return {region.name: region.metadata for region in self.regions} | witness

    def began_with(self) -> list[str]:
        """Returns the regions of the beginning, also those that left."""
        witnesses = [*self.left_witnesses, *([self.witness.region] if self.witness is not None else [])]
        return [name for name in self.founders if name not in witnesses] or [region.name for region in self.regions]

    def ports(self) -> set[int]:
        """All that its processes listen on."""
        shared = {
            port for r in self.regions for port in (r.service_port, r.admin_port, r.service_tls_port, r.health_port)
        }
        own = {port for node in self.nodes() for port in node.ports.values()}
        return (shared | own | {link.port for link in self.links} | {self.toxiproxy_port}) - {0}


def round_trips(profile: str, regions: list[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """(region, region) -> (round trip ms, jitter ms) for each pair. `profile`: default, or a JSON file like {"us-eu":
    {"rtt_ms": 80, "jitter_ms": 4}}.
    """
    table: dict[frozenset[str], tuple[int, int]] = {
        frozenset(k): (v, round(v * _JITTER_SHARE)) for k, v in ROUND_TRIPS_MS.items()
    }
    if profile != "default":
        try:
            rows = json.loads(Path(profile).read_text())
            for pair, row in rows.items():
                a, _, b = pair.partition("-")
                table[frozenset((a, b))] = (int(row["rtt_ms"]), int(row.get("jitter_ms", 0)))
        except OSError as error:
            raise ConfigError(
                f"--wan {profile}: {error.strerror}; it takes default, none, or a JSON file of round trips"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f'--wan {profile}: expected JSON like {{"us-eu": {{"rtt_ms": 80, "jitter_ms": 4}}}} ({error})'
            ) from error
    other = (_OTHER_ROUND_TRIP_MS, round(_OTHER_ROUND_TRIP_MS * _JITTER_SHARE))
    return {(a, b): table.get(frozenset((a, b)), other) for a, b in combinations(regions, 2)}


def make_plan(
    regions: list[str],
    *,
    brokers: dict[str, int],
    bookies: int,
    wan: str,
    service_port: int = 0,
    admin_port: int = 0,
    standalone: bool = False,
    tls: bool = False,
    witness: str = "",
    proxied: bool = False,
    ports: LoopbackPorts | None = None,
) -> InstancePlan:
    """A new plan; ports of 0 mean any free one. witness: the name of one; "": none.

    ports: where they stay kept until the caller lets them go, which is when the supervisor keeps them; None: they are
    let go at once.
    """
    if not regions or len(set(regions)) != len(regions):
        raise ConfigError("--regions wants names, each once, such as us,eu,ap")
    for name in regions:
        try:
            check_name("region", name)
        except NotAllowed as error:
            raise ConfigError(f"--regions: {error}") from error
    if not 2 <= bookies <= 16:
        raise ConfigError("--bookies must be 2 to 16: each entry is kept by two of them")
    if any(not 1 <= count <= 16 for count in brokers.values()):
        raise ConfigError("--brokers must be 1 to 16")
    if witness:
        check_witness(witness, regions, len(regions))
    plan = InstancePlan(regions=[], wan=wan, standalone=standalone, tls=tls, proxied=proxied)
    with contextlib.nullcontext(ports) if ports is not None else LoopbackPorts() as ports:
        for number, name in enumerate(regions, 1):
            service = ports.claim(service_port, "clients", "--service-port") if service_port else ports.free()
            admin = ports.claim(admin_port, "admin", "--admin-port") if admin_port else ports.free()
            linked = len(regions) > 1
            plan.regions.append(
                plan_region(
                    name,
                    number,
                    ports,
                    brokers=brokers[name],
                    bookies=bookies,
                    clients=(service, admin),
                    linked=linked,
                    tls=tls,
                )
            )
        if witness:
            plan = replace(plan, witness=plan_witness(witness, ports))
        linked = wan != "none" and len(regions) > 1
        if linked or proxied:
            plan.toxiproxy_port = ports.free()
        if linked:
            plan_links(plan, round_trips(wan, list(plan.voters())), ports)
        for region in plan.regions:
            plan_near(plan, region, ports)
    return plan


def check_witness(name: str, names: Collection[str], voters: int) -> None:
    """names: taken ones; voters: regions that vote. Raises ConfigError."""
    try:
        check_name("witness", name)
    except NotAllowed as error:
        raise ConfigError(str(error)) from error
    if name in names:
        raise ConfigError(f"{name!r} is, or was, the name of a region or a witness: give the witness another one")
    if voters % 2:
        raise ConfigError(
            f"a witness is of no use to {voters} region{'s' if voters > 1 else ''} that vote: it makes an even number "
            "odd, so that one of two regions may be lost, or two of four"
        )


def plan_witness(name: str, ports: LoopbackPorts) -> NodePlan:
    own = {"config": ports.free(), "raft": ports.free()}
    return NodePlan(name=f"{name}-witness", region=name, roles=["config"], ports=own)


def plan_region(
    name: str,
    number: int,
    ports: LoopbackPorts,
    *,
    brokers: int,
    bookies: int,
    clients: tuple[int, int],
    linked: bool,
    tls: bool,
) -> RegionPlan:
    """clients: where they reach the service and the admin interface; several brokers share these. linked: to other
    regions.
    """
    (service, admin), service_tls = clients, ports.free() if tls else 0
    own = (service, admin, service_tls) if brokers == 1 else None
    return RegionPlan(
        name=name,
        number=number,
        service_tls_port=service_tls,
        service_port=service,
        admin_port=admin,
        health_port=ports.free(),
        brokers=[plan_broker(name, i, ports, clients=own, linked=linked, tls=tls) for i in range(brokers)],
        bookies=[plan_bookie(name, i, ports) for i in range(bookies)],
        metadata=NodePlan(
            name=f"{name}-meta-0",
            region=name,
            roles=["meta", "config"],
            ports={"meta": ports.free(), "config": ports.free(), "raft": ports.free() if linked else 0},
        ),
    )


def plan_broker(
    region: str, number: int, ports: LoopbackPorts, *, clients: tuple[int, int, int] | None, linked: bool, tls: bool
) -> NodePlan:
    """clients: of one that is alone, the region's ports (service, admin, service with TLS), which are its own; None: it
    shares them, beside its own.
    """
    service, admin, service_tls = clients or (ports.free(), ports.free(), ports.free() if tls else 0)
    return NodePlan(
        name=f"{region}-broker-{number}",
        region=region,
        roles=["broker"],
        ports={
            "service": service,
            "admin": admin,
            "link": ports.free() if linked else 0,
            **({"service_tls": service_tls, "admin_tls": ports.free()} if tls else {}),
        },
    )


def plan_bookie(region: str, number: int, ports: LoopbackPorts) -> NodePlan:
    return NodePlan(
        name=f"{region}-bookie-{number}",
        region=region,
        roles=["bookie"],
        ports={"bookie": ports.free(), "http": ports.free()},
    )


def plan_links(
    plan: InstancePlan,
    trips: dict[tuple[str, str], tuple[int, int]],
    ports: LoopbackPorts,
    only: NodePlan | None = None,
) -> None:
    """Adds those of each pair, each way; between a witness and a region the configuration alone. only: those to this
    broker.
    """
    voters, witness = plan.voters(), plan.witness.region if plan.witness is not None else ""
    for a, b in trips:
        for source, target in ((a, b), (b, a)):
            brokers = [] if witness in (a, b) else plan.region(target).brokers
            ends = [("link", n, n.ports["link"]) for n in brokers] + [
                ("config", voters[target], voters[target].ports["raft"])
            ]
            for kind, node, upstream in ends:
                if only is not None and node.name != only.name:
                    continue
                plan.links.append(
                    WanLink(
                        name=f"{kind}.{source}-{target}.{node.name}",
                        source=source,
                        target=target,
                        kind=kind,
                        node=node.name,
                        port=ports.free(),
                        upstream=upstream,
                        round_trip_ms=trips[a, b][0],
                        jitter_ms=trips[a, b][1],
                    )
                )


def plan_near(plan: InstancePlan, region: RegionPlan, ports: LoopbackPorts) -> None:
    """Adds the proxies inside a region of a proxied instance that are missing; one of a broker that got another port
    leads there. Raises ConfigError for a region that has the name of an end.
    """
    if not plan.proxied:
        return
    if region.name in (CLIENTS, BROKERS):
        raise ConfigError(
            f"a region {region.name!r} cannot be told from those who are at the proxies: call it otherwise"
        )
    there = {(link.kind, link.node): link for link in plan.links if link.source in (CLIENTS, BROKERS)}
    doors = [("client", region.name, region.service_port), ("client-tls", region.name, region.service_tls_port)]
    for node in region.brokers:
        doors += [
            ("client", node.name, node.ports["service"]),
            ("client-tls", node.name, node.ports.get("service_tls", 0)),
        ]
    for node in region.bookies:
        doors += [("bookie", node.name, node.ports["bookie"]), ("bookie-http", node.name, node.ports.get("http", 0))]
    for kind, name, upstream in doors:
        if (kind, name) in there:
            there[kind, name].upstream = upstream
        elif upstream:
            plan.links.append(
                WanLink(
                    name=f"{kind}.{name}",
                    source=BROKERS if kind == "bookie" else CLIENTS,
                    target=region.name,
                    kind=kind,
                    node=name,
                    port=upstream if kind in _BEFORE_BOOKIES else ports.free(),
                    upstream=upstream,
                    round_trip_ms=0,
                    jitter_ms=0,
                )
            )


def door(plan: InstancePlan, node: str, port: int, kind: str = "client") -> int:
    """Where clients reach a broker, or, by a region's name, its brokers: a proxy's port, or their own, which is `port`.
    kind: `client-tls` of TLS.
    """
    return next((x.port for x in plan.links if (x.source, x.kind, x.node) == (CLIENTS, kind, node)), port)


def reach(plan: InstancePlan, source: str, kind: str, node: NodePlan) -> int:
    """The port where `source` reaches `node`'s link or raft listener: a proxy's, or the node's own."""
    for link in plan.links:
        if (link.source, link.kind, link.node) == (source, kind, node.name):
            return link.port
    return node.ports["link" if kind == "link" else "raft"]


# -- the data folder --------------------------------------------------------------------------------------------------


def plan_path(data: Path) -> Path:
    return data / "instance.json"


def load_plan(data: Path) -> InstancePlan | None:
    """The plan of an existing data folder, or None. Raises ConfigError for another format."""
    try:
        fields: dict[str, Any] = json.loads(plan_path(data).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(
            f"{plan_path(data)} is not readable ({error}); restore it, or choose another folder with --data"
        ) from error
    if fields.get("format") != FORMAT:
        raise ConfigError(
            f"the data folder {data} has format {fields.get('format')}, this version of heliograph reads format "
            f"{FORMAT}: "
            "run the version that wrote it, or choose another folder with --data"
        )
    if fields.get("witness"):
        fields["witness"] = NodePlan(**fields["witness"])
    regions = [
        RegionPlan(
            **{
                **r,
                "brokers": [NodePlan(**n) for n in r["brokers"]],
                "bookies": [NodePlan(**n) for n in r["bookies"]],
                "metadata": NodePlan(**r["metadata"]),
            }
        )
        for r in fields.pop("regions")
    ]
    return InstancePlan(**{**fields, "regions": regions, "links": [WanLink(**x) for x in fields["links"]]})


def save_plan(data: Path, plan: InstancePlan) -> None:
    """Durable before it is seen: written beside, synced, renamed."""
    private_folder(data)
    scratch = plan_path(data).with_suffix(".new")
    fields = asdict(plan)
    for name in ("witness", "left_witnesses", "proxied"):
        if not fields[name]:  # as below
            del fields[name]
    for region in fields["regions"]:
        for name in ("begun", "named"):
            if not region[name]:  # earlier versions read a plan that never was resized
                del region[name]
    with scratch.open("w") as file:
        json.dump(fields, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(plan_path(data))


def check_ports(plan: InstancePlan) -> None:
    """Before anything starts: the ports that clients know are free. Raises ConfigError."""
    with LoopbackPorts() as ports:
        for region in plan.regions:
            ports.claim(
                region.service_port, f"clients of region {region.name}", "--service-port in a new --data folder"
            )
            ports.claim(region.admin_port, f"admin of region {region.name}", "--admin-port in a new --data folder")


def data_of(data: Path, region: str, node: str) -> Path:
    """The folder of one process."""
    return data / region / node.removeprefix(f"{region}-")


def node_settings(data: Path, plan: InstancePlan, node: NodePlan) -> dict[str, Any]:
    """What one process is told, as JSON."""
    voter = plan.voters()[node.region]
    folder = data / "tls"
    many = len(plan.regions) > 1 or bool(plan.founders)
    roles = ("config",) if node is plan.witness else ("replicator", "config", "broker", "bookie", "meta")
    settings: dict[str, Any] = {
        "format": FORMAT,
        "region": node.region,
        "node_id": node.name,
        "data_dir": str(data_of(data, node.region, node.name)),
        "roles": node.roles,
        "bind": HOST,
        "meta": [f"{HOST}:{voter.ports['meta']}"] if "meta" in voter.ports else [],
        "config": [f"{HOST}:{voter.ports['config']}"],
        "tls": {
            "ca": str(folder / "ca.pem"),
            **_pairs(folder, node.region, [role for role in roles if role in ("replicator", "config")]),
            **(_inside(folder, node.region, roles) if plan.tls else {}),
        }
        if many or plan.tls
        else None,
    }
    if plan.pin:
        settings["cpus"] = ",".join(map(str, cpus_of(plan, node, allowed_cpus())))
    if "broker" in node.roles:
        region = plan.region(node.region)
        shared = node.ports["service"] != region.service_port
        settings["broker"] = {
            "port": node.ports["service"],
            "admin_port": node.ports["admin"],
            "link_port": node.ports["link"],
            "shared_port": region.service_port if shared else 0,
            "shared_admin_port": region.admin_port if shared else 0,
            "tls_port": node.ports.get("service_tls", -1),
            "admin_tls_port": node.ports.get("admin_tls", -1),
            "shared_tls_port": region.service_tls_port if shared else 0,
            "listeners": {
                f"link-{other.name}": f"pulsar+ssl://{HOST}:{reach(plan, other.name, 'link', node)}"
                for other in plan.regions
                if other.name != node.region
            }
            | _doors(plan, node),
            "advertised_host": HOST,
            "canary": {"port": region.health_port} if region.health_port else {"by_itself": True},
        }
    if "bookie" in node.roles:
        settings["bookie"] = {
            "port": node.ports["bookie"],
            "bookie_id": node.name,
            "http_port": node.ports.get("http", -1),
            **({"advertised_host": NEAR_HOST} if plan.proxied else {}),
        }
    if "meta" in node.roles:
        settings["meta_node"] = {
            "node_id": node.name,
            "port": node.ports["meta"],
            "peers": {node.name: f"{HOST}:{node.ports['meta']}"},
        }
    if "config" in node.roles:
        peers = {
            name: f"{HOST}:{one.ports['raft'] if one is voter else reach(plan, node.region, 'config', one)}"
            for name, one in plan.voters().items()
        }
        joining = bool(plan.founders) and node.region not in plan.founders
        if plan.founders and not joining:  # who joined later is found by the configuration's own list of members
            peers = {name: peers.get(name, f"{HOST}:{port}") for name, port in plan.founders.items()}
        settings["config_node"] = {
            "node_id": node.region,
            "port": node.ports["config"],
            "raft_port": node.ports["raft"],
            "peers": peers,
            "joining": joining,
            **({"witness": True} if node is plan.witness else {}),
        }
    return settings


def _doors(plan: InstancePlan, node: NodePlan) -> dict[str, str]:
    """Listeners by which a broker of a proxied instance tells clients its proxies, in the place of its own ports."""
    if not plan.proxied:
        return {}
    tls = node.ports.get("service_tls", 0)
    return {
        "": f"pulsar://{HOST}:{door(plan, node.name, node.ports['service'])}",
        **({"tls": f"pulsar+ssl://{HOST}:{door(plan, node.name, tls, 'client-tls')}"} if tls else {}),
    }


def cpus_of(plan: InstancePlan, node: NodePlan, cpus: list[int]) -> list[int]:
    """The cores of one process: a broker is one loop, and has one of them, in turn; the others have those that no
    broker has, or all. cpus: of this machine.
    """
    brokers = [one.name for one in plan.nodes() if "broker" in one.roles]
    if node.name in brokers:
        return [cpus[brokers.index(node.name) % len(cpus)]]
    return cpus[len(brokers) :] or cpus


def _inside(folder: Path, region: str, roles: Sequence[str]) -> dict[str, Any]:
    """Returns the TLS settings of a process: what mutual TLS between all processes wants, and the certificate that
    clients see.
    """
    files = _pairs(folder, region, roles)
    shown = {f"server_{part}": files[f"broker_{part}"] for part in ("cert", "key") if "broker" in roles}
    return {**files, **shown, "internal": True}


def _pairs(folder: Path, region: str, roles: Sequence[str]) -> dict[str, str]:
    parts = (("cert", "pem"), ("key", "key"))
    return {f"{role}_{part}": str(folder / f"{role}.{region}.{end}") for role in roles for part, end in parts}


def link_urls(plan: InstancePlan, target: RegionPlan) -> dict[str, list[str]]:
    """Source region -> where its links look topics up in `target`."""
    return {
        source.name: [f"pulsar+ssl://{HOST}:{reach(plan, source.name, 'link', n)}" for n in target.brokers]
        for source in plan.regions
        if source is not target
    }
