"""Drills: what a rehearsal asks of the regions: comparing copies, a shadow namespace and its topics, first messages,
how long publishing takes, a signature.

Is: the shell of `region_node.dr.operations.drill`, and its paths below /heliograph/v1/dr. Isn't: a step, or a verdict.
Invariants: a shadow is known by its name and by the mark that it was made with; nothing else is ever written to or
dropped here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heliograph.client.pulsar_connection import Address
from heliograph.model.admin_paths import DR, dr_path
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.drill_shadows import is_marked, mark
from heliograph.model.errors import (
    AlreadyExists,
    HeliographError,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
)
from heliograph.model.topic_names import TopicName
from region_node.dr.canary import entry_of
from region_node.dr.operations.report_signing import check
from region_node.dr.rehearsal.drill_clients import DrillClients
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_parameters import ExistingNamespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, of_other_brokers
from region_node.faces.admin.calls.other_regions import RegionsPort, check_passed_on
from region_node.faces.admin.calls.region_facts import loaded_topics
from region_node.faces.admin.tenancy.namespaces import delete_topics
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.security.allowed_urls import LINK_SCHEMES
from region_node.topics.round_trip import round_trip
from storage.managed_ledger.append_counts import FINE_S, OTHERS

Ask = Callable[[str, str, str, Any], Awaitable[Any]]
"""(region, method, path, body) -> its JSON."""

_PROBE = "first"
_PROBE_S = 8.0
_SIDE_BY_SIDE = 8
"""Topics that are made, tried, or deleted at a broker at the same time: others load theirs meanwhile."""
_DROPPED_AT_ONCE = 50


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

    async def partition(self, partitions: Mapping[str, int]) -> None:
        for topic, count in partitions.items():
            try:
                await self._admin.config.create_partitioned(topic, count)
            except AlreadyExists:
                pass  # as `make`

    async def fill(self, region: str, shadow: str, topics: Sequence[str]) -> None:
        await self._at(region, "POST", f"{dr_path(shadow)}/topics", {"topics": list(topics)}, fill, shadow)

    async def probe(self, region: str, shadow: str, topics: Sequence[str]) -> list[float]:
        given = {"topics": list(topics)}
        found = await self._at(region, "POST", f"{dr_path(shadow)}/probe", given, probe, shadow)
        return [float(took) for took in found.get("each_ms", [found["took_ms"]])]

    async def clients(self, verb: str, region: str, shadow: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        found: Mapping[str, Any]
        if self._admin.view.namespace(shadow) is None:
            found = {"count": 0, "ready": 0, "acked_s": [], "read_s": [], "said": f"{shadow} is gone"}
        elif region != self._admin.region:
            found = await self._ask(region, verb, f"{dr_path(shadow)}/clients", given)
        elif verb == "PUT":
            assert given is not None
            found = await begin_clients(self._admin, shadow, given)
        else:
            found = await _CLIENTS[verb](self._admin, shadow)
        return dict(found)

    async def drop(self, shadow: str, region: str) -> int:
        if self._admin.view.namespace(shadow) is None:
            return 0
        found = (
            await drop(self._admin, shadow)
            if region == self._admin.region
            else await self._ask(region, "DELETE", f"{dr_path(shadow)}/shadow", None)
        )
        return int((found or {}).get("left", 0))  # an earlier version deletes all of it

    async def latencies(self, region: str, namespace: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = (
            await latencies(self._admin, namespace)
            if region == self._admin.region
            else await self._ask(region, "GET", f"{dr_path(namespace)}/latencies", None)
        )
        return found

    async def _at(
        self,
        region: str,
        method: str,
        path: str,
        given: dict[str, Any],
        here: Callable[[Admin, str, dict[str, Any]], Awaitable[Any]],
        shadow: str,
    ) -> Any:
        if region != self._admin.region:
            return await self._ask(region, method, path, given)
        try:
            return await here(self._admin, shadow, given)
        except HeliographError as error:
            if not error.retryable:
                raise
            raise MetadataUnavailable(str(error)) from error

    def here(self) -> list[str]:
        """Those that this region may have topics of, at the first of its brokers."""
        admin = self._admin
        if _another_first(admin) is not None:
            return []
        return [
            name
            for tenant in admin.view.tenants()
            for name in admin.view.namespaces(tenant)
            if is_shadow(admin, name) and admin.region in admin.policies(name).regions
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


async def latencies(admin: Admin, namespace: ExistingNamespace, *, local: bool = False) -> dict[str, list[int]]:
    """Broker -> entries that were appended to the namespace since its start, by how long that took: through each bound
    of FINE_S, and above; zeros: none; empty: it counts the namespace together with others.
    """
    counted = {} if admin.appends is None else admin.appends.namespaces
    own = counted.get(namespace)
    among_others = own is None and OTHERS in counted and bool(loaded_topics(admin, namespace))
    nothing = [] if among_others else [0] * (len(FINE_S) + 1)
    out = {admin.ownership.record.broker: nothing if own is None else list(own.taken)}
    if not local:
        for part in await of_other_brokers(admin, "GET", f"{dr_path(namespace)}/latencies?local=true"):
            out.update(part)
    return out


async def fill(admin: Admin, namespace: ExistingNamespace, given: dict[str, Any], *, local: bool = False) -> None:
    """Makes and loads topics of a shadow, full names in `topics`, each at its owner. Raises what loading one raises."""
    _check_shadow(admin, namespace)

    async def one(name: str) -> None:
        await admin.topics.get(name, create=True)

    own, others = await _by_owner(admin, _named(namespace, given), local=local)
    await _side_by_side(one, own)
    path = f"{dr_path(namespace)}/topics?local=true"
    await asyncio.gather(*(admin.call(record, "POST", path, {"topics": names}) for record, names in others))


async def probe(
    admin: Admin, namespace: ExistingNamespace, given: dict[str, Any] | None, *, local: bool = False
) -> dict[str, Any]:
    """Stores a message in each of `topics` of a shadow, and reads it back: `each_ms`, and `took_ms`, the most of them.

    Raises RegionPassive, and what storage raises.
    """
    _check_shadow(admin, namespace)
    took_ms: list[float] = []

    async def one(name: str) -> None:
        began = admin.clock.monotonic()
        topic = await admin.topics.get(name, create=True)
        entry = entry_of("heliograph-drill", namespace.encode(), 1, admin.clock.wall_ms())
        _, whole = await round_trip(topic, entry)
        if not whole:
            raise MetadataUnavailable("the message did not come back as it was stored")
        took_ms.append((admin.clock.monotonic() - began) * 1000)

    names = _named(namespace, given or {"topics": [f"persistent://{namespace}/{_PROBE}"]})
    own, others = await _by_owner(admin, names, local=local)
    path = f"{dr_path(namespace)}/probe?local=true"
    try:
        async with asyncio.timeout(_PROBE_S):
            await _side_by_side(one, own)
            answers = await asyncio.gather(
                *(admin.call(record, "POST", path, {"topics": names}) for record, names in others)
            )
    except TimeoutError as error:
        raise MetadataUnavailable(f"the first messages were not stored and read within {_PROBE_S:g} s") from error
    for answer in answers:
        took_ms += map(float, answer.get("each_ms", [answer["took_ms"]]))
    return {"took_ms": max(took_ms), "each_ms": took_ms}


def _named(namespace: str, given: Mapping[str, Any]) -> list[str]:
    """The topics of a body. Raises NotAllowed where one is not the shadow's, or there are none."""
    names = [TopicName.parse(str(name)) for name in given.get("topics") or ()]
    if not names or any(name.namespace != namespace or not name.persistent for name in names):
        raise NotAllowed(f"`topics` are full names of topics of {namespace}, one at least")
    return list(map(str, names))


