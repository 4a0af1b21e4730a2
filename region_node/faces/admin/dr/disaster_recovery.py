"""Disaster recovery: which region a namespace is active in, what a move would cost, and the steps of one.

Is: paths of our own, below /heliograph/v1/dr. Isn't: a rule (`region_node.dr`).
Invariants: every change is in the audit log; a dry run changes nothing.
Source: docs/operating/disaster-recovery.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.admin_paths import DR, dr_path
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import Leadership, Writer
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, NotFound, reason_of
from region_node.dr.leadership.leadership_changes import unheard, unheard_text
from region_node.dr.operations import messages_at_risk, namespace_facts
from region_node.dr.operations.automatic_policy import forget_automatic
from region_node.dr.operations.drill import Drill
from region_node.dr.operations.operation import SWITCHOVER, Operation, Planned
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.region_plan import trouble as trouble_of
from region_node.dr.slo_monitor import POLICY as SLO_POLICY
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given, OnlyGiven
from region_node.faces.admin.calls.call_parameters import Namespace
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import check_in_region, existing, leases_of, other_brokers, role_of
from region_node.faces.admin.calls.other_regions import Caller, elsewhere
from region_node.faces.admin.calls.region_facts import facts_here, facts_of, facts_of_broker, loaded_topics, topics_here
from region_node.faces.admin.dr import (
    automatic_failovers,
    drill_schedules,
    drills,
    subscription_switchover,
    two_step_deletion,
)
from region_node.faces.admin.dr.drills import RegionShadows
from region_node.topics.topic import Topic

_COUNT_S = 3.0
"""How long one request counts; what it has not come to is asked for again."""
_THROUGH_S_MAX = 10
"""No request goes on with an operation for longer."""
_LOOK_S = 0.025
"""Between two looks whether a step can be done that has to wait; up to twice as much."""
_HEARD_S, _HEARD_LOOKS = 5.0, 20
"""A broker that is well has heard of a leadership, and has a lease, within this time."""


# -- what there is -----------------------------------------------------------------------------------------------------


async def listed(admin: Admin) -> dict[str, Any]:
    """Every active-passive namespace, as this broker knows it."""
    rows = [
        {**gate.status(), "automatic": automatic_failovers.status(admin, gate.namespace)}
        for gate in leases_of(admin).core.gates()
    ]
    found: dict[str, Any] = {"region": admin.region, "lease": _lease(admin), "namespaces": rows, "events": []}
    found["canary"] = None if admin.canary is None else admin.canary.verdict.status()
    if admin.promises is not None:
        for row in rows:
            row["at_risk_s"] = admin.promises.risk_s.get(row["namespace"], 0.0)
            row["silent_s"] = admin.promises.silent_s.get(row["namespace"], 0.0)
            row["slo_broken"] = row["namespace"] in admin.promises.broken
        found["events"] = list(admin.promises.events)
        led = {row["namespace"] for row in rows}
        found["promises"] = [row for row in admin.promises.status() if row["namespace"] not in led]
    return found


async def status(admin: Admin, request: web.Request, namespace: Namespace) -> dict[str, Any]:
    """One namespace: who is active, what is at risk, and for each other region whether it could take over now, and at
    what cost. Nobody is waited for longer than `region_patience_s`.
    """
    policies, gate = admin.policies(namespace), leases_of(admin).core.gate(namespace)
    others = [region for region in policies.regions if region != admin.region]
    async with AskedRegions(facts_of(admin, request), namespace, admin.region_patience_s) as asked:
        asked.begin(policies.regions if gate is not None else [admin.region])
        conductor = conductor_for(admin, request, asked)
        trouble = ""
        try:
            led = await _led(admin, conductor, namespace)
        except MetadataUnavailable as error:
            led, trouble = None, str(error)
        if led is None:
            here = await asked(admin.region, namespace)
            found = _everywhere(namespace, policies, here, others if admin.region in policies.regions else [])
            return {**found, "configuration": trouble}
        targets = {}
        for region in policies.regions:
            if region != led.record.active:
                _, cost = await conductor.plan(SWITCHOVER, namespace, region, led.record, led.unheard)
                targets[region] = {"can_switch": not (why := trouble_of(cost)), "because": why, **cost}
    record = led.record
    return {
        "namespace": namespace,
        "mode": "active-passive",
        "regions": list(policies.regions),
        "active": record.active,
        "epoch": record.epoch,
        "state": record.state,
        "to": record.to,
        "asks": record.asks,
        "since_ms": record.since_ms,
        "slo": record.slo,
        "automatic": automatic_failovers.status(admin, namespace),
        "configuration": led.trouble,
        "unheard": led.unheard,
        "to_rejoin": led.away,
        "writers": {
            region: {broker: w.obeys(namespace, led.version) for broker, w in sorted(found.items())}
            for region, found in led.writers.items()
        },
        "targets": targets,
        "operation": None if led.operation is None else _shown(led.operation),
    }


def _everywhere(
    namespace: str, policies: NamespacePolicies, here: Mapping[str, Any], others: Iterable[str]
) -> dict[str, Any]:
    """A namespace that every region takes messages of. at_risk: what would be lost with this region; lacks: what this
    one would lack if another one were lost.
    """
    own: str = here["region"]
    at_risk, lacks = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for region in others:
        published, missing = namespace_facts.not_in(here, region), namespace_facts.lacking(here, region)
        at_risk[region] = {**published, "at_risk": messages_at_risk.at_risk(own, region, published, None)}
        lacks[region] = {**missing, "at_risk": messages_at_risk.at_risk(region, own, None, missing)}
    slo = policies.policies.get(SLO_POLICY) or {}
    age_s = max(
        [lag["age_s"] for lag in at_risk.values()] + [lag["age_s_max"] for lag in lacks.values()],
        default=0.0,
    )
    return {
        "namespace": namespace,
        "mode": "active-active",
        "regions": list(policies.regions),
        "at_risk": at_risk,
        "lacks": lacks,
        "at_risk_s": age_s,
        "slo": slo,
        "slo_broken": age_s > slo.get("rpo_s", age_s),
    }


class AskedRegions:
    """What regions say of one namespace: asked side by side, each once, in the name of `ask`'s caller. One that has not
    answered after `patience_s` is said not to answer: a region that is lost without a word refuses nothing.
    """

    def __init__(self, ask: Callable[[str, str], Awaitable[dict[str, Any]]], namespace: str, patience_s: float) -> None:
        self._ask, self._namespace, self._patience_s = ask, namespace, patience_s
        self._asked: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def __aenter__(self) -> AskedRegions:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    def begin(self, regions: Iterable[str]) -> None:
        """Asks them, unless they were asked."""
        loop = asyncio.get_running_loop()
        for region in regions:
            if region not in self._asked:
                self._asked[region] = loop.create_task(self._one(region))

    async def __call__(self, region: str, namespace: str) -> dict[str, Any]:
        """What the region answers, or has answered. Raises HeliographError."""
        assert namespace == self._namespace
        self.begin([region])
        return await self._asked[region]

    async def _one(self, region: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._ask(region, self._namespace)
        except TimeoutError as error:
            raise MetadataUnavailable(
                f"nothing came from it within {self._patience_s:g} s (broker.region_patience_s)"
            ) from error


@dataclass(frozen=True, slots=True)
class _Led:
    """What the global configuration says of an active-passive namespace. trouble: why it could not be asked, so that
    the record is the one that this broker's copy has; "": it was.
    """

    record: Leadership
    version: int
    operation: Operation | None = None
    away: Mapping[str, list[int]] = field(default_factory=dict)
    writers: Mapping[str, Mapping[str, Writer]] = field(default_factory=dict)
    unheard: str = ""
    """Which brokers may not have heard of it, in words; "": every one has."""
    trouble: str = ""


async def _led(admin: Admin, conductor: Conductor, namespace: str) -> _Led | None:
    """None: the namespace is active-active. Raises MetadataUnavailable where it cannot be asked, and is active-active
    as far as is known here.
    """
    names = admin.policies(namespace).regions
    try:
        async with asyncio.timeout(admin.region_patience_s):
            (record, version), (operation, _), away, writers = await asyncio.gather(
                conductor.switching.get(namespace),
                conductor.operation(namespace),
                conductor.away(namespace),
                asyncio.gather(*(conductor.switching.writers(region) for region in names)),
            )
    except NotFound:
        return None
    except (TimeoutError, HeliographError) as error:
        gate = leases_of(admin).core.gate(namespace)
        trouble = by_copy(admin, error)
        if gate is None or gate.record is None:
            raise MetadataUnavailable(trouble) from error
        return _Led(gate.record, gate.version, unheard="it is not known who has heard of it", trouble=trouble)
    found = dict(zip(names, writers, strict=True))
    return _Led(record, version, operation, away, found, unheard_text(unheard(namespace, record, version, found)))


def by_copy(admin: Admin, error: BaseException) -> str:
    """Why the global configuration could not be asked, where this broker's copy is told instead."""
    why = reason_of(error, f"nothing came from it within {admin.region_patience_s:g} s")
    return f"the global configuration does not answer ({why}): this is what the copy here says"


