"""Grants: who may produce, consume, or use a subscription, at namespaces and topics.

Is: grant, revoke, list. Isn't: what a grant opens (`region_node.security.authorization.authorization_service`).
Source: Pulsar's AuthPolicies; docs/security.md, "Rights".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from heliograph.model.admin_paths import NAMESPACE, TOPIC
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import Namespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.security.authentication.principal import ROLE_CHARS_MAX
from region_node.security.authorization import deleted_topic_grants
from region_node.security.authorization.authorization_service import Action

_ROLES_MAX = 1000
"""In one namespace, one topic, or of one subscription: they all lie in one value of the configuration."""


Role = Annotated[str, Meta(min_length=1, max_length=ROLE_CHARS_MAX)]
Roles = Annotated[list[Role], Meta(min_length=1, max_length=_ROLES_MAX)]


async def of_namespace(admin: Admin, namespace: Namespace) -> dict[str, list[str]]:
    return admin.policies(namespace).permissions


async def grant_on_namespace(admin: Admin, request: web.Request, given: list[Action]) -> None:
    """What the role had is replaced, as Pulsar does."""
    role, actions = _role(request), _actions(given)
    await _change(admin, request, lambda p: replace(p, permissions=_with(p.permissions, role, actions)))


async def revoke_on_namespace(admin: Admin, request: web.Request) -> None:
    role = _role(request)
    await _change(admin, request, lambda p: replace(p, permissions=_without(p.permissions, role)))


async def of_topic(admin: Admin, request: web.Request, namespace: Namespace) -> dict[str, list[str]]:
    """The topic's own grants, with what the namespace gives to the same and other roles."""
    name = _topic(admin, request)
    policies = admin.policies(namespace)
    merged = {role: list(actions) for role, actions in policies.permissions.items()}
    for role, actions in policies.topic_permissions.get(name, {}).items():
        merged[role] = list(dict.fromkeys([*merged.get(role, []), *actions]))
    return merged


async def grant_on_topic(admin: Admin, request: web.Request, given: list[Action]) -> None:
    name, role, actions = _topic(admin, request), _role(request), _actions(given)

    def change(p: NamespacePolicies) -> NamespacePolicies:
        return replace(
            p, topic_permissions={**p.topic_permissions, name: _with(p.topic_permissions.get(name, {}), role, actions)}
        )

    await _change(admin, request, change)


async def revoke_on_topic(admin: Admin, request: web.Request, namespace: Namespace) -> None:
    name, role = _topic(admin, request), _role(request)
    if role not in admin.policies(namespace).topic_permissions.get(name, {}):
        raise NotFound(f"{name}: the role {role!r} has no grant of its own here; one at the namespace is revoked there")

    def change(p: NamespacePolicies) -> NamespacePolicies:
        left = _without(p.topic_permissions.get(name, {}), role)
        topics = {topic: roles for topic, roles in p.topic_permissions.items() if topic != name}
        return replace(p, topic_permissions={**topics, name: left} if left else topics)

    await _change(admin, request, change)


async def gone(admin: Admin, name: TopicName) -> None:
    """Waits until this broker has seen that the grants of a deleted topic are gone."""
    await admin.seen(lambda: not deleted_topic_grants.has_grants(admin.view.namespace(name.namespace), name))


async def of_subscriptions(admin: Admin, namespace: Namespace) -> dict[str, list[str]]:
    return admin.policies(namespace).subscription_permissions


async def grant_on_subscription(admin: Admin, request: web.Request, subscription: str, given: Roles) -> None:
    """The list replaces the one before: only these roles use the subscription from now on."""
    await _change(
        admin,
        request,
        lambda p: replace(p, subscription_permissions={**p.subscription_permissions, subscription: sorted(set(given))}),
    )


async def revoke_on_subscription(admin: Admin, request: web.Request) -> None:
    """With its last role the subscription is open to every role that may consume."""
    subscription, role = request.match_info["subscription"], _role(request)

    def change(p: NamespacePolicies) -> NamespacePolicies:
        left = [other for other in p.subscription_permissions.get(subscription, []) if other != role]
        others = {name: roles for name, roles in p.subscription_permissions.items() if name != subscription}
        return replace(p, subscription_permissions={**others, subscription: left} if left else others)

    await _change(admin, request, change)


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


def _topic(admin: Admin, request: web.Request) -> str:
    return f"{request.match_info['domain']}://{admin.namespace(request)}/{request.match_info['topic']}"


def _role(request: web.Request) -> str:
    role = request.match_info["role"]
    if len(role) > ROLE_CHARS_MAX or any(ord(c) < 32 for c in role):
        raise NotAllowed(f"a role has at most {ROLE_CHARS_MAX} characters, and no control characters")
    return role


def _actions(given: list[Action]) -> list[str]:
    return sorted({action.value for action in given})


def _with(table: dict[str, list[str]], role: str, actions: list[str]) -> dict[str, list[str]]:
    if role not in table and len(table) >= _ROLES_MAX:
        raise NotAllowed(f"there are grants for {_ROLES_MAX} roles already; give several people one role")
    return {**table, role: actions}


def _without(table: dict[str, list[str]], role: str) -> dict[str, list[str]]:
    return {other: actions for other, actions in table.items() if other != role}


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
