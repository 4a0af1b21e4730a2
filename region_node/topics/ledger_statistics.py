"""What lies in a topic's storage, as Pulsar's admin clients are shown it.

Is: reading a log and its cursors into the fields of Pulsar's answers. Isn't: the counting.
"""

from __future__ import annotations

from typing import Any

from heliograph.model.ledger_metadata import LedgerInfo, local_gone
from heliograph.model.positions import Position, position_text
from region_node.runtime.rate_meter import iso_time
from storage.managed_ledger.log.managed_ledger import ManagedLedger
from storage.tiered.offload.offload_plan import stored


def _ledger(info: LedgerInfo) -> dict[str, Any]:
    """Pulsar's LedgerInfo, and whether bookies have it too."""
    row = {"ledgerId": info.ledger, "entries": info.entries, "size": info.size_bytes, "timestamp": info.closed_ms}
    return {**row, "offloaded": stored(info), "onBookies": not local_gone(info)}


def internal_stats_of(ledger: ManagedLedger) -> dict[str, Any]:
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


def ledger_info(ledger: ManagedLedger, created_ms: int) -> dict[str, Any]:
    """Shows a log as Pulsar's ManagedLedgerInfo. created_ms: when its topic was made."""
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
    return {"creationDate": iso_time(created_ms), "ledgers": ledgers, "cursors": cursors, **terminated}


def offline_stats(ledger: ManagedLedger, broker: str, topic: str, now_ms: int) -> dict[str, Any]:
    """Shows a log as Pulsar's PersistentOfflineTopicStats."""
    cursors = {c.name: c for c in ledger.cursors.values() if c.durable}
    return {
        "storageSize": ledger.size_bytes,
        "totalMessages": ledger.entries,
        "messageBacklog": sum(c.backlog_entries for c in cursors.values()),
        "brokerName": broker,
        "topicName": topic,
        "dataLedgerDetails": [
            {"entries": i.entries, "timestamp": i.closed_ms, "size": i.size_bytes, "ledgerId": i.ledger}
            for i in ledger.ledgers()
        ],
        "cursorDetails": {
            key: {"cursorBacklog": c.backlog_entries, "cursorLedgerId": -1} for key, c in cursors.items()
        },
        "statGeneratedAt": iso_time(now_ms),
    }


def _position(position: Position) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1]}
