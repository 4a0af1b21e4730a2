"""HTTP lookup: which broker serves a topic, and in which bundle it lies."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin, OwnedElsewhere
from region_node.faces.admin.calls.call_parameters import TopicOfNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.placement.ownership.lookup_answers import answer_of


async def topic(
    admin: Admin, request: web.Request, name: TopicOfNamespace, *, authoritative: bool = False
) -> dict[str, str]:
    """Both addresses are in every answer, empty where there is no such listener."""
    listener = request.query.get("listenerName", "") or request.headers.get("X-Pulsar-ListenerName", "")
    with admin.lookups.one() as counts:
        record, redirect = await admin.ownership.find(str(name), authoritative)
        counts.found(redirect)
    answer = answer_of(record, listener, redirect)
    if redirect:
        raise OwnedElsewhere(record, authoritative=True)
    return {
        "brokerUrl": answer.url,
        "brokerUrlTls": answer.url_tls,
        "brokerUrlSsl": answer.url_tls,
        "httpUrl": record.admin_url,
        "httpUrlTls": record.admin_url_tls,
        "nativeUrl": answer.url,
    }


async def bundle(admin: Admin, name: TopicName) -> Any:
    table = admin.table(name.namespace)
    return web.Response(text=table.name(table.of(str(name))))


_ONE = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
ROUTES: tuple[Route, ...] = (
    Route("GET", _ONE, CallAccess.LOOK_UP, topic),
    Route("GET", f"{_ONE}/bundle", CallAccess.LOOK_UP, bundle),
)
