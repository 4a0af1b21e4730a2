"""A region that runs the wheels of an earlier commit is upgraded to this tree, process by process, under load; and for
a while half of it is old.

That commit is the first with today's formats on disk and between processes. Its wheels are built from the repository's
history; where it is not there (an archive, a shallow clone), the test says so and is skipped.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest

from geo_tests.wan.instance import eventually, rest
from heliograph.model.feature_levels import LEVEL

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "persistent://public/default/through-the-upgrade"
FORMATS_SINCE = "c970b716b6b5a969c603f11c7012f69e2730eac1"
"""Whoever changes a format puts the commit here that did."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose heliograph is that of the commit above."""
    folder = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", FORMATS_SINCE], capture_output=True)
    if archive.returncode:
        pytest.skip(f"commit {FORMATS_SINCE[:8]} is not here: clone the whole history")
    source, site = folder / "source", folder / "site"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    for project in (source, source / "packaging" / "server"):
        build = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(folder / "wheels"),
            str(project),
        ]
        subprocess.run(build, check=True, capture_output=True)
    wheels = [str(wheel) for wheel in (folder / "wheels").glob("*.whl")]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), *wheels], check=True
    )
    return interpreter(folder / "python-old", f"export PYTHONPATH={site}")


def interpreter(path: Path, line: str) -> Path:
    path.write_text(f'#!/bin/sh\n{line}\nexec {sys.executable} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def command(python: Path | str, *arguments: str) -> dict[str, Any]:
    line = [str(python), "-c", "from heliograph.cli.entry import main; main()", *arguments, "--json"]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=500,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def region(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("HELIOGRAPH_BROKER__OWNERSHIP", '{"lease_ttl_ms": 60000}')
    data = str(tmp_path / "data")
    state = command(old, "up", "--data", data, "--regions", "us", "--brokers", "2", "--bookies", "3")
    yield state["regions"]["us"] | {"data": data}
    subprocess.run(
        [sys.executable, "-c", "from heliograph.cli.entry import main; main()", "down", "--data", data], check=True
    )


def versions(data: str) -> dict[str, str]:
    """Process -> the folder that its code comes from; "" is this tree."""
    rows = command(sys.executable, "status", "--data", data)["regions"]["us"]["processes"]
    return {row["name"]: psutil.Process(row["pid"]).environ().get("PYTHONPATH", "") for row in rows}


def level_fits(admin: str) -> int:
    """The region's feature level; it is not above that of any broker."""
    shown = rest("GET", f"{admin}/heliograph/v1/status")
    level = int(shown.get("level", 1))
    assert level <= min(broker.get("level", 1) for broker in shown["brokers"])
    return level


def test_a_region_is_upgraded_from_an_earlier_commit_under_load(region: dict[str, Any], tmp_path: Path) -> None:
    data = region["data"]
    assert all(versions(data).values()), "all of it is old"
    client = pulsar.Client(region["service_url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Failover)
    producer = client.create_producer(TOPIC, send_timeout_millis=180_000, block_if_queue_full=True)
    answers: list[Any] = []
    sent, stop = [0], threading.Event()

    def publish() -> None:
        pause = threading.Event()
        while not stop.is_set():
            producer.send_async(b"%d" % sent[0], lambda result, _: answers.append(result))
            sent[0] += 1
            pause.wait(0.005)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    new = interpreter(tmp_path / "python-new", "unset PYTHONPATH")
    upgrade = [
        "-c",
        "from heliograph.cli.entry import main; main()",
        "rolling",
        "upgrade",
        "--data",
        data,
        "--python",
        str(new),
    ]
    half = subprocess.Popen([sys.executable, *upgrade], stderr=subprocess.PIPE, text=True)
    assert half.stderr is not None
    eventually(lambda: "us-broker-0" in half.stderr.readline(), "the first broker has its turn", 400)  # type: ignore[union-attr]
    half.terminate()
    half.stderr.read()
    half.wait()
    mixed = set(
        eventually(lambda: (v := versions(data)) and len(set(v.values())) == 2 and v.values(), "both versions run")
    )
    assert "" in mixed
    level_fits(region["admin_url"])
    seen = len(answers)
    eventually(lambda: len(answers) > seen + 100, "the two versions work together")

    command(sys.executable, "rolling", "upgrade", "--data", data, "--python", str(new))
    assert not any(versions(data).values()), "all of it is new"
    assert rest("PUT", f"{region['admin_url']}/admin/v2/namespaces/public/default/LARGEST/split") is None, (
        "what only the new version knows works by now"
    )
    eventually(lambda: level_fits(region["admin_url"]) == LEVEL, "the region's level is the new version's")
    stop.set()
    thread.join()
    producer.flush()
    assert set(answers) == {pulsar.Result.Ok} and len(answers) == sent[0]
    received = []
    while len(received) < sent[0]:
        message = consumer.receive(timeout_millis=60_000)
        consumer.acknowledge(message)
        received.append(int(message.data()))
    assert list(dict.fromkeys(received)) == list(range(sent[0])), "all of them, in order"
    assert rest("GET", f"{region['admin_url']}/heliograph/v1/balance")["paused_s"] == 0
    client.close()
