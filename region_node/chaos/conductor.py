"""ChaosRun: one run of a scenario: the load, its faults one after another or by time, and the verdict.

Is: what is done when. Isn't: how something is broken (`faults`), or what is a broken promise (`judge`, `checks`).
Invariants: whatever ends it, every fault that has begun is ended. A cut begins only when everything has arrived
everywhere and its sources know that, or its reports are not compared: else nobody knows what is at risk. The verdict is
of all that was acknowledged, whatever happened before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import heliograph
from heliograph.cli.messaging.produce_consume import official
from heliograph.model.errors import reason_of
from region_node.chaos.checks.failover_reports import FailoverReports
from region_node.chaos.checks.risk_reports import RiskReports
from region_node.chaos.checks.silence_reports import SilenceReports
from region_node.chaos.faults import BegunFault, StepFaults
from region_node.chaos.judge import BrokenPromise, broken
from region_node.chaos.load import ChaosLoad
from region_node.chaos.regions import NotInTime, Regions
from region_node.chaos.report import ChaosReport, FaultRecord
from region_node.chaos.scenario import Scenario, ScenarioStep

_STEP_S = 0.02


@dataclass(slots=True)
class _Active:
    """A fault that holds. began_s, until_s: since the run began. risk, silence: None where it is not compared."""

    step: ScenarioStep
    fault: BegunFault
    began_s: float
    until_s: float
    risk: RiskReports | None = None
    silence: SilenceReports | None = None

    @property
    def name(self) -> str:
        return f"{self.step.fault} at {self.fault.where}"


class ChaosRun:
    """One run. say: is called with a line for people at each step. lull_s: of load without a fault, before the first
    one and behind each. Raises ConfigError where it could not be run: what a broken promise is, is in the report.
    """

    def __init__(
        self,
        scenario: Scenario,
        regions: Regions,
        names: Sequence[str],
        faults: StepFaults,
        run_id: str,
        say: Callable[[str], None] = lambda _: None,
        *,
        lull_s: float = 1.0,
    ) -> None:
        self._lull_s = lull_s
        self._scenario, self._regions, self._faults, self._say, self._run_id = scenario, regions, faults, say, run_id
        self._since_1970 = time.time()
        self._done: list[FaultRecord] = []
        self._broken: list[BrokenPromise] = []
        self._not_compared: list[str] = []
        self._compared: Counter[str] = Counter()
        self._active: list[_Active] = []
        self._load = ChaosLoad(scenario, regions, names, run_id, self._look)

    def run(self) -> ChaosReport:
        try:
            try:
                self._go()
            finally:
                self._heal_all()
            self._verdict()
            return self._report()
        finally:
            self._load.close(keep=bool(self._broken))

    def _report(self) -> ChaosReport:
        load = self._load
        return ChaosReport(
            scenario=self._scenario.name,
            seed=self._scenario.seed,
            run=self._run_id,
            version=heliograph.__version__,
            client=self._scenario.load.client,
            topic=load.topic,
            regions=load.names,
            began=self._since_1970,
            took_s=load.now(),
            faults=self._done,
            published={
                region: {"sent": one.sent, "acknowledged": one.acked, "refused": one.failed}
                for region, one in load.streams.items()
            },
            read={
                one.region: {
                    "messages": sum(one.history.count(stream.name) for stream in load.streams.values()),
                    "again": one.history.again,
                }
                for one in load.subscriptions
            },
            compared=dict(self._compared),
            broken=self._broken,
            not_compared=self._not_compared,
            series=load.timeline.series(),
        )

    def _look(self) -> None:
        for active in self._active:
            if active.risk is not None:
                active.risk.sample()
            if active.silence is not None:
                active.silence.sample(active.fault.still)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        try:
            self._load.publish(self._lull_s)
            self._load.settle()
            if self._scenario.timed:
                self._by_time(self._scenario.ordered())
            else:
                for step in self._scenario.ordered():
                    self._one(step)
            self._load.settle()
        except NotInTime as error:
            where = f"{self._done[-1].fault} at {self._done[-1].where}" if self._done else "the load"
            self._broken.append(BrokenPromise("whole again", where, str(error)))

    def _one(self, step: ScenarioStep) -> None:
        active = self._begin(step)
        self._load.publish(step.for_s)
        self._end(active)
        self._load.publish(self._lull_s)
        whole_s = self._load.settle() - self._done[-1].ended_s
        self._done[-1] = replace(self._done[-1], whole_s=whole_s)
        self._say(f"{step.fault:10} {active.fault.where:20} whole again {whole_s:.1f} s behind its end")

    def _by_time(self, steps: Sequence[ScenarioStep]) -> None:
        waiting = list(steps)
        while waiting or self._active:
            for active in [one for one in self._active if one.until_s <= self._load.now()]:
                self._end(active)
            while waiting and (waiting[0].at_s or 0.0) <= self._load.now():
                if not self._active:
                    self._load.settle()
                self._begin(waiting.pop(0))
            next_s = min([one.until_s for one in self._active] + [step.at_s or 0.0 for step in waiting], default=0.0)
            self._load.publish(max(_STEP_S, next_s - self._load.now()))

    def _begin(self, step: ScenarioStep) -> _Active:
        alone = not self._active
        for other in self._active:
            if other.risk is not None or other.silence is not None:
                other.risk = other.silence = None
                self._not_compared.append(f"what was said during {other.name}: {step.fault} began meanwhile")
        load, source = self._load, next(iter(self._load.streams))
        risk = RiskReports(self._regions, load.topic, load.streams, load.arrivals)
        fault = self._faults.begin(replace(step, around=source) if step.fault == "failover" else step)
        active = _Active(step, fault, load.now(), load.now() + step.for_s)
        self._active.append(active)
        repeats = self._scenario.load.repeat_every and self._scenario.load.deduplication is not True
        if fault.cut and alone and repeats:
            self._not_compared.append(f"what was said during {active.name}: the load sends messages twice")
        elif fault.cut and alone and step.fault != "failover":
            ways, silent = ([way for way in one if way[0] in load.streams] for one in (fault.cut, fault.silent))
            risk.begin(ways, fault.still)
            active.risk = risk
            if silent:
                active.silence = SilenceReports(self._regions, load.topic, load.streams, silent, load.arrivals)
        elif fault.cut and not alone:
            self._not_compared.append(f"what was said during {active.name}: another fault held")
        self._say(f"{step.fault:10} {fault.where:20} holds for {step.for_s:g} s")
        return active

    def _end(self, active: _Active) -> None:
        """Compares what was said while the fault held, then ends it."""
        try:
            if active.step.fault == "failover":
                self._failed_over(active)
                return
            for kind, verdict in (
                ("at risk", active.risk.verdict if active.risk is not None else None),
                ("silence", active.silence.verdict if active.silence is not None else None),
            ):
                if verdict is not None:
                    wrong, compared = verdict()
                    self._broken += [BrokenPromise("risk", active.name, what) for what in wrong]
                    self._compared[kind] += compared
        finally:
            self._active.remove(active)
            active.fault.heal()
            ended_s = self._load.now()
            step = active.step
            self._done.append(
                FaultRecord(
                    fault=step.fault,
                    where=active.fault.where,
                    line=step.line,
                    began_s=active.began_s,
                    ended_s=ended_s,
                )
            )

    def _failed_over(self, active: _Active) -> None:
        load, target = self._load, active.step.to
        ((source, stream),) = load.streams.items()
        reports = FailoverReports(self._regions, load.topic, stream, load.arrivals)
        found = reports.move(source, target, active.fault.heal, self._scenario.patience_s)
        self._broken += [BrokenPromise("risk", active.name, what) for what in found.wrong]
        self._compared["at risk at a failover"] += found.compared
        load.moved(source, target, found.alone)

    def _heal_all(self) -> None:
        """Ends what still holds where the run was ended in the middle. Raises what the first that failed did."""
        failed: Exception | None = None
        while self._active:
            try:
                self._active.pop().fault.heal()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def _verdict(self) -> None:
        load = self._load
        published = [stream.published for stream in load.streams.values()]
        for region in load.names:
            where = f"the copy in {region}"
            try:
                copy = load.arrivals.numbers(region)
            except official().PulsarException as error:
                text = f"it cannot be read: {reason_of(error)}"
                self._broken.append(BrokenPromise("whole again", where, text))
                continue
            for one in published:
                self._broken += broken(one, copy.get(one.source, ()), where)
        for subscription in load.subscriptions:
            where = f"the subscription in {subscription.region}"
            for one in published:
                self._broken += broken(one, subscription.history.numbers(one.source), where)
            if not self._broken and (again := subscription.opened_again(2 * self._lull_s)):
                self._broken.append(BrokenPromise("acknowledged", where, f"{again} acknowledged messages come again"))
