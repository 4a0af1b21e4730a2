"""`heliograph perf`: how much, and how fast: produce, consume, and latency at a fixed rate.

Is: load by the official client against one topic. Isn't: a comparison; on a noisy machine two runs differ.
Latency counts from when a message was *due*, not from when it got its turn: where the service (or this client) stalls,
every message that was due meanwhile is late by its own wait, so a stall is not one slow message but all of them
(coordinated omission).
"""

from __future__ import annotations

import struct
import threading
import time
from contextlib import suppress
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add, group
from heliograph.cli.messaging.latency_histogram import Histogram, due_times
from heliograph.cli.messaging.produce_consume import Service, TopicArgument, official
from heliograph.cli.show import Output, table

Size = Annotated[int, typer.Option("--size", help="Bytes of a message.", min=16, max=5 << 20)]
Count = Annotated[int, typer.Option("--count", "-n", help="Messages.", min=1)]
_STAMP = struct.Struct(">dQ")
_QUIET_S = 10.0
_GIVEN_UP_MS = 30_000
"""A message that has no receipt by then has failed: without a bound the client sends again for ever what a broker
refuses.
"""


def register(app: typer.Typer) -> None:
    add(
        group(app, "perf", "Measure a service: throughput, and latency at a fixed rate."),
        produce=produce,
        consume=consume,
        latency=latency,
    )


def _producer(connection: Any, topic: str, batching: bool) -> Any:
    return connection.create_producer(
        topic,
        block_if_queue_full=True,
        max_pending_messages=20_000,
        send_timeout_millis=_GIVEN_UP_MS,
        batching_enabled=batching,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=1,
    )


Batching = Annotated[bool, typer.Option("--batching/--no-batching", help="Whether the client makes batches.")]


def produce(
    topic: TopicArgument,
    count: Count = 100_000,
    size: Size = 1024,
    batching: Batching = True,
    service: Service = Service(),
    *,
    output: Output,
) -> None:
    """As fast as it goes: messages and bytes a second until the last receipt; exit code 1 where some were not
    stored.
    """
    with service.connected(f"cannot produce to {topic}") as connection:
        produce_all(_producer(connection, topic, batching), official(), count, size, output)


def produce_all(
    producer: Any, pulsar: Any, count: int, size: int, output: Output, *, quiet_s: float = _QUIET_S
) -> None:
    """Sends `count` messages of `size` bytes, and prints what became of them. pulsar: the official client's module.
    quiet_s: where no receipt comes for so long, none is waited for any more. Raises typer.Exit(1) where some were not
    stored.
    """
    data, receipts = bytes(size), Receipts(pulsar.Result.Ok)
    begun = time.perf_counter()
    for _ in range(count):
        producer.send_async(data, receipts)
    with suppress(pulsar.PulsarException):  # says that some failed: they are counted
        producer.flush()
    receipts.wait(count, quiet_s)
    failed = count - receipts.stored
    _throughput(output, "produced", receipts.stored, size, time.perf_counter() - begun, {"failed": failed})
    if failed:
        if not output.json:
            typer.echo(f"{failed} failed: {receipts.why or 'no receipt came'}")
        raise typer.Exit(1)


class Receipts:
    """Counts the messages that are stored and those that were answered at all, and keeps the first reason why one is
    not stored.
    """

    def __init__(self, ok: Any) -> None:
        self.stored = self.answered = 0
        self.why = ""
        self._ok = ok
        self._changed = threading.Condition()

    def __call__(self, result: Any, _: Any) -> None:
        with self._changed:
            self.answered += 1
            if result == self._ok:
                self.stored += 1
            else:
                self.why = self.why or str(result)
            self._changed.notify()

    def wait(self, count: int, quiet_s: float) -> None:
        """Until all were answered, or nothing came for so long."""
        with self._changed:
            while (before := self.answered) < count and (self._changed.wait(quiet_s) or self.answered > before):
                pass


def consume(
    topic: TopicArgument,
    count: Count = 100_000,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", help="A new one begins at the earliest message.")
    ] = "heliograph-perf",
    service: Service = Service(),
    *,
    output: Output,
) -> None:
    """As fast as it goes: messages and bytes a second of what waits."""
    pulsar = official()
    with service.connected(f"cannot consume {topic}") as connection:
        consumer = connection.subscribe(
            topic, subscription, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=10_000
        )
        consume_all(consumer, pulsar, count, output)


