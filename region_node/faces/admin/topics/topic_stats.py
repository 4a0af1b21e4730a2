"""Statistics of topics: one at its owner, a partitioned one put together from its partitions, and what lies in storage.

Is: questions. Isn't: the counting (`region_node.topics.topic_statistics`).
Sums of rates are of different moments, a tick apart at most.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import TOPIC
from heliograph.model.ledger_metadata import LedgerInfo, local_gone
from heliograph.model.positions import Position, position_text
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin, flag
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import at_owners, partitions_of
from region_node.runtime.rate_meter import iso_time
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.offload.offload_plan import stored


async def stats(admin: Admin, request: web.Request, topic: TopicName) -> dict[str, Any]:
    return await _stats(admin, request, await admin.here(topic))


async def _stats(admin: Admin, request: web.Request, topic: str) -> dict[str, Any]:
    """Raises NotFound where the topic does not exist; one that is stored but not loaded is loaded."""
    found = await admin.topics.stats(topic)
    if flag(request, "getEarliestTimeInBacklog"):
        loaded = await admin.topics.get(topic, create=False)
        for name, fields in found["subscriptions"].items():
            subscription = loaded.subscriptions.get(name)
            if subscription is not None and not loaded.volatile:
                fields["earliestMsgPublishTimeInBacklog"] = await loaded.oldest_ms(subscription)
    if flag(request, "excludePublishers"):
        found["publishers"] = []
    if flag(request, "excludeConsumers"):
        for fields in found["subscriptions"].values():
            fields["consumers"] = []
    found["ownerBroker"] = admin.ownership.record.broker
    return found


async def partitioned_stats(admin: Admin, request: web.Request, name: TopicName) -> dict[str, Any]:
    names = partitions_of(admin, name)
    query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
    found = await at_owners(admin, names, "GET", f"/stats{query}", lambda part: _stats(admin, request, str(part)))
    parts = {str(part): fields for part, fields in found.items()}
    total = _sum(list(parts.values()))
    total["topicCreationTimeStamp"] = admin.view.created_ms(str(name)) or total["topicCreationTimeStamp"]
    total["metadata"] = {"partitions": len(names)}
    total["partitions"] = parts if request.query.get("perPartition", "true") != "false" else {}
    return total


_SUMMED = (
    "msgRateIn",
    "msgRateOut",
    "msgThroughputIn",
    "msgThroughputOut",
    "storageSize",
    "backlogSize",
    "msgInCounter",
    "msgOutCounter",
    "bytesInCounter",
    "bytesOutCounter",
)
_SUMMED_MORE = (
    "msgBacklog",
    "msgBacklogNoDelayed",
    "msgDelayed",
    "unackedMessages",
    "msgRateRedeliver",
    "msgRateExpired",
    "totalMsgExpired",
    "messageAckRate",
    "replicationBacklog",
)


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers that add up are added up; subscriptions and links of one name are put together likewise; publishers are
    listed.
    """
    total: dict[str, Any] = {key: sum(part.get(key, 0) for part in parts) for key in _SUMMED}
    created = [part["topicCreationTimeStamp"] for part in parts if part.get("topicCreationTimeStamp")]
    total["topicCreationTimeStamp"] = min(created, default=0)
    total["lastPublishTimestamp"] = max((part.get("lastPublishTimestamp", 0) for part in parts), default=0)
    total["averageMsgSize"] = total["msgThroughputIn"] / total["msgRateIn"] if total["msgRateIn"] else 0.0
    total["deduplicationStatus"] = next(
        (part["deduplicationStatus"] for part in parts if "deduplicationStatus" in part), "Disabled"
    )
    total["publishers"] = [publisher for part in parts for publisher in part.get("publishers", ())]
    for group in ("subscriptions", "replication"):
        names = sorted({name for part in parts for name in part.get(group, {})})
        total[group] = {
            name: _sum_rows([part[group][name] for part in parts if name in part.get(group, {})]) for name in names
        }
    return total


def _sum_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    for key in (*_SUMMED, *_SUMMED_MORE):
        if key in merged:
            merged[key] = sum(row.get(key, 0) for row in rows)
    if "consumers" in merged:
        merged["consumers"] = [consumer for row in rows for consumer in row.get("consumers", ())]
    return merged


# -- what lies in storage ----------------------------------------------------------------------------------------------


async def internal_stats(admin: Admin, topic: TopicName) -> dict[str, Any]:
    found = _internal(await admin.ledger(topic))
    compacted = (await admin.loaded(topic)).compacted
    return found | ({"compactedLedger": compacted.ledger_stats()} if compacted is not None else {})


def _ledger(info: LedgerInfo) -> dict[str, Any]:
    """Pulsar's LedgerInfo, and whether bookies have it too."""
    row = {"ledgerId": info.ledger, "entries": info.entries, "size": info.size_bytes, "timestamp": info.closed_ms}
    return {**row, "offloaded": stored(info), "onBookies": not local_gone(info)}