async def _by_owner(
    admin: Admin, names: Iterable[str], *, local: bool
) -> tuple[list[str], list[tuple[BrokerRecord, list[str]]]]:
    """(those of this broker, those of others). Raises MetadataUnavailable where only this one's were asked for."""
    own, others = list[str](), dict[str, tuple[BrokerRecord, list[str]]]()
    for name in names:
        record = await admin.ownership.owner(name)
        if record is admin.ownership.record:
            own.append(name)
        elif local:
            raise MetadataUnavailable("the shadow's bundle is moving: try again")
        else:
            others.setdefault(record.broker, (record, []))[1].append(name)
    return own, list(others.values())


async def _side_by_side(act: Callable[[str], Awaitable[None]], names: Sequence[str]) -> None:
    """Ends when all have ended; raises what the first that failed has raised."""
    places = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def one(name: str) -> None:
        async with places:
            await act(name)

    for failed in await asyncio.gather(*map(one, names), return_exceptions=True):
        if failed is not None:
            raise failed


async def begin_clients(
    admin: Admin, namespace: ExistingNamespace, given: dict[str, Any], *, local: bool = False
) -> dict[str, Any]:
    """Clients for `topics` of a shadow, that begin in region `source`; at the first broker of this region."""
    _check_shadow(admin, namespace)
    if (first := None if local else _another_first(admin)) is not None:
        return dict(await admin.call(first, "PUT", f"{dr_path(namespace)}/clients?local=true", given))
    source = admin.view.region(str(given.get("source")))
    own = admin.view.region(admin.region)
    urls = [found.service_url for found in (source, own) if found is not None and found.service_url]
    brokers = {
        Address.parse(url)
        for record in admin.ownership.brokers()
        for url in record.listeners.values()
        if url.startswith(("pulsar://", "pulsar+ssl://"))
    }
    clients = _clients(admin)
    check = led_to(admin, str(given.get("source")), brokers)
    clients.begin(namespace, _named(namespace, given), urls, brokers.__contains__, check)
    return clients.status(namespace)


