"""Policies over HTTP: the routes of every row of the policy table, for namespaces and for topics.

Is: get, set, and delete at one level, and `applied`; the few policies whose paths are not like the others (quotas by
type, parts of the offload policies, rates of one subscription). Isn't: what a policy may be
(`heliograph.model.configuration.policy_table`), or what obeys it.
Any broker answers: the namespaces' level lies in the global configuration, the topics' in the region's metadata
(`isGlobal=true`: in the global configuration), and every broker has a copy of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import NAMESPACE, TOPIC
from heliograph.model.configuration.configuration_records import TopicPolicies
from heliograph.model.configuration.drill_shadows import MARK
from heliograph.model.configuration.policy_table import BY_NAME, POLICIES, Policy
from heliograph.model.configuration.policy_values import QUOTA_TYPES, RATE, Check, quota, schema_of, text
from heliograph.model.configuration.replication_routes import check_members
from heliograph.model.errors import MalformedRequest, NotAllowed, Unauthorized
from heliograph.model.topic_names import TopicName
from region_node.faces.admin.calls.admin_context import Admin, body, flag, number, text_body
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.calls.call_rights import CallAccess, Handler, Route
from region_node.faces.admin.calls.existing import existing_namespace, existing_topic

Change = Callable[[dict[str, Any]], dict[str, Any]]


# -- one level, whichever it is ----------------------------------------------------------------------------------------


class NamespaceLevel:
    """Reads and writes policies of the namespace in the path."""

    def base(self, admin: Admin, request: web.Request) -> str:
        return existing_namespace(admin, request)

    async def regions(self, admin: Admin, request: web.Request) -> tuple[str, ...]:
        return admin.policies(self.base(admin, request)).regions

    async def read(self, admin: Admin, request: web.Request) -> dict[str, Any]:
        namespace = self.base(admin, request)
        if flag(request, "applied"):
            return dict(admin.topics.policies.of_namespace(namespace).values)
        return admin.policies(namespace).policies

    async def write(self, admin: Admin, request: web.Request, change: Change) -> None:
        namespace = self.base(admin, request)
        before = admin.policies(namespace).policies
        after = await admin.config.update_namespace(namespace, lambda p: replace(p, policies=change(p.policies)))
        await admin.seen(lambda: (p := admin.view.namespace(namespace)) is not None and p.policies == after.policies)
        admin.changed(request, before, after.policies)


class TopicLevel:
    """Reads and writes policies of the topic in the path, for all its partitions; `isGlobal`: those of all regions."""

    async def base(self, admin: Admin, request: web.Request) -> TopicName:
        return await existing_topic(admin, admin.topic(request).partitioned)

    async def regions(self, admin: Admin, request: web.Request) -> tuple[str, ...]:
        name = await self.base(admin, request)
        return tuple(admin.topics.policies.of(name).values.get("replication") or admin.policies(name.namespace).regions)

    async def read(self, admin: Admin, request: web.Request) -> dict[str, Any]:
        name = await self.base(admin, request)
        if flag(request, "applied"):
            return {
                "replication": [*(here := admin.policies(name.namespace)).regions, *here.clusters],
                **admin.topics.policies.of(name).values,
            }
        if flag(request, "isGlobal"):
            found = admin.view.topic_policies(str(name))
            return found.policies if found is not None else {}
        return admin.topics.policies.topic(str(name)).policies

    async def write(self, admin: Admin, request: web.Request, change: Change) -> None:
        name = str(await self.base(admin, request))

        def changed(value: TopicPolicies) -> TopicPolicies:
            return replace(value, policies=change(value.policies))

        if flag(request, "isGlobal"):
            before, after = await admin.config.change_topic_policies(name, changed)
            await admin.seen(lambda: (admin.view.topic_policies(name) or TopicPolicies()) == after)
        else:
            before, after = await admin.topics.policies.change_topic(name, changed)
            await admin.seen(lambda: admin.topics.policies.topic(name) == after)
        admin.changed(request, before.policies, after.policies)


Level = NamespaceLevel | TopicLevel
ON_NAMESPACE, ON_TOPIC = NamespaceLevel(), TopicLevel()


def setting(name: str, value: Any) -> Change:
    """Returns the change that sets a policy to a checked value. Raises NotAllowed, WrongKind."""
    checked = BY_NAME[name].check(name, value)
    return lambda policies: policies | {name: checked}


def removing(name: str) -> Change:
    return lambda policies: {key: value for key, value in policies.items() if key != name}


def setting_item(name: str, key: str, value: Any) -> Change:
    """Returns the change that sets one value of a policy that is an object."""
    return lambda policies: policies | {name: policies.get(name, {}) | {key: value}}


def removing_item(name: str, key: str, *, last: bool = True) -> Change:
    """Returns the change that takes one value out of a policy that is an object; with its last one the policy itself,
    but where `last` is false.
    """

    def change(policies: dict[str, Any]) -> dict[str, Any]:
        left = removing(key)(policies.get(name, {}))
        return removing(name)(policies) if name not in policies or (last and not left) else policies | {name: left}

    return change


def shown(value: Any, empty: int = 200) -> Any:
    """Not set is an empty answer, as Pulsar's is; numbers, texts, and lists are JSON too."""
    return web.Response(status=empty) if value is None else web.json_response(value)


