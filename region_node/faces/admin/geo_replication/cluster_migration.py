"""Blue-green migration: to which cluster a region sends its clients on, and whether it does so for all namespaces, or
for some.

Is: Pulsar's calls for it, over the record in the global configuration. Isn't: what brokers do then
(`region_node.topics.serving.publish_gates`).
Invariants: an address is checked against the list before it is stored; nothing is migrated to nowhere.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import NAMESPACE
from heliograph.model.configuration.configuration_records import ClusterMigration
from heliograph.model.errors import NotAllowed, NotFound
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Namespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing
from region_node.faces.admin.geo_replication.clusters import ExistingCluster

_FIELDS = (
    ("serviceUrl", "service_url", "http"),
    ("serviceUrlTls", "service_url_tls", "https"),
    ("brokerServiceUrl", "broker_service_url", "pulsar"),
    ("brokerServiceUrlTls", "broker_service_url_tls", "pulsar+ssl"),
)


async def get(admin: Admin, cluster: ExistingCluster) -> dict[str, Any]:
    """Where the clients of a cluster are sent on, and whether they are."""
    error = NotFound(f"nobody has ever said where the clients of cluster {cluster.name} are to go")
    return _shown(existing(admin.view.migration(cluster.name), error))


class Urls(Given, rename={ours: theirs for theirs, ours, _ in _FIELDS}):
    """Pulsar's ClusterUrl: where clients are sent on to."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None


async def update(
    admin: Admin, request: web.Request, cluster: ExistingCluster, given: Urls, *, migrated: bool = False
) -> Any:
    """Begins a migration (`migrated=true`), or ends it; its addresses are those of its namespaces', too."""
    name = cluster.name
    urls = {ours: admin.urls.check(url, (scheme,)) for _, ours, scheme in _FIELDS if (url := getattr(given, ours))}
    wanted = ClusterMigration(migrated=migrated, **urls)
    if wanted.migrated and not wanted.urls:
        raise NotAllowed("give brokerServiceUrl or brokerServiceUrlTls: clients are sent there")
    before = admin.view.migration(name)
    await admin.config.migrations.set(name, wanted)
    await admin.seen(lambda: admin.view.migration(name) == wanted)
    admin.changed(request, None if before is None else _shown(before), _shown(wanted))
    return web.Response()


async def update_namespace(admin: Admin, request: web.Request, namespace: Namespace, given: bool) -> None:
    """Sends the namespace's clients on, in this region, to where the region's migration says; or serves them here
    again.
    """
    admin.policies(namespace)
    before = admin.region in admin.view.migrated_in(namespace)
    await admin.config.migrations.set_namespace(namespace, admin.region, given)
    await admin.seen(lambda: (admin.region in admin.view.migrated_in(namespace)) == given)
    admin.changed(request, before, given)


def _shown(found: ClusterMigration) -> dict[str, Any]:
    return {
        "migrated": found.migrated,
        "migratedClusterUrl": {theirs: url for theirs, ours, _ in _FIELDS if (url := getattr(found, ours))},
    }


ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/v2/clusters/{cluster}/migrate", CallAccess.SUPER, get),
    Route("POST", "/admin/v2/clusters/{cluster}/migrate", CallAccess.SUPER, update),
    Route("POST", f"{NAMESPACE}/migration", CallAccess.SUPER, update_namespace),
)
