"""What one command for a region, a tenant, or the instance would move, with numbers: every namespace of it at once.

Is: one question to the global configuration, and one to each region, side by side, whatever the number of namespaces.
Isn't: a verdict (`region_node.dr.operations.region_plan`), or an operation: whoever asks has each namespace moved.
Invariants: nothing is changed; nobody is waited for longer than `region_patience_s`.
Source: docs/operating/disaster-recovery.md, "A whole region at once".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from aiohttp import web

from global_config.keys import OPERATIONS
from heliograph.kv.metadata_store import rows_under
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import Leadership, Writer
from heliograph.model.errors import HeliographError, NotAllowed, NotFound, reason_of
from heliograph.runtime.throttle import RowPace
from region_node.dr.leadership.leadership_changes import unheard, unheard_text
from region_node.dr.operations import namespace_facts, namespace_lags
from region_node.dr.operations.messages_at_risk import at_risk
from region_node.dr.operations.namespace_lags import LACKING, NOT_IN
from region_node.dr.operations.operation import SWITCHOVER, Operation
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.region_plan import (
    CANNOT,
    FAILBACK,
    MOVES,
    PASSED,
    MoveTarget,
    Verdict,
    WantedMoves,
    came_by,
    came_from,
    chosen,
    judged,
    with_costs,
    within_risk,
)
from region_node.faces.admin.brokers import bookie_state
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, leases_of, other_brokers
from region_node.faces.admin.calls.other_regions import elsewhere
from region_node.faces.admin.dr.disaster_recovery import by_copy, conductor_for
from region_node.faces.admin.dr.drills import is_shadow
from region_node.placement.ownership.broker_records import BrokerRecord

PATH = "/heliograph/v1/dr"
_OWN_SHARE = 0.5
"""Of the patience with a region: so long it waits for its own brokers, bookies, and metadata."""
_LISTED_AT_ONCE = 32
"""So many namespaces' topics are read from the metadata side by side."""
ASKED_AT_ONCE = 1000
"""One question is of so many namespaces at most, from either side: it is far below what a body may have."""
_NAMED = 20
"""Of namespaces that are passed over so many are named, for each reason."""


# -- one region's part -------------------------------------------------------------------------------------------------


class AskedLags(Given):
    """not_in, lacking: {namespace: the other region} each. load: also what this region's machines have in use."""

    not_in: dict[str, str] = msgspec.field(default_factory=dict)
    lacking: dict[str, str] = msgspec.field(default_factory=dict)
    load: bool = False


async def lags(admin: Admin, request: web.Request, given: AskedLags, *, local: bool = False) -> dict[str, Any]:
    """What this region published of many namespaces that another one lacks, and what it lacks itself; `local=true`: as
    this broker alone knows it.
    """
    request["passed_on"] = True  # a question, though it has a body: no change to write down
    asked = {NOT_IN: given.not_in, LACKING: given.lacking}
    own = await _own_lags(admin, asked)
    if local:
        return own
    known = [name for name in {**given.not_in, **given.lacking} if admin.view.namespace(name) is not None]
    places, until = asyncio.Semaphore(_LISTED_AT_ONCE), asyncio.get_running_loop().time() + _own_s(admin)

    async def part_of(record: BrokerRecord) -> Any:
        """A broker that does not answer has loaded nothing: its topics are missing."""
        with suppress(TimeoutError, HeliographError):
            async with asyncio.timeout_at(until):
                return await admin.call(record, "POST", f"{PATH}/lags?local=true", asked)
        return {NOT_IN: {}, LACKING: {}, "topics": {}, "unopened": {}}

    async def listed(name: str) -> list[str] | str:
        """Its topics, or why they are not known."""
        try:
            async with asyncio.timeout_at(until), places:
                return await admin.topics.topics(name)
        except (TimeoutError, HeliographError) as error:
            return reason_of(error, f"not within {_own_s(admin):g} s")

    parts, names, load = await asyncio.gather(
        asyncio.gather(*map(part_of, other_brokers(admin))),
        asyncio.gather(*map(listed, known)),
        _load(admin, request, wanted=given.load),
    )
    found = await namespace_lags.merged([own, *parts], dict(zip(known, names, strict=True)), asked[LACKING])
    return {"region": admin.region, **found, "load": load}


