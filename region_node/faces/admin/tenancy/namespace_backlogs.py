"""Backlogs and subscriptions of a whole namespace, or of one of its bundles: cleared, or removed, topic by topic at the
owners.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from aiohttp import web

from heliograph.model.admin_paths import BUNDLE, NAMESPACE
from heliograph.model.errors import NotFound
from heliograph.model.topic_names import TopicName, topic_hash
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import Namespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.topics.serving.deletion_everywhere import check_not_elsewhere
from region_node.topics.serving.named_topics import in_bundle


async def _topics(admin: Admin, request: web.Request) -> list[TopicName]:
    """Returns the topics of the namespace, or of the bundle in the path. Raises NotFound where that is no bundle."""
    namespace, wanted = admin.namespace(request), request.match_info.get("bundle", "").lower()
    table = admin.table(namespace)
    if wanted and table.named(wanted) is None:
        raise NotFound(f"{wanted} is no bundle of {namespace}")
    topics = await admin.topics.topics(namespace)
    if wanted:
        topics = await in_bundle(table, table.named(wanted), topics)
    return [TopicName.parse(topic) for topic in topics]


async def clear(admin: Admin, request: web.Request) -> None:
    wanted = request.match_info.get("subscription", "")
    for name in await _topics(admin, request):
        found = await admin.at_owner(name, "GET", "/subscriptions", lambda topic: _subscriptions(admin, topic)) or []
        for subscription in found:
            if wanted in ("", subscription):
                path = f"/subscription/{quote(subscription, safe='')}/skip_all"
                await admin.at_owner(
                    name,
                    "POST",
                    path,
                    lambda topic, subscription=subscription: (  # type: ignore[misc]
                        admin.topics.skip_all(topic, subscription)
                    ),
                )


async def unsubscribe(admin: Admin, request: web.Request, subscription: str) -> None:
    """Raises ConsumerBusy where consumers are connected, NotAllowed where other regions have it too."""

    async def remove(topic: str) -> None:
        check_not_elsewhere(await admin.topics.get(topic, create=False), subscription)
        await admin.topics.delete_subscription(topic, subscription)

    for name in await _topics(admin, request):
        await admin.at_owner(name, "DELETE", f"/subscription/{quote(subscription, safe='')}", remove)


async def _subscriptions(admin: Admin, topic: str) -> list[str]:
    return [s.name for s in (await admin.topics.get(topic, create=False)).subscriptions.values() if s.durable]


async def hash_positions(
    admin: Admin, request: web.Request, namespace: Namespace, bundle: str, *, topics: str = ""
) -> dict[str, Any]:
    """Where topics of a bundle lie in it."""
    chosen = {name for name in topics.split(",") if name}
    found = {str(name): topic_hash(str(name)) for name in await _topics(admin, request)}
    return {
        "namespace": namespace,
        "bundle": bundle,
        "topicHashPositions": {topic: at for topic, at in found.items() if not chosen or topic in chosen},
    }


async def anti_affinity(admin: Admin, group: str, *, tenant: str = "", property: str = "") -> list[str]:
    """Namespaces of an anti-affinity group."""
    tenants = [tenant or property] if tenant or property else admin.view.tenants()
    found = [namespace for tenant in tenants for namespace in admin.view.namespaces(tenant)]
    return [namespace for namespace in found if admin.policies(namespace).policies.get("antiAffinity") == group]


ROUTES: tuple[Route, ...] = (
    Route("POST", f"{BUNDLE}/clearBacklog", CallAccess.TENANT, clear),
    Route("POST", f"{BUNDLE}/clearBacklog/{{subscription}}", CallAccess.TENANT, clear),
    Route("POST", f"{BUNDLE}/unsubscribe/{{subscription}}", CallAccess.TENANT, unsubscribe),
    Route("GET", f"{BUNDLE}/topicHashPositions", CallAccess.TENANT, hash_positions),
    Route("POST", f"{NAMESPACE}/clearBacklog", CallAccess.TENANT, clear),
    Route("POST", f"{NAMESPACE}/clearBacklog/{{subscription}}", CallAccess.TENANT, clear),
    Route("POST", f"{NAMESPACE}/unsubscribe/{{subscription}}", CallAccess.TENANT, unsubscribe),
    Route("GET", "/admin/v2/namespaces/{cluster}/antiAffinity/{group}", CallAccess.SUPER, anti_affinity),
    Route(
        "GET", "/admin/namespaces/{cluster}/antiAffinity/{group}", CallAccess.SUPER, anti_affinity
    ),  # where Java's client asks
)
