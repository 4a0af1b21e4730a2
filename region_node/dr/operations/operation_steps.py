"""Conductor: does the next step of an operation, and says what it waits for.

Is: beginning, advancing, cancelling; every step reads what is, does what is missing, and is safe to do again. Isn't: a
loop or a timer: whoever asked for the operation asks for each step, so that one that was interrupted simply goes on
when it is asked again, by anybody, at any broker.
Invariants: a step counts as done when its effect is durable, and is then recorded by compare-and-set; between `drain`
or `fence` and `flip` the namespace takes no messages, and the status says so; no message is deleted by any step; a
region that may not have heard that the namespace is active-passive is left only where somebody has said so twice.
Source: docs/operating/disaster-recovery.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from heliograph.kv.metadata_store import (
    ABSENT,
    Check,
    MetadataStore,
    Put,
    pages_between,
    prefix_end,
    rows_under,
)
from heliograph.kv.unreadable_records import readable, tell_unreadable
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.leadership import DRAINING, FENCED, Leadership, following, preceding
from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NotAllowed,
    NotFound,
    VersionConflict,
)
from region_node.dr.leadership.leadership_changes import Switching, closing, reopened, unheard_text, waits_for
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.automatic_policy import BY, forget_automatic, hold_behind_move, release
from region_node.dr.operations.drill import Drill
from region_node.dr.operations.messages_at_risk import at_risk
from region_node.dr.operations.operation import (
    CANCELLED,
    CLOSING,
    DRILL,
    FAILOVER,
    KEPT,
    MEANING,
    REJOIN,
    REPORTS_KEPT,
    STEPS,
    SWITCHOVER,
    Operation,
    Planned,
    StepAges,
    boundaries_prefix,
    boundary_prefix,
    history_prefix,
    operation_key,
    reports_prefix,
    with_report,
)

log = logging.getLogger("region_node.dr")

_BOUNDARY_TOPICS = 500
_COUNTED_TOPICS = 200
"""One request counts so many topics; no more are in the operation's record while they are not done."""
_NAMED = 5
_NAMED_TAILS = 1000
_NOTHING_COUNTED = {
    "after": "",
    "left": {},
    "part": {},
    "entries": 0,
    "messages": 0,
    "bytes": 0,
    "with_tail": {},
    "count": 0,
}
"""Counted are topics through `after`; of the next ones `part` so far, and what is `left`."""


class OperationRegions(Protocol):
    """The part of the configuration's view that is used here."""

    def region(self, name: str) -> RegionInfo | None: ...

    def namespace(self, name: str) -> NamespacePolicies | None: ...


