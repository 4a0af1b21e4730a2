"""KafkaRegions: the load's port, spoken by Kafka's official client (confluent-kafka).

Is: an idempotent producer, and a member of a consumer group, behind the calls that the load makes of Pulsar's client;
copies are read by Pulsar's. Isn't: a verdict, or a protocol of ours.
A group belongs to all regions, so each region's has a name of its own. Offsets are committed once nothing more is there
at the moment, each 200 messages, and when a consumer is closed: what comes again behind a fault is what was read since.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.cli.messaging.produce_consume import official
from heliograph.cli.rest import Rest
from heliograph.model.errors import ConfigError
from region_node.chaos.regions import Regions

_POLL_S = 0.1
_ANSWER_S = 60.0
_COMMIT_EVERY = 200


def official_kafka() -> Any:
    """Kafka's official client. Raises ConfigError where it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigError('client = "kafka" speaks through Kafka\'s client: pip install confluent-kafka') from error
    return confluent_kafka


class KafkaRegions:
    """regions: the same by Pulsar's client and REST. addresses: region -> host:port of a Kafka listener there."""

    def __init__(self, regions: Regions, addresses: Mapping[str, str]) -> None:
        self._regions, self._addresses, self._kafka = regions, addresses, official_kafka()

    def rest(self, region: str) -> Rest:
        return self._regions.rest(region)

    def client(self, region: str) -> Any:
        if region not in self._addresses:
            raise ConfigError(f'[load.kafka] names no address of {region}: add {region} = "host:port"')
        return _KafkaClient(self._kafka, self._addresses[region], region)

    def read_on(self, region: str, topic: str, after: Any | None) -> Iterator[Any]:
        return self._regions.read_on(region, topic, after)


@dataclass(frozen=True, slots=True)
class _KafkaClient:
    kafka: Any
    address: str
    region: str

    def create_producer(self, topic: str, name: str, **_: Any) -> Any:
        settings = {"client.id": name, "enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}
        return KafkaProducer(self.kafka.Producer({**self._settings, **settings}), kafka_name(topic))

    def subscribe(self, topic: str, name: str, **_: Any) -> Any:
        group = f"{name}-{self.region}"
        settings = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return KafkaConsumer(self.kafka, self.kafka.Consumer({**self._settings, **settings}), kafka_name(topic))

    @property
    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.address, "log_level": 0}


def kafka_name(topic: str) -> str:
    """What Kafka's clients call a topic of any namespace."""
    return topic.removeprefix("persistent://")


@dataclass(frozen=True, slots=True)
class _Stored:
    offset: int

    def ledger_id(self) -> int:
        """What is stored has a place, as a message id of Pulsar's has a ledger."""
        return 0 if self.offset >= 0 else -1


class KafkaProducer:
    """producer: an official one, which is polled by a thread of this."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._end.is_set():
            self._producer.poll(_POLL_S)

    def send_async(self, body: bytes, told: Callable[[Any, Any], None], partition_key: str = "") -> None:
        def delivered(error: Any, message: Any) -> None:
            told("Ok" if error is None else str(error), _Stored(-1 if error is not None else message.offset()))

        self._producer.produce(self._topic, body, key=partition_key or None, on_delivery=delivered)

    def close(self) -> None:
        self._end.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class _Read:
    record: Any

    def data(self) -> bytes:
        body: bytes = self.record.value()
        return body

    def message_id(self) -> str:
        return f"{self.record.partition()}:{self.record.offset()}"


class KafkaConsumer:
    """One member of a group of its own; the topic has one partition. Where the group has committed nothing it begins
    behind what is there. kafka: the official module. Raises ConfigError where the topic cannot be asked for.
    """

    def __init__(self, kafka: Any, consumer: Any, topic: str) -> None:
        pulsar = official()
        self._consumer, self._refused = consumer, kafka.KafkaException
        self._timeout, self._failed = pulsar.Timeout, pulsar.PulsarException
        self._read = 0
        try:
            (place,) = consumer.committed([kafka.TopicPartition(topic, 0)], timeout=_ANSWER_S)
            if place.offset < 0:
                _, end = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
                consumer.commit(offsets=[kafka.TopicPartition(topic, 0, end)], asynchronous=False)
            consumer.subscribe([topic])
        except kafka.KafkaException as error:
            raise ConfigError(f"Kafka's client was refused for {topic}: {error}") from error

    def get_last_message_id(self) -> None:
        """Offsets are no message ids: copies are read from their beginning."""

    def receive(self, timeout_millis: int) -> Any:
        """Raises Pulsar's own exceptions: its caller knows no others."""
        try:
            message = self._consumer.poll(timeout_millis / 1000)
        except self._refused as error:
            raise self._failed(str(error)) from error
        if message is None or message.error() is not None:
            self._commit()
            raise self._timeout("nothing came")
        return _Read(message)

    def acknowledge(self, message: Any) -> None:
        self._read += 1
        if self._read >= _COMMIT_EVERY:
            self._commit()

    def _commit(self) -> None:
        if self._read:
            with contextlib.suppress(self._refused):  # a rebalance, or a coordinator that is away: it comes again
                self._consumer.commit(asynchronous=False)
                self._read = 0

    def close(self) -> None:
        self._commit()
        self._consumer.close()

    def unsubscribe(self) -> None:
        """The group stays with its offsets, until they expire: another run has groups of its own."""
        self.close()
