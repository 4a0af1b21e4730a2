"""The audit between regions, as people ask for it: a topic's newest pass, and a pass now.

Is: paths of our own, below /heliograph/v1. Isn't: the audit (`replicator.audit.auditor`), or the list of changes by
admins (`region_node.faces.admin.calls.audit_log`).
Source: docs/protocols/links.md, "Audit".
"""

from __future__ import annotations

from typing import Any

from heliograph.model.admin_paths import OWN_TOPIC
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import Log
from region_node.faces.admin.calls.call_rights import CallAccess, Route


async def report(admin: Admin, log: Log) -> dict[str, Any]:
    """The newest pass over the topic's copy in this region; `report` is null where there was none since the broker
    loaded it.
    """
    auditor = admin.links.auditor
    found = auditor.reports.get(log.topic)
    return {
        "topic": log.topic,
        "region": admin.region,
        "running": auditor.running(log.topic),
        "period_s": auditor.settings.period_s,
        "report": None if found is None else found.shown(),
    }


async def begin(admin: Admin, log: Log) -> dict[str, Any]:
    """A pass begins as soon as the one before has ended; `report` tells when it has ended itself."""
    admin.links.auditor.want(log.topic)
    return await report(admin, log)


async def reports(admin: Admin) -> dict[str, Any]:
    """Shows the newest pass of each topic here that has something left to repair, or whose pass ended early."""
    auditor = admin.links.auditor
    bad = {topic: found.shown() for topic, found in sorted(auditor.reports.items()) if found.left or found.error}
    return {"broker": admin.ownership.record.broker, "passes": auditor.passes, "topics": bad}


ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/audits", CallAccess.SUPER, reports),
    Route("GET", f"{OWN_TOPIC}/audit", CallAccess.CONSUME, report),
    Route("POST", f"{OWN_TOPIC}/audit", CallAccess.TENANT, begin),
)
