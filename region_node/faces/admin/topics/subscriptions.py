"""Subscriptions of a topic: list, create, delete, skip, reset by time or position, expire, properties.

Is: one topic at its owner; a partitioned topic by asking the owner of each partition. Isn't: reading messages
(`messages`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from aiohttp import web

from heliograph.model.admin_paths import SUBSCRIPTION, TOPIC
from heliograph.model.configuration.policy_values import mapped, text
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.positions import AFTER_ALL, Position, position_text
from heliograph.model.topic_names import TopicName, check_name
from region_node.faces.admin.calls.admin_context import Admin, number
from region_node.faces.admin.calls.call_bodies import Given, MessageId
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import at_owners, everywhere, partitions, subscription_of
from region_node.replication.replicated_subscriptions import replicate
from region_node.subscriptions.subscription import Subscription, check_given
from region_node.topics.backlog_reading import nth_unacked
from region_node.topics.serving.deletion_everywhere import check_not_elsewhere
from region_node.topics.topic import Topic
from replicator.subscriptions.subscription_state import INTERNAL
from storage.managed_ledger.cursors.cursor import check_properties


def _subscription(request: web.Request) -> str:
    name = request.match_info["subscription"]
    return name if "/" in name else check_name("subscription", name)


async def _existing(admin: Admin, request: web.Request, name: TopicName) -> tuple[Topic, Subscription]:
    """The topic at its owner, and a subscription that it has. Raises NotFound."""
    topic = await admin.loaded(name)
    return topic, subscription_of(topic, _subscription(request))


async def list_all(admin: Admin, name: TopicName) -> list[str]:
    if not (parts := partitions(admin, name)):
        return await _durable(admin, name)
    found = await at_owners(admin, parts, "GET", "/subscriptions", lambda part: _durable(admin, part))
    return sorted({subscription for names in found.values() for subscription in names})


async def _durable(admin: Admin, name: TopicName) -> list[str]:
    topic = await admin.loaded(name)
    return sorted(one.name for one in topic.subscriptions.values() if one.durable)


class StartPosition(Given, rename="camel"):
    """A message id, and properties; without an id, behind the last message."""

    ledger_id: int | None = None
    entry_id: int = 0
    properties: dict[str, str] | None = None


async def create(
    admin: Admin, request: web.Request, name: TopicName, given: StartPosition | None, *, replicated: bool = False
) -> None:
    """At the position in the body; nothing given: behind the last message. A topic that is not there is made where
    clients may make it.
    """
    topic, subscription = await admin.here(name), _subscription(request)
    if replicated:
        _check_replicable(subscription)
    properties = None if given is None else given.properties
    check_given(properties)
    await admin.topics.get_for_client(topic)
    at = AFTER_ALL if given is None or given.ledger_id is None else _before((given.ledger_id, given.entry_id))
    await admin.topics.create_subscription(topic, subscription, at=at, properties=properties)
    loaded = await admin.loaded(name)
    made = loaded.subscriptions[subscription]
    admin.changed_also(
        request,
        topic,
        None,
        {"markDelete": _at(made), "properties": properties or {}, "replicated": replicated},
    )
    if replicated:
        replicate(loaded, made)


async def delete(
    admin: Admin, request: web.Request, name: TopicName, *, force: bool = False, onlyHere: bool = False
) -> None:
    """onlyHere: also where other regions have it, and bring it back unless it is deleted there as well."""
    topic, found = await _existing(admin, request, name)
    if not onlyHere:
        check_not_elsewhere(topic, found.name)
    before = {"markDelete": _at(found), "backlog": found.cursor.backlog_entries}
    await admin.topics.delete_subscription(topic.text, found.name, force=force)
    admin.changed_also(request, topic.text, before, None)


# -- moving ------------------------------------------------------------------------------------------------------------


async def skip_all(admin: Admin, request: web.Request, name: TopicName) -> None:
    topic, found = await _existing(admin, request, name)
    with _moving(admin, request, topic, found):
        await topic.skip_all(found.name)


async def skip(admin: Admin, request: web.Request, name: TopicName, count: str) -> None:
    """So many of the messages that wait count as acknowledged."""
    if admin.view.partitions(str(name)):
        raise web.HTTPMethodNotAllowed(request.method, [], reason="skip messages of one partition at a time")
    topic, found = await _existing(admin, request, name)
    try:
        through = await nth_unacked(topic, found, found.name, number(count, "the number of messages"))
    except NotFound:  # fewer wait
        through = topic.ledger.last_confirmed
    with _moving(admin, request, topic, found):
        await _pass(found, through)


async def reset_to_time(admin: Admin, request: web.Request, name: TopicName, timestamp: str) -> None:
    topic, found = await _existing(admin, request, name)
    with _moving(admin, request, topic, found):
        await admin.topics.reset_subscription(topic.text, found.name, publish_ms=number(timestamp, "the timestamp"))


async def reset_to_position(admin: Admin, request: web.Request, name: TopicName, given: MessageId) -> None:
    """The next message is the one given, or the one behind it where `isExcluded` is set."""
    topic, found = await _existing(admin, request, name)
    at = given.position if given.is_excluded else _before(given.position)
    with _moving(admin, request, topic, found):
        await admin.topics.reset_subscription(topic.text, found.name, at=at)


async def expire(admin: Admin, request: web.Request, name: TopicName, seconds: str) -> None:
    """Skips what was published longer ago than so many seconds; never back."""
    topic, found = await _existing(admin, request, name)
    await _expire(admin, request, seconds, topic, [found])


async def expire_all(admin: Admin, request: web.Request, name: TopicName, seconds: str) -> None:
    topic = await admin.loaded(name)
    await _expire(admin, request, seconds, topic, [s for s in topic.subscriptions.values() if s.durable])


async def _expire(
    admin: Admin, request: web.Request, seconds: str, topic: Topic, found: Iterable[Subscription]
) -> None:
    through = await topic.before_time(admin.clock.wall_ms() - number(seconds, "the seconds") * 1000)
    for subscription in found:
        with _moving(admin, request, topic, subscription):
            await _pass(subscription, through)


async def expire_to(admin: Admin, request: web.Request, name: TopicName, given: MessageId) -> None:
    """Skips up to the message in the body, and it (not it, where `isExcluded` is set); never back."""
    topic, found = await _existing(admin, request, name)
    with _moving(admin, request, topic, found):
        await _pass(found, _before(given.position) if given.is_excluded else given.position)


@contextmanager
def _moving(admin: Admin, request: web.Request, topic: Topic, found: Subscription) -> Iterator[None]:
    """The audit log hears from where to where."""
    before = _at(found)
    yield
    admin.changed_also(request, f"{topic.text} {found.name}", {"markDelete": before}, {"markDelete": _at(found)})


def _at(found: Subscription) -> str:
    return position_text(found.cursor.mark_delete)


async def _pass(subscription: Subscription, through: Position) -> None:
    cursor = subscription.cursor
    if through > cursor.mark_delete:
        cursor.ack_cumulative(through)
        subscription.passed()
        await cursor.flushed()


# -- what is known of it -----------------------------------------------------------------------------------------------


async def get_properties(admin: Admin, request: web.Request, name: TopicName) -> dict[str, str]:
    count = admin.view.partitions(str(name))
    _, found = await _existing(admin, request, name.with_partition(0) if count else name)
    return found.properties


async def set_properties(admin: Admin, request: web.Request, name: TopicName, given: dict[str, str] | None) -> None:
    _, found = await _existing(admin, request, name)
    properties = mapped(text)("properties", given or {})
    if not found.durable:
        raise NotAllowed(f"subscription {found.name} is a reader's: it has no properties that last")
    check_given(properties)
    check_properties(properties)
    admin.changed(request, found.properties, properties)
    found.set_properties(properties)
    await found.cursor.flushed()


async def get_replicated(admin: Admin, request: web.Request, name: TopicName) -> dict[str, bool]:
    topic, found = await _existing(admin, request, name)
    return {topic.text: found.replicated}


async def set_replicated(admin: Admin, request: web.Request, name: TopicName, given: bool) -> None:
    """As a consumer that asks for it does."""
    topic, found = await _existing(admin, request, name)
    if given:
        _check_replicable(found.name)
    admin.changed(request, found.replicated, given)
    replicate(topic, found, on=given)
    await found.cursor.flushed()


def _check_replicable(name: str) -> None:
    if name.startswith(INTERNAL):
        raise NotAllowed(
            f"subscription {name!r} is not replicated, as names that begin with __ are not: take another name"
        )


def _before(position: Position) -> Position:
    """The mark-delete position with which the message there comes next."""
    ledger, entry = position
    return (ledger, entry - 1) if entry >= 0 and (ledger, entry) != AFTER_ALL else (ledger, entry)


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{TOPIC}/subscriptions", CallAccess.CONSUME, list_all),
    Route("PUT", SUBSCRIPTION, CallAccess.CONSUME, everywhere(create)),
    Route("DELETE", SUBSCRIPTION, CallAccess.CONSUME, everywhere(delete)),
    Route("POST", f"{SUBSCRIPTION}/skip_all", CallAccess.CONSUME, everywhere(skip_all), console="clear"),
    Route("POST", f"{SUBSCRIPTION}/skip/{{count}}", CallAccess.CONSUME, skip, console="skip"),
    Route("POST", f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", CallAccess.CONSUME, everywhere(reset_to_time)),
    Route("POST", f"{SUBSCRIPTION}/resetcursor", CallAccess.CONSUME, everywhere(reset_to_position)),
    Route("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", CallAccess.CONSUME, everywhere(expire)),
    Route("POST", f"{SUBSCRIPTION}/expireMessages", CallAccess.CONSUME, expire_to),
    Route("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", CallAccess.TENANT, everywhere(expire_all)),
    Route("GET", f"{SUBSCRIPTION}/properties", CallAccess.CONSUME, get_properties),
    Route("PUT", f"{SUBSCRIPTION}/properties", CallAccess.CONSUME, everywhere(set_properties)),
    Route("GET", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", CallAccess.CONSUME, get_replicated),
    Route("POST", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", CallAccess.CONSUME, everywhere(set_replicated)),
)
