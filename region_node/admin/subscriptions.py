"""Subscriptions of a topic: list, create, delete, skip, reset by time or position, expire."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from heliograph.model.errors import NotFound
from heliograph.model.names import check_name
from heliograph.model.positions import AFTER_ALL, Position
from region_node.admin.context import Admin, Malformed, body, flag, number
from region_node.topics.topic import Topic

_WANTED = 'expected a message id in the body, such as {"ledgerId": 1, "entryId": 0}'


def _subscription(request: web.Request) -> str:
    name = request.match_info["subscription"]
    return name if "/" in name else check_name("subscription", name)


async def _existing(admin: Admin, request: web.Request) -> tuple[Topic, str]:
    """The topic at its owner, and a subscription that it has. Raises NotFound."""
    topic, name = await admin.loaded(admin.topic(request)), _subscription(request)
    if name not in topic.subscriptions:
        raise NotFound(f"Subscription {name} does not exist on {topic.text}")
    return topic, name


async def list_all(admin: Admin, request: web.Request) -> Any:
    topic = await admin.loaded(admin.topic(request))
    return sorted(name for name, subscription in topic.subscriptions.items() if subscription.durable)


async def create(admin: Admin, request: web.Request) -> Any:
    """At the position in the body; nothing given: behind the last message. The topic is made where it is not there."""
    topic, name = await admin.here(admin.topic(request)), _subscription(request)
    given = await body(request)
    await admin.topics.get(topic, create=True)
    properties = given.get("properties") if isinstance(given, dict) else None
    await admin.topics.create_subscription(topic, name, at=_before(given), properties=properties)


async def delete(admin: Admin, request: web.Request) -> Any:
    topic, name = await _existing(admin, request)
    await topic.delete_subscription(name, force=flag(request, "force"))


async def skip_all(admin: Admin, request: web.Request) -> Any:
    topic, name = await _existing(admin, request)
    await topic.skip_all(name)


async def reset_to_time(admin: Admin, request: web.Request) -> Any:
    topic, name = await _existing(admin, request)
    await admin.topics.reset_subscription(topic.text, name, publish_ms=number(request.match_info["timestamp"], "the timestamp"))


async def reset_to_position(admin: Admin, request: web.Request) -> Any:
    """The next message is the one given, or the one behind it where `isExcluded` is set."""
    topic, name = await _existing(admin, request)
    given = await body(request)
    if not isinstance(given, dict):
        raise Malformed(_WANTED)
    await admin.topics.reset_subscription(topic.text, name, at=_position(given) if given.get("isExcluded") else _before(given))


async def expire(admin: Admin, request: web.Request) -> Any:
    """Skips what was published longer ago than so many seconds; never back."""
    topic, name = await _existing(admin, request)
    seconds = number(request.match_info["seconds"], "the seconds")
    through = await topic.before_time(admin.clock.wall_ms() - seconds * 1000)
    cursor = topic.subscriptions[name].cursor
    if through > cursor.mark_delete:
        cursor.ack_cumulative(through)
        await cursor.flushed()


def _before(given: Any) -> Position:
    """The mark-delete position with which the given message comes next."""
    ledger, entry = _position(given)
    return (ledger, entry - 1) if entry >= 0 and (ledger, entry) != AFTER_ALL else (ledger, entry)


def _position(given: Any) -> Position:
    """Of MessageId JSON. Raises Malformed."""
    if given is None or given == {}:
        return AFTER_ALL
    try:
        return int(given["ledgerId"]), int(given["entryId"])
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(_WANTED) from error


_TOPIC = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
_ONE = f"{_TOPIC}/subscription/{{subscription}}"
ROUTES = (
    ("GET", f"{_TOPIC}/subscriptions", list_all),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, delete),
    ("POST", f"{_ONE}/skip_all", skip_all),
    ("POST", f"{_ONE}/resetcursor/{{timestamp}}", reset_to_time),
    ("POST", f"{_ONE}/resetcursor", reset_to_position),
    ("POST", f"{_ONE}/expireMessages/{{seconds}}", expire),
)