async def region_facts(
    admin: Admin, namespace: Namespace, *, stored: bool = False, parts_of: str = "", local: bool = False
) -> Any:
    """What this region knows of the namespace's topics; `local=true`: this broker alone; `stored=true`: how many, with
    `parts_of=TOPIC` of its partitions alone.
    """
    if stored:
        return await topics_here(admin, namespace, parts_of)
    admin.policies(namespace)  # NotFound: there is none
    return facts_of_broker(admin, namespace) if local else await facts_here(admin, namespace)


async def region_tails(admin: Admin, namespace: Namespace, given: dict[str, Any], *, local: bool = False) -> Any:
    """What was first published here and lies above the body's boundary, {topic: {origin: [ledger, entry]}}: counted
    entry by entry, for a few seconds.
    """
    return await (_local_counts if local else counts_here)(admin, namespace, "tails", given)


async def region_spans(admin: Admin, namespace: Namespace, given: dict[str, Any], *, local: bool = False) -> Any:
    """The same of the body's spans, {topic: [[origin, after, through]]}."""
    return await (_local_counts if local else counts_here)(admin, namespace, "spans", given)


_SPANS: dict[str, Callable[[Topic, Any], list[namespace_facts.Span]]] = {
    "tails": namespace_facts.tail_spans,
    "spans": lambda _, rows: [namespace_facts.span_of(row) for row in rows],
}