_WITHOUT_BODY: dict[str, Change] = {
    "deduplicationSnapshotInterval": removing("deduplicationSnapshotInterval"),
    "dispatcherPauseOnAckStatePersistent": setting("dispatcherPauseOnAckStatePersistent", True),
}
"""What Java's client means by a POST of nothing."""


def _get(level: Level, policy: Policy) -> Handler:
    async def get(admin: Admin, request: web.Request) -> Any:
        value = (await level.read(admin, request)).get(policy.name)
        if isinstance(level, TopicLevel):
            return shown(policy.shown_topic if value is None else value, policy.empty)
        return shown(policy.shown if value is None else value, 200 if policy.topic else policy.empty)

    return get


def check_value(
    admin: Admin, request: web.Request, policy: Policy, checked: Any, regions: tuple[str, ...] = ()
) -> None:
    """What a value of the right kind may still be refused for, by whichever call it comes. regions: that it is for.
    Raises NotAllowed, Unauthorized.
    """
    principal = request[PRINCIPAL]
    if policy.by_super and not admin.security.rights.is_super(principal):
        raise Unauthorized(f"the role {principal.role!r} may not set {policy.field or policy.name}: a super user may")
    if policy.name == "resourceGroup" and admin.view.resource_group(checked) is None:
        raise NotAllowed(f"Resource group {checked} does not exist")
    if policy.name == "encryptionAtRest" and checked is False:
        tenant = admin.tenant(request)
        if (found := admin.view.tenant(tenant)) is not None and found.encryption_at_rest:
            raise NotAllowed(
                f"tenant {tenant} has to be encrypted at rest: a super user may lift that (`heliograph keys "
                f"require --off {tenant}`)"
            )
    if policy.name == "replicationTopology":
        check_members(checked, regions)
    if policy.name == "properties" and MARK in checked:
        raise NotAllowed(f"the property {MARK} is that of drills, which make their shadows with it: take another name")
    if policy.name == "entryFilters":
        admin.topics.filters.check(checked["entryFilterNames"])


def _check_allowed(admin: Admin, request: web.Request, regions: tuple[str, ...]) -> None:
    """A topic's regions are held against its tenant's, as a namespace's are. Raises NotAllowed."""
    tenant = admin.tenant(request)
    allowed = found.allowed_regions if (found := admin.view.tenant(tenant)) is not None else ()
    for region in regions:
        if region not in allowed:
            raise NotAllowed(
                f"region {region!r} is not allowed to tenant {tenant!r} (allowed: {', '.join(allowed) or 'none'}): "
                "name others, or let a super user allow it to the tenant"
            )


def _set(level: Level, policy: Policy) -> Handler:
    async def set_(admin: Admin, request: web.Request) -> None:
        value = await (text_body if policy.check is text else body)(request)
        if value is None and policy.namespace == "messageTTL" and "messageTTL" in request.query:
            value = number(request.query["messageTTL"], "messageTTL")
        if value is None and isinstance(level, NamespaceLevel) and policy.name in _WITHOUT_BODY:
            await level.write(admin, request, _WITHOUT_BODY[policy.name])
            return
        if value is None:
            raise MalformedRequest(f"expected the value of {policy.name} in the body")
        if policy.name == "replication":
            _check_allowed(admin, request, admin.parted(value)[0])
        checked = policy.check(policy.name, value)
        regions = await level.regions(admin, request) if policy.name == "replicationTopology" else ()
        check_value(admin, request, policy, checked, regions)
        await level.write(admin, request, lambda policies: policies | {policy.name: checked})

    return set_


