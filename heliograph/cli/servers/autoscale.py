"""The command `autoscale`: looks at a region's measures, and runs or calls what the operator gave where a rule has come
true.

Is: reading the measures from the brokers, the clock, the hooks. Isn't: the decision
(`heliograph.cli.servers.scaling_rules`), or a way to make machines: that is the operator's command.
Invariants: one hook at a time, each with a time limit; a hook that fails is said and tried again after the rule's rest;
brokers that do not answer are no measure, so that an outage scales nothing.
Source: docs/operating/scaling.md, "Scale by itself".
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from heliograph.cli.groups import add
from heliograph.cli.rest import Rest
from heliograph.cli.servers.scaling_rules import METRIC, Scaler, ScalingRule, rules_of
from heliograph.model.errors import ConfigError

_HOOK_S = 300.0
_ASK_S = 10.0


def register(app: typer.Typer) -> None:
    add(app, autoscale=autoscale)


def autoscale(
    rest: Rest,
    rules: Annotated[
        Path, typer.Argument(help="A TOML file of [[rule]] tables; see docs/operating/scaling.md.", exists=True)
    ],
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600)] = 10.0,
    looks: Annotated[int, typer.Option(help="End after so many; 0: never.", min=0)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run or called, and do not.")] = False,
) -> None:
    """Watch a region, and run a command or call a URL of yours where a rule has come true: to add or remove brokers or
    bookies.

    Prints one JSON line for each rule that fires.
    """
    scaler, done, patient = Scaler(rules_of(rules.read_text())), 0, rest.at(timeout_s=_ASK_S)
    while True:
        for rule, value in scaler.look(measures(patient, scaler), time.monotonic()):
            outcome = "dry run" if dry_run else _fire(rule, value)
            typer.echo(json.dumps({"rule": rule.name, "tier": rule.tier, "value": round(value, 4), "outcome": outcome}))
        done += 1
        if looks and done >= looks:
            return
        time.sleep(every)


def measures(rest: Rest, scaler: Scaler) -> dict[str, list[float]]:
    """What the rules ask for. What cannot be had is left out, and said."""
    found: dict[str, list[float]] = {}
    wanted = {rule.measure for rule in scaler.rules}
    try:
        if any(name.startswith("broker.") for name in wanted):
            brokers = rest.get("/heliograph/v1/balance")["brokers"]
            found |= {
                "broker.load": [row["load"] for row in brokers],
                "broker.bundles": [row["bundles"] for row in brokers],
            }
        if any(name.startswith("bookie.") for name in wanted):
            bookies = [row for row in rest.get("/heliograph/v1/bookies") if row["registered"]]
            found["bookie.free_bytes"] = [row["free_bytes"] for row in bookies if row["free_bytes"]]
            found["bookie.writable"] = [float(row["writable"]) for row in bookies]
        names = {name.removeprefix(METRIC) for name in wanted if name.startswith(METRIC)}
        if names:
            for record in rest.get("/heliograph/v1/status")["brokers"]:
                for name, value in _samples(rest.at(record["admin_url"]).get("/metrics"), names):
                    found.setdefault(METRIC + name, []).append(value)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        typer.echo(json.dumps({"error": f"the region's measures are not to be had: {error}"}), err=True)
        return {}
    return found


def _samples(text: str, names: set[str]) -> list[tuple[str, float]]:
    found = []
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name in names:
            found.append((name, float(line.rpartition(" ")[2])))
    return found


def _fire(rule: ScalingRule, value: float) -> str:
    said = {"HELIOGRAPH_RULE": rule.name, "HELIOGRAPH_TIER": rule.tier, "HELIOGRAPH_VALUE": str(value)}
    try:
        if rule.run:
            ended = subprocess.run(
                rule.run, env={**os.environ, **said}, timeout=_HOOK_S, capture_output=True, text=True
            )
            return (
                "done"
                if ended.returncode == 0
                else f"the command ended with {ended.returncode}: {ended.stderr.strip()[-200:]}"
            )
        body = json.dumps({"rule": rule.name, "tier": rule.tier, "value": value}).encode()
        with urllib.request.urlopen(
            urllib.request.Request(rule.call, data=body, headers={"Content-Type": "application/json"}), timeout=_HOOK_S
        ):
            return "done"
    except subprocess.TimeoutExpired:
        return f"the command did not end within {_HOOK_S:.0f} s"
    except OSError as error:
        return f"it could not be reached: {error}"