def _own_s(admin: Admin) -> float:
    return admin.region_patience_s * _OWN_SHARE


async def _own_lags(admin: Admin, asked: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    now_ms, pace, wanted = admin.clock.wall_ms(), RowPace(), {name for part in asked.values() for name in part}
    topics = defaultdict[str, dict[str, Any]](dict)
    for topic in list(admin.topics.loaded.values()):
        await pace.row()
        if topic.name.namespace in wanted and not topic.volatile and not topic.closed:
            topics[topic.name.namespace][topic.text] = namespace_facts.lag_facts(topic, admin.links, now_ms)
    unopened = namespace_facts.unopened_facts(admin.links.incoming, wanted, now_ms, admin.clock.monotonic())
    return await namespace_lags.of_broker(asked, topics, unopened=unopened)


async def _load(admin: Admin, request: web.Request, *, wanted: bool) -> dict[str, Any] | None:
    """Shares of what each broker has, as it said last; of each bookie's disk, that its entry logs and its free space
    are, what is in use (`disk`; null where it does not say). None: it is not wanted.
    """
    if not wanted:
        return None
    brokers = (
        [
            {"broker": name, "cpu": report.used.get("cpu"), "memory": report.used.get("memory")}
            for name, report in sorted(admin.balancer.reports.items())
        ]
        if admin.balancer is not None
        else []
    )
    bookies = [] if admin.recovery is None else admin.recovery.bookies()
    disks = await asyncio.gather(*(_disk(admin, request, str(row["id"])) for row in bookies))
    return {
        "brokers": brokers,
        "bookies": [
            {"bookie": row["id"], "writable": row["writable"], "free_bytes": row["free_bytes"], "disk": disk}
            for row, disk in zip(bookies, disks, strict=True)
        ],
    }


async def _disk(admin: Admin, request: web.Request, bookie: str) -> float | None:
    """The share that is in use of its fullest ledger directory; None: it is not known."""
    try:
        async with asyncio.timeout(_own_s(admin)):
            found = await bookie_state.state(admin, request, bookie)
    except (TimeoutError, HeliographError):
        return None
    shares = [
        row["entryLogBytes"] / (row["entryLogBytes"] + row["freeBytes"] or 1)
        for row in (found["state"] or {}).get("ledgerDirectories", ())
        if row["freeBytes"] is not None
    ]
    return max(shares, default=None)


# -- the plan ----------------------------------------------------------------------------------------------------------


async def plan(
    admin: Admin,
    request: web.Request,
    *,
    kind: str = SWITCHOVER,
    to: str = "",
    region: str = "",
    tenant: str = "",
    force: bool = False,
    risk_messages: int | None = None,
    risk_s: int | None = None,
) -> dict[str, Any]:
    """What a switchover, failover, failback, or drill of all active-passive namespaces that are active in `region`, and
    of `tenant`, would move to the region `to`; where neither is said, of all. `to` may name several, in their order,
    with commas between: then each namespace has its own. `namespaces` has those that move, are there already, or cannot
    be moved, and why, with `to`, and `others`: why regions that are named before that do not take it; `passed` counts
    the others. A failover moves nothing of which more than `risk_messages`, or messages older than `risk_s`, would be
    missing. Nothing is changed.
    """
    each = [
        WantedMoves(kind=kind, to=name, region=region, force=force, risk_messages=risk_messages, risk_s=risk_s)
        for name in dict.fromkeys(to.split(","))
    ]
    _check(admin, each)
    if tenant:
        existing(admin.view.tenant(tenant), NotFound(f"Tenant {tenant} does not exist"))
    names = await _namespaces(admin, tenant)
    conductor = conductor_for(admin, request)
    told, heard = await asyncio.gather(
        _led(admin, conductor, names), asyncio.gather(*(_said(admin, request, wanted, names) for wanted in each))
    )
    judgements = [await _verdicts(admin, conductor, wanted, told) for wanted in each]
    parts = list(zip(each, judgements, heard, strict=True))
    rows, passed = list[dict[str, Any]](), defaultdict[str, list[str]](list)
    pace = RowPace()
    for name, policies in names.items():
        await pace.row()
        if name in told.records:
            row = _chosen_row(name, told, parts)
            if row["verdict"] == PASSED:
                passed[row["because"]].append(name)
            else:
                rows.append(row)
        elif not region or region in policies.regions:
            passed["active-active: every region of it takes messages"].append(name)
    return {
        "kind": kind,
        "to": to,
        "region": region,
        "tenant": tenant,
        "risk_messages": risk_messages,
        "risk_s": risk_s,
        "configuration": told.trouble,
        "namespaces": rows,
        "passed": [{"because": why, "count": len(of), "some": of[:_NAMED]} for why, of in sorted(passed.items())],
        "load": heard[0].answers.get(each[0].to, {}).get("load"),
        "loads": {wanted.to: said.answers.get(wanted.to, {}).get("load") for wanted, _, said in parts},
    }


def _check(admin: Admin, each: Sequence[WantedMoves]) -> None:
    """Raises NotAllowed, NotFound where it makes no sense, or names a region that is not there."""
    for wanted in each:
        wanted.check()
        for name in filter(None, (wanted.to, wanted.region)):
            if admin.view.region(name) is None:
                known = ", ".join(info.name for info in admin.view.regions())
                raise NotFound(f"there is no region {name}; there are {known}")
    if len(each) > 1 and each[0].kind == FAILBACK:
        raise NotAllowed("a failback takes back what came from one region: name that one with --to")


async def _verdicts(admin: Admin, conductor: Conductor, wanted: WantedMoves, told: _Told) -> dict[str, Verdict]:
    """What is to become of each namespace that has a leadership, before the regions' numbers are looked at."""
    found, pace = dict[str, Verdict](), RowPace()
    for name in filter(told.records.__contains__, told.names):
        await pace.row()
        found[name] = _verdict(admin, wanted, name, told)
    if wanted.kind == FAILBACK:
        found |= await _taken_away(admin, conductor, wanted, told, found)
    return found


def _verdict(admin: Admin, wanted: WantedMoves, name: str, told: _Told) -> Verdict:
    """Where it is a failback `_taken_away` has the last word."""
    record, _ = told.records[name]
    found = judged(wanted, name, told.names[name].regions, record, told.operations.get(name))
    if found.what != MOVES:
        return found
    if deleted := _deleted(admin, name):
        return Verdict(what=PASSED, because=deleted, source=found.source)
    return found


async def _namespaces(admin: Admin, tenant: str) -> dict[str, NamespacePolicies]:
    """In order; without shadows of drills."""
    found, pace = dict[str, NamespacePolicies](), RowPace()
    for one in [tenant] if tenant else sorted(admin.view.tenants()):
        for name in sorted(admin.view.namespaces(one)):
            await pace.row()
            if (policies := admin.view.namespace(name)) is not None and not is_shadow(admin, name):
                found[name] = policies
    return found


def _deleted(admin: Admin, namespace: str) -> str:
    found = None if admin.tombstones is None else admin.tombstones.known.get(namespace)
    return "" if found is None or found[0].asks else "deleted, and its data goes: `heliograph dr deletions`"


@dataclass(frozen=True, slots=True)
class _Told:
    """What the global configuration says. trouble: why it could not be asked, so that the records are those of this
    broker's copy; "": it was.
    """

    names: Mapping[str, NamespacePolicies]
    records: Mapping[str, tuple[Leadership, int]]
    operations: Mapping[str, Operation] = field(default_factory=dict)
    writers: Mapping[str, Mapping[str, Writer]] = field(default_factory=dict)
    trouble: str = ""

    def has_writer(self, region: str) -> bool | None:
        """Whether a broker there has a lease; None: it is not known."""
        return None if self.trouble else bool(self.writers.get(region))

    def last_operation(self, name: str) -> int | None:
        """Its number; 0: there was none; None: it is not known."""
        if self.trouble:
            return None
        return self.operations[name].id if name in self.operations else 0

    def unheard(self, name: str) -> str:
        """Who may not have heard that the namespace is active-passive, in words; "": nobody."""
        if self.trouble:
            return "it is not known who has heard of it"
        record, version = self.records[name]
        regions = [region for region in self.names[name].regions if region not in record.heard]
        return unheard_text(unheard(name, record, version, {region: self.writers[region] for region in regions}))


async def _led(admin: Admin, conductor: Conductor, names: Mapping[str, NamespacePolicies]) -> _Told:
    regions = sorted({region for policies in names.values() for region in policies.regions})
    store = leases_of(admin).store
    try:
        async with asyncio.timeout(admin.region_patience_s):
            records, rows, writers = await asyncio.gather(
                conductor.switching.all(),
                rows_under(store, OPERATIONS),
                asyncio.gather(*(conductor.switching.writers(region) for region in regions)),
            )
    except (TimeoutError, HeliographError) as error:
        copied = {gate.namespace: (gate.record, gate.version) for gate in _gates(admin)}
        return _Told(names, copied, trouble=by_copy(admin, error))
    operations = {key.removeprefix(OPERATIONS): Operation.decode(value) for key, value, _ in rows}
    return _Told(names, records, operations, dict(zip(regions, writers, strict=True)))


def _gates(admin: Admin) -> Iterator[Any]:
    return (gate for gate in leases_of(admin).core.gates() if gate.record is not None)


async def _taken_away(
    admin: Admin, conductor: Conductor, wanted: WantedMoves, told: _Told, verdicts: Mapping[str, Verdict]
) -> dict[str, Verdict]:
    """Says what of `verdicts` that a failback would move came from there, by its last operation where that says it. The
    others' records are read _LISTED_AT_ONCE namespaces at a time; once one cannot be read, no more are.
    """
    places, trouble = asyncio.Semaphore(_LISTED_AT_ONCE), told.trouble

    async def judge(name: str, found: Verdict) -> Verdict:
        nonlocal trouble
        came = None if told.trouble else came_by(wanted.to, found.source, told.operations.get(name))
        async with places:
            try:
                if came is None and not trouble:
                    async with asyncio.timeout(admin.region_patience_s):
                        came = came_from(
                            wanted.to, found.source, await conductor.away(name), await conductor.history(name)
                        )
            except (TimeoutError, HeliographError) as error:
                trouble = trouble or reason_of(error, f"not within {admin.region_patience_s:g} s")
        if came is None:
            return replace(found, what=CANNOT, because=f"it is not known whether it came from {wanted.to}: {trouble}")
        if came:
            return found
        why = f"it did not come from {wanted.to}: `heliograph dr switchover` moves it"
        return Verdict(what=PASSED, because=why, source=found.source)

    asked = {name: found for name, found in verdicts.items() if found.what == MOVES and not found.goes_on}
    judged_now = await asyncio.gather(*(judge(name, found) for name, found in asked.items()))
    return dict(zip(asked, judged_now, strict=True))


@dataclass(frozen=True, slots=True)
class _Said:
    """What each region says of all namespaces; why it says nothing of some, or of all."""

    answers: Mapping[str, Mapping[str, Any]]
    silent: Mapping[str, str]

    def of(self, region: str, what: str, namespace: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] | None = self.answers.get(region, {}).get(what, {}).get(namespace)
        if found is None and region in self.silent:
            return {"unreachable": self.silent[region]}
        return (
            {"unreachable": "it does not know of the namespace yet, or not that it is active-passive: try again"}
            if found is None
            else found
        )

    def topics(self, region: str, namespace: str) -> int | None:
        found: int | None = self.answers.get(region, {}).get("topics", {}).get(namespace)
        return found


async def _said(
    admin: Admin, request: web.Request, wanted: WantedMoves, names: Mapping[str, NamespacePolicies]
) -> _Said:
    """Asks by this broker's copy of who is active where: what the configuration says comes at the same time."""
    asked = defaultdict[str, dict[str, Any]](lambda: {NOT_IN: {}, LACKING: {}})
    asked[wanted.to]["load"] = True
    for gate in _gates(admin):
        active, policies = gate.record.active, names.get(gate.namespace)
        if (
            policies is not None
            and wanted.region in ("", active)
            and wanted.to in policies.regions
            and active != wanted.to
        ):
            asked[active][NOT_IN][gate.namespace] = wanted.to
            asked[wanted.to][LACKING][gate.namespace] = active
    answers, silent = dict[str, Any](), dict[str, str]()

    async def ask(region: str, given: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(admin.region_patience_s):
                found = (
                    await lags(admin, request, msgspec.convert(given, AskedLags))
                    if region == admin.region
                    else await namespace_lags.checked(
                        await elsewhere(admin, request, region, "POST", f"{PATH}/lags", given)
                    )
                )
            into = answers.setdefault(region, {NOT_IN: {}, LACKING: {}, "topics": {}})
            for key in (NOT_IN, LACKING, "topics"):
                into[key].update(found[key])
            into["load"] = into.get("load") or found.get("load")
        except ValueError as error:
            silent[region] = f"its address answers with something else than its lags ({error})"
        except (TimeoutError, HeliographError) as error:
            silent[region] = reason_of(
                error, f"nothing came from it within {admin.region_patience_s:g} s (broker.region_patience_s)"
            )

    await asyncio.gather(*(ask(region, part) for region, given in asked.items() for part in _questions(given)))
    return _Said(answers, silent)


def _questions(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The same in parts of ASKED_AT_ONCE namespaces a side, one at least."""
    published, lacks = list(given[NOT_IN].items()), list(given[LACKING].items())
    for start in range(0, max(1, len(published), len(lacks)), ASKED_AT_ONCE):
        part = slice(start, start + ASKED_AT_ONCE)
        more = {} if start else {key: value for key, value in given.items() if key not in (NOT_IN, LACKING)}
        yield {NOT_IN: dict(published[part]), LACKING: dict(lacks[part]), **more}


def _row(wanted: WantedMoves, name: str, verdict: Verdict, said: _Said, told: _Told) -> tuple[dict[str, Any], Verdict]:
    record, _ = told.records[name]
    row: dict[str, Any] = {
        "namespace": name,
        "to": wanted.to,
        "from": verdict.source,
        "epoch": record.epoch,
        "operation": told.last_operation(name),
    }
    if verdict.what == MOVES and record.active != wanted.to:
        published = said.of(verdict.source, NOT_IN, name)
        lacks = said.of(wanted.to, LACKING, name)
        verdict = with_costs(
            wanted, verdict, published, lacks, told.unheard(name), takes_over=told.has_writer(wanted.to)
        )
        topics = said.topics(verdict.source, name)
        row["topics"] = said.topics(wanted.to, name) if topics is None else topics
        row["at_risk"] = at_risk(
            verdict.source,
            wanted.to,
            None if "unreachable" in published else published,
            None if "unreachable" in lacks else lacks,
        )
        verdict = within_risk(wanted, verdict, row["at_risk"])
    return {**row, "verdict": verdict.what, "because": verdict.because, "goes_on": verdict.goes_on}, verdict


def _chosen_row(
    name: str, told: _Told, parts: Sequence[tuple[WantedMoves, Mapping[str, Verdict], _Said]]
) -> dict[str, Any]:
    """The row of the region that takes it over, of those that were named. parts: what is known of each of these."""
    rows = dict[str, dict[str, Any]]()
    targets = list[MoveTarget]()
    for wanted, verdicts, said in parts:
        rows[wanted.to], verdict = _row(wanted, name, verdicts[name], said, told)
        targets.append(MoveTarget(to=wanted.to, verdict=verdict))
    first, others = chosen(targets)
    return {**rows[first.to], "others": others}


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{PATH}/plan", CallAccess.SUPER, plan, console="plan"),
    Route("POST", f"{PATH}/lags", CallAccess.SUPER, lags),
)