def _unset(level: Level, policy: Policy) -> Handler:
    async def unset(admin: Admin, request: web.Request) -> None:
        await level.write(admin, request, removing(policy.name))

    return unset


_NO_QUOTA = {"limitSize": -1, "limitTime": -1, "policy": "producer_request_hold"}


def _all(level: Level) -> Handler:
    async def everything(admin: Admin, request: web.Request) -> Any:
        """Every policy that is set at this level, by the names of the table; with `applied=true` what holds."""
        return await level.read(admin, request)

    return everything


# -- backlog quotas: one a type ----------------------------------------------------------------------------------------


def _quota_type(request: web.Request) -> str:
    kind = request.query.get("backlogQuotaType", "destination_storage")
    if kind not in QUOTA_TYPES:
        raise MalformedRequest(f"backlogQuotaType is {' or '.join(QUOTA_TYPES)}, not {kind!r}")
    return kind


def _quotas(level: Level) -> tuple[Handler, Handler, Handler]:
    async def get(admin: Admin, request: web.Request) -> dict[str, Any]:
        found: dict[str, Any] = (await level.read(admin, request)).get("backlogQuota", {})
        if flag(request, "applied"):
            found = dict.fromkeys(QUOTA_TYPES, _NO_QUOTA) | found
        return {kind: {"limit": one["limitSize"], **one} for kind, one in found.items()}

    async def set_(admin: Admin, request: web.Request, given: Any) -> None:
        kind = _quota_type(request)
        await level.write(admin, request, setting_item("backlogQuota", kind, quota("backlogQuota", given)))

    async def unset(admin: Admin, request: web.Request) -> None:
        await level.write(admin, request, removing_item("backlogQuota", _quota_type(request)))

    return get, set_, unset


# -- parts of a policy that is an object -------------------------------------------------------------------------------

_OFFLOAD_PARTS = (
    ("offloadThreshold", "managedLedgerOffloadThresholdInBytes", -1),
    ("offloadThresholdInSeconds", "managedLedgerOffloadThresholdInSeconds", -1),
    ("offloadDeletionLagMs", "managedLedgerOffloadDeletionLagInMillis", None),
)


def _part(level: Level, name: str, field: str, unset: int | None) -> tuple[Handler, Handler, Handler]:
    """One number of a policy that is an object."""

    async def get(admin: Admin, request: web.Request) -> Any:
        return shown((await level.read(admin, request)).get(name, {}).get(field, unset))

    async def set_(admin: Admin, request: web.Request, given: int) -> None:
        await level.write(admin, request, setting_item(name, field, given))

    async def remove(admin: Admin, request: web.Request) -> None:
        await level.write(admin, request, removing_item(name, field, last=False))

    return get, set_, remove


def _keyed(
    level: Level, name: str, key: str, read: Callable[[Any], Any], *, tells: bool = False
) -> tuple[Handler, Handler, Handler]:
    """One value of a policy that is an object of free names; the name is part `key` of the path. tells: what is removed
    is the answer.
    """

    def said(found: Any) -> Any:
        return web.Response(text=found) if isinstance(found, str) else shown(found)

    async def get(admin: Admin, request: web.Request) -> Any:
        return said((await level.read(admin, request)).get(name, {}).get(request.match_info[key]))

    async def set_(admin: Admin, request: web.Request) -> None:
        chosen, value = request.match_info[key], read(request.match_info.get("value") or await body(request))
        check_value(admin, request, BY_NAME[name], {chosen: value})
        await level.write(admin, request, setting_item(name, chosen, value))

    async def unset(admin: Admin, request: web.Request) -> Any:
        chosen, removed = request.match_info[key], None

        def change(policies: dict[str, Any]) -> dict[str, Any]:
            nonlocal removed
            removed = policies.get(name, {}).get(chosen)
            return removing_item(name, chosen)(policies)

        await level.write(admin, request, change)
        return said(removed) if tells else None

    return get, set_, unset


# -- resource groups of namespaces -------------------------------------------------------------------------------------


async def set_group(admin: Admin, request: web.Request) -> None:
    group = request.match_info["group"]
    check_value(admin, request, BY_NAME["resourceGroup"], group)
    await ON_NAMESPACE.write(admin, request, setting("resourceGroup", group))


