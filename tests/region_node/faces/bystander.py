"""An honest client in a process of its own: it publishes and reads at a slow pace, and says how long it waited.

Is: `python -m tests.region_node.faces.bystander FACE PORT` with the token in BYSTANDER_TOKEN. It prints `ready`; for
each line that it reads a line of JSON about what was since the last one; it ends with its input.
Isn't: a judge of it (`tests.region_node.faces.socket_fuzzing`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PACE_S = 0.05
PATIENCE_S = 30.0
TOPIC = "persistent://house/main/quiet"
Exchange = Callable[[bytes], None]


def by_pulsar(port: int, token: str) -> Exchange:
    import pulsar

    client = pulsar.Client(
        f"pulsar://127.0.0.1:{port}",
        authentication=pulsar.AuthenticationToken(token),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    producer, consumer = client.create_producer(TOPIC), client.subscribe(TOPIC, "bystander")

    def exchange(text: bytes) -> None:
        producer.send(text)
        while True:
            message = consumer.receive(timeout_millis=int(PATIENCE_S * 1000))
            consumer.acknowledge(message)
            if message.data() == text:
                return

    return exchange


def by_kafka(port: int, token: str) -> Exchange:
    import confluent_kafka as ck

    common = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": f"token:{token}",
        "log_level": 0,
    }
    producer = ck.Producer({**common, "acks": "all", "linger.ms": 0})
    consumer = ck.Consumer({**common, "group.id": "bystander", "fetch.wait.max.ms": 100})
    topic = TOPIC.rpartition("/")[2]
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])

    def exchange(text: bytes) -> None:
        producer.produce(topic, text, partition=0)
        if producer.flush(PATIENCE_S):
            raise TimeoutError("not stored")
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None and message.value() == text:
                return
        raise TimeoutError("not read")

    return exchange


def main(face: str, port: str) -> None:
    exchange = {"pulsar": by_pulsar, "kafka": by_kafka}[face](int(port), os.environ["BYSTANDER_TOKEN"])
    for number in range(10):
        exchange(b"first %d" % number)
    print("ready", flush=True)
    waits: list[tuple[float, float]] = []
    errors: list[str] = []
    number = 0
    while True:
        begun = time.monotonic()
        number += 1
        try:
            exchange(b"%d" % number)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        waits.append((time.monotonic() - begun, begun))
        if select.select([sys.stdin], [], [], PACE_S)[0]:
            if not sys.stdin.readline():
                return
            longest, at = max(waits)
            ordered = sorted(wait for wait, _ in waits)
            said = {
                "exchanges": len(waits),
                "longest_ms": 1000 * longest,
                "longest_at": at,
                "p99_ms": 1000 * ordered[len(ordered) * 99 // 100],
                "errors": errors,
            }
            print(json.dumps(said), flush=True)
            waits, errors = [], []


class Bystander:
    """The process, as the fuzzer holds it."""

    def __init__(self, face: str, port: int, token: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.region_node.faces.bystander", face, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "BYSTANDER_TOKEN": token},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            self.end()
            raise RuntimeError("the bystander could not begin; what it printed stands above")

    def said(self) -> dict[str, Any]:
        """How it fared since this was last asked."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            found: dict[str, Any] = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            ended = f"its process ended with {self.process.wait()}"
            return {"exchanges": 0, "longest_ms": 0.0, "longest_at": 0.0, "p99_ms": 0.0, "errors": [ended]}
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
