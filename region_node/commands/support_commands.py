"""`support dump`: the state of an instance in one file that may be handed to somebody else.

Is: what is asked and read, by whom, and how each piece is kept free of secrets; what could not be had is named in the
file, and the rest is there.
Isn't: anything of a message: ledgers, journals, metadata tables, and key files are never opened.
Invariants: every text goes through `redaction` before it is written; the file appears whole or not at all, readable by
its owner alone.
The archive: heliograph-support/{manifest.json, versions.json, instance/…, regions/URL/…, metrics/…, topics/…,
settings/…, logs/…}.
Source: docs/operating/logs.md.
"""

from __future__ import annotations

import io
import json
import platform
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from heliograph import __version__
from heliograph.cli.groups import add, group
from heliograph.cli.rest import Rest, TokenOption
from heliograph.model.errors import ConfigError
from region_node.instance.control import call
from region_node.instance.plan.layout import HOST, InstancePlan, load_plan
from region_node.runtime import redaction

FORMAT = 1
_ROOT = "heliograph-support"
_LINE_MAX = 16 * 1024
"""Longer lines of a log are cut."""
_PIECE_CHARS = 64 << 20
"""Of what one address answers."""
_STATUS_TIMEOUT_S = 30.0
_ASKED = {
    "health": "/heliograph/v1/health",
    "status": "/heliograph/v1/status?all=true",
    "configuration": "/heliograph/v1/config/status",
    "bookies": "/heliograph/v1/bookies",
    "balance": "/heliograph/v1/balance",
    "audits": "/heliograph/v1/audits",
    "conflicts": "/heliograph/v1/conflicts",
    "disaster-recovery": "/heliograph/v1/dr",
    "brokers": "/admin/v2/brokers",
    "leader": "/admin/v2/brokers/leaderBroker",
    "clusters": "/admin/v2/clusters",
    "load": "/admin/v2/broker-stats/load-report",
}
_TOPICS = "/admin/v2/broker-stats/topics"
"""Each broker is asked for this by itself: it answers for its own topics alone."""

Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write, such as support.tar.gz.")]
Data = Annotated[
    Path,
    typer.Option(
        "--data", help="The data folder of an instance on this machine: says where everything is.", show_default=True
    ),
]
Admin = Annotated[
    list[str],
    typer.Option(
        "--admin", envvar="HELIOGRAPH_ADMIN", help="Admin URL of a broker to ask; may be given once a region."
    ),
]
Settings = Annotated[
    list[Path], typer.Option("--settings", help="A settings file, or a folder of them; may be repeated.")
]
Logs = Annotated[list[Path], typer.Option("--logs", help="A log file, or a folder of *.log; may be repeated.")]
LogKb = Annotated[int, typer.Option("--log-kb", help="How much of the end of each log.", min=1, max=1_000_000)]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")]


def register(app: typer.Typer) -> None:
    add(group(app, "support", "What to send when you ask for help."), dump=dump)


def dump(
    output: Output,
    data: Data = Path(".heliograph"),
    admin: Admin = [],  # noqa: B006  typer copies it
    settings: Settings = [],  # noqa: B006
    logs: Logs = [],  # noqa: B006
    log_kb: LogKb = 1024,
    token: TokenOption = "",
    force: Force = False,
) -> None:
    """Gather the state of an instance into one file: status, links, topics, metrics, settings, the ends of the logs,
    versions.

    No payload of a message is read. Tokens, passwords, and keys are replaced by ***, also inside logs; names of topics,
    tenants, hosts, and roles stay: look before you hand it on (`tar xzf FILE`). What cannot be had, because a broker is
    down, is listed in manifest.json; the rest is gathered.

    On this machine:  heliograph support dump -o support.tar.gz --data .heliograph

    On a host:  heliograph support dump -o support.tar.gz --admin http://HOST:8080 --settings /opt/heliograph/etc --logs
    /opt/heliograph/log
    """
    if output.exists() and not force:
        raise ConfigError(f"{output} is there already: give another name, or --force")
    plan = load_plan(data) if (data / "instance.json").exists() else None
    if plan is None and not (admin or settings or logs):
        raise ConfigError(
            f"{data} is no data folder of an instance: give one with --data, or say with --admin, --settings, and "
            "--logs where things are"
        )
    part = output.with_name(output.name + ".part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with Console(stderr=True).status("gathering") as shown, tarfile.open(part, "w:gz") as archive:
            made = _Archive(archive, lambda text: shown.update(f"gathering {text}"), secret=token)
            _gather(made, plan, data, list(admin), list(settings), list(logs), log_kb, token)
        part.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror}): choose another place with -o") from error
    finally:
        part.unlink(missing_ok=True)
    missing = f"; {len(made.missing)} could not be had: see manifest.json in it" if made.missing else ""
    typer.echo(f"{output}: {len(made.files)} pieces, {output.stat().st_size} bytes{missing}")
    for name, why in made.missing.items():
        typer.echo(f"  without {name}: {why}", err=True)


