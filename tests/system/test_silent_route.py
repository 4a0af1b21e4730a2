"""A route that drops every packet of one region without a word to anybody: no reset, no refusal, connections that stay
open on both ends. And one that loses some of them: what `heliograph wan set --loss` refuses to pretend.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.disaster import Load
from geo_tests.wan.instance import PROGRAM, eventually, heliograph
from region_node.commands.demo import _rest as rest
from tests.system.routed_regions import LOSSY, REGIONS, RoutedRegions

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
TOPIC, LED = "public/every/x", "public/led"
SHARE = 0.05
LOST_S = 5.0
"""From here on nobody says that a region which was not heard is connected: as it is promised, not as it is set."""


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[RoutedRegions]:
    made = RoutedRegions(tmp_path)
    try:
        yield made
    finally:
        made.close()


def risk(regions: RoutedRegions, region: str) -> dict[str, dict[str, Any]]:
    """Other region -> (what is not yet there, what is not yet here), as the region says."""
    with regions.inside(region):
        told = rest("GET", f"{regions.admin(region)}/heliograph/v1/topics/{TOPIC}/risk")
    return {name: {side: told[side].get(name) for side in ("not_yet_elsewhere", "not_yet_here")} for name in REGIONS}


def in_step(regions: RoutedRegions) -> bool:
    """Whether every region hears each other one, and lacks nothing of it."""
    for region in REGIONS:
        for other, told in risk(regions, region).items():
            if other != region and not all(row and row["connected"] and not row["messages"] for row in told.values()):
                return False
    return True


def client(regions: RoutedRegions, region: str) -> pulsar.Client:
    return pulsar.Client(regions.service(region), io_threads=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def read(regions: RoutedRegions, region: str) -> list[str]:
    with regions.inside(region):
        mine = client(regions, region)
        reader = mine.create_reader(f"persistent://{TOPIC}", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data().decode())
        mine.close()
    return found


def asked(regions: RoutedRegions, *words: str) -> str:
    """What `heliograph dr` answers in eu."""
    with regions.inside("eu"):
        return heliograph("dr", *words, "--admin", regions.admin("eu"), program=PROGRAM).stdout


def test_a_route_that_drops_without_a_word(regions: RoutedRegions) -> None:
    loads: dict[str, Load] = {}
    clients = []
    asked(regions, "set", LED, "--active", "us")
    for number, region in enumerate(("us", "eu")):
        with regions.inside(region):
            clients.append(client(regions, region))
            loads[region] = Load(clients[-1], f"persistent://{TOPIC}", region, number * 1_000_000, every_s=0.02)
    try:
        for load in loads.values():
            load.wait_for(20)
        eventually(lambda: all(risk(regions, r)[o]["not_yet_here"] for r in REGIONS for o in loads if o != r), "heard")
        regions.drop("us")
        old = said_while_silent(regions)
        assert old >= {(side, region) for side in ("not_yet_here", "not_yet_elsewhere") for region in ("us", "eu")}
        told = json.loads(asked(regions, "status", LED, "--json"))
        assert told["active"] == "us" and not told["configuration"], "two of three regions are a majority"
        for target in told["targets"].values():
            assert "within 2 s" in target["source"]["unreachable"], "patience ended it, and no time-out of a connection"
        assert told["targets"]["eu"]["because"]
        plan = asked(regions, "failover", LED, "--to", "eu", "--dry-run")
        assert "us does not answer" in plan
        for load in loads.values():
            load.wait_for(20)  # each region goes on taking messages
    finally:
        regions.pass_on()
        for load in loads.values():
            load.end()
        for one in clients:
            one.close()
    eventually(lambda: in_step(regions), "everything has arrived everywhere")
    wanted = {str(number) for load in loads.values() for number in load.confirmed}
    for region in REGIONS:
        found = read(regions, region)
        assert set(found) == wanted and len(found) == len(wanted), f"{region}: what was acknowledged is there, once"


def lost_of(regions: RoutedRegions, count: int) -> float:
    """Of so many datagrams from eu to the region behind the lossy cable: what share does not come."""
    came = 0
    with regions.inside(LOSSY), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.bind((regions.address(LOSSY), 0))
        with regions.inside("eu"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
            for number in range(1, count + 1):
                here.sendto(b"x" * 100, there.getsockname())
                if number % 20 == 0 or number == count:  # queues on the way are short: what they drop was not asked for
                    there.settimeout(0.002 if number < count else 2)
                    with contextlib.suppress(TimeoutError):
                        while came < number:
                            there.recv(200)
                            came += 1
    return 1 - came / count


def test_a_route_that_loses_packets_loses_no_message(regions: RoutedRegions) -> None:
    loads: dict[str, Load] = {}
    clients = []
    assert lost_of(regions, 2000) == 0.0
    regions.lose(SHARE)
    try:
        for number, region in enumerate(("us", "eu")):
            with regions.inside(region):
                clients.append(client(regions, region))
                loads[region] = Load(clients[-1], f"persistent://{TOPIC}", region, number * 1_000_000, every_s=0.02)
        for load in loads.values():
            load.wait_for(100)
        lost = lost_of(regions, 20_000)
        print(f"{lost:.2%} of the datagrams were lost")
        assert abs(lost - SHARE) <= 0.2 * SHARE, lost
        for load in loads.values():
            load.wait_for(100)
        heard = risk(regions, "eu")["us"]["not_yet_here"]
        assert heard["connected"], "a link goes on over such a route"
    finally:
        for load in loads.values():
            load.end()
        regions.pass_on()
        for one in clients:
            one.close()
    eventually(lambda: in_step(regions), "everything has arrived everywhere")
    wanted = {str(number) for load in loads.values() for number in load.confirmed}
    for region in REGIONS:
        found = read(regions, region)
        assert set(found) == wanted and len(found) == len(wanted), f"{region}: what was acknowledged is there, once"


def said_while_silent(regions: RoutedRegions) -> set[tuple[str, str]]:
    """Samples what us and eu say of each other, until each has heard nothing for 5 s. Nobody says *connected* then."""
    old = set[tuple[str, str]]()

    def sample() -> bool:
        for region, other in (("us", "eu"), ("eu", "us")):
            for side, row in risk(regions, region)[other].items():
                assert not row["connected"] or row["silent_s"] < LOST_S + 0.1, (region, side, row)
                if row["silent_s"] >= LOST_S:
                    old.add((side, region))
                    assert side != "not_yet_here" or row["age_s_max"] >= LOST_S, row
        for side, row in risk(regions, "eu")["ap"].items():
            assert row["connected"], f"the others go on: {side} {row}"
        return len(old) == 4

    eventually(sample, "both know that they hear nothing")
    return old
