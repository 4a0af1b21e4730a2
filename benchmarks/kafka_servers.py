"""The servers of `benchmarks.kafka`: a heliograph instance with its Kafka listener open, and a real Apache Kafka that
flushes every batch.

Is: starting, CPU, stopping by process id. Isn't: load. Kafka's jars (54 MB) are kept in ~/.cache/heliograph; Maven and
a JDK 17+ are needed for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.cache import once
from benchmarks.maven import copy_dependencies
from benchmarks.servers import HERE, Heliograph, Server, free_port

VERSION = "4.1.0"


def kafka_jars() -> Path:
    """The folder of Kafka's jars, filled by Maven the first time. Raises SystemExit with one sentence where that cannot
    be.
    """

    def fetch(scratch: Path) -> None:
        if shutil.which("mvn") is None or shutil.which("java") is None:
            raise SystemExit("a real Kafka needs Maven and a JDK 17 or newer on this machine; they are absent")
        print("fetching Apache Kafka's jars (half a minute, once) ...", flush=True)
        copy_dependencies(HERE / "kafka_peer" / "pom.xml", scratch)

    return once(f"kafka-{VERSION}", fetch)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class HeliographKafka(Heliograph):
    """One region, two bookies, two copies, both fsynced."""

    kind = "heliograph"

    def __init__(self, data: Path) -> None:
        self.kafka_port = free_port()
        os.environ["HELIOGRAPH_BROKER__KAFKA__PORT"] = str(self.kafka_port)
        try:
            super().__init__(data)
        finally:
            del os.environ["HELIOGRAPH_BROKER__KAFKA__PORT"]


class Kafka(Server):
    """One node, one copy, log.flush.interval.messages=1."""

    kind = "kafka"

    def __init__(self, data: Path) -> None:
        super().__init__()
        jars = kafka_jars()
        data.mkdir(parents=True)
        self._data = data
        self.kafka_port, controller = free_port(), free_port()
        text = (HERE / "kafka_peer" / "server.properties").read_text()
        settings = data / "server.properties"
        settings.write_text(
            text.replace("@PORT@", str(self.kafka_port))
            .replace("@CPORT@", str(controller))
            .replace("@DATA@", str(data / "log"))
        )
        java = ["java", "-Xms512m", "-Xmx1g", "-cp", f"{jars}/*"]
        made = (
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "random-uuid"], check=True, capture_output=True, text=True
            )
            .stdout.strip()
            .splitlines()[-1]
        )
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", made, "-c", str(settings)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        begun = time.perf_counter()
        with (data / "out").open("wb") as log:
            command = [*java, "kafka.Kafka", str(settings)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 300  # a JVM beside much other work
        while not answers(self.kafka_port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (data / "out").read_text()[-2000:]
                self.stop()
                raise SystemExit(f"Kafka did not start; the last that it said: {said}")
            time.sleep(0.05)
        self.start_s = time.perf_counter() - begun

    def pids(self) -> list[int]:
        return [self._process.pid]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._data, ignore_errors=True)
