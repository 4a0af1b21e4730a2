"""What a topic's policies keep out: at the bound, beyond it, and where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.configuration.policy_table import Applied, applied
from heliograph.model.errors import EncryptionRequired, NotAllowed
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import Run
from region_node.topics.limits.topic_limits import (
    NAME_BYTES_MAX,
    SubscribeRate,
    check_name,
    check_new_subscription,
    is_strict,
    refusals,
)
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, obey, with_broker

NOW_MS = 1_000_000


def of(**policies: Any) -> Applied:
    return applied(policies)


def run_of(*parts: bytes) -> Run:
    return Run(list(parts), [len(part) for part in parts])


def delay(milliseconds: int) -> Applied:
    return of(delayedDelivery={"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": milliseconds})


def test_a_topic_has_as_many_subscriptions_as_it_may_have() -> None:
    check_new_subscription(of(), TOPIC, "s", 1_000_000)
    check_new_subscription(of(maxSubscriptions=2), TOPIC, "s", 1)
    for there in (2, 3):
        with pytest.raises(NotAllowed, match=r"maximum number of subscriptions .* limit 2"):
            check_new_subscription(of(maxSubscriptions=2), TOPIC, "s", there)
    with pytest.raises(NotAllowed, match="name of the subscription"):
        check_new_subscription(of(), TOPIC, "s" * 1001, 0)


def test_names_are_bounded_by_their_bytes() -> None:
    assert NAME_BYTES_MAX == 1000
    for name in ("", "n" * 1000, "ü" * 500):
        check_name("producer", name)
    for name in ("n" * 1001, "ü" * 501, "n" * 999 + "ü"):
        with pytest.raises(NotAllowed, match=r"name of the producer has 100[12] bytes: at most 1000"):
            check_name("producer", name)


def test_how_often_a_client_may_subscribe() -> None:
    async def test(broker: Broker) -> None:
        obey(broker, subscribeRate={"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 30})
        topic = await broker.topics.get(TOPIC, create=True)
        for _ in range(2):
            topic.check_subscribe_rate("a")
        with pytest.raises(NotAllowed, match="Subscribe limited"):
            topic.check_subscribe_rate("a")
        topic.check_subscribe_rate("b")
        broker.clock.now += 30
        topic.check_subscribe_rate("a")

    with_broker(test)


def test_a_client_begins_anew_with_each_period_and_not_before() -> None:
    rate = SubscribeRate()
    twice = of(subscribeRate={"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10})
    rate.check(twice, "a", 100.0)
    rate.check(twice, "a", 109.9)
    with pytest.raises(NotAllowed):
        rate.check(twice, "a", 109.9)
    rate.check(twice, "b", 109.9)
    rate.check(twice, "a", 110.0)
    rate.check(twice, "a", 110.0)
    with pytest.raises(NotAllowed):
        rate.check(twice, "a", 119.9)


@pytest.mark.parametrize("most", (None, 0, -1))
def test_without_a_rate_nobody_is_counted(most: int | None) -> None:
    rate, found = SubscribeRate(), {"ratePeriodInSecond": 10}
    policies = of(subscribeRate={**found, "subscribeThrottlingRatePerConsumer": most}) if most is not None else of()
    for _ in range(50):
        rate.check(policies, "a", 1.0)
    assert not rate._counts


def test_counts_are_bounded_where_very_many_clients_come() -> None:
    rate = SubscribeRate()
    once = of(subscribeRate={"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 10})
    for number in range(10_000):
        rate.check(once, f"c{number}", 1.0)
    with pytest.raises(NotAllowed):  # nobody was forgotten so far
        for number in range(25_000):
            rate.check(once, f"d{number}", 1.0)
            assert len(rate._counts) <= 10_000
        rate.check(once, "d24999", 1.0)


def test_entries_are_looked_at_where_one_may_be_refused() -> None:
    assert not is_strict(of()) and not is_strict(delay(0)) and not is_strict(of(encryptionRequired=False))
    assert is_strict(of(maxMessageSize=1)) and is_strict(of(encryptionRequired=True)) and is_strict(delay(1))


def test_entries_that_are_too_large_are_refused_one_by_one() -> None:
    run = Run([b"x" * 10, b"x" * 11, b"x" * 9, b"x" * 12], [10, 11, 9, 12])
    assert refusals(of(), TOPIC, run, NOW_MS) == refusals(of(maxMessageSize=12), TOPIC, run, NOW_MS) == []
    found = refusals(of(maxMessageSize=10), TOPIC, run, NOW_MS)
    assert [index for index, _ in found] == [1, 3] and all(isinstance(why, NotAllowed) for _, why in found)
    assert "11 bytes, at most 10" in str(found[0][1]) and TOPIC in str(found[0][1])


def test_entries_in_the_clear_are_refused_where_encryption_is_required() -> None:
    sealed = entry(b"x", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    run = run_of(entry(b"x"), sealed, b"no entry", sealed)
    found = refusals(of(encryptionRequired=True), TOPIC, run, NOW_MS)
    assert [index for index, _ in found] == [0, 2] and all(isinstance(why, EncryptionRequired) for _, why in found)
    assert refusals(of(encryptionRequired=False), TOPIC, run, NOW_MS) == []


def test_entries_that_are_to_be_delivered_too_late_are_refused() -> None:
    times = (0, NOW_MS + 5000, NOW_MS + 5001, NOW_MS - 1)
    run = run_of(*(entry(b"x", **({"deliver_at_time": time} if time else {})) for time in times))
    found = refusals(delay(5000), TOPIC, run, NOW_MS)
    assert [index for index, _ in found] == [2] and "5000 milliseconds" in str(found[0][1])
    assert refusals(delay(5001), TOPIC, run, NOW_MS) == refusals(of(), TOPIC, run, NOW_MS) == []


def test_what_is_refused_for_several_reasons_is_refused_once_and_in_order() -> None:
    policies = of(encryptionRequired=True, maxMessageSize=40)
    sealed = entry(b"x", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    large = entry(b"x" * 100, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    assert len(sealed) <= 40 < len(large)
    found = refusals(policies, TOPIC, run_of(large, entry(b"x" * 100), sealed, entry(b"")), NOW_MS)
    assert [(index, type(why)) for index, why in found] == [(0, NotAllowed), (1, NotAllowed), (3, EncryptionRequired)]
