"""The official Java client, unmodified: it follows a switchover and a migration (TOPIC_MIGRATED), its
AutoClusterFailover works with the health port, and it leaves a region that falls silent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from tests.system.jvm import program

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    program("FailoverShell")
    instance = Instance(tmp_path_factory.mktemp("java") / "data", regions=("us", "eu", "ap"), wan="none")
    try:
        yield instance
    finally:
        instance.down()


class Shell:
    """`FailoverShell` in a JVM. confirmed: the numbers that it printed."""

    def __init__(self, *arguments: str) -> None:
        command = [*program("FailoverShell"), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.confirmed: list[int] = []
        self.ended = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.confirmed.append(int(line))
            self.ended = self.ended or line.strip() == "end"

    def wait_for(self, more: int) -> None:
        wanted = len(self.confirmed) + more
        eventually(lambda: len(self.confirmed) >= wanted, f"{more} more messages are confirmed", 90)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        eventually(lambda: self.ended, "everything that was sent is confirmed")
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


def publishers(instance: Instance, region: str, topic: str) -> int:
    return len(
        rest("GET", f"{instance.admin(region)}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")[
            "publishers"
        ]
    )


def test_it_follows_a_switchover_and_repeats_nothing(regions: Instance) -> None:
    topic = "persistent://public/planned/java"
    regions.namespace("public/planned", ["us", "eu"])
    heliograph("dr", "set", "public/planned", "--active", "us", "--admin", regions.admin("us"))
    shell = Shell(topic, "java", regions.state["regions"]["us"]["service_url"])
    try:
        shell.wait_for(100)
        for to in ("eu", "us", "eu"):
            heliograph("dr", "switchover", "public/planned", "--to", to, "--admin", regions.admin("us"))
            shell.wait_for(100)
            eventually(lambda to=to: publishers(regions, to, topic) == 1, f"it publishes in {to}")
        shell.end()
    finally:
        shell.kill()
    for region in ("us", "eu"):
        eventually(
            lambda region=region: len(regions.read_all(region, topic)) >= len(shell.confirmed),
            f"everything is in {region}",
        )
        assert sorted(map(int, regions.read_all(region, topic))) == list(range(len(shell.confirmed))), (
            "each message once"
        )


def test_it_follows_a_migration_there_and_back(regions: Instance) -> None:
    topic = "persistent://public/blue/java"
    regions.namespace("public/blue", ["us", "eu"])
    for region, other in (("us", "eu"), ("eu", "us")):
        urls = {"brokerServiceUrl": regions.state["regions"][other]["service_url"]}
        rest("POST", f"{regions.admin(region)}/admin/v2/clusters/{region}/migrate?migrated=false", urls)
    shell = Shell(topic, "java", regions.state["regions"]["us"]["service_url"])
    try:
        shell.wait_for(100)
        rest("POST", f"{regions.admin('us')}/admin/v2/namespaces/public/blue/migration", True)
        eventually(lambda: publishers(regions, "eu", topic) == 1, "it publishes in eu")
        shell.wait_for(100)
        rest("POST", f"{regions.admin('us')}/admin/v2/namespaces/public/blue/migration", False)
        rest("POST", f"{regions.admin('eu')}/admin/v2/namespaces/public/blue/migration", True)
        eventually(lambda: publishers(regions, "us", topic) == 1, "it publishes in us again")
        shell.wait_for(100)
        shell.end()
    finally:
        shell.kill()
    for region in ("us", "eu"):
        eventually(
            lambda region=region: len(regions.read_all(region, topic)) >= len(shell.confirmed),
            f"everything is in {region}",
        )
        assert sorted(map(int, regions.read_all(region, topic))) == list(range(len(shell.confirmed))), (
            "each message once"
        )


def test_its_own_failover_leaves_a_region_that_accepts_connections_and_stores_nothing(regions: Instance) -> None:
    topic = "persistent://public/both/java"
    regions.namespace("public/both", ["us", "eu"])
    urls = [regions.state["regions"][region]["health_url"] for region in ("us", "eu")]
    bookies = [row["pid"] for row in regions.status()["regions"]["us"]["processes"] if "bookie" in row["name"]]
    shell = Shell(topic, "both", *urls)
    try:
        shell.wait_for(100)
        for pid in bookies:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: publishers(regions, "eu", topic) == 1, "it has gone to eu")
        shell.wait_for(100)
        for pid in bookies:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: publishers(regions, "us", topic) == 1, "it has come back to us")
        shell.wait_for(50)
        shell.end()
    finally:
        for pid in bookies:
            os.kill(pid, signal.SIGCONT)
        shell.kill()
    eventually(
        lambda: {int(body) for body in regions.read_all("eu", topic)} >= set(shell.confirmed),
        "nothing that was confirmed is lost",
    )


def test_it_leaves_the_region_that_it_was_led_to_when_that_falls_silent(regions: Instance) -> None:
    """Its program has given it both addresses: where it was led before binds it to nothing."""
    topic = "persistent://public/silent/java"
    urls = [regions.state["regions"][name]["service_url"] for name in ("us", "eu")]
    regions.namespace("public/silent", ["us", "eu"])
    heliograph("dr", "set", "public/silent", "--active", "us", "--admin", regions.admin("us"))
    shell = Shell(topic, "silent", f"{urls[0]},{urls[1].rpartition('/')[2]}")
    stopped = [row["pid"] for row in regions.status()["regions"]["us"]["processes"] if row["pid"]]
    try:
        for to in ("eu", "us"):
            shell.wait_for(20)
            heliograph("dr", "switchover", "public/silent", "--to", to, "--admin", regions.admin("us"))
        shell.wait_for(20)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        heliograph("dr", "failover", "public/silent", "--to", "eu", "--yes", "--admin", regions.admin("eu"))
        shell.wait_for(100)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        shell.kill()
