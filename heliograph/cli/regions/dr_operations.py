"""One operation of one namespace, as a command carries it out: asked for step after step, until it is done.

Is: beginning it, or going on with it; its plan and its progress for people. Isn't: a command, or a step: those are the
brokers'.
Invariants: whatever ends it, the same call goes on with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import typer

from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, done
from heliograph.model.admin_paths import dr_path
from heliograph.model.errors import ConfigError

_THROUGH_S = 2
"""A broker goes on with an operation for so long before it answers how far that is."""


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


def planned(rest: Rest, namespace: str, kind: str, to: str) -> dict[str, Any]:
    """What it would do and cost; nothing is changed."""
    found: dict[str, Any] = rest.post(f"{dr_path(namespace)}/operations", {"kind": kind, "to": to, "dry_run": True})
    return found


def carried_out(
    rest: Rest,
    namespace: str,
    kind: str,
    to: str,
    wait_s: float,
    progress: StepProgress,
    *,
    force: bool = False,
    planned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The operation, done or cancelled. wait_s: without a step. planned: what a plan says of the namespace; nothing is
    begun where that is otherwise by now. Raises NotDone, Stopped, ConfigError.
    """
    path, asked = f"{dr_path(namespace)}/operations", {"kind": kind, "to": to, "dry_run": False, **(planned or {})}
    if force:
        asked["force"] = True
    found = _advanced(rest, namespace, kind, progress) if progress.begun(kind) else rest.post(path, asked)
    while True:
        progress.answered(kind, found)
        if found["state"] != "running":
            return found
        progress.waits(found)
        if progress.idle_s > wait_s:
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


def operate(
    rest: Rest,
    output: Output,
    namespace: str,
    kind: str,
    to: str,
    dry_run: bool,
    wait_s: float,
    *,
    show_all: bool = True,
    force: bool = False,
) -> dict[str, Any]:
    """Carries it out and prints it, or its plan. show_all: print the whole operation as JSON, where that was asked
    for.
    """
    if dry_run:
        found = planned(rest, namespace, kind, to)
        if output.json:
            output.show(found)
        else:
            say_cost(found)
        return found
    found = carried_out(rest, namespace, kind, to, wait_s, StepProgress(output), force=force)
    if not output.json:
        done(
            f"{kind} of {namespace} to {found['target']}: {found['state']}, "
            f"{(found['ended_ms'] - found['begun_ms']) / 1000:.1f} s"
        )
    elif show_all:
        output.show(found)
    return found


def rejoin_wanted(rest: Rest, namespace: str, to: str, *, dry_run: bool = False) -> bool:
    """Whether a failback has to rejoin the region first: it has a tail, and the switchover to it has not begun."""
    status = rest.get(dr_path(namespace))
    under_way, away = status.get("operation") or {}, status.get("to_rejoin")
    switching = (
        under_way.get("kind") == "switchover" and under_way["state"] == "running" and to in ("", under_way["target"])
    )
    tail = away is None or (to in away if to else bool(away))  # None: of an earlier version, which does not say
    return tail and (dry_run or not switching)  # else the rejoin is done, or the region was left in order


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
