"""A one-region instance as real processes on loopback, for tests: metadata and configuration in one process, bookies,
brokers.

Is: start, kill, and stop of `region_node.process.role_process`, by process id. Isn't: a supervisor; nothing is
restarted by itself.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Self

from tests.region_node.forked_processes import begin

REPOSITORY = Path(__file__).resolve().parents[2]


class Process:
    """One process; `ports` once it is ready."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.name = str(settings["node_id"])
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(settings))
        self.log_path = folder / f"{self.name}.log"
        own = ("HELIOGRAPH_", "PYTEST_CURRENT_TEST")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        with self.log_path.open("ab") as log:
            self.popen = begin(REPOSITORY, path, settings["roles"], environment, log)
        self.ports: dict[str, int] = {}

    def wait_ready(self) -> Self:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, f"{self.name} ended with {self.popen.wait()}: {self.log_path.read_text()}"
        self.ports = json.loads(line)["ports"]
        return self

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def terminate(self, timeout_s: float = 120.0) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout_s)

    def pss_kb(self) -> int:
        text = Path(f"/proc/{self.popen.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


class Region:
    """`with Region(tmp_path) as region: region.start(...)`; ends whatever is left."""

    def __init__(self, folder: Path, name: str = "us") -> None:
        self.folder, self.name = folder, name
        self.processes: dict[str, Process] = {}
        self.common: dict[str, Any] = {}
        """Sections of settings that all processes have."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes.values()):
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.wait()

    def settings(self, node: str, roles: list[str], **sections: Any) -> dict[str, Any]:
        own = f"{self.name}-{node}"
        process = {
            "format": 1,
            "region": self.name,
            "node_id": own,
            "data_dir": str(self.folder / own),
            "roles": roles,
            "bind": "127.0.0.1",
            "tls": None,
        }
        return {**process, **self.common, **sections}

    def spawn(self, settings: dict[str, Any]) -> Process:
        process = Process(self.folder, settings)
        self.processes[process.name] = process
        return process

    def start(self, bookies: int = 2, brokers: int = 1, **broker: Any) -> None:
        """`broker`: settings of all brokers, beside their ports."""
        meta = self.spawn(
            self.settings("meta-0", ["meta", "config"], meta_node={"port": 0}, config_node={"port": 0, "raft_port": 0})
        ).wait_ready()
        self.addresses = {"meta": [f"127.0.0.1:{meta.ports['meta']}"], "config": [f"127.0.0.1:{meta.ports['config']}"]}
        begun = [
            self.spawn(self.settings(f"bookie-{i}", ["bookie"], **self.addresses, bookie={"port": 0, "http_port": 0}))
            for i in range(bookies)
        ]
        begun += [self.broker(i, **broker) for i in range(brokers)]
        for process in begun:
            process.wait_ready()

    def broker(self, index: int, **fields: Any) -> Process:
        return self.spawn(
            self.settings(
                f"broker-{index}", ["broker"], **self.addresses, broker={"port": 0, "admin_port": 0, **fields}
            )
        )

    def admin_url(self, broker: int = 0) -> str:
        return f"http://127.0.0.1:{self.processes[f'{self.name}-broker-{broker}'].ports['admin']}"

    def service_url(self, broker: int = 0) -> str:
        return f"pulsar://127.0.0.1:{self.processes[f'{self.name}-broker-{broker}'].ports['pulsar']}"
