"""`clusters`, `tenants`, `namespaces`: what exists in the instance, and where."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any
from urllib.parse import quote

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.resources import policies
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells, done, table
from heliograph.model.admin_paths import NAMESPACE, namespace_path, path_of

Cluster = Annotated[str, typer.Argument(help="The region's name.")]
Tenant = Annotated[str, typer.Argument(help="The tenant's name.")]
Namespace = Annotated[str, typer.Argument(help="tenant/namespace.")]
Force = Annotated[bool, typer.Option("--force", help="With everything in it.")]
_CLUSTERS, _TENANTS = "/admin/v2/clusters", "/admin/v2/tenants"
_CLUSTER, _TENANT = f"{_CLUSTERS}/{{cluster}}", f"{_TENANTS}/{{tenant}}"


def register(app: typer.Typer) -> None:
    clusters = group(app, "clusters", "Regions of the instance, and Pulsar clusters behind them.")
    add(clusters, list=clusters_list, get=clusters_get)
    add(clusters, create=clusters_create, update=clusters_update, delete=clusters_delete)
    tenants = group(app, "tenants", "Tenants: who may administer them, and in which regions.")
    add(tenants, list=tenants_list, get=tenants_get, create=tenants_create, update=tenants_update)
    add(tenants, delete=tenants_delete, quota=tenants_quota)
    namespaces = group(app, "namespaces", "Namespaces and the policies of their topics.")
    add(namespaces, list=namespaces_list, get=namespaces_get, create=namespaces_create)
    add(namespaces, delete=namespaces_delete, topics=namespaces_topics)
    add(namespaces, clusters=namespaces_clusters, unload=namespaces_unload, clear_backlog=namespaces_clear)
    add(namespaces, bundles=namespaces_bundles, split_bundle=namespaces_split)
    policies.register(namespaces, "namespace", namespace_path)


# -- clusters ----------------------------------------------------------------------------------------------------------

_SAME_FOLDER = "Of a Pulsar cluster: the file's name, in the same folder"
_FILE = "Of a Pulsar cluster: the file's name, in security.cluster_files"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFields:
    """What a cluster is given. None: it stays as it is."""

    url: Annotated[str, typer.Option("--url", help="http://host:port of its admin interface, or https://.")] = ""
    broker_url: Annotated[
        str, typer.Option("--broker-url", help="pulsar://host:port for its clients, or pulsar+ssl://.")
    ] = ""
    gateway: Annotated[
        str | None, typer.Option("--gateway", help="Of a Pulsar cluster: the region that exchanges messages with it.")
    ] = None
    role: Annotated[
        str | None, typer.Option("--role", help="Of a Pulsar cluster: the role that its replicators prove here.")
    ] = None
    token_file: Annotated[
        str | None, typer.Option("--token-file", help=f"{_FILE} of its gateway, of the token there.")
    ] = None
    trust_file: Annotated[
        str | None, typer.Option("--trust-file", help=f"{_FILE} of its gateway, of its authorities.")
    ] = None
    certificate_file: Annotated[
        str | None, typer.Option("--certificate-file", help=f"{_SAME_FOLDER}, of what is shown there by TLS.")
    ] = None
    key_file: Annotated[
        str | None, typer.Option("--key-file", help="The file's name of its key; none given: it is in the same file.")
    ] = None
    oauth_file: Annotated[
        str | None, typer.Option("--oauth-file", help=f"{_SAME_FOLDER}: issuer_url, client_id, client_secret.")
    ] = None

    def body(self) -> dict[str, str]:
        more = {
            "gateway": self.gateway,
            "role": self.role,
            "tokenFile": self.token_file,
            "trustFile": self.trust_file,
            "certificateFile": self.certificate_file,
            "keyFile": self.key_file,
            "oauthFile": self.oauth_file,
        }
        given = {name: value for name, value in more.items() if value is not None}
        return {"serviceUrl": self.url, "brokerServiceUrl": self.broker_url, **given}


def clusters_list(rest: Rest, output: Output) -> None:
    """List the regions, and the Pulsar clusters behind them."""
    found = {name: rest.get(f"{_CLUSTERS}/{quote(name)}") for name in rest.get(_CLUSTERS)}
    same = ("number", "epoch", "brokerServiceUrl", "serviceUrl")
    lines = [(name, one.get("gateway", "region"), *cells(one, *same)) for name, one in found.items()]
    output.rows(("cluster", "behind", "number", "epoch", "service", "admin"), lines, found)


@Call("GET", _CLUSTER)
def clusters_get(cluster: Cluster) -> None:
    """Show one region or Pulsar cluster."""


@Call("PUT", _CLUSTER, said="cluster {cluster} is created")
def clusters_create(cluster: Cluster, fields: ClusterFields = ClusterFields()) -> dict[str, str]:
    """Add a region to the configuration, or, with --gateway, a Pulsar cluster that namespaces may be replicated
    with.
    """
    return fields.body()


@Call("POST", _CLUSTER, said="cluster {cluster} is changed")
def clusters_update(cluster: Cluster, fields: ClusterFields = ClusterFields()) -> dict[str, str]:
    """Change what is given of a region or a Pulsar cluster."""
    return fields.body()


@Call("DELETE", _CLUSTER, said="cluster {cluster} is removed")
def clusters_delete(cluster: Cluster) -> None:
    """Remove a region or Pulsar cluster that no tenant and no namespace names."""


# -- tenants -----------------------------------------------------------------------------------------------------------

Roles = Annotated[str, typer.Option("--admin-roles", help="Roles that administer it, comma separated.")]
Clusters = Annotated[str, typer.Option("--clusters", help="Regions, comma separated; none given: all.")]


@Call("GET", _TENANTS)
def tenants_list() -> None:
    """List the names of all tenants."""


@Call("GET", _TENANT)
def tenants_get(tenant: Tenant) -> None:
    """Show a tenant's admin roles and allowed clusters."""


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@Call("PUT", _TENANT, said="tenant {tenant} is created")
def tenants_create(rest: Rest, tenant: Tenant, admin_roles: Roles = "", clusters: Clusters = "") -> dict[str, Any]:
    """Make a tenant, with its admin roles and allowed clusters."""
    return {"adminRoles": _names(admin_roles), "allowedClusters": _names(clusters) or rest.get(_CLUSTERS)}


