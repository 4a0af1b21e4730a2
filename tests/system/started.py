"""A server of somebody else's, as a process of a test: started, asked whether it listens, ended with the test.

Is: the process. Isn't: where its program comes from (`programs`).
"""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

from geo_tests.wan.instance import eventually


class Started:
    """A process that is ended with the test."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.popen = subprocess.Popen(command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.log = log

    def stop(self, *, kill: bool = False) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        try:
            self.popen.wait(120)
        except subprocess.TimeoutExpired:  # nothing may stay
            self.popen.kill()
            self.popen.wait()
            raise

    def wait_listening(self, port: int) -> None:
        def listens() -> bool:
            assert self.popen.poll() is None, self.log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens, f"something listens on port {port}; see {self.log}", 240)
