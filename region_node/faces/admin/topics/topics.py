"""Topics: list, create, delete, partitions, properties, unload, terminate, truncate, last message id.

Is: one topic or partition at its owner; a partitioned topic by asking the owners of its partitions. Isn't:
subscriptions (`subscriptions`), statistics (`topic_stats`), or policies (`policy_routes`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import TOPIC, topic_path
from heliograph.model.configuration.configuration_records import TopicPolicies
from heliograph.model.configuration.policy_table import TOPIC_PROPERTIES_BYTES_MAX
from heliograph.model.configuration.policy_values import mapped, text
from heliograph.model.errors import HeliographError, NotAllowed, NotFound
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin, flag, number
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Namespace, TopicOfNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import (
    asked_by_broker,
    at_owners,
    check_name_free,
    check_not_deleted,
    deletion_of,
    everywhere,
    existing_topic,
    goes_everywhere,
    of_other_brokers,
    partitions,
    partitions_of,
    role_of,
)
from region_node.faces.admin.calls.region_facts import topics_elsewhere
from region_node.faces.admin.tenancy import permissions
from region_node.faces.admin.topics.shadow_topics import check_kept, checked_source
from region_node.security.authorization import deleted_topic_grants
from region_node.topics.policies.auto_creation import TooManyTopics
from region_node.topics.serving.deletion_everywhere import check_unused
from region_node.topics.serving.named_topics import in_bundle, joined
from storage.managed_ledger.log.shadow_ledger import SHADOW_SOURCE

_PARTITIONS_MAX = 4096


async def list_plain(admin: Admin, request: web.Request, namespace: Namespace) -> list[str]:
    """Plain topics, and each partition that a partitioned one has, whether it was used yet or not."""
    domain = request.match_info.get("domain", "non-persistent")
    table = admin.table(namespace)
    found = joined(await _there(admin, request, namespace), await admin.topics.declared_partitions(namespace, domain))
    wanted = request.match_info.get("bundle") or request.query.get("bundle", "")
    return await in_bundle(table, table.named(wanted), found) if wanted else found


async def _there(admin: Admin, request: web.Request, namespace: str) -> list[str]:
    """Each once, sorted. Persistent ones are in the metadata; of others each broker knows its own."""
    if request.match_info.get("domain") == "persistent":
        return await admin.topics.topics(namespace)
    found = admin.topics.volatile_topics(namespace)
    if not flag(request, "onlyHere"):
        for more in await of_other_brokers(admin, "GET", f"/admin/v2/non-persistent/{namespace}?onlyHere=true"):
            found += more
    return sorted(set(found))


async def list_partitioned(admin: Admin, namespace: Namespace, domain: str) -> list[str]:
    admin.policies(namespace)
    return sorted(topic for topic in admin.topics.partitioned(namespace) if topic.startswith(f"{domain}://"))


async def create(admin: Admin, request: web.Request, name: TopicName, given: dict[str, str] | None) -> None:
    check_name_free(admin, name)
    if admin.view.partitions(str(name)):
        raise web.HTTPConflict(reason=f"Partitioned topic {name} already exists")
    topic = await admin.here(name)
    if given is not None and SHADOW_SOURCE in given:  # what it is must be known before it is made
        await _set_properties(admin, request, name, await checked_source(admin, name, given), new=True)
        given = None
    try:
        await admin.topics.create_topic(topic)
    except TooManyTopics as error:
        raise web.HTTPConflict(reason=str(error)) from error
    if given:
        await _set_properties(admin, request, name, given)


async def delete(
    admin: Admin, request: web.Request, name: TopicName, *, force: bool = False, onlyHere: bool = False
) -> None:
    """In every region, where others may have it (`region_node.topics.serving.deletion_everywhere`). onlyHere: at once,
    and in this region alone, wherever it is too: its grants are the others' as well, and stay. So does another broker
    mean it, also one of an earlier version, which does not say it.
    """
    onlyHere = onlyHere or asked_by_broker(request)
    text, several = await admin.here(name), goes_everywhere(admin, name)
    if admin.view.partitions(text) and not (onlyHere and await admin.topics.exists(text)):
        raise NotAllowed(f"{name} is partitioned: delete it by its path .../partitions")
    if onlyHere or not several:
        await admin.topics.delete_topic(text, force=force, keep_grants=several)
        if not several:
            await permissions.gone(admin, name)
        return
    check_not_deleted(admin, name)
    if not await admin.topics.exists(text):
        raise NotFound(f"Topic {name} not found")
    if not force:
        _check_unused(name, await admin.topics.stats(text))
    await _delete_everywhere(admin, request, name)


def _check_unused(name: TopicName, stats: dict[str, Any]) -> None:
    """Raises ProducerBusy or ConsumerBusy where clients of this region use it. stats: Pulsar's TopicStats."""
    consumers = sum(len(found["consumers"]) for found in stats["subscriptions"].values())
    check_unused(str(name), len(stats["publishers"]), consumers)


