"""Render: the folder of each host, as it is copied there: settings, certificates, units, and what its commands must
know.

Is: an inventory and a CA's folder in, files out; the same input gives the same bytes. Isn't: the copying, or the CA's
key, which stays where it is.
A host gets the certificates of its own roles and region alone. `host.json`: see `HostManifest`.
Source: docs/operating/deploying.md.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.runtime.system_disk import FILE_MODE
from region_node.hosts import inventory as described
from region_node.hosts.inventory import HostNode, Inventory
from region_node.process.settings import build
from region_node.runtime.private_files import private_folder
from region_node.security.certificate_authority import ensure_certificates

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostManifest:
    """What a host's own commands go by. `nodes`: in the order in which they start; lists of names: all of the region,
    once all is done.
    """

    host: str
    region: str
    prefix: str
    service: str
    nodes: tuple[str, ...]
    meta: tuple[str, ...]
    voters: tuple[str, ...]
    bookies: tuple[str, ...]
    brokers: tuple[str, ...]
    own_bookies: tuple[str, ...] = ()
    voter: str = ""
    """This host's, where it has one; `replaces`: the member whose place it takes."""
    voter_address: str = ""
    joins: bool = False
    replaces: str = ""
    folders: tuple[str, ...] = ()
    """All that a removal deletes, beside `prefix`."""
    user: str = ""
    regions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """All regions of the instance, for the host that writes them into the global configuration."""
    config: str = ""
    """host:port, where this host has the role config."""
    witness: dict[str, str] = field(default_factory=dict)
    """Name -> where the regions reach it, of the witness, for the same host; empty: there is none."""
    format: int = FORMAT

    @classmethod
    def read(cls, path: Path) -> HostManifest:
        """Reads `host.json`. Raises ConfigError where it is not there, is no JSON, or has fields that are not known."""
        try:
            return build(cls, json.loads(path.read_text()), "host.json")
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}): nothing was copied to this host, or the prefix is another "
                "one"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON ({error}): copy the host's folder again") from error


def render(inventory: Inventory, ca: Path, out: Path) -> list[Path]:
    """Makes missing certificates in `ca`, and a folder for each host in `out`; folders of other hosts there go away."""
    names = {
        name: sorted(
            {
                at
                for host in region.hosts.values()
                for at in (host.address, host.client_address, host.link_address)
                if at
            }
        )
        for name, region in inventory.regions.items()
    }
    witnesses = [inventory.witness] if inventory.witness is not None else []
    names |= {one.name: sorted({at for at in (one.address, one.link_address) if at}) for one in witnesses}
    ensure_certificates(ca, list(inventory.regions), names, witnesses=[one.name for one in witnesses])
    private_folder(out)
    kept = {host for _, host in inventory.hosts()}
    for old in out.iterdir():
        if old.is_dir() and old.name not in kept:
            shutil.rmtree(old)
    return [_host(inventory, region, host, ca, out / host) for region, host in inventory.hosts()]


