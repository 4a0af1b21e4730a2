"""Processes of regions for tests, forked from one that has imported what they need: starting is most of what a short
test costs.

Is: what of a `subprocess.Popen` tests use, over `region_node.instance.fork_server`. Isn't: for a process whose
environment is another than when the first one was forked; that one is started as a program.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from region_node.instance.nodes.forks import TITLE_BYTES


def _readable(handle: int, timeout_s: float | None) -> bool:
    """`select` takes no descriptor above 1,023, and a long run of many clients has more."""
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else 1000 * timeout_s))


class ForkedPopen:
    """One process. stdout: the reading end of its pipe."""

    def __init__(self, pid: int, handle: int, stdout: IO[bytes], server: Forks) -> None:
        self.pid, self.stdout, self.returncode = pid, stdout, None
        self._handle, self._server = handle, server

    returncode: int | None

    def poll(self) -> int | None:
        if self.returncode is None and _readable(self._handle, 0):
            self.returncode = self._server.code_of(self.pid)
            os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not _readable(self._handle, timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Forks:
    """A server, which lives as long as this process."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """folder: the current directory of what is forked. environment: of the same."""
        self.environment = dict(environment)
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = ("-m", "region_node.instance.fork_server", str(theirs.fileno()), "-" * TITLE_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=folder,
                env=self.environment,
                pass_fds=(theirs.fileno(),),
            )

    def fork(self, words: Sequence[str], stderr: int) -> ForkedPopen:
        """words: of its command line, behind the module's name."""
        reading, writing = os.pipe()
        with self._lock:
            socket.send_fds(self._channel, [json.dumps({"id": 0, "words": words}).encode()], [writing, stderr])
            os.close(writing)
            while True:
                said, files, _, _ = socket.recv_fds(self._channel, 4096, 1)
                told = json.loads(said)
                if "code" not in told:
                    return ForkedPopen(told["pid"], files[0], os.fdopen(reading, "rb"), self)
                self._codes[told["pid"]] = told["code"]

    def code_of(self, pid: int) -> int:
        """Of one that has ended."""
        with self._lock:
            while pid not in self._codes:
                told = json.loads(self._channel.recv(4096))
                self._codes[told["pid"]] = told["code"]
            return self._codes.pop(pid)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _forks(folder: Path, environment: tuple[tuple[str, str], ...]) -> Forks:
    forks = Forks(folder, dict(environment))
    atexit.register(forks.close)
    return forks


def begin(
    folder: Path, settings: Path, roles: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> ForkedPopen | subprocess.Popen[bytes]:
    """`python -m region_node.process --settings FILE`, which writes to `log`."""
    words = ["--role", ",".join(roles), "--settings", str(settings)]
    usual = {name: value for name, value in _AT_FIRST.items() if not name.startswith("HELIOGRAPH_")}
    if sys.platform == "linux" and environment == usual and threading.current_thread() is threading.main_thread():
        return _forks(folder, tuple(sorted(usual.items()))).fork(words, log.fileno())
    return subprocess.Popen(
        [sys.executable, "-m", "region_node.process", "--settings", str(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=folder,
        env=dict(environment),
    )


_AT_FIRST = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
