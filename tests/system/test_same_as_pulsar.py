"""The same script, by the same official client, against a real Apache Pulsar and against a standalone: the answers are the same.

Each scenario returns plain values; what differs by nature (ledger ids, times) is left out of them.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

from benchmarks.servers import Heliograph, Pulsar, Server

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


class Side:
    """One system under the script."""

    def __init__(self, server: Server) -> None:
        service, web = next(iter(server.regions.values()))
        self.client = pulsar.Client(f"pulsar://127.0.0.1:{service}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=30)
        self.admin = f"http://127.0.0.1:{web}/admin/v2"

    def rest(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.admin + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, None


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("a real Pulsar needs Maven and a JDK, which are absent here")
    folder: Path = tmp_path_factory.mktemp("peers")
    servers: list[Server] = []
    try:
        servers.append(Heliograph(folder / "ours"))
        servers.append(Pulsar(folder / "theirs"))
        ours, theirs = Side(servers[0]), Side(servers[1])
        try:
            yield ours, theirs
        finally:
            ours.client.close()
            theirs.client.close()
    finally:
        for server in servers:
            server.stop()


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def drain(consumer: Any, count: int) -> list[bytes]:
    out = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=10_000)
        out.append(message.data())
        consumer.acknowledge(message)
    return out


def publish_and_read(side: Side) -> Any:
    topic = "same-basic"
    producer = side.client.create_producer(topic, "named", batching_enabled=False)
    for n in range(5):
        producer.send(str(n).encode(), properties={"n": str(n)}, partition_key="k" if n % 2 else "", sequence_id=n + 10)
    batched = side.client.create_producer(topic, "batched", batching_enabled=True, batching_max_publish_delay_ms=50)
    for n in range(5, 9):
        batched.send_async(str(n).encode(), None)
    batched.flush()
    reader = side.client.create_reader(topic, pulsar.MessageId.earliest)
    rows = []
    while reader.has_message_available():
        m = reader.read_next(timeout_millis=10_000)
        rows.append((m.data(), m.properties(), m.partition_key(), m.producer_name(), m.redelivery_count(), m.message_id().batch_index()))
    return rows, producer.last_sequence_id()


def exclusive_is_busy(side: Side) -> Any:
    topic = "same-busy"
    side.client.create_producer(topic).send(b"x")
    first = side.client.subscribe(topic, "s")
    second = error_of(lambda: side.client.subscribe(topic, "s"))
    shared = error_of(lambda: side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared))
    first.close()
    again = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    other = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    busy = error_of(lambda: again.unsubscribe())
    other.close()
    return second, shared, busy, error_of(lambda: again.unsubscribe())


def producer_of_the_same_name(side: Side) -> Any:
    topic = "same-producer"
    first = side.client.create_producer(topic, "p")
    second = error_of(lambda: side.client.create_producer(topic, "p"))
    first.close()
    return second, error_of(lambda: side.client.create_producer(topic, "p"))


def redelivery(side: Side) -> Any:
    topic = "same-redelivery"
    consumer = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    producer = side.client.create_producer(topic, batching_enabled=False)
    for n in range(3):
        producer.send(str(n).encode())
    first = [consumer.receive(timeout_millis=10_000) for _ in range(3)]
    consumer.acknowledge(first[1])
    for m in (first[0], first[2]):
        consumer.negative_acknowledge(m)
    again = sorted((m.data(), m.redelivery_count()) for m in (consumer.receive(timeout_millis=10_000) for _ in range(2)))
    consumer.redeliver_unacknowledged_messages()
    third = sorted((m.data(), m.redelivery_count()) for m in (consumer.receive(timeout_millis=10_000) for _ in range(2)))
    return again, third


def cumulative_and_seek(side: Side) -> Any:
    topic = "same-seek"
    consumer = side.client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = side.client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(10)]
    seen = [consumer.receive(timeout_millis=10_000) for _ in range(6)]
    consumer.acknowledge_cumulative(seen[3])
    consumer.close()
    consumer = side.client.subscribe(topic, "s")
    after = drain(consumer, 6)
    consumer.seek(ids[2])
    sought = consumer.receive(timeout_millis=10_000).data()
    consumer.seek(pulsar.MessageId.earliest)
    return after, sought, consumer.receive(timeout_millis=10_000).data(), consumer.get_last_message_id().entry_id() == ids[9].entry_id()


def reader_from_a_message(side: Side) -> Any:
    topic = "same-reader"
    producer = side.client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(n).encode()) for n in range(6)]
    out = []
    for inclusive in (False, True):
        reader = side.client.create_reader(topic, ids[3], start_message_id_inclusive=inclusive)
        out.append(reader.read_next(timeout_millis=10_000).data())
    latest = side.client.create_reader(topic, pulsar.MessageId.latest)
    return out, latest.has_message_available()


def partitions(side: Side) -> Any:
    created = side.rest("PUT", "/persistent/public/default/same-parts/partitions", 3)
    producer = side.client.create_producer("same-parts", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False)
    consumer = side.client.subscribe("same-parts", "s", initial_position=pulsar.InitialPosition.Earliest)
    for n in range(9):
        producer.send(str(n).encode())
    count = side.rest("GET", "/persistent/public/default/same-parts/partitions")[1]["partitions"]
    return created[0], sorted(drain(consumer, 9)), side.client.get_topic_partitions("same-parts"), count


def admin_codes(side: Side) -> Any:
    rest = side.rest
    me = rest("GET", "/clusters")[1][0] if rest("GET", "/clusters")[1] else "standalone"
    return [
        rest("PUT", "/tenants/same", {"adminRoles": ["a"], "allowedClusters": [me]})[0],
        rest("PUT", "/tenants/same", {"adminRoles": [], "allowedClusters": [me]})[0],
        rest("GET", "/tenants/absent")[0],
        rest("PUT", "/namespaces/same/ns", {})[0],
        rest("PUT", "/namespaces/same/ns", {})[0],
        rest("PUT", "/namespaces/absent/ns", {})[0],
        rest("GET", "/namespaces/same")[1],
        rest("DELETE", "/tenants/same")[0],
        rest("PUT", "/persistent/same/ns/t", None)[0],
        rest("PUT", "/persistent/same/ns/t", None)[0],
        rest("GET", "/persistent/same/ns")[1],
        rest("GET", "/persistent/same/ns/absent/stats")[0],
        rest("PUT", "/persistent/same/ns/t/subscription/s", None)[0],
        rest("GET", "/persistent/same/ns/t/subscriptions")[1],
        rest("DELETE", "/persistent/same/ns/t/subscription/s")[0],
        rest("DELETE", "/namespaces/same/ns")[0],
        rest("DELETE", "/persistent/same/ns/t")[0],
        rest("DELETE", "/persistent/same/ns/t")[0],
    ]


def stats_names(side: Side) -> Any:
    topic = "same-stats"
    producer = side.client.create_producer(topic, "p", batching_enabled=False)
    consumer = side.client.subscribe(topic, "s", consumer_name="c")
    for _ in range(4):
        producer.send(b"x" * 100)
    consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    stats = side.rest("GET", f"/persistent/public/default/{topic}/stats")[1]
    subscription = stats["subscriptions"]["s"]
    return (
        stats["msgInCounter"],
        [p["producerName"] for p in stats["publishers"]],
        [c["consumerName"] for c in subscription["consumers"]],
        subscription["type"],
        stats["replication"],
    )


def key_shared(side: Side) -> Any:
    topic, keyed = "same-keys", pulsar.ConsumerType.KeyShared
    policies = [
        pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, [cut]) for cut in ((0, 20_000), (20_001, 65_535), (10_000, 30_000))
    ]
    low = side.client.subscribe(topic, "s", keyed, key_shared_policy=policies[0])
    high = side.client.subscribe(topic, "s", keyed, key_shared_policy=policies[1])
    overlap = error_of(lambda: side.client.subscribe(topic, "s", keyed, key_shared_policy=policies[2]))
    producer = side.client.create_producer(topic, batching_enabled=False)
    for n in range(40):
        producer.send(str(n).encode(), partition_key=f"k{n}")
    shares = sorted(m.data() for m in quiet(low)), sorted(m.data() for m in quiet(high))
    low.close()
    high.close()
    return overlap, shares


def quiet(consumer: Any) -> list[Any]:
    """Everything that comes within a second of the one before."""
    out = []
    while True:
        try:
            out.append(consumer.receive(timeout_millis=1000))
        except pulsar.Timeout:
            return out


def delayed(side: Side) -> Any:
    topic = "same-delayed"
    shared = side.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    plain = side.client.subscribe(topic, "plain")
    producer = side.client.create_producer(topic)
    producer.send(b"late", deliver_after=timedelta(seconds=3))
    producer.send(b"now")
    return drain(plain, 2), drain(shared, 2)


def access_modes(side: Side) -> Any:
    topic, modes = "same-modes", pulsar.ProducerAccessMode
    first = side.client.create_producer(topic, access_mode=modes.Exclusive)
    errors = [error_of(lambda mode=mode: side.client.create_producer(topic, access_mode=mode)) for mode in (modes.Exclusive, modes.Shared)]
    second = side.client.create_producer(topic, access_mode=modes.ExclusiveWithFencing)
    second.send(b"x")
    errors.append(error_of(lambda: first.send(b"y")))
    second.close()
    return errors


def non_persistent(side: Side) -> Any:
    topic = "non-persistent://public/default/same-np"
    producer = side.client.create_producer(topic, batching_enabled=False)
    lost = producer.send(b"lost")
    consumer = side.client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"seen")
    return drain(consumer, 1), lost.ledger_id(), lost.entry_id()


SCENARIOS = (
    key_shared,
    delayed,
    access_modes,
    non_persistent,
    publish_and_read,
    exclusive_is_busy,
    producer_of_the_same_name,
    redelivery,
    cumulative_and_seek,
    reader_from_a_message,
    partitions,
    admin_codes,
    stats_names,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_the_answers_are_the_same(sides: tuple[Side, Side], scenario: Callable[[Side], Any]) -> None:
    ours, theirs = sides
    assert scenario(ours) == scenario(theirs)
