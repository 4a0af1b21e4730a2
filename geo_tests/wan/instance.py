"""A running instance for a test: started by the command line as a user would, its links bent by Toxiproxy, stopped
whatever happens.

Is: a fixture's inside. `toxiproxy-python` lists, cuts, and adds toxics; `region_node.instance.nodes.toxiproxy_api`
changes what that package cannot.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pulsar
from toxiproxy import Toxiproxy as ToxiproxyServer

from heliograph.cli.rest import Rest
from heliograph.model.errors import ConfigError
from region_node.commands.demo import _rest as rest
from region_node.instance.control import call
from region_node.instance.launch import END_S
from region_node.instance.nodes.toxiproxy_api import Toxiproxy
from tests.guide.forks import forked_program

PROGRAM = str(Path(sys.executable).with_name("heliograph"))
PATIENCE_S = 120.0
"""For what takes a second on a machine with nothing else to do."""


def heliograph(
    *arguments: str,
    check: bool = True,
    timeout_s: float = 300,
    environment: Mapping[str, str] | None = None,
    program: str = "",
) -> subprocess.CompletedProcess[str]:
    """What the program answers. Where it takes too long it is interrupted, as by Ctrl-C, so that it ends what it has
    started.

    environment: beside what this process has. program: its path; else one that is forked from a process that has
    imported it, which takes a tenth of the time.
    """
    variables = {**os.environ, **(environment or {})}
    process = subprocess.Popen(
        [program or forked_program(), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )
    try:
        said, told = process.communicate(timeout=timeout_s)
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=END_S)
        finally:
            process.kill()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, said, told)
    assert not check or done.returncode == 0, f"heliograph {' '.join(arguments)}: {said}{told}"
    return done


def eventually(good: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `good`. Polls, because the other side is another process; what is not there yet, or is
    refused, is asked for again.

    patience_s: more than PATIENCE_S; less is taken for that.
    """
    deadline = time.monotonic() + max(patience_s, PATIENCE_S)
    pause = threading.Event()
    while True:
        missing: Exception | None = None
        try:
            if answer := good():
                return answer
        except (LookupError, ConfigError) as error:
            missing = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {max(patience_s, PATIENCE_S):.0f} s: {what}") from missing
        pause.wait(0.05)


class Instance:
    """`heliograph up` on a folder. environment: of all its processes, beside what this one has."""

    def __init__(
        self,
        data: Path,
        *,
        regions: Iterable[str],
        wan: str,
        brokers: str = "1",
        bookies: int = 2,
        witness: str = "",
        proxied: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data, self._environment = data, environment
        self._arguments = (
            "--data",
            str(data),
            "--regions",
            ",".join(regions),
            "--wan",
            wan,
            "--brokers",
            brokers,
            "--bookies",
            str(bookies),
            *(("--witness", witness) if witness else ()),
            *(("--proxied",) if proxied else ()),
        )
        self.clients: list[Any] = []
        self.up()

    def up(self) -> None:
        try:
            self.state: dict[str, Any] = json.loads(
                heliograph("up", *self._arguments, "--json", environment=self._environment).stdout
            )
        except BaseException:  # else a supervisor that took too long would stay, and nobody would know of it
            heliograph("down", "--data", str(self.data), check=False)
            raise
        if self.state["wan"]:
            self.toxiproxy = Toxiproxy(self.state["wan"]["toxiproxy"])

    @property
    def server(self) -> ToxiproxyServer:
        """The package keeps one address for all: it is this instance's from here on, whatever another one made of
        it.
        """
        found = ToxiproxyServer()
        found.update_api_consumer(*self.state["wan"]["toxiproxy"].split(":"))
        return found

    def down(self) -> None:
        try:
            for client in self.clients:
                with contextlib.suppress(pulsar.PulsarException):  # a broker that is down says no good-bye
                    client.close()
        finally:  # a client that a failed test left in the middle of its work must not keep the processes alive
            self.clients = []
            heliograph("down", "--data", str(self.data))

    def status(self) -> dict[str, Any]:
        """As `heliograph status --json` prints it, without the second that a program takes to start: tests ask again
        and again.
        """
        return call(self.data, "status")

    def pids(self) -> list[int]:
        status = self.status()
        rows = [row for region in status["regions"].values() for row in region["processes"]]
        return [row["pid"] for row in [*rows, *([status["witness"]] if "witness" in status else [])] if row["pid"]]

    def admin(self, region: str) -> str:
        return str(self.state["regions"][region]["admin_url"])

    def rest(self, region: str) -> Rest:
        return Rest(self.admin(region))

    def client(self, region: str) -> Any:
        client = pulsar.Client(
            self.state["regions"][region]["service_url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self.clients.append(client)
        return client

    def namespace(self, name: str, regions: list[str], *, deduplication: bool = True) -> None:
        """Replicated, kept for ever, seen in every region when this returns."""
        first = self.admin(regions[0])
        rest("PUT", f"{first}/admin/v2/namespaces/{name}", {"replication_clusters": regions})
        rest(
            "POST",
            f"{first}/admin/v2/namespaces/{name}/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        rest("POST", f"{first}/admin/v2/namespaces/{name}/deduplication", deduplication)
        for region in regions:
            eventually(lambda region=region: self._has(region, name), f"{name} in {region}")

    def _has(self, region: str, name: str) -> bool:
        try:
            return bool(
                rest("GET", f"{self.admin(region)}/admin/v2/namespaces/{name}/retention").get("retentionSizeInMB") == -1
            )
        except Exception:
            return False

    def read_all(self, region: str, topic: str) -> list[str]:
        return [message.data().decode() for message in self.read_on(region, topic, pulsar.MessageId.earliest)]

    def read_on(self, region: str, topic: str, after: pulsar.MessageId | None) -> Iterator[pulsar.Message]:
        """Yields what lies behind `after`, or all there is, up to the end of the topic."""
        reader = self.client(region).create_reader(topic, after or pulsar.MessageId.earliest)
        while reader.has_message_available():
            yield reader.read_next(timeout_millis=60_000)
        reader.close()

    def links(self, topic: str) -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["source"], row["target"]): row for row in self.status()["links"] if row["topic"] == topic}

    def proxies(self, kind: str, source: str, target: str) -> list[Any]:
        """Toxiproxy's own view, by the public package."""
        return [p for name, p in self.server.proxies().items() if name.startswith(f"{kind}.{source}-{target}.")]


def owners(instance: Instance, namespace: str = "public/busy") -> dict[str, str]:
    """Bundle of the namespace -> broker, as each broker says of itself."""
    found = {}
    for broker in rest("GET", f"{instance.admin('us')}/heliograph/v1/status")["brokers"]:
        status = rest("GET", f"{broker['admin_url']}/heliograph/v1/status")
        found |= {
            bundle.rpartition("/")[2]: broker["id"]
            for bundle in status["bundles"]
            if bundle.startswith(f"{namespace}/")
        }
    return found
