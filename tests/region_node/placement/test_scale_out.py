"""A region grows under load: a second and a third broker join, bundles go to them by command, and no client sees an
error.

The longest time between two receipts around each move is printed (`-s`); `make bench-takeover` measures it on a quiet
machine.
"""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.region_node.live import until
from tests.region_node.one_topic import provision
from tests.region_node.region_processes import Region

pulsar = pytest.importorskip("pulsar")
pytestmark = [pytest.mark.wan, pytest.mark.slow]

BUNDLES, NAMESPACE = 6, "public/grows"
TOPICS = 6
BY_COMMAND = {"balance": {"enabled": False}, "ownership": {"lease_ttl_ms": 60_000}}
"""Nothing moves by itself, and a broker that a busy machine keeps waiting is not dead."""


class Publisher:
    """Publishes to one topic until told to stop; every receipt and every refusal counts."""

    def __init__(self, client: Any, topic: str) -> None:
        self.topic = topic
        self.receipts: list[float] = []
        self.refusals: list[str] = []
        self._stop = threading.Event()
        self._producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=180_000)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.send_async(b"%d" % number, self._answered)
            number += 1
            self._stop.wait(0.01)
        self._producer.flush()

    def _answered(self, result: Any, _id: Any) -> None:
        if result == pulsar.Result.Ok:
            self.receipts.append(time.monotonic())
        else:
            self.refusals.append(str(result))

    def stop(self) -> int:
        """How many messages it has sent and been told to be stored."""
        self._stop.set()
        self._thread.join()
        return len(self.receipts)


def everything(consumer: Any, count: int) -> list[int]:
    """At least `count` messages, in the order in which they came."""
    out: list[int] = []
    while len(set(out)) < count:
        message = consumer.receive(timeout_millis=60_000)
        out.append(int(message.data()))
        consumer.acknowledge(message)
    return out


def test_brokers_join_under_load_and_take_bundles_by_command(tmp_path: Path) -> None:
    with Region(tmp_path) as region:
        region.start(bookies=2, brokers=1, **BY_COMMAND)
        rest = provision(region)
        assert (
            rest(
                "PUT",
                f"/admin/v2/namespaces/{NAMESPACE}",
                {"bundles": {"numBundles": BUNDLES}, "replication_clusters": ["us"]},
            )[0]
            == 204
        )
        client = pulsar.Client(region.service_url(), logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        publishers: list[Publisher] = []
        try:
            topics = [f"persistent://{NAMESPACE}/t{number}" for number in range(TOPICS)]
            consumers = [client.subscribe(topic, "s", receiver_queue_size=10_000) for topic in topics]
            publishers = [Publisher(client, topic) for topic in topics]
            bundles = sorted(
                {rest("GET", f"/lookup/v2/topic/persistent/{NAMESPACE}/t{n}/bundle")[1] for n in range(TOPICS)}
            )
            moves: list[tuple[str, float]] = []
            for index in (1, 2):
                region.broker(index, **BY_COMMAND).wait_ready()
                there = region.admin_url(index).removeprefix("http://")
                until(lambda there=there: there in str(rest("GET", "/admin/v2/brokers")[1]))  # type: ignore[misc]
                for bundle in bundles[index::3]:
                    moves.append((bundle, time.monotonic()))
                    path = f"/admin/v2/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={there}"
                    assert rest("PUT", path)[0] == 204
                    seen = [len(p.receipts) for p in publishers]
                    until(lambda seen=seen: all(len(p.receipts) > n + 5 for p, n in zip(publishers, seen, strict=True)))  # type: ignore[misc]
            assert moves
            sent = [publisher.stop() for publisher in publishers]
            assert [p.refusals for p in publishers] == [[] for _ in publishers]
            for consumer, count in zip(consumers, sent, strict=True):
                came = everything(consumer, count)
                assert [n for at, n in enumerate(came) if n not in set(came[:at])] == list(
                    range(count)
                )  # each once, in order, but for repeats
            owners = {
                rest("GET", f"/lookup/v2/topic/persistent/{NAMESPACE}/t{n}")[1]["brokerUrl"] for n in range(TOPICS)
            }
            assert len(owners) == min(3, len(bundles))
            gap = max(b - a for p in publishers for a, b in pairwise(p.receipts))
            print(
                f"{len(moves)} bundles moved to 2 new brokers under {TOPICS} publishers: longest time between two "
                f"receipts {gap * 1e3:.0f} ms"
            )
        finally:
            for publisher in publishers:
                publisher._stop.set()
            client.close()
