"""The official client is sent from one region to another, as in a blue-green migration: what was published before is
read before what is published after.
"""

from __future__ import annotations

import threading
from typing import Any

import pulsar

from geo_tests.wan.instance import Instance, eventually, rest

BACKLOG = 50


def publishers(instance: Instance, region: str, topic: str) -> int:
    return len(
        rest("GET", f"{instance.admin(region)}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")[
            "publishers"
        ]
    )


def consumers(instance: Instance, region: str, topic: str) -> int:
    found: dict[str, Any] = rest(
        "GET", f"{instance.admin(region)}/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats"
    )["subscriptions"]
    return sum(len(subscription["consumers"]) for subscription in found.values())


def test_producers_and_consumers_go_and_lose_and_reorder_nothing(pair: Instance) -> None:
    pair.namespace("public/blue", ["us", "eu"])
    topic = "persistent://public/blue/orders"
    client = pair.client("us")
    producer = client.create_producer(topic, producer_name="orders", send_timeout_millis=0)
    consumer = client.subscribe(
        topic,
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        receiver_queue_size=1,
    )
    for number in range(BACKLOG):
        producer.send(b"%d" % number)
    confirmed: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        number = BACKLOG
        while not stop.wait(0.02):
            producer.send(b"%d" % number)
            confirmed.append(number)
            number += 1

    going_on = threading.Thread(target=publish)
    going_on.start()
    try:
        urls = {"brokerServiceUrl": pair.state["regions"]["eu"]["service_url"]}
        rest("POST", f"{pair.admin('us')}/admin/v2/clusters/us/migrate?migrated=false", urls)
        rest("POST", f"{pair.admin('us')}/admin/v2/namespaces/public/blue/migration", True)
        eventually(
            lambda: publishers(pair, "eu", topic) == 1 and publishers(pair, "us", topic) == 0,
            "the producer has gone to eu",
        )
        published = len(confirmed)
        eventually(lambda: len(confirmed) > published + 20, "it publishes there")
        assert consumers(pair, "us", topic) == 1, "the consumer has a backlog"
        got: list[int] = []

        def receive(until: int) -> None:
            while not got or got[-1] < until:
                message = consumer.receive(timeout_millis=60_000)
                consumer.acknowledge(message)
                got.append(int(message.data()))

        receive(confirmed[-1])
        eventually(
            lambda: consumers(pair, "eu", topic) == 1 and consumers(pair, "us", topic) == 0,
            "the consumer has gone to eu",
        )
    finally:
        stop.set()
        going_on.join()
    receive(confirmed[-1])
    first = list(dict.fromkeys(got))
    assert first == list(range(confirmed[-1] + 1)), "each message, in the order in which they were published"
    rest("POST", f"{pair.admin('us')}/admin/v2/namespaces/public/blue/migration", False)
    back = pair.client("us").create_producer(topic, producer_name="back")
    back.send(b"back")
    assert publishers(pair, "us", topic) == 1
    back.close()
    client.close()
