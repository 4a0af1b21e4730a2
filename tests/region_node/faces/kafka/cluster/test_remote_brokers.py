"""How much is kept of other regions' brokers, and who is said to own what."""

from __future__ import annotations

import logging
import random

import pytest

from heliograph.model.configuration.kafka_brokers import KafkaBrokerInfo, kafka_broker
from region_node.faces.kafka.cluster.kafka_nodes import node_url
from region_node.faces.kafka.cluster.remote_brokers import BROKERS_KEPT, KEPT_BYTES, REGIONS_KEPT, RemoteBrokers

N = "public/default"


def told(
    brokers: RemoteBrokers,
    number: int,
    *ranges: tuple[int, int],
    region: str = "eu",
    tls: bool = False,
    size: int = 100,
) -> str:
    listener = {"kafka-tls" if tls else "kafka": node_url(number, f"b{number}", 9092)}
    key = kafka_broker(region, f"b{number}", number)
    brokers.put(key, KafkaBrokerInfo(listeners=listener, owns={N: [list(row) for row in ranges]}), size)
    return key


def owner(brokers: RemoteBrokers, number: int, *, tls: bool = False, region: str = "eu") -> int | None:
    found = brokers.owner(region, N, number, tls)
    node = found and found.nodes[tls]
    return node.number if node else None


def numbers(brokers: RemoteBrokers, region: str = "eu") -> list[int]:
    return [node.number for each in brokers.listening(region, False) if (node := each.nodes[False]) is not None]


@pytest.mark.parametrize("seed", range(20))
def test_each_hash_has_the_owner_that_says_so_last_and_one_that_is_gone_owns_nothing(seed: int) -> None:
    rng, brokers, edges = random.Random(seed), RemoteBrokers(), range(0, 400, 10)
    owns: dict[int, list[tuple[int, int]]] = {}
    for _ in range(30):
        number, free = rng.randrange(5), [low for low in edges if all((low, low + 10) not in r for r in owns.values())]
        if rng.randrange(3) and free:
            owns[number] = [*owns.get(number, ()), *((low, low + 10) for low in rng.sample(free, min(3, len(free))))]
            told(brokers, number, *owns[number])
        elif owns.pop(number, None) is not None:
            brokers.remove(kafka_broker("eu", f"b{number}", number))
        for at in rng.sample(range(-5, 410), 40):
            expected = next((n for n, rows in owns.items() if any(low <= at < high for low, high in rows)), None)
            assert owner(brokers, at) == expected
        assert numbers(brokers) == sorted(owns)


def test_of_two_owners_of_a_range_one_is_named_for_each_hash_and_only_who_has_the_listener() -> None:
    brokers = RemoteBrokers()
    told(brokers, 1, (0, 100))
    told(brokers, 2, (50, 150), (20, 30))
    told(brokers, 3, (0, 200), tls=True)
    assert [owner(brokers, at) for at in (0, 25, 75, 120, 170)] == [1, 1, 1, 2, None]
    assert owner(brokers, 75, tls=True) == 3 and owner(brokers, 75, region="ap") is None


def test_a_region_that_announces_too_many_brokers_is_refused_them_and_that_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = RemoteBrokers()
    with caplog.at_level(logging.WARNING, "region_node.kafka"):
        for number in range(BROKERS_KEPT + 50):
            told(brokers, number)
        told(brokers, 7, region="ap")
    assert numbers(brokers) == list(range(BROKERS_KEPT)) and numbers(brokers, "ap") == [7]
    (record,) = caplog.records
    assert record.getMessage() == "kafka.broker_not_kept"
    brokers.remove(kafka_broker("eu", "b3", 3))
    told(brokers, BROKERS_KEPT + 7)
    assert numbers(brokers)[-1] == BROKERS_KEPT + 7 and len(numbers(brokers)) == BROKERS_KEPT


def test_a_region_that_tells_too_much_is_refused_it_and_what_it_told_before_of_that_broker_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = RemoteBrokers()
    with caplog.at_level(logging.WARNING, "region_node.kafka"):
        told(brokers, 1, (0, 10), size=KEPT_BYTES // 2)
        told(brokers, 2, (10, 20), size=KEPT_BYTES // 2)
        told(brokers, 3, (20, 30), size=1)
        told(brokers, 1, (0, 10), size=KEPT_BYTES // 2 + 1)
    assert numbers(brokers) == [2] and owner(brokers, 5) is None and len(caplog.records) == 1
    told(brokers, 3, (20, 30), size=KEPT_BYTES // 2)
    assert owner(brokers, 25) == 3


def test_a_bounded_number_of_regions_is_kept_and_one_that_has_no_broker_any_more_takes_no_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = RemoteBrokers()
    with caplog.at_level(logging.WARNING, "region_node.kafka"):
        for region in range(REGIONS_KEPT + 5):
            told(brokers, 1, region=f"r{region}")
    assert [bool(numbers(brokers, f"r{n}")) for n in (0, REGIONS_KEPT - 1, REGIONS_KEPT)] == [True, True, False]
    assert [record.getMessage() for record in caplog.records] == ["kafka.region_not_kept"]
    brokers.remove(kafka_broker("r0", "b1", 1))
    told(brokers, 1, region="late")
    assert numbers(brokers, "late") == [1]
