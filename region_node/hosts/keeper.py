"""Keeper: owns one process where no systemd runs, and starts it again when it dies.

Is: `python -m region_node.hosts.keeper SETTINGS`, with the backoff of an instance's supervisor. Isn't: told anything
but a signal: SIGTERM drains the process, and the keeper ends with it. Where the keeper is killed, its process drains
too.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType

from region_node.runtime.module_command import module_command
from region_node.runtime.private_files import keep_files_private

_BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0)
_STEADY_S = 30.0


def main() -> None:
    asked = starting = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if not starting:
            leave()

    def leave() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    keep_files_private()
    process: subprocess.Popen[bytes] | None = None
    deaths = 0
    try:
        while True:
            began = time.monotonic()
            starting = (
                True  # who is asked to end between the fork and the name of what was forked would leave it behind
            )
            process = subprocess.Popen(
                module_command(sys.executable, "region_node.instance.child", "--settings", sys.argv[1]),
                stdin=subprocess.DEVNULL,
            )
            starting = False
            if asked:
                leave()
            process.wait()
            deaths = 0 if time.monotonic() - began > _STEADY_S else deaths + 1
            time.sleep(_BACKOFF_S[min(deaths, len(_BACKOFF_S) - 1)])
    finally:
        if process is not None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