@Call("POST", _TENANT, said="tenant {tenant} is changed")
def tenants_update(rest: Rest, tenant: Tenant, admin_roles: Roles = "", clusters: Clusters = "") -> dict[str, Any]:
    """Change who administers a tenant and where it may be."""
    return {"adminRoles": _names(admin_roles), "allowedClusters": _names(clusters) or rest.get(_CLUSTERS)}


def tenants_quota(
    rest: Rest,
    output: Output,
    tenant: Tenant,
    namespaces: Annotated[
        int | None, typer.Option("--namespaces", help="How many it may have; 0: any number.", min=0)
    ] = None,
    topics: Annotated[
        int | None,
        typer.Option("--topics", help="How many it may have in each region, partitions each; 0: any number.", min=0),
    ] = None,
    storage_bytes: Annotated[
        int | None,
        typer.Option("--storage-bytes", help="What it may store in each region, before copies; 0: anything.", min=0),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--resource-group", help='The group whose rates all its namespaces share; "": none.')
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take every bound away.")] = False,
) -> None:
    """Show, or as an operator set, what a tenant may have, whatever its own admin sets."""
    path = path_of("/heliograph/v1/tenants/{tenant}/quota", tenant=tenant)
    given = {
        "max_namespaces": namespaces,
        "max_topics": topics,
        "max_storage_bytes": storage_bytes,
        "resource_group": group,
    }
    if clear:
        rest.delete(path)
    elif changed := {name: value for name, value in given.items() if value is not None}:
        rest.put(path, changed)
    found = rest.get(path)
    lines = [
        (name, found[f"max_{name}"] or "any", found["used"][name]) for name in ("namespaces", "topics", "storage_bytes")
    ]
    output.rows(("", "may have", "has"), [*lines, ("resource group", found["resource_group"] or "-", "")], found)


@Call("DELETE", _TENANT, ("force",), said="tenant {tenant} is removed")
def tenants_delete(tenant: Tenant, force: Force = False) -> None:
    """Remove a tenant; with --force, all its namespaces and their data in this region too."""


# -- namespaces --------------------------------------------------------------------------------------------------------


@Call("GET", "/admin/v2/namespaces/{tenant}")
def namespaces_list(tenant: Tenant) -> None:
    """List a tenant's namespaces."""


@Call("GET", NAMESPACE)
def namespaces_get(namespace: Namespace) -> None:
    """Show a namespace: regions, bundles, and the policies that are set."""


@Call("PUT", NAMESPACE, said="namespace {namespace} is created")
def namespaces_create(
    namespace: Namespace,
    clusters: Annotated[
        str, typer.Option("--clusters", help="Regions, comma separated; none given: the region asked, alone.")
    ] = "",
    bundles: Annotated[
        int, typer.Option(help="Hash ranges that its topics are spread over; fixed from then on.", min=1, max=4096)
    ] = 4,
) -> dict[str, Any]:
    """Make a namespace, in the regions that `--clusters` names."""
    return {"bundles": {"numBundles": bundles}, **({"replication_clusters": _names(clusters)} if clusters else {})}


@Call("DELETE", NAMESPACE, ("force",), said="namespace {namespace} is removed")
def namespaces_delete(namespace: Namespace, force: Force = False) -> None:
    """Remove a namespace; with --force, its topics too, in every region that has it."""


@Call("GET", f"{NAMESPACE}/topics")
def namespaces_topics(namespace: Namespace) -> None:
    """List the topics of a namespace, partitions one by one."""


def namespaces_clusters(
    rest: Rest,
    namespace: Namespace,
    clusters: Annotated[str, typer.Argument(help="Regions, comma separated.")],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say which regions would come and go, and with how many topics; change nothing."
        ),
    ] = False,
) -> None:
    """Set the regions that a namespace is replicated to."""
    found = rest.post(f"{namespace_path(namespace)}/replication", _names(clusters), dry_run=dry_run)
    if dry_run:
        Output().show(found)
        return
    done(f"{namespace} is in {clusters}")


