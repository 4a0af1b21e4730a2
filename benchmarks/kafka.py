"""Kafka's own client (confluent-kafka, acks=all, linger 5 ms) on Heliograph and on a real Apache Kafka that flushes
each batch, interleaved in one run.

    python -m benchmarks.kafka [--seconds 4] [--rounds 3]

Heliograph keeps two fsynced copies, Kafka one. Prints, by case, the medians, CPU seconds of the servers for a million
messages, and ours against the peer's with the floor of each ratio; exits with 1 where one is below it, or where a time
is above what is allowed whatever the peer needs.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.kafka_servers import HeliographKafka, Kafka
from benchmarks.servers import Server, rest

_QUIET = {"log_level": 0}
FLOORS = {
    "produce 1 KB": 0.6,
    "produce 100 B": 0.4,
    "consume 1 KB": 0.5,
    "sync p50": 1.3,
    "produce to consume p50 at 1,000/s": 1.3,
}
"""Throughput: at least so much of the peer's. Times: at most so many times the peer's."""
JOIN, METADATA = "join of 10 members, s", "metadata of 10,000 partitions, s"
LIMITS = {JOIN: 3.5, METADATA: 1.0}
"""Seconds. A first rebalance waits 3 s for more members, as Kafka's default is; 10,000 partitions are asked of ours
alone: there they are metadata.
"""
_SETTLE_S, _LOOK_S, _IDLE = 15.0, 1.0, 0.1
"""Servers that use less than this part of a core for so long are idle."""
_MEMBERS, _PARTITIONS, _TOPICS = 10, 10_000, 5


class Case:
    def __init__(self, server: Any, number: int) -> None:
        self.bootstrap = {"bootstrap.servers": f"127.0.0.1:{server.kafka_port}", **_QUIET}
        self._number = number

    def topic(self, name: str, partitions: int = 1) -> str:
        text = f"{name}-{self._number}"
        admin = AdminClient(self.bootstrap)  # kept: it ends what waits when it goes
        for future in admin.create_topics([NewTopic(text, partitions, 1)]).values():
            future.result(60)
        return text

    def produce(self, topic: str, size_bytes: int, seconds: float) -> int:
        """Messages acknowledged; the time runs until the last one is."""
        fields = {
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
            "queue.buffering.max.messages": 2_000_000,
        }
        made = confluent_kafka.Producer({**self.bootstrap, **fields})
        value, count, end = os.urandom(size_bytes), 0, time.perf_counter() + seconds
        produce, poll = made.produce, made.poll
        while time.perf_counter() < end:
            for _ in range(500):
                try:
                    produce(topic, value)
                except BufferError:
                    poll(0.01)
                else:
                    count += 1
            poll(0)
        assert made.flush(120) == 0
        return count

    def consume(self, topic: str, count: int) -> float:
        """Messages a second, from the first on."""
        fields = {
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 262_144,
        }
        reader = confluent_kafka.Consumer({**self.bootstrap, **fields})
        reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found, begun, first = 0, 0.0, 0
        while found < count:
            messages = reader.consume(min(10_000, count - found), 30)  # more than there are would wait for them
            assert messages, f"{found} of {count}"
            found += len(messages)
            if not begun:
                begun, first = time.perf_counter(), found
        rate = (found - first) / (time.perf_counter() - begun)
        reader.close()
        return rate

    def sync_p50_ms(self, topic: str, count: int = 400) -> float:
        made = confluent_kafka.Producer({**self.bootstrap, "acks": "all", "linger.ms": 0})
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            made.produce(topic, b"x" * 1024)
            made.flush(60)
            times.append(time.perf_counter() - begun)
        return statistics.median(times[20:]) * 1000

    def end_to_end_p50_ms(self, topic: str, seconds: float = 3.0) -> float:
        """1,000 messages a second, each with the time when it was handed to the producer."""
        made = confluent_kafka.Producer({**self.bootstrap, "acks": "all", "linger.ms": 0})
        reader = confluent_kafka.Consumer(
            {
                **self.bootstrap,
                "group.id": "e2e",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "fetch.min.bytes": 1,
            }
        )
        made.produce(topic, b"0")
        made.flush(60)
        reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        assert reader.consume(1, 60)
        times, begun, sent = [], time.perf_counter(), 0
        total = int(seconds * 1000)
        while len(times) < total and time.perf_counter() < begun + seconds + 60:
            due = min(total, int((time.perf_counter() - begun) * 1000) + 1)
            while sent < due:
                made.produce(topic, repr(time.perf_counter()).encode())
                sent += 1
            made.poll(0)
            for message in reader.consume(1000, 0.0005):
                if message.error() is None:
                    times.append(time.perf_counter() - float(message.value()))
        assert len(times) == total, f"{len(times)} of {total}"
        reader.close()
        return statistics.median(times) * 1000

    def join_s(self, topic: str) -> float:
        """Until each of the members of a new group has its partition."""
        begun = time.perf_counter()
        members = [confluent_kafka.Consumer({**self.bootstrap, "group.id": f"join-{topic}"}) for _ in range(_MEMBERS)]
        for member in members:
            member.subscribe([topic])
        while any(len(member.assignment()) != 1 for member in members):
            for member in members:
                member.poll(0.002)
            assert time.perf_counter() < begun + 60, "the group never had its partitions"
        seconds = time.perf_counter() - begun
        for member in members:
            member.close()
        return seconds

    def metadata_s(self) -> float:
        """Asks for the metadata of all topics, five of which have many partitions: the slowest of five answers, each to
        a client of its own.
        """
        for number in range(_TOPICS):
            self.topic(f"large-{number}", _PARTITIONS // _TOPICS)
        times = []
        for _ in range(5):
            admin = AdminClient(self.bootstrap)
            begun = time.perf_counter()
            found = admin.list_topics(timeout=60).topics
            times.append(time.perf_counter() - begun)
            assert sum(len(topic.partitions) for topic in found.values()) >= _PARTITIONS
        return max(times)


def measure(server: Server, number: int, seconds: float) -> dict[str, float]:
    case, out = Case(server, number), dict[str, float]()
    for name, size_bytes in (("1 KB", 1024), ("100 B", 100)):
        topic = case.topic(f"produce-{size_bytes}")
        cpu, begun = server.cpu_s(), time.perf_counter()
        count = case.produce(topic, size_bytes, seconds)
        out[f"produce {name}"] = count / (time.perf_counter() - begun)
        out[f"CPU s a million, {name}"] = (server.cpu_s() - cpu) / count * 1e6
        if size_bytes == 1024:
            out["consume 1 KB"] = case.consume(topic, count)
    out["sync p50, right behind that load"] = case.sync_p50_ms(case.topic("sync-behind"))
    settle(server)
    out["sync p50"] = case.sync_p50_ms(case.topic("sync"))
    out["produce to consume p50 at 1,000/s"] = case.end_to_end_p50_ms(case.topic("e2e"))
    out[JOIN] = case.join_s(case.topic("join", _MEMBERS))
    return out


def settle(server: Server) -> None:
    """Waits until the servers have done what the last case left them to do: what they write behind a load is counted in
    a row of its own.
    """
    deadline, before = time.monotonic() + _SETTLE_S, server.cpu_s()
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        now = server.cpu_s()
        if now - before < _IDLE * _LOOK_S:
            return
        before = now


def prepare(server: HeliographKafka) -> None:
    admin = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
    rest("GET", f"{admin}/admin/v2/namespaces/public")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are stopped then too
    with tempfile.TemporaryDirectory(prefix="heliograph-kafka-") as folder:
        makers: list[Callable[[], Any]] = [
            lambda: HeliographKafka(Path(folder) / "heliograph"),
            lambda: Kafka(Path(folder) / "kafka"),
        ]
        servers: list[Any] = []
        try:
            for make in makers:
                servers.append(make())
            prepare(servers[0])
            measure(servers[1], 1000, 1.0)  # a JVM that has never run this would be measured cold
            rows: dict[str, list[dict[str, float]]] = {server.kind: [] for server in servers}
            for number in range(options.rounds):
                for server in servers if number % 2 == 0 else servers[::-1]:
                    rows[server.kind].append(measure(server, number, options.seconds))
            metadata_s = Case(servers[0], 0).metadata_s()
        finally:
            for server in servers:
                server.stop()
    return report(
        metadata_s,
        {
            kind: {name: statistics.median(row[name] for row in found) for name in found[0]}
            for kind, found in rows.items()
        },
    )


def report(metadata_s: float, found: dict[str, dict[str, float]]) -> int:
    ours, theirs = found["heliograph"], found["kafka"]
    print(f"{'':36} {'heliograph':>12} {'kafka':>12} {'ratio':>7}  floor")
    missed = 0
    for name, value in ours.items():
        ratio, floor = value / theirs[name], FLOORS.get(name)
        text = limited(name, value)
        missed += "MISSED" in text
        if floor is not None:
            times = "p50" in name
            good = ratio <= floor if times else ratio >= floor
            missed += not good
            text = f"{'<=' if times else '>='} {floor}{'' if good else '  MISSED'}"
        print(f"{name:36} {value:12,.2f} {theirs[name]:12,.2f} {ratio:7.2f}  {text}")
    text = limited(METADATA, metadata_s)
    print(f"{METADATA:36} {metadata_s:12,.2f} {'':12} {'':7}  {text}")
    return 1 if missed or "MISSED" in text else 0


def limited(name: str, seconds: float) -> str:
    """What stands behind a time that has a limit of its own; empty for what has none."""
    limit = LIMITS.get(name)
    return "" if limit is None else f"<= {limit} s{'' if seconds <= limit else '  MISSED'}"


if __name__ == "__main__":
    sys.exit(main())
