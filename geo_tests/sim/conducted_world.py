"""ConductedWorld: a whole instance with an active-passive namespace whose operator gives the commands that there are:
switchover, failover, rejoin, drill, cancel, each step by the real `Conductor`.

Is: a DrillWorld (somebody rehearses all the time) in which the namespace is moved by operations, at bad moments, each
step by a conductor of its own, as if the broker before had died; what an operation reports, compared with the truth.
Isn't: HTTP between regions.

An operation that has passed `boundary` has told how many messages of the lost region its target lacks, or for how long
nothing was heard of it: so many at least are missing. A switchover that has passed `deliver` has everything of its
source in its target. A region that was failed away from is rejoined.
In the end no operation is under way, and the first region is the active one by a switchover.
"""

from __future__ import annotations

import asyncio

from geo_tests.sim.checkers import Violation
from geo_tests.sim.drill_world import DrillWorld
from geo_tests.sim.region import NAMESPACE
from geo_tests.sim.reports import TOLD_S
from heliograph.model.configuration.leadership import OPEN
from heliograph.model.errors import HeliographError, NotAllowed, NotFound
from heliograph.model.positions import Position
from region_node.dr.operations.operation import CANCELLED, DRILL, FAILOVER, REJOIN, SWITCHOVER, Operation

_OPERATOR = "operator"
_PATIENCE_S = (1.0, 4.0, 8.0)
_ENDS_S = 90.0
_DONE = {SWITCHOVER: "switched over", FAILOVER: "failed over", REJOIN: "rejoined"}


class ConductedWorld(DrillWorld):
    """One broker a region."""

    pauses_s = (0.0, 2.0)

    async def _operate(self) -> None:
        rng = self._operator_rng
        while self._operating:
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            kind, to = rng.choice((SWITCHOVER, FAILOVER, FAILOVER)), rng.choice(self.settings.regions)
            op = await self._conduct(kind, to, rng.choice(_PATIENCE_S))
            if op is not None and op.kind == FAILOVER and not op.running:
                await self._conduct(REJOIN, op.source, _PATIENCE_S[-1])
        await self._finish()

    async def _conduct(self, kind: str, target: str, patience_s: float) -> Operation | None:
        """Begins it, and goes on until it is done; cancels it where that takes too long. Returns what it was last."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        op = await self._ask(kind, target)
        while op is not None and op.running and loop.time() < until:
            await asyncio.sleep(0.1)
            op = await self._ask() or op
        if op is not None and op.kind != DRILL and op.running:
            await self._cancel()
        return op

    async def _finish(self) -> None:
        """What is under way ends, by whatever way; then the first region is made the active one, by a switchover."""
        first, deadline = self.settings.regions[0], self.sim.now() + _ENDS_S
        while True:
            op = await self._ask()
            if op is None or op.kind == DRILL or not op.running:
                store, switching = self._switching()
                try:
                    record, _ = await switching.get(NAMESPACE)
                    if record.active == first and record.state == OPEN:
                        return
                    op = await self._ask(SWITCHOVER, first)
                except HeliographError as error:
                    self.trace(f"operator: {error}")
                finally:
                    store.close()
            if self.sim.now() > deadline:
                raise Violation(f"an operation does not end: {op}")
            await asyncio.sleep(0.2)

    async def _ask(self, kind: str = "", target: str = "") -> Operation | None:
        """Begins an operation, or does the next step of the one under way, where it is none of the driller's. None:
        nothing came of it.
        """
        store, conductor = self._conductor(_OPERATOR)
        try:
            if kind:
                return await conductor.begin(kind, NAMESPACE, target, "sim")
            op, _ = await conductor.operation(NAMESPACE)
            if op is None or op.kind == DRILL or not op.running:
                return op
            told, confirmed = self._confirmed(op, TOLD_S), self._confirmed(op, 0.0)
            after = await conductor.advance(NAMESPACE)
            if op.step == "boundary" and after.step != "boundary" and after.id == op.id:
                self._judge_boundary(after, told)
            if op.kind == SWITCHOVER and op.step == "deliver" and after.step == "subscriptions":
                self._judge_delivery(after, confirmed)
            if not after.running and after.state != CANCELLED:
                self.counts[_DONE[after.kind]] += 1
                self.trace(f"operator: {after.kind} to {after.target} is done: {after.report}")
            return after
        except (NotAllowed, NotFound) as error:
            self.counts["refused"] += 1
            self.trace(f"operator: {error}")
        except HeliographError as error:
            self.counts["operator cut off"] += 1
            self.trace(f"operator: {error}")
        finally:
            store.close()
        return None

    async def _cancel(self) -> None:
        store, conductor = self._conductor(_OPERATOR)
        try:
            await conductor.cancel(NAMESPACE)
            self.counts["given up"] += 1
        except HeliographError as error:
            self.trace(f"operator: {error}")
        finally:
            store.close()

    # -- the truth -----------------------------------------------------------------------------------------------------

    def _confirmed(self, op: Operation, since_s: float) -> dict[str, list[Position]]:
        """What was confirmed in the source since_s ago: after TOLD_S the target knows of it, or of the silence."""
        return {topic: self.probes.reports.confirmed(topic, op.source, since_s) for topic in self.topics}

    def _judge_delivery(self, op: Operation, confirmed: dict[str, list[Position]]) -> None:
        """The source has answered everything that it took, and the target has it."""
        self.verdict.reports["a switchover has delivered"] += 1
        if lacks := self._lacks(op, confirmed):
            raise Violation(f"a switchover goes on although {lacks} messages of {op.source} are not in {op.target}")

    def _lacks(self, op: Operation, positions: dict[str, list[Position]]) -> int:
        lacks = self.probes.reports.lacks
        return sum(lacks(topic, op.target, op.source, positions[topic]) for topic in self.topics)

    def _judge_boundary(self, op: Operation, told: dict[str, list[Position]]) -> None:
        """told: before the step. What is missing still was missing then."""
        said = op.report["after"]
        self.verdict.reports["a failover's boundary"] += 1
        lacks = self._lacks(op, told)
        if not said["silent_s"] and not said["unheard"]["count"] and said["messages"] < lacks:
            raise Violation(f"a failover tells that {op.target} lacks {said}: {lacks} messages are missing")
