"""A subscription that is active in one region at a time: consumers elsewhere wait, a move loses and repeats nothing, a
lost region is taken over from.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from geo_tests.wan.disaster import cut_off, dr, stopped_pids
from geo_tests.wan.instance import Instance, eventually, heliograph, rest

pytestmark = pytest.mark.long


class Worker:
    """One consumer that acknowledges what it gets, from a thread of its own."""

    def __init__(self, instance: Instance, region: str, topic: str, kind: Any = pulsar.ConsumerType.Shared) -> None:
        self.got: list[int] = []
        self.held: list[Any] = []
        self.acknowledges = True
        earliest = pulsar.InitialPosition.Earliest
        self._consumer = instance.client(region).subscribe(
            topic, "s", consumer_type=kind, initial_position=earliest, receiver_queue_size=5
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(pulsar.Timeout):
                message = self._consumer.receive(timeout_millis=200)
                if self.acknowledges:
                    self._consumer.acknowledge(message)
                    self.got.append(int(message.data()))
                else:
                    self.held.append(message)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@contextlib.contextmanager
def ended(*workers: Worker) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.end()


def waits(instance: Instance, region: str, namespace: str) -> str:
    rows = dr(instance, region, "subscriptions", namespace)
    return str(rows[0]["waiting"]) if rows else "unknown"


def test_a_planned_move_hands_each_message_out_once(trio: Instance) -> None:
    namespace, topic = "public/turns", "persistent://public/turns/orders"
    trio.namespace(namespace, ["us", "eu"])
    producer = trio.client("us").create_producer(topic)
    dr(trio, "us", "subscription-set", topic, "s", "--active", "us")
    us, eu = Worker(trio, "us", topic), Worker(trio, "eu", topic)  # at the same moment: it is one subscription
    with ended(us, eu):
        for n in range(200):
            producer.send(str(n).encode())
        eventually(lambda: len(us.got) == 200, "all of them are handed out in us")
        assert not eu.got and waits(trio, "eu", namespace) == "it is active in region us"
        stats = f"{trio.admin('eu')}/admin/v2/persistent/public/turns/orders/stats"
        assert rest("GET", stats)["subscriptions"]["s"]["waitsForItsTurn"] == "it is active in region us"
        us.acknowledges = False
        producer.send(b"200")
        eventually(lambda: us.held, "one message is out, and not acknowledged")
        path = f"{trio.admin('eu')}/heliograph/v1/dr/{namespace}/subscriptions/orders/s/move"
        eventually(
            lambda: "not acknowledged" in rest("POST", path, {"to": "eu"})["waiting"],
            "a drain waits for it, and whoever asked is gone",
        )
        producer.send(b"201")
        us._consumer.acknowledge(us.held[0])
        us.got.append(200)
        moved = dr(trio, "us", "subscription-move", topic, "s", "--to", "eu", "--drain", "50")
        assert moved["active"] == "eu" and moved["epoch"] == 2
        for n in range(202, 300):
            producer.send(str(n).encode())
        eventually(lambda: len(eu.got) == 99, "the rest is handed out in eu")
        assert Counter(us.got + eu.got) == Counter(range(300)) and not us.held[1:], "each message once"
        assert waits(trio, "us", namespace) == "it is active in region eu"
    heliograph("dr", "subscription-unset", topic, "s", "--admin", trio.admin("us"))
    eventually(lambda: not dr(trio, "us", "subscriptions", namespace), "it may be active in every region again")


def test_a_lost_region_is_taken_over_from_and_what_was_held_comes_again(trio: Instance) -> None:
    namespace, topic = "public/lostturns", "persistent://public/lostturns/orders"
    trio.namespace(namespace, ["us", "eu"])
    rest("POST", f"{trio.admin('us')}/admin/v2/namespaces/{namespace}/oneRegionSubscriptions", True)
    producer = trio.client("us").create_producer(topic)
    us = Worker(trio, "us", topic)
    for n in range(100):
        producer.send(str(n).encode())
    eventually(lambda: len(us.got) == 100, "by policy it is active where its first consumer is")
    eu = Worker(trio, "eu", topic)
    known = f"{trio.admin('eu')}/admin/v2/persistent/public/lostturns/orders/stats"
    eventually(
        lambda: rest("GET", known)["subscriptions"]["s"]["msgBacklog"] == 0,
        "eu knows that all of them are acknowledged",
    )
    broker = next(row["pid"] for row in trio.status()["regions"]["us"]["processes"] if "broker" in row["name"])
    with ended(us, eu):
        us.acknowledges = False
        for n in range(100, 150):
            producer.send(str(n).encode())
        eventually(lambda: len(us.held) >= 5, "some are out in us, and not acknowledged")
        eventually(lambda: len(trio.read_all("eu", topic)) == 150, "eu has them")
        assert not eu.got
        cut_off(trio, "us", cut=True)
        stopped_pids.add(broker)
        os.kill(broker, signal.SIGSTOP)
        try:
            eventually(
                lambda: sorted(eu.got) == list(range(100, 150)),
                "eu takes over once the lease has ended: what was not acknowledged comes again",
            )
            assert waits(trio, "eu", namespace) == ""
        finally:
            os.kill(broker, signal.SIGCONT)
            cut_off(trio, "us", cut=False)
        eventually(lambda: waits(trio, "us", namespace) == "it is active in region eu", "us hears of it")
        before = len(us.held)
        for n in range(150, 160):
            producer.send(str(n).encode())
        eventually(lambda: sorted(eu.got) == list(range(100, 160)), "and it goes on there alone")
        assert len(us.held) == before, "the broker that was stopped hands out nothing more"
