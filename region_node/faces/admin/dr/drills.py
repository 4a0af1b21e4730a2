"""Drills: what a rehearsal asks of the regions: comparing copies, a shadow namespace, a first message, a signature.

Is: the shell of `region_node.dr.operations.drill`, and its paths below /heliograph/v1/dr. Isn't: a step, or a verdict.
Invariants: a shadow is known by its name and by the mark that it was made with; nothing else is ever written to or
dropped here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from heliograph.model.admin_paths import DR, dr_path
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import AlreadyExists, MetadataUnavailable, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from region_node.dr.canary import entry_of
from region_node.dr.operations.report_signing import check
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import ExistingNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, of_other_brokers
from region_node.faces.admin.calls.region_facts import loaded_topics
from region_node.faces.admin.tenancy.namespaces import delete_topics
from region_node.topics.round_trip import round_trip

Ask = Callable[[str, str, str, Any], Awaitable[Any]]
"""(region, method, path, body) -> its JSON."""

_SHADOW = re.compile(r".+-drill-\d+")
_MARK = "heliograph.shadow-of-a-drill"
_PROBE = "first"
_PROBE_S = 8.0


class RegionShadows:
    """Over the admin interfaces of this region and others."""

    def __init__(self, admin: Admin, ask: Ask) -> None:
        self._admin, self._ask = admin, ask

    async def audit(self, region: str, namespace: str, since_ms: int) -> dict[str, Any]:
        found: dict[str, Any] = await (
            audits(self._admin, namespace, since_ms=since_ms)
            if region == self._admin.region
            else self._ask(region, "POST", f"{dr_path(namespace)}/audits?since_ms={since_ms}", None)
        )
        return found

    async def make(self, shadow: str, policies: NamespacePolicies) -> None:
        try:
            await self._admin.config.create_namespace(
                shadow, replace(policies, policies={**policies.policies, "properties": mark(shadow)})
            )
        except AlreadyExists:
            pass  # made before this step was interrupted; or somebody's own
        await self._admin.seen(lambda: self._admin.view.namespace(shadow) is not None)
        _check_shadow(self._admin, shadow)

    async def probe(self, region: str, shadow: str) -> float:
        if region == self._admin.region:
            return (await probe(self._admin, shadow))["took_ms"]
        return float((await self._ask(region, "POST", f"{dr_path(shadow)}/probe", None))["took_ms"])

    async def drop(self, shadow: str, region: str) -> None:
        if self._admin.view.namespace(shadow) is None:
            return
        if region == self._admin.region:
            await drop(self._admin, shadow)
        else:
            await self._ask(region, "DELETE", f"{dr_path(shadow)}/shadow", None)

    def here(self) -> list[str]:
        """Those whose message is in this region, at the first of its brokers."""
        admin = self._admin
        if admin.ownership.record.broker != next((record.broker for record in admin.ownership.brokers()), ""):
            return []
        return [
            name
            for tenant in admin.view.tenants()
            for name in admin.view.namespaces(tenant)
            if is_shadow(admin, name, admin.region)
        ]

    async def sign(self, report: dict[str, Any]) -> dict[str, Any]:
        return await existing(self._admin.signer, NotAllowed("this broker has no key to sign with")).sign(report)


# -- here --------------------------------------------------------------------------------------------------------------


_SUMMED = ("entries", "ranges", "unchecked", "left")
_LISTED = ("errors", "running")


async def audits(admin: Admin, namespace: ExistingNamespace, *, since_ms: int = 0, local: bool = False) -> Any:
    """Compares every topic of this region's copy with its origin, once after `since_ms`; asked again until `running` is
    empty.
    """
    auditor = admin.links.auditor
    out: dict[str, Any] = {"topics": 0, **dict.fromkeys(_SUMMED, 0), "found": {}, "errors": [], "running": []}
    for topic in loaded_topics(admin, namespace):
        if topic.shadow_of or topic.policies.values.get("replication") == [admin.region]:  # nobody has another copy
            continue
        report = auditor.briefs.get(topic.text)
        if auditor.running(topic.text):
            out["running"].append(topic.text)
        elif report is None or report.began_ms < since_ms:
            try:
                auditor.want(topic.text)
                out["running"].append(topic.text)
            except NotAllowed as error:
                out["errors"].append(str(error))
        else:
            errors = [f"{topic.text}: {report.error}"] if report.error else []
            _add(out, {"topics": 1, **report._asdict(), "errors": errors, "running": []})
    if not local:
        path = f"{dr_path(namespace)}/audits?since_ms={since_ms}&local=true"
        for part in await of_other_brokers(admin, "POST", path):
            _add(out, part)
    return out


def _add(out: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key in ("topics", *_SUMMED, *_LISTED):
        out[key] += part[key]
    for fault, count in part["found"].items():
        out["found"][fault] = out["found"].get(fault, 0) + count


async def probe(admin: Admin, namespace: ExistingNamespace, *, local: bool = False) -> dict[str, float]:
    """Stores a message in a shadow, and reads it back.

    Raises RegionPassive, and what storage raises.
    """
    _check_shadow(admin, namespace)
    name = TopicName.parse(f"persistent://{namespace}/{_PROBE}")
    owner = await admin.ownership.owner(str(name))
    if owner is not admin.ownership.record:
        if local:
            raise MetadataUnavailable("the shadow's bundle is moving: try again")
        answer = await admin.call(owner, "POST", f"{dr_path(namespace)}/probe?local=true")
        return {"took_ms": float(answer["took_ms"])}
    began = admin.clock.monotonic()
    async with asyncio.timeout(_PROBE_S):
        topic = await admin.topics.get(str(name), create=True)
        entry = entry_of("heliograph-drill", namespace.encode(), 1, admin.clock.wall_ms())
        _, whole = await round_trip(topic, entry)
    if not whole:
        raise MetadataUnavailable("the message did not come back as it was stored")
    return {"took_ms": (admin.clock.monotonic() - began) * 1000}


async def drop(admin: Admin, namespace: ExistingNamespace) -> None:
    """Deletes a shadow, with its message."""
    _check_shadow(admin, namespace)
    await delete_topics(admin, await admin.topics.topics(namespace))
    try:
        await admin.config.delete_namespace(namespace)
    except NotFound:
        pass  # dropped before this step was interrupted
    await admin.seen(lambda: admin.view.namespace(namespace) is None)


def mark(shadow: str) -> dict[str, str]:
    """The properties that a shadow is made with."""
    return {_MARK: shadow}


def is_shadow(admin: Admin, namespace: str, target: str = "") -> bool:
    """Whether a drill has made the namespace. target: one to that region."""
    if not _SHADOW.fullmatch(namespace):
        return False
    found = admin.view.namespace(namespace)
    return (
        found is not None
        and found.policies.get("properties") == mark(namespace)
        and (not target or found.policies.get("replication") == [target])
    )


def _check_shadow(admin: Admin, namespace: str) -> None:
    if not is_shadow(admin, namespace):
        raise NotAllowed(
            f"{namespace} is not the shadow of a drill: where somebody made it, delete it or rename it, or cancel the "
            "drill (`heliograph dr cancel`); the next one has another name"
        )


async def verify(admin: Admin, given: dict[str, Any]) -> dict[str, Any]:
    """Body: a signed report. Whether it is as it was signed, and by a key that the instance knows as that region's."""
    check(given)
    assert admin.signer is not None
    if not await admin.signer.known(str(given.get("signed_by", "")), str(given["public_key"])):
        raise NotAllowed(f"the key is none that region {given.get('signed_by')} of this instance signs with")
    return {"valid": True, "signed_by": given["signed_by"], "passed": given.get("passed")}


ROUTES: tuple[Route, ...] = (
    Route("POST", f"{DR}/audits", CallAccess.SUPER, audits),
    Route("POST", f"{DR}/probe", CallAccess.SUPER, probe),
    Route("DELETE", f"{DR}/shadow", CallAccess.SUPER, drop),
    Route("POST", "/heliograph/v1/dr/verify", CallAccess.SUPER, verify),
)
