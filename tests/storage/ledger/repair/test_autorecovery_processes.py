"""A region of real processes that loses bookies for good, or empties one: copies become complete again, and nothing is
lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from storage.ledger.bookies.bookie_client import BookieClient
from tests.region_node.one_topic import TOPIC, provision, read_all
from tests.region_node.region_processes import Region
from tests.region_node.rest_client import Rest

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.wan, pytest.mark.slow]

PATIENCE_S = 120.0
QUICK = {"lost_after_s": 2.0, "rescan_s": 0.5, "tick_s": 0.2}


class Writer:
    """Publishes through the official client; `unload` ends the ledger, so that there are several."""

    def __init__(self, region: Region, rest: Rest) -> None:
        self.region, self.rest = region, rest
        self.client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.producer = self.client.create_producer(TOPIC, send_timeout_millis=120_000)
        self.sent: list[bytes] = []

    def publish(self, count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.sent)
            self.producer.send(body)
            self.sent.append(body)

    def unload(self) -> None:
        assert self.rest("PUT", "/admin/v2/persistent/public/default/t/unload")[0] == 204


def left(rest: Rest, bookie: str) -> dict[str, Any]:
    status, answer = rest("GET", f"/heliograph/v1/bookies/{bookie}/decommission")
    assert status == 200, answer
    return dict(answer)


def fullest(rest: Rest, bookies: list[str]) -> str:
    return max(bookies, key=lambda bookie: left(rest, bookie)["ledgers_left"])


def wait_empty(rest: Rest, bookie: str, region: Region) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (answer := left(rest, bookie))["ledgers_left"]:
        log = (region.folder / "us-broker-0.log").read_text()[-3000:]
        assert time.monotonic() < deadline, f"{answer} {log}"
        time.sleep(0.1)


async def held(port: int) -> int:
    """Entries that the bookie there says it holds, of all ledgers."""
    client = BookieClient("asked", "127.0.0.1", port, rng=random.Random(1))
    try:
        found = [await client.held(ledger, 0, 10_000) or [] for ledger in await client.ledgers()]
    finally:
        client.close()
    return sum(last - first + 1 for ranges in found for first, last in ranges)


def test_two_bookies_lost_one_after_the_other_cost_nothing(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=4, brokers=1, auto_recovery=QUICK)
        rest = provision(region)
        writer = Writer(region, rest)
        try:
            for _ in range(4):
                writer.publish(50)
                writer.unload()
            bookies = [f"us-bookie-{i}" for i in range(4)]
            for _ in range(2):
                lost = fullest(rest, bookies)
                bookies.remove(lost)
                region.processes[lost].kill()
                writer.publish(20)
                wait_empty(rest, lost, region)
        finally:
            writer.client.close()
        assert read_all(region.service_url()) == writer.sent


def test_a_bookie_that_was_away_holds_everything_when_no_ledger_is_marked_any_more(tmp_path: Path) -> None:
    """Three copies are promised, and two acknowledged: what it missed, and was acknowledged without it, is on its disk
    afterwards.
    """
    with Region(tmp_path) as region:
        region.start(bookies=3, brokers=1, auto_recovery={**QUICK, "lost_after_s": 600.0})
        rest = provision(region)
        quorums = {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 3,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        }
        assert rest("POST", "/admin/v2/namespaces/public/default/persistence", quorums)[0] == 204
        writer = Writer(region, rest)
        try:
            writer.publish(20)
            region.processes["us-bookie-1"].kill()
            writer.publish(20)
            bookie = region.settings("bookie-1", ["bookie"], **region.addresses, bookie={"port": 0, "http_port": 0})
            port = region.spawn(bookie).wait_ready().ports["bookie"]
            deadline = time.monotonic() + PATIENCE_S
            while asyncio.run(held(port)) < 40:
                assert time.monotonic() < deadline, (region.folder / "us-broker-0.log").read_text()[-3000:]
                time.sleep(0.2)
        finally:
            writer.client.close()
        assert read_all(region.service_url()) == writer.sent


def test_a_bookie_is_emptied_under_load_and_can_go_at_once(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=3, brokers=1, auto_recovery=QUICK)
        rest = provision(region)
        writer = Writer(region, rest)
        try:
            for _ in range(3):
                writer.publish(50)
                writer.unload()
            writer.publish(10)
            bookie = fullest(rest, [f"us-bookie-{i}" for i in range(3)])
            path = f"/heliograph/v1/bookies/{bookie}/decommission"
            assert rest("POST", "/heliograph/v1/bookies/nobody/decommission")[0] == 404
            assert not left(rest, bookie)["done"]
            assert rest("POST", path) == (204, None) == rest("POST", path)
            deadline = time.monotonic() + PATIENCE_S
            while not left(rest, bookie)["done"]:
                writer.publish(1)
                assert time.monotonic() < deadline, left(rest, bookie)
            region.processes[bookie].kill()
            writer.publish(10)
            row = next(row for row in rest("GET", "/heliograph/v1/bookies")[1] if row["id"] == bookie)
            assert row["draining"] and not row["writable"]
            assert rest("DELETE", path) == (204, None)
        finally:
            writer.client.close()
        assert read_all(region.service_url()) == writer.sent
