"""Load by the official client, one case a process: `python -m benchmarks.client_cases CASE PORT TOPIC [ARGS]` prints
one JSON line.

Cases: batched SIZE COUNT · consume SIZE COUNT · fanout SIZE COUNT SUBSCRIPTIONS · shared SIZE COUNT CONSUMERS ·
sync COUNT · latency RATE SECONDS [PORT2] · link SIZE COUNT PORT2 BATCHED.
Publishing uses no Python callback and one flush: a callback a message would measure this client's interpreter lock.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from statistics import quantiles
from typing import Any

import pulsar


def client(port: int) -> Any:
    """BENCH_CA: over TLS, trusting these certificates. BENCH_TOKEN: signed in by this token."""
    options: dict[str, Any] = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), "io_threads": 1}
    scheme = "pulsar"
    if trusted := os.environ.get("BENCH_CA"):
        scheme, options["tls_trust_certs_file_path"] = "pulsar+ssl", trusted
    if token := os.environ.get("BENCH_TOKEN"):
        options["authentication"] = pulsar.AuthenticationToken(token)
    return pulsar.Client(f"{scheme}://127.0.0.1:{port}", **options)


def producer_of(connection: Any, topic: str, *, batched: bool) -> Any:
    return connection.create_producer(
        topic,
        block_if_queue_full=True,
        max_pending_messages=20_000,
        send_timeout_millis=0,
        batching_enabled=batched,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 * 1024,
        batching_max_publish_delay_ms=10,
    )


def batched(port: int, topic: str, size: int, count: int) -> dict[str, float]:
    connection = client(port)
    producer = producer_of(connection, topic, batched=True)
    body = bytes(size)
    for _ in range(count // 10):
        producer.send_async(body, None)
    producer.flush()
    begun = time.perf_counter()
    for _ in range(count):
        producer.send_async(body, None)
    producer.flush()
    seconds = time.perf_counter() - begun
    connection.close()
    return {"entries": count, "seconds": seconds}


def consume(port: int, topic: str, size: int, count: int) -> dict[str, float]:
    connection = client(port)
    consumer = connection.subscribe(topic, f"c-{time.time_ns()}", initial_position=pulsar.InitialPosition.Earliest)
    producer = producer_of(connection, topic, batched=True)
    body = bytes(size)
    for _ in range(count):
        producer.send_async(body, None)
    producer.flush()
    begun = time.perf_counter()
    for _ in range(count):
        consumer.acknowledge(consumer.receive(timeout_millis=30_000))
    seconds = time.perf_counter() - begun
    connection.close()
    return {"entries": count, "seconds": seconds}


def fanout(port: int, topic: str, size: int, count: int, subscriptions: int) -> dict[str, float]:
    """`count` entries to each of so many subscriptions; an entry of the result is one delivery, acknowledged."""
    connection = client(port)
    consumers = [connection.subscribe(topic, f"f-{n}", receiver_queue_size=100) for n in range(subscriptions)]
    producer = producer_of(connection, topic, batched=False)
    body = bytes(size)
    for _ in range(count):
        producer.send_async(body, None)
    producer.flush()
    begun = time.perf_counter()
    for start in range(0, count, 50):
        for consumer in consumers:
            for _ in range(min(50, count - start)):
                last = consumer.receive(timeout_millis=60_000)
            consumer.acknowledge_cumulative(last)
    seconds = time.perf_counter() - begun
    connection.close()
    return {"entries": count * subscriptions, "seconds": seconds}


def shared(port: int, topic: str, size: int, count: int, consumers: int) -> dict[str, float]:
    """`count` entries to so many consumers of one shared subscription, each acknowledged by itself."""
    connection = client(port)
    producer = producer_of(connection, topic, batched=False)
    producer.send(bytes(size))
    left = count
    lock, done = threading.Lock(), threading.Event()

    def received(consumer: Any, message: Any) -> None:
        nonlocal left
        consumer.acknowledge(message)
        with lock:
            left -= 1
            if not left:
                done.set()

    body = bytes(size)
    producer.flush()
    made = [
        connection.subscribe(
            topic, "all", pulsar.ConsumerType.Shared, receiver_queue_size=100, message_listener=received
        )
        for _ in range(consumers)
    ]
    begun = time.perf_counter()
    for _ in range(count):
        producer.send_async(body, None)
    producer.flush()
    if not done.wait(120):
        raise SystemExit(f"{left} of {count} entries did not come to {len(made)} consumers")
    seconds = time.perf_counter() - begun
    connection.close()
    return {"entries": count, "seconds": seconds}


def percentiles(samples: list[float]) -> dict[str, float]:
    cut = quantiles(samples[len(samples) // 10 :], n=100)
    return {"p50_ms": cut[49] * 1e3, "p99_ms": cut[98] * 1e3}


def sync(port: int, topic: str, count: int) -> dict[str, float]:
    connection = client(port)
    producer = producer_of(connection, topic, batched=False)
    body = bytes(1024)
    samples = []
    for _ in range(count):
        begun = time.perf_counter()
        producer.send(body)
        samples.append(time.perf_counter() - begun)
    connection.close()
    return {"entries": count, **percentiles(samples)}


def latency(port: int, topic: str, rate: int, seconds: int, there: int) -> dict[str, float]:
    """Publish on `port`, receive on `there`; the sample starts at the moment the message was due."""
    connection, other = client(port), client(there)
    consumer = other.subscribe(topic, f"l-{time.time_ns()}", initial_position=pulsar.InitialPosition.Latest)
    producer = producer_of(connection, topic, batched=False)
    if port != there:  # the link must stand before the clock starts
        producer.send(struct.pack("d", 0.0) + bytes(1016))
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    count = rate * seconds
    samples: list[float] = []

    def receive() -> None:
        for _ in range(count):
            message = consumer.receive(timeout_millis=30_000)
            samples.append(time.perf_counter() - struct.unpack_from("d", message.data())[0])
            consumer.acknowledge(message)

    thread = threading.Thread(target=receive)
    thread.start()
    due = time.perf_counter()
    for _ in range(count):
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        producer.send_async(struct.pack("d", due) + bytes(1016), None)
        due += 1 / rate
    producer.flush()
    thread.join(60)
    connection.close()
    other.close()
    return {"entries": count, **percentiles(samples)}


def link(port: int, topic: str, size: int, count: int, there: int, batches: int) -> dict[str, float]:
    """From the first publish here to the last receipt of a copy there."""
    connection, other = client(port), client(there)
    consumer = other.subscribe(topic, f"k-{time.time_ns()}", initial_position=pulsar.InitialPosition.Latest)
    producer = producer_of(connection, topic, batched=bool(batches))
    body = bytes(size)
    producer.send(body)
    consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    begun = time.perf_counter()

    def publish() -> None:
        for _ in range(count):
            producer.send_async(body, None)
        producer.flush()

    thread = threading.Thread(target=publish)
    thread.start()
    last: Any = None
    for i in range(count):
        last = consumer.receive(timeout_millis=60_000)
        if i % 1000 == 999:
            consumer.acknowledge_cumulative(last)
    seconds = time.perf_counter() - begun
    thread.join(60)
    connection.close()
    other.close()
    return {"entries": count, "seconds": seconds}


def main() -> None:
    case, port, topic, *rest = sys.argv[1:]
    cases: dict[str, Any] = {
        "batched": batched,
        "consume": consume,
        "sync": sync,
        "latency": latency,
        "link": link,
        "fanout": fanout,
    }
    cases["shared"] = shared
    print(json.dumps(cases[case](int(port), topic, *(int(a) for a in rest))))


if __name__ == "__main__":
    main()
