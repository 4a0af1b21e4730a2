"""A whole region by one command each way, with everything of it deleted in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.region_node.live import FOR_EVER, NAMESPACE, TOPICS, until
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.long, pytest.mark.wan, pytest.mark.slow]
EARLIEST = pulsar.InitialPosition.Earliest
HELIOGRAPH = Path(sys.executable).with_name("heliograph")


def region_command(*arguments: str, code: int = 0) -> Any:
    done = subprocess.run([HELIOGRAPH, "region", *arguments, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def client_of(region: Region) -> Any:
    return pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def taken(consumer: Any, count: int) -> list[str]:
    return [consumer.receive(60_000).data().decode() for _ in range(count)]


def test_a_region_comes_back_from_a_store_and_a_file_alone(tmp_path: Path) -> None:
    store, file = f"file://{tmp_path / 'store'}", tmp_path / "us.json"
    for name in ("store", "us", "again"):
        (tmp_path / name).mkdir()
    with Region(tmp_path / "us") as region:
        region.start(bookies=2, tiered={"store": store})
        rest = Rest(region.admin_url())
        assert (
            rest(
                "PUT",
                "/admin/v2/clusters/us",
                {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()},
            )[0]
            == 204
        )
        assert rest("PUT", "/admin/v2/tenants/public", {"allowedClusters": ["us"]})[0] == 204
        assert rest("PUT", NAMESPACE, {"retention_policies": FOR_EVER})[0] == 204
        assert rest("PUT", "/admin/v2/namespaces/public/quiet", {"message_ttl_in_seconds": 77})[0] == 204
        assert rest("PUT", f"{TOPICS}/parts/partitions", 3)[0] == 204
        assert (
            rest("PUT", f"{TOPICS}/nothing")[0] == 204 and rest("PUT", f"{TOPICS}/nothing/subscription/later")[0] == 204
        )
        client = client_of(region)
        plain = client.create_producer("plain", producer_name="p")
        consumer = client.subscribe("plain", "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
        for n in range(100):
            plain.send(str(n).encode())
        for message in [consumer.receive(60_000) for _ in range(30)]:
            if message.data() != b"7":
                consumer.acknowledge(message)
        parts = client.create_producer("parts")
        for n in range(30):
            parts.send(str(n).encode(), partition_key=str(n))
        one_side = f"{TOPICS}/plain/stats"
        until(lambda: rest("GET", one_side)[1]["subscriptions"]["s"]["unackedMessages"] == 71)
        before = region_command("backup", "--out", str(file), "--admin", region.admin_url())
        assert (before["topics"], before["stored"]) == (5, 4) and before["bytes"] > 0
        assert "is there already" in region_command("backup", "--out", str(file), "--admin", region.admin_url(), code=2)
        plain.send(b"after the backup")
        client.close()
    shutil.rmtree(tmp_path / "us")

    with Region(tmp_path / "again") as region:
        region.start(bookies=2)
        rest = Rest(region.admin_url())
        assert (
            rest(
                "PUT",
                "/admin/v2/clusters/us",
                {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()},
            )[0]
            == 204
        )
        done = region_command("restore", str(file), "--admin", region.admin_url())
        assert (done["topics"], done["already_there"], done["empty"], done["entries"]) == (2, 0, 1, 130)
        again = region_command("restore", str(file), "--admin", region.admin_url())
        assert (again["already_there"], again["entries"]) == (2, 0), "what is there is left alone"
        assert rest("GET", "/admin/v2/namespaces/public/quiet")[1]["message_ttl_in_seconds"] == 77
        assert rest("GET", NAMESPACE)[1]["retention_policies"] == FOR_EVER
        assert rest("GET", f"{TOPICS}/parts/partitions")[1]["partitions"] == 3
        assert rest("GET", f"{TOPICS}/nothing/subscriptions")[1] == ["later"]
        client = client_of(region)
        assert taken(client.subscribe("plain", "all", initial_position=EARLIEST), 100) == [str(n) for n in range(100)]
        assert sorted(taken(client.subscribe("parts", "all", initial_position=EARLIEST), 30), key=int) == [
            str(n) for n in range(30)
        ]
        consumer = client.subscribe("plain", "s", pulsar.ConsumerType.Shared)
        assert taken(consumer, 71) == ["7", *(str(n) for n in range(30, 100))], (
            "what was acknowledged does not come again, one by one"
        )
        client.create_producer("plain", producer_name="p").send(b"new")
        assert taken(consumer, 1) == ["new"]
        client.close()


def test_without_a_store_or_with_another_file_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "us").mkdir()
    other = tmp_path / "other.json"
    other.write_text("[]")
    with Region(tmp_path / "us") as region:
        region.start(bookies=2)
        assert "broker.tiered.store" in region_command(
            "backup", "--out", str(tmp_path / "x"), "--admin", region.admin_url(), code=2
        )
        assert "is not what" in region_command("restore", str(other), "--admin", region.admin_url(), code=2)
        assert not (tmp_path / "x").exists()