def led_to(admin: RegionsPort, source: str, brokers: Container[Address]) -> Callable[[Address, str], None]:
    """Returns the check of an address that region `source`, or the configuration, leads a drill's client to, and of the
    token that it brings: both are believed of another region as little as its address is. brokers: of this region.
    """

    def check(address: Address, token: str) -> None:
        if address in brokers:
            return
        host = f"[{address.host}]" if ":" in address.host else address.host
        admin.urls.check(f"pulsar{'+ssl' if address.secure else ''}://{host}:{address.port}", LINK_SCHEMES)
        if token:
            url = f"http{'s' if address.secure else ''}://{host}:{address.port}"
            check_passed_on(admin, url, source, {"Authorization": f"Bearer {token}"})

    return check


async def switch_clients(admin: Admin, namespace: ExistingNamespace, *, local: bool = False) -> dict[str, Any]:
    """The switch of a shadow begins: its clients' times count from now on."""
    return await _of_clients(admin, namespace, "POST", lambda clients: clients.switch(namespace), local=local)


async def look_at_clients(admin: Admin, namespace: ExistingNamespace, *, local: bool = False) -> dict[str, Any]:
    """How many clients of a shadow there are, are connected, have published and read here, and after how long."""
    return await _of_clients(admin, namespace, "GET", lambda _: None, local=local)


async def end_clients(admin: Admin, namespace: ExistingNamespace, *, local: bool = False) -> dict[str, Any]:
    """Those of a shadow leave, before its topics go: they would make them again. At every broker of this region: which
    is its first may be another one than when they were begun. `local`: at this one.
    """
    _check_shadow(admin, namespace)
    if local:
        _clients(admin).end(namespace)
    else:
        await end_clients_here(admin, namespace)
    return _clients(admin).status(namespace)


async def end_clients_here(admin: Admin, namespace: str) -> None:
    """Raises what a broker that does not answer raises: it may have some."""
    if admin.drill_clients is not None:
        admin.drill_clients.end(namespace)
    await of_other_brokers(admin, "DELETE", f"{dr_path(namespace)}/clients?local=true")


