"""docs/operating/keys.md, command by command, against a real region; and what bookies hold, and who is refused, meanwhile."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pulsar
import pytest
import typer
from typer.testing import CliRunner

from geo_tests.wan.guides import commands
from geo_tests.wan.instance import eventually
from geo_tests.wan.kafka_support import rest
from heliograph.cli import messages, provisioning, topics
from region_node import commands as server_commands
from region_node.instance.ca import ensure_certificates
from tests.broker.processes import REPOSITORY, Region

PAGE = "keys.md"
WORDS = (b"one", b"two", b"a word that nobody else writes")


def program() -> typer.Typer:
    """`heliograph`, in this process: starting one for each line of the page takes longer than all they do."""
    made = typer.Typer()
    for area in (provisioning, topics, messages):
        area.register(made)
    server_commands.register(made)
    return made


class Shell:
    """Runs the page's commands in one folder, as its reader would."""

    def __init__(self, region: Region) -> None:
        self.region, self.app = region, program()
        self.said: list[str] = []

    def section(self, heading: str) -> None:
        for line in commands(PAGE)[heading]:
            self.run(line)

    def run(self, line: str, **replaced: str) -> str:
        environment = {}
        if "us-broker-0" in self.region.processes:
            environment = {"HELIOGRAPH_ADMIN": self.region.admin_url(), "HELIOGRAPH_SERVICE": self.region.service_url()}
        done = CliRunner().invoke(self.app, [replaced.get(word, word) for word in shlex.split(line)[1:]], env=environment)
        assert done.exit_code == 0, f"{line}: {done.output}{done.exception}"
        self.said.append(done.stdout)
        return done.stdout


def read(region: Region, topic: str, count: int) -> list[bytes]:
    client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return [reader.read_next(timeout_millis=30_000).data() for _ in range(count)]
    finally:
        client.close()


def publish(region: Region, topic: str, word: bytes) -> None:
    client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_producer(topic).send(word)
    finally:
        client.close()


def on_disk(folder: Path, word: bytes) -> list[Path]:
    return [path for path in folder.glob("*-bookie-*/**/*") if path.is_file() and word in path.read_bytes()]


def status_of(url: str, token: str) -> int:
    request = urllib.request.Request(f"{url}/admin/v2/clusters", headers={"Authorization": f"Bearer {token}"})
    try:
        return int(urllib.request.urlopen(request, timeout=30).status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.timeout(180)
def test_the_page_is_true_and_disks_hold_nothing_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    topic, master = "persistent://shop/cards/paid", tmp_path / "master.keys"
    with Region(tmp_path) as region:
        shell = Shell(region)
        first, *others = commands(PAGE)["Encryption at rest: switch it on"]
        shell.run(first)
        region.start(encryption={"master_key_file": str(master)})
        rest(region, "PUT", "/admin/v2/clusters/us", {})
        for tenant in ("public", "shop"):
            rest(region, "PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["us"]})
        rest(region, "PUT", "/admin/v2/namespaces/public/default")
        for line in others:
            shell.run(line)
        shell.section("Encryption at rest: another data key")
        listed = json.loads(shell.run("heliograph keys list shop --json"))["keys"]
        assert [(key["seals"], key["topics"]) for key in listed] == [(False, 1), (True, 0)]
        publish(region, topic, WORDS[2])
        publish(region, "persistent://public/default/open", b"in the clear for all to see")
        assert eventually(lambda: on_disk(tmp_path, b"in the clear for all to see"), "what is not sealed is found on disks")
        assert not on_disk(tmp_path, WORDS[2])
        assert [word.split()[0] for word in read(region, topic, 3)] == [word.split()[0] for word in WORDS]

        shell.section("Encryption at rest: another master key")
        after = json.loads(shell.run("heliograph keys list --json"))
        assert {key["master"] for key in after["tenants"]["shop"]} == {after["master"]} != {listed[0]["master"]}
        master.write_text(master.read_text().splitlines(keepends=True)[0])  # the older one is taken out
        broker = region.processes["us-broker-0"]
        settings = json.loads((tmp_path / "us-broker-0.json").read_text())
        broker.kill()
        for wrong, says in (("", "no master key is set"), (str(tmp_path / "other.keys"), "the master keys given are other")):
            if wrong:
                shell.run("heliograph keys master other.keys --name other")
            refused = tmp_path / "refused.json"
            refused.write_text(json.dumps({**settings, "broker": {**settings["broker"], "encryption": {"master_key_file": wrong}}}))
            command = [sys.executable, "-m", "region_node.process", "--settings", str(refused)]
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2 and says in done.stderr.splitlines()[-1], done.stderr
        region.spawn(settings).wait_ready()
        assert [word.split()[0] for word in read(region, topic, 3)] == [word.split()[0] for word in WORDS]

        ensure_certificates(tmp_path / "tls", ["us"])
        shell.section("Certificates")
        made, added = commands(PAGE)["Tokens: another key"][:2], commands(PAGE)["Tokens: another key"][2:5]
        old = [shell.run(line) for line in made][-1].strip()
        source = {"algorithms": ["ES256"], "jwks_file": str(tmp_path / "keys.json")}
        security = {"authentication": ["token"], "authorization": True, "super_users": ["root"], "tokens": [source]}
        guarded = region.settings("broker-1", ["broker"], **region.addresses, security=security, broker={**settings["broker"], "port": 0, "admin_port": 0})
        region.spawn(guarded).wait_ready()
        url = region.admin_url(1)
        assert status_of(url, old) == 200
        new = [shell.run(line) for line in added][1].strip()
        assert (status_of(url, old), status_of(url, new)) == (200, 200)
        kid = shell.said[-1].split()[0]
        assert len(shell.said[-1].splitlines()) == 2
        shell.run(commands(PAGE)["Tokens: another key"][5], **{"$FIRST": kid})
        assert (status_of(url, old), status_of(url, new)) == (401, 200)
