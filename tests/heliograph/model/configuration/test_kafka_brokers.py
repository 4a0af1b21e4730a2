"""What regions are told of each other's Kafka listeners."""

from __future__ import annotations

from heliograph.model.configuration.kafka_brokers import KAFKA_BROKERS, KafkaBrokerInfo, kafka_broker, region_of


def test_what_a_broker_tells_is_read_as_it_was_told() -> None:
    told = KafkaBrokerInfo(listeners={"kafka": "kafka://3@a:9092"}, owns={"public/default": [[0, 7], [9, 1 << 32]]})
    assert KafkaBrokerInfo.decode(told.encode()) == told


def test_a_key_says_whose_it_is() -> None:
    key = kafka_broker("eu", "b-1.example", 7)
    assert key.startswith(KAFKA_BROKERS) and region_of(key) == "eu"
