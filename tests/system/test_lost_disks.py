"""The table of docs/operating/disks.md, row by row, on one running instance: the state is made, what the row says is
seen, what it says is done, and then everything is there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from geo_tests.wan.instance import PATIENCE_S, Instance, eventually, rest
from geo_tests.wan.lost_disks import LostDisks
from region_node.chaos.streams import NumberedStream, missing
from tests.system.disk_stories import NAMESPACE, STORIES, TOPIC, World, rows

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("disks")
    (folder / "bucket").mkdir()
    environment = {
        "HELIOGRAPH_BROKER__TIERED__STORE": f"file://{folder}/bucket",
        "HELIOGRAPH_BROKER__TIERED__TICK_S": "1",
        "HELIOGRAPH_BOOKIE__GC_INTERVAL_S": "2",
    }
    regions = ["us", "eu", "ap"]
    instance = Instance(folder / ".heliograph", regions=regions, wan="none", bookies=3, environment=environment)
    disks = LostDisks(instance, random.Random(1), Counter(), patience_s=PATIENCE_S)
    try:
        instance.namespace(NAMESPACE, regions)
        disks.add_voters("us")
        made = World(folder, instance, disks)
        made.streams = [NumberedStream(instance, region, TOPIC) for region in regions]
        made.publish()
        for number in range(3):  # a ledger on every two of the three bookies
            made.down(f"us-bookie-{number}")
            rest("PUT", f"{instance.admin('us')}/admin/v2/persistent/{NAMESPACE}/t/unload")
            made.publish()
            made.start(f"us-bookie-{number}")
            made.well(f"us-bookie-{number}")
        yield made
    finally:
        disks.end()
        instance.down()


@pytest.mark.parametrize("number", range(len(STORIES)), ids=[f"{what}-{state}" for what, state in STORIES])
def test_what_a_row_says_is_seen_and_helps(world: World, number: int) -> None:
    row = rows()[number]
    story = STORIES[row.what, row.state]
    if isinstance(story, str):
        return  # a test of its own, which is there
    story(world, row)
    assert row.done == len(row.commands), f"given, of {row.commands}: {row.done}"
    world.publish()


def test_nothing_was_lost_meanwhile(world: World) -> None:
    def whole() -> bool:
        copies = [world.instance.read_all(region, TOPIC) for region in ("us", "ap")]
        return not any(missing(stream, copy) for stream in world.streams for copy in copies)

    eventually(whole, "each message of each region is in the others")
