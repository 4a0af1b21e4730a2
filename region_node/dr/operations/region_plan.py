"""What one command for a region, a tenant, or the instance would do with each namespace.

Is: a verdict by what the global configuration and both regions say. Isn't: asking them, or an order of steps: each
namespace that is moved is an operation of its own (`region_node.dr.operations.operation`).
Invariants: what is under way with the same kind and target is gone on with, whatever else is said of it; a failback
takes back what came from the region, and nothing that was never there.
Source: docs/operating/disaster-recovery.md, "A whole region at once".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import NotAllowed
from region_node.dr.operations.operation import CLOSING, DRILL, FAILOVER, REJOIN, SWITCHOVER, Operation
from region_node.dr.operations.operation_steps import gives_way

FAILBACK = "failback"
KINDS = (SWITCHOVER, FAILOVER, FAILBACK, DRILL)
MOVES, THERE, PASSED, CANNOT = "moves", "there", "passed over", "cannot"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMoves:
    """region: only what is active there; "": wherever. force: as of a failover. risk_messages, risk_s: a failover moves
    nothing of which the target lacks more messages, or one that is older; None: whatever it lacks.
    """

    kind: str
    to: str
    region: str = ""
    force: bool = False
    risk_messages: int | None = None
    risk_s: float | None = None

    def check(self) -> None:
        """Raises NotAllowed where it makes no sense."""
        if self.kind not in KINDS:
            raise NotAllowed(f"there is no operation {self.kind!r} of many namespaces: {', '.join(KINDS)}")
        if not self.to or self.to == self.region:
            raise NotAllowed("name the region that takes over with --to; it is another one than that of --region")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """what: it moves; is there already; is none of this command's; or cannot be moved. source: the region it leaves.
    goes_on: with an operation that was begun.
    """

    what: str
    because: str = ""
    source: str = ""
    goes_on: bool = False


def judged(
    wanted: WantedMoves, namespace: str, regions: Sequence[str], record: Leadership, operation: Operation | None
) -> Verdict:
    """By the leadership, and the operation under way or the last one; of a failback that moves, `came_from` is to be
    asked, too.
    """
    running = operation if operation is not None and operation.running else None
    if running is not None and (source := _goes_on(wanted, running)):
        return _of_region(wanted, Verdict(what=MOVES, source=source, goes_on=True))
    if record.active == wanted.to:
        return _there(wanted, operation)
    found = Verdict(what=MOVES, source=record.active)
    if record.asks:
        found = replace(found, what=CANNOT, because=f"{record.asks}: `heliograph dr set {namespace}`")
    elif wanted.to not in regions:
        found = replace(found, what=CANNOT, because=f"it is not in {wanted.to}; it is in {', '.join(regions)}")
    elif running is not None and not gives_way(running, _kind(wanted), wanted.to):
        found = replace(
            found,
            what=CANNOT,
            because=f"a {running.kind} to {running.target} is under way at step {running.step}: finish it, or cancel "
            f"it with `heliograph dr cancel {namespace}`",
        )
    return _of_region(wanted, found)


def _kind(wanted: WantedMoves) -> str:
    return SWITCHOVER if wanted.kind == FAILBACK else wanted.kind


def _goes_on(wanted: WantedMoves, running: Operation) -> str:
    """The region that an operation under way leaves, where it is what is wanted; "": it is another one."""
    if wanted.kind == FAILBACK and running.kind == REJOIN and running.source == wanted.to:
        return running.target
    return running.source if (running.kind, running.target) == (_kind(wanted), wanted.to) else ""


def _there(wanted: WantedMoves, last: Operation | None) -> Verdict:
    """It is active in the target: moved there by this command, or at home there."""
    if wanted.kind == DRILL:
        return Verdict(what=PASSED, because=f"active in {wanted.to}: there is nothing to rehearse", source=wanted.to)
    if wanted.region and (last is None or (last.source, last.target) != (wanted.region, wanted.to)):
        return Verdict(what=PASSED, because=f"active in {wanted.to}", source=wanted.to)
    return Verdict(what=THERE, because=f"active in {wanted.to} already", source=wanted.to)


def _of_region(wanted: WantedMoves, found: Verdict) -> Verdict:
    if wanted.region in ("", found.source):
        return found
    return Verdict(what=PASSED, because=f"active in {found.source}", source=found.source)


def came_by(region: str, active: str, last: Operation | None) -> bool | None:
    """The same by the last operation alone; None: it does not say, and `came_from` is to be asked."""
    if last is None:  # nothing was ever done with it
        return False
    return _moves([last]) == [(region, active)] or None


def came_from(region: str, active: str, away: Mapping[str, Any], past: Sequence[Operation]) -> bool:
    """Whether a namespace that is active elsewhere was taken away from the region. past: its operations, the newest
    last.
    """
    return region in away or _moves(past)[-1:] == [(region, active)]


def _moves(past: Sequence[Operation]) -> list[tuple[str, str]]:
    return [(op.source, op.target) for op in past if op.kind in CLOSING and any(step[0] == "flip" for step in op.steps)]


def with_costs(
    wanted: WantedMoves,
    found: Verdict,
    published: Mapping[str, Any],
    lacks: Mapping[str, Any],
    unheard: str,
    *,
    takes_over: bool | None = True,
) -> Verdict:
    """Whether what moves by its verdict can be moved now. published, lacks: what both regions say, or `unreachable` and
    why. unheard: who may not have heard of the leadership; "": nobody. takes_over: a broker of the target has a lease;
    None: it is not known. Where it has one a failover waits for no answer of the target: `because` tells of it.
    """
    if found.what != MOVES or found.goes_on:
        return found
    cost = {"source": {"region": found.source, **published}, "target": {"region": wanted.to, **lacks}}
    if wanted.kind == FAILOVER:
        silent, why = _silent(cost, "target"), ""
        if silent and takes_over:
            found = replace(found, because=f"{silent}: what it lacks is not known")
        else:
            why = silent
        if not why and unheard and not wanted.force:
            why = (
                f"whoever has not heard that it is active-passive takes messages, also afterwards ({unheard}): --force "
                "fails over all the same"
            )
    elif wanted.kind == DRILL:
        why = _silent(cost, "source") or _silent(cost, "target")
    else:
        why = trouble(cost) or (f"not every broker has heard that it is active-passive: {unheard}" if unheard else "")
    if not why and takes_over is False:
        why = f"no broker of {wanted.to} holds a lease: nobody there could confirm"
    return replace(found, what=CANNOT, because=why) if why else found


def within_risk(wanted: WantedMoves, found: Verdict, risk: Mapping[str, Any]) -> Verdict:
    """Whether what moves by its verdict loses no more than is wanted. risk: `messages_at_risk.at_risk`."""
    bounded = wanted.risk_messages is not None or wanted.risk_s is not None
    if wanted.kind != FAILOVER or found.what != MOVES or found.goes_on or not bounded:
        return found
    messages, age_s = risk["messages"], risk["age_s"] or 0.0
    if messages is None:
        why = f"it is not known how much {wanted.to} lacks, and max_risk is set"
    elif wanted.risk_messages is not None and messages > wanted.risk_messages:
        why = f"{wanted.to} lacks {messages} messages, and max_risk is {wanted.risk_messages}"
    elif wanted.risk_s is not None and messages and age_s > wanted.risk_s:
        why = f"the oldest message that {wanted.to} lacks is {age_s:.1f} s old, and max_risk is {wanted.risk_s:g} s"
    else:
        return found
    return replace(found, what=CANNOT, because=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTarget:
    """A region that may take a namespace over, and what would become of that there."""

    to: str
    verdict: Verdict


def chosen(found: Sequence[MoveTarget]) -> tuple[MoveTarget, dict[str, str]]:
    """The one of several regions, in the order in which they were named, that takes a namespace over, and why those
    named before it do not: what was begun goes on; what is active in one of them stays; else the first to which it can
    be moved, and of these the first of which everything is known.
    """

    def rank(candidate: MoveTarget) -> int:
        verdict = candidate.verdict
        if verdict.what == MOVES:
            return 0 if verdict.goes_on else 3 if verdict.because else 2
        return 1 if verdict.what == THERE else 4 if verdict.what == CANNOT else 5

    first = min(found, key=rank)  # of equals the one that was named first
    passed = found[: found.index(first)] if first.verdict.what != CANNOT else [one for one in found if one is not first]
    return first, {one.to: one.verdict.because for one in passed if one.verdict.because}


def trouble(cost: Mapping[str, Any]) -> str:
    """Why a switchover cannot begin, by what its `source` and its `target` say; "": it can."""
    for side in ("source", "target"):
        if why := _silent(cost, side):
            return why
        if unlisted := cost[side].get("unlisted"):
            return f"{cost[side]['region']} could not read which topics there are: {unlisted}"
        if cost[side]["missing"]:
            return f"{cost[side]['region']} has not loaded {', '.join(cost[side]['missing'][:3])}"
    return f"links that are down: {', '.join(cost['source']['down'][:3])}" if cost["source"]["down"] else ""


def _silent(cost: Mapping[str, Any], side: str) -> str:
    found = cost[side]
    return f"{found['region']} does not answer: {found['unreachable']}" if "unreachable" in found else ""
