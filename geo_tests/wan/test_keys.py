"""docs/operating/keys.md, command by command, against a real region; and what bookies hold, and who is refused,
meanwhile.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import eventually
from geo_tests.wan.kafka_support import rest
from region_node.security.certificate_authority import ensure_certificates
from tests.guide.page import Page
from tests.guide.shell import Reader, Shell
from tests.region_node.region_processes import REPOSITORY, Region

pytestmark = pytest.mark.long

WORDS = (b"one", b"two", b"a word that nobody else writes")
RECEIPT = b"a receipt"
"""As the page has it: of a namespace without the policy."""


def read(region: Region, topic: str, count: int) -> list[bytes]:
    client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]
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


def compacted_and_offloaded(region: Region, shell: Shell, topic: str, store: Path) -> None:
    """Both read what is sealed and write it again: nothing of it is in the clear afterwards, and all of it can be
    read.
    """
    shell.run("heliograph namespaces set shop/cards retention retentionTimeInMinutes=-1,retentionSizeInMB=-1")
    shell.run(f"heliograph produce {topic} -k card -m first")
    shell.run(f"heliograph produce {topic} -k card -m last")
    shell.run(f"heliograph topics compact {topic}")
    eventually(lambda: "SUCCESS" in shell.run(f"heliograph topics compact {topic} --status"), "it is compacted")
    client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        assert reader.read_next(timeout_millis=60_000).data() == b"last", (
            "what has no key goes, and of a key the newest stays"
        )
    finally:
        client.close()
    shell.run(f"heliograph topics offload {topic} --now")
    eventually(lambda: shell.run(f"heliograph topics offload-status {topic}").startswith("done"), "it is in the store")
    objects = [path for path in store.rglob("*") if path.is_file() and path.stat().st_size]
    assert objects
    assert not [path for path in objects for word in (WORDS[2], b"first", b"last") if word in path.read_bytes()]


def sealed_anew(region: Region, shell: Shell, page: Reader, numbers: list[str]) -> None:
    """The broker that is at it dies; then the older key goes by force: whatever is read from here on needs it not."""
    for namespace in ("cards", "receipts"):  # a ledger that is closed goes, where nobody wants it
        keep = "retentionTimeInMinutes=-1,retentionSizeInMB=-1"
        shell.run(f"heliograph namespaces set shop/{namespace} retention {keep}")
    page.section("Encryption at rest: older ledgers under a new key")

    def status() -> Any:
        return json.loads(shell.run("heliograph keys reseal-status shop --json"))

    def written() -> bool:
        job = status()
        return bool(job["ledgers_done"] >= 2 and not job["ledgers_left"] and not job["ledgers_kept"])

    shell.run("heliograph keys reseal shop --cancel")
    eventually(lambda: status()["state"] == "cancelled", "it is cancelled")
    shell.run("heliograph keys reseal shop --bytes-per-s 1024 --keep-hours 0")
    region.processes["us-broker-0"].kill()
    region.spawn(json.loads((region.folder / "us-broker-0.json").read_text())).wait_ready()
    shell.environment |= {"HELIOGRAPH_ADMIN": region.admin_url(), "HELIOGRAPH_SERVICE": region.service_url()}
    assert read(region, "persistent://shop/receipts/all", 1) == [RECEIPT]
    assert [word.split()[0] for word in read(region, "persistent://shop/cards/paid", 2)] == list(WORDS[:2])
    eventually(written, "all of it is written anew")
    shell.run(f"heliograph keys remove shop {numbers[0]} --force")


@pytest.mark.timeout(900)
def test_the_page_is_true_and_disks_hold_nothing_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    topic, master, store = "persistent://shop/cards/paid", tmp_path / "master.keys", tmp_path / "store"
    with Region(tmp_path) as region, Shell(tmp_path) as shell:
        page = Reader(Page.read("keys.md"), shell)
        for command, _ in page.steps("Encryption at rest: switch it on"):
            if command.startswith("heliograph keys master"):
                store.mkdir()
                region.start(encryption={"master_key_file": str(master)}, tiered={"store": f"file://{store}"})
                rest(region, "PUT", "/admin/v2/clusters/us", {})
                for tenant in ("public", "shop"):
                    rest(region, "PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": ["us"]})
                rest(region, "PUT", "/admin/v2/namespaces/public/default")
                shell.environment |= {
                    "HELIOGRAPH_ADMIN": region.admin_url(),
                    "HELIOGRAPH_SERVICE": region.service_url(),
                }
        page.section("Encryption at rest: a tenant that has to be encrypted")
        page.section("Encryption at rest: another data key")
        listed = json.loads(shell.run("heliograph keys list shop --json"))["keys"]
        assert [(key["seals"], key["topics"]) for key in listed] == [(False, 2), (True, 0)]
        sealed_anew(region, shell, page, [key["number"] for key in listed])
        publish(region, topic, WORDS[2])
        publish(region, "persistent://public/default/open", b"in the clear for all to see")
        assert eventually(
            lambda: on_disk(tmp_path, b"in the clear for all to see"), "what is not sealed is found on disks"
        )
        assert not on_disk(tmp_path, WORDS[2]) and not on_disk(tmp_path, RECEIPT)
        assert read(region, "persistent://shop/receipts/all", 1) == [RECEIPT]
        assert [word.split()[0] for word in read(region, topic, 3)] == [word.split()[0] for word in WORDS]

        compacted_and_offloaded(region, shell, topic, store)
        page.section("Encryption at rest: another master key")
        after = json.loads(shell.run("heliograph keys list --json"))
        assert {key["master"] for key in after["tenants"]["shop"]} == {after["master"]} != {listed[0]["master"]}
        master.write_text(master.read_text().splitlines(keepends=True)[0])  # the older one is taken out
        broker = region.processes["us-broker-0"]
        settings = json.loads((tmp_path / "us-broker-0.json").read_text())
        broker.kill()
        for wrong, says in (
            ("", "no master key is set"),
            (str(tmp_path / "other.keys"), "the master keys given are other"),
        ):
            if wrong:
                shell.run("heliograph keys master other.keys --name other")
            refused = tmp_path / "refused.json"
            refused.write_text(
                json.dumps({**settings, "broker": {**settings["broker"], "encryption": {"master_key_file": wrong}}})
            )
            command = [sys.executable, "-m", "region_node.process", "--settings", str(refused)]
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 2 and says in done.stderr.splitlines()[-1], done.stderr
        process = region.processes[
            "us-meta-0"
        ]  # the region forgets all of its topics; the configuration, with the wrapped keys, is there still
        process.kill()
        shutil.rmtree(tmp_path / "us-meta-0" / "meta")
        ports = {
            "meta_node": {"port": process.ports["meta"]},
            "config_node": {"port": process.ports["config"], "raft_port": 0},
        }
        region.spawn(region.settings("meta-0", ["meta", "config"], **ports)).wait_ready()
        region.spawn(settings).wait_ready()
        shell.environment |= {"HELIOGRAPH_ADMIN": region.admin_url(), "HELIOGRAPH_SERVICE": region.service_url()}
        assert not json.loads(shell.run("heliograph topics list shop/cards --json"))
        restoring = f"heliograph tier restore --topic {topic}"
        eventually(
            lambda: shell.run(restoring, codes=(0, 1, 2)) and topic in shell.run("heliograph topics list shop/cards"),
            "it is back",
        )
        assert read(region, topic, 3) == list(WORDS)

        guarded: dict[str, Any] = {}
        statuses: list[tuple[int, ...]] = []
        issued: list[str] = []
        for command, said in page.steps("Tokens: another key"):
            if "tokens create" in command:
                issued.append(said.strip())
                if not guarded:
                    source = {"algorithms": ["ES256"], "jwks_file": str(tmp_path / "keys.json")}
                    security = {
                        "authentication": ["token"],
                        "authorization": True,
                        "super_users": ["root"],
                        "tokens": [source],
                    }
                    broker = {**settings["broker"], "port": 0, "admin_port": 0}
                    guarded = region.settings(
                        "broker-1", ["broker"], **region.addresses, security=security, broker=broker
                    )
                    region.spawn(guarded).wait_ready()
                statuses.append(tuple(status_of(region.admin_url(1), token) for token in issued))
            elif "tokens list" in command:
                assert len(said.splitlines()) == 2
                shell.environment["FIRST"] = said.split()[0]
        statuses.append(tuple(status_of(region.admin_url(1), token) for token in issued))
        assert statuses == [(200,), (200, 200), (401, 200)]
        ensure_certificates(tmp_path / "tls", ["us"])
        page.section("Certificates")
        page.finish()