class Conductor:
    """`facts_of(region, namespace)`, `counts_of(region, namespace, "tails", {topic: {origin: position}})` or `"spans",
    {topic: [[origin, after, through]]}`: asked of the region itself; raise HeliographError.
    """

    def __init__(
        self,
        store: MetadataStore,
        view: OperationRegions,
        *,
        facts_of: Callable[[str, str], Awaitable[dict[str, Any]]],
        counts_of: Callable[[str, str, str, Mapping[str, Any]], Awaitable[dict[str, Any]]],
        wall_ms: Callable[[], int],
        ages: StepAges,
    ) -> None:
        """ages: of this process, and not of one conductor: each is there for a single request."""
        self._store, self._view, self._facts, self._counts, self._wall_ms = store, view, facts_of, counts_of, wall_ms
        self._ages = ages
        self.switching = Switching(store, wall_ms)
        self.renewed = 0
        """The version of the record where it was written while the last step was done; else 0."""
        self.drill: Drill | None = None
        """Set where drills can be made."""

    # -- what is under way ---------------------------------------------------------------------------------------------

    async def operation(self, namespace: str) -> tuple[Operation | None, int]:
        """The one under way, or the last; with its version."""
        found = await self._store.get(operation_key(namespace))
        return (None, ABSENT) if found is None else (Operation.decode(found[0]), found[1])

    async def history(self, namespace: str) -> list[Operation]:
        """Finished ones, the newest last."""
        prefix = history_prefix(namespace)
        return [Operation.decode(value) for _, value, _ in await rows_under(self._store, prefix)]

    async def plan(
        self, kind: str, namespace: str, target: str, record: Leadership | None = None, unheard: str = ""
    ) -> tuple[Operation, dict[str, Any]]:
        """What `begin` would do, and what it would cost; nothing is changed. record, unheard: the leadership, and who
        may not have heard of it, as they are known already. Raises NotAllowed, NotFound.
        """
        if record is None:
            record, _ = await self.switching.get(namespace)
            unheard = unheard_text(await self.switching.unheard(namespace, self.regions(namespace)))
        planned = self._new(1, kind, namespace, target, record, "")
        cost: dict[str, Any] = {
            "active": record.active,
            "epoch": record.epoch,
            "unheard": unheard,
            "steps": {step: MEANING[step] for step in STEPS[kind]},
        }
        sides: dict[str, dict[str, Any]] = {}
        for key, region, other, look in (
            ("source", planned.source, planned.target, namespace_facts.not_in),
            ("target", planned.target, planned.source, namespace_facts.lacking),
        ):
            try:
                found = await self._facts(region, namespace)
            except HeliographError as error:
                cost[key] = {"region": region, "unreachable": str(error)}
                continue
            sides[key] = look(found, other)
            cost[key] = {"region": region, **sides[key]}
            if key == "target":
                cost["cut_off"] = namespace_facts.cut_off(found, self._others(planned))
        cost["at_risk"] = at_risk(planned.source, planned.target, sides.get("source"), sides.get("target"))
        return planned, cost

    async def begin(
        self,
        kind: str,
        namespace: str,
        target: str,
        by: str,
        *,
        force: bool = False,
        planned: Planned | None = None,
        report: Mapping[str, Any] | None = None,
        checks: Sequence[Check] = (),
    ) -> Operation:
        """Begins it, or goes on with one of the same kind and target that is not finished. force: a failover, although
        brokers may not have heard that the namespace is active-passive, and go on until they hear. planned: none is
        begun where that is otherwise by now. report: what its report begins with. checks: what must be so when it
        begins. Raises NotAllowed, NotFound.
        """
        silent = ""
        if kind == FAILOVER:
            silent = unheard_text(await self.switching.settle(namespace, self.regions(namespace)))
            if silent and not force:
                raise NotAllowed(
                    f"whoever has not heard that {namespace} is active-passive takes messages and confirms them, also "
                    f"after a failover: then two regions confirm ({silent}). Wait until they have, or take a region "
                    "that is gone for good out of the namespace; --force fails over all the same"
                )
        for _ in range(4):
            old, version = await self.operation(namespace)
            record, _ = await self.switching.get(namespace)
            running = old if old is not None and old.running else None
            if running is not None and not gives_way(running, kind, target):
                old = running
                if old.kind != kind or target not in ("", old.source if kind == REJOIN else old.target):
                    raise NotAllowed(
                        f"a {old.kind} of {namespace} to {old.target} is under way at step {old.step}: "
                        f"finish it (`heliograph dr {old.kind} {namespace}`), or cancel it"
                    )
                if silent and not old.report.get("unheard"):
                    if not await self._stored(with_report(old, unheard=silent), version):
                        continue
                    return with_report(old, unheard=silent)
                return old
            if moved := planned.moved(record, old) if planned is not None else "":
                raise NotAllowed(f"{namespace} is not as it was planned: {moved}. Make a new plan")
            if running is not None:
                await self._superseded(running, record)
            new = self._new(1 if old is None else old.id + 1, kind, namespace, target, record, by)
            new = with_report(new, **(report or {}), **({"unheard": silent} if silent else {}))
            if kind == REJOIN:
                await self._last_boundary(namespace, new.source)
            if await self._stored(new, version, checks):
                return new
        raise MetadataUnavailable("others begin operations on this namespace too: look at `heliograph dr status`")

    async def _superseded(self, old: Operation, record: Leadership) -> None:
        now, flipped = self._wall_ms(), old.kind in CLOSING and record.active == old.target
        await self._file(old.left(now) if flipped else old.cancelled(now))

    def _new(self, number: int, kind: str, namespace: str, target: str, record: Leadership, by: str) -> Operation:
        regions = self.regions(namespace)
        others = [region for region in regions if region != record.active]
        if not target:
            if len(others) != 1:
                raise NotAllowed(f"{namespace} is in {', '.join(regions)}: name one region with --to")
            target = others[0]
        if target not in regions:
            raise NotAllowed(f"{namespace} is not in region {target}; it is in {', '.join(regions)}")
        if kind == REJOIN:  # the one that came back is named; the active one takes its tail
            return Operation.new(number, kind, namespace, target, record.active, by, self._wall_ms())
        return Operation.new(number, kind, namespace, record.active, target, by, self._wall_ms())

    async def facts(self, region: str, namespace: str) -> dict[str, Any]:
        """What the region knows of the namespace's topics, as it is asked. Raises HeliographError."""
        return await self._facts(region, namespace)

    async def cancel(self, namespace: str, number: int | None = None) -> Operation:
        """The active region goes on as before. number: of the operation; None: whichever is under way. Raises NotFound,
        NotAllowed.
        """
        found, version = await self.operation(namespace)
        if found is None or not found.running or number not in (None, found.id):
            raise NotFound(f"no operation of {namespace} is under way")
        ended = found.cancelled(self._wall_ms())
        if await self._reopen(found) == found.target:  # by a flip that was not recorded
            raise NotAllowed(f"{found.target} is the active region already: finish this operation, then switch back")
        if not await self._stored(ended, version):
            raise MetadataUnavailable("a step of it was done at the same time: look at it, and try again")
        await self._reopen_after(ended)
        await self._file(ended)
        return ended

    async def _reopen(self, op: Operation) -> str:
        """Returns which region is the active one then; "" where the operation has closed nothing."""
        if op.kind not in CLOSING:
            return ""
        record, _ = await self.switching.change(
            op.namespace, lambda record: reopened(record, self._wall_ms()) if record.active == op.source else record
        )
        return record.active

    async def _reopen_after(self, op: Operation) -> bool:
        """Where the operation has ended, what a step of it has closed meanwhile, which may change nothing in its
        record, is opened again, unless a newer one closes the namespace. Returns whether it has ended.
        """
        now, _ = await self.operation(op.namespace)
        if now is not None and now.running and now.kind in CLOSING:
            return now.id != op.id
        with suppress(NotFound):  # it is active-active by now
            await self._reopen(op)
        return True

    async def advance(self, namespace: str, renew_s: float | None = None) -> Operation:
        """Does the next step as far as it can be done now. renew_s: so often the record is written while that lasts,
        so that nobody takes it for left behind. Raises NotFound, and MetadataUnavailable where the configuration has no
        majority.
        """
        self.renewed = 0
        found, version = await self.operation(namespace)
        if found is None:
            raise NotFound(f"no operation of {namespace} was ever begun")
        if not found.running:  # whoever ended it may not have come to filing it
            if found.ended_ms and await self._store.get(_filed(found)) is None:
                if found.state == CANCELLED:
                    await self._reopen_after(found)
                await self._file(found)
            return found
        after = await self._renewing(found, version, renew_s)
        version = self.renewed or version
        if after == found or await self._stored(after, version):
            if not after.running:
                await self._file(after)
            return after
        again, _ = await self.operation(namespace)
        return again or after

    async def _renewing(self, op: Operation, version: int, renew_s: float | None) -> Operation:
        """What its step makes of it."""
        step = asyncio.ensure_future(self._after(op))
        try:
            while not (await asyncio.wait((step,), timeout=renew_s))[0]:
                try:
                    version = await self._store.put(operation_key(op.namespace), op.encode(), expected=version)
                    self.renewed = version
                except VersionConflict:  # somebody else does it, too, or has ended it
                    renew_s = None
                except HeliographError as error:  # the next one may succeed
                    log.info("operation.not_renewed", extra={"namespace": op.namespace, "error": str(error)})
        finally:
            step.cancel()
        return step.result()

    async def _after(self, op: Operation) -> Operation:
        try:
            if op.kind == DRILL:
                assert self.drill is not None
                after = await getattr(self.drill, op.step)(op)
            else:
                after = await getattr(self, f"_{op.step}")(op)
        except NotAllowed as error:
            after = op.waits(f"refused: {error}")
        except (MetadataUnavailable, NotFound) as error:
            after = op.waits(str(error))
        assert isinstance(after, Operation)
        return after

    async def _stored(self, operation: Operation, version: int, checks: Sequence[Check] = ()) -> bool:
        try:
            await self._store.txn([Put(operation_key(operation.namespace), operation.encode(), version), *checks])
        except VersionConflict:
            return False
        return True

    async def _file(self, operation: Operation) -> None:
        await self._store.put(_filed(operation), operation.encode())
        if operation.id > KEPT:  # numbers follow each other
            await _delete_between(self._store, history_prefix(operation.namespace), _filed(operation, KEPT - 1))

    async def keep_report(self, operation: Operation, report: Mapping[str, Any]) -> None:
        """The signed report of a drill; the newest `REPORTS_KEPT` of a namespace stay."""
        prefix = reports_prefix(operation.namespace)
        await self._store.put(f"{prefix}{operation.id:08d}", json.dumps(report).encode())
        for key, _, _ in (await rows_under(self._store, prefix))[:-REPORTS_KEPT]:
            await self._store.delete(key)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _check(self, op: Operation) -> Operation:
        source, target = await self._facts(op.source, op.namespace), await self._facts(op.target, op.namespace)
        lag = namespace_facts.not_in(source, op.target)
        if trouble := self._trouble(lag, target):
            return op.waits(trouble)
        if not await self.switching.writers(op.target):
            return op.waits(f"no broker of {op.target} holds a lease: nobody there could confirm")
        if silent := await self._silent(op):
            return op.waits(silent)
        producers = sum(topic["producers"] for topic in source["topics"].values())
        stays = f"; {_some(lag['stays'])} stays in {op.source}, by policy" if lag["stays"] else ""
        text = (
            f"{len(source['topics'])} topics, {producers} producers, {lag['messages']} messages not in {op.target} "
            f"yet{stays}"
        )
        return op.passed(text, self._wall_ms(), cost=lag)

    async def _drain(self, op: Operation) -> Operation:
        return await self._close(op, DRAINING, "every message that was taken is answered")

    async def _fence(self, op: Operation) -> Operation:
        if op.by == BY and "closed_ms" not in op.report and await self.switching.writers(op.source):
            return op.waits(f"{op.source} is there again: nothing is closed by itself")
        text = f"{op.source} confirms nothing any more"
        if silent := op.report.get("unheard"):
            text = f"{op.source} is fenced for whoever has heard of it; the others go on until they hear: {silent}"
        return await self._close(op, FENCED, text)

    async def _close(self, op: Operation, state: str, text: str) -> Operation:
        record, version = await self.switching.get(op.namespace)
        began = op.report.get("closed_ms") or self._wall_ms()
        if record.active == op.source:
            self._check_target(op)
            record, version = await self.switching.change(
                op.namespace, lambda old: closing(old, op.target, state, self._wall_ms())
            )
            if await self._reopen_after(op):
                return op.waits("somebody has ended it meanwhile")
            if waits := waits_for(op.namespace, version, await self.switching.writers(op.source)):
                return with_report(op, closed_ms=began).waits(f"brokers of {op.source}: {_some(waits)}")
            if silent := await self._silent(op):
                return with_report(op, closed_ms=began).waits(silent)
        elif record.active != op.target:
            raise NotAllowed(f"{op.namespace} is active in {record.active} by now: cancel this, and begin anew")
        epoch_before = record.epoch if record.active == op.source else preceding(record.epoch)
        return op.passed(text, self._wall_ms(), closed_ms=began, closing_ms=record.since_ms, epoch_before=epoch_before)

    async def _deliver(self, op: Operation) -> Operation:
        since_s = self._ages.age_s(op)
        source, target = await self._facts(op.source, op.namespace), await self._facts(op.target, op.namespace)
        left = [namespace_facts.not_in(source, op.target)]
        if op.kind == REJOIN:
            left.append(namespace_facts.not_in(target, op.source))
        for lag, other in zip(left, (target, source), strict=False):
            if trouble := self._trouble(lag, other):
                return op.waits(trouble)
            if lag["entries"] and not (op.kind == REJOIN and namespace_facts.newer(lag, since_s)):
                return op.waits(f"{lag['messages']} messages of {lag['topics']} topics are on their way")
        behind = " but what has come since they were counted" if any(lag["entries"] for lag in left) else ""
        return op.passed(
            f"all of {len(source['topics'])} topics is in both{behind}",
            self._wall_ms(),
            topics=len(source["topics"]),
            undelivered=left[0]["messages"],
        )

    async def _subscriptions(self, op: Operation) -> Operation:
        since_s = self._ages.age_s(op)
        source, target = await self._facts(op.source, op.namespace), await self._facts(op.target, op.namespace)
        if left := namespace_facts.out_of_step(source, target, op.source, op.target, since_s):
            return op.waits(f"not in step yet: {_some(left)}")
        count = sum(len(topic["subscriptions"]) for topic in source["topics"].values())
        return op.passed(f"{count} replicated subscriptions are in step", self._wall_ms(), subscriptions=count)

    async def _measure(self, op: Operation) -> Operation:
        lag = namespace_facts.lacking(await self._facts(op.target, op.namespace), op.source)
        return op.passed(_lag_text(lag, op), self._wall_ms(), before=_short(lag))

    async def _boundary(self, op: Operation) -> Operation:
        found = await self._facts(op.target, op.namespace)
        if found["missing"]:
            return op.waits(f"{op.target} has not loaded {_some(found['missing'])}")
        info = self._view.region(op.source)
        number = f"{info.number}." if info is not None else ""
        rows = {
            name: {origin: position for origin, position in topic["vector"].items() if origin.startswith(number)}
            for name, topic in sorted(found["topics"].items())
        }
        prefix, names = boundary_prefix(op.namespace, following(int(op.report["epoch_before"]))), list(rows)
        start = 0
        for start in range(0, max(1, len(names)), _BOUNDARY_TOPICS):
            part = {
                "format": 1,
                "source": op.source,
                "topics": {name: rows[name] for name in names[start : start + _BOUNDARY_TOPICS]},
            }
            await self._store.put(f"{prefix}{start:06d}", json.dumps(part).encode())
        # of a failover that was given up here; another broker may have recorded the others already
        await _delete_between(self._store, f"{prefix}{start + 1:06d}", prefix_end(prefix))
        lag, away = namespace_facts.lacking(found, op.source), namespace_facts.cut_off(found, self._others(op))
        return op.passed(
            _lag_text(lag, op) + _cut_off_text(away, op.target),
            self._wall_ms(),
            after=_short(lag),
            cut_off=_short(away),
        )

    async def _flip(self, op: Operation) -> Operation:
        record, _ = await self.switching.get(op.namespace)
        if record.active != op.target:
            self._check_target(op)
            regions = () if op.report.get("unheard") else self.regions(op.namespace)
            new, waits = await self.switching.flip(
                op.namespace, op.target, op.report.get("closing_ms"), regions=regions, beside=lambda: self._hold(op)
            )
            if new is None:
                return op.waits(f"brokers of {op.source}: {_some(waits)}")
            record = new
        for source, epochs in (await self.away(op.namespace)).items():
            for epoch in epochs:
                # the target is back: what it publishes from now on is nobody's tail; and a failover that was given up
                # behind `boundary` left one under the same epoch
                if source == op.target or (op.kind == SWITCHOVER and epoch == record.epoch):
                    await self._forget(boundary_prefix(op.namespace, epoch))
        return op.passed(
            f"{op.target} is the active region under epoch {record.epoch}", self._wall_ms(), epoch=record.epoch
        )

    async def _hold(self, op: Operation) -> list[Put]:
        """What has nothing fail over by itself right behind this move."""
        return await hold_behind_move(self._store, op.namespace, f"{op.kind} to {op.target}", self._wall_ms())

    async def _open(self, op: Operation) -> Operation:
        record, version = await self.switching.get(op.namespace)
        found = await self.switching.writers(op.target)
        waits = waits_for(op.namespace, version, found)
        if not found or waits:
            return op.waits(f"brokers of {op.target}: {_some(waits) or 'none holds a lease'}")
        now = self._wall_ms()
        rto_s = (now - int(op.report["closed_ms"])) / 1000
        known: dict[str, Any] = {}
        if promised := record.slo.get("rto_s"):
            known["rto_kept"] = rto_s <= promised
        return op.passed(
            f"{op.target} takes messages, {rto_s:.1f} s after {op.source} was closed", now, rto_s=rto_s, **known
        )

    async def _reach(self, op: Operation) -> Operation:
        record, version = await self.switching.get(op.namespace)
        found = await self._facts(op.source, op.namespace)
        if found["missing"]:
            return op.waits(f"{op.source} has not loaded {_some(found['missing'])}")
        if waits := waits_for(op.namespace, version, await self.switching.writers(op.source)):
            return op.waits(f"brokers of {op.source}: {_some(waits)}")
        return op.passed(
            f"{op.source} answers with {len(found['topics'])} topics and obeys epoch {record.epoch}",
            self._wall_ms(),
            epoch=record.epoch,
        )

    async def _count(self, op: Operation) -> Operation:
        boundary, epoch = await self._last_boundary(op.namespace, op.source)
        here = await self._facts(op.source, op.namespace)
        names = sorted(set(here["topics"]).union(boundary).difference(namespace_facts.own_affair(here, op.target)))
        done: dict[str, Any] = op.report.get("counting") or _NOTHING_COUNTED
        batch = [name for name in names if name > done["after"]][:_COUNTED_TOPICS]
        if not batch:
            tail = {key: done[key] for key in ("entries", "messages", "bytes")}
            op = with_report(op, counting=None)
            by = op.target if epoch == op.report["epoch"] else f"another region (epoch {epoch})"
            return op.passed(
                f"{tail['messages']} messages of {done['count']} topics were in {op.source} only when {by} took over",
                self._wall_ms(),
                boundary_epoch=epoch,
                tail={**tail, "topics": done["with_tail"], "topics_count": done["count"]},
            )
        left, part = done["left"], dict(done["part"])
        found = (
            await self._counts(op.source, op.namespace, "spans", left)
            if left
            else await self._counts(op.source, op.namespace, "tails", {name: boundary.get(name, {}) for name in batch})
        )
        if gone := [name for name in found["missing"] if name in (left or batch)]:
            return op.waits(f"{op.source} has not loaded {_some(gone)}")
        for name, more in found["topics"].items():
            part[name] = namespace_facts.added(part.get(name, {}), more)
        left = {name: more["left"] for name, more in found["topics"].items() if more.get("left")}
        if left:
            so_far = done["messages"] + sum(one["messages"] for one in part.values())
            return with_report(op, counting={**done, "left": left, "part": part}).waits(
                f"{so_far} messages are counted, {len(left)} topics are not done"
            )
        with_tail = {name: one for name, one in sorted(part.items()) if one["entries"]}
        done = {
            "after": batch[-1],
            "left": {},
            "part": {},
            **{
                key: done[key] + sum(one[key] for one in with_tail.values()) for key in ("entries", "messages", "bytes")
            },
            "with_tail": dict([*done["with_tail"].items(), *with_tail.items()][:_NAMED_TAILS]),
            "count": done["count"] + len(with_tail),
        }
        return with_report(op, counting=done).waits(
            "" if len(batch) < _COUNTED_TOPICS else f"{done['messages']} messages are counted, up to {batch[-1]}"
        )

    async def _verify(self, op: Operation) -> Operation:
        target = await self._facts(op.target, op.namespace)
        tail: dict[str, Any] = op.report["tail"]
        left = [
            name
            for name, found in tail["topics"].items()
            if not namespace_facts.covers(target["topics"].get(name, {}).get("vector", {}), found["last"])
        ]
        if left:
            return op.waits(f"{op.target} lacks the tail of {_some(left)}")
        boundary, _ = await self._last_boundary(op.namespace, op.source)
        info = self._view.region(op.source)
        spans = namespace_facts.unsent(f"{info.number}." if info is not None else "", target, boundary)
        lost = 0
        while spans:  # a link that brings a tail names what it does not bring: expired, deleted, or given up
            found = await self._counts(op.source, op.namespace, "spans", dict(list(spans.items())[:_COUNTED_TOPICS]))
            if gone := [name for name in found["missing"] if name in spans]:
                return op.waits(f"{op.source} has not loaded {_some(gone)}")
            lost += sum(one["messages"] for one in found["topics"].values())
            spans = {
                **{name: one["left"] for name, one in found["topics"].items() if one["left"]},
                **dict(list(spans.items())[_COUNTED_TOPICS:]),
            }
        kept = max(0, tail["messages"] - lost)
        text = f"{kept} messages of the tail are in {op.target} too"
        if lost:
            text += f"; {lost} stay in {op.source} alone: `heliograph topics vector` says of each range why"
        return op.passed(text, self._wall_ms(), kept=kept, lost=lost)

    # -- what they share -----------------------------------------------------------------------------------------------

    def regions(self, namespace: str) -> Sequence[str]:
        """Whose brokers have to hear of the namespace's leadership. Raises NotFound."""
        policies = self._view.namespace(namespace)
        if policies is None:
            raise NotFound(f"namespace {namespace} does not exist")
        return policies.regions

    def _check_target(self, op: Operation) -> None:
        """Raises NotAllowed where the namespace has left the region that it is moved to."""
        if op.target not in self.regions(op.namespace):
            raise NotAllowed(f"{op.namespace} is not in {op.target} any more: put it back, or cancel this")

    async def _silent(self, op: Operation) -> str:
        """Who may not have heard of the leadership; "": nobody, or it was said that they may go on."""
        if op.report.get("unheard"):
            return ""
        left = unheard_text(await self.switching.settle(op.namespace, self.regions(op.namespace)))
        return f"not every broker has heard that {op.namespace} is active-passive: {left}" if left else ""

    async def _last_boundary(self, namespace: str, returned: str) -> tuple[dict[str, Any], int]:
        """What the other region held when it took over from the one that came back. Raises NotFound."""
        record, _ = await self.switching.get(namespace)
        known = (await self.away(namespace)).get(returned, ())
        if epoch := max((epoch for epoch in known if epoch <= record.epoch), default=0):
            prefix = boundary_prefix(namespace, epoch)
            rows = [_boundary(key, value) for key, value, _ in await rows_under(self._store, prefix)]
            return {name: held for row in rows for name, held in row["topics"].items()}, epoch
        raise NotFound(
            f"no failover of {namespace} away from {returned} is on record: there is no tail to rejoin; links bring "
            "what is missing"
        )

    async def away(self, namespace: str) -> dict[str, list[int]]:
        """Region -> the epochs at whose beginning another one took over by force; until it is the active one again."""
        at, end = boundaries_prefix(namespace), prefix_end(boundaries_prefix(namespace))
        out: dict[str, list[int]] = {}
        while rows := await self._store.range(at, end, limit=1):  # the others of an epoch say the same of its source
            ((key, value, _),) = rows
            number = key.removeprefix(boundaries_prefix(namespace)).partition("/")[0]
            at = prefix_end(f"{boundaries_prefix(namespace)}{number}/")
            try:
                out.setdefault(_boundary(key, value)["source"], []).append(int(number))
            except (CorruptData, ValueError) as error:  # nobody is known to have come back from there
                tell_unreadable(key, error)
        return out

    async def forget(self, namespace: str) -> None:
        """The namespace was made for one operation, and goes: nothing is kept of it."""
        await forget_operations(self._store, namespace)

    async def _forget(self, prefix: str) -> None:
        await _delete_under(self._store, prefix)

    def _others(self, op: Operation) -> list[str]:
        """The regions of the namespace that the operation is not about."""
        policies = self._view.namespace(op.namespace)
        return [
            region
            for region in (policies.regions if policies is not None else ())
            if region not in (op.source, op.target)
        ]

    @staticmethod
    def _trouble(lag: Mapping[str, Any], other: Mapping[str, Any]) -> str:
        if missing := [*lag["missing"], *other["missing"]]:
            return f"no broker has loaded {_some(missing)}"
        return f"links that are down: {_some(lag['down'])}" if lag["down"] else ""


