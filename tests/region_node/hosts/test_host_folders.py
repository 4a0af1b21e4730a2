"""What a host is given: its own certificates and no other's, the same bytes for the same description, units that start
its processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from heliograph.model.errors import ConfigError
from region_node.hosts.host_folders import HostManifest, render
from region_node.hosts.inventory import parse


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_host_gets_the_certificates_of_its_own_roles_and_region(described: dict[str, Any], tmp_path: Path) -> None:
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    # With a broker's certificate any host asks its region's metadata for its turn.
    assert {path.name for path in (tmp_path / "out" / "eu-c" / "tls").iterdir()} == {
        "ca.pem",
        *(f"{role}.eu.{end}" for role in ("bookie", "broker") for end in ("pem", "key")),
    }
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name == "ca.key"]
    assert not [path for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")) if path.stat().st_mode & 0o77]


def test_the_same_description_gives_the_same_bytes(described: dict[str, Any], tmp_path: Path) -> None:
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    before = tree(tmp_path / "out")
    del described["regions"]["eu"]["hosts"]["eu-c"]
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    after = tree(tmp_path / "out")
    assert not (tmp_path / "out" / "eu-c").exists(), "a host that is gone has no folder"
    assert {name for name in after if after[name] != before[name]} == {"eu-a/host.json", "eu-b/host.json"}, (
        "the others know that it is gone, and nothing else"
    )


def test_certificates_hold_the_names_that_clients_use(described: dict[str, Any], tmp_path: Path) -> None:
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    first = (tmp_path / "ca" / "broker.eu.pem").read_bytes()
    described["regions"]["eu"]["hosts"]["eu-a"]["client_address"] = "eu.example"
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    leaf = x509.load_pem_x509_certificate((tmp_path / "ca" / "broker.eu.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "eu.example" in names.get_values_for_type(x509.DNSName)
    assert "127.0.1.2" in [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert first != (tmp_path / "out" / "eu-a" / "tls" / "broker.eu.pem").read_bytes()
    again = (tmp_path / "ca" / "broker.us.pem").read_bytes()
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    assert (tmp_path / "ca" / "broker.us.pem").read_bytes() == again, "what holds its names already stays"


def test_units_start_the_process_and_let_it_write_its_own_folders_only(
    described: dict[str, Any], tmp_path: Path
) -> None:
    described["service"] = "systemd"
    described["regions"]["eu"]["hosts"]["eu-c"] |= {"journal_dirs": ["/mnt/j"], "ledger_dirs": ["/mnt/l0", "/mnt/l1"]}
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    unit = (tmp_path / "out" / "eu-c" / "heliograph-eu-c-bookie-0.service").read_text()
    assert (
        "ExecStart=/opt/heliograph/current/bin/python -m region_node.process --settings "
        "/opt/heliograph/etc/eu-c-bookie-0.json\n"
    ) in unit
    assert "User=heliograph\nUMask=0077\n" in unit and "\nIOWeight=100\n" in unit and "\nCPUWeight=100\n" in unit
    weights = {
        path.read_text().partition("IOWeight=")[2].split()[0]
        for path in (tmp_path / "out" / "eu-a").glob("*.service")
        if "bookie" not in path.name
    }
    assert weights == {"400"}, "metadata is waited for by all"
    folders = "/mnt/j/eu-c-bookie-0 /mnt/l0/eu-c-bookie-0 /mnt/l1/eu-c-bookie-0 /var/lib/heliograph"
    assert f"\nReadWritePaths={folders}\n" in unit
    before_service, _, _ = unit.partition("[Service]")
    assert f"\nRequiresMountsFor={folders}\n" in before_service, "an empty mount point is no empty disk"
    manifest = HostManifest.read(tmp_path / "out" / "eu-c" / "host.json")
    assert manifest.folders == (
        "/var/lib/heliograph",
        "/mnt/j/eu-c-bookie-0",
        "/mnt/l0/eu-c-bookie-0",
        "/mnt/l1/eu-c-bookie-0",
    )


def test_a_manifest_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing was copied to this host"):
        HostManifest.read(tmp_path / "host.json")
    (tmp_path / "host.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        HostManifest.read(tmp_path / "host.json")


def test_a_witness_gets_the_certificate_of_a_voter_alone(described: dict[str, Any], tmp_path: Path) -> None:
    before = HostManifest.read(
        next(one for one in render(parse(described), tmp_path / "ca", tmp_path / "a") if one.name == "eu-a")
        / "host.json"
    )
    assert "witness" not in (tmp_path / "a" / "eu-a" / "host.json").read_text(), "as earlier releases read it"
    described["witness"] = {"name": "oslo", "address": "127.0.1.7", "link_address": "oslo.example"}
    render(parse(described), tmp_path / "ca", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "oslo" / "tls").iterdir()} == {
        "ca.pem",
        "config.oslo.pem",
        "config.oslo.key",
    }
    leaf = x509.load_pem_x509_certificate((tmp_path / "ca" / "config.oslo.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "oslo.example" in names.get_values_for_type(x509.DNSName)
    assert not list((tmp_path / "ca").glob("replicator.oslo.*"))
    known = HostManifest.read(tmp_path / "out" / "oslo" / "host.json")
    assert (known.nodes, known.meta, known.config) == (("oslo-witness",), (), "127.0.1.7:7002")
    found = HostManifest.read(tmp_path / "out" / "eu-a" / "host.json")
    assert found.witness == known.witness == {"oslo": "oslo.example:7003"} and found.regions == before.regions
