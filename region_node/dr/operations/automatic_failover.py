"""AutomaticFailover: fails namespaces over whose active region is lost, where somebody has wanted that.

Is: the decision, at each broker of a region that may take over; beginning the operation that an operator would begin,
and asking for its steps. A broker without an admin interface says what it hears, and decides nothing. Isn't: a step, or
fencing (`region_node.dr.operations.operation_steps`, `region_node.dr.leadership`), or what is known of a silent region
(`region_node.dr.operations.silent_regions`).
Invariants: none is begun unless no broker of the active region had a lease for `after_s`, and a majority of the other
regions has heard nothing of it for as long; none while anything holds the namespace, or another operation than a drill
is under way; by one broker, of the region that takes over; one that was left is gone on with by another broker there,
or given up where that region is lost, too.
Source: docs/operating/disaster-recovery.md, "Automatic failover"; docs/decisions/0243.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from global_config.keys import AUTOMATIC
from heliograph.kv.metadata_store import ABSENT, Check, MetadataStore
from heliograph.model.configuration.leadership import OPEN, Leadership, is_subscription
from heliograph.model.errors import CorruptData, HeliographError
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from heliograph.runtime.throttle import RowPace
from region_node.dr.leadership.write_leases import WriteLeases
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.automatic_policy import (
    BY,
    HOLDS,
    Automatic,
    Hold,
    held,
    hold_keys,
    hold_text,
    too_much_at_risk,
)
from region_node.dr.operations.grouped_store import grouped
from region_node.dr.operations.operation import DONE, DRILL, FAILOVER, Operation, Planned, StepAges
from region_node.dr.operations.operation_driver import OperationDriver
from region_node.dr.operations.operation_steps import Conductor
from region_node.dr.operations.silent_regions import Said, SilentRegions
from region_node.runtime.prometheus_text import Sample

log = logging.getLogger("region_node.dr")

LOOK_S = 1.0
_LEFT_S = 3.0
"""What nobody has asked for that long is gone on with by another broker."""
_CLOSED = ("fence", "boundary", "flip")
"""Steps that have closed the namespace, and have not opened it elsewhere."""
_WAITS_S = 10.0
"""What stays at one of them for so long, while the region that was lost is there again, is given up."""
_GIVEN_UP_S = 6.0
"""Before the flip, where the region that was to take over has had no lease for so long, the other one goes on."""
AT_ONCE = 32
"""Namespaces that are decided on, or moved, here at the same time."""
_A_LOOK = 100
"""So many are begun with in one look: others have their turn in the next one."""
_AGAIN_S = 2.0
"""Between two decisions about one namespace."""
_ANEW = 30
"""After so many looks regions are counted anew, whatever was heard."""
_PATIENCE_S = 30.0
"""One that does no step for so long gives its place to another one, and is gone on with in its turn."""
_ANSWER_S = 2.0
"""So long a region is waited for that is asked what it lacks."""


class AutomaticFailover:
    """One broker's part in it, from `start` until `stop`."""

    def __init__(
        self,
        leases: WriteLeases,
        silent: SilentRegions,
        conductor: Callable[[MetadataStore], Conductor] | None,
        *,
        region: str,
        regions_of: Callable[[str], Sequence[str]],
        clock: Clock,
        told: Callable[[dict[str, Any]], object] = lambda _: None,
    ) -> None:
        """conductor: made for each use, with the credentials of this broker, over the store; None: it has no admin
        interface, and says only what it hears (`silent` has to know that). region: its own.
        regions_of: a namespace -> its regions. told: hears of every event.
        """
        self.known: dict[str, Automatic] = {}
        self.said: dict[str, str] = {}
        """Namespace whose active region is lost -> why it is not failed over, or not by this region."""
        self.moved = 0
        self._leases, self._silent, self._store = leases, silent, grouped(leases.store)
        self._begins = conductor is not None
        self._conductor = partial(conductor or _nobody, self._store)
        self._region, self._regions_of, self._clock, self._told = region, regions_of, clock, told
        self._driver = OperationDriver(self._store, self._conductor, clock, _LEFT_S)
        self._ages = StepAges(clock.monotonic)
        self._holds: dict[str, Hold] = {}
        self._unsettled: dict[str, None] = {}
        """Namespaces whose leadership has changed, or that are new here: what began by itself may be under way."""
        self._wanted: dict[str, set[float]] = {}
        """Region -> for how long somebody waits for it, as it was counted last."""
        self._counts_anew = True
        self._again_at: dict[str, float] = {}
        """Namespace -> when it is decided on again, in the clock's monotonic seconds."""
        self._heard_of: dict[tuple[str, tuple[str, ...], float], tuple[int, Said]] = {}
        """What was said in which look."""
        self._looks = 0
        self._looked_at: dict[str, None] = {}
        """Namespaces that are decided on, or moved, here now."""
        self._waiting: dict[str, None] = {}
        """Those of them of which it is waited whether another broker goes on: they take nobody's place."""
        self._last = ""
        """The namespace that had its turn last."""
        self._was_lost = False
        self._stops: list[Callable[[], None]] = []
        self._tasks = TaskSet("automatic failover has ended")

    async def start(self) -> None:
        store = self._leases.store
        for prefix, heard in ((AUTOMATIC, self._heard), (HOLDS, self._heard_hold)):
            self._stops.append(store.watch(prefix, heard))
            await store.synced(prefix)
        await self._silent.start()
        self._leases.on_change(self._changed)
        self._tasks.spawn(every(LOOK_S, self._look))

    async def stop(self) -> None:
        for stop in self._stops:
            stop()
        self._silent.stop()
        await self._tasks.close()

    def _heard(self, key: str, value: bytes | None, _version: int) -> None:
        namespace = key.removeprefix(AUTOMATIC)
        self.known.pop(namespace, None)
        try:
            if value is not None:
                self.known[namespace] = Automatic.decode(value)
        except CorruptData as error:
            log.error("failover.automatic_unreadable", extra={"namespace": namespace, "error": str(error)})
        self._changed(namespace)
        if namespace not in self.known:
            for kept in (self.said, self._unsettled, self._again_at):
                kept.pop(namespace, None)

    def _heard_hold(self, key: str, value: bytes | None, _version: int) -> None:
        self._holds.pop(key, None)
        try:
            if value is not None:
                self._holds[key] = Hold.decode(value)
        except CorruptData as error:
            log.error("failover.hold_unreadable", extra={"key": key, "error": str(error)})

    # -- the look ------------------------------------------------------------------------------------------------------

    def _record(self, namespace: str) -> Leadership | None:
        """As it is known here; None: nothing can fail over, or this region has nothing to do with it."""
        gate = self._leases.core.gate(namespace)
        record = None if gate is None else gate.record
        if record is None or not record.active or record.asks or self._region not in self._regions_of(namespace):
            return None
        return record

    def _changed(self, namespace: str) -> None:
        """Its leadership, or what is wanted for it, is another one."""
        if not is_subscription(namespace):
            self._counts_anew = True
            if namespace in self.known:
                self._unsettled[namespace] = None

    async def _look(self) -> None:
        """While every region is there, and nothing has changed, this costs nothing, however many namespaces there
        are.
        """
        self._looks += 1
        if self._counts_anew or not self._looks % _ANEW:
            self._counts_anew = False
            self._wanted = await self._count()
        await self._silent.look(self._wanted)
        lost = any(self._silent.lost_s(region) for region in self._wanted)
        if not lost:
            self.said.clear()
        if (
            not self._begins or not self._leases.core.holds or not (lost or self._unsettled)
        ):  # whoever is cut off decides nothing
            return
        names, pace, begun = sorted(self.known if lost else self._unsettled), RowPace(), 0
        if lost and not self._was_lost and names:  # brokers that begin at the same time begin apart
            own = sha256(self._leases.registered_as.encode()).digest()
            self._last = names[int.from_bytes(own[:4]) % len(names)]
        self._was_lost = lost
        after = next((index for index, name in enumerate(names) if name > self._last), 0)
        for namespace in (*names[after:], *names[:after]):
            await pace.row()
            if len(self._looked_at) - len(self._waiting) >= AT_ONCE or begun >= _A_LOOK:
                break
            if namespace not in self._looked_at and self._due(namespace):
                self._last, begun = namespace, begun + 1
                self._looked_at[namespace] = None
                self._tasks.spawn(self._look_at(namespace))

    async def _count(self) -> dict[str, set[float]]:
        """Region -> for how long somebody waits for it, of those that are, or become, the active one of a namespace;
        for nothing where its namespaces ask: that it is lost is to be seen all the same.
        """
        wanted: dict[str, set[float]] = {}
        pace = RowPace()
        for namespace, found in list(self.known.items()):
            await pace.row()
            if (record := self._record(namespace)) is not None:
                wanted.setdefault(record.active, set()).update(() if found.asks else (found.after_s,))
                if record.to:
                    wanted.setdefault(record.to, set())
        return wanted

    def _due(self, namespace: str) -> bool:
        """Whether there may be something to do."""
        record, wanted = self._record(namespace), self.known.get(namespace)
        if record is None or wanted is None:
            self._unsettled.pop(namespace, None)
            return False
        if wanted.asks:
            self.said.pop(namespace, None)
        elif record.state != OPEN and self._silent.lost_s(record.active) >= wanted.after_s:
            if namespace not in self._unsettled:
                self._say(namespace, f"it is closed for {record.to}: finish what moves it, or cancel that")
        elif not self._lost(record, wanted):
            self.said.pop(namespace, None)
        elif why := self.held(namespace):
            self._say(namespace, why)
        elif wanted.to and self._region not in wanted.to:
            self._say(namespace, f"{', '.join(wanted.to)} may take over")
        elif self._clock.monotonic() >= self._again_at.pop(namespace, 0.0):
            return True
        return namespace in self._unsettled

    def _lost(self, record: Leadership, wanted: Automatic) -> bool:
        return record.state == OPEN and not wanted.asks and self._silent.lost_s(record.active) >= wanted.after_s

    async def _look_at(self, namespace: str) -> None:
        try:
            record, wanted, gate = self._record(namespace), self.known.get(namespace), self._leases.gate(namespace)
            if record is None or wanted is None or gate is None:
                return
            version = gate.version
            found, _ = await self._conductor().operation(namespace)
            lost = self._lost(record, wanted)
            own = found is not None and found.running and found.kind == FAILOVER and found.by == BY
            if found is None or not own:
                if gate.version == version:
                    self._unsettled.pop(namespace, None)
            else:
                self._unsettled[namespace] = None
                flipped = found.target == record.active
                if not lost or (found.step != "measure" and not flipped):
                    await self._left(found, wanted.after_s, flipped=flipped)
                    return
            if lost:
                self._say(namespace, await self._decided(namespace, wanted, record, found))
        except HeliographError as error:  # the next look tries again
            self._say(namespace, str(error))
        finally:
            self._again_at[namespace] = self._clock.monotonic() + _AGAIN_S
            del self._looked_at[namespace]

    def _say(self, namespace: str, why: str) -> None:
        if self.said.get(namespace, "") == why:
            return
        self.said[namespace] = why
        if why:
            log.warning("failover.not_begun", extra={"namespace": namespace, "because": why})

    async def _left(self, op: Operation, after_s: float, *, flipped: bool) -> None:
        """One that began by itself has passed its first step, or its source may be there again: another broker there
        goes on with it; where its target is lost, too, before it was the active region (flipped: it is), or it waits
        while its source is there, somebody gives it up.
        """
        if op.step == "measure" and await self._there(op.source):
            await self._give_up(op, f"{op.source} is there again")
        elif op.step == "measure" and self._silent.lost_s(op.source) < after_s:
            return  # as far as it was seen here: this broker may have just begun
        elif not flipped and op.step in _CLOSED and self._ages.age_s(op) >= _WAITS_S and await self._there(op.source):
            await self._give_up(op, f"{op.source} is there again, and {op.step} waits: {op.waiting}")
        elif op.target == self._region:
            if await self._left_behind(op.namespace):
                await self._drive(op)
        elif not flipped and self._silent.lost_s(op.target) >= _GIVEN_UP_S:
            await self._give_up(op, f"{op.target} is lost, too")

    async def _left_behind(self, namespace: str) -> bool:
        self._waiting[namespace] = None
        try:
            return await self._driver.left_behind(namespace, FAILOVER, BY)
        finally:
            del self._waiting[namespace]

    async def _there(self, region: str) -> bool:
        return bool(await self._conductor().switching.writers(region))

    async def _give_up(self, op: Operation, why: str) -> None:
        self._waiting[op.namespace] = None
        try:
            await asyncio.sleep(_LEFT_S)
        finally:
            del self._waiting[op.namespace]
        found, _ = await self._conductor().operation(op.namespace)
        if found is not None and found.id == op.id and found.step == op.step and found.running:
            await self._conductor().cancel(op.namespace, op.id)
            self._note("failover.given_up", op, because=why)

    # -- the decision --------------------------------------------------------------------------------------------------

    async def _decided(self, namespace: str, wanted: Automatic, record: Leadership, last: Operation | None) -> str:
        """Fails it over, or says why not, or why not from here; "": it is done, or another broker does it."""
        own = last is not None and last.running and last.kind == FAILOVER and last.by == BY
        if last is not None and last.running and last.kind != DRILL and not own:
            return f"a {last.kind} to {last.target} is under way at step {last.step}"
        if last is not None and own and last.target not in (self._region, record.active):
            least_s = _PATIENCE_S if await self._there(last.target) else _GIVEN_UP_S
            if self._ages.age_s(last) < least_s:  # its target's brokers go on with it
                return f"a failover to {last.target} is under way at step {last.step}"
        source = record.active
        if why := await held(self._store, namespace):
            return why
        others = [region for region in self._regions_of(namespace) if region != source]
        said = await self._said(source, others, wanted.after_s)
        if not majority(said.silent, others):
            mute = f"; nothing is said by {', '.join(said.mute[:3])}: is it of an earlier version?" if said.mute else ""
            return (
                f"of {', '.join(others)} only {', '.join(said.silent) or 'nobody'} says that nothing came from "
                f"{source} for {wanted.after_s:g} s: no majority{mute}"
            )
        target, facts, passed = await self._target(namespace, wanted, source, said.there)
        if target != self._region or facts is None:
            return "; ".join([*passed, f"{target or 'no other region'} is there to take over"])
        if why := too_much_at_risk(wanted, facts, source):
            return f"{target} does not take over: {why}"
        if not said.checks:
            return "this broker has no lease"
        await self._begin(namespace, record, last, said)
        return ""

    async def _said(self, source: str, others: Sequence[str], after_s: float) -> Said:
        """Asked once a look, of however many namespaces."""
        what = source, tuple(others), after_s
        look, found = self._heard_of.get(what, (0, None))
        if found is None or look != self._looks:
            found = await self._silent.said(source, others, after_s)
            self._heard_of = {key: told for key, told in self._heard_of.items() if told[0] == self._looks}
            self._heard_of[what] = self._looks, found
        return found

    async def _target(
        self, namespace: str, wanted: Automatic, source: str, there: Sequence[str]
    ) -> tuple[str, dict[str, Any] | None, list[str]]:
        """Which region takes over, what it knows of the namespace, if it was asked, and why others do not, in words.
        "": none is there. One that has not loaded every topic would close the namespace, and wait for them.
        """
        passed: list[str] = []
        if wanted.to:
            for region in (region for region in wanted.to if region in there and region != source):
                facts = await self._facts(region, namespace)
                if not (why := _not_loaded(region, facts)):
                    return region, facts, passed
                passed.append(why)
            return "", None, passed
        asked = await asyncio.gather(*(self._facts(region, namespace) for region in there))
        found = {region: facts for region, facts in zip(there, asked, strict=True) if facts is not None}
        passed = [why for region, facts in found.items() if (why := _not_loaded(region, facts))]
        whole = {region: facts for region, facts in found.items() if not facts["missing"]}
        if not whole:
            return "", None, passed
        target = min(whole, key=lambda region: _lag(whole[region], source))
        return target, whole[target], passed

    async def _facts(self, region: str, namespace: str) -> dict[str, Any] | None:
        """None: it does not answer in time."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await self._conductor().facts(region, namespace)
        except (TimeoutError, HeliographError) as error:
            log.info("failover.region_not_asked", extra={"region": region, "error": str(error)})
            return None

    async def _begin(self, namespace: str, record: Leadership, last: Operation | None, said: Said) -> None:
        """By one broker: whoever finds that another one has begun it leaves it to that one, while it lives."""
        lost_s, mark = self._silent.lost_s(record.active), self._leases.registered_as
        op = await self._conductor().begin(
            FAILOVER,
            namespace,
            self._region,
            BY,
            planned=Planned(
                active=record.active,
                epoch=record.epoch,
                operation=0 if last is None else last.id,
                alone=True,
                step="" if last is None else last.step,
            ),
            report={"automatic": {"broker": mark, "lost_s": round(lost_s, 1), "said_by": said.silent}},
            checks=[*said.checks, *(Check(key, ABSENT) for key in hold_keys(namespace))],
        )
        if op.by == BY and op.report.get("automatic", {}).get("broker") == mark:
            self._note(
                "failover.begun",
                op,
                because=f"{op.source} has had no lease for {lost_s:.0f} s, and {', '.join(said.silent)} heard nothing "
                "of it for as long",
            )
        elif not await self._left_behind(namespace):
            return
        await self._drive(op)

    async def _drive(self, op: Operation) -> None:
        self._unsettled[op.namespace] = None
        ended = await self._driver.drive(op, _PATIENCE_S)
        if ended is not None and ended.state == DONE and await self._driver.tells(ended):
            self.moved += 1
            known = next((text for name, _, text in ended.steps if name == "boundary"), "")
            self._note("failover.done", ended, because=known, at_risk=ended.report.get("after"))

    def _note(self, event: str, op: Operation, **more: Any) -> None:
        found = {
            "event": event,
            "namespace": op.namespace,
            "from": op.source,
            "to": op.target,
            "by": BY,
            "id": op.id,
            **more,
            "time_ms": self._clock.wall_ms(),
        }
        log.warning(event, extra=found)
        self._told(found)

    # -- what people ask -----------------------------------------------------------------------------------------------

    def held(self, namespace: str) -> str:
        """What holds it, as it is known here; "": nothing."""
        return next((hold_text(self._holds[key]) for key in hold_keys(namespace) if key in self._holds), "")

    def status(self, namespace: str) -> dict[str, Any] | None:
        """As this broker knows it; None: the namespace does not fail over by itself."""
        if (found := self.known.get(namespace)) is None:
            return None
        record = self._record(namespace)
        return {
            "after_s": found.after_s,
            "to": list(found.to),
            "hold_s": found.hold_s,
            "risk_messages": found.risk_messages,
            "risk_s": found.risk_s,
            "by": found.by,
            "held": self.held(namespace),
            "lost_s": 0.0 if record is None else self._silent.lost_s(record.active),
            "said": f"{found.asks}: set it anew, or off" if found.asks else self.said.get(namespace, ""),
        }

    def samples(self) -> Iterator[Sample]:
        for namespace in self.known:
            labels = {"cluster": self._region, "namespace": namespace}
            record = self._record(namespace)
            yield "heliograph_dr_automatic_after_seconds", "gauge", labels, self.known[namespace].after_s
            yield "heliograph_dr_automatic_held", "gauge", labels, float(bool(self.held(namespace)))
            lost_s = 0.0 if record is None else self._silent.lost_s(record.active)
            yield "heliograph_dr_active_lost_seconds", "gauge", labels, lost_s
        yield "heliograph_dr_automatic_failovers_total", "counter", {"cluster": self._region}, self.moved


def _nobody(_store: MetadataStore) -> Conductor:
    raise AssertionError("this broker begins nothing")


def majority(silent: Sequence[str], others: Sequence[str]) -> bool:
    """Whether more than half of the regions beside the active one say so."""
    return 2 * len(silent) > len(others)


def _not_loaded(region: str, facts: Mapping[str, Any] | None) -> str:
    """Why it does not take over, in words; "": it has every topic, or does not answer."""
    return f"{region} has not loaded {facts['missing'][0]}" if facts is not None and facts["missing"] else ""


def _lag(facts: dict[str, Any], source: str) -> tuple[int, int]:
    """Topics of which it is not known what they lack, and the messages of the others."""
    lag = namespace_facts.lacking(facts, source)
    return len(lag["missing"]) + len(lag["unheard"]), lag["messages"]
