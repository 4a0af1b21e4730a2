"""A process by itself: what it says when it cannot start, and how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.model.errors import ConfigError
from region_node.process import role_process
from region_node.process.settings import ProcessSettings
from region_node.security.settings import SecuritySettings
from tests.region_node.region_processes import REPOSITORY, Region

pytestmark = [pytest.mark.wan, pytest.mark.slow]


def refused(settings: dict[str, Any], folder: Path, *options: str) -> str:
    """Runs a process that cannot start; returns what it said, which is one line."""
    path = folder / "refused.json"
    path.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "region_node.process", "--settings", str(path), *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2 and done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr
    return lines[-1]


def test_a_data_folder_in_use_of_another_node_and_of_another_version(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        mine = region.settings("meta-0", ["meta"], meta_node={"port": 0})
        running = region.spawn(mine).wait_ready()
        assert f"in use by process {running.popen.pid}" in refused(mine, tmp_path)
        assert running.terminate() == 0
        assert "belongs to us-meta-0 of region us, not to us-meta-1" in refused(
            {**mine, "node_id": "us-meta-1"}, tmp_path
        )
        version = Path(mine["data_dir"]) / "version.json"
        version.write_text(version.read_text().replace('"format": 1', '"format": 99'))
        assert "has format 99, this version reads format 1" in refused(mine, tmp_path)


def test_what_a_process_keeps_is_for_its_own_user_alone(tmp_path: Path) -> None:
    """The metadata holds the secret by which brokers trust each other. A folder of an earlier version is shut, too."""
    before = os.umask(0o022)
    try:
        with Region(tmp_path) as region:
            mine = region.settings("meta-0", ["meta"], meta_node={"port": 0})
            data = Path(mine["data_dir"])
            data.mkdir(0o755, parents=True)
            running = region.spawn(mine).wait_ready()
            kept = [data, *data.rglob("*")]
            assert {path.name for path in kept} >= {"lock", "version.json", "meta", "table", "data.mdb"}
            assert not [path for path in kept if path.stat().st_mode & 0o077]
            assert running.terminate() == 0
    finally:
        os.umask(before)


def test_a_log_that_cannot_be_read_is_named_in_a_sentence(tmp_path: Path) -> None:
    """Of a metadata node: it has acknowledged what lies there, so it does not begin anew by itself."""
    with Region(tmp_path) as region:
        mine = region.settings("meta-0", ["meta"], meta_node={"port": 0})
        region.spawn(mine).wait_ready().kill()
    log = next((Path(mine["data_dir"]) / "meta").glob("log-*"))
    damaged = bytearray(log.read_bytes())
    damaged[4] = 77  # of a version that nobody knows
    log.write_bytes(damaged)
    for _ in range(2):
        said = refused(mine, tmp_path)
        assert "what us-meta-0 keeps in" in said and "is not known" in said and "disks.md" in said
    assert log.read_bytes() == damaged, "it is left as it is"


@pytest.mark.parametrize(("role", "section"), [("meta", "meta_node"), ("config", "config_node"), ("bookie", "bookie")])
def test_a_port_that_is_taken(tmp_path: Path, role: str, section: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Region(tmp_path).settings("x", [role], meta=["127.0.0.1:1"], **{section: {"port": port}})
        text = refused(settings, tmp_path)
    assert "taken" in text or "in use" in text
    assert str(port) in text


def test_a_broker_that_is_open_to_all_says_so_at_each_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ended(*_: object) -> None:
        raise ConfigError("enough")

    monkeypatch.setattr(role_process, "build", ended)
    for bind, security, said in (
        ("10.0.0.1", SecuritySettings(allow_insecure=True), ["security.open_to_all"]),
        ("127.0.0.1", SecuritySettings(), []),
        ("10.0.0.1", SecuritySettings(authentication=("tls",)), []),
    ):
        caplog.clear()
        settings = ProcessSettings(region="us", node_id="b", roles=("broker",), bind=bind, security=security)
        with pytest.raises(ConfigError, match="enough"):
            asyncio.run(role_process.run(settings, cast(Any, None)))
        assert [row.message for row in caplog.records if row.levelno == logging.WARNING] == said


def test_wrong_settings_and_options(tmp_path: Path) -> None:
    good = Region(tmp_path).settings("x", ["meta"])
    assert "there is no setting 'colour'" in refused({**good, "colour": 1}, tmp_path)
    assert "'brooker' is none of" in refused(good, tmp_path, "--role", "brooker")
    assert "invalid choice: 'LOUD'" in refused(good, tmp_path, "--log-level", "LOUD")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_also_while_it_waits_for_its_metadata(tmp_path: Path, number: signal.Signals) -> None:
    with Region(tmp_path) as region:
        waiting = region.spawn(
            region.settings(
                "broker-0",
                ["broker"],
                meta=["127.0.0.1:1"],
                config=["127.0.0.1:1"],
                broker={"port": 0, "admin_port": 0},
            )
        )
        while "process.starting" not in waiting.log_path.read_text():
            assert waiting.popen.poll() is None
        waiting.popen.send_signal(number)
        assert waiting.popen.wait(120) == 0
        assert "Traceback" not in waiting.log_path.read_text()


def test_an_idle_region_is_small(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=1)
        total_mb = sum(process.pss_kb() for process in region.processes.values()) / 1024
        assert total_mb < 160
