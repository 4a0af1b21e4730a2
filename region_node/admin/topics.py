"""Topics: list, create, delete, partitions, statistics, unload, terminate, last message id.

Is: one topic or partition at its owner; a partitioned topic by asking the owners of its partitions. Isn't: subscriptions (`subscriptions`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from aiohttp import web

from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.names import TopicName
from heliograph.model.positions import Position
from region_node.admin.context import Admin, Elsewhere, Malformed, body, flag, number

_PARTITIONS_MAX = 4096


async def list_plain(admin: Admin, request: web.Request) -> Any:
    """Plain topics, and each partition that a partitioned one has, whether it was used yet or not."""
    namespace = admin.namespace(request)
    admin.policies(namespace)
    if request.match_info["domain"] != "persistent":
        return []
    found = set(await admin.topics.topics(namespace))
    for topic in admin.view.partitioned(namespace):
        found.update(str(TopicName.parse(topic).with_partition(index)) for index in range(admin.view.partitions(topic)))
    return sorted(found)


async def list_partitioned(admin: Admin, request: web.Request) -> Any:
    namespace = admin.namespace(request)
    admin.policies(namespace)
    return sorted(admin.view.partitioned(namespace)) if request.match_info["domain"] == "persistent" else []


async def create(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    if admin.view.partitions(str(name)):
        raise web.HTTPConflict(reason=f"Partitioned topic {name} already exists")
    await admin.topics.create_topic(await admin.here(name))


async def delete(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    if admin.view.partitions(str(name)):
        raise NotAllowed(f"{name} is partitioned: delete it by its path .../partitions")
    await admin.topics.delete_topic(await admin.here(name), force=flag(request, "force"))


# -- partitions -------------------------------------------------------------------------------------------------------


async def get_partitions(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    admin.policies(name.namespace)
    return {"partitions": admin.view.partitions(str(name))}


async def create_partitioned(admin: Admin, request: web.Request) -> Any:
    """Partitions come into being when they are first used; their number is in the global configuration at once."""
    name = admin.topic(request)
    admin.policies(name.namespace)
    count = await _given_count(request)
    if name.partition >= 0:
        raise NotAllowed(f"{name}: a partition cannot be partitioned")
    if str(name) in await admin.topics.topics(name.namespace):
        raise web.HTTPConflict(reason=f"This topic already exists: {name}")
    await admin.config.create_partitioned(str(name), count)
    await admin.seen(lambda: admin.view.partitions(str(name)) == count)


async def grow(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    present, count = _partitions(admin, name), await _given_count(request)
    if count < present:
        raise web.HTTPConflict(reason=f"{name} has {present} partitions: their number can only grow")
    await admin.config.update_partitioned(str(name), count)
    await admin.seen(lambda: admin.view.partitions(str(name)) == count)


async def delete_partitioned(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    for index in range(_partitions(admin, name)):
        await _on_owner(admin, name.with_partition(index), "DELETE", "?force=true" if flag(request, "force") else "", _delete_here(admin, request))
    await admin.config.delete_partitioned(str(name))
    await admin.seen(lambda: not admin.view.partitions(str(name)))


def _delete_here(admin: Admin, request: web.Request) -> Callable[[str], Any]:
    return lambda topic: admin.topics.delete_topic(topic, force=flag(request, "force"))


def _partitions(admin: Admin, name: TopicName) -> int:
    admin.policies(name.namespace)
    count = admin.view.partitions(str(name))
    if not count:
        raise NotFound(f"Partitioned topic {name} does not exist")
    return count


async def _given_count(request: web.Request) -> int:
    given = await body(request)
    count = given.get("partitions") if isinstance(given, dict) else given
    if type(count) is not int:
        raise Malformed("expected a number of partitions in the body")
    if not 1 <= count <= _PARTITIONS_MAX:
        raise web.HTTPNotAcceptable(reason=f"The number of partitions must be 1 to {_PARTITIONS_MAX}, not {count}")
    return count


async def _on_owner(admin: Admin, name: TopicName, method: str, path: str, here: Callable[[str], Any]) -> Any:
    """Does something to one partition where it is owned; None where it was never used."""
    try:
        return await here(await admin.here(name))
    except NotFound:
        return None
    except Elsewhere as where:
        try:
            return await admin.call(where.record, method, f"{_path(name)}{path}")
        except NotFound:
            return None


def _path(name: TopicName) -> str:
    return f"/admin/v2/{name.domain}/{name.namespace}/{quote(name.local, safe='')}"


# -- statistics -------------------------------------------------------------------------------------------------------


async def stats(admin: Admin, request: web.Request) -> Any:
    return await _stats(admin, await admin.here(admin.topic(request)))


async def _stats(admin: Admin, topic: str) -> dict[str, Any]:
    """Raises NotFound where the topic does not exist; one that is stored but not loaded is loaded."""
    return await admin.topics.stats(topic)


async def partitioned_stats(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    count = _partitions(admin, name)
    parts: dict[str, dict[str, Any]] = {}
    for index in range(count):
        part = name.with_partition(index)
        found = await _on_owner(admin, part, "GET", "/stats", lambda topic: _stats(admin, topic))
        if found is not None:
            parts[str(part)] = found
    total = _sum(list(parts.values()))
    total["metadata"] = {"partitions": count}
    total["partitions"] = parts if request.query.get("perPartition", "true") != "false" else {}
    return total


_SUMMED = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "storageSize", "backlogSize", "msgInCounter", "msgOutCounter")
_SUMMED_MORE = ("bytesInCounter", "bytesOutCounter", "msgBacklog", "unackedMessages", "msgRateRedeliver", "replicationBacklog")


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers that add up are added up; subscriptions and links of one name are put together likewise; publishers are listed."""
    total: dict[str, Any] = {key: sum(part.get(key, 0) for part in parts) for key in _SUMMED}
    total["publishers"] = [publisher for part in parts for publisher in part.get("publishers", ())]
    for group in ("subscriptions", "replication"):
        names = sorted({name for part in parts for name in part.get(group, {})})
        total[group] = {name: _sum_rows([part[group][name] for part in parts if name in part.get(group, {})]) for name in names}
    return total


