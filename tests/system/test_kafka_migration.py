"""docs/operating/kafka-migration.md, tried: its commands, in its order, from a real Apache Kafka, with both protocols
side by side at the end.

Kafka's own tools run the commands that stand on the page (their .sh scripts are the classes named here); the copier is
ten lines of confluent-kafka.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from benchmarks.kafka_servers import Kafka
from geo_tests.wan.kafka_support import DEADLINE_S, admin_module, ck
from tests.guide.page import Page
from tests.guide.shell import Reader, Shell
from tests.region_node.region_processes import Region
from tests.system.kafka_clients import address, jars, java, region

__all__ = ["jars", "region"]
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
PARTITIONS = 4


@pytest.fixture(scope="module")
def old(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the Kafka that is left."""
    made = Kafka(tmp_path_factory.mktemp("old") / "kafka")
    yield f"127.0.0.1:{made.kafka_port}"
    made.stop()


class Application:
    """Writes numbers by key, and reads them in the group `billing`."""

    def __init__(self) -> None:
        self.written = 0
        self.began_ms = int(time.time() * 1000)
        self.read: list[int] = []

    def write(self, bootstrap: str, count: int) -> None:
        made = ck.Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
        failed: list[Any] = []
        for _ in range(count):
            at = (
                self.began_ms + self.written
            )  # a millisecond each: a group is set by time, and a machine may write all in one
            key = b"%d" % (self.written % 10)
            made.produce(
                "orders",
                b"%d" % self.written,
                key,
                timestamp=at,
                on_delivery=lambda e, _: failed.append(e) if e else None,
            )
            self.written += 1
        assert made.flush(DEADLINE_S) == 0 and not failed, failed

    def work(self, bootstrap: str, count: int) -> int:
        """Reads at least so many, commits, and returns the time of the last."""
        reader = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        reader.subscribe(["orders"])
        newest, deadline, before = 0, time.monotonic() + DEADLINE_S, len(self.read)
        while len(self.read) - before < count:
            assert time.monotonic() < deadline, f"{len(self.read) - before} of {count}"
            for message in reader.consume(100, 0.5):
                if message.error() is None:
                    self.read.append(int(message.value()))
                    newest = max(newest, message.timestamp()[1])
        reader.commit(asynchronous=False)
        reader.close()
        return newest


def copy(source: str, target: str, count: int) -> None:
    """Every record to the same partition, with its key and time."""
    reader = ck.Consumer(
        {"bootstrap.servers": source, "group.id": "copier", "enable.auto.commit": False, "log_level": 0}
    )
    reader.assign([ck.TopicPartition("orders", p, ck.OFFSET_BEGINNING) for p in range(PARTITIONS)])
    made = ck.Producer({"bootstrap.servers": target, "acks": "all", "enable.idempotence": True, "log_level": 0})
    done, deadline = 0, time.monotonic() + DEADLINE_S
    while done < count:
        assert time.monotonic() < deadline
        for message in reader.consume(500, 0.5):
            if message.error() is None:
                made.produce(
                    "orders", message.value(), message.key(), message.partition(), timestamp=message.timestamp()[1]
                )
                done += 1
    assert made.flush(DEADLINE_S) == 0
    reader.close()


@pytest.fixture
def shell(region: Region, old: str, jars: Path, tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path, places={"OLD:9092": old, "HOST:9092": address(region)}) as made:
        for name, program in TOOLS.items():
            made.program(name, ["java", "-cp", f"{jars}/*", program])
        yield made


def test_the_page(region: Region, old: str, jars: Path, shell: Shell) -> None:
    here, application, page = address(region), Application(), Reader(Page.read("kafka-migration.md"), shell)
    java(
        jars,
        TOOLS["kafka-topics.sh"],
        "--bootstrap-server",
        old,
        "--create",
        "--topic",
        "orders",
        "--partitions",
        str(PARTITIONS),
    )
    application.write(old, 200)

    described, _, _, set_rates = page.section("2. Make the topics")
    assert f"PartitionCount: {PARTITIONS}" in described and "Completed updating config for user billing" in set_rates
    copy(old, here, 200)

    stood = application.work(old, 200)
    application.write(old, 50)  # its producers are still there
    copied = application.written
    at = (
        datetime.datetime.fromtimestamp(stood / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        + f"{stood % 1000:03d}"
    )
    shell.places["TIME"] = at
    was, reset, will = page.section("4. Move consumers, then producers")
    page.finish()
    assert "billing" in was and "orders" in reset and "billing" in will
    reader = ck.Consumer({"bootstrap.servers": here, "group.id": "billing", "log_level": 0})
    behind = sum(
        part.offset
        for part in reader.committed([ck.TopicPartition("orders", p) for p in range(PARTITIONS)], timeout=DEADLINE_S)
    )
    reader.close()
    assert 0 < behind <= 200, "where it stood, not at the beginning"
    made = ck.Producer({"bootstrap.servers": here, "log_level": 0})
    for number in range(200, copied):  # the copier catches up
        made.produce("orders", b"%d" % number, key=b"%d" % (number % 10))
    assert made.flush(DEADLINE_S) == 0
    application.work(here, 250 - behind)
    application.write(here, 50)
    application.work(here, 50)
    assert set(application.read) == set(range(300)), "nothing was left out"
    assert len(application.read) <= 300 + (200 - behind), "only what has the very time of the last comes again"

    client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        theirs = client.subscribe(
            "persistent://public/default/orders", "side-by-side", initial_position=pulsar.InitialPosition.Earliest
        )
        assert {int(theirs.receive(int(DEADLINE_S * 1000)).data()) for _ in range(300)} == set(range(300))
        client.create_producer("persistent://public/default/orders").send(b"300", partition_key="0")
    finally:
        client.close()
    application.work(here, 1)
    assert application.read[-1] == 300


def test_times_are_found_where_kafka_finds_them(region: Region, old: str) -> None:
    """Of times that go back and forth: the first record of a time or later, and the first of those with the highest."""
    rng, began = random.Random(5), int(time.time() * 1000) - 3_600_000
    stamps = [began + rng.randrange(1000) for _ in range(400)]
    wanted = [began - 1, max(stamps), max(stamps) + 1, *(rng.choice(stamps) + rng.choice((0, 1)) for _ in range(40))]
    found: list[list[int]] = []
    for bootstrap in (old, address(region)):
        admin = admin_module.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([admin_module.NewTopic("times", 1, 1, config={"segment.bytes": "1048576"})])[
            "times"
        ].result(DEADLINE_S)
        made = ck.Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
        for number, stamp in enumerate(stamps):
            made.produce("times", bytes(8000), timestamp=stamp)  # so that a real Kafka has several segments
            if number % 9 == 8:
                assert made.flush(DEADLINE_S) == 0
        assert made.flush(DEADLINE_S) == 0
        reader = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "by-time", "log_level": 0})
        offsets = [
            reader.offsets_for_times([ck.TopicPartition("times", 0, at)], timeout=DEADLINE_S)[0].offset for at in wanted
        ]
        reader.close()
        newest = admin.list_offsets({ck.TopicPartition("times", 0): admin_module.OffsetSpec.max_timestamp()})
        found.append([*offsets, *(future.result(DEADLINE_S).offset for future in newest.values())])
    theirs, ours = found
    assert theirs[1] == stamps.index(max(stamps)) == theirs[-1], "the peer is what this test takes it for"
    assert ours == theirs
