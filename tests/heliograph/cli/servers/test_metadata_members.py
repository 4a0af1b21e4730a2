"""The metadata of a running region grows from one voter to three, hands over, and loses its first, by the command line,
while a producer goes on.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import typer
from typer.testing import CliRunner

from geo_tests.wan.instance import eventually
from heliograph.cli.servers import metadata_members
from heliograph.model.errors import HeliographError
from tests.region_node.region_processes import Process, Region
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.wan, pytest.mark.slow]

APP = typer.Typer()
metadata_members.register(APP)
MEMBERS = "/heliograph/v1/metadata/members"


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=1)
        rest = Rest(region.admin_url())
        assert (
            rest(
                "PUT",
                "/admin/v2/clusters/us",
                {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()},
            )[0]
            == 204
        )
        assert rest("PUT", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": ["us"]})[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/default", {})[0] == 204
        yield region


def meta(region: Region, *arguments: str) -> tuple[int, str]:
    """Exit code and what is printed, as `heliograph meta ...` would."""
    done = CliRunner().invoke(APP, ["meta", *arguments, "--admin", region.admin_url()])
    if isinstance(done.exception, HeliographError):
        return 2, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


def rows(region: Region) -> dict[str, dict[str, Any]]:
    answer = json.loads(meta(region, "members", "--json")[1])
    return {row["member"]: row for row in answer["members"]}


def start_member(region: Region, name: str, founder: str) -> tuple[Process, str]:
    known = {founder: f"127.0.0.1:{region.processes[founder].ports['meta']}"}
    process = region.spawn(
        region.settings(name, ["meta"], meta_node={"port": 0, "joining": True, "peers": known})
    ).wait_ready()
    return process, f"127.0.0.1:{process.ports['meta']}"


def test_members_by_the_command_line(region: Region) -> None:
    (founder,) = rows(region)
    rest = Rest(region.admin_url())
    client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("public/default/during", send_timeout_millis=120_000)
    ended = threading.Event()
    sent: list[int] = []

    def publish() -> None:
        while not ended.wait(0.02):
            producer.send(b"%d" % len(sent))
            sent.append(len(sent))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        addresses = {}
        for name in ("m1", "m2"):
            _, addresses[name] = start_member(region, name, founder)
        assert (
            meta(region, "add", "us-m1", addresses["m1"], "--dry-run") == (0, "us-m1 would be added as a learner\n")
            and len(rows(region)) == 1
        )
        assert meta(region, "add", "us-m1", addresses["m1"]) == (0, "us-m1 is a learner\n")
        code, text = meta(region, "promote", "us-m1")
        assert code == 0 and "us-m1 is a voter" in text
        code, text = meta(region, "add", "us-m2", addresses["m2"], "--promote")
        assert code == 0 and "us-m2 is a voter" in text
        assert {name: row["role"] for name, row in rows(region).items()} == {
            founder: "voter",
            "us-m1": "voter",
            "us-m2": "voter",
        }
        assert meta(region, "promote", "us-m2")[1].strip() == "nothing to do: us-m2 is a voter"

        region.processes["us-m2"].kill()
        eventually(lambda: rows(region)["us-m2"]["silent_s"] > 0.6, "silent for longer than an election time-out")
        code, text = meta(region, "remove", "us-m1")
        assert (
            code == 2
            and "the quorum would be lost: of the 2 voters that this leaves, 2 must answer, and us-m2 does not" in text
        )
        status, answer = rest("DELETE", f"{MEMBERS}/us-m1?dry_run=true")
        assert status == 412 and "the quorum would be lost" in answer["reason"]
        assert (
            rest("POST", f"{MEMBERS}/us-m9", {"address": "nonsense"})[0] == 412
            and rest("POST", f"{MEMBERS}/us-m9", {})[0] == 400
        )
        code, text = meta(region, "transfer", "us-m2")
        assert code == 2 and "does not answer" in text
        assert meta(region, "remove", "us-m2") == (0, "us-m2 is no member any more: stop its process\n")

        eventually(
            lambda: meta(region, "transfer", "us-m1")[0] == 0, "us-m1 leads, within one election time-out of some try"
        )
        leads = r'heliograph_metadata_leader\{[^}]*group="metadata"[^}]*leader="us-m1"[^}]*\} 1'
        eventually(lambda: re.search(leads, scrape(region)), "the metrics name the new leader")
        metrics = scrape(region)
        assert re.search(r'heliograph_metadata_voters\{[^}]*group="metadata"[^}]*\} 2', metrics), metrics[-3000:]
        assert "heliograph_metadata_write_seconds{" in metrics
        assert meta(region, "remove", founder)[0] == 0
        before = len(sent)
        eventually(lambda: len(sent) > before + 20, "the producer goes on")
        assert list(rows(region)) == ["us-m1"] and "us-m1 leads term" in meta(region, "members")[1]

        region.processes[founder].kill()  # as the command says; else it goes on telling what it knew last
        _, address = start_member(region, "m3", "us-m1")
        code, text = meta(region, "replace", "us-m1", "us-m3", address)
        assert code == 0 and "us-m3 is a voter in the place of us-m1" in text
        before = len(sent)
        eventually(lambda: len(sent) > before + 20, "the producer goes on with the new one")
        assert list(rows(region)) == ["us-m3"]
        code, text = meta(region, "replace", "us-m1", "us-m3", address)
        assert code == 0, f"it may be repeated: {text}"
    finally:
        ended.set()
        publisher.join()
        client.close()


def scrape(region: Region) -> str:
    with urllib.request.urlopen(f"{region.admin_url()}/metrics") as answer:
        return str(answer.read().decode())
