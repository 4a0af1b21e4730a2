"""All bookies of one region are emptied at once: what other regions have comes back under its message ids, what nobody
has is named to readers, also to those that were open, and the new lives end.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.instance import PATIENCE_S, Instance, eventually, heliograph, rest
from geo_tests.wan.lost_disks import LostDisks
from region_node.chaos.streams import NumberedStream, missing

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

REGIONS = ["us", "eu", "ap"]
BOOKIES = [f"us-bookie-{number}" for number in range(3)]
SHARED, OWN = "persistent://public/gone/shared", "persistent://public/gone/own"
"""Published in every region; in us alone, and so by the state of the broker that dies."""
ALONE = "persistent://public/alone/t"
"""No other region has it."""
COUNT = 100


@dataclass
class World:
    folder: Path
    instance: Instance
    disks: LostDisks
    streams: list[NumberedStream]

    @property
    def admin(self) -> str:
        return self.instance.admin("us")

    def repair(self, topic: str) -> tuple[int, str]:
        done = heliograph("topics", "repair", topic, "--admin", self.admin, check=False)
        return done.returncode, done.stdout + done.stderr

    def path(self, topic: str) -> str:
        return f"{self.admin}/admin/v2/{topic.replace('://', '/')}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Just before the disks go, with two readers that have read some."""
    folder = tmp_path_factory.mktemp("emptied")
    instance = Instance(folder / ".heliograph", regions=REGIONS, wan="none", bookies=3)
    disks = LostDisks(instance, random.Random(1), Counter(), patience_s=PATIENCE_S)
    try:
        instance.namespace("public/gone", REGIONS)
        instance.namespace("public/alone", ["us"])
        made = World(folder, instance, disks, [NumberedStream(instance, region, SHARED) for region in REGIONS])
        client = instance.client("us")
        own, alone = client.create_producer(OWN), client.create_producer(ALONE)
        for _ in range(3):
            for stream in made.streams:
                stream.publish(COUNT)
                stream.finish()
            for number in range(COUNT):
                alone.send(b"%d" % number)
            rest("PUT", f"{made.path(SHARED)}/unload")
            rest("PUT", f"{made.path(ALONE)}/unload")
        for number in range(COUNT):
            own.send(b"%d" % number)
        for region in REGIONS:
            eventually(lambda: not lacking(made, region), f"{region} has all")  # noqa: B023
            if region != "us":
                eventually(lambda: len(instance.read_all(region, OWN)) == COUNT, f"{region} has all")  # noqa: B023
        yield made
    finally:
        disks.end()
        instance.down()


def lacking(world: World, region: str) -> list[str]:
    copy = world.instance.read_all(region, SHARED)
    return [wrong for stream in world.streams if (wrong := missing(stream, copy))]


READER = """
import sys

import pulsar

service, topic, log = sys.argv[1:]
client = pulsar.Client(service, logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, log))
reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5)
while True:
    try:
        print(reader.read_next(timeout_millis=1_000).data(), flush=True)
    except pulsar.Timeout:
        pass
    if sys.stdin.readline() == "":
        break
"""
"""Reads a message for each line that it is given. A program of its own, because a client logs where the first one of
its process does.
"""


@contextmanager
def reading(world: World, topic: str) -> Iterator[Callable[[], None]]:
    """Gives what lets it read one more."""
    service = world.instance.state["regions"]["us"]["service_url"]
    program = [sys.executable, "-c", READER, service, topic, str(world.folder / "reader.log")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def more() -> None:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

        try:
            process.stdout.readline()
            yield more
        finally:
            process.kill()


def test_what_others_have_comes_back_and_what_nobody_has_is_named(world: World) -> None:
    shared = world.instance.client("us").create_reader(SHARED, pulsar.MessageId.earliest, receiver_queue_size=5)
    bodies = [shared.read_next(timeout_millis=60_000).data().decode() for _ in range(3)]
    with reading(world, ALONE) as more:
        lose_disks(world)
        come_back(world, shared, bodies)

        def told() -> bool:
            more()
            return "are lost" in (world.folder / "reader.log").read_text()

        eventually(told, "the reader that was open is told")


def lose_disks(world: World) -> None:
    """All of them, while their processes are down; and the broker, which may remember entries, begins anew."""
    for name in BOOKIES:
        heliograph("process", "kill", name, "--data", str(world.instance.data))
    for name in BOOKIES:
        eventually(lambda: not pid(world, name), f"{name} is down")  # noqa: B023
        shutil.rmtree(world.instance.data / "us" / name.removeprefix("us-"))
    heliograph("process", "kill", "us-broker-0", "--data", str(world.instance.data))
    eventually(lambda: not pid(world, "us-broker-0"), "the broker is down")
    for name in ("us-broker-0", *BOOKIES):
        heliograph("process", "start", name, "--data", str(world.instance.data))
    for name in BOOKIES:
        world.disks.limbo(name)
    for name in BOOKIES:
        heliograph("bookies", "new-life", name, "--yes", "--force", "--admin", world.admin)


def come_back(world: World, shared: Any, bodies: list[str]) -> None:
    code, said = eventually(lambda: ready(world, ALONE), "the topics are served")
    assert code == 1 and "entries were fetched" in said and "heliograph topics seek" in said, said
    code, said = eventually(lambda: ready(world, SHARED), "the topics are served")
    assert code == 0 and ("every entry is there" in said or "nothing is damaged" in said), said
    assert not lacking(world, "us")
    while len(bodies) < 9 * COUNT:
        bodies.append(shared.read_next(timeout_millis=60_000).data().decode())
    assert len(set(bodies)) == 9 * COUNT
    with pytest.raises(pulsar.NotAllowedError):
        world.instance.client("us").create_reader(ALONE, pulsar.MessageId.earliest)


def test_what_the_last_broker_had_not_stored_is_loaded_and_comes_back(world: World) -> None:
    code, said = eventually(lambda: ready(world, OWN), "the topic is served")
    assert code == 0, said
    bodies = world.instance.read_all("us", OWN)
    assert bodies == [str(number) for number in range(COUNT)]


def test_the_new_lives_end_and_name_what_is_lost(world: World) -> None:
    for name in BOOKIES:
        path = f"{world.admin}/heliograph/v1/bookies/{name}/new-life"
        eventually(lambda: rest("GET", path)["state"] == "whole", f"{name} is whole")  # noqa: B023
    found = [rest("GET", f"{world.admin}/heliograph/v1/bookies/{name}/new-life") for name in BOOKIES]
    assert {topic for life in found for topic in life["lost_topics"]} == {ALONE}, found
    assert not any(life["ledgers_left"] for life in found)


def ready(world: World, topic: str) -> tuple[int, str] | None:
    code, said = world.repair(topic)
    return (code, said) if code in (0, 1) else None


def pid(world: World, name: str) -> int | None:
    rows = world.instance.status()["regions"]["us"]["processes"]
    return next((row["pid"] for row in rows if row["name"] == name), None)