def _host(inventory: Inventory, region: str, host: str, ca: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    for made in (folder, folder / "tls"):
        private_folder(made)
    nodes = described.nodes(inventory, region, host)
    for node in nodes:
        _write(folder / f"{node.name}.json", _json(node.settings))
        if inventory.service == "systemd":
            _write(folder / f"heliograph-{node.name}.service", unit(inventory, host, node))
    roles = {role for node in nodes for role in node.roles}
    if region in inventory.regions:  # with a broker's certificate any host asks its region's metadata
        own = roles | ({"replicator"} if "broker" in roles else {"broker"})
    else:
        own = roles
    for role in sorted(own):
        for end in ("pem", "key"):
            _write(folder / "tls" / f"{role}.{region}.{end}", (ca / f"{role}.{region}.{end}").read_text())
    _write(folder / "tls" / "ca.pem", (ca / "ca.pem").read_text())
    for name, text in inventory.files.items():
        _write(folder / name, text)
    known = asdict(manifest(inventory, region, host, nodes))
    if not known["witness"]:  # an earlier release on the host reads it as it was
        del known["witness"]
    _write(folder / "host.json", _json(known))
    return folder


def manifest(inventory: Inventory, region_name: str, host_name: str, nodes: list[HostNode]) -> HostManifest:
    if region_name not in inventory.regions:
        return _manifest_of_witness(inventory, host_name, nodes)
    region = inventory.regions[region_name]
    host = region.hosts[host_name]
    voter = described.node_name(host_name, host, "meta") if "meta" in host.roles else ""
    replaces = ""
    if voter and host.generation > 1:
        replaces = f"{host_name}-meta" if host.generation == 2 else f"{host_name}-g{host.generation - 1}-meta"
    bookies = [node.settings["bookie"] for node in nodes if "bookie" in node.roles]
    disks = [path for bookie in bookies for path in (*bookie["journal_dirs"], *bookie["ledger_dirs"])]
    config = f"{host.address}:{inventory.ports.config}" if "config" in host.roles else ""
    return HostManifest(
        host=host_name,
        region=region_name,
        prefix=inventory.prefix_of(host_name),
        service=inventory.service,
        user=inventory.user if inventory.service == "systemd" else "",
        nodes=tuple(node.name for node in nodes),
        meta=tuple(f"{h.address}:{inventory.ports.meta}" for h in region.with_role("meta").values()),
        voters=tuple(described.voters(region)),
        bookies=tuple(described.of_role(region, "bookie")),
        brokers=tuple(described.of_role(region, "broker")),
        own_bookies=tuple(node.name for node in nodes if "bookie" in node.roles),
        voter=voter,
        voter_address=f"{host.address}:{inventory.ports.meta}" if voter else "",
        joins=bool(voter) and (host.joins or host.generation > 1),
        replaces=replaces,
        folders=(inventory.data_of(host_name), *disks),
        config=config,
        regions=_regions(inventory) if config else {},
        witness=_witness(inventory) if config else {},
    )


def _manifest_of_witness(inventory: Inventory, host_name: str, nodes: list[HostNode]) -> HostManifest:
    return HostManifest(
        host=host_name,
        region=host_name,
        prefix=inventory.prefix_of(host_name),
        service=inventory.service,
        user=inventory.user if inventory.service == "systemd" else "",
        nodes=tuple(node.name for node in nodes),
        meta=(),
        voters=(),
        bookies=(),
        brokers=(),
        folders=(inventory.data_of(host_name),),
        config=nodes[0].settings["config"][0],
        regions=_regions(inventory),
        witness=_witness(inventory),
    )


def _witness(inventory: Inventory) -> dict[str, str]:
    name = inventory.witness.name if inventory.witness is not None else ""
    return {name: inventory.raft_addresses()[name]} if name else {}


def _regions(inventory: Inventory) -> dict[str, dict[str, Any]]:
    found = {}
    addresses = inventory.raft_addresses()
    for name, region in inventory.regions.items():
        found[name] = {
            "number": region.number,
            "service_url": described.service_url(inventory, name),
            "admin_url": described.admin_url(inventory, name),
            "link_urls": described.link_urls(inventory, name),
            "raft": addresses[name],
            "joins": region.joins,
        }
    return found


_IO_WEIGHTS = {"bookie": 100, "": 400}
"""Nodes of one host share its disks: alike among bookies; before them who writes little and is waited for by all,
metadata above all.
"""


def unit(inventory: Inventory, host: str, node: HostNode) -> str:
    """Returns the text of the node's systemd unit. It starts only once the disks of its folders are mounted: an empty
    mount point is no empty disk.
    """
    prefix = inventory.prefix_of(host)
    bookie = node.settings.get("bookie", {})
    writes = " ".join(
        sorted({inventory.data_of(host), *bookie.get("journal_dirs", ()), *bookie.get("ledger_dirs", ())})
    )
    return f"""[Unit]
Description=Heliograph {node.name} ({", ".join(node.roles)})
After=network-online.target
Wants=network-online.target
RequiresMountsFor={writes}
StartLimitIntervalSec=0

[Service]
User={inventory.user}
UMask=0077
ExecStart={prefix}/current/bin/python -m region_node.process --settings {prefix}/etc/{node.name}.json
Restart=always
RestartSec=1
TimeoutStopSec=60
LimitNOFILE=1048576
CPUWeight=100
IOWeight={_IO_WEIGHTS["bookie" if "bookie" in node.roles else ""]}
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=yes
ProtectSystem=strict
ReadWritePaths={writes}

[Install]
WantedBy=multi-user.target
"""


def _json(fields: Any) -> str:
    return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def _write(path: Path, text: str) -> None:
    path.touch(FILE_MODE)
    path.chmod(FILE_MODE)
    path.write_text(text)
