"""Statistics of topics: one at its owner, a partitioned one put together from its partitions, and what lies in storage.

Is: questions. Isn't: the counting (`region_node.topics.topic_statistics`).
Sums of rates are of different moments, a tick apart at most.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import TOPIC
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin, flag
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import at_owners, partitions_of
from region_node.topics.ledger_statistics import internal_stats_of, ledger_info, offline_stats
from region_node.topics.topic_statistics import summed


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
    total = summed(list(parts.values()))
    total["topicCreationTimeStamp"] = admin.view.created_ms(str(name)) or total["topicCreationTimeStamp"]
    total["metadata"] = {"partitions": len(names)}
    total["partitions"] = parts if request.query.get("perPartition", "true") != "false" else {}
    return total


# -- what lies in storage ----------------------------------------------------------------------------------------------


async def internal_stats(admin: Admin, topic: TopicName) -> dict[str, Any]:
    found = internal_stats_of(await admin.ledger(topic))
    compacted = (await admin.loaded(topic)).compacted
    return found | ({"compactedLedger": compacted.ledger_stats()} if compacted is not None else {})


async def partitioned_internal_stats(admin: Admin, topic: TopicName) -> dict[str, Any]:
    names = partitions_of(admin, topic)
    found = await at_owners(admin, names, "GET", "/internalStats", lambda part: internal_stats(admin, part))
    parts = {str(part): fields for part, fields in found.items()}
    return {"metadata": {"partitions": len(names)}, "partitions": parts}


async def internal_info(admin: Admin, name: TopicName) -> dict[str, Any]:
    """Pulsar's ManagedLedgerInfo, from the loaded topic."""
    topic = await admin.loaded(name)
    return ledger_info(await admin.ledger(name), topic.created_ms)


async def backlog(admin: Admin, name: TopicName) -> dict[str, Any]:
    """Pulsar's PersistentOfflineTopicStats; the topic is loaded for it."""
    ledger = await admin.ledger(name)
    return offline_stats(ledger, admin.ownership.record.broker, str(name), admin.clock.wall_ms())


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