async def _local_counts(admin: Admin, namespace: str, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Counts in those topics of `given` that are loaded here, for _COUNT_S in all; `left` is what was not read."""
    found = [topic for topic in loaded_topics(admin, namespace) if topic.text in given]
    until = admin.clock.monotonic() + _COUNT_S
    return {
        "topics": {
            t.text: await namespace_facts.counted(
                t, _SPANS[what](t, given[t.text]), lambda: admin.clock.monotonic() > until
            )
            for t in found
        }
    }


async def counts_here(admin: Admin, namespace: str, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Counts in this region's topics of `given`, by all of its brokers. what: "tails" or "spans"."""
    path = f"{dr_path(namespace)}/{what}?local=true"
    parts = await asyncio.gather(
        _local_counts(admin, namespace, what, given),
        *(admin.call(record, "POST", path, dict(given)) for record in other_brokers(admin)),
    )
    return namespace_facts.merged(admin.region, parts, await admin.topics.topics(namespace))


async def health(admin: Admin) -> Any:
    """Whether this broker stores a message with its ack quorum and reads it back; 503 where it does not. For everybody:
    why not is told by `dr`.
    """
    verdict = await existing(admin.canary, NotAllowed("this broker has no canary")).once()
    found = {"region": admin.region, "healthy": verdict.good, "latency_ms": verdict.latency_ms}
    return web.json_response(found, status=200 if verdict.good else 503)


# -- active-passive ----------------------------------------------------------------------------------------------------


Promise = Annotated[float, Meta(gt=0)]
"""Seconds."""


class SloSeconds(OnlyGiven):
    rpo_s: Promise | None = None
    rto_s: Promise | None = None


class ActivePassive(Given):
    """active: the region that takes messages."""

    active: str
    slo: SloSeconds = msgspec.field(default_factory=SloSeconds)


async def make_passive(
    admin: Admin, request: web.Request, namespace: Namespace, given: ActivePassive
) -> dict[str, Any]:
    """The namespace takes messages in that region alone, as
    soon as every broker of every region has heard of it: that is waited for, a few seconds; `unheard` says who has not.
    """
    regions = check_in_region(admin, namespace, given.active)
    slo = {key: value for key, value in msgspec.structs.asdict(given.slo).items() if value is not None}
    switching = conductor_for(admin, request).switching
    record = await switching.begin(namespace, given.active, slo)
    admin.changed(request, None, record)
    await admin.seen(lambda: leases_of(admin).gate(namespace) is not None)
    for _ in range(_HEARD_LOOKS):
        if not (left := await switching.settle(namespace, regions)):
            break
        await asyncio.sleep(_HEARD_S / _HEARD_LOOKS)
    return {**asdict(record), "unheard": unheard_text(left)}


async def make_active(admin: Admin, request: web.Request, namespace: Namespace) -> None:
    """Every region of the namespace takes messages again."""
    await conductor_for(admin, request).switching.end(namespace)
    await forget_automatic(leases_of(admin).store, namespace)
    admin.changed(request, "active-passive", "active-active")


# -- operations --------------------------------------------------------------------------------------------------------


class WantedOperation(Given):
    """kind: switchover, failover, rejoin, or drill. force: a failover, although brokers may not have heard of the
    leadership. active, epoch, operation: as of a plan (`/heliograph/v1/dr/plan`: `from`, `epoch`, `operation`); nothing
    is begun where that is otherwise by now.
    """

    kind: str
    to: str = ""
    dry_run: bool | None = None
    force: bool | None = None
    active: str | None = None
    epoch: int | None = None
    operation: int | None = None

    @property
    def planned(self) -> Planned | None:
        """None: whoever asks has made no plan."""
        if self.active is None or self.epoch is None:
            return None
        return Planned(active=self.active, epoch=self.epoch, operation=self.operation)


async def begin(admin: Admin, request: web.Request, namespace: Namespace, given: WantedOperation) -> dict[str, Any]:
    """Goes on with the same one where it was interrupted."""
    if given.dry_run:
        return await _dry_run(admin, request, namespace, given.kind, given.to)
    operation = await conductor_for(admin, request, store=admin.grouped).begin(
        given.kind, namespace, given.to, role_of(request), force=bool(given.force), planned=given.planned
    )
    admin.changed(
        request, None, {"kind": operation.kind, "from": operation.source, "to": operation.target, "id": operation.id}
    )
    return _shown(operation)


async def _dry_run(admin: Admin, request: web.Request, namespace: str, kind: str, to: str) -> dict[str, Any]:
    """What `begin` would do; nobody is waited for longer than `region_patience_s`."""
    gate = leases_of(admin).core.gate(namespace)
    async with AskedRegions(facts_of(admin, request), namespace, admin.region_patience_s) as asked:
        if gate is not None and gate.record is not None:
            asked.begin([gate.record.active, *([to] if to in admin.policies(namespace).regions else [])])
        conductor = conductor_for(admin, request, asked)
        led = await _led(admin, conductor, namespace)
        known = () if led is None else (led.record, led.unheard)
        planned, cost = await conductor.plan(kind, namespace, to, *known)
    cost["configuration"] = "" if led is None else led.trouble
    return {"dry_run": True, **_shown(planned), "id": 0, "cost": cost}


async def advance(admin: Admin, request: web.Request, namespace: Namespace, *, through_s: int = 0) -> dict[str, Any]:
    """Does the next step of what is under way, as far as it can be done now; and those behind it, for `through_s`
    seconds (10 at most), also once one can be done that had to wait.
    """
    conductor, loop = conductor_for(admin, request, store=admin.grouped), asyncio.get_running_loop()
    until = loop.time() + min(through_s, _THROUGH_S_MAX)
    before, _ = await conductor.operation(namespace)
    after = await conductor.advance(namespace)
    while after.running and before is not None and after.id == before.id and loop.time() < until:
        if after.waiting:  # all that wait look at the same moment: they are answered together
            await asyncio.sleep(2 * _LOOK_S - loop.time() % _LOOK_S)
        after = await conductor.advance(namespace)
    admin.changed(request, before and before.step, {"step": after.step, "state": after.state, "waiting": after.waiting})
    return _shown(after)


async def cancel(admin: Admin, request: web.Request, namespace: Namespace) -> dict[str, Any]:
    """Before the regions were flipped: the active one goes on."""
    ended = await conductor_for(admin, request).cancel(namespace)
    admin.changed(request, "running", ended.state)
    return _shown(ended)


async def history(admin: Admin, request: web.Request, namespace: Namespace) -> list[dict[str, Any]]:
    """Finished operations, the newest last."""
    return [_shown(operation) for operation in await conductor_for(admin, request).history(namespace)]


def _shown(operation: Operation) -> dict[str, Any]:
    found = asdict(operation)
    return {**found, "steps": [{"step": name, "done_ms": at, "found": text} for name, at, text in operation.steps]}


# -- what they share ---------------------------------------------------------------------------------------------------


def _lease(admin: Admin) -> dict[str, Any]:
    core = leases_of(admin).core
    return {
        "holds": core.holds,
        "left_s": core.left_s,
        "not_confirmed": core.refused,
    }


def conductor_for(
    admin: Admin,
    request: Caller,
    ask: Callable[[str, str], Awaitable[dict[str, Any]]] | None = None,
    store: MetadataStore | None = None,
) -> Conductor:
    """Asks other regions in the name of `request`; for what they know of a namespace by `ask`, where it is given.
    store: the configuration; None: as the broker's leases ask it.
    """

    async def counts_of(region: str, namespace: str, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if region == admin.region:
            return await counts_here(admin, namespace, what, given)
        found: dict[str, Any] = await elsewhere(
            admin, request, region, "POST", f"{dr_path(namespace)}/{what}", dict(given)
        )
        return found

    leases = leases_of(admin)
    ask = ask or facts_of(admin, request)
    conductor = Conductor(
        store or leases.store,
        admin.view,
        facts_of=ask,
        counts_of=counts_of,
        wall_ms=admin.clock.wall_ms,
        ages=admin.step_ages,
    )
    shadows = RegionShadows(
        admin, lambda region, method, path, given: elsewhere(admin, request, region, method, path, given)
    )
    conductor.drill = Drill(
        shadows, conductor, admin.view.namespace, ask, admin.clock.wall_ms, leases.settings.ttl_ms / 1000, admin.drill
    )
    return conductor


ROUTES: tuple[Route, ...] = (
    Route("GET", "/heliograph/v1/health", CallAccess.PUBLIC, health),
    Route("GET", "/heliograph/v1/dr", CallAccess.SUPER, listed, console="disaster"),
    Route("GET", f"{DR}/facts", CallAccess.TENANT, region_facts),
    Route("POST", f"{DR}/tails", CallAccess.SUPER, region_tails),
    Route("POST", f"{DR}/spans", CallAccess.SUPER, region_spans),
    Route("GET", f"{DR}/operations", CallAccess.TENANT, history, console="operations"),
    *drills.ROUTES,
    *two_step_deletion.ROUTES,
    *subscription_switchover.ROUTES,
    *drill_schedules.ROUTES,
    *automatic_failovers.ROUTES,
    Route("POST", f"{DR}/operations", CallAccess.SUPER, begin, console="begin"),
    Route("POST", f"{DR}/operations/advance", CallAccess.SUPER, advance, console="advance"),
    Route("POST", f"{DR}/operations/cancel", CallAccess.SUPER, cancel, console="cancel"),
    Route("GET", DR, CallAccess.TENANT, status, console="disasterOf"),
    Route("PUT", DR, CallAccess.SUPER, make_passive),
    Route("DELETE", DR, CallAccess.SUPER, make_active),
)
