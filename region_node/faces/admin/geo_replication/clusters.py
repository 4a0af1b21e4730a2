"""Regions, and the real Pulsar clusters behind them, both called clusters in these paths: list, get, create, update,
delete.

Is: their provisioning data as clients and the command line give it. A cluster with a `gateway` is a real Pulsar
cluster; else it is a region. Isn't: a region's brokers (`brokers`), or its links' state (`extensions`).
Invariants: a Pulsar cluster's answer that was changed in one place and is given back whole changes that place, and
never leaves TLS off by the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from aiohttp import web

from heliograph.model.configuration.configuration_records import PulsarCluster, RegionInfo
from heliograph.model.errors import MalformedRequest, NotFound
from heliograph.model.topic_names import check_name
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import Read
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from replicator.pulsar.cluster_credentials import check_file_name

_TOKENS = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
_CERTIFICATES = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
_FILES = {
    "token_file": "tokenFile",
    "trust_file": "trustFile",
    "certificate_file": "certificateFile",
    "key_file": "keyFile",
    "oauth_file": "oauthFile",
}


async def list_all(admin: Admin) -> list[str]:
    return sorted(
        [*(region.name for region in admin.view.regions()), *(cluster.name for cluster in admin.view.clusters())]
    )


async def get(admin: Admin, found: ExistingCluster) -> dict[str, Any]:
    return {**_shown(found), "peerClusterNames": list(admin.view.peers(found.name))}


async def create(admin: Admin, request: web.Request, given: dict[str, Any] | None) -> None:
    name = check_name("cluster", request.match_info["cluster"])
    given = given or {}
    if given.get("gateway"):
        cluster = PulsarCluster(name=name, **_cluster_fields(admin, given))
        await admin.config.create_cluster(cluster)
        await admin.seen(lambda: admin.view.cluster(name) == cluster)
        admin.changed(request, None, _shown(cluster))
        return
    fields = _fields(admin, given)
    await admin.config.create_region(name, **fields)
    await admin.seen(lambda: admin.view.region(name) is not None)
    admin.changed(request, None, fields)


async def update(admin: Admin, request: web.Request, found: ExistingCluster, given: dict[str, Any] | None) -> None:
    given = given or {}
    if isinstance(found, PulsarCluster):
        after = await admin.config.update_cluster(
            found.name, lambda old: replace(old, **_cluster_fields(admin, given, old))
        )
        await admin.seen(lambda: admin.view.cluster(found.name) == after)
        admin.changed(request, _shown(found), _shown(after))
        return
    before, fields = found, _fields(admin, given)

    def change(old: RegionInfo) -> RegionInfo:
        nonlocal before
        before = old
        return replace(old, **fields)

    changed = await admin.config.update_region(found.name, change)
    await admin.seen(lambda: (r := admin.view.region(found.name)) is not None and replace(r, **fields) == r)
    admin.changed(request, _shown(before), _shown(changed))


async def delete(admin: Admin, request: web.Request, found: ExistingCluster) -> None:
    if isinstance(found, PulsarCluster):
        await admin.config.delete_cluster(found.name)
        await admin.seen(lambda: admin.view.cluster(found.name) is None)
    else:
        await admin.config.delete_region(found.name)
        await admin.seen(lambda: admin.view.region(found.name) is None)
    admin.changed(request, _shown(found), None)


def _found(admin: Admin, request: web.Request) -> RegionInfo | PulsarCluster:
    name = request.match_info["cluster"]
    error = NotFound(f"Cluster {name} does not exist")
    return admin.view.region(name) or existing(admin.view.cluster(name), error)


ExistingCluster = Annotated[RegionInfo | PulsarCluster, Read(_found)]


def _shown(found: RegionInfo | PulsarCluster) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "serviceUrl": found.admin_url,
        "brokerServiceUrl": found.service_url,
        "brokerClientTlsEnabled": found.service_url.startswith("pulsar+ssl:") and isinstance(found, PulsarCluster),
    }
    if isinstance(found, RegionInfo):
        return {**shown, "number": found.number, "epoch": found.epoch}
    if found.service_url.startswith("pulsar+ssl:"):
        shown |= {
            "serviceUrlTls": found.admin_url,
            "brokerServiceUrlTls": found.service_url,
            "brokerClientTrustCertsFilePath": found.trust_file,
        }
    if found.certificate_file:
        shown |= {"brokerClientCertificateFilePath": found.certificate_file, "brokerClientKeyFilePath": found.key_file}
    if found.token_file:
        shown |= {
            "authenticationPlugin": _TOKENS,
            "authenticationParameters": f"file:///{found.token_file.lstrip('/')}",
        }
    elif found.certificate_file:
        key = f",tlsKeyFile:{found.key_file}" if found.key_file else ""
        shown |= {
            "authenticationPlugin": _CERTIFICATES,
            "authenticationParameters": f"tlsCertFile:{found.certificate_file}{key}",
        }
    return {
        **shown,
        "gateway": found.gateway,
        "role": found.role,
        **{name: getattr(found, ours) for ours, name in _FILES.items()},
    }


def _fields(admin: Admin, given: dict[str, Any]) -> dict[str, Any]:
    names = (("serviceUrl", "admin_url"), ("brokerServiceUrl", "service_url"))
    schemes = {"serviceUrl": ("http", "https"), "brokerServiceUrl": ("pulsar", "pulsar+ssl")}
    return {ours: admin.urls.check(str(given[theirs]), schemes[theirs]) for theirs, ours in names if given.get(theirs)}


def _cluster_fields(admin: Admin, given: Mapping[str, Any], stored: PulsarCluster | None = None) -> dict[str, Any]:
    """Returns fields of a real Pulsar cluster: only what is given and not stored already. What has two names in
    ClusterData and came from reading it changes under either. Raises MalformedRequest where two names differ.
    """
    schemes = {"admin_url": ("http", "https"), "service_url": ("pulsar", "pulsar+ssl")}
    names = {
        "gateway": ("gateway",),
        "role": ("role",),
        "trust_file": ("trustFile", "brokerClientTrustCertsFilePath"),
        "certificate_file": ("certificateFile", "brokerClientCertificateFilePath"),
        "key_file": ("keyFile", "brokerClientKeyFilePath"),
        "oauth_file": ("oauthFile",),
    }
    wanted = {
        ours: {name: str(given[name]) for name in theirs if given.get(name) is not None}
        for ours, theirs in names.items()
    }
    wanted["admin_url"] = _addresses(given, "serviceUrl", "serviceUrlTls", "https:")
    wanted["service_url"] = _addresses(given, "brokerServiceUrl", "brokerServiceUrlTls", "pulsar+ssl:")
    wanted["token_file"] = {"tokenFile": str(given["tokenFile"])} if given.get("tokenFile") is not None else {}
    for name in ("authenticationParameters", "brokerClientAuthenticationParameters"):
        if given.get(name):
            for ours, value in _proofs(str(given.get("authenticationPlugin") or _TOKENS), str(given[name])).items():
                wanted[ours][name] = value
    out: dict[str, Any] = {}
    for ours, values in wanted.items():
        new = {
            name: value
            for name, value in values.items()
            if value != (getattr(stored, ours) if stored is not None else "")
        }
        if len(set(new.values())) > 1:
            said = ", ".join(f"{name} {value!r}" for name, value in new.items())
            raise MalformedRequest(
                f"{said}: they name the same thing, and none is what is stored; give one of them, or the same value "
                "in each"
            )
        for value in list(new.values())[:1]:
            if ours in schemes:
                value = admin.urls.check(value, schemes[ours])
            out[ours] = check_file_name(value) if value and ours in _FILES else value
    return out


def _addresses(given: Mapping[str, Any], plain: str, secured: str, scheme: str) -> dict[str, str]:
    """Where the cluster may be reached, by the name of the field. Beside an address with TLS that is to be used, one
    without is for others.
    """
    names = [plain]
    if given.get("brokerClientTlsEnabled") and given.get(secured):
        only = str(given[secured]).startswith(scheme) and not str(given.get(plain) or "").startswith(scheme)
        names = [secured] if only else [plain, secured]
    return {name: str(given[name]) for name in names if given.get(name)}


def _proofs(plugin: str, parameters: str) -> dict[str, str]:
    """Files that ClusterData names as clients of Pulsar do: of a token, or of a certificate and its key."""
    if plugin == _CERTIFICATES:
        named = dict(part.partition(":")[::2] for part in parameters.split(","))
        if set(named) <= {"tlsCertFile", "tlsKeyFile"} and named.get("tlsCertFile"):
            return {"certificate_file": _name(named["tlsCertFile"]), "key_file": _name(named.get("tlsKeyFile", ""))}
        raise MalformedRequest(
            f"authenticationParameters of {_CERTIFICATES}: give tlsCertFile:NAME,tlsKeyFile:NAME, of files in the "
            "folder security.cluster_files of the gateway's brokers"
        )
    if plugin != _TOKENS:
        raise MalformedRequest(
            f"authenticationPlugin: links prove who they are by {_TOKENS} or {_CERTIFICATES}, not by {plugin}; for "
            "OAuth 2 give oauthFile, a file in the folder security.cluster_files of the gateway's brokers with "
            "issuer_url, client_id, and client_secret as JSON"
        )
    url = parameters.removeprefix("token:")
    if url.startswith("file://"):
        return {"token_file": _name(url.removeprefix("file://"))}
    raise MalformedRequest(
        "a token does not go into the configuration: write it to a file in the folder security.cluster_files of the "
        "gateway's brokers, and give its name: authenticationParameters file:///NAME, or tokenFile"
    )


def _name(path: str) -> str:
    """A URL of a file, and Pulsar's clients, want a slash first."""
    return path.removeprefix("/") if path.count("/") == 1 else path


async def peers(admin: Admin, found: ExistingCluster) -> list[str]:
    return list(admin.view.peers(found.name))


async def set_peers(admin: Admin, request: web.Request, found: ExistingCluster, given: list[str]) -> None:
    """In place of those that were there. A record: regions replicate what namespaces say, whoever is whose peer."""
    name, before = found.name, admin.view.peers(found.name)
    after = await admin.config.peers.set(name, given)
    await admin.seen(lambda: admin.view.peers(name) == after.names)
    admin.changed(request, list(before), list(after.names))


ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/v2/clusters", CallAccess.ANY, list_all, console="clusters"),
    Route("GET", "/admin/v2/clusters/{cluster}", CallAccess.SUPER, get),
    Route("GET", "/admin/v2/clusters/{cluster}/peers", CallAccess.SUPER, peers),
    Route("POST", "/admin/v2/clusters/{cluster}/peers", CallAccess.SUPER, set_peers),
    Route("PUT", "/admin/v2/clusters/{cluster}", CallAccess.SUPER, create),
    Route("POST", "/admin/v2/clusters/{cluster}", CallAccess.SUPER, update),
    Route("DELETE", "/admin/v2/clusters/{cluster}", CallAccess.SUPER, delete),
)
