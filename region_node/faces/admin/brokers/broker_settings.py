"""What the brokers of a region run with: the policies that hold where nothing else is set, changed while they run.

Is: Pulsar's names of dynamic settings, each one policy of the table, stored in the region's metadata for all its
brokers. Isn't: the settings file, which is read once (`region_node.process.settings`): what is deleted here is as the
file says again.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any, cast

from aiohttp import web

from heliograph.model.configuration.policy_table import BY_BROKER, Policy
from heliograph.model.errors import NotAllowed
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing


async def names(admin: Admin) -> list[str]:
    return sorted(BY_BROKER)


async def values(admin: Admin) -> dict[str, str]:
    """What was set while the brokers ran."""
    set_, _ = admin.topics.policies.brokers()
    return {policy.broker: _text(policy, set_[policy.name]) for policy in BY_BROKER.values() if policy.name in set_}


async def runtime(admin: Admin) -> dict[str, str]:
    record = admin.ownership.record
    held = admin.topics.policies.of_namespace("").values
    fixed = {
        "clusterName": admin.region,
        "brokerId": record.broker,
        "webServiceUrl": record.admin_url,
        "brokerServiceUrl": record.listeners.get("", ""),
    }
    return fixed | {
        policy.broker: _text(policy, held[policy.name]) for policy in BY_BROKER.values() if policy.name in held
    }


async def change(admin: Admin, request: web.Request, name: str, value: str) -> None:
    policy, given = _policy(name), cast(Any, value)
    with contextlib.suppress(ValueError):
        given = json.loads(value)
    if (part := PARTS.get(policy.broker)) is not None:
        given = {part: given}
    checked = policy.check(policy.broker, given)
    await _write(admin, request, lambda p: p | {policy.name: checked})


async def forget(admin: Admin, request: web.Request, name: str) -> None:
    policy = _policy(name)
    await _write(admin, request, lambda p: {key: value for key, value in p.items() if key != policy.name})


async def _write(admin: Admin, request: web.Request, changed: Any) -> None:
    book = admin.topics.policies
    before, after = await book.change_brokers(lambda value: replace(value, policies=changed(value.policies)))
    await admin.seen(lambda: book.brokers()[0] == after.policies)
    admin.changed(request, before.policies, after.policies)


def _policy(name: str) -> Policy:
    why = f"{name} cannot be changed while brokers run; these can: {', '.join(sorted(BY_BROKER))}"
    return existing(BY_BROKER.get(name), NotAllowed(why))


PARTS = {"allowAutoSubscriptionCreation": "allowAutoSubscriptionCreation"}
"""Settings that are one field of their policy's record -> that field."""


def _text(policy: Policy, value: Any) -> str:
    if (part := PARTS.get(policy.broker)) is not None:
        value = value.get(part)
    return value if isinstance(value, str) else json.dumps(value)


_ALL = "/admin/v2/brokers/configuration"
ROUTES: tuple[Route, ...] = (
    Route("GET", _ALL, CallAccess.SUPER, names),
    Route("GET", f"{_ALL}/values", CallAccess.SUPER, values),
    Route("GET", f"{_ALL}/runtime", CallAccess.SUPER, runtime),
    Route("POST", f"{_ALL}/{{name}}/{{value:.+}}", CallAccess.SUPER, change),
    Route("DELETE", f"{_ALL}/{{name}}", CallAccess.SUPER, forget),
)
