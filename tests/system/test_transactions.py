"""Transactions by the official Java client: publishing, acknowledging, conflicts, timeouts, a broker killed in the
middle, another region.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import Heliograph, rest
from tests.region_node.live import until
from tests.system.jvm import program

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
WAIT_MS = 60_000
NONE_MS = 700
"""How long nothing must come. It may end early on a slow machine, and then shows nothing; it never fails there."""


class Shell:
    """`java/TransactionShell.java` in a JVM of its own."""

    def __init__(self, port: int) -> None:
        command = [*program("TransactionShell"), f"pulsar://127.0.0.1:{port}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._line() == "ok ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("ok", "error")):
                return line.strip()
        raise AssertionError("the JVM has ended")

    def __call__(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._line().removeprefix("ok").strip()

    def receive(self, topic: str, count: int, subscription: str = "s") -> list[str]:
        return self(f"receive {topic} {subscription} {count} {WAIT_MS}").split()

    def nothing(self, topic: str, subscription: str = "s") -> bool:
        return self(f"receive {topic} {subscription} 1 {NONE_MS}") == ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def shells(server: Heliograph) -> Iterator[dict[str, Shell]]:
    made: dict[str, Shell] = {}
    try:
        for region, (port, _) in server.regions.items():
            made[region] = Shell(port)
        yield made
    finally:
        for shell in made.values():
            shell.close()
        server.stop()


def get(server: Heliograph, region: str, path: str) -> Any:
    return rest("GET", f"http://127.0.0.1:{server.regions[region][1]}{path}")


def consumers(server: Heliograph, topic: str) -> list[Any]:
    """Of subscription s; none while nobody answers for the topic."""
    (region,) = server.regions
    try:
        found = get(server, region, f"/admin/v2/persistent/public/default/{topic}/stats")["subscriptions"]["s"][
            "consumers"
        ]
    except OSError:  # which urllib's are, too
        return []
    return list(found)


def test_what_the_java_client_does(tmp_path: Path) -> None:
    program("TransactionShell")
    server = Heliograph(tmp_path / "data")
    with shells(server) as found:
        (sh,) = found.values()
        for command in ("subscribe a s Shared", "subscribe b s Exclusive"):
            assert sh(command) == ""
        sh("begin t 60000")
        sh("send t a x1 x2 x3"), sh("send t b y1"), sh("send - a plain")
        assert sh.nothing("a")
        assert sh("commit t") == ""
        assert sh.receive("a", 4) == ["x1", "x2", "x3", "plain"] and sh.receive("b", 1) == ["y1"]
        sh("begin u 60000")
        assert sh("ack u a s x1 x2 x3 plain") == ""
        sh("send u b never")
        assert sh("abort u") == ""
        assert sorted(sh.receive("a", 4)) == ["plain", "x1", "x2", "x3"] and sh.nothing("b")
        sh("begin v 60000"), sh("begin w 60000")
        assert sh("ack v a s x1 x2") == "" and sh("ack w a s x1").startswith("error TransactionConflictException")
        assert sh("commit v") == "" and sh("abort w") == ""
        sh("close a s"), sh("subscribe a s Shared")
        assert sorted(sh.receive("a", 2)) == ["plain", "x3"]
        sh("begin late 6000")
        assert sh("send late b late1").startswith("1 "), "within its time"
        sh("send - b behind")
        assert sh.receive("b", 1) == ["behind"]
        assert "InvalidTxnStatus" in sh("commit late")
        (region,) = server.regions
        stats = get(server, region, "/admin/v3/transactions/coordinatorStats")
        assert len(stats) == 16
        until(
            lambda: (
                not any(
                    one["ongoingTxnSize"]
                    for one in get(server, region, "/admin/v3/transactions/coordinatorStats").values()
                )
            )
        )
        told = get(server, region, "/admin/v3/transactions/transactionBufferStats/public/default/b")
        assert (told["ongoingTxnSize"], told["heliograph"]["committed"], told["heliograph"]["aborted"]) == (0, 1, 2)


def test_what_an_operator_sees_and_does(tmp_path: Path) -> None:
    program("TransactionShell")
    server = Heliograph(tmp_path / "data")
    with shells(server) as found:
        (sh,) = found.values()
        (region,) = server.regions
        assert sh("subscribe a s Shared") == ""
        coordinator, number = sh("begin t 600000").split()
        sh("send t a x1"), sh("send - a behind")
        named, topic = f"({coordinator},{number})", "persistent://public/default/a"
        assert list(get(server, region, "/admin/v3/transactions/slowTransactions/0")) == [named]
        told = get(server, region, f"/admin/v3/transactions/transactionMetadata/{coordinator}/{number}")
        ((as_the_client_names_it, part),) = told["producedPartitions"].items()
        assert (told["status"], part["aborted"]) == ("OPEN", False) and topic.endswith(as_the_client_names_it)
        command = [sys.executable, "-m", "heliograph.cli.main", "transactions", "abort", f"{coordinator}:{number}"]
        subprocess.run(
            [*command, "--admin", f"http://127.0.0.1:{server.regions[region][1]}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        assert sh.receive("a", 1) == ["behind"] and sh.nothing("a")
        until(lambda: get(server, region, "/admin/v3/transactions/slowTransactions/0") == {})
        in_buffer = f"/admin/v3/transactions/transactionInBufferStats/public/default/a/{coordinator}/{number}"
        assert get(server, region, in_buffer)["aborted"] is True
        wanted = {
            f'pulsar_txn_aborted_total{{cluster="{region}",coordinator_id="{coordinator}"}} 1',
            f'pulsar_txn_tb_aborted_total{{cluster="{region}",namespace="public/default",topic="{topic}"}} 1',
        }

        def counted() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.regions[region][1]}/metrics/", timeout=60) as answer:
                return wanted <= set(answer.read().decode().splitlines())

        until(counted)


def test_a_broker_is_killed_in_the_middle(tmp_path: Path) -> None:
    program("TransactionShell")
    server = Heliograph(tmp_path / "data", brokers=2)
    with shells(server) as found:
        (sh,) = found.values()
        topics = [f"k{n}" for n in range(6)]
        for topic in topics:
            assert sh(f"subscribe {topic} s Shared") == ""
        for n in range(4):
            sh(f"begin t{n} 120000")
            for topic in topics:
                assert sh(f"send t{n} {topic} {topic}-{n}").startswith("1 ")
        assert sh("commit t0") == ""
        server.process("kill", "standalone-broker-0")
        assert sh("commit t1") == "" and sh("abort t2") == "" and sh("commit t3") == ""
        # What a client took before it had heard of the death comes again when it is back: it is to take nothing before.
        until(lambda: all(len(consumers(server, topic)) == 1 for topic in topics))
        for topic in topics:
            assert sh.receive(topic, 3) == [f"{topic}-{n}" for n in (0, 1, 3)] and sh.nothing(topic)


def test_another_region_sees_whole_transactions(tmp_path: Path) -> None:
    program("TransactionShell")
    server = Heliograph(tmp_path / "data", regions=["us", "eu"])
    with shells(server) as found:
        us, eu = found["us"], found["eu"]
        assert us("subscribe t s Exclusive") == "" and eu("subscribe t s Exclusive") == ""
        us("send - t before"), us("begin a 120000"), us("send a t a1 a2"), us("send - t behind")
        us("begin b 120000"), us("send b t b1"), us("send - t last")
        assert eu.receive("t", 1) == ["before"] and eu.nothing("t")

        def waits_for_the_end() -> bool:
            link = get(server, "us", "/admin/v2/persistent/public/default/t/stats")["replication"]["eu"]
            return bool(link["cause"] == "transaction-open" and link["connected"])

        until(waits_for_the_end)
        assert us("commit a") == "" and us("abort b") == ""
        wanted = ["a1", "a2", "behind", "last"]
        assert eu.receive("t", 4) == wanted and us.receive("t", 5) == ["before", *wanted]
        eu("begin c 120000"), eu("send c t c1 c2")
        assert eu("commit c") == "" and us.receive("t", 2) == ["c1", "c2"]
