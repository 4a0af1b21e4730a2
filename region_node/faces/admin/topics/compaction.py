"""Compaction of topics by command, and how it went.

Is: one topic or partition at its owner; a partitioned topic's partitions one by one. Isn't: the work
(`region_node.compaction`), or its threshold (a policy like the others: `policy_routes`).
"""

from __future__ import annotations

from aiohttp import web

from heliograph.model.admin_paths import TOPIC
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import at_owners, everywhere, partitions

_NOT_RUN = {"status": "NOT_RUN", "lastError": ""}
_WORST_FIRST = ("RUNNING", "ERROR", "NOT_RUN", "SUCCESS")


async def start(admin: Admin, request: web.Request, name: TopicName) -> None:
    """Begins in the background. 409 while it is under way."""
    (await admin.loaded(name)).compact()


async def status(admin: Admin, name: TopicName) -> dict[str, str]:
    """Pulsar's LongRunningProcessStatus; of a partitioned topic that of the partition which is furthest from done."""
    if not (parts := partitions(admin, name)):
        return await _status(admin, name)
    found = await at_owners(admin, parts, "GET", "/compaction", lambda part: _status(admin, part))
    rows = [found.get(part, _NOT_RUN) for part in parts]
    return min(rows, key=lambda row: _WORST_FIRST.index(row["status"]))


async def _status(admin: Admin, name: TopicName) -> dict[str, str]:
    found = (await admin.loaded(name)).compacted
    return _NOT_RUN if found is None else {"status": found.status, "lastError": found.error}


ROUTES: tuple[Route, ...] = (
    Route("PUT", f"{TOPIC}/compaction", CallAccess.TENANT, everywhere(start)),
    Route("GET", f"{TOPIC}/compaction", CallAccess.TENANT, status),
)
