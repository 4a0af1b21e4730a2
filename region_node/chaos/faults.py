"""Faults of a scenario's steps, begun and ended: processes by the supervisor that started them, paths between regions
by the proxies of the instance, a topic by REST, anything else by commands of the scenario's own.

Is: one step as something that has begun and can be ended. Isn't: when (`conductor`), or what it breaks.
Invariants: what has begun is ended by `heal`, whatever happened meanwhile; a path, or a process, has one fault at a
time.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from region_node.chaos.checks.risk_reports import Link
from region_node.chaos.regions import Regions
from region_node.chaos.scenario import PROCESS_FAULTS, WAN_FAULTS, Scenario, ScenarioStep
from region_node.instance.control import STARTED_S, call
from region_node.instance.nodes.toxiproxy_api import Toxiproxy
from region_node.instance.plan.layout import WanLink, load_plan

_COMMAND_S = 600.0
_SAID_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunFault:
    """One fault that has begun. heal: ends it, and does what an operator has to. cut: ways on which nothing arrives,
    whose sources say what is at risk. silent: ways on which nothing arrives though connections are open. still: a
    region that cannot be asked. hold_s: for how long it holds; 0: as usual.
    """

    where: str
    heal: Callable[[], object] = lambda: None
    cut: Sequence[Link] = ()
    silent: Sequence[Link] = ()
    still: str = ""
    hold_s: float = 0.0


class StepFaults:
    """Begins the faults of one scenario. data: the folder of an instance that `heliograph up` has started, for steps
    that want its supervisor. names: the regions under load.
    """

    def __init__(self, scenario: Scenario, regions: Regions, names: Sequence[str], data: Path) -> None:
        self._scenario, self._regions, self._names, self._data = scenario, regions, list(names), data
        self._rng = random.Random(scenario.seed)
        self._busy = set[object]()
        """Links, and names of processes, that have a fault."""

    def check(self) -> None:
        """Raises ConfigError where a step names what is not there, or wants what this instance has not."""
        steps = self._scenario.steps
        for step in steps:
            for name in (*step.between, *filter(None, (step.around, step.region, step.to, self._scenario.load.active))):
                if name not in self._names:
                    raise self._wrong(step, f"there is no region {name!r} under load: {', '.join(self._names)}")
            if step.to and step.to == self._scenario.load.active:
                raise self._wrong(step, f"{step.to} is active already: name another region with `to`")
            if step.fault in WAN_FAULTS and len(self._names) < 2:
                raise self._wrong(step, f"fault = {step.fault!r} is between regions: give --admin a URL of each")
        if not any(step.fault in WAN_FAULTS | PROCESS_FAULTS for step in steps):
            return
        status = call(self._data, "status")
        for step in steps:
            if step.fault in WAN_FAULTS and not status["wan"]:
                raise self._wrong(
                    step,
                    "this instance has no proxies between its regions: start it without `--wan none`, or say "
                    'fault = "command" with what breaks your network',
                )
            if step.process and step.process not in (there := [row["name"] for row in _rows(status, self._names)]):
                raise self._wrong(step, f"there is no process {step.process!r}: {', '.join(there)}")

    def begin(self, step: ScenarioStep) -> BegunFault:
        """Raises ConfigError where it cannot be done; then nothing has begun."""
        if step.fault in WAN_FAULTS:
            return self._between(step)
        if step.fault in PROCESS_FAULTS:
            return self._process(step)
        if step.fault == "unload":
            region = step.region or self._rng.choice(self._names)
            topic = self._scenario.load.topic.removeprefix("persistent://")
            self._regions.rest(region).put(f"/admin/v2/persistent/{topic}/unload")
            return BegunFault(where=region)
        return self._command(step)

    # -- paths ---------------------------------------------------------------------------------------------------------

    def _between(self, step: ScenarioStep) -> BegunFault:
        if step.around:
            where, pairs = step.around, [(step.around, other) for other in self._names if other != step.around]
        else:
            a, b = step.between or self._rng.sample(self._names, 2)
            where, pairs = f"{a}-{b}", [(a, b)]
        ways = pairs if step.one_way else [way for a, b in pairs for way in ((a, b), (b, a))]
        self._take(step, ways)
        plan = load_plan(self._data)
        bent = [link for link in plan.links if (link.source, link.target) in ways] if plan is not None else []
        proxies = Toxiproxy(str(call(self._data, "status")["wan"]["toxiproxy"]))

        def heal() -> None:
            for link in bent:
                proxies.heal(link.name)
                proxies.latency(link.name, link.round_trip_ms // 2, link.jitter_ms // 2)
            self._busy.difference_update(ways)

        try:
            for link in bent:
                _bend(proxies, link, step)
        except BaseException:
            heal()
            raise
        nothing = ways if step.fault in ("cut", "black-hole", "failover") else ()
        return BegunFault(where=where, heal=heal, cut=nothing, silent=ways if step.fault == "black-hole" else ())

    # -- processes -----------------------------------------------------------------------------------------------------

    def _process(self, step: ScenarioStep) -> BegunFault:
        rows = _rows(call(self._data, "status"), [step.region] if step.region else self._names)
        found = [
            row
            for row in rows
            if row["pid"]
            and row["name"] not in self._busy
            and (row["name"] == step.process if step.process else step.role in row["name"])
        ]
        if not found:
            raise self._wrong(step, f"no process {step.process or step.role} is up that has no other fault")
        row = self._rng.choice(found)
        name, pid = str(row["name"]), int(row["pid"])
        self._take(step, [name])

        def heal() -> None:
            if step.fault == "kill":
                call(self._data, "start", timeout_s=STARTED_S, process=name)
            else:
                with contextlib.suppress(ProcessLookupError):  # it was ended meanwhile, and started anew
                    os.kill(pid, signal.SIGCONT)
            self._busy.discard(name)

        if step.fault == "kill":
            call(self._data, "kill", process=name)
        else:
            os.kill(pid, signal.SIGSTOP)
        return BegunFault(where=name, heal=heal)

    # -- the scenario's own --------------------------------------------------------------------------------------------

    def _command(self, step: ScenarioStep) -> BegunFault:
        environment = {
            "HELIOGRAPH_CHAOS_TOPIC": self._scenario.load.topic,
            "HELIOGRAPH_CHAOS_REGIONS": ",".join(self._names),
        }

        def heal() -> None:
            if step.undo:
                self._shell(step, "undo", step.undo, environment)

        try:
            self._shell(step, "run", step.run, environment)
        except BaseException:
            heal()
            raise
        return BegunFault(where=f"line {step.line}", heal=heal)

    def _shell(self, step: ScenarioStep, name: str, text: str, environment: Mapping[str, str]) -> None:
        try:
            done = subprocess.run(
                text, shell=True, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_COMMAND_S
            )
        except subprocess.TimeoutExpired as error:
            raise self._wrong(step, f"{name} did not end within {_COMMAND_S:.0f} s: {text}") from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_SAID_MAX:]
            raise self._wrong(step, f"{name} ended with {done.returncode}: {text}: {said}")

    # -- what has one already ------------------------------------------------------------------------------------------

    def _take(self, step: ScenarioStep, what: Sequence[object]) -> None:
        if busy := [one for one in what if one in self._busy]:
            raise self._wrong(step, f"{busy[0]} has a fault already: let one end before the other begins")
        self._busy.update(what)

    def _wrong(self, step: ScenarioStep, what: str) -> ConfigError:
        return ConfigError(f"the step in line {step.line} ({step.fault}) cannot be done: {what}")


def _bend(proxies: Toxiproxy, link: WanLink, step: ScenarioStep) -> None:
    match step.fault:
        case "cut" | "failover":
            proxies.cut(link.name)
        case "black-hole":
            proxies.black_hole(link.name, "upstream")
            proxies.black_hole(link.name, "downstream")
        case "latency":
            proxies.latency(link.name, link.round_trip_ms // 2 + step.latency_ms, link.jitter_ms // 2 + step.jitter_ms)
        case "bandwidth":
            proxies.bandwidth(link.name, step.kilobytes_per_s)
        case "reset":
            proxies.reset(link.name)


def _rows(status: Mapping[str, Any], regions: Sequence[str]) -> list[Mapping[str, Any]]:
    return [row for name in regions if name in status["regions"] for row in status["regions"][name]["processes"]]
