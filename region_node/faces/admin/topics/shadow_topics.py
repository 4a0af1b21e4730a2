"""Shadow topics: what the admin interface asks before a topic becomes the shadow of another, and which shadows a topic
says it has.

Is: the checks, and the list (a record: shadows read their source whether they are in it or not). Isn't: how a shadow
reads (`region_node.topics.shadow_log`).
Invariants: the property that names a source is set before the topic exists, and never changes while it does.
Source: docs/protocols/pulsar.md, "Shadow topics".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import TOPIC
from heliograph.model.errors import AlreadyExists, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing_topic
from storage.managed_ledger.log.shadow_ledger import SHADOW_SOURCE

_LIST = "shadowTopics"


async def checked_source(
    admin: Admin, name: TopicName, given: Mapping[str, Any], partitions: int = 0
) -> dict[str, Any]:
    """Properties of a new topic, the source as a full name. Raises NotAllowed, NotFound (no such source),
    AlreadyExists.

    partitions: how many it has; 0: it is not partitioned. Its source has as many.
    """
    source = TopicName.parse(str(given[SHADOW_SOURCE]))
    if not (name.persistent and source.persistent):
        raise NotAllowed("a shadow topic and its source are persistent")
    if source.tenant != name.tenant:
        raise NotAllowed(
            f"{source} is another tenant's: whoever administers one tenant may not read the topics of another"
        )
    if name.partition >= 0:
        raise NotAllowed(
            f"{name} is a partition: make the shadow of the whole topic, with as many partitions as its source"
        )
    if (count := admin.view.partitions(str(source))) != partitions:
        raise NotAllowed(
            f"{source} has {count or 'no'} partitions, and its shadow {partitions or 'none'}: a shadow has as many as "
            "its source"
        )
    if source == name or admin.topics.shadow_source(str(source)):
        raise NotAllowed(f"{source} is a shadow topic itself: name its source")
    if not partitions and not await admin.topics.exists(str(source)):
        raise NotFound(f"Shadow source topic {source} not found")
    if await admin.topics.exists(str(name)):
        raise AlreadyExists(f"{name} exists already")
    return {**given, SHADOW_SOURCE: str(source)}


def check_kept(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises NotAllowed where the source of a topic that is there would be another one."""
    if before.get(SHADOW_SOURCE) != after.get(SHADOW_SOURCE):
        raise NotAllowed(
            f"{SHADOW_SOURCE} is set when a topic is made, and never again: delete the topic, and make it anew"
        )


async def get_shadows(admin: Admin, topic: TopicName) -> Any:
    """Those that were named here."""
    return admin.topics.policies.topic(str(await existing_topic(admin, topic))).policies.get(_LIST, [])


async def set_shadows(admin: Admin, request: web.Request, topic: TopicName, given: list[str]) -> None:
    """Each must be there, and a shadow of this topic."""
    name = await existing_topic(admin, topic)
    if not given:
        raise web.HTTPPreconditionFailed(
            reason="Cannot specify empty shadow topics, please use remove command instead."
        )
    shadows = [str(TopicName.parse(one)) for one in given]
    for shadow in shadows:
        if admin.topics.shadow_source(shadow) != str(name):
            raise web.HTTPPreconditionFailed(
                reason=f"{shadow} is not a shadow topic of {name}: create it with the property {SHADOW_SOURCE}"
            )
    await _write(admin, request, name, shadows)


async def remove_shadows(admin: Admin, request: web.Request, topic: TopicName) -> None:
    """The list is empty then; the shadows stay, and still read this topic."""
    await _write(admin, request, await existing_topic(admin, topic), [])


async def _write(admin: Admin, request: web.Request, name: TopicName, shadows: list[str]) -> None:
    def change(policies: dict[str, Any]) -> dict[str, Any]:
        left = {key: value for key, value in policies.items() if key != _LIST}
        return left | {_LIST: shadows} if shadows else left

    book = admin.topics.policies
    before, after = await book.change_topic(str(name), lambda value: replace(value, policies=change(value.policies)))
    await admin.seen(lambda: book.topic(str(name)) == after)
    admin.changed(request, before.policies.get(_LIST, []), shadows)


_PATH = f"{TOPIC}/shadowTopics"
ROUTES: tuple[Route, ...] = (
    Route("GET", _PATH, CallAccess.TENANT, get_shadows),
    Route("PUT", _PATH, CallAccess.TENANT, set_shadows),
    Route("DELETE", _PATH, CallAccess.TENANT, remove_shadows),
)