def _internal(ledger: ManagedLedger) -> dict[str, Any]:
    """Shows a log as Pulsar's PersistentTopicInternalStats; what there is none of here is empty, or -1."""
    infos = ledger.ledgers()
    rows = [_ledger(info) for info in infos]
    return {
        "entriesAddedCounter": sum(i.entries for i in infos),
        "numberOfEntries": sum(i.entries for i in infos),
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": infos[-1].entries if infos else 0,
        "currentLedgerSize": infos[-1].size_bytes if infos else 0,
        "lastConfirmedEntry": position_text(ledger.last_confirmed),
        "firstPosition": position_text(ledger.first_position()),
        "state": "LedgerOpened" if ledger.failed is None else "Failed",
        "ledgers": rows,
        "cursors": {name: _cursor(ledger, name) for name in sorted(ledger.cursors)},
        "waitingCursorsCount": sum(1 for cursor in ledger.cursors.values() if not cursor.backlog_entries),
        "pendingAddEntriesCount": 0,
        "schemaLedgers": [],
        "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False},
    }


def _cursor(ledger: ManagedLedger, name: str) -> dict[str, Any]:
    """Shows a cursor as Pulsar's CursorStats, with its first 100 acknowledged ranges."""
    cursor = ledger.cursors[name]
    ranges = cursor.acked_ranges
    shown = ",".join(f"({number}:{first - 1}..{number}:{last}]" for number, first, last in ranges[:100])
    return {
        "markDeletePosition": position_text(cursor.mark_delete),
        "readPosition": position_text(cursor.read_position),
        "waitingReadOp": not cursor.backlog_entries,
        "pendingReadOps": 0,
        "messagesConsumedCounter": ledger.entries - cursor.backlog_entries,
        "individuallyDeletedMessages": f"[{shown}]",
        "totalNonContiguousDeletedMessagesRange": len(ranges),
        "numberOfEntriesSinceFirstNotAckedMessage": ledger.entries_between(cursor.mark_delete, ledger.last_confirmed),
        "state": "Open",
        "active": cursor.reading is not None,
        "properties": {},
        "cursorProperties": dict(cursor.properties or {}),
    }


async def partitioned_internal_stats(admin: Admin, topic: TopicName) -> dict[str, Any]:
    names = partitions_of(admin, topic)
    found = await at_owners(admin, names, "GET", "/internalStats", lambda part: internal_stats(admin, part))
    parts = {str(part): fields for part, fields in found.items()}
    return {"metadata": {"partitions": len(names)}, "partitions": parts}


async def internal_info(admin: Admin, name: TopicName) -> dict[str, Any]:
    """Pulsar's ManagedLedgerInfo, from the loaded topic."""
    topic, ledger = await admin.loaded(name), await admin.ledger(name)
    ledgers = [
        {
            "ledgerId": i.ledger,
            "entries": i.entries,
            "size": i.size_bytes,
            "timestamp": i.closed_ms,
            "isOffloaded": i.offload is not None,
        }
        for i in ledger.ledgers()
    ]
    cursors = {
        cursor_name: {
            "markDelete": _position(cursor.mark_delete),
            "individualDeletedMessages": [
                {"from": _position((number, first - 1)), "to": _position((number, last))}
                for number, first, last in cursor.acked_ranges[:100]
            ],
        }
        for cursor_name, cursor in sorted(ledger.cursors.items())
    }
    terminated = {"terminatedPosition": _position(ledger.terminated_at)} if ledger.terminated_at is not None else {}
    return {"creationDate": iso_time(topic.created_ms), "ledgers": ledgers, "cursors": cursors, **terminated}


async def backlog(admin: Admin, name: TopicName) -> dict[str, Any]:
    """Pulsar's PersistentOfflineTopicStats; the topic is loaded for it."""
    ledger = await admin.ledger(name)
    cursors = {c.name: c for c in ledger.cursors.values() if c.durable}
    return {
        "storageSize": ledger.size_bytes,
        "totalMessages": ledger.entries,
        "messageBacklog": sum(c.backlog_entries for c in cursors.values()),
        "brokerName": admin.ownership.record.broker,
        "topicName": str(name),
        "dataLedgerDetails": [
            {"entries": i.entries, "timestamp": i.closed_ms, "size": i.size_bytes, "ledgerId": i.ledger}
            for i in ledger.ledgers()
        ],
        "cursorDetails": {
            key: {"cursorBacklog": c.backlog_entries, "cursorLedgerId": -1} for key, c in cursors.items()
        },
        "statGeneratedAt": iso_time(admin.clock.wall_ms()),
    }


def _position(position: Position) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1]}


_FLAGS = ("getEarliestTimeInBacklog", "excludePublishers", "excludeConsumers")
ROUTES: tuple[Route, ...] = (
    Route("GET", f"{TOPIC}/stats", CallAccess.LOOK_UP, stats, flags=_FLAGS, console="stats"),
    Route(
        "GET",
        f"{TOPIC}/partitioned-stats",
        CallAccess.LOOK_UP,
        partitioned_stats,
        flags=_FLAGS,
        console="partitionedStats",
    ),
    Route("GET", f"{TOPIC}/internalStats", CallAccess.LOOK_UP, internal_stats, console="internal"),
    Route("GET", f"{TOPIC}/partitioned-internalStats", CallAccess.LOOK_UP, partitioned_internal_stats),
    Route("GET", f"{TOPIC}/internal-info", CallAccess.LOOK_UP, internal_info),
    Route("GET", f"{TOPIC}/backlog", CallAccess.CONSUME, backlog),
)
