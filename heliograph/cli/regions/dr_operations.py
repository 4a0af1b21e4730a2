"""One operation of one namespace, as a command carries it out: asked for step after step, until it is done.

Is: what is wanted, as options say it; beginning it, or going on with it; its plan and its progress for people. Isn't: a
command, or a step: those are the brokers'.
Invariants: whatever ends it, the same call goes on with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, done
from heliograph.model.admin_paths import dr_path
from heliograph.model.errors import ConfigError

_THROUGH_S = 2
"""A broker goes on with an operation for so long before it answers how far that is."""
To = Annotated[
    str,
    typer.Option(
        "--to",
        help="The region that takes over; of one namespace in two regions it need not be named. Of many namespaces "
        "several, as eu,ap: each goes to the first of them that may take it.",
    ),
]
MaxRisk = Annotated[
    list[str],
    typer.Option(
        "--max-risk",
        help="Of many namespaces: fail over none to a region that lacks more messages (a number alone: 100), or older "
        "ones (a number and s, m, h, d, w: 5s), or does not know what it lacks. Both, each behind its own.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done and what it would cost; change nothing.")
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        help="Give up after so many seconds in which no step was done; what was done stays, and the command goes on. "
        "(Of many namespaces a switchover is cancelled then.)",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OneNamespace = Annotated[str, typer.Argument(help="tenant/namespace; or --region, --tenant, or --all, for many.")]
Region = Annotated[str, typer.Option("--region", help="All namespaces that are active in this region.")]
Tenant = Annotated[str, typer.Option("--tenant", help="All namespaces of this tenant.")]
Everything = Annotated[bool, typer.Option("--all", help="All namespaces of the instance.")]
Parallel = Annotated[int, typer.Option("--parallel", help="So many namespaces at once.", min=1, max=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """What is done, and with which namespaces: one, or many. namespace: ""; many. region, tenant: "" whichever;
    everything: neither was said.
    """

    kind: str
    force: bool = False
    namespace: OneNamespace = ""
    to: To = ""
    dry_run: DryRun = False
    wait_s: Wait = 60.0
    yes: Yes = False
    region: Region = ""
    tenant: Tenant = ""
    everything: Everything = False
    parallel: Parallel = 32
    max_risk: MaxRisk = field(default_factory=list)

    @property
    def text(self) -> str:
        of = [f"region {self.region}"] * bool(self.region) + [f"tenant {self.tenant}"] * bool(self.tenant)
        return f"{self.kind} of {' in '.join(reversed(of)) or 'all namespaces'} to {self.to}"

    @property
    def several(self) -> bool:
        """Whether several namespaces are meant. Raises ConfigError where it is not clear which."""
        if self.everything and (self.region or self.tenant):
            raise ConfigError("--all says every namespace: leave it out beside --region or --tenant")
        several = bool(self.region or self.tenant or self.everything)
        if several == bool(self.namespace):
            raise ConfigError(
                "say one namespace, or --region, --tenant, or --all; not both"
                if several
                else "say which namespace; or --region us for all that are active in us, --tenant shop, or --all"
            )
        if self.max_risk and (self.kind != "failover" or not several):
            raise ConfigError("--max-risk is of a failover of many namespaces; of one look at --dry-run")
        if several and not self.to:
            raise ConfigError("name the region that takes over: --to eu")
        return several


class NotDone(ConfigError):
    """The operation waits for too long, or was given up."""


class Stopped(Exception):
    """Somebody wants no further step: the operation stands where it is."""

    def __init__(self, operation: dict[str, Any]) -> None:
        super().__init__(operation["step"])
        self.operation = operation


class StepProgress:
    """Hears of each step that is done, and again and again of what one waits for; prints it, what is new. stop: once it
    is set, no further step is asked for. It remembers what was begun: asked for again, that is gone on with, also where
    it ended and nobody heard of it.
    """

    def __init__(self, output: Output, stop: threading.Event | None = None) -> None:
        self.output, self.stop = output, stop or threading.Event()
        self._waiting = ""
        self._begun = dict[str, int]()
        """Kind -> the number of its operation."""
        self._number, self._shown, self._counted, self._since = 0, 0, "", time.monotonic()

    def begun(self, kind: str) -> int:
        """The number of the operation of that kind; 0: none was begun."""
        return self._begun.get(kind, 0)

    @property
    def idle_s(self) -> float:
        """For how long no step was done."""
        return time.monotonic() - self._since

    def unheard(self, seconds: float) -> None:
        """So long no broker answered: no step is slow for that."""
        self._since += seconds

    def answered(self, kind: str, operation: dict[str, Any]) -> None:
        """Tells each step that is done once."""
        if operation["id"] != self._number:
            self._begun[kind] = self._number = operation["id"]
            self._shown, self._counted, self._since = 0, "", time.monotonic()
        for step in operation["steps"][self._shown :]:
            self.passed(step)
            self._since = time.monotonic()
        self._shown = len(operation["steps"])
        if operation["step"] == "count" and operation["waiting"] not in ("", self._counted):
            self._counted, self._since = operation["waiting"], time.monotonic()

    def passed(self, step: dict[str, Any]) -> None:
        echo(self.output, f"  {step['step']}: {step['found']}")

    def waits(self, operation: dict[str, Any]) -> None:
        """operation: `waiting` says for what; "": the next step is done at once."""
        if operation["waiting"] and operation["waiting"] != self._waiting:
            echo(self.output, f"  {operation['step']} waits: {operation['waiting']}")
        self._waiting = operation["waiting"]


def planned(rest: Rest, wanted: OperationRequest) -> dict[str, Any]:
    """What it would do and cost; nothing is changed."""
    asked = {"kind": wanted.kind, "to": wanted.to, "dry_run": True}
    found: dict[str, Any] = rest.post(f"{dr_path(wanted.namespace)}/operations", asked)
    return found


def carried_out(
    rest: Rest, wanted: OperationRequest, progress: StepProgress, planned: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The operation of one namespace, done or cancelled. planned: what a plan says of the namespace; nothing is begun
    where that is otherwise by now. Raises NotDone, Stopped, ConfigError.
    """
    kind, namespace = wanted.kind, wanted.namespace
    asked = {"kind": kind, "to": wanted.to, "dry_run": False, **(planned or {})}
    if wanted.force:
        asked["force"] = True
    if progress.begun(kind):
        found = _advanced(rest, namespace, kind, progress)
    else:
        found = rest.post(f"{dr_path(namespace)}/operations", asked)
    while True:
        progress.answered(kind, found)
        if found["state"] != "running":
            return found
        progress.waits(found)
        if progress.idle_s > wanted.wait_s:
            raise NotDone(
                f"{kind} of {namespace} waits at {found['step']}: {found['waiting']}. The same command goes on; "
                "`heliograph dr cancel` gives up"
            )
        if found["waiting"]:
            progress.stop.wait(rest.pause_s)
        if progress.stop.is_set():
            raise Stopped(found)
        found = _advanced(rest, namespace, kind, progress)


