"""Starts the supervisor as a process of its own, waits until it is ready, and stops it again.

Is: what `up`, `down`, and `demo` share. Isn't: the supervisor.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from heliograph.model.errors import ConfigError
from region_node.instance.control import call
from region_node.instance.plan.layout import load_plan
from region_node.instance.plan.loopback_ports import LoopbackPorts
from region_node.runtime.module_command import module_command

END_S = 180.0
"""What a supervisor takes to end at the longest: each tier drains, then is killed."""


def start_background(data: Path, console: Console, *, restart: bool = True) -> int:
    """Starts the instance whose plan lies in `data`; returns the supervisor's process id once all is ready.

    Raises ConfigError with its reason where it could not start. Ctrl-C stops what was started, and is raised again.
    """
    plan = load_plan(data)
    (data / "logs").mkdir(parents=True, exist_ok=True)
    ready, theirs = os.pipe()
    with (data / "logs" / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            module_command(
                sys.executable,
                "region_node.instance.background",
                str(data),
                str(theirs),
                *([] if restart else ["no-restart"]),
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(theirs,),
        )
    os.close(theirs)
    last: dict[str, Any] = {}
    try:
        with console.status("starting") as spinner, os.fdopen(ready) as lines, LoopbackPorts() as ports:
            ports.keep(
                plan.ports() if plan is not None else ()
            )  # until the supervisor, which is being loaded, keeps them itself
            for line in lines:
                last = json.loads(line)
                if "progress" in last:
                    spinner.update(last["progress"])
    except KeyboardInterrupt:
        console.print("stopping what was started ...")
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)
        raise
    if not last.get("ready"):
        process.wait(END_S)
        raise ConfigError(
            last.get("error") or f"the supervisor ended without a word; see {data / 'logs' / 'supervisor.log'}"
        )
    return process.pid


def stop_background(data: Path) -> None:
    """Stops a running instance and waits for its end. Raises ConfigError where none runs, or where it does not end."""
    pid = int(call(data, "status")["supervisor"]["pid"])
    call(data, "stop")
    deadline = time.monotonic() + END_S
    while alive(pid):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"the supervisor (process {pid}) has not ended within {END_S:.0f} s; its log is "
                f"{data / 'logs' / 'supervisor.log'}"
            )
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
