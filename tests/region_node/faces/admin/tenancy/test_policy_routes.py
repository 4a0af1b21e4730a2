"""Policies set over HTTP, as the official client feels them: on live topics, within a second, without a new
connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pulsar
import pytest

from tests.region_node.either import ORACLE, WITHIN_S, Either
from tests.region_node.live import NAMESPACE, TOPICS
from tests.region_node.live import until as until_in
from tests.region_node.rest_client import Rest

pytestmark = [pytest.mark.either, pytest.mark.wan, pytest.mark.slow]

SHARED, EARLIEST = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest


def until(what: Callable[[], Any]) -> Any:
    return until_in(what, WITHIN_S)


@pytest.fixture(scope="module")
def hasty(region: Either) -> Iterator[pulsar.Client]:
    """For what this client tries again until its time is over."""
    made = pulsar.Client(
        region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=3
    )
    yield made
    made.close()


def accepted(act: Callable[[], Any]) -> Any:
    """At once here; Pulsar's topics hear of a policy a moment after it was answered."""

    def tried() -> Any:
        try:
            return act()
        except pulsar.PulsarException:
            return None

    return until(tried) if ORACLE else act()


def refused(kinds: Any, act: Callable[[], Any]) -> None:
    """At once here; Pulsar hears of a topic's policies a little later."""

    def tried() -> bool:
        try:
            act().close()
        except kinds:
            return True
        return False

    assert until(tried) if ORACLE else tried()


def stats(rest: Rest, topic: str) -> Any:
    return rest("GET", f"{TOPICS}/{topic}/stats")[1]


# -- who may come