def _sum_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    for key in (*_SUMMED, *_SUMMED_MORE):
        if key in merged:
            merged[key] = sum(row.get(key, 0) for row in rows)
    if "consumers" in merged:
        merged["consumers"] = [consumer for row in rows for consumer in row.get("consumers", ())]
    return merged


async def internal_stats(admin: Admin, request: web.Request) -> Any:
    ledger = await admin.ledger(admin.topic(request))
    infos = ledger.ledgers()
    rows = [{"ledgerId": i.ledger, "entries": i.entries, "size": i.size_bytes, "timestamp": i.closed_ms, "offloaded": False} for i in infos]
    return {
        "entriesAddedCounter": sum(i.entries for i in infos),
        "numberOfEntries": sum(i.entries for i in infos),
        "totalSize": ledger.size_bytes,
        "currentLedgerEntries": infos[-1].entries if infos else 0,
        "currentLedgerSize": infos[-1].size_bytes if infos else 0,
        "lastConfirmedEntry": _text(ledger.last_confirmed),
        "firstPosition": _text(ledger.first_position()),
        "state": "LedgerOpened" if ledger.failed is None else "Failed",
        "ledgers": rows,
        "cursors": {name: _cursor(cursor) for name, cursor in sorted(ledger.cursors.items())},
        "waitingCursorsCount": 0,
        "pendingAddEntriesCount": 0,
    }


def _cursor(cursor: Any) -> dict[str, Any]:
    return {
        "markDeletePosition": _text(cursor.mark_delete),
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog_entries,
        "state": "Open",
        "properties": dict(cursor.properties or {}),
    }


def _text(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def message_id(name: TopicName, position: Position) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1], "partitionIndex": name.partition}


async def last_message_id(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    position, _ = await (await admin.loaded(name)).last_message()
    return message_id(name, position)


async def message_id_at(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    at_ms = number(request.match_info["timestamp"], "the timestamp")
    topic = await admin.loaded(name)
    ledger = await admin.ledger(name)
    return message_id(name, ledger.next_position(await topic.before_time(at_ms)))


# -- life -------------------------------------------------------------------------------------------------------------


async def unload(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    for part in [name.with_partition(i) for i in range(admin.view.partitions(str(name)))]:
        await _on_owner(admin, part, "PUT", "/unload", admin.topics.unload)
    if not admin.view.partitions(str(name)):
        await admin.topics.unload(await admin.here(name))


async def terminate(admin: Admin, request: web.Request) -> Any:
    name = admin.topic(request)
    return message_id(name, await (await admin.loaded(name)).terminate())


_DOMAIN = "{domain:persistent|non-persistent}"
_NAMESPACE = f"/admin/v2/{_DOMAIN}/{{tenant}}/{{namespace}}"
_ONE = f"{_NAMESPACE}/{{topic}}"
ROUTES = (
    ("GET", _NAMESPACE, list_plain),
    ("GET", f"{_NAMESPACE}/partitioned", list_partitioned),
    ("PUT", f"{_ONE}/partitions", create_partitioned),
    ("POST", f"{_ONE}/partitions", grow),
    ("DELETE", f"{_ONE}/partitions", delete_partitioned),
    ("GET", f"{_ONE}/partitions", get_partitions),
    ("GET", f"{_ONE}/stats", stats),
    ("GET", f"{_ONE}/partitioned-stats", partitioned_stats),
    ("GET", f"{_ONE}/internalStats", internal_stats),
    ("GET", f"{_ONE}/lastMessageId", last_message_id),
    ("GET", f"{_ONE}/messageid/{{timestamp}}", message_id_at),
    ("PUT", f"{_ONE}/unload", unload),
    ("POST", f"{_ONE}/terminate", terminate),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, delete),
)
