"""Grants: who may produce, consume, or use a subscription, at namespaces and topics.

Is: grant, revoke, list. Isn't: what a grant opens (`region_node.security.authorization.authorization_service`).
Source: Pulsar's AuthPolicies; docs/security.md, "Rights".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from aiohttp import web
from msgspec import Meta

from heliograph.model.admin_paths import NAMESPACE, TOPIC
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import Namespace, Read
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.security.authentication.principal import ROLE_CHARS_MAX
from region_node.security.authorization import deleted_topic_grants
from region_node.security.authorization.authorization_service import Action

_ROLES_MAX = 1000
"""In one namespace, one topic, or of one subscription: they all lie in one value of the configuration."""


V = TypeVar("V")
Role = Annotated[str, Meta(min_length=1, max_length=ROLE_CHARS_MAX)]
Roles = Annotated[list[Role], Meta(min_length=1, max_length=_ROLES_MAX)]


async def of_namespace(admin: Admin, namespace: Namespace) -> dict[str, list[str]]:
    return admin.policies(namespace).permissions


async def grant_on_namespace(admin: Admin, request: web.Request, role: RoleName, given: list[Action]) -> None:
    """What the role had is replaced, as Pulsar does."""
    await _change(admin, request, lambda p: replace(p, permissions=_granted(p.permissions, role, given)))


async def revoke_on_namespace(admin: Admin, request: web.Request, role: RoleName) -> None:
    await _change(admin, request, _at("permissions", role, lambda _: None))


async def of_topic(admin: Admin, namespace: Namespace, name: TopicText) -> dict[str, list[str]]:
    """The topic's own grants, with what the namespace gives to the same and other roles."""
    policies = admin.policies(namespace)
    merged = {role: list(actions) for role, actions in policies.permissions.items()}
    for role, actions in policies.topic_permissions.get(name, {}).items():
        merged[role] = list(dict.fromkeys([*merged.get(role, []), *actions]))
    return merged


async def grant_on_topic(
    admin: Admin, request: web.Request, name: TopicText, role: RoleName, given: list[Action]
) -> None:
    await _change(admin, request, _at("topic_permissions", name, lambda had: _granted(had or {}, role, given)))


async def revoke_on_topic(
    admin: Admin, request: web.Request, namespace: Namespace, name: TopicText, role: RoleName
) -> None:
    if role not in admin.policies(namespace).topic_permissions.get(name, {}):
        raise NotFound(f"{name}: the role {role!r} has no grant of its own here; one at the namespace is revoked there")
    await _change(admin, request, _at("topic_permissions", name, lambda had: _with(had or {}, role, None)))


async def gone(admin: Admin, name: TopicName) -> None:
    """Waits until this broker has seen that the grants of a deleted topic are gone."""
    await admin.seen(lambda: not deleted_topic_grants.has_grants(admin.view.namespace(name.namespace), name))


async def of_subscriptions(admin: Admin, namespace: Namespace) -> dict[str, list[str]]:
    return admin.policies(namespace).subscription_permissions


async def grant_on_subscription(admin: Admin, request: web.Request, subscription: str, given: Roles) -> None:
    """The list replaces the one before: only these roles use the subscription from now on."""
    await _change(admin, request, _at("subscription_permissions", subscription, lambda _: sorted(set(given))))


async def revoke_on_subscription(admin: Admin, request: web.Request, subscription: str, role: RoleName) -> None:
    """With its last role the subscription is open to every role that may consume."""

    def others(had: list[str] | None) -> list[str]:
        return [other for other in had or () if other != role]

    await _change(admin, request, _at("subscription_permissions", subscription, others))


# -- what they share --------------------------------------------------------------------------------------------------


async def _change(admin: Admin, request: web.Request, change: Any) -> None:
    namespace = admin.namespace(request)
    before = admin.policies(namespace)
    after = await admin.config.update_namespace(namespace, change)
    for name in _TABLES:
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            changed = [key for key in {**was, **now} if was.get(key) != now.get(key)]
            admin.changed_also(
                request, name, *({key: table[key] for key in changed if key in table} for table in (was, now))
            )
    await admin.seen(lambda: (p := admin.view.namespace(namespace)) is not None and change(p) == p)


def _role(request: web.Request) -> str:
    role = request.match_info["role"]
    if len(role) > ROLE_CHARS_MAX or any(ord(c) < 32 for c in role):
        raise NotAllowed(f"a role has at most {ROLE_CHARS_MAX} characters, and no control characters")
    return role


RoleName = Annotated[str, Read(lambda _, request: _role(request))]
TopicText = Annotated[str, Read(lambda admin, request: str(admin.topic(request)))]


def _at(table: str, name: str, change: Callable[[Any], Any]) -> Callable[[NamespacePolicies], NamespacePolicies]:
    """Changes what a table of grants has under a name, by what it had there; None: nothing."""

    def changed(p: NamespacePolicies) -> NamespacePolicies:
        had = getattr(p, table)
        fields: dict[str, Any] = {table: _with(had, name, change(had.get(name)))}
        return replace(p, **fields)

    return changed


def _granted(table: dict[str, list[str]], role: str, actions: list[Action]) -> dict[str, list[str]]:
    if role not in table and len(table) >= _ROLES_MAX:
        raise NotAllowed(f"there are grants for {_ROLES_MAX} roles already; give several people one role")
    return {**table, role: sorted({action.value for action in actions})}


def _with(table: dict[str, V], name: str, value: V | None) -> dict[str, V]:
    """The table with the value under that name; without the name where there is none, or an empty one."""
    others = {other: found for other, found in table.items() if other != name}
    return {**others, name: value} if value else others


_TABLES = ("permissions", "topic_permissions", "subscription_permissions")
_ON_NAMESPACE = f"{NAMESPACE}/permissions"
_ON_TOPIC = f"{TOPIC}/permissions"
ROUTES: tuple[Route, ...] = (
    Route("GET", _ON_NAMESPACE, CallAccess.TENANT, of_namespace),
    Route("GET", f"{_ON_NAMESPACE}/subscription", CallAccess.TENANT, of_subscriptions),
    Route("POST", f"{_ON_NAMESPACE}/subscription/{{subscription}}", CallAccess.TENANT, grant_on_subscription),
    Route("POST", f"{_ON_NAMESPACE}/{{role}}", CallAccess.TENANT, grant_on_namespace),
    Route("DELETE", f"{_ON_NAMESPACE}/{{role}}", CallAccess.TENANT, revoke_on_namespace),
    Route("DELETE", f"{_ON_NAMESPACE}/{{subscription}}/{{role}}", CallAccess.TENANT, revoke_on_subscription),
    Route("GET", _ON_TOPIC, CallAccess.TENANT, of_topic),
    Route("POST", f"{_ON_TOPIC}/{{role}}", CallAccess.TENANT, grant_on_topic),
    Route("DELETE", f"{_ON_TOPIC}/{{role}}", CallAccess.TENANT, revoke_on_topic),
)