async def _delete_everywhere(admin: Admin, request: web.Request, name: TopicName) -> None:
    made = await deletion_of(admin).topic(name, by=role_of(request))
    admin.changed(request, None, made)


# -- partitions -------------------------------------------------------------------------------------------------------


async def get_partitions(
    admin: Admin, name: TopicOfNamespace, *, checkAllowAutoCreation: bool = False
) -> dict[str, Any]:
    check_not_deleted(admin, name)
    count = admin.view.partitions(str(name))
    if not count and not checkAllowAutoCreation and not await admin.topics.exists(str(name)):
        raise NotFound(f"Topic {name} not found")
    return {"partitions": count, "deleted": False}


class Partitions(Given):
    partitions: int
    properties: dict[str, str] | None = None


async def create_partitioned(
    admin: Admin, request: web.Request, name: TopicOfNamespace, given: int | Partitions
) -> None:
    """Partitions come into being when they are first used; their number is in the global configuration at once."""
    count = _count(given)
    if name.partition >= 0:
        raise NotAllowed(f"{name}: a partition cannot be partitioned")
    check_name_free(admin, name)
    if await _is_there(admin, name):
        raise web.HTTPConflict(reason=f"This topic already exists: {name}")
    async with admin.topics.creation.making(name, count):
        properties: dict[str, Any] = dict(given.properties or {}) if isinstance(given, Partitions) else {}
        if (
            SHADOW_SOURCE in properties
        ):  # what it is must be known before it is made, and each part of its source must be there
            if admin.view.partitions(str(name)):
                raise web.HTTPConflict(reason=f"This topic already exists: {name}")
            properties = await checked_source(admin, name, properties, count)
            await _make_partitions(admin, TopicName.parse(properties[SHADOW_SOURCE]), count)
            await _set_properties(admin, request, name, properties, new=True)
            properties = {}
        await admin.config.create_partitioned(str(name), count)
        await admin.seen(lambda: admin.view.partitions(str(name)) == count)
        if properties:
            await _set_properties(admin, request, name, properties)


async def _is_there(admin: Admin, name: TopicName) -> bool:
    """Whether a persistent topic is stored; the others of its namespace, a million maybe, are not looked at."""
    return name.persistent and await admin.topics.exists(str(name))


async def grow(admin: Admin, request: web.Request, name: TopicName, given: int | Partitions) -> None:
    present, count = len(partitions_of(admin, name)), _count(given)
    if count < present:
        raise web.HTTPUnprocessableEntity(reason=f"{name} has {present} partitions: their number can only grow")
    making = admin.topics.creation.making(name, count - present) if count > present else nullcontext()
    async with making:
        if source := admin.topics.shadow_source(str(name)):
            if admin.view.partitions(source) < count:
                raise NotAllowed(
                    f"{name} is a shadow of {source}, which has {admin.view.partitions(source)} partitions: let that "
                    "grow first"
                )
            await _make_partitions(admin, TopicName.parse(source), count)
        await admin.config.update_partitioned(str(name), count)
        admin.changed(request, {"partitions": present}, {"partitions": count})
        await admin.seen(lambda: admin.view.partitions(str(name)) == count)


async def delete_partitioned(
    admin: Admin,
    request: web.Request,
    name: TopicName,
    *,
    force: bool = False,
    onlyHere: bool = False,
    onlyDeclaration: bool = False,
) -> None:
    """As `delete`, with all partitions. onlyHere: what this region has under the name; that it is partitioned, its
    grants, and its policies of all regions are the others' as well, and stay. onlyDeclaration: that alone goes, where
    no region has one of the partitions.
    """
    parts, several = partitions_of(admin, name), goes_everywhere(admin, name)
    if onlyDeclaration:
        await _undeclare(admin, request, name)
        return
    if several and onlyHere:
        await _delete_parts(admin, await admin.topics.stored_of(name), force, keep_grants=True)
        await admin.topics.policies.forget(str(name))
        await admin.topics.schemas.delete(name)
        return
    if several:
        if not force:
            plain = [name] if await admin.topics.exists(str(name)) else []
            used = await at_owners(admin, plain + parts, "GET", "/stats", lambda part: admin.topics.stats(str(part)))
            for part, stats in used.items():
                _check_unused(part, stats)
        await _delete_everywhere(admin, request, name)
        return
    await _delete_parts(admin, parts, force)
    await deleted_topic_grants.forget(admin.config, admin.view, name)
    await admin.topics.policies.forget(str(name))
    await admin.topics.schemas.delete(name)
    await admin.config.change_topic_policies(str(name), lambda _: TopicPolicies())
    await admin.config.delete_partitioned(str(name))  # last: until then a deletion that failed can be given again
    await permissions.gone(admin, name)
    await admin.seen(lambda: not admin.view.partitions(str(name)))


