"""The servers that are measured: a heliograph instance, and a real Apache Pulsar from Maven's artifacts, both on this
machine.

Is: starting, the process ids whose CPU and memory count, stopping by process id. Isn't: load.
Pulsar's jars (235 MB) are kept in ~/.cache/heliograph; Maven and a JDK 17+ are needed for it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cache import once
from benchmarks.maven import copy_dependencies
from region_node.instance.plan.loopback_ports import LoopbackPorts

HERE = Path(__file__).resolve().parent
_OPENS = (
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/java.lang",
    "java.base/java.util.zip",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


_PORTS = LoopbackPorts()


def free_port() -> int:
    """A loopback port that nobody else is given while this process lives."""
    return _PORTS.free()


def rest(method: str, url: str, body: Any = None, *, login: str = "", token: str = "") -> Any:
    """Sends one request, and returns the answer's JSON; None: it is empty. login: user:password."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


class Server(ABC):
    """One running system. `regions`: name -> (service port, admin port). `client_environment`: what its clients are
    told, as `benchmarks.client_cases` reads it.
    """

    kind = ""

    def __init__(self) -> None:
        self.regions: dict[str, tuple[int, int]] = {}
        self.start_s = 0.0
        self.client_environment: dict[str, str] = {}

    @property
    def port(self) -> int:
        return next(iter(self.regions.values()))[0]

    @abstractmethod
    def pids(self) -> list[int]: ...

    @abstractmethod
    def stop(self) -> None: ...

    def cpu_s(self) -> float:
        """User and system seconds of all server processes so far."""
        total = 0.0
        for pid in self.pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system
        return total

    def memory_mb(self, kind: str) -> float:
        """`pss` or `rss` of all server processes."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += getattr(psutil.Process(pid).memory_full_info(), kind)
        return total / 1e6


class Heliograph(Server):
    """`standalone` with two bookies or more, or `up --wan none` of two regions."""

    kind = "heliograph"

    def __init__(
        self,
        data: Path,
        regions: tuple[str, ...] = (),
        *,
        brokers: int = 1,
        bookies: int = 2,
        programs: Path = Path(sys.executable).parent,
        tls: bool = False,
    ) -> None:
        """programs: the folder where its `heliograph` is; another release's is in its own environment. tls: of several
        regions: every process speaks TLS to every other, and `regions` has the port for clients of TLS.
        """
        super().__init__()
        self.data = data
        data.parent.mkdir(parents=True, exist_ok=True)
        program = [str(programs / "heliograph")]
        begun = time.perf_counter()
        self._process: subprocess.Popen[bytes] | None = None
        if regions:
            command = [
                *program,
                "up",
                "--data",
                str(data),
                "--regions",
                ",".join(regions),
                "--wan",
                "none",
                "--bookies",
                "2",
                "--json",
                *(["--tls"] if tls else []),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        else:
            service, admin = free_port(), free_port()
            command = [
                *program,
                "standalone",
                "--data",
                str(data),
                "--service-port",
                str(service),
                "--admin-port",
                str(admin),
            ]
            command += ["--bookies", str(bookies), "--brokers", str(brokers)]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self._process.stdout is not None
            while b"is ready" not in (line := self._process.stdout.readline()):
                if not line:
                    raise SystemExit("heliograph standalone did not start")
        self.start_s = time.perf_counter() - begun
        self._program = program
        status = self.status()
        self._pids = [row["pid"] for region in status["regions"].values() for row in region["processes"]]
        for name, region in status["regions"].items():
            self.regions[name] = (
                int(region["service_tls_url" if tls else "service_url"].rpartition(":")[2]),
                int(region["admin_url"].rpartition(":")[2]),
            )

    def status(self) -> Any:
        done = subprocess.run(
            [*self._program, "status", "--data", str(self.data), "--json"], check=True, capture_output=True
        )
        return json.loads(done.stdout)

    def process(self, action: str, name: str) -> None:
        """`heliograph process kill|start NAME`."""
        subprocess.run(
            [*self._program, "process", action, name, "--data", str(self.data)], check=True, stdout=subprocess.DEVNULL
        )

    def pids(self) -> list[int]:
        return self._pids

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(180)
        else:
            subprocess.run([*self._program, "down", "--data", str(self.data)], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(self.data, ignore_errors=True)


def pulsar_jars() -> Path:
    """The folder of Pulsar's jars, filled by Maven the first time. Raises SystemExit with one sentence where that
    cannot be.
    """

    def fetch(scratch: Path) -> None:
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise SystemExit("a real Pulsar needs Maven and a JDK 17 or newer on this machine; they are absent")
        print("fetching Apache Pulsar's jars (about a minute, once) ...", flush=True)
        copy_dependencies(HERE / "pulsar_peer" / "pom.xml", scratch)

    return once("pulsar-4.0.7", fetch)


class Pulsar(Server):
    """One standalone cluster in one JVM."""

    kind = "pulsar"

    def __init__(self, data: Path, name: str = "standalone", settings: str = "", token: str = "") -> None:
        """settings: more lines of `standalone.conf`. token: of a superuser, where they ask for one."""
        super().__init__()
        jars = pulsar_jars()
        self._data = data
        data.mkdir(parents=True)
        port, web = free_port(), free_port()
        text = (HERE / "pulsar_peer" / "standalone.conf").read_text() + settings
        (data / "standalone.conf").write_text(
            text.replace("@PORT@", str(port)).replace("@WEB@", str(web)).replace("@NAME@", name)
        )
        opens = [word for module in _OPENS for word in ("--add-opens", f"{module}=ALL-UNNAMED")]
        command = [
            *(
                "java",
                "-Xms512m",
                "-Xmx2g",
                "-XX:MaxDirectMemorySize=2g",
                *opens,
                "-Dio.netty.tryReflectionSetAccessible=true",
            ),
            *(
                "-Dpulsar.log.level=warn",
                "-cp",
                f"{jars}/*",
                "org.apache.pulsar.PulsarStandaloneStarter",
                "--config",
                str(data / "standalone.conf"),
            ),
            *(
                "-nss",
                "-nfw",
                "--num-bookies",
                "2",
                "--metadata-dir",
                str(data / "metadata"),
                "--bookkeeper-dir",
                str(data / "bookkeeper"),
            ),
        ]
        begun = time.perf_counter()
        with (data / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ}
            )
        self.regions[name] = (port, web)
        deadline = time.monotonic() + 400
        while not self._up(web, token):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Pulsar did not start; its log is {data / 'log'}")
            time.sleep(0.05)
        self.start_s = time.perf_counter() - begun

    @staticmethod
    def _up(web: int, token: str) -> bool:
        try:
            return "public/default" in rest("GET", f"http://127.0.0.1:{web}/admin/v2/namespaces/public", token=token)
        except (OSError, ValueError, http.client.HTTPException):  # it listens before it answers
            return False

    def pids(self) -> list[int]:
        return [self._process.pid]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._data, ignore_errors=True)
