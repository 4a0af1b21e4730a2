"""What of a topic no bookie of this region has any more, and its repair in place.

Is: paths of our own, below /heliograph/v1/topics; the object store as a source, and the audit between regions for what
that does not have. Isn't: the repair (`storage.managed_ledger.log.damaged_ledgers`), or the audit
(`replicator.audit.auditor`).
Invariants: a repair changes no message id, and never a message that can be read.
Source: docs/operating/repair.md.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import OWN_TOPIC
from heliograph.model.errors import MalformedRequest, NotAllowed
from heliograph.model.ledger_metadata import local_gone
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_parameters import Ledger, Log
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from storage.ledger.repair.in_place_repair import Runs, Source
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.reading.object_source import Objects

_ASKED = (
    "the other regions are asked for what is missing: look at the topic's damage again once its audit is not running"
)
_NOBODY_ASKED = (
    "no other region can be asked now: where one has the topic, repair again once its link is connected; else what is "
    "missing is lost, and heliograph topics seek moves a subscription over it"
)


async def damage(admin: Admin, request: web.Request, ledger: Ledger) -> dict[str, Any]:
    """Reads every closed ledger of the topic that bookies keep, or the one of `ledger`."""
    text = request.query.get("ledger", "")
    if text and not (len(text) < 20 and text.isascii() and text.isdigit()):
        raise MalformedRequest(f"ledger: expected a number, not {text!r}")
    found = {number: await ledger.damaged(number) for number in _ledgers(ledger, int(text) if text else None)}
    return {
        "topic": ledger.topic,
        "ledgers": len(found),
        "damaged": {str(number): ranges for number, ranges in found.items() if ranges},
    }


class TopicRepair(OnlyGiven):
    """ledger: that one alone is looked at."""

    ledger: int | None = None


async def repair(admin: Admin, log: Log, given: TopicRepair) -> dict[str, Any]:
    """Fetches what is damaged from the object store; what that has not, the audit asks the other regions for, in the
    background. While `missing_entries` is above 0, `do` says what is next.
    """
    ledger = log.ledger
    source: Source = Runs(()) if admin.tier is None else Objects(admin.tier.reader, ledger.ledgers())
    rows: dict[str, Any] = {}
    for number in _ledgers(ledger, given.ledger):
        if not await ledger.damaged(number):
            continue
        done = await ledger.refill(number, source)
        rows[str(number)] = {
            "fetched_entries": done.fetched_entries,
            "copied_entries": done.copied_entries,
            "missing": [list(one) for one in done.missing],
        }
    missing = sum(last - first + 1 for row in rows.values() for first, last in row["missing"])
    asked = bool(missing) and _others_asked(admin, log.topic)
    return {
        "topic": ledger.topic,
        "ledgers": rows,
        "missing_entries": missing,
        "asked_other_regions": asked,
        "do": "" if not missing else _ASKED if asked else _NOBODY_ASKED,
    }


def _others_asked(admin: Admin, topic: str) -> bool:
    try:
        admin.links.auditor.want(topic)
    except NotAllowed:
        return False
    return True


def _ledgers(ledger: ManagedLedger, wanted: int | None) -> list[int]:
    if wanted is not None:
        return [wanted]
    return [info.ledger for info in ledger.ledgers() if info.closed_ms and not local_gone(info)]


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{OWN_TOPIC}/damage", CallAccess.CONSUME, damage),
    Route("POST", f"{OWN_TOPIC}/repair", CallAccess.TENANT, repair),
)
