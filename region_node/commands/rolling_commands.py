"""The commands `rolling restart` and `rolling upgrade`: every process of a region once, one at a time, under load.

Is: the order, the waiting for health between two processes, and what a person sees. Isn't: stopping or starting (the
supervisor, which is asked).
Invariants: a process is stopped only while all others of the region run and are registered, a bookie only while enough
others take writes and no ledger lacks a copy; one run a region at a time; balancing is paused for as long as it lasts,
and no longer; what is done is noted in the data folder, so that a run that was interrupted goes on where it was: within
an hour, by the same release, and for processes that still run as they were started then; else it begins anew, for
whatever is restarted twice comes to no harm. What is down already is started first, as nobody is harmed by that.
Source: docs/operating/scaling.md, "Rolling restart and upgrade".
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from heliograph.cli.groups import add, group
from heliograph.cli.show import Output
from heliograph.cli.signing_in.signed_in import authorize
from heliograph.model.errors import ConfigError
from region_node.commands.instance_options import DEFAULT_DATA, Data, Region, region_of
from region_node.instance.control import STARTED_S, call

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say in which order, and do nothing.")]
Patience = Annotated[
    float,
    typer.Option("--wait", help="Seconds to wait for the region to be well between two processes.", min=1, max=3600),
]
Token = Annotated[
    str, typer.Option("--token", envvar="HELIOGRAPH_TOKEN", help="A super user's token, where the brokers want one.")
]
_POLL_S = 0.2
_PAUSE_S = 600.0
_ASK_S = 30.0
_NOTES_S = 3600.0
"""A run that was interrupted longer ago is another one: its reason may be another, too."""
_RELEASE = (
    "import importlib.metadata as m; print([(d.name, d.version, d.read_text('RECORD')) for d in m.distributions() if "
    "'heliograph' in d.name.lower()])"
)
_COPIES = 2
"""Bookies that must take writes while another one is away, where there are so many."""


def register(app: typer.Typer) -> None:
    rolling = group(app, "rolling", "Restart or upgrade all processes of a region, one at a time, while clients work.")
    add(rolling, restart=restart, upgrade=upgrade)


def restart(
    region: Region = "",
    data: Data = DEFAULT_DATA,
    wait: Patience = 120.0,
    token: Token = "",
    dry_run: DryRun = False,
    *,
    output: Output,
) -> None:
    """Restart every process of a region, one at a time: metadata, bookies, brokers. Interrupted, it goes on where it
    was when it is given again.
    """
    _roll(data.resolve(), region, "", wait, token, dry_run, output)


def upgrade(
    python: Annotated[
        Path,
        typer.Option("--python", help="The interpreter of an environment with another version.", exists=True),
    ],
    region: Region = "",
    data: Data = DEFAULT_DATA,
    wait: Patience = 120.0,
    token: Token = "",
    dry_run: DryRun = False,
    *,
    output: Output,
) -> None:
    """Start every process of a region again with another version, one at a time; back by the same command with the
    earlier interpreter.
    """
    _roll(data.resolve(), region, str(python.absolute()), wait, token, dry_run, output)


def _roll(data: Path, region: str, python: str, wait_s: float, token: str, dry_run: bool, output: Output) -> None:
    region, found = region_of(data, region)
    rows = found["processes"]
    health = Health(
        data,
        region,
        {row["name"]: f"http://127.0.0.1:{row['ports']['admin']}" for row in rows if "broker" in row["role"]},
        token,
    )
    with contextlib.nullcontext() if dry_run else _alone(data, region):
        running = {row["name"]: int(row["pid"] or 0) for row in rows}
        notes, emptied = (
            Notes(data / f"rolling-{region}.json", python, release_of(python), running, time.time()),
            health.emptied(),
        )
        down = [row["name"] for row in rows if not row["ready"] and row["name"] not in emptied]
        left = [*down, *(row["name"] for row in rows if row["ready"] and row["name"] not in notes.done)]
        if dry_run:
            answer = {"region": region, "order": left, "done": notes.done}
            output.told(answer, f"would restart, in this order: {', '.join(left)}")
            return
        console, began = Console(stderr=True, quiet=output.json), time.monotonic()
        if notes.done:
            console.print(
                f"an earlier run stopped after {notes.done[-1]}: going on, {len(left)} of {len(rows)} processes are "
                "left"
            )
        try:
            for at, name in enumerate(left):
                console.print(f"[{len(rows) - len(left) + at + 1}/{len(rows)}] {name}")
                if name not in down:
                    health.wait(wait_s, f"before {name} is stopped", stopped=name)
                pid = int(call(data, "restart", timeout_s=STARTED_S, process=name, python=python).get("pid") or 0)
                if name not in down or name == left[-1]:
                    health.wait(wait_s, f"after {name} was started again")
                notes.add(name, pid)
        finally:
            health.resume()
        notes.path.unlink(missing_ok=True)
    took_s = round(time.monotonic() - began, 1)
    done = {"region": region, "restarted": left, "took_s": took_s}
    output.told(done, f"{region}: {len(left)} processes in {took_s:.0f} s")


@contextlib.contextmanager
def _alone(data: Path, region: str) -> Iterator[None]:
    """Raises ConfigError where another run is under way; two would stop two processes at once."""
    with (data / f"rolling-{region}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"another rolling restart or upgrade of {region} is under way: let it end, or interrupt it; then give "
                "the command again"
            ) from error
        yield


def release_of(python: str) -> str:
    """Which files of this program the interpreter has, as one word: another release in the same environment is another
    one. "": nobody can tell.
    """
    if not python:
        return ""
    try:
        told = subprocess.run([python, "-c", _RELEASE], capture_output=True, timeout=_ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return hashlib.sha256(told).hexdigest()


class Notes:
    """What an interrupted run has done already. running: the process ids as they are now; now: wall clock, seconds."""

    def __init__(self, path: Path, python: str, release: str, running: Mapping[str, int], now: float) -> None:
        self.path, self._run = path, {"python": python, "release": release}
        self._began, self._pids = now, dict[str, int]()
        try:
            noted = json.loads(path.read_text())
            if {key: noted[key] for key in self._run} == self._run and 0 <= now - noted["began"] < _NOTES_S:
                self._began = noted["began"]
                self._pids = {name: pid for name, pid in noted["done"].items() if running.get(name) == pid}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, of another version, or cut short
            return

    @property
    def done(self) -> list[str]:
        return list(self._pids)

    def add(self, name: str, pid: int) -> None:
        self._pids[name] = pid
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({**self._run, "began": self._began, "done": self._pids}))
        shutil.move(fresh, self.path)


class Health:
    """Asks whether one region is well: its supervisor on this machine, and its brokers. admins: the admin URL of each
    broker process; token: sent to them.
    """

    def __init__(self, data: Path, region: str, admins: dict[str, str], token: str) -> None:
        self._data, self._region, self._admins, self._token = data, region, admins, token

    def wait(self, wait_s: float, when: str, stopped: str = "") -> None:
        """Until the region is well. stopped: who is to be stopped then. Raises ConfigError with what is wrong, where
        that does not end.
        """
        deadline = time.monotonic() + wait_s
        while wrong := self._wrong(stopped):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the region was not well within {wait_s:.0f} s {when}: {wrong}; put that right, then give the "
                    "command again: it goes on here"
                )
            time.sleep(_POLL_S)

    def _wrong(self, stopped: str) -> str:
        """What is wrong; "": nothing. Says so too that balancing is paused, anew each time."""
        rows = call(self._data, "status")["regions"][self._region]["processes"]
        try:
            bookies = {row["id"]: row for row in self._ask("/heliograph/v1/bookies")}
            wanted = [row for row in rows if not (row["name"] in bookies and bookies[row["name"]]["draining"])]
            if down := [row["name"] for row in wanted if not row["ready"]]:
                return f"{', '.join(down)} is not ready"
            for broker in self._admins:
                self._ask("/admin/v2/brokers/health", broker=broker)
            self._ask(f"/heliograph/v1/balance/pause?seconds={_PAUSE_S:.0f}&by=rolling", "POST")
            status = self._ask("/heliograph/v1/status")
        except (OSError, ValueError) as error:
            return str(error)
        if len(status["brokers"]) < len(self._admins):
            return f"{len(status['brokers'])} of {len(self._admins)} brokers are registered"
        needed = [row["name"] for row in wanted if "bookie" in row["role"]]
        if away := [name for name in needed if name not in bookies or not bookies[name]["registered"]]:
            return f"bookie {', '.join(away)} is away"
        if stopped not in needed:
            return ""
        takers = [name for name, row in bookies.items() if row["writable"] and name != stopped]
        if len(takers) < min(_COPIES, len(needed) - 1):
            return f"of the other bookies only {', '.join(takers) or 'none'} takes writes: `heliograph bookies list`"
        return f"{repairs} ledgers lack a copy, and are being repaired" if (repairs := status.get("repairs", 0)) else ""

    def emptied(self) -> list[str]:
        """Bookies whose copies are, or were, moved to others: those that are down stay down."""
        try:
            return [row["id"] for row in self._ask("/heliograph/v1/bookies") if row["draining"]]
        except (OSError, ValueError):
            return []

    def resume(self) -> None:
        with contextlib.suppress(OSError, ValueError, ConfigError):  # then the pause ends by itself
            self._ask("/heliograph/v1/balance/pause", "DELETE")

    def _ask(self, path: str, method: str = "GET", broker: str = "") -> Any:
        """The answer of a broker, or of the first that answers. Raises OSError with the URL in it."""
        trouble = OSError(f"region {self._region} has no broker")
        for name in [broker] if broker else self._admins:
            try:
                return _ask(self._admins[name] + path, self._token, method)
            except OSError as error:
                trouble = error
        raise trouble


def _ask(url: str, token: str, method: str = "GET") -> Any:
    """The answer, of whatever kind. Raises OSError with the URL in it."""
    admin = "/".join(url.split("/", 3)[:3])
    request = authorize(urllib.request.Request(url, method=method), admin, token)
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.code} {error.reason}") from None
    except OSError as error:
        raise OSError(f"{url}: {error}") from None
    return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()