async def _delete_parts(admin: Admin, parts: list[TopicName], force: bool, *, keep_grants: bool = False) -> None:
    await at_owners(
        admin,
        parts,
        "DELETE",
        f"?force={str(force).lower()}&onlyHere=true",
        lambda part: admin.topics.delete_topic(str(part), force=force, keep_grants=keep_grants),
    )


async def _undeclare(admin: Admin, request: web.Request, name: TopicName) -> None:
    """What lies under the name itself, a plain topic, stays with all that is set for it. Raises NotAllowed where a
    region has a partition, MetadataUnavailable or NotAllowed where one does not say.
    """
    found = await topics_elsewhere(admin, request, name.namespace, parts_of=str(name))
    here = sum(part.partition >= 0 for part in await admin.topics.stored_of(name))
    for region, count in {admin.region: here, **found}.items():
        if isinstance(count, HeliographError):
            raise count
        if count:
            raise NotAllowed(f"{region} has partitions of {name} ({count}): delete them there with onlyHere=true first")
    await admin.config.delete_partitioned(str(name))
    await admin.seen(lambda: not admin.view.partitions(str(name)))


def _count(given: int | Partitions) -> int:
    count = given.partitions if isinstance(given, Partitions) else given
    if not 1 <= count <= _PARTITIONS_MAX:
        raise web.HTTPNotAcceptable(reason=f"The number of partitions must be 1 to {_PARTITIONS_MAX}, not {count}")
    return count


def message_id(name: TopicName, position: Position) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1], "partitionIndex": name.partition}


async def last_message_id(admin: Admin, name: TopicName) -> dict[str, int]:
    position, _ = await (await admin.loaded(name)).last_message()
    return message_id(name, position)


async def message_id_at(admin: Admin, name: TopicName, timestamp: str) -> dict[str, int]:
    at_ms = number(timestamp, "the timestamp")
    topic = await admin.loaded(name)
    ledger = await admin.ledger(name)
    return message_id(name, ledger.next_position(await topic.before_time(at_ms)))


# -- life -------------------------------------------------------------------------------------------------------------


async def unload(admin: Admin, name: TopicName) -> None:
    if parts := partitions(admin, name):
        await at_owners(admin, parts, "PUT", "/unload", lambda part: admin.topics.unload(str(part)))
    else:
        text = await admin.here(name)
        if not await admin.topics.exists(text):
            raise NotFound(f"Topic {name} not found")
        await admin.topics.unload(text)


async def terminate(admin: Admin, request: web.Request, name: TopicName) -> dict[str, int]:
    if admin.view.partitions(str(name)):
        raise web.HTTPMethodNotAllowed(
            "POST", [], reason=f"{name} is partitioned: terminate it by its path .../terminate/partitions"
        )
    ended = await _terminate(admin, name)
    admin.changed(request, None, {"terminated": ended})
    return ended


async def _terminate(admin: Admin, name: TopicName) -> dict[str, int]:
    return message_id(name, await (await admin.loaded(name)).terminate())


async def terminate_partitions(admin: Admin, request: web.Request, name: TopicName) -> dict[str, dict[str, int]]:
    ended = await at_owners(
        admin, partitions_of(admin, name), "POST", "/terminate", lambda part: _terminate(admin, part)
    )
    found = {str(part.partition): position for part, position in ended.items()}
    admin.changed(request, None, {"terminated": found})
    return found


async def truncate(admin: Admin, request: web.Request, name: TopicName) -> None:
    """Every subscription's backlog is dropped, and what is stored is deleted, whatever retention says."""
    topic = await admin.loaded(name)
    if topic.volatile:
        raise NotAllowed(f"{name} is not persistent: nothing of it is stored")
    admin.changed_also(request, topic.text, {"entries": topic.ledger.entries, "size": topic.ledger.size_bytes}, None)
    await topic.truncate()


async def trim(admin: Admin, request: web.Request, name: TopicName) -> None:
    """Looks now for what retention lets go."""
    (await admin.ledger(name)).trim_soon()


async def create_missed(admin: Admin, name: TopicName) -> None:
    """Makes the partitions that were never used."""
    await _make_partitions(admin, name, len(partitions_of(admin, name)))


