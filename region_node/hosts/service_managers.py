"""Service managers of a host: systemd, or keepers of ours where there is none.

Is: start, stop, and "does it run" of one node by its name. Isn't: an order, or whether a node is well (`host_steps`).
Invariants: `stop` returns once the process has ended; what is stopped is told by the service manager's own record of
it, never by a pattern of names.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Protocol

from heliograph.model.errors import ConfigError
from region_node.hosts.host_folders import HostManifest
from region_node.instance.launch import alive
from region_node.runtime.module_command import module_command
from region_node.runtime.private_files import private_folder

UNITS = Path("/etc/systemd/system")
_STOP_S = 90.0
_POLL_S = 0.05


class Services(Protocol):
    def running(self, node: str) -> bool: ...

    def start(self, node: str) -> None: ...

    def stop(self, node: str) -> None: ...

    def forget(self, node: str) -> None:
        """Has a stopped node not come back at the next boot."""


def services_of(manifest: HostManifest) -> Services:
    return Systemd(manifest) if manifest.service == "systemd" else Plain(manifest)


class Systemd:
    """Units lie in the host's settings folder, and are copied from there to `units`, where systemd reads them."""

    def __init__(self, manifest: HostManifest, units: Path = UNITS) -> None:
        self._etc, self._units = Path(manifest.prefix) / "etc", units

    def running(self, node: str) -> bool:
        return subprocess.run(["systemctl", "is-active", "--quiet", _unit(node)]).returncode == 0

    def start(self, node: str) -> None:
        target, text = self._units / _unit(node), (self._etc / _unit(node)).read_text()
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
            target.chmod(0o644)  # a unit holds no secret, and `systemctl cat` shows it to everybody
            _systemctl("daemon-reload")
        _systemctl("enable", "--quiet", _unit(node))
        _systemctl("start", _unit(node))

    def stop(self, node: str) -> None:
        if (self._units / _unit(node)).exists():
            _systemctl("stop", _unit(node))

    def forget(self, node: str) -> None:
        if (self._units / _unit(node)).exists():
            _systemctl("disable", "--quiet", _unit(node))
            shutil.rmtree(self._units / f"{_unit(node)}.d", ignore_errors=True)  # an operator's own settings of it
            (self._units / _unit(node)).unlink()  # last: by it an interrupted one is seen to be unfinished
            _systemctl("daemon-reload")


def _unit(node: str) -> str:
    return f"heliograph-{node}.service"


def _systemctl(*words: str) -> None:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"systemctl {' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")


class Plain:
    """A keeper for each node; `run/NODE.pid` is its process id and when it was started, so that a later process with
    that id is not taken for it.
    """

    def __init__(self, manifest: HostManifest) -> None:
        self._prefix = Path(manifest.prefix)

    def running(self, node: str) -> bool:
        return self._pid(node) is not None

    def start(self, node: str) -> None:
        if self.running(node):
            return
        for folder in ("run", "log"):
            private_folder(self._prefix / folder)
        python = self._prefix / "current" / "bin" / "python"
        with (self._prefix / "log" / f"{node}.log").open("ab") as log:
            keeper = subprocess.Popen(
                module_command(str(python), "region_node.hosts.keeper", str(self._prefix / "etc" / f"{node}.json")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._prefix,
            )
        self._file(node).write_text(f"{keeper.pid} {_started(keeper.pid)}")

    def stop(self, node: str) -> None:
        pid = self._pid(node)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            while alive(pid):
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"{node} (process {pid}) has not ended within {_STOP_S:.0f} s: look at "
                        f"{self._prefix}/log/{node}.log"
                    )
                time.sleep(_POLL_S)
        self._file(node).unlink(missing_ok=True)

    def forget(self, node: str) -> None:
        self._file(node).unlink(missing_ok=True)

    def _file(self, node: str) -> Path:
        return self._prefix / "run" / f"{node}.pid"

    def _pid(self, node: str) -> int | None:
        try:
            pid, started = self._file(node).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if alive(int(pid)) and _started(int(pid)) == started else None


def _started(pid: int) -> str:
    """Clock ticks after the boot."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"
