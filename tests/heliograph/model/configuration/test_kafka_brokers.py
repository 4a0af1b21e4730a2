"""What regions are told of each other's Kafka listeners."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.model.configuration.kafka_brokers import (
    HOST_MAX,
    KAFKA_BROKERS,
    RANGES_MAX,
    KafkaBrokerInfo,
    kafka_broker,
    region_of,
)
from heliograph.model.errors import CorruptData


def test_what_a_broker_tells_is_read_as_it_was_told() -> None:
    told = KafkaBrokerInfo(listeners={"kafka": "kafka://3@a:9092"}, owns={"public/default": [[0, 7], [9, 1 << 32]]})
    assert KafkaBrokerInfo.decode(told.encode()) == told


def test_a_key_says_whose_it_is() -> None:
    key = kafka_broker("eu", "b-1.example", 7)
    assert key.startswith(KAFKA_BROKERS) and region_of(key) == "eu"


@pytest.mark.parametrize(
    "told",
    [
        "x",
        None,
        {"listeners": "x"},
        {"listeners": {"kafka": 7}},
        {"listeners": {"kafka": "kafka://1@a"}},
        {"listeners": {"kafka": "kafka://1@a:65536"}},
        {"listeners": {"kafka": "kafka://x@a:1"}},
        {"listeners": {"kafka": f"kafka://1@{'a' * (HOST_MAX + 1)}:1"}},
        {"owns": [1]},
        {"owns": {"n": 1}},
        {"owns": {"n": [1]}},
        {"owns": {"n": [[1, 2, 3]]}},
        {"owns": {"n": [[1, "2"]]}},
        {"owns": {"n": [[0, 1]] * (RANGES_MAX + 1)}},
    ],
)
def test_what_no_broker_tells_is_corrupt(told: Any) -> None:
    value = {"format": 1, **told} if isinstance(told, dict) else told
    with pytest.raises(CorruptData):
        KafkaBrokerInfo.decode(json.dumps(value).encode())