async def _make_partitions(admin: Admin, name: TopicName, count: int) -> None:
    """Those that were never used."""
    for index in range(count):
        part = name.with_partition(index)
        if not await admin.topics.exists(str(part)):
            record = await admin.ownership.owner(str(part))
            if record is admin.ownership.record:
                await admin.topics.get(str(part), create=True)
            else:
                await admin.call(record, "PUT", topic_path(str(part)))


# -- properties --------------------------------------------------------------------------------------------------------


async def get_properties(admin: Admin, topic: TopicName) -> dict[str, str]:
    return admin.topics.policies.topic(str(await existing_topic(admin, topic.partitioned))).properties


async def set_properties(admin: Admin, request: web.Request, topic: TopicName, given: dict[str, str] | None) -> None:
    """Those given are set, the others stay."""
    await _set_properties(admin, request, await existing_topic(admin, topic.partitioned), given or {})


async def _set_properties(
    admin: Admin, request: web.Request, name: TopicName, given: Any, *, new: bool = False
) -> None:
    properties = mapped(text)("properties", given)
    await _change_properties(admin, request, name, lambda old: old | properties, new=new)


async def delete_property(admin: Admin, request: web.Request, topic: TopicName, *, key: str = "") -> None:
    name = await existing_topic(admin, topic.partitioned)
    await _change_properties(
        admin, request, name, lambda old: {other: value for other, value in old.items() if other != key}
    )


async def _change_properties(
    admin: Admin,
    request: web.Request,
    name: TopicName,
    change: Callable[[dict[str, str]], dict[str, str]],
    *,
    new: bool = False,
) -> None:
    book = admin.topics.policies

    def changed(value: TopicPolicies) -> TopicPolicies:
        properties = change(value.properties)
        before, size = (
            sum(len(each.encode()) for pair in p.items() for each in pair) for p in (value.properties, properties)
        )
        if size > max(before, TOPIC_PROPERTIES_BYTES_MAX):
            raise NotAllowed(
                f"{name} would have {size:,} bytes of properties; {TOPIC_PROPERTIES_BYTES_MAX:,} are allowed"
            )
        if not new:
            check_kept(value.properties, properties)
        return replace(value, properties=properties)

    before, after = await book.change_topic(str(name), changed)
    await admin.seen(lambda: book.topic(str(name)) == after)
    admin.changed(request, before.properties, after.properties)


_NAMESPACE = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
ROUTES: tuple[Route, ...] = (
    Route("GET", _NAMESPACE, CallAccess.LIST, list_plain, console="topics"),
    Route("GET", f"{_NAMESPACE}/partitioned", CallAccess.LIST, list_partitioned, console="partitioned"),
    Route(
        "GET",
        "/admin/v2/non-persistent/{tenant}/{namespace}/{bundle:0[xX][0-9a-fA-F]+_0[xX][0-9a-fA-F]+}",
        CallAccess.TENANT,
        list_plain,
    ),
    Route("PUT", f"{TOPIC}/partitions", CallAccess.TENANT, create_partitioned),
    Route("POST", f"{TOPIC}/partitions", CallAccess.TENANT, grow),
    Route("DELETE", f"{TOPIC}/partitions", CallAccess.TENANT, delete_partitioned),
    Route("GET", f"{TOPIC}/partitions", CallAccess.LOOK_UP, get_partitions, console="partitions"),
    Route("GET", f"{TOPIC}/lastMessageId", CallAccess.CONSUME, last_message_id),
    Route("GET", f"{TOPIC}/messageid/{{timestamp}}", CallAccess.CONSUME, message_id_at),
    Route("PUT", f"{TOPIC}/unload", CallAccess.TENANT, unload, console="unload"),
    Route("POST", f"{TOPIC}/terminate", CallAccess.TENANT, terminate),
    Route("POST", f"{TOPIC}/terminate/partitions", CallAccess.TENANT, terminate_partitions),
    Route("DELETE", f"{TOPIC}/truncate", CallAccess.TENANT, everywhere(truncate)),
    Route("POST", f"{TOPIC}/trim", CallAccess.TENANT, everywhere(trim)),
    Route("POST", f"{TOPIC}/createMissedPartitions", CallAccess.TENANT, create_missed),
    Route("GET", f"{TOPIC}/properties", CallAccess.LOOK_UP, get_properties),
    Route("PUT", f"{TOPIC}/properties", CallAccess.TENANT, set_properties),
    Route("DELETE", f"{TOPIC}/properties", CallAccess.TENANT, delete_property),
    Route("PUT", TOPIC, CallAccess.TENANT, create),
    Route("DELETE", TOPIC, CallAccess.TENANT, delete),
)
