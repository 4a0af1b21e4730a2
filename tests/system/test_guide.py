"""Pages of docs/operating for an instance on one machine, command by command, as a new operator reads them: from an
empty folder to its end.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import eventually, heliograph, rest
from region_node.instance.plan.layout import LoopbackPorts
from tests.guide.page import Page, path_of
from tests.guide.shell import Reader, Shell

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path) as made:
        try:
            yield made
        finally:
            if (tmp_path / ".heliograph").exists():
                heliograph("down", "--data", str(tmp_path / ".heliograph"))


def status(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(heliograph("status", "--data", str(folder / ".heliograph"), "--json").stdout)
    return answer


def messages(service: str, count: int) -> list[bytes]:
    """Empty where the topic cannot be read at the moment: a client that is refused while its region begins anew asks no
    more by itself.
    """
    client = pulsar.Client(service, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60)
    try:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        return [reader.read_next(timeout_millis=60_000).data() for _ in range(count)]
    except (pulsar.Timeout, pulsar.ConnectError, pulsar.BrokerMetadataError):
        return []
    finally:
        client.close()


def block_of(page: str, kind: str) -> str:
    """The first block of another kind on a page, such as a settings file."""
    found = re.search(rf"^```{kind}\n(.*?)^```", path_of(page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_an_instance_on_one_machine(shell: Shell, tmp_path: Path) -> None:
    reader = Reader(Page.read("operating.md"), shell)
    for command, _ in reader.steps("Processes"):
        if command == "heliograph status":
            us = status(tmp_path)["regions"]["us"]
            shell.places |= {"ADMIN_URL": us["admin_url"], "SERVICE_URL": us["service_url"]}
    service, admin = str(us["service_url"]), str(us["admin_url"])
    reader.section("Look")

    scaling = Reader(Page.read("scaling.md"), shell)
    assert "heaviest bundles" in scaling.section("See the load")[0]
    scaling.section("A broker or a bookie more, or one less")
    before = {row["name"]: row["pid"] for row in status(tmp_path)["regions"]["us"]["processes"]}
    assert {"us-broker-1", "us-bookie-3"}.isdisjoint(before) and "us-bookie-2" in before
    scaling.section("Rolling restart and upgrade")
    scaling.finish()
    assert not set(before.values()) & {row["pid"] for row in status(tmp_path)["regions"]["us"]["processes"]}
    (tmp_path / "rules.toml").write_text(block_of("scaling.md", "toml"))
    assert shell.run(f"heliograph autoscale rules.toml --admin {admin} --dry-run --looks 1") is not None

    epoch = rest("GET", f"{admin}/admin/v2/clusters/us")["epoch"]
    reader.section("Metadata and configuration")
    shell.run("heliograph produce orders -m 'behind the backup'")
    reader.section("The metadata of a region is lost")
    eventually(lambda: rest("GET", f"{admin}/admin/v2/clusters/us")["epoch"] == epoch + 1, "the region's epoch rises")
    (unknown,) = json.loads(shell.run("heliograph unknown-ledgers --region us --json"))
    shell.places["LEDGER"] = str(unknown["ledger"])
    reader.section("What became of what came after the backup")
    found = eventually(lambda: messages(service, 3), "the topic is served again")
    assert found == [b"hello", b"again", b"behind the backup"]
    reader.section("The global configuration is lost")
    eventually(
        lambda: "public/default" in shell.run("heliograph namespaces list public", codes=(0, 2)),
        "the namespaces of the backup are there",
    )
    eventually(lambda: messages(service, 3), "the topic is served again")

    reader.section("Commands")
    for command, _ in reader.steps("Rehearse"):
        if command.startswith("heliograph wan cut"):
            eventually(lambda: any(row["state"] != "connected" for row in status(tmp_path)["links"]), "the cut is seen")

    repairs = Reader(Page.read("repair.md"), shell)
    repairs.section("Lost and damaged ledgers")
    repairs.finish()
    logs = Reader(Page.read("logs.md"), shell)
    logs.section("heliograph support dump")
    logs.finish()

    ports = LoopbackPorts()
    port, web = ports.free(), ports.free()
    shell.environment = {
        name: value
        for name, value in shell.environment.items()
        if name not in ("HELIOGRAPH_ADMIN", "HELIOGRAPH_SERVICE")
    }
    shell.places |= {
        "standalone --tls": f"standalone --tls --service-port {port} --admin-port {web}",
        "127.0.0.1:6650": f"127.0.0.1:{port}",
    }
    shell.environment["HELIOGRAPH_BROKER__USAGE__WRITE_S"] = "1"
    shell.places |= {"127.0.0.1:8080": f"127.0.0.1:{web}", "python -c": f"{sys.executable} -c"}
    for command, said in reader.steps("Security"):
        if command.startswith("heliograph standalone"):
            found = re.search(r"pulsar\+ssl://127\.0\.0\.1:(\d+)", said)
            assert found is not None
            shell.places["PORT"] = found[1]
    reader.finish()

    shell.environment |= {
        "HELIOGRAPH_ADMIN": f"http://127.0.0.1:{web}",
        "HELIOGRAPH_SERVICE": f"pulsar://127.0.0.1:{port}",
    }
    tenants = Reader(Page.read("tenants.md"), shell)
    tenants.section("The grant")
    tenants.section("What the tenant does")
    assert '"messages_in": 1' in tenants.section("What it used")[0]
    tenants.finish()
    report = "HELIOGRAPH_TOKEN=$ROOT heliograph tenants usage --csv --tenant acme"
    eventually(
        lambda: re.search(r"^[\d-]+,standalone,acme,1,\d+,1,\d+,", shell.run(report), re.MULTILINE),
        "the month's line has the message",
    )
    assert (tmp_path / "secured" / "acme.svg").read_text().startswith("<svg") and (
        tmp_path / "secured" / "usage.csv"
    ).read_text().count("\n") >= 1
