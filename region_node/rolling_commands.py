"""The commands `rolling restart` and `rolling upgrade`: every process of a region once, one at a time, under load.

Is: the order, the waiting for health between two processes, and what a person sees. Isn't: stopping or starting (the supervisor, which is asked).
Invariants: a process is stopped only while all others of the region are well: bookies registered and writable, brokers registered; balancing is paused
for as long as it lasts, and no longer; what is done is noted in the data folder, so that a run that was interrupted goes on where it was.
Source: docs/operating/scaling.md, "Rolling restart and upgrade".
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.model.errors import ConfigError
from region_node.instance.control import call

Data = Annotated[Path, typer.Option("--data", help="The data folder of the instance.", show_default=True)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say in which order, and do nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Region = Annotated[str, typer.Option("--region", help="The region's name; it may be left out where there is one only.")]
Patience = Annotated[float, typer.Option("--wait", help="Seconds to wait for the region to be well between two processes.", min=1, max=3600)]
Token = Annotated[str, typer.Option("--token", envvar="HELIOGRAPH_TOKEN", help="A super user's token, where the brokers want one.")]
_DEFAULT_DATA = Path(".heliograph")
_POLL_S = 0.2
_PAUSE_S = 600.0
_RESTART_S = 120.0


def register(app: typer.Typer) -> None:
    rolling = typer.Typer(help="Restart or upgrade all processes of a region, one at a time, while clients work.", no_args_is_help=True)
    rolling.command()(restart)
    rolling.command()(upgrade)
    app.add_typer(rolling, name="rolling")


def restart(
    region: Region = "",
    data: Data = _DEFAULT_DATA,
    wait: Patience = 120.0,
    token: Token = "",
    dry_run: DryRun = False,
    json_output: Json = False,
) -> None:
    """Restart every process of a region, one at a time: metadata, bookies, brokers. Interrupted, it goes on where it was when it is given again."""
    _roll(data.resolve(), region, "", wait, token, dry_run, json_output)


def upgrade(
    python: Annotated[Path, typer.Option("--python", help="The interpreter of the environment in which the other version is installed.", exists=True)],
    region: Region = "",
    data: Data = _DEFAULT_DATA,
    wait: Patience = 120.0,
    token: Token = "",
    dry_run: DryRun = False,
    json_output: Json = False,
) -> None:
    """Start every process of a region again with another version, one at a time; back by the same command with the earlier interpreter."""
    _roll(data.resolve(), region, str(python.absolute()), wait, token, dry_run, json_output)


def _roll(data: Path, region: str, python: str, wait_s: float, token: str, dry_run: bool, json_output: bool) -> None:
    regions = call(data, "status")["regions"]
    if not region and len(regions) == 1:
        region = next(iter(regions))
    if region not in regions:
        wrong = f"there is no region {region!r}" if region else "it is not said which region"
        raise ConfigError(f"{wrong}: give one of {', '.join(regions)} by --region")
    names = [row["name"] for row in regions[region]["processes"]]
    notes = Notes(data / f"rolling-{region}.json", python)
    left = [name for name in names if name not in notes.done]
    if dry_run:
        typer.echo(json.dumps({"region": region, "order": left, "done": notes.done}) if json_output else f"would restart, in this order: {', '.join(left)}")
        return
    console = Console(stderr=True)
    if notes.done and not json_output:
        console.print(f"an earlier run stopped after {notes.done[-1]}: going on, {len(left)} of {len(names)} processes are left")
    admins = [f"http://127.0.0.1:{row['ports']['admin']}" for row in regions[region]["processes"] if "broker" in row["role"]]
    began = time.monotonic()
    try:
        for at, name in enumerate(left):
            if not json_output:
                console.print(f"[{len(names) - len(left) + at + 1}/{len(names)}] {name}")
            _until_well(admins, token, wait_s, f"before {name} is stopped")
            call(data, "restart", timeout_s=_RESTART_S, process=name, python=python)
            _until_well(admins, token, wait_s, f"after {name} was started again")
            notes.add(name)
    finally:
        _resume(admins, token)
    notes.path.unlink(missing_ok=True)
    took_s = round(time.monotonic() - began, 1)
    answer = {"region": region, "restarted": left, "took_s": took_s}
    typer.echo(json.dumps(answer) if json_output else f"{region}: {len(left)} processes in {took_s:.0f} s")


class Notes:
    """What an interrupted run has done already; another interpreter begins anew."""

    def __init__(self, path: Path, python: str) -> None:
        self.path, self._python, self.done = path, python, list[str]()
        try:
            noted = json.loads(path.read_text())
            if noted["python"] == python:
                self.done = list(noted["done"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or cut short: whatever is restarted twice comes to no harm
            return

    def add(self, name: str) -> None:
        self.done.append(name)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"python": self._python, "done": self.done}))
        shutil.move(fresh, self.path)


def _until_well(admins: list[str], token: str, wait_s: float, when: str) -> None:
    """Raises ConfigError with what is wrong, where that does not end."""
    deadline = time.monotonic() + wait_s
    while wrong := _wrong(admins, token):
        if time.monotonic() > deadline:
            raise ConfigError(f"the region was not well within {wait_s:.0f} s {when}: {wrong}; put that right, then give the command again: it goes on here")
        time.sleep(_POLL_S)


def _wrong(admins: list[str], token: str) -> str:
    """What keeps the next process from being stopped; "": nothing. Says so too that balancing is paused, anew each time."""
    try:
        for admin in admins:
            _ask(f"{admin}/admin/v2/brokers/health", token)
        _ask(f"{admins[0]}/heliograph/v1/balance/pause?seconds={_PAUSE_S:.0f}&by=rolling", token, "POST")
        status = _ask(f"{admins[0]}/heliograph/v1/status", token)
        bookies = _ask(f"{admins[0]}/heliograph/v1/bookies", token)
    except (OSError, ValueError) as error:
        return str(error)
    if len(status["brokers"]) < len(admins):
        return f"{len(status['brokers'])} of {len(admins)} brokers are registered"
    away = [row["id"] for row in bookies if not row["registered"]]
    return f"bookie {', '.join(away)} is away" if away else ""


def _resume(admins: list[str], token: str) -> None:
    for admin in admins:
        try:
            _ask(f"{admin}/heliograph/v1/balance/pause", token, "DELETE")
        except (OSError, ValueError):  # then another broker; and the pause ends by itself
            continue
        return


def _ask(url: str, token: str, method: str = "GET") -> Any:
    """The answer, of whatever kind. Raises OSError with the URL in it."""
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.code} {error.reason}") from None
    except OSError as error:
        raise OSError(f"{url}: {error}") from None
    return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
