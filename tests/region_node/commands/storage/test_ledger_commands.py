"""The commands `topics repair` and `follow-ledger`, once through real processes: a ledger that two bookies have lost
comes back from a folder.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from pathlib import Path

import pulsar
import pytest

from storage.ledger.bookies.bookie_client import BookieClient
from tests.region_node.live import until
from tests.region_node.region_processes import Region
from tests.region_node.tiering.tiered_region import HELIOGRAPH, TOPIC, provisioned, read_all


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELIOGRAPH), *arguments], capture_output=True, text=True, timeout=120)


async def deleted_everywhere(ports: list[int], ledger: int) -> None:
    """As if its bookies had lost it: they take it never again."""
    for port in ports:
        client = BookieClient("b", "127.0.0.1", port, rng=random.Random(1))
        if ledger in await client.ledgers():
            await client.delete(ledger)
        client.close()


@pytest.mark.slow
def test_a_ledger_that_its_bookies_have_lost_is_repaired_in_place(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=4, tiered={"store": f"file://{tmp_path}/objects", "tick_s": 0.2, "manifest_s": 0})
        rest = provisioned(region, namespace=True)
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(TOPIC, producer_name="p")
        path = "/admin/v2/persistent/public/default/old"
        for i in range(100):
            producer.send(str(i).encode())
        assert rest("PUT", "/admin/v2/namespaces/public/default/offloadDeletionLagMs", 3_600_000)[0] == 204
        assert rest("PUT", f"{path}/offload?rollOver=true")[0] in (200, 204)
        until(lambda: rest("GET", f"{path}/offload")[1]["status"] == "SUCCESS")
        ledger = rest("GET", f"{path}/internalStats")[1]["ledgers"][0]["ledgerId"]
        client.close()

        admin = ("--admin", region.admin_url())
        whole = command("topics", "repair", TOPIC, "--check", *admin)
        assert whole.returncode == 0 and "every entry is there" in whole.stdout, whole.stdout + whole.stderr
        followed = command("follow-ledger", str(ledger), "--address", region.addresses["meta"][0], "--json")
        rows = [json.loads(line) for line in followed.stdout.splitlines()]
        assert sum(row["entries"] for row in rows) == 100 and rows[0]["first"] == 0 and rows[0]["producers"] == ["p"], (
            followed.stderr
        )

        lacking = command("lacking-copies", "--address", region.addresses["meta"][0])
        assert (lacking.returncode, lacking.stdout.strip()) == (0, "no ledger lacks a copy"), (
            lacking.stdout + lacking.stderr
        )

        bookies = [process.ports["bookie"] for name, process in region.processes.items() if "bookie" in name]
        asyncio.run(deleted_everywhere(bookies, ledger))
        lost = command("topics", "repair", TOPIC, "--check", "--json", *admin)
        assert lost.returncode == 1 and json.loads(lost.stdout)["damaged"] == {str(ledger): [[0, 99]]}, (
            lost.stdout + lost.stderr
        )
        done = command("topics", "repair", TOPIC, *admin)
        assert done.returncode == 0 and "100 entries were fetched" in done.stdout, done.stdout + done.stderr
        assert command("topics", "repair", TOPIC, "--check", *admin).returncode == 0
        assert command("topics", "repair", TOPIC, *admin).stdout.strip() == "nothing is damaged"
        assert read_all(region.service_url(), 100) == list(range(100))
        wrong = command("topics", "repair", TOPIC, "--ledger", "999999", *admin)
        assert wrong.returncode == 2 and "no ledger 999999" in wrong.stderr
