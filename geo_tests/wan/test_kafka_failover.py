"""Running clients of Kafka go on in another region by themselves: behind a switchover, and when a region is lost."""

from __future__ import annotations

import json
import os
import signal
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

pytestmark = pytest.mark.wan
kafka = pytest.importorskip("kafka")

NAMESPACE, TOPIC, PARTITIONS = "public/following", "orders", 3


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


def stored(address: str) -> Counter[int]:
    """How often each number is in the topic, as a region has it."""
    reader = ck.Consumer({"bootstrap.servers": address, "group.id": "nobody", "log_level": 0})
    found: Counter[int] = Counter()
    try:
        for partition in range(PARTITIONS):
            at = ck.TopicPartition(TOPIC, partition)
            low, high = reader.get_watermark_offsets(at, timeout=DEADLINE_S)
            reader.assign([ck.TopicPartition(TOPIC, partition, low)])
            while reader.position([at])[0].offset < high:
                found.update(int(m.value()) for m in reader.consume(1000, 0.5) if not m.error())
    finally:
        reader.close()
    return found


def test_running_clients_go_on_behind_a_switchover_and_behind_the_loss_of_a_region(instance: Instance) -> None:
    active_passive(instance, NAMESPACE, "us")
    us, eu = kafka_address(instance, "us"), kafka_address(instance, "eu")
    addresses = f"{us},{eu}"
    producing = Producing(addresses)
    producing.wait_for(200)
    consuming: list[Consuming] = [ByLibrdkafka(addresses, "one"), ByKafkaPython(addresses, "two")]
    try:

        def read_on(what: str) -> None:
            """Everybody gets what is sent from now on."""
            first = producing.sent
            producing.wait_for(300)
            for each in consuming:
                eventually(
                    lambda each=each: len({n for n in each.got if n >= first}) >= 200,  # type: ignore[misc]
                    f"{type(each).__name__} goes on {what}",
                )

        read_on("at first")
        began = time.monotonic()
        assert dr(instance, "us", "switchover", NAMESPACE)["state"] == "done"
        read_on("behind the switchover")
        print(f"switchover: everybody goes on within {time.monotonic() - began:.1f} s")
        switched = {type(each).__name__: sorted(n for n, c in Counter(each.got).items() if c > 1) for each in consuming}
        print({name: len(again) for name, again in switched.items()}, "came again behind the switchover")
        time.sleep(5)
        killed = time.monotonic()
        cut_off(instance, "eu", cut=True)  # what the supervisor starts again is heard by nobody
        for row in instance.status()["regions"]["eu"]["processes"]:
            if row["pid"]:
                os.kill(row["pid"], signal.SIGKILL)
        assert dr(instance, "us", "failover", NAMESPACE, "--to", "us", "--yes")["state"] == "done"
        eventually(lambda: takes(instance, "us", NAMESPACE), "us takes messages")
        read_on("behind the failover")
        print(f"failover: everybody goes on within {time.monotonic() - killed:.1f} s")
        producing.end()
        counted = stored(us)
        for each in consuming:
            eventually(lambda each=each: not set(counted) - set(each.got), f"{type(each).__name__} is given all")  # type: ignore[misc]
    finally:
        producing.end()
        for each in consuming:
            each.end()
    assert not producing.failed, producing.failed[:3]
    assert set(counted.values()) == {1}, "each message is stored once"
    lost = set(range(producing.sent)) - set(counted)
    assert all(killed - 5 < producing.confirmed[number] < killed + 1 for number in lost), "all but the lost tail are"
    print(f"{producing.sent} sent, {len(lost)} in the tail of eu alone")
    for each in consuming:
        assert not each.wrong, each.wrong[:3]
        print(type(each).__name__, sum(Counter(each.got).values()) - len(set(each.got)), "came again")