def consume_all(consumer: Any, pulsar: Any, count: int, output: Output) -> None:
    """Takes so many messages, or all that come until nothing does; says what was taken, and how fast."""
    got = size = 0
    begun = last = time.perf_counter()
    while got < count:
        try:
            message = consumer.receive(timeout_millis=int(_QUIET_S * 1000))
        except pulsar.Timeout:
            break
        if not got:
            begun = time.perf_counter()
        got, size, last = got + 1, size + len(message.data()), time.perf_counter()
        if got % 1000 == 0 or got == count:
            consumer.acknowledge_cumulative(message)
    _throughput(output, "consumed", got, size // max(got, 1), max(last - begun, 1e-9))


def _throughput(
    output: Output, what: str, count: int, size: int, seconds: float, more: dict[str, int] | None = None
) -> None:
    rates = {"messages_per_s": round(count / seconds, 1), "mb_per_s": round(count * size / seconds / 1e6, 2)}
    output.told(
        {"messages": count, "seconds": round(seconds, 3), **rates, **(more or {})},
        f"{what} {count} messages of {size} B in {seconds:.2f} s: {rates['messages_per_s']:.0f} messages/s, "
        f"{rates['mb_per_s']:.1f} MB/s",
    )


# -- latency -----------------------------------------------------------------------------------------------------------


class LatencyRun:
    """One run: a producer at a fixed rate, a consumer beside it, and two histograms from due time: to the receipt, and
    to the consumer.
    """

    def __init__(self, connection: Any, topic: str, size: int, batching: bool) -> None:
        pulsar = official()
        self.to_receipt, self.to_consumer = Histogram(), Histogram()
        self.late_ms = 0.0
        """How late this client itself was at worst."""
        self.failed = 0
        self._ok = pulsar.Result.Ok
        self._padding = bytes(size - _STAMP.size)
        self._lock = threading.Lock()
        self._all = threading.Event()
        self._expected = -1
        self._run_id = time.time_ns()
        self._consumer = connection.subscribe(
            topic, f"perf-{self._run_id}", initial_position=pulsar.InitialPosition.Latest, message_listener=self._came
        )
        self._producer = _producer(connection, topic, batching)

    def run(self, rate: float, seconds: float, burst: float) -> None:
        begun, sent = time.perf_counter(), 0
        for at_s, count in due_times(rate, seconds, burst):
            due = begun + at_s
            while (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            self.late_ms = max(self.late_ms, -wait * 1000)
            for _ in range(count):
                self._producer.send_async(
                    _STAMP.pack(due, self._run_id) + self._padding,
                    lambda result, _, due=due: self._received(result, due),
                )
            sent += count
        self._producer.flush()
        with self._lock:
            self._expected = sent
            if self.to_consumer.count >= sent:
                self._all.set()
        self._all.wait(_QUIET_S)

    def _received(self, result: Any, due: float) -> None:
        with self._lock:
            if result == self._ok:
                self.to_receipt.add((time.perf_counter() - due) * 1000)
            else:
                self.failed += 1

    def _came(self, consumer: Any, message: Any) -> None:
        now, (due, run_id) = time.perf_counter(), _STAMP.unpack_from(message.data())
        consumer.acknowledge(message)
        if run_id == self._run_id:
            with self._lock:
                self.to_consumer.add((now - due) * 1000)
                if 0 <= self._expected <= self.to_consumer.count:
                    self._all.set()

    def close(self) -> None:
        self._consumer.unsubscribe()
        self._producer.close()


def latency(
    topic: TopicArgument,
    rate: Annotated[float, typer.Option("--rate", "-r", help="Messages a second.", min=1, max=100_000)] = 1000,
    seconds: Annotated[float, typer.Option("--seconds", help="How long.", min=0.1, max=86_400)] = 10,
    burst: Annotated[
        float,
        typer.Option(
            "--burst", help="So many times the rate in the middle tenth of the time, such as 10.", min=1, max=100
        ),
    ] = 1,
    size: Size = 100,
    batching: Batching = True,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw how the latencies are spread.")] = True,
    service: Service = Service(),
    *,
    output: Output,
) -> None:
    """At a fixed rate: from when each message was due to its receipt, and to a consumer; exit code 1 where some did not
    arrive.
    """
    with service.connected(f"cannot measure {topic}") as connection:
        run = LatencyRun(connection, topic, size, batching)
        run.run(rate, seconds, burst)
        run.close()
    missing = run.to_receipt.count + run.failed - run.to_consumer.count
    receipt, consumer = run.to_receipt.as_json(), run.to_consumer.as_json()
    if output.json:
        lost = {"failed": run.failed, "missing": missing, "client_late_ms": round(run.late_ms, 3)}
        output.show({"receipt_ms": receipt, "consumer_ms": consumer, **lost})
    else:
        table(
            ("from due, ms", "to receipt", "to consumer"),
            [(key, f"{receipt[key]:g}", f"{consumer[key]:g}") for key in receipt],
        )
        if plot:
            typer.echo("to consumer:\n" + "\n".join(run.to_consumer.plot()))
        typer.echo(
            f"failed {run.failed}, missing {missing}; this client was late itself by {run.late_ms:.1f} ms at most"
        )
    if run.failed or missing > 0:
        raise typer.Exit(1)