def namespaces_unload(
    rest: Rest,
    namespace: Namespace,
    bundle: Annotated[str, typer.Option("--bundle", "-b", help="Only this range, as 0x00000000_0x40000000.")] = "",
    to: Annotated[
        str,
        typer.Option(
            "--to", help="With --bundle: the broker that shall have it, as `heliograph brokers list` names it."
        ),
    ] = "",
) -> None:
    """Move its topics to other brokers; clients follow by themselves."""
    if to and not bundle:
        raise typer.BadParameter("a destination is for one bundle: give --bundle too", param_hint="--to")
    path = f"/{bundle}" if bundle else ""
    rest.put(f"{namespace_path(namespace)}{path}/unload", destinationBroker=to or None)
    done(f"{' '.join(filter(None, (namespace, bundle)))} is unloaded" + (f" to {to}" if to else ""))


@Call("GET", f"{NAMESPACE}/bundles")
def namespaces_bundles(namespace: Namespace, answer: dict[str, Any]) -> None:
    """List the hash ranges of its topics in this region; a broker serves a range as a whole."""
    table(("bundle",), [(f"{low}_{high}",) for low, high in pairwise(answer["boundaries"])])


def namespaces_split(
    rest: Rest,
    namespace: Namespace,
    bundle: Annotated[
        str,
        typer.Option(
            "--bundle",
            "-b",
            help="The range, as 0x00000000_0x40000000; LARGEST: with the most topics; HOT: the busiest.",
        ),
    ],
    way: Annotated[
        str,
        typer.Option(
            "--split-algorithm-name",
            help="range_equally_divide, topic_count_, flow_or_qps_equally_divide, specified_positions_divide.",
        ),
    ] = "range_equally_divide",
    positions: Annotated[
        str, typer.Option("--split-boundaries", help="Hashes to cut at, with commas, for specified_positions_divide.")
    ] = "",
    unload: Annotated[bool, typer.Option("--unload", help="Give the parts to other brokers at once.")] = False,
) -> None:
    """Cut a range of its topics in two, where it is; no client is disconnected."""
    try:
        at = [int(part, 0) for part in positions.split(",") if part.strip()]
    except ValueError as error:
        raise typer.BadParameter(
            f"hashes are whole numbers, such as 2147483648 or 0x80000000: {error}", param_hint="--split-boundaries"
        ) from error
    path = path_of(f"{NAMESPACE}/{{bundle}}/split", namespace=namespace, bundle=bundle)
    rest.put(path, at or None, splitAlgorithmName=way, unload=str(unload).lower())
    done(f"{bundle} of {namespace} is split")


def namespaces_clear(
    rest: Rest,
    namespace: Namespace,
    subscription: Annotated[str, typer.Option("--subscription", "-s", help="Only of this subscription.")] = "",
) -> None:
    """Drop the backlog of all topics: messages that wait are not delivered any more."""
    of = f"/{quote(subscription, safe='')}" if subscription else ""
    rest.post(f"{namespace_path(namespace)}/clearBacklog{of}")
    done(f"the backlog of {namespace} is cleared")