def test_numbers_of_producers_consumers_and_subscriptions(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("limits")
    consumer = client.subscribe("limits", "a", SHARED)
    assert rest("POST", f"{TOPICS}/limits/maxProducers", 1)[0] == 204
    refused(pulsar.ProducerBusy, lambda: client.create_producer("limits"))
    assert rest("POST", f"{TOPICS}/limits/maxSubscriptionsPerTopic", 1)[0] == 204
    names = count()
    refused(pulsar.NotAllowedError, lambda: client.subscribe("limits", f"b{next(names)}"))
    assert rest("POST", f"{TOPICS}/limits/maxConsumersPerSubscription", 1)[0] == 204
    refused(pulsar.ConsumerBusy, lambda: client.subscribe("limits", "a", SHARED))
    assert rest("DELETE", f"{TOPICS}/limits/maxConsumersPerSubscription")[0] == 204
    assert rest("POST", f"{TOPICS}/limits/maxConsumers", 2)[0] == 204
    other = accepted(lambda: client.subscribe("limits", "a", SHARED))
    refused(pulsar.ConsumerBusy, lambda: client.subscribe("limits", "a", SHARED))
    assert rest("POST", f"{TOPICS}/limits/subscriptionTypesEnabled", ["Exclusive"])[0] == 204
    counted = (pulsar.NotAllowedError, pulsar.ConsumerBusy) if ORACLE else pulsar.NotAllowedError  # Pulsar counts first
    refused(counted, lambda: client.subscribe("limits", "a", SHARED))
    producer.send(b"still here")
    assert rest("DELETE", f"{TOPICS}/limits/maxProducers")[0] == 204
    accepted(lambda: client.create_producer("limits")).close()
    for one in (producer, consumer, other):
        one.close()


def test_topics_and_subscriptions_come_into_being_as_the_namespace_says(
    client: pulsar.Client, hasty: pulsar.Client, rest: Rest
) -> None:
    try:
        assert (
            rest(
                "POST",
                f"{NAMESPACE}/autoTopicCreation",
                {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
            )[0]
            == 204
        )
        client.create_producer("made-3").close()
        assert rest("GET", f"{TOPICS}/made-3/partitions") == (200, {"partitions": 3, "deleted": False})
        assert rest("POST", f"{NAMESPACE}/autoTopicCreation", {"allowAutoTopicCreation": False})[0] == 204
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer("made-never")
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe("made-never", "s")
        client.create_producer("made-3-partition-1").close()
        assert rest("PUT", f"{TOPICS}/made-by-admin")[0] == 204
        client.create_producer("made-by-admin").close()
        assert rest("POST", f"{NAMESPACE}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})[0] == 204
        with pytest.raises(pulsar.Timeout):  # this client tries again on SubscriptionNotFound, until its time is over
            hasty.subscribe("made-by-admin", "s")
        assert rest("GET", f"{TOPICS}/made-by-admin/subscriptions") == (200, [])
        client.create_reader("made-by-admin", pulsar.MessageId.earliest).close()
        assert rest("POST", f"{NAMESPACE}/maxTopicsPerNamespace", 1)[0] == 204
        assert rest("PUT", f"{TOPICS}/one-too-many")[0] == 409
    finally:
        for policy in ("autoTopicCreation", "autoSubscriptionCreation", "maxTopicsPerNamespace"):
            assert rest("DELETE", f"{NAMESPACE}/{policy}")[0] == 204
    client.create_producer("made-again").close()


def test_encryption_that_is_required(client: pulsar.Client, hasty: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", "/admin/v2/namespaces/public/secret")[0] == 204
    topic = "persistent://public/secret/t"
    producer = client.create_producer(topic, send_timeout_millis=120_000)
    producer.send(b"plain")
    assert rest("POST", "/admin/v2/namespaces/public/secret/encryptionRequired", True)[0] == 204
    with pytest.raises(pulsar.PulsarException):
        hasty.create_producer(topic)
    sent: list[Any] = []
    producer.send_async(b"plain", lambda result, _: sent.append(result))
    assert stats_of(rest, "secret/t")["msgInCounter"] == 1 and sent == []
    assert rest("POST", "/admin/v2/namespaces/public/secret/encryptionRequired", False)[0] == 204
    until(lambda: sent == [pulsar.Result.Ok])
    producer.close()


def stats_of(rest: Rest, topic: str) -> Any:
    return rest("GET", f"/admin/v2/persistent/public/{topic}/stats")[1]


# -- what is kept


def test_messages_expire_and_only_their_subscription_s_view_changes(client: pulsar.Client, rest: Rest) -> None:
    waiting = client.subscribe("ttl", "s", SHARED, receiver_queue_size=1)
    producer = client.create_producer("ttl", batching_enabled=False, send_timeout_millis=120_000)
    for n in range(10):
        producer.send(b"%d" % n)
    assert stats(rest, "ttl")["subscriptions"]["s"]["msgBacklog"] == 10
    assert rest("POST", f"{TOPICS}/ttl/messageTTL?messageTTL=1")[0] == 204
    assert rest("GET", f"{TOPICS}/ttl/messageTTL") == (200, 1)
    until(lambda: stats(rest, "ttl")["subscriptions"]["s"]["totalMsgExpired"] == 10)
    found = stats(rest, "ttl")["subscriptions"]["s"]
    assert found["msgBacklog"] == 0 and found["lastExpireTimestamp"] > 0
    assert (found["unackedMessages"] == 0) is not ORACLE, (
        "nobody waits for the acknowledgement of what has expired; Pulsar does"
    )
    assert rest("DELETE", f"{TOPICS}/ttl/messageTTL")[0] == 204
    reader = client.create_reader("ttl", pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"0"  # retention keeps what no subscription waits for
    for one in (reader, waiting, producer):
        one.close()


@pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
def test_a_backlog_above_its_quota_stops_producers_until_it_is_consumed(
    policy: str, client: pulsar.Client, rest: Rest
) -> None:
    topic = f"quota-{policy}"
    consumer = client.subscribe(topic, "s", SHARED)
    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=120_000)
    for _ in range(20):
        producer.send(b"x" * 1000)
    quota = {"limitSize": 5000, "limitTime": -1, "policy": policy}
    assert rest("POST", f"{TOPICS}/{topic}/backlogQuota?backlogQuotaType=destination_storage", quota)[0] == 204
    assert rest("GET", f"{TOPICS}/{topic}/backlogQuotaMap?applied=true")[1]["destination_storage"] == quota | {
        "limit": 5000
    }
    until(lambda: not stats(rest, topic)["publishers"])
    if policy == "producer_exception":
        with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
            client.create_producer(topic)
    for _ in range(20):
        consumer.acknowledge(consumer.receive(60_000))
    until(lambda: stats(rest, topic)["publishers"])
    producer.send(b"again")
    producer.close()
    consumer.close()


def test_a_backlog_above_its_quota_is_evicted(client: pulsar.Client, rest: Rest) -> None:
    consumer = client.subscribe("evicted", "s", SHARED, receiver_queue_size=1)
    producer = client.create_producer("evicted", batching_enabled=False, send_timeout_millis=120_000)
    for _ in range(20):
        producer.send(b"x" * 1000)
    quota = {"limitSize": 5000, "policy": "consumer_backlog_eviction"}
    assert rest("POST", f"{TOPICS}/evicted/backlogQuota", quota)[0] == 204
    until(lambda: 0 < stats(rest, "evicted")["subscriptions"]["s"]["msgBacklog"] <= 5)
    producer.send(b"goes on")
    assert rest("DELETE", f"{TOPICS}/evicted/backlogQuota")[0] == 204
    if ORACLE:  # its backlog stays, at least until the ledger is closed
        consumer.close()
        producer.close()
        return
    age = {"limitTime": 1, "policy": "consumer_backlog_eviction"}
    assert rest("POST", f"{TOPICS}/evicted/backlogQuota?backlogQuotaType=message_age", age)[0] == 204
    until(lambda: stats(rest, "evicted")["subscriptions"]["s"]["msgBacklog"] == 0)
    consumer.close()
    producer.close()


# -- how fast


def test_rates_in_and_out(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("rates", batching_enabled=False, send_timeout_millis=120_000)
    consumer = client.subscribe("rates", "s", SHARED, initial_position=EARLIEST)
    rate, held = 20, 2 * 20
    """A second; and what may go at once: a bucket holds a second's worth, and Pulsar's client and broker have another
    one under way.
    """

    def within(count: int, began: float) -> None:
        """However slow the machine is, it is not faster than that."""
        assert count <= rate * (time.monotonic() - began) + held, (
            f"{count} messages in {time.monotonic() - began:.1f} s"
        )

    def all_are_out(began: float) -> bool:
        out = int(stats(rest, "rates")["msgOutCounter"])
        within(out, began)
        return out == 100

    assert (
        rest("POST", f"{TOPICS}/rates/dispatchRate", {"dispatchThrottlingRateInMsg": rate, "ratePeriodInSecond": 1})[0]
        == 204
    )
    until(lambda: rest("GET", f"{TOPICS}/rates/dispatchRate")[1])
    began = time.monotonic()
    for n in range(100):
        producer.send_async(b"%d" % n, None)
    until(lambda: all_are_out(began))
    assert [consumer.receive(60_000).data() for _ in range(100)] == [b"%d" % n for n in range(100)]
    producer.flush()
    assert rest("DELETE", f"{TOPICS}/rates/dispatchRate")[0] == 204
    assert rest("POST", f"{TOPICS}/rates/publishRate", {"publishThrottlingRateInMsg": rate})[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/rates/publishRate")[1])
    began = time.monotonic()
    for n in range(100):
        producer.send(b"%d" % n)
        within(n + 1, began)
    assert rest("DELETE", f"{TOPICS}/rates/publishRate")[0] == 204
    began = time.monotonic()
    for n in range(1000):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    assert time.monotonic() - began < 0.8 * 1000 / rate, "nothing holds it any more"
    producer.close()
    consumer.close()


def test_unacknowledged_limits_and_delays_change_under_a_live_consumer(client: pulsar.Client, rest: Rest) -> None:
    assert rest("PUT", f"{TOPICS}/held")[0] == 204
    assert rest("POST", f"{TOPICS}/held/maxUnackedMessagesOnConsumer", 3)[0] == 204
    consumer = client.subscribe("held", "s", SHARED)
    producer = client.create_producer("held", batching_enabled=False, send_timeout_millis=120_000)
    for n in range(10):
        producer.send(b"%d" % n)
    until(lambda: stats(rest, "held")["subscriptions"]["s"]["unackedMessages"] == 3)
    assert stats(rest, "held")["subscriptions"]["s"]["consumers"][0]["blockedConsumerOnUnackedMsgs"]
    assert rest("POST", f"{TOPICS}/held/maxUnackedMessagesOnConsumer", 0)[0] == 204
    if ORACLE:  # the consumer stays blocked until it acknowledges something
        consumer.close()
        producer.close()
        return
    until(lambda: stats(rest, "held")["subscriptions"]["s"]["unackedMessages"] == 10)
    producer.send(b"late", deliver_at=int(time.time() * 1000) + 60_000)
    until(lambda: stats(rest, "held")["subscriptions"]["s"]["msgDelayed"] == 1)
    assert rest("POST", f"{TOPICS}/held/delayedDelivery", {"active": False, "tickTime": 1000})[0] == 204
    until(lambda: stats(rest, "held")["subscriptions"]["s"]["unackedMessages"] == 11)
    assert stats(rest, "held")["subscriptions"]["s"]["msgDelayed"] == 0
    consumer.close()
    producer.close()


def test_topics_and_deduplication_follow_the_namespace(client: pulsar.Client, rest: Rest) -> None:
    producer = client.create_producer("switch", producer_name="p", batching_enabled=False, send_timeout_millis=120_000)
    assert stats(rest, "switch")["deduplicationStatus"] == "Disabled"
    assert rest("POST", f"{NAMESPACE}/deduplication", True)[0] == 204
    until(lambda: stats(rest, "switch")["deduplicationStatus"] == "Enabled")
    assert rest("GET", f"{TOPICS}/switch/deduplicationEnabled") == (200, None)
    assert rest("GET", f"{TOPICS}/switch/deduplicationEnabled?applied=true") == (200, True)
    assert rest("POST", f"{TOPICS}/switch/deduplicationEnabled", False)[0] == 204
    until(lambda: stats(rest, "switch")["deduplicationStatus"] == "Disabled")
    assert rest("DELETE", f"{NAMESPACE}/deduplication")[0] == 204
    assert rest("POST", f"{TOPICS}/switch/maxMessageSize", 100)[0] == 204
    producer.send(b"small")
    assert stats(rest, "switch")["msgInCounter"] == 1
    producer.close()
    inactive = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    assert rest("POST", f"{TOPICS}/switch/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})[0] == 204
    assert rest("POST", f"{TOPICS}/switch/inactiveTopicPolicies", inactive)[0] == 204
    until(lambda: rest("GET", f"{TOPICS}/switch/stats")[0] == 404)  # asked, an idle topic is loaded and judged again
    assert not any("/switch" in name for name in rest("GET", TOPICS)[1])
    assert rest("PUT", f"{TOPICS}/switch")[0] == 204
    assert rest("GET", f"{TOPICS}/switch/maxMessageSize")[0] == 204  # what was set for the topic went with it
