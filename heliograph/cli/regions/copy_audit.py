"""`audit`: whether a region's copy of a topic is what was published, and what was put right."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, table
from heliograph.model.admin_paths import OWN_TOPIC, path_of
from heliograph.model.errors import ConfigError

_POLL_S = 0.2


def register(app: typer.Typer) -> None:
    add(app, audit=audit)


def audit(
    rest: Rest,
    output: Output,
    topic: Annotated[str, typer.Argument(help="persistent://tenant/namespace/topic, or one partition of it.")],
    now: Annotated[bool, typer.Option("--now", help="Begin a pass, and wait until it has ended.")] = False,
    wait_s: Annotated[float, typer.Option("--wait", help="How long to wait for that, in seconds.", min=1)] = 600,
) -> None:
    """Compare a region's copy of a topic with where each message was first published. Exit code 1 where something is
    left that is not repaired.
    """
    path = path_of(f"{OWN_TOPIC}/audit", topic=topic)
    answer = _pass(rest, path, wait_s) if now else rest.get(path)
    if output.json:
        output.show(answer)
    else:
        _print(answer)
    report = answer["report"]
    raise typer.Exit(1 if report is not None and (report["left"] or report["error"]) else 0)


def _pass(rest: Rest, path: str, wait_s: float) -> Any:
    before = rest.get(path)["report"]
    rest.post(path)
    deadline = time.monotonic() + wait_s
    while (answer := rest.get(path))["running"] or answer["report"] == before:
        if time.monotonic() > deadline:
            raise ConfigError(f"the pass has not ended in {wait_s:g} s; it goes on: ask again without --now")
        time.sleep(_POLL_S)
    return answer


def audit_ended(running: Callable[[], bool], wait_s: float) -> bool:
    """False: it goes on still after so long."""
    deadline = time.monotonic() + wait_s
    while running():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _print(answer: Any) -> None:
    report = answer["report"]
    if report is None:
        state = (
            "a pass is under way" if answer["running"] else "no pass yet since its broker loaded it; --now begins one"
        )
        typer.echo(f"{answer['topic']} in {answer['region']}: {state}")
        return
    ranges = f"{report['ranges']} ranges compared" + (
        f", {report['unchecked_ranges']} of them without an answer" if report["unchecked_ranges"] else ""
    )
    for region, count in report.get("gone_ranges", {}).items():
        typer.echo(
            f"{count} ranges that {region} published, which is gone: compared among the regions that are left, nobody "
            "else can tell"
        )
    for region, count in report.get("unchecked_of", {}).items():
        typer.echo(
            f"{count} ranges that only {region} can tell of: it did not answer, cannot read them, or has deleted them"
        )
        typer.echo(f"  (where the region itself is gone for good: heliograph clusters delete {region})")
    found, repaired = sum(report["found"].values()), sum(report["repaired"].values())
    typer.echo(f"{answer['topic']} in {answer['region']}: {report['entries']} entries read, {ranges}")
    typer.echo(f"{found} wrong, {repaired} repaired, {report['left']} left")
    if report["error"]:
        typer.echo(f"the pass ended before its time and comes again: {report['error']}")
    if report["findings"]:
        rows = [
            (f["fault"], f["coordinate"] or "-", _position(f["position"]), "repaired" if f["repaired"] else f["left"])
            for f in report["findings"]
        ]
        table(("fault", "coordinate", "position here", "what became of it"), rows)


def _position(found: list[int] | None) -> str:
    return "-" if found is None else f"{found[0]}:{found[1]}"
