"""Kafka's client behind the calls that the load makes: what is told is counted, what was read is committed. (With a
real listener: geo_tests/wan/test_chaos_run.py.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from heliograph.model.errors import ConfigError
from region_node.chaos.kafka_regions import KafkaConsumer, KafkaProducer, KafkaRegions, kafka_name
from region_node.chaos.regions import eventually
from tests.region_node.chaos.memory_regions import MemoryRegions

ck = pytest.importorskip("confluent_kafka")


class Broker:
    """One partition, as a producer and a consumer of the official client see it; `refuses`: every other message."""

    def __init__(self, *, there: int = 0, refuses: bool = False) -> None:
        self.log: list[bytes] = [b"older"] * there
        self.offset, self.asked, self.committed_at, self.refuses = there, list[str](), -1001, refuses
        self._told: list[Callable[[], None]] = []

    def produce(self, topic: str, body: bytes, *, key: str | None, on_delivery: Callable[[Any, Any], None]) -> None:
        self.asked.append(f"{topic} {key}")
        if self.refuses and len(self.asked) % 2 == 0:
            self._told.append(lambda: on_delivery("refused", None))
            return
        self.log.append(body)
        message = Message(body, len(self.log) - 1)
        self._told.append(lambda: on_delivery(None, message))

    def poll(self, seconds: float) -> Any:
        while self._told:
            self._told.pop(0)()
        if self.committed_at < 0 or self.offset >= len(self.log):
            return None
        self.offset += 1
        return Message(self.log[self.offset - 1], self.offset - 1)

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        return [ck.TopicPartition(places[0].topic, 0, self.committed_at)]

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return 0, len(self.log)

    def commit(self, *, offsets: list[Any] | None = None, asynchronous: bool) -> None:
        self.committed_at = offsets[0].offset if offsets else self.offset

    def subscribe(self, topics: list[str]) -> None:
        self.offset = self.committed_at

    def close(self) -> None:
        self.asked.append("closed")


class Message:
    def __init__(self, body: bytes, offset: int) -> None:
        self._body, self._offset = body, offset

    def value(self) -> bytes:
        return self._body

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> None:
        return None


def test_each_message_is_told_stored_or_refused() -> None:
    broker = Broker(refuses=True)
    producer, told = KafkaProducer(broker, kafka_name("persistent://public/chaos/t")), list[tuple[str, int]]()
    for number in range(4):
        producer.send_async(b"us-%d" % number, lambda result, at: told.append((result, at.ledger_id())), f"k{number}")
    eventually(lambda: len(told) == 4, "all are answered")
    producer.close()
    assert told == [("Ok", 0), ("refused", -1)] * 2 and broker.asked[0] == "public/chaos/t k0"


def test_a_group_begins_behind_what_is_there_and_commits_what_it_read() -> None:
    broker = Broker(there=3)
    consumer = KafkaConsumer(ck, broker, "public/chaos/t")
    assert broker.committed_at == 3
    broker.log += [b"us-0", b"us-1"]
    for number in range(2):
        message = consumer.receive(1)
        assert (message.data(), message.message_id()) == (b"us-%d" % number, f"0:{3 + number}")
        consumer.acknowledge(message)
    assert broker.committed_at == 3
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1)
    assert broker.committed_at == 5
    consumer.close()
    again = KafkaConsumer(ck, broker, "public/chaos/t")
    with pytest.raises(pulsar.Timeout):
        again.receive(1)


def test_a_region_without_an_address_is_named() -> None:
    regions = KafkaRegions(MemoryRegions(["us", "eu"]), {"us": "127.0.0.1:9092"})
    with pytest.raises(ConfigError, match=r'names no address of eu: add eu = "host:port"'):
        regions.client("eu")