# -- routes ------------------------------------------------------------------------------------------------------------

_CLIENTS_READ: dict[str, CallAccess] = {
    f"{NAMESPACE}/deduplication": CallAccess.LIST,
    f"{TOPIC}/deduplicationEnabled": CallAccess.LOOK_UP,
    f"{TOPIC}/schemaValidationEnforced": CallAccess.LOOK_UP,
}
"""Paths of policies that clients read, too; any other is read by who may set it."""


def _three(
    path: str,
    setter: str,
    handlers: tuple[Handler, Handler, Handler],
    right: CallAccess = CallAccess.TENANT,
    check: Check | None = None,
) -> tuple[Route, ...]:
    get, set_, unset = handlers
    schema = None if check is None else schema_of(check)
    flags = ("isGlobal",) if path.startswith(TOPIC) else ()
    return (
        Route("GET", path, _CLIENTS_READ.get(path, right), get, answer=schema, flags=("applied", *flags)),
        Route(setter, path, right, set_, schema, flags=flags),
        Route("DELETE", path, right, unset, flags=flags),
    )


def _right(policy: Policy) -> CallAccess:
    return CallAccess.SUPER if policy.by_super else CallAccess.TENANT


def _at_level(base: str, level: Level) -> list[Route]:
    """Every row of the table, and the quotas, which both levels have."""
    routes: list[Route] = []
    for policy in POLICIES:
        path, put = (policy.namespace, policy.put) if level is ON_NAMESPACE else (policy.topic, policy.put_topic)
        if path:
            handlers = _get(level, policy), _set(level, policy), _unset(level, policy)
            routes += _three(f"{base}/{path}", "PUT" if put else "POST", handlers, _right(policy), policy.check)
    get, set_, unset = _quotas(level)
    return [
        *routes,
        Route("GET", f"{base}/backlogQuotaMap", CallAccess.TENANT, get),
        Route("POST", f"{base}/backlogQuota", CallAccess.TENANT, set_, schema_of(quota)),
        Route("DELETE", f"{base}/backlogQuota", CallAccess.TENANT, unset),
    ]


def _namespace_routes() -> tuple[Route, ...]:
    group, offload = BY_NAME["resourceGroup"], BY_NAME["offloadPolicies"]
    routes = [
        *_at_level(NAMESPACE, ON_NAMESPACE),
        Route("DELETE", f"{NAMESPACE}/removeOffloadPolicies", CallAccess.TENANT, _unset(ON_NAMESPACE, offload)),
        Route("GET", f"{NAMESPACE}/resourcegroup", CallAccess.SUPER, _get(ON_NAMESPACE, group)),
        Route("POST", f"{NAMESPACE}/resourcegroup/{{group}}", CallAccess.SUPER, set_group),
        Route("DELETE", f"{NAMESPACE}/resourcegroup", CallAccess.SUPER, _unset(ON_NAMESPACE, group)),
    ]
    for path, field, unset_value in _OFFLOAD_PARTS:
        routes += _three(f"{NAMESPACE}/{path}", "PUT", _part(ON_NAMESPACE, "offloadPolicies", field, unset_value))
    get, set_, unset = _keyed(ON_NAMESPACE, "properties", "key", str, tells=True)  # as Pulsar
    routes += [
        Route("GET", f"{NAMESPACE}/property/{{key}}", CallAccess.TENANT, get),
        Route("DELETE", f"{NAMESPACE}/property/{{key}}", CallAccess.TENANT, unset),
        Route("PUT", f"{NAMESPACE}/property/{{key}}/{{value}}", CallAccess.TENANT, set_),
    ]
    return tuple(routes)


def _topic_routes() -> tuple[Route, ...]:
    rates = _keyed(ON_TOPIC, "dispatchRateOfSubscriptions", "subscription", lambda value: RATE("dispatchRate", value))
    return *_at_level(TOPIC, ON_TOPIC), *_three(f"{TOPIC}/{{subscription}}/dispatchRate", "POST", rates, check=RATE)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/policies/{tenant}/{namespace}", CallAccess.TENANT, _all(ON_NAMESPACE)),
    Route(
        "GET",
        "/heliograph/v1/policies/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}",
        CallAccess.TENANT,
        _all(ON_TOPIC),
    ),
    *_namespace_routes(),
    *_topic_routes(),
)
