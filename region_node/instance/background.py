"""The supervisor as a process of its own: what `heliograph up` leaves running.

Is: `python -m region_node.instance.background DATA FD [no-restart]`; progress, readiness, or the reason of a failure go
to FD, one JSON line each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from heliograph.model.errors import ConfigError, HeliographError, reason_of
from region_node.instance import toxiproxy_program
from region_node.instance.lock import InstanceLock
from region_node.instance.plan.layout import load_plan
from region_node.instance.supervisor import Supervisor
from region_node.runtime.private_files import keep_files_private


def main() -> None:
    data, report, restart = Path(sys.argv[1]), int(sys.argv[2]), "no-restart" not in sys.argv[3:]
    os.set_inheritable(report, False)
    keep_files_private()

    def say(**fields: object) -> None:
        with contextlib.suppress(OSError):
            os.write(report, json.dumps(fields).encode() + b"\n")

    async def run() -> None:
        plan = load_plan(data)
        if plan is None:
            raise ConfigError(f"no instance in {data}")
        supervisor = Supervisor(
            data, plan, toxiproxy=toxiproxy_program.found(), progress=lambda text: say(progress=text), restart=restart
        )

        async def ready() -> None:
            say(ready=True)
            os.close(report)

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, supervisor.stop)
        await supervisor.run(ready)

    try:
        lock = InstanceLock(data)
        asyncio.run(run())
        lock.release()
    except HeliographError as error:
        print(f"heliograph: {reason_of(error)}", file=sys.stderr, flush=True)
        say(error=reason_of(error))
        sys.exit(2)
    except Exception as error:
        say(error=f"a fault in the supervisor ({type(error).__name__}: {error}); its trace is in logs/supervisor.log")
        raise


if __name__ == "__main__":
    main()
