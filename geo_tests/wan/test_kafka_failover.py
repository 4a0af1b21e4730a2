"""Running clients of Kafka go on in another region by themselves: behind a switchover, and when a region is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from geo_tests.wan.disaster import active_passive, cut_off, dr, takes
from geo_tests.wan.instance import Instance, eventually
from geo_tests.wan.kafka_in_regions import kafka_address
from geo_tests.wan.kafka_support import DEADLINE_S, ck
from tests.system.kafka_clients import SOURCES, java_client

pytestmark = pytest.mark.wan
JAVA = "4.4.0"
"""The version of Kafka's own client."""
kafka = pytest.importorskip("kafka")

NAMESPACE, TOPIC, PAIRS, PARTITIONS = "public/following", "orders", "pairs", 3


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """us, eu (two brokers), and ap, the third voter."""
    folder = tmp_path_factory.mktemp("kafka-failover")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 2}}))
    fields = {"PORT": "0", "NAMESPACE": NAMESPACE, "REBALANCE_DELAY_MS": "0", "NUM_PARTITIONS": str(PARTITIONS)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in fields.items():
            patch.setenv(f"HELIOGRAPH_BROKER__KAFKA__{name}", value)
        made = Instance(
            folder / "data", regions=("us", "eu", "ap"), wan=str(folder / "wan.json"), brokers="us=1,eu=2,ap=1"
        )
    try:
        yield made
    finally:
        made.down()


class Producing:
    """An idempotent producer that sends numbers from a thread of its own."""

    def __init__(self, addresses: str) -> None:
        self.confirmed: dict[int, float] = {}
        self.failed: list[str] = []
        self.sent = 0
        self._made = ck.Producer(
            {
                "bootstrap.servers": addresses,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            number = self.sent
            self.sent += 1
            self._made.produce(
                TOPIC,
                b"%d" % number,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _, number=number: self._told(number, error),
            )
            self._made.poll(0.01)
        self._made.flush(DEADLINE_S)

    def _told(self, number: int, error: Any) -> None:
        if error is None:
            self.confirmed[number] = time.monotonic()
        else:
            self.failed.append(f"{number}: {error}")

    def wait_for(self, more: int) -> None:
        wanted = len(self.confirmed) + more
        eventually(lambda: self.failed or len(self.confirmed) >= wanted, f"{more} more messages are confirmed")
        assert not self.failed, self.failed[:3]

    def end(self) -> None:
        self._end.set()
        self._thread.join()


class Transacting:
    """A transactional producer, whose transactions put their number into two partitions of another topic; it begins
    anew where its client says that it must.
    """

    def __init__(self, addresses: str, first: int = 0) -> None:
        self.committed: list[int] = []
        self.begun_anew = 0
        self.refused = 0
        self._addresses, self._first = addresses, first
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _producer(self) -> Any:
        while not self._end.is_set():
            made = ck.Producer(
                {
                    "bootstrap.servers": self._addresses,
                    "transactional.id": "pairs",
                    "socket.timeout.ms": 10_000,
                    "log_level": 0,
                }
            )
            try:
                made.init_transactions(20)
                return made
            except ck.KafkaException:
                continue
        return None

    def _run(self) -> None:
        made, number = self._producer(), self._first
        while not self._end.is_set():
            number += 1
            try:
                made.begin_transaction()
                for partition in range(2):
                    made.produce(PAIRS, b"%d" % number, partition=partition)
                made.commit_transaction(20)
                self.committed.append(number)
            except ck.KafkaException as error:
                self.refused += 1
                try:
                    if error.args[0].txn_requires_abort():
                        made.abort_transaction(20)
                        continue
                except ck.KafkaException:
                    pass
                self.begun_anew += 1
                made = self._producer()
            self._end.wait(0.05)

    def wait_for(self, more: int) -> None:
        wanted = len(self.committed) + more
        eventually(lambda: len(self.committed) >= wanted, f"{more} more transactions are committed")

    def end(self) -> None:
        self._end.set()
        self._thread.join()


class Consuming:
    """A member of a group, which commits as it goes, from a thread of its own. `got`: what it was given, in order."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.wrong: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        raise NotImplementedError

    @property
    def over(self) -> bool:
        return self._end.is_set()

    def end(self) -> None:
        self._end.set()
        self._thread.join()


class ByLibrdkafka(Consuming):
    def __init__(self, addresses: str, group: str, **settings: Any) -> None:
        self._made = ck.Consumer(
            {
                "bootstrap.servers": addresses,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
                **settings,
            }
        )
        self._made.subscribe([TOPIC])
        super().__init__()

    def _run(self) -> None:
        while not self.over:
            messages = [m for m in self._made.consume(100, 0.2) if not m.error()]
            self.got += [int(m.value()) for m in messages]
            if messages:
                try:
                    self._made.commit(asynchronous=True)
                except ck.KafkaException:
                    pass
        self._made.close()


class ByKafkaPython(Consuming):
    def __init__(self, addresses: str, group: str) -> None:
        self._made = kafka.KafkaConsumer(
            TOPIC,
            bootstrap_servers=addresses.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            request_timeout_ms=15_000,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1000,
        )
        super().__init__()

    def _run(self) -> None:
        while not self.over:
            try:
                found = self._made.poll(timeout_ms=200)
            except kafka.errors.KafkaError as error:
                self.wrong.append(repr(error))
                continue
            self.got += [int(record.value) for records in found.values() for record in records]
        self._made.close(autocommit=False)


class ByJava(Consuming):
    """Kafka's own client, as a program of its own. group "": it is in none, and reads from the beginning."""

    def __init__(self, addresses: str, group: str) -> None:
        jars, source = java_client(JAVA), SOURCES / "KafkaFollower.java"
        command = [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{jars}/*",
            str(source),
            addresses,
            TOPIC,
            str(PARTITIONS),
        ]
        self._program = subprocess.Popen(
            [*command, group] if group else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.group = group
        super().__init__()

    def _run(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            number, _, said = line.partition(" ")
            if number.isdigit():
                self.got.append(int(number))
            else:
                self.wrong.append(f"{number} {said}")

    def end(self) -> None:
        assert self._program.stdin is not None
        self._program.stdin.close()
        super().end()
        self._program.wait()


def stored(address: str, topic: str = TOPIC) -> Counter[int]:
    """How often each number is in a topic, as a region shows it to who reads what is committed."""
    reader = ck.Consumer(
        {"bootstrap.servers": address, "group.id": "nobody", "enable.partition.eof": True, "log_level": 0}
    )
    found: Counter[int] = Counter()
    reader.assign([ck.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            for message in reader.consume(1000, 0.5):
                if message.error() is None:
                    found[int(message.value())] += 1
                elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
    finally:
        reader.close()
    return found


class Running:
    """Every kind of client at once, all of which go on by themselves."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses
        self.producing = Producing(addresses)
        self.producing.wait_for(200)
        self.consuming: list[Consuming] = [
            ByLibrdkafka(addresses, "one"),
            ByKafkaPython(addresses, "two"),
            ByJava(addresses, "three"),
            ByJava(addresses, ""),
        ]

    def go_on(self, what: str, since: float) -> None:
        """Everybody gets what is sent from now on."""
        first = self.producing.sent
        self.producing.wait_for(300)
        for each in self.consuming:
            eventually(
                lambda each=each: len({n for n in each.got if n >= first}) >= 200,  # type: ignore[misc]
                f"{type(each).__name__} goes on behind the {what}",
            )
        again = [f"{type(each).__name__} {len(each.got) - len({*each.got})}" for each in self.consuming]
        print(f"{what}: everybody goes on within {time.monotonic() - since:.1f} s; came again until now: {again}")

    def have(self, counted: Counter[int]) -> None:
        for each in self.consuming:
            name = type(each).__name__
            eventually(lambda each=each: not set(counted) - set(each.got), f"{name} is given all")  # type: ignore[misc]

    def end(self) -> None:
        self.producing.end()
        for each in self.consuming:
            each.end()


def kill(instance: Instance, region: str) -> None:
    cut_off(instance, region, cut=True)  # what the supervisor starts again is heard by nobody
    for row in instance.status()["regions"][region]["processes"]:
        if row["pid"]:
            os.kill(row["pid"], signal.SIGKILL)


def test_running_clients_go_on_behind_a_switchover_and_behind_the_loss_of_a_region(instance: Instance) -> None:
    active_passive(instance, NAMESPACE, "us")
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    running, transacting = Running(f"{us},{eu}"), Transacting(f"{us},{eu}")
    try:
        running.go_on("beginning", time.monotonic())
        transacting.wait_for(10)
        began = time.monotonic()
        assert dr(instance, "us", "switchover", NAMESPACE)["state"] == "done"
        running.go_on("switchover", began)
        transacting.wait_for(10)
        transacting.end()  # what a lost region leaves open is ended by an operator: test_kafka_regions.py
        pairs = stored(eu, PAIRS)
        assert {*pairs.values()} == {2} and set(pairs) >= set(transacting.committed), "each is there whole, and once"
        print(
            f"{len(pairs)} transactions, {transacting.refused} refused, {transacting.begun_anew} producers begun anew"
        )
        time.sleep(5)
        killed = time.monotonic()
        kill(instance, "eu")
        assert dr(instance, "us", "failover", NAMESPACE, "--to", "us", "--yes")["state"] == "done"
        eventually(lambda: takes(instance, "us", NAMESPACE), "us takes messages")
        running.go_on("failover", killed)
        running.producing.end()
        counted = stored(us)
        running.have(counted)
        assert stored(us, PAIRS) == pairs
    finally:
        transacting.end()
        running.end()
    sent, confirmed = running.producing.sent, running.producing.confirmed
    assert not running.producing.failed, running.producing.failed[:3]
    assert set(counted.values()) == {1}, "each message is stored once"
    lost = set(range(sent)) - set(counted)
    assert all(killed - 5 < confirmed[number] < killed + 1 for number in lost), "all but the tail of eu"
    print(f"{sent} sent, {len(lost)} in the tail of eu alone")
    assert not any(each.wrong for each in running.consuming)