def _advanced(rest: Rest, namespace: str, kind: str, progress: StepProgress) -> dict[str, Any]:
    """Also one that has ended, as it is. Raises NotDone where another one was begun; ConfigError."""
    found: dict[str, Any] = rest.post(f"{dr_path(namespace)}/operations/advance", through_s=_THROUGH_S)
    if found["id"] != progress.begun(kind):
        raise NotDone(
            f"the {kind} of {namespace} was given up: a {found['kind']} to {found['target']} was begun "
            f"(`heliograph dr status {namespace}`)"
        )
    return found


def operate(rest: Rest, output: Output, wanted: OperationRequest, *, show_all: bool = True) -> dict[str, Any]:
    """Carries it out and prints it, or its plan. show_all: print the whole operation as JSON, where that was asked
    for.
    """
    if wanted.dry_run:
        found = planned(rest, wanted)
        if output.json:
            output.show(found)
        else:
            say_cost(found)
        return found
    found = carried_out(rest, wanted, StepProgress(output))
    if not output.json:
        done(
            f"{wanted.kind} of {wanted.namespace} to {found['target']}: {found['state']}, "
            f"{(found['ended_ms'] - found['begun_ms']) / 1000:.1f} s"
        )
    elif show_all:
        output.show(found)
    return found


def rejoin_wanted(rest: Rest, wanted: OperationRequest) -> bool:
    """Whether a failback has to rejoin the region first: it has a tail, and the switchover to it has not begun."""
    status, to = rest.get(dr_path(wanted.namespace)), wanted.to
    under_way, away = status.get("operation") or {}, status.get("to_rejoin")
    switching = (
        under_way.get("kind") == "switchover" and under_way["state"] == "running" and to in ("", under_way["target"])
    )
    tail = away is None or (to in away if to else bool(away))  # None: of an earlier version, which does not say
    return tail and (wanted.dry_run or not switching)  # else the rejoin is done, or the region was left in order


def echo(output: Output, text: str) -> None:
    """Says how far something is: beside the JSON, where that was asked for."""
    typer.echo(text, err=output.json)


def say_configuration(found: dict[str, Any]) -> None:
    """Says why what is shown may be old, where it may."""
    if found.get("configuration"):
        typer.echo(found["configuration"], err=True)


def say_cost(plan: dict[str, Any]) -> None:
    cost = plan["cost"]
    typer.echo(
        f"{plan['kind']} of {plan['namespace']} from {plan['source']} to {plan['target']} (active: {cost['active']}, "
        f"epoch {cost['epoch']})"
    )
    for step, meaning in cost["steps"].items():
        typer.echo(f"  {step}: {meaning}")
    say_configuration(cost)
    for side in ("source", "target"):
        found = cost[side]
        if "unreachable" in found:
            typer.echo(f"  {found['region']} does not answer: {found['unreachable']}")
        else:
            what = f"are not in {plan['target']} yet" if side == "source" else "are known to be missing here"
            typer.echo(
                f"  {found['region']} says: {found['messages']} messages ({found['bytes']} bytes) "
                f"{what}{_say_silence(found)}"
            )
    if risk := cost.get("at_risk"):
        typer.echo(f"  at risk: {risk['text']}")
    if cost.get("unheard"):
        typer.echo(f"  it is not effective yet, whoever has not heard of it takes messages: {cost['unheard']}")
    for region, topics in cost.get("cut_off", {}).items():
        typer.echo(f"  {plan['target']} has no link to {region} ({len(topics)} topics): what it takes would wait there")


def _say_silence(found: dict[str, Any]) -> str:
    """What a side's numbers do not cover: the time in which nothing was heard, and topics never heard of."""
    text = f", nothing heard for {found['silent_s']:.1f} s" if found.get("silent_s") else ""
    if unheard := found.get("unheard"):
        since = f" since they were loaded, {found['unheard_s']:.1f} s ago" if found.get("unheard_s") else ""
        text += f"; of {len(unheard)} topics nothing was heard{since}"
    return text