class _Archive:
    """What is written, and what is not and why. secret: the caller's own token, hidden wherever it comes up."""

    def __init__(self, archive: tarfile.TarFile, say: Callable[[str], None], *, secret: str = "") -> None:
        self._archive, self._say, self._secret = archive, say, secret
        self.files: dict[str, int] = {}
        self.missing: dict[str, str] = {}

    def piece(self, name: str, get: Callable[[], Any]) -> Any:
        """Writes what `get` returns, a text or a JSON value, and returns it; None where it cannot be had."""
        self._say(name)
        try:
            value = get()
        except (ConfigError, OSError, ValueError) as error:
            self.missing[name] = self._hide(redaction.text(str(error)))
            return None
        if isinstance(value, str):
            self._write(name, _clean_lines(value))
        else:
            self._write(name, json.dumps(redaction.Beginning(value, _PIECE_CHARS).value, indent=1))
        return value

    def _write(self, name: str, text: str) -> None:
        content = self._hide(text).encode()
        entry = tarfile.TarInfo(f"{_ROOT}/{name}")
        entry.size, entry.mode, entry.mtime = len(content), 0o600, int(datetime.now(UTC).timestamp())
        self._archive.addfile(entry, io.BytesIO(content))
        self.files[name] = len(content)

    def _hide(self, text: str) -> str:
        return text.replace(self._secret, redaction.HIDDEN) if self._secret else text


def _clean_lines(text: str) -> str:
    cut = (
        line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]} … {len(line) - _LINE_MAX} characters more"
        for line in text.splitlines()
    )
    return redaction.text("\n".join(cut)) + "\n"


def _gather(
    made: _Archive,
    plan: InstancePlan | None,
    data: Path,
    admin: list[str],
    settings: list[Path],
    logs: list[Path],
    log_kb: int,
    token: str,
) -> None:
    made.piece("versions.json", _versions)
    if plan is not None:
        made.piece("instance/plan.json", lambda: asdict(plan))
        made.piece("instance/status.json", lambda: call(data.resolve(), "status", timeout_s=_STATUS_TIMEOUT_S))
        admin = admin or [f"http://{HOST}:{region.admin_port}" for region in plan.regions]
        settings, logs = settings or [data / "settings"], logs or [data / "logs"]
        for node in plan.nodes():
            for kind in ("http", "admin"):
                if (port := node.ports.get(kind, 0)) > 0:
                    asked = Rest(f"http://{HOST}:{port}", token if kind == "admin" else "")
                    made.piece(f"metrics/{node.name}.txt", partial(asked.get, "/metrics"))
                    if kind == "admin":
                        made.piece(f"topics/{node.name}.json", partial(asked.get, _TOPICS))
    for url in admin:
        where = urlsplit(url).netloc.rpartition("@")[2].replace(":", "-")
        rest = Rest(url, token)
        for name, path in _ASKED.items():
            made.piece(f"regions/{where}/{name}.json", partial(rest.get, path))
        if plan is None:
            made.piece(f"metrics/{where}.txt", partial(rest.get, "/metrics"))
            made.piece(f"topics/{where}.json", partial(rest.get, _TOPICS))
    for file in _files(settings, "*.json", made):
        made.piece(f"settings/{file.name}", partial(_json, file))
    for file in _files(logs, "*.log", made):
        made.piece(f"logs/{file.name}", partial(_tail, file, log_kb * 1024))
    made.piece(
        "manifest.json",
        lambda: {"format": FORMAT, "made": datetime.now(UTC).isoformat(timespec="seconds"), **_said(made)},
    )


def _said(made: _Archive) -> dict[str, Any]:
    return {"files": dict(made.files), "missing": dict(made.missing)}


def _versions() -> dict[str, Any]:
    packages = {found.name: found.version for found in distributions()}
    return {
        "heliograph": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _files(places: list[Path], pattern: str, made: _Archive) -> Iterator[Path]:
    for place in places:
        found = sorted(place.glob(pattern)) if place.is_dir() else [place]
        if not found or not place.exists():
            made.missing[str(place)] = f"no {pattern} is there"
            continue
        yield from found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{path} is no JSON ({type(error).__name__}): it is left out, since its secrets could not be told apart"
        ) from error


def _tail(path: Path, size_bytes: int) -> str:
    """The last lines, as many whole ones as fit."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - size_bytes))
        content = file.read(size_bytes)
    return (
        content.partition(b"\n")[2].decode(errors="replace")
        if length > size_bytes
        else content.decode(errors="replace")
    )
