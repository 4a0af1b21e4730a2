"""Drill: a failover rehearsed, and the live data looked at, without touching the namespace itself.

Is: the steps of an operation of kind `drill`: what would be lost now, whether what is there is right, and a real
failover of a shadow namespace between the same regions, with their own brokers and leases. Isn't: a copy of the data:
the shadow holds one message.
Invariants: nothing of the namespace is written or closed by any step; the shadow is named `{namespace}-drill-{id}`, is
never replicated, and is gone, with what is on record of it, when the drill has ended, or soon after it was given up;
what was not measured is said to be so, and a drill with that does not pass.
Source: docs/operating/disaster-recovery.md, "Drills".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import NotFound
from region_node.dr.leadership.leadership_changes import Switching, waits_for
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.messages_at_risk import at_risk
from region_node.dr.operations.operation import FAILOVER, Operation, with_report

_INFIX = "-drill-"


class Shadows(Protocol):
    """What a drill asks of the regions; each raises HeliographError."""

    async def audit(self, region: str, namespace: str, since_ms: int) -> dict[str, Any]:
        """Looks at every topic of the region's copy, once after `since_ms`: topics, entries, ranges, unchecked, found,
        left, and what still runs.
        """
        ...

    async def make(self, shadow: str, policies: NamespacePolicies) -> None:
        """Makes the namespace `shadow` with these policies, where it is not there yet; may be repeated."""
        ...

    async def probe(self, region: str, shadow: str) -> float:
        """Stores a message in the shadow there and reads it back; returns the milliseconds that took."""
        ...

    async def drop(self, shadow: str, region: str) -> None:
        """Deletes what `region` has of the namespace `shadow`, if it is there; may be repeated."""
        ...

    def here(self) -> list[str]:
        """Shadows that are for this broker to drop, should nobody need them any more."""
        ...

    async def sign(self, report: dict[str, Any]) -> dict[str, Any]: ...


class Conducts(Protocol):
    """`region_node.dr.operations.operation_steps.Conductor`."""

    switching: Switching

    async def operation(self, namespace: str) -> tuple[Operation | None, int]: ...

    async def begin(self, kind: str, namespace: str, target: str, by: str) -> Operation: ...

    async def advance(self, namespace: str) -> Operation: ...

    async def keep_report(self, operation: Operation, report: Mapping[str, Any]) -> None: ...

    async def forget(self, namespace: str) -> None: ...


class Drill:
    def __init__(
        self,
        shadows: Shadows,
        conductor: Conducts,
        policies: Callable[[str], NamespacePolicies | None],
        facts_of: Callable[[str, str], Awaitable[dict[str, Any]]],
        wall_ms: Callable[[], int],
        lease_s: float,
    ) -> None:
        """lease_s: how long a lost region's leases count at most; that is waited for in earnest, and not in a drill
        where its brokers answer.
        """
        self._shadows, self._conductor, self._policies, self._facts, self._wall_ms, self._lease_s = (
            shadows,
            conductor,
            policies,
            facts_of,
            wall_ms,
            lease_s,
        )

    async def live(self, op: Operation) -> Operation:
        """What would be missing in the target if the active region were lost now, as both sides say."""
        target = namespace_facts.lacking(await self._facts(op.target, op.namespace), op.source)
        source = namespace_facts.not_in(await self._facts(op.source, op.namespace), op.target)
        risk = at_risk(op.source, op.target, source, target)
        rpo = {
            "messages": source["messages"],
            "bytes": source["bytes"],
            "seconds": source["age_s"],
            "down": source["down"],
        }
        rpo["as_target_knows"] = target["messages"]
        if risk["messages"] is None:
            rpo["not_known"] = risk["text"]
        return op.passed(risk["text"], self._wall_ms(), rpo=rpo)

    async def audit(self, op: Operation) -> Operation:
        """Counts and checksums of the target's copy, range by range, against the origin's."""
        since = int(op.report.get("audit_ms") or self._wall_ms())
        found = await self._shadows.audit(op.target, op.namespace, since)
        if found["running"]:
            return with_report(op, audit_ms=since).waits(f"topics that are being compared: {len(found['running'])}")
        text = (
            f"{found['entries']} entries of {found['topics']} topics compared in {found['ranges']} ranges: "
            f"{found['left']} differ"
        )
        return op.passed(
            text,
            self._wall_ms(),
            audit_ms=since,
            audit={key: value for key, value in found.items() if key != "running"},
        )

    async def shadow(self, op: Operation) -> Operation:
        """A namespace in the same two regions, active where the live one is, not replicated."""
        name, policies = shadow_of(op), self._policies(op.namespace)
        assert policies is not None
        quorums = {key: value for key, value in policies.policies.items() if key == "persistence"}
        await self._shadows.make(
            name,
            NamespacePolicies(
                regions=(op.source, op.target), bundles=1, policies={**quorums, "replication": [op.target]}
            ),
        )
        switching = self._conductor.switching
        try:
            record, version = await switching.get(name)
        except NotFound:
            await switching.begin(name, op.source, {})
            record, version = await switching.get(name)
        waits = waits_for(name, version, {**await switching.writers(op.source), **await switching.writers(op.target)})
        if waits and record.active == op.source:
            return op.waits(f"brokers that have not heard of {name} yet: {', '.join(waits[:5])}")
        return op.passed(f"{name} is there", self._wall_ms(), shadow=name)

    async def rehearse(self, op: Operation) -> Operation:
        """The failover itself, one of its steps at a time."""
        name = shadow_of(op)
        inner, _ = await self._conductor.operation(name)
        if inner is None:
            inner = await self._conductor.begin(FAILOVER, name, op.target, op.by)
        if inner.running:
            inner = await self._conductor.advance(name)
            if inner.running:
                return op.waits(f"{inner.step}: {inner.waiting or 'under way'}")
        return op.passed(
            f"failed over in {inner.report['rto_s']:.1f} s", self._wall_ms(), control_s=inner.report["rto_s"]
        )

    async def first(self, op: Operation) -> Operation:
        """A message, stored with its ack quorum and read back, in the region that took over."""
        took_ms = await self._shadows.probe(op.target, shadow_of(op))
        rto_s = float(op.report["control_s"]) + took_ms / 1000
        return op.passed(
            f"the first message was stored and read in {took_ms:.0f} ms",
            self._wall_ms(),
            rto_s=rto_s,
            rto_lost_s=rto_s + self._lease_s,
        )

    async def clean(self, op: Operation) -> Operation:
        name = shadow_of(op)
        await self._remove(name, op.target)
        return op.passed(f"{name} is gone", self._wall_ms())

    async def sweep(self, region: str) -> list[str]:
        """Removes the shadows here of drills that are not under way any more: cancelled, or passed over by something
        else. region: this one.
        """
        removed = []
        for name in self._shadows.here():
            op, _ = await self._conductor.operation(
                name.rpartition(_INFIX)[0]
            )  # after the look at shadows: the operation is older than its own
            if op is None or not op.running or shadow_of(op) != name:
                await self._remove(name, region)
                removed.append(name)
        return removed

    async def _remove(self, name: str, region: str) -> None:
        """The namespace last: whoever is interrupted finds it again."""
        await self._conductor.switching.forget(name)  # in whatever state it was left
        await self._conductor.forget(name)
        await self._shadows.drop(name, region)

    async def sign(self, op: Operation) -> Operation:
        record, _ = await self._conductor.switching.get(op.namespace)
        verdict = judged(op.report, record)
        report = {
            "format": 1,
            "namespace": op.namespace,
            "id": op.id,
            "from": op.source,
            "to": op.target,
            "by": op.by,
            "begun_ms": op.begun_ms,
            "ended_ms": self._wall_ms(),
            "promised": record.slo,
            **{key: op.report[key] for key in ("rpo", "audit", "control_s", "rto_s", "rto_lost_s")},
            **verdict,
        }
        text = "passed" if verdict["passed"] else f"failed: {'; '.join(verdict['because'])}"
        signed = await self._shadows.sign(report)
        await self._conductor.keep_report(op, signed)
        return op.passed(text, self._wall_ms(), passed=verdict["passed"], because=verdict["because"], signed=signed)


def judged(report: dict[str, Any], record: Leadership) -> dict[str, Any]:
    """Passed where everything was measured, nothing differs, and what is promised would have been kept."""
    rpo, audit, because = report["rpo"], report["audit"], list[str]()
    if (promised := record.slo.get("rpo_s")) is not None and rpo["seconds"] > promised:
        because.append(f"{rpo['seconds']:.1f} s of messages were at risk, {promised:g} are promised")
    if (promised := record.slo.get("rto_s")) is not None and report["rto_lost_s"] > promised:
        because.append(f"{report['rto_lost_s']:.1f} s until a lost region is replaced, {promised:g} are promised")
    if rpo.get("not_known"):
        because.append(rpo["not_known"])
    if rpo["down"]:
        because.append(f"links that are down: {len(rpo['down'])}")
    if wrong := {
        fault: count for fault, count in audit["found"].items() if count
    }:  # a repair comes too late for a region that is lost
        kinds = ", ".join(f"{count} {fault}" for fault, count in sorted(wrong.items()))
        now = f"{audit['left']} still are" if audit["left"] else "they were repaired just now"
        because.append(f"{sum(wrong.values())} entries of the copy were wrong when the drill came ({kinds}): {now}")
    if audit["unchecked"] or audit["errors"]:
        because.append(f"not everything could be compared: {audit['unchecked']} ranges, {len(audit['errors'])} topics")
    return {"passed": not because, "because": because, "duplicates": int(audit["found"].get("twice", 0))}


def shadow_of(op: Operation) -> str:
    """Returns the name of a drill's shadow namespace; the infix keeps it apart from every other one."""
    return f"{op.namespace}{_INFIX}{op.id}"
