"""A region of real processes loses its metadata and gets it back from a backup, through the commands that an operator
has.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import HeliographError
from region_node.commands.storage import backup_commands, unknown_ledger_commands
from tests.region_node.one_topic import TOPIC, provision, read_all
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.wan, pytest.mark.slow]
LATER = "persistent://public/default/later"


def run(*arguments: str, code: int = 0) -> str:
    """A command, in this process; errors that a person can mend are its code 2."""
    app = typer.Typer()
    backup_commands.register(app)
    unknown_ledger_commands.register(app)
    done = CliRunner().invoke(app, arguments)
    said, found = done.output, done.exit_code
    if isinstance(done.exception, HeliographError):
        said, found = said + str(done.exception), 2
    assert found == code, (said, done.exception)
    return said


def program(*arguments: str) -> str:
    """The same as an operator starts it."""
    command = [sys.executable, "-c", "from heliograph.cli.entry import main; main()", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=150).stdout


def publish(url: str, topic: str, messages: list[bytes]) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic)
        for message in messages:
            producer.send(message)
    finally:
        client.close()


def bookie_state(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/state", timeout=60) as response:
        state: dict[str, Any] = json.load(response)
    return state


def test_a_region_comes_back_from_a_backup_of_its_metadata(tmp_path: Path) -> None:
    later = [b"l0", b"l1", b"l2"]
    before, after = [b"b%d" % index for index in range(40)], [b"a%d" % index for index in range(40)]
    out = tmp_path / "us.backup"
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=1)
        rest = provision(region)
        meta, bookies = region.addresses["meta"][0], [region.processes[f"us-bookie-{i}"] for i in range(2)]
        https = [f"127.0.0.1:{bookie.ports['http']}" for bookie in bookies]
        publish(region.service_url(), TOPIC, before)
        keys = ["--key-file", str(tmp_path / "backup.keys")]
        program("keys", "master", keys[1])
        made = json.loads(program("backup", "--region", "us", "--address", meta, "--out", str(out), *keys, "--json"))
        assert made["keys"] > 3 and made["region"] == "us" and made["bytes"] == out.stat().st_size
        assert out.stat().st_mode & 0o777 == 0o600, "secrets are in it"
        assert "is there already" in run(
            "backup", "--region", "us", "--address", meta, "--out", str(out), *keys, code=2
        )
        publish(region.service_url(), TOPIC, after)
        publish(region.service_url(), LATER, later)  # a ledger that the backup does not know
        ledgers = [bookie_state(address)["ledgers"] for address in https]
        epoch = rest("GET", "/admin/v2/clusters/us")[1]["epoch"]

        region.processes["us-broker-0"].kill()
        process = region.processes["us-meta-0"]
        folder = tmp_path / "us-meta-0"
        arguments = ["--to", str(folder), "--voter", "us-meta-0", *keys]
        assert "running" in run("restore", str(out), *arguments, code=2)
        process.kill()
        assert "not empty" in run("restore", str(out), *arguments, code=2)
        shutil.rmtree(folder / "meta")
        restored = json.loads(run("restore", str(out), *arguments, "--json"))
        assert (
            restored["unknown_ledgers"] == 1
            and restored["vanished_ledgers"] == 0
            and restored["ledger_ids_from"] > 1_000_000_000
        )
        assert restored["bookies"] == ["us-bookie-0", "us-bookie-1"]

        ports = {
            "meta_node": {"port": process.ports["meta"]},
            "config_node": {"port": process.ports["config"], "raft_port": 0},
        }
        region.spawn(region.settings("meta-0", ["meta", "config"], **ports)).wait_ready()
        region.broker(0).wait_ready()
        found = read_all(region.service_url())
        assert found == before + after  # what came after lies in the same ledger, and its recovery finds it
        assert Rest(region.admin_url())("GET", "/admin/v2/clusters/us")[1]["epoch"] == epoch + 1
        publish(region.service_url(), TOPIC, [b"new"])
        assert read_all(region.service_url()) == [*found, b"new"]

        (unknown,) = json.loads(run("unknown-ledgers", "--address", meta, "--json"))
        assert (
            unknown["entries"] == 3
            and sorted(unknown["bookies"]) == ["us-bookie-0", "us-bookie-1"]
            and not unknown["beyond_a_gap"]
        )
        assert "--publish-to wants" in run("unknown-ledgers", "--address", meta, "--publish-to", LATER, code=2)
        assert "--after says" in run("unknown-ledgers", "--address", meta, "--after", "5", code=2)
        publishing = ["--ledger", str(unknown["ledger"]), "--publish-to", LATER, "--service", region.service_url()]
        assert "3 entries of ledger" in run("unknown-ledgers", "--address", meta, *publishing)
        assert read_all(region.service_url(), LATER) == later
        publishing[3] = TOPIC
        assert "behind entry 0" in run("unknown-ledgers", "--address", meta, *publishing, "--after", "0")
        assert read_all(region.service_url()) == [*found, b"new", *later[1:]], "as if the first had come back"

        confirm = ["confirm-restore", *(part for address in https for part in ("--http", address))]
        said = run(*confirm, code=1)  # nobody says yes
        assert said.count("restored or is another region's") == 2
        states = [bookie_state(address) for address in https]
        assert all(state["ledgers"] >= count for state, count in zip(states, ledgers, strict=True))
        assert all(state["garbageCollection"]["deletedLedgers"] == 0 for state in states)
        said = run(*confirm, "--yes")  # also that so many of its ledgers are unknown
        assert (
            said.count("restored or is another region's") == 2
            and said.count("more than a fifth") == 2
            and said.count(": confirmed") == 4
        )
        assert run(*confirm).count("nothing to confirm") == 2
        states = [bookie_state(address)["garbageCollection"] for address in https]
        assert all(state["metadataInstance"] == restored["instance"] and state["suspects"] == 1 for state in states), (
            states
        )
