"""Drill: a failover rehearsed, and the live data looked at, without touching the namespace itself.

Is: the steps of an operation of kind `drill`: what would be lost now, whether what is there is right, and a real
failover of a shadow namespace between the same regions, with their own brokers and leases, and as many topics. Isn't: a
copy of the data: a topic of the shadow holds a message or so.
Invariants: nothing of the namespace is written or closed by any step; the shadow is named `{namespace}-drill-{id}`,
nothing of it is under another name anywhere, and it is gone, with what is on record of it, when the drill has ended, or
soon after it was given up; what was not measured is said to be so, and a drill with that does not pass.
Source: docs/operating/disaster-recovery.md, "Drills".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import NotFound
from region_node.dr.drill_settings import DrillSettings
from region_node.dr.leadership.leadership_changes import Switching, waits_for
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.messages_at_risk import at_risk
from region_node.dr.operations.operation import FAILOVER, Operation, with_report
from region_node.dr.rehearsal import client_times, publish_latency
from region_node.dr.rehearsal.shadow_topics import ShadowTopics

_INFIX = "-drill-"
_MADE_AT_ONCE = 50
"""Topics of a shadow, in each region: then who asks for the steps sees how far it is."""
_PROBED = 64
"""Topics of it that are tried once it has failed over."""
_CONNECTED_S, _FOLLOWED_S = 30.0, 60.0
"""So long its clients may take to connect before the switch, and to follow behind it."""


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

    async def partition(self, partitions: Mapping[str, int]) -> None:
        """Topics of a shadow have so many partitions; may be repeated."""
        ...

    async def fill(self, region: str, shadow: str, topics: Sequence[str]) -> None:
        """Makes and loads those of its topics there that are not yet there, a few at a time; may be repeated."""
        ...

    async def probe(self, region: str, shadow: str, topics: Sequence[str]) -> list[float]:
        """Stores a message in each of these topics there and reads it back; returns the milliseconds that each took."""
        ...

    async def clients(self, verb: str, region: str, shadow: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        """What a broker of `region` does of its clients of the shadow: "PUT" begins them, unless there are some, with
        the `topics` and the `source` region of `given`; "POST": the switch begins; "GET" looks; "DELETE" ends them.
        Returns what there is then: count, ready, acked_s, read_s, said.
        """
        ...

    async def drop(self, shadow: str, region: str) -> int:
        """Deletes some of what `region` has of the namespace `shadow`, if it is there, and behind the last region's
        last topic the namespace; may be repeated. Returns how much is left there: 0: nothing.
        """
        ...

    async def latencies(self, region: str, namespace: str) -> publish_latency.Counts:
        """How long appends to the namespace have taken, as each broker there has counted them."""
        ...

    def here(self) -> list[str]:
        """Shadows of which this broker is to drop what this region has, should nobody need them any more."""
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
        settings: DrillSettings,
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
        self._settings = settings

    async def live(self, op: Operation) -> Operation:
        """What would be missing in the target if the active region were lost now, as both sides say; and what
        publishing costs while nobody rehearses.
        """
        if (measured_s := self._settings.latency_before_s) and "ready" not in op.report.get("latency", ()):
            known, now = op.report.get("latency"), self._wall_ms()
            if known is None or now < known["since_ms"]:  # or by a clock that was ahead
                known = {"since_ms": now, "began": await self._latencies(op)}
            if now - known["since_ms"] < measured_s * 1000:
                return with_report(op, latency=known).waits(
                    f"how long publishing takes without a drill is measured for {measured_s:g} s"
                )
            op = with_report(op, latency={**known, "ready_ms": now, "ready": await self._latencies(op)})
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

    async def _latencies(self, op: Operation) -> dict[str, publish_latency.Counts]:
        return {region: await self._shadows.latencies(region, op.namespace) for region in (op.source, op.target)}

    async def shadow(self, op: Operation) -> Operation:
        """A namespace in the same two regions, active where the live one is, with as many bundles and topics."""
        name, policies = shadow_of(op), self._policies(op.namespace)
        if policies is None:
            return op.waits(f"namespace {op.namespace} does not exist")
        quorums = {key: value for key, value in policies.policies.items() if key == "persistence"}
        await self._shadows.make(
            name,
            NamespacePolicies(
                regions=(op.source, op.target),
                bundles=policies.bundles,
                policies={**quorums, "replication": [op.target]},
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
        if "topics" not in op.report:
            facts = await self._facts(op.source, op.namespace)
            found = ShadowTopics.like([*facts["topics"], *facts["missing"]], self._settings.topics_max)
            op = with_report(op, topics=found.telling(), made=0)
        topics, made = ShadowTopics.told(op.report["topics"]), int(op.report["made"])
        if batch := topics.names(name)[made : made + _MADE_AT_ONCE]:
            await self._shadows.partition(topics.partitions(name, batch))
            for region in (op.source, op.target):
                await self._shadows.fill(region, name, batch)
            made += len(batch)
        op = with_report(op, made=made)
        if made < topics.count:
            return op.waits(f"{made} of {topics.count} topics of {name} are made")
        return op.passed(f"{name} is there, with {topics.text()}", self._wall_ms(), shadow=name)

    async def rehearse(self, op: Operation) -> Operation:
        """The failover itself, one of its steps at a time."""
        name = shadow_of(op)
        inner, _ = await self._conductor.operation(name)
        if inner is None:
            if self._settings.clients:
                op = await self._connected(op)
                if op.waiting:
                    return op
                await self._shadows.clients("POST", op.target, name)
            inner = await self._conductor.begin(FAILOVER, name, op.target, op.by)
        if inner.running:
            inner = await self._conductor.advance(name)
            if inner.running:
                return op.waits(f"{inner.step}: {inner.waiting or 'under way'}")
        return op.passed(
            f"failed over in {inner.report['rto_s']:.1f} s", self._wall_ms(), control_s=inner.report["rto_s"]
        )

    async def _connected(self, op: Operation) -> Operation:
        """It waits while clients connect to the region that is left, and read in the other, for as long as they may."""
        name, now = shadow_of(op), self._wall_ms()
        since = int(op.report.get("clients_ms", now))
        op = with_report(op, clients_ms=min(since, now))  # a clock may have been ahead
        topics = _topics(op).some(name, self._settings.clients)
        found = await self._shadows.clients("PUT", op.target, name, {"topics": topics, "source": op.source})
        if found["ready"] < found["count"] and now - since < _CONNECTED_S * 1000:
            why = f": {found['said']}" if found["said"] else ""
            return op.waits(f"{found['ready']} of {found['count']} clients are connected{why}")
        return op.waits("")

    async def first(self, op: Operation) -> Operation:
        """A message in each of some topics, stored with its ack quorum and read back, in the region that took over; and
        those of clients that were led there.
        """
        name, now = shadow_of(op), self._wall_ms()
        if "first" not in op.report:
            took_ms = await self._shadows.probe(op.target, name, _topics(op).some(name, _PROBED))
            first = {"topics": len(took_ms), "p50_ms": median(took_ms), "max_ms": max(took_ms)}
            op = with_report(op, first=first, first_ms=now)
        first = op.report["first"]
        text = (
            f"the first message of each of {first['topics']} topics was stored and read in {first['p50_ms']:.0f} ms "
            f"(p50), {first['max_ms']:.0f} ms (max)"
        )
        rto_s = float(op.report["control_s"]) + first["max_ms"] / 1000
        clients: dict[str, Any] = {}
        if self._settings.clients:
            found = await self._shadows.clients("GET", op.target, name)
            clients = {"pulsar": client_times.told(found)}
            waited_ms = now - int(op.report["first_ms"])
            if not clients["pulsar"]["measured"] and found["count"] and 0 <= waited_ms < _FOLLOWED_S * 1000:
                return op.waits(f"clients that follow: {client_times.text(clients['pulsar'])}")
            text += f"; clients of Pulsar: {client_times.text(clients['pulsar'])}"
            rto_s = max([rto_s, *found["acked_s"], *found["read_s"]])
        return op.passed(text, self._wall_ms(), rto_s=rto_s, rto_lost_s=rto_s + self._lease_s, clients=clients)

    async def clean(self, op: Operation) -> Operation:
        name = shadow_of(op)
        if self._settings.clients:
            await self._shadows.clients("DELETE", op.target, name)
        if left := await self._remove(name, (op.source, op.target)):
            return op.waits(f"{left} topics of {name} are left")
        return op.passed(f"{name} is gone", self._wall_ms())

    async def sweep(self, region: str) -> list[str]:
        """Removes what this region has of the shadows of drills that are not under way any more: cancelled, or passed
        over by something else. region: this one. Returns those of which nothing is left here.
        """
        removed = []
        for name in self._shadows.here():
            op, _ = await self._conductor.operation(
                name.rpartition(_INFIX)[0]
            )  # after the look at shadows: the operation is older than its own
            under_way = op is not None and op.running and shadow_of(op) == name
            if not under_way and not await self._remove(name, (region,)):
                removed.append(name)
        return removed

    async def _remove(self, name: str, regions: Sequence[str]) -> int:
        """The namespace last: whoever is interrupted finds it again. regions: the one that has links to the other
        first. Returns what is left in the first of them that has any.
        """
        await self._conductor.switching.forget(name)  # in whatever state it was left
        await self._conductor.forget(name)
        for region in regions:
            if left := await self._shadows.drop(name, region):
                return left
        return 0

    async def sign(self, op: Operation) -> Operation:
        record, _ = await self._conductor.switching.get(op.namespace)
        found = {"clients": {}, **op.report, "publish_latency": await self._latency(op)}
        verdict = judged(found, record)
        topics = _topics(op)
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
            **{key: found[key] for key in ("rpo", "audit", "control_s", "rto_s", "rto_lost_s", "publish_latency")},
            "first": op.report.get("first"),
            "clients": found["clients"],
            "topics": {"measured": topics.count, "of": topics.of, "text": f"measured with {topics.text()}"},
            **verdict,
        }
        text = "passed" if verdict["passed"] else f"failed: {'; '.join(verdict['because'])}"
        signed = await self._shadows.sign(report)
        await self._conductor.keep_report(op, signed)
        return op.passed(
            "; ".join([text, *(publish_latency.text(*row) for row in found["publish_latency"].items())]),
            self._wall_ms(),
            passed=verdict["passed"],
            because=verdict["because"],
            signed=signed,
            latency=None,
        )

    async def _latency(self, op: Operation) -> dict[str, dict[str, Any]]:
        """Region -> what publishing cost before, and since, with a verdict; empty: nobody wants to know."""
        if not self._settings.latency_before_s:
            return {}
        known, now = op.report.get("latency") or {}, await self._latencies(op)
        if "ready" not in known:  # a broker of an earlier version has begun it
            return {region: publish_latency.judged(None, None, self._settings) for region in now}
        began, ready, since_ms = known["began"], known["ready"], known["since_ms"]
        ready_ms, now_ms = known.get("ready_ms", since_ms), self._wall_ms()
        times_s = (ready_ms - since_ms) / 1000, (now_ms - ready_ms) / 1000
        if min(times_s) <= 0:  # an earlier version has begun it, or a clock was set
            times_s = 1.0, 1.0
        return {
            region: publish_latency.judged(
                publish_latency.between(began[region], ready[region]),
                publish_latency.between(ready[region], counts),
                self._settings,
                times_s,
            )
            for region, counts in now.items()
        }


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
    because += [
        f"how long clients of {protocol} take was not measured: {client_times.text(part)}"
        for protocol, part in report["clients"].items()
        if not part["measured"]
    ]
    because += [
        f"publishing took longer than it may during the drill: {publish_latency.text(region, part)}"
        if part["verdict"] == publish_latency.BROKEN
        else f"how long publishing took was not measured in {region}"
        for region, part in report["publish_latency"].items()
        if part["verdict"] in (publish_latency.BROKEN, publish_latency.NOT_MEASURED)
    ]
    return {"passed": not because, "because": because, "duplicates": int(audit["found"].get("twice", 0))}


def _topics(op: Operation) -> ShadowTopics:
    """What its shadow has; of an earlier version's one topic."""
    return ShadowTopics.told(op.report.get("topics") or {"of": 0, "parted": [[0, 1]]})


def shadow_of(op: Operation) -> str:
    """Returns the name of a drill's shadow namespace; the infix keeps it apart from every other one."""
    return f"{op.namespace}{_INFIX}{op.id}"