async def _of_clients(
    admin: Admin, namespace: str, verb: str, act: Callable[[DrillClients], object], *, local: bool
) -> dict[str, Any]:
    _check_shadow(admin, namespace)
    if (first := None if local else _another_first(admin)) is not None:
        return dict(await admin.call(first, verb, f"{dr_path(namespace)}/clients?local=true"))
    act(_clients(admin))
    return _clients(admin).status(namespace)


_CLIENTS = {"POST": switch_clients, "GET": look_at_clients, "DELETE": end_clients}


def _clients(admin: Admin) -> DrillClients:
    return existing(admin.drill_clients, NotAllowed("this broker has no clients for drills"))


def _another_first(admin: Admin) -> BrokerRecord | None:
    """The broker of this region that has the clients of drills here; None: this one."""
    first = next(iter(admin.ownership.brokers()), None)
    return None if first is None or first.broker == admin.ownership.record.broker else first


async def drop(admin: Admin, namespace: ExistingNamespace) -> dict[str, int]:
    """Deletes some topics of a shadow here; once none is left the region leaves it, and the last one deletes what is
    declared of it, some at a time, too, and then the namespace. `left`: how many there are still, or 1 where the other
    region is to be done first: its links make them again.
    """
    _check_shadow(admin, namespace)
    await end_clients_here(admin, namespace)  # of a drill that was given up
    names = await admin.topics.topics(namespace)

    async def one(name: str) -> None:
        try:
            await delete_topics(admin, [name])
        except NotFound:
            pass  # deleted before this step was interrupted

    await _side_by_side(one, names[:_DROPPED_AT_ONCE])
    if left := len(await admin.topics.topics(namespace)):  # also what was made meanwhile
        return {"left": left}
    linked = admin.policies(namespace).policies.get("replication") == [admin.region]

    def without(old: NamespacePolicies) -> NamespacePolicies:
        others = tuple(region for region in old.regions if region != admin.region)
        return old if linked or not others else replace(old, regions=others)

    try:
        found = await admin.config.update_namespace(namespace, without)
        if linked and found.regions != (admin.region,):
            return {"left": 1}
        if found.regions == (admin.region,):
            if left := await _undeclare(admin, namespace):
                return {"left": left}
            await admin.config.delete_namespace(namespace)
    except NotFound:
        pass  # as above
    await admin.seen(lambda: (now := admin.view.namespace(namespace)) is None or admin.region not in now.regions)
    return {"left": 0}


async def _undeclare(admin: Admin, namespace: str) -> int:
    """Deletes some of the partitioned topics of a shadow that has no data any more: each is told to all brokers, which
    forget what they keep of it, and a transaction holds only so many. Returns how many are left.
    """
    declared = admin.view.partitioned(namespace)
    some = declared[:_DROPPED_AT_ONCE]

    async def one(topic: str) -> None:
        try:
            await admin.config.delete_partitioned(topic)
        except NotFound:
            pass  # deleted before this step was interrupted

    await _side_by_side(one, some)
    await admin.seen(lambda: not any(map(admin.view.partitions, some)))
    return len(declared) - len(some)


def is_shadow(admin: Admin, namespace: str, target: str = "") -> bool:
    """Whether a drill has made the namespace. target: one to that region."""
    found = admin.view.namespace(namespace)
    return (
        found is not None
        and is_marked(namespace, found)
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
    Route("GET", f"{DR}/latencies", CallAccess.SUPER, latencies),
    Route("POST", f"{DR}/topics", CallAccess.SUPER, fill),
    Route("POST", f"{DR}/probe", CallAccess.SUPER, probe),
    Route("PUT", f"{DR}/clients", CallAccess.SUPER, begin_clients),
    Route("POST", f"{DR}/clients", CallAccess.SUPER, switch_clients),
    Route("GET", f"{DR}/clients", CallAccess.SUPER, look_at_clients),
    Route("DELETE", f"{DR}/clients", CallAccess.SUPER, end_clients),
    Route("DELETE", f"{DR}/shadow", CallAccess.SUPER, drop),
    Route("POST", "/heliograph/v1/dr/verify", CallAccess.SUPER, verify),
)
