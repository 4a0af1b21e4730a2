"""What a handler is called with beside the Admin: each of its parameters is read from the request by its type, before
the handler runs, and described by `/openapi.json`.

Is: names of the path (a TopicName, the types below, any other `str` or `int` by its name); what the query says (what a
handler takes by name alone is called as it is there: a bool, a str, or an int, with what holds where it is absent); the
request itself. Isn't: a body, which is `given` (`call_bodies`).
Invariants: the body is read first, then the others in the order in which the handler has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from inspect import Parameter, isawaitable, signature
from typing import Annotated, Any, get_type_hints

from aiohttp import web

from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin, number
from region_node.faces.admin.calls.call_bodies import GIVEN, decoded
from region_node.faces.admin.calls.call_rights import Handler
from region_node.faces.admin.calls.existing import existing_namespace, existing_tenant, topic_of
from region_node.topics.topic import Topic
from replicator.log.replicated_log import ReplicatedLog
from storage.managed_ledger.log.managed_ledger import ManagedLedger


@dataclass(frozen=True, slots=True)
class Read:
    """How a parameter is read; it may raise what is refused."""

    by: Callable[[Admin, web.Request], Any]


Tenant = Annotated[str, Read(lambda admin, request: admin.tenant(request))]
Namespace = Annotated[str, Read(lambda admin, request: admin.namespace(request))]
"""tenant/namespace, which may be yet to come."""
ExistingTenant = Annotated[str, Read(existing_tenant)]
ExistingNamespace = Annotated[str, Read(existing_namespace)]
TopicOfNamespace = Annotated[TopicName, Read(topic_of)]
"""A topic that may be yet to come, of a namespace that is there."""
Loaded = Annotated[Topic, Read(lambda admin, request: admin.loaded(admin.topic(request)))]
"""The topic, loaded here; a call for one that another broker owns is sent there. So it is with what lies below it:"""
Log = Annotated[ReplicatedLog, Read(lambda admin, request: admin.log(admin.topic(request)))]
Ledger = Annotated[ManagedLedger, Read(lambda admin, request: admin.ledger(admin.topic(request)))]


@dataclass(frozen=True, slots=True)
class Taken:
    """One parameter. of_query: its type, where the query says it, by the same name."""

    name: str
    read: Callable[[Admin, web.Request], Any]
    of_query: Any = None


@cache
def taken_by(handler: Handler) -> tuple[Taken, ...]:
    """What a handler takes, in the order in which it is read. Raises TypeError for a parameter that nothing reads;
    NameError for a type that is not there.
    """
    hints = get_type_hints(handler, include_extras=True)
    _, *parameters = signature(handler).parameters.values()
    found = [_taken(one, hints.get(one.name), handler) for one in parameters]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.name != GIVEN))


def _taken(one: Parameter, kind: Any, handler: Handler) -> Taken | None:
    """None: it keeps its default."""
    metadata = getattr(kind, "__metadata__", (None,))[0]
    if one.name == GIVEN:
        return Taken(GIVEN, lambda _, request: decoded(request, kind))
    if one.kind is Parameter.KEYWORD_ONLY and kind in _OF_QUERY:
        return Taken(one.name, partial(_asked, one=one, read=_OF_QUERY[kind]), kind)
    if isinstance(metadata, Read):
        return Taken(one.name, metadata.by)
    if kind is web.Request:
        return Taken(one.name, lambda _, request: request)
    if kind is TopicName:
        return Taken(one.name, lambda admin, request: admin.topic(request))
    if kind is str:
        return Taken(one.name, lambda _, request: request.match_info[one.name])
    if kind is int:
        return Taken(one.name, lambda _, request: number(request.match_info[one.name], one.name))
    if one.default is Parameter.empty:
        raise TypeError(
            f"{handler.__module__}.{handler.__name__}: nothing reads {one.name}: give it a type that is read"
        )
    return None


_OF_QUERY: dict[Any, Callable[[str, str], Any]] = {
    bool: lambda text, _: text.lower() == "true",
    str: lambda text, _: text,
    int: number,
    int | None: number,
}


def _asked(admin: Admin, request: web.Request, one: Parameter, read: Callable[[str, str], Any]) -> Any:
    text = request.query.get(one.name)
    return one.default if text is None else read(text, one.name)


async def called(handler: Handler, admin: Admin, request: web.Request, **given: Any) -> Any:
    """given: parameters that need not be read. Raises what the handler raises, and what reading its parameters does:
    MalformedRequest, NotAllowed, NotFound.
    """
    for one in taken_by(handler):
        if one.name not in given:
            value = one.read(admin, request)
            given[one.name] = await value if isawaitable(value) else value
    return await handler(admin, **given)