async def reports_of(store: MetadataStore, namespace: str) -> list[dict[str, Any]]:
    """Signed reports of the namespace's drills, the newest last."""
    rows = await rows_under(store, reports_prefix(namespace))
    found = [readable(_report, key, value) for key, value, _ in rows]
    return [report for report in found if report is not None]


def _report(value: bytes) -> dict[str, Any]:
    return _object(value, "a report of a drill")


def _boundary(key: str, value: bytes) -> dict[str, Any]:
    found = _object(value, key)
    if not isinstance(found.get("topics"), dict) or not isinstance(found.get("source"), str):
        raise CorruptData(f"{key}: what a region held when it took over cannot be read by this version")
    return found


def _object(value: bytes, what: str) -> dict[str, Any]:
    """The JSON object that stands there. Raises CorruptData."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{what}: {error}") from error
    if not isinstance(found, dict):
        raise CorruptData(f"{what}: no object")
    return found


async def forget_operations(store: MetadataStore, namespace: str) -> None:
    """The namespace is gone, and what comes under its name is another one: what was done with it, and what a region
    lost then held, speaks of nothing any more, nor is it failed over by itself. Signed reports of drills stay.
    """
    await forget_automatic(store, namespace)
    await release(store, namespace)
    await store.delete(operation_key(namespace))
    for prefix in (history_prefix(namespace), boundaries_prefix(namespace)):
        await _delete_under(store, prefix)


async def _delete_under(store: MetadataStore, prefix: str) -> None:
    await _delete_between(store, prefix, prefix_end(prefix))


async def _delete_between(store: MetadataStore, start: str, end: str) -> None:
    async for rows in pages_between(store, start, end):
        for key, _, _ in rows:
            await store.delete(key)


def _filed(operation: Operation, before: int = 0) -> str:
    """Where it is kept once it has ended; or the one so many `before` it."""
    return f"{history_prefix(operation.namespace)}{operation.id - before:08d}"


def gives_way(old: Operation, kind: str, target: str) -> bool:
    """A failover does not wait for what a lost region cannot finish, be it the one that was left or the one that took
    over; a rejoin can be begun again when the namespace was moved; a drill is in nobody's way, and takes nobody's
    place.
    """
    if DRILL in (old.kind, kind):
        return kind != DRILL
    if old.kind == REJOIN:
        return kind != REJOIN
    return kind == FAILOVER and ((old.kind == SWITCHOVER and old.step != "open") or target not in ("", old.target))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _short(lag: Mapping[str, Any]) -> dict[str, Any]:
    """For the record, which has its bounds: lists by their length and a few of them."""
    return {
        key: {"count": len(value), "some": value[:_NAMED]} if isinstance(value, list) else value
        for key, value in lag.items()
    }


def _lag_text(lag: Mapping[str, Any], op: Operation) -> str:
    text: str = at_risk(op.source, op.target, None, lag)["text"]
    return text


def _cut_off_text(away: Mapping[str, Sequence[str]], target: str) -> str:
    """Survivors that the next active region has no way to."""
    if not away:
        return ""
    regions = ", ".join(f"{region} ({len(topics)} topics)" for region, topics in away.items())
    return (
        f"; {target} has no link to {regions}: until it has, what it takes waits there, and acknowledgements of the "
        "two are not brought in step"
    )
